"""The stop after a death, with the launchers' own joins: what is being saved is kept, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from .rig import Pod

SAVE_S, PATIENCE = 5.0, 1.0  # joins of 5 s, as the real launchers'
SAVES = re.compile(r"Saving checkpoint at step (\d+)")


def step_being_saved(pod: Pod) -> int | None:
    begun = max(map(int, SAVES.findall(pod.practice.log("trainer"))), default=None)
    whole = begun is None or (pod.practice.trainer_part(begun) / ".metadata").exists()
    return None if whole else begun


@pytest.mark.soak
@pytest.mark.parametrize("era", ["2026-01-06", "2026-08-21"])
def test_a_save_in_progress_becomes_whole_and_the_run_resumes_at_it(era: str, tmp_path: Path) -> None:
    pod = Pod(tmp_path, era, max_steps=60, interval=2, step_s=1.0, save_s=SAVE_S, patience=PATIENCE)
    try:
        pod.start()
        pod.wait_for(lambda: pod.sentences("published"), "a step is published")
        step = pod.wait_for(lambda: step_being_saved(pod), "a save begins")
        old = set(pod.practice.alive())
        for pid in pod.practice.pids("engine-core"):
            os.kill(pid, signal.SIGKILL)
        pod.wait_for(lambda: len(pod.resume_steps()) > 1, "the next start")
        assert "vLLM died" in pod.sentences("verdict")[0], pod.story()
        assert pod.resume_steps()[1] == step, pod.story()
        assert not old & pod.practice.alive().keys(), "nothing of the attempt before is left"
        pod.wait_for(lambda: step in pod.stored(), "that step is published")
    finally:
        pod.close()
