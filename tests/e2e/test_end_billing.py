"""The real daemon ends the billing of its pod as its last act, and not while a step is only on its disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.fleet.run_look import look_at_run
from supervisor.storage import open_store
from tests.b2server import B2Server, Fault
from tests.people.test_end_billing import Api

from .rig import Pod
from .test_pods import b2_settings, first_pod


def pod_that_pays(folder: Path, server: B2Server, api: Api, **knobs: Any) -> Pod:
    options = b2_settings(server)
    options["environ"] |= api.vast()
    options["settings"] |= {"hooks": {"end_billing": True}}
    return first_pod(folder, "v0.6", **options, **{"max_steps": 4, **knobs})


def sentences(pod: Pod) -> list[str]:
    lines = (json.loads(line) for line in pod.output.read_text().splitlines() if line.startswith("{"))
    return [line["sentence"] for line in lines if line["event"] == "end-billing"]


@pytest.fixture
def api() -> Api:
    return Api()


def test_a_run_that_is_finished_and_published_ends_its_pod_whatever_looked_like_a_fault_and_was_none(
    tmp_path: Path, pods: list[Pod], api: Api
) -> None:
    """A step that takes twenty times as long, and a model that quotes errors into the log."""
    with B2Server() as server:
        pod = pod_that_pays(tmp_path / "pod", server, api)
        faults = [{"kind": "imitation", "at_step": 2}, {"kind": "slow-step", "at_step": 3, "factor": 20.0}]
        pod.practice.set_knobs(faults=faults, step_s=0.2)
        pods.append(pod)
        assert pod.start().wait_exit() == 0, pod.story()
        claim = look_at_run(open_store("b2://the-bucket/runs", server.url, server.environ()), "practice").claim
    assert pod.resume_steps() == [None]
    assert len(pod.sentences("verdict")) == 1 and pod.said_so("verdict", "The job finished: exit code 0 after step ")
    assert (claim.released, claim.code, claim.unpublished) == (True, 0, ())
    assert [(method, path) for method, path, _, _ in api.asked] == [("DELETE", "/api/v0/instances/4711/")]
    assert sentences(pod)[-1] == "Vast.ai instance 4711 is being destroyed."


@pytest.mark.soak
def test_a_step_that_could_not_be_published_keeps_the_pod(tmp_path: Path, pods: list[Pod], api: Api) -> None:
    """The store takes claims and beats, and no manifest; then the pod is told to end."""
    with B2Server() as server:
        pod = pod_that_pays(tmp_path / "pod", server, api, max_steps=200)
        pods.append(pod)
        fault = Fault("b2_upload_file|b2_start_large_file", name="step_", times=10**9, status=403, code="cap_exceeded")
        server.state.faults.append(fault)
        pod.start()
        pod.wait_for(lambda: [s for s in pod.status().get("local_steps", []) if s["state"] == "complete"], "a step")
        assert pod.daemon is not None
        pod.daemon.terminate()
        assert pod.wait_exit() == 0, pod.story()
    assert api.asked == []
    [told] = sentences(pod)
    assert told.startswith("This pod does not end its own billing: step ") and "is only on its disk" in told
