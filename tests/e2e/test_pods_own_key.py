"""Real daemons with nothing but the key that a fleet makes for a pod: B2 refuses whatever else they would need."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.fleet.controller import RunLook
from supervisor.fleet.keys import B2Keys
from supervisor.fleet.model import Claim, Rules, State
from supervisor.fleet.places.base import label_of
from supervisor.storage import open_store
from tests.b2server import B2Server

from .rig import Pod
from .test_pods import b2_settings, first_pod, next_pod


@pytest.mark.soak
def test_a_run_over_two_pods_each_with_a_key_of_its_own(tmp_path: Path, pods: list[Pod], b2: B2Server) -> None:
    keys = B2Keys(
        "swe",
        Rules("practice", {"spot": "vast"}),
        lambda: open_store("b2://the-bucket/runs", b2.url, b2.environ()),
        lambda: RunLook(Claim(), None),
    )
    options = b2_settings(b2) | {"environ": keys.make_key(label_of("practice", 1, "0000aa"))}
    options["settings"]["store"]["keep_last"] = 2
    # Three steps are published before it is through, also where a publish takes seconds.
    one = first_pod(tmp_path / "one", "v0.6", step_s=1.5, **options)
    pods.append(one)
    one.start()
    one.wait_for(lambda: b2.journal("b2_delete_file_version", "/manifest.json"), "old steps are deleted in the store")
    one.vanish()
    b2.wait_idle()  # a transfer that was under way

    keys.sweep(State(), {"vast": []}, State)
    assert b2.state.keys.keys() == {B2Server.KEY.key_id}
    second = keys.make_key(label_of("practice", 2, "0000bb"))
    two = next_pod(tmp_path / "two", one, environ=second, settings={"store": {"realm": b2.url, "take_over_after": 5}})
    pods.append(two)
    two.start("onstart")
    assert two.wait_exit() == 0, two.story()
    assert two.resume_steps(), "it went on from a step of the first"
    refused = [entry for entry in b2.journal() if entry["status"] in (401, 403)]
    assert not refused, refused
