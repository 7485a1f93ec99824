"""Training that is worth nothing, with real processes: the step before it outlives retention and the pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .rig import Pod
from .test_pods import first_pod, next_pod

SMALL = {"store": {"keep_last": 2}}
NAN_FROM_7 = [{"kind": "loss-nan", "at_step": 7}]


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    made: list[Pod] = []
    yield made
    for pod in made:
        pod.close()


@pytest.mark.soak
def test_a_run_whose_loss_is_nan_keeps_the_step_before_it_and_the_next_pod_goes_back_by_the_command_in_the_sentence(
    tmp_path: Path, pods: list[Pod]
) -> None:
    one = first_pod(tmp_path / "one", "2026-08-21", settings=SMALL, max_steps=200, step_s=0.3)
    pods.append(one)
    one.practice.set_knobs(step_s=0.3, faults=NAN_FROM_7)
    one.start()
    one.wait_for(lambda: max(one.stored(), default=0) >= 14, "four checkpoints with NaN in them are in the store")
    one.wait_for(lambda: len(one.stored()) <= 4 and 10 not in one.stored(), "retention has deleted one of them")
    assert 6 in one.stored()
    kept = Path(one.store.removeprefix("file://")) / "practice" / "pins.json"
    one.wait_for(kept.exists, "what it found is kept in the store")
    one.vanish()

    two = next_pod(tmp_path / "two", one, settings=SMALL)
    pods.append(two)
    two.practice.set_knobs(step_s=0.3)
    two.start("onstart")
    sentence = two.wait_for(lambda: next(iter(two.sentences("worth")), ""), "it knows what the pod before it found")
    command = re.search(r"supervisorctl (rollback) (\d+)$", sentence)
    assert command, sentence
    assert command[2] == "6"
    two.wait_for(lambda: two.sentences("step"), "it trains")
    two.wait_for(lambda: sentence in two.status()["notes"], "the note in its status")
    two.command(command[1], command[2])
    two.wait_for(lambda: 6 in two.resume_steps(), "it goes back")
    two.wait_for(lambda: 8 in two.stored() and two.latest().get("step") == "step_8", "and on, with another lineage")
    assert not two.status()["worthless"]


@pytest.mark.soak
def test_a_run_that_is_to_go_back_by_itself_does_and_ends_well(tmp_path: Path, pods: list[Pod]) -> None:
    back = {**SMALL, "recovery": {"on_worthless": "rollback"}}
    pod = Pod(tmp_path, "v0.6", settings=back, faults=NAN_FROM_7, max_steps=14, step_s=0.4)
    pods.append(pod)
    pod.start()
    assert pod.wait_exit() == 0, pod.story()
    fresh, back_to = pod.resume_steps()
    assert (fresh, back_to) in [(None, 6), (None, 4)], "on a slow machine step 6 was not yet known to be whole"
    assert pod.said_so("verdict", f"Going back to step {back_to} (recovery.on_worthless = rollback).")
    assert pod.latest()["step"] == "step_14"
