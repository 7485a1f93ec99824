"""Two pods, one run: the real daemons, each with its own disk, over one store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .rig import Pod
from .test_pods import first_pod, next_pod

PATIENT = {"store": {"take_over_after": 60}}
"""Longer than a busy machine keeps a heartbeat waiting."""


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    made: list[Pod] = []
    yield made
    for pod in made:
        pod.close()


def writers(pod: Pod) -> list[str]:
    folder = Path(pod.store.removeprefix("file://")) / "practice" / "writers"
    return sorted(path.name for path in folder.glob("*.json"))


def test_a_duplicate_started_by_mistake_waits_and_the_run_ends_once(tmp_path: Path, pods: list[Pod]) -> None:
    store = (tmp_path / "store").as_uri()
    one = first_pod(tmp_path / "one", "v0.6", store=store, settings=PATIENT, max_steps=16)
    two = next_pod(tmp_path / "two", one, settings=PATIENT)
    pods += [one, two]
    one.start()
    one.wait_for(lambda: one.stored(), "a step is stored")
    two.start("onstart")
    two.wait_for(lambda: two.said_so("claim-held", "holds this run (generation 1, its heartbeat moved"), "it waits")
    assert "nothing is started here" in str(two.status().get("sentence"))
    assert one.wait_exit() == 0, one.story()
    assert two.wait_exit(90) == 0, two.story()
    assert not two.practice.starts(), "the duplicate trained nothing"
    assert two.said_so("verdict", "Step 16 of 16 is there: nothing is left to train.")
    assert one.latest()["generation"] == 1
    assert {"gen_00001.json", "gen_00001.end.json", "gen_00002.json"} <= set(writers(one))


def test_take_over_fences_the_pod_that_held_the_run_and_its_job_goes_on(tmp_path: Path, pods: list[Pod]) -> None:
    store = (tmp_path / "store").as_uri()
    one = first_pod(tmp_path / "one", "v0.6", store=store, settings=PATIENT, max_steps=400)
    two = next_pod(tmp_path / "two", one, settings=PATIENT)
    pods += [one, two]
    one.start()
    one.wait_for(lambda: one.stored(), "a step is stored")
    two.practice.set_knobs(step_s=0.4)
    two.start("onstart", "--take-over")
    two.wait_for(lambda: two.said_so("claimed", "generation 2"), "it holds the run")
    one.wait_for(lambda: one.sentences("fenced"), "the other one is told")
    assert one.said_so("fenced", "has taken this run over (generation 2): nothing is published")
    told, published = one.step(), len(one.sentences("published"))
    one.wait_for(lambda: one.step() > told + 2, "its job goes on")
    assert len(one.sentences("published")) == published, "and nothing of it is published"
    two.wait_for(lambda: two.latest()["generation"] == 2, "the new holder publishes", 60)
    assert not two.said_so("publish-failed", "holds run")


def test_rollback_by_hand_is_seen_by_a_pod_that_comes_before_the_next_publish(tmp_path: Path, pods: list[Pod]) -> None:
    store = (tmp_path / "store").as_uri()
    one = first_pod(tmp_path / "one", "v0.6", store=store, max_steps=400, step_s=0.3)
    pods.append(one)
    one.start()
    one.wait_for(lambda: len(one.stored()) >= 3, "three steps are stored")
    one.ctl("pause")  # nothing new meanwhile
    target = one.stored()[0]
    one.ctl("resume")
    one.practice.set_knobs(step_s=30)
    told = one.ctl("rollback", str(target))
    assert told.returncode == 0, told
    one.wait_for(lambda: one.latest()["step"] == f"step_{target}", "the pointer went back")
    one.vanish()
    left = max(one.stored())
    assert left > target, "what was left is not deleted"

    two = next_pod(tmp_path / "two", one)
    pods.append(two)
    two.practice.set_knobs(step_s=0.3)
    two.start("onstart")
    two.wait_for(lambda: two.practice.starts(), "the job is started", 60)
    assert two.resume_steps() == [target]
