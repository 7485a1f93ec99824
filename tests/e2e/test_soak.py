"""One long run that meets every fault in turn, in each dialect: all are healed, none is invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from .rig import Pod

FAULTS = (
    ("engine-exit-0", 6),
    ("trainer-crash", 12),
    ("checkpoint-torn", 18),
    ("engine-hang", 24),
    ("orchestrator-wedge", 30),
    ("trainer-killed", 36),
)
MAX_STEPS = 42


@pytest.mark.soak
@pytest.mark.timeout(280)
@pytest.mark.parametrize("era", ["2026-01-06", "v0.6", "2026-08-21"])
def test_every_fault_in_one_run(era: str, tmp_path: Path) -> None:
    faults = [{"kind": kind, "at_step": step} for kind, step in FAULTS]
    pod = Pod(tmp_path, era, faults=faults, max_steps=MAX_STEPS, step_s=0.6)
    try:
        pod.start()
        assert pod.wait_exit(240) == 0, pod.story()
        closed = pod.sentences("incident-closed")
        assert len(closed) == len(FAULTS), pod.story()
        resumed = pod.resume_steps()
        assert len(resumed) == len(FAULTS) + 1
        assert resumed[0] is None
        assert None not in resumed[1:]
        steps = [step for step in resumed[1:] if step is not None]
        assert steps == sorted(steps), f"each restart goes on from a later step: {steps}"
        for step, (kind, at_step) in zip(steps, FAULTS, strict=True):
            assert at_step - 4 <= step <= at_step + 3, f"{kind} at {at_step} cost too much: resumed at {step}"
        assert not pod.practice.alive()
        assert max(pod.stored()) == MAX_STEPS
    finally:
        pod.close()
