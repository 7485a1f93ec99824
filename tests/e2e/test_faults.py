"""The main job, end to end: the real daemon against the practice job, each fault by itself.

What is asserted is what a person would look for in the morning: the sentence, the explicit resume step, nothing left
of the old attempt, and a step higher than before the fault.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.replay.test_real_daemon import assert_replayed, export_incident

from .rig import Pod

ERAS = ("2026-01-06", "v0.6", "2026-08-21")
NEWEST = ERAS[2]
"""What each fault is met with by itself; `test_soak.py` has them, and others, in one run in each era."""
FAULT_STEP = 5
MAX_STEPS = 10
DIED = r"The trainer died: (its process \d+ has been gone|Error: Trainer failed)|The job ended with exit code"
HANGS = r"vLLM hangs: it (answers /health but )?makes no progress: "


class Healed:
    """What is left of a pod whose run met a fault and finished."""

    def __init__(self, pod: Pod, code: int) -> None:
        self.pod = pod
        self.code = code
        self.verdicts = pod.sentences("verdict")
        self.resumed = pod.resume_steps()


@pytest.fixture
def heal(tmp_path: Path) -> Iterator[Any]:
    pods: list[Pod] = []

    def go(
        era: str,
        fault: dict[str, Any],
        settings: dict[str, dict[str, Any]] | None = None,
        meanwhile: Callable[[Pod], object] = lambda pod: None,
        **knobs: Any,
    ) -> Healed:
        struck = {"at_step": FAULT_STEP, **fault}
        pod = Pod(tmp_path, era, faults=[struck], settings=settings, max_steps=MAX_STEPS, **{"step_s": 0.5, **knobs})
        pods.append(pod)
        pod.start()
        # What the fault strikes may explain its silence: a save that never ends does for two minutes.
        pod.wait_for(lambda: len(pod.practice.starts()) > 1, "the job is started again", timeout_s=180)
        second = set(pod.practice.alive())
        pod.wait_for(lambda: pod.sentences("incident-closed"), "the incident is over")
        assert pod.sentences("stopped-job"), "the old attempt was stopped, and nothing of it was left"
        assert second, "the second attempt lives"
        meanwhile(pod)
        return Healed(pod, pod.wait_exit())

    yield go
    for pod in pods:
        pod.close()


def assert_resumed(healed: Healed, sentence: str, *, restarts: int = 1) -> None:
    pod = healed.pod
    assert healed.code == 0, pod.story()
    assert re.search(sentence, healed.verdicts[0]), healed.verdicts
    assert healed.resumed[0] is None
    assert len(healed.resumed) == restarts + 1, pod.story()
    assert healed.resumed[1] in (2, 4, 6), f"an explicit, verified step: {healed.resumed}"
    assert not pod.practice.alive(), "nothing of any attempt is left"
    # The trainer's own numbers: max_steps - 1 where steps are counted from 0.
    last = max(int(s.split()[1]) for s in pod.sentences("step"))
    assert last >= MAX_STEPS - 1 > FAULT_STEP
    assert max(pod.stored()) == MAX_STEPS
    assert pod.latest()["step"] == f"step_{MAX_STEPS}"
    (closed,) = pod.sentences("incident-closed")
    assert "Incident 1 is over after" in closed


def test_a_torn_checkpoint_is_passed_over_and_then_an_engine_that_hangs_with_health_200_is_healed(
    tmp_path: Path,
) -> None:
    """What the soaks below meet one by one, in one run."""
    torn, hang = {"kind": "checkpoint-torn", "at_step": 4, "how": "short"}, {"kind": "engine-hang", "at_step": 7}
    pod = Pod(tmp_path, NEWEST, faults=[torn, hang], max_steps=MAX_STEPS, step_s=0.5)
    try:
        pod.start()
        assert pod.wait_exit(150) == 0, pod.story()
        died, hung = pod.sentences("verdict")[:2]
        assert re.search(DIED, died), died
        assert re.search(HANGS, hung), hung
        fresh, passed_over, last = pod.resume_steps()
        assert (fresh, passed_over) == (None, 2)
        assert last in (4, 6), f"an explicit, verified step: {last}"
        set_aside = pod.practice.home / "outputs" / ".set-aside" / "attempt-0002"
        assert list(set_aside.glob("**/step_4")), "the torn step is kept out of the job's sight"
        for ended in pod.sentences("stopped-job")[:2]:
            assert re.fullmatch(r"The job (is stopped after .*|has ended); nothing of it is left\.", ended), ended
        assert not pod.practice.alive(), "nothing of any attempt is left"
        assert max(int(s.split()[1]) for s in pod.sentences("step")) >= MAX_STEPS - 1
        assert max(pod.stored()) == MAX_STEPS
        assert pod.latest()["step"] == f"step_{MAX_STEPS}"
        first, second = pod.sentences("incident-closed")
        assert "Incident 1 is over after" in first and "Incident 2 is over after" in second
    finally:
        pod.close()


@pytest.mark.soak
def test_engine_dies_with_exit_zero_and_the_run_resumes_from_the_last_good_step(heal: Any, tmp_path: Path) -> None:
    file = tmp_path / "incident-1.jsonl.gz"
    healed = heal(NEWEST, {"kind": "engine-exit-0"}, meanwhile=lambda pod: export_incident(pod, file), step_s=1.0)
    assert_resumed(
        healed, r"vLLM died silently: its process \d+ has been gone for .* while the launcher, the orchestrator"
    )
    assert_replayed(healed.pod, file)


@pytest.mark.soak
def test_engine_hangs_with_health_200_and_the_run_resumes(heal: Any) -> None:
    # Before three updates of weights were seen, one may take 12 min, and a hang falls into one: not so early.
    healed = heal(NEWEST, {"kind": "engine-hang", "at_step": 8})
    assert_resumed(healed, HANGS)


@pytest.mark.soak
def test_a_checkpoint_torn_in_the_middle_is_passed_over(heal: Any) -> None:
    healed = heal(NEWEST, {"kind": "checkpoint-torn", "at_step": 4, "how": "short"})
    assert_resumed(healed, DIED)
    assert healed.resumed[1] == 2
    outputs = healed.pod.practice.home / "outputs"
    assert list(outputs.glob(".set-aside/attempt-0002/**/step_4")), "the torn step is kept out of the job's sight"


@pytest.mark.soak
@pytest.mark.parametrize("era", ERAS)
def test_a_disk_that_fills_is_pruned_before_it_is_full(era: str, tmp_path: Path) -> None:
    """Checkpoints that prime-rl never deletes would fill the volume; published ones go, and the job never notices."""
    size = 1 << 20
    settings = {
        "disk": {"capacity_gb": 16 * size / 1e9, "prune_above": 0.35, "keep_local": 1},
        "job": {"checkpoint_interval": 1},
    }
    knobs = {"volume_bytes": 16 * size, "checkpoint_bytes": size, "broadcast_bytes": 1000, "interval": 1}
    pod = Pod(tmp_path, era, settings=settings, max_steps=20, step_s=0.6, **knobs)
    try:
        pod.start()
        assert pod.wait_exit() == 0, pod.story()
        pruned = [sentence for sentence in pod.sentences("pruned") if "from the local disk" in sentence]
        assert len(pruned) >= 4, pod.story()
        assert pod.resume_steps() == [None], "it was never restarted"
        assert max(pod.stored()) == 20
    finally:
        pod.close()


@pytest.mark.soak
@pytest.mark.parametrize("era", ERAS)
def test_a_disk_that_was_full_all_the_same_is_freed_and_the_run_resumes(era: str, heal: Any) -> None:
    """Rollouts grow so fast that no scan could see it coming: the trainer crashes, the leftovers go, it goes on."""
    settings = {"disk": {"capacity_gb": 16e6 / 1e9, "prune_above": 0.7, "keep_local": 1}}
    fault = {"kind": "disk-full", "growth_bytes": 12_000_000}
    healed = heal(era, fault, settings, volume_bytes=16_000_000)
    assert_resumed(healed, r"(No space left on device|The trainer died|The orchestrator died|exit code 1)")
    assert any("Deleted what is left of steps that are gone" in s for s in healed.pod.sentences("pruned"))


@pytest.mark.soak
def test_memory_that_falls_under_a_run_that_makes_steps_is_suspicious_and_no_more(tmp_path: Path) -> None:
    pod = Pod(tmp_path, "v0.6", faults=[{"kind": "memory-fell", "at_step": 6}], max_steps=12, step_s=0.6)
    try:
        pod.start()
        assert pod.wait_exit() == 0, pod.story()
        assert pod.resume_steps() == [None]
        (suspicion,) = [s for s in pod.sentences("suspect") if "memory" in s]
        assert "memory on GPU 0 fell to" in suspicion
        assert "one signal is not enough to act" in suspicion
    finally:
        pod.close()


@pytest.mark.soak
def test_a_trainer_that_ignores_sigterm_is_gone_all_the_same(tmp_path: Path) -> None:
    faults = [{"kind": "engine-exit-0", "at_step": 5}, {"kind": "ignores-sigterm", "how": "trainer"}]
    settings = {"job": {"stop_grace_s": 0.5}}
    pod = Pod(tmp_path, "v0.6", faults=faults, settings=settings, max_steps=MAX_STEPS, step_s=1.0)
    try:
        pod.start()
        pod.wait_for(lambda: pod.practice.trained_steps(), "a first step")
        first = pod.wait_for(lambda: pod.practice.pids("trainer-rank"), "the first attempt's trainer")
        assert pod.wait_exit() == 0, pod.story()
        assert "vLLM died silently" in pod.sentences("verdict")[0]
        assert not [pid for pid in first if Path(f"/proc/{pid}").exists()]
    finally:
        pod.close()


@pytest.mark.soak
def test_an_environment_server_that_is_killed_is_what_died(tmp_path: Path) -> None:
    """The launcher of August 2026 ends the engine first, 20 s later."""
    pod = Pod(tmp_path, "2026-08-21", max_steps=MAX_STEPS, step_s=1.0)
    try:
        pod.start()
        pod.wait_for(lambda: len(pod.practice.trained_steps()) > 2, "some steps")
        (victim,) = pod.practice.pids("env-server")
        os.kill(victim, signal.SIGKILL)
        assert pod.wait_exit() == 0, pod.story()
        sentence = pod.sentences("verdict")[0]
        assert "rror: Train env server reverse-text failed with exit code -9" in sentence or (
            sentence.startswith("An environment server died: its process ")
        ), pod.story()
        assert len(pod.resume_steps()) == 2, pod.story()
    finally:
        pod.close()


@pytest.mark.soak  # also in test_end_billing.py, in one era
def test_a_slow_step_and_an_imitated_log_restart_nothing(tmp_path: Path) -> None:
    faults = [{"kind": "slow-step", "at_step": 6, "factor": 20.0}, {"kind": "imitation", "at_step": 3}]
    pod = Pod(tmp_path, "2026-01-06", faults=faults, max_steps=MAX_STEPS, step_s=0.2)
    try:
        pod.start()
        assert pod.wait_exit() == 0, pod.story()
        assert pod.resume_steps() == [None]
        assert pod.sentences("verdict") == [f"The job finished: exit code 0 after step {MAX_STEPS - 1} of {MAX_STEPS}."]
    finally:
        pod.close()


@pytest.mark.soak
def test_the_job_is_told_the_interval_that_the_core_chose(tmp_path: Path) -> None:
    """Within what a person allows; what it is chosen from is asked in tests/core/test_interval.py."""
    settings = {"job": {"checkpoint_interval": "auto", "checkpoint_interval_between": [1, 4]}}
    fault = {"kind": "trainer-crash", "at_step": 7}
    pod = Pod(tmp_path, NEWEST, faults=[fault], settings=settings, max_steps=12, step_s=0.2)
    try:
        pod.start()
        assert pod.wait_exit() == 0, pod.story()
        given = [
            words[words.index("--ckpt.interval") + 1] for words in (one["arguments"] for one in pod.practice.starts())
        ]
        assert given == ["4", "4"], pod.story()
        told = pod.sentences("checkpoint-interval")
        assert told[0] == "Checkpoints come every 4 steps, a first guess: no save was timed yet."
        assert told[1].startswith("Checkpoints come every 4 steps"), told
        assert pod.resume_steps() == [None, 4]
        assert set(pod.stored()) <= {4, 8, 12} and 12 in pod.stored()
    finally:
        pod.close()
