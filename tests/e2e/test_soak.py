"""One long run that meets every fault in turn, in the oldest and the newest dialect.

All are told by name and healed, none is invented.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .rig import Pod

TRAINER = r"The trainer died: (its process \d+ has been gone|Error: Trainer failed)|The job ended with exit code"
FAULTS = (
    (
        "engine-exit-0",
        6,
        r"vLLM died silently: its process \d+ has been gone for .* while the launcher, the orchestrator",
    ),
    ("trainer-crash", 12, TRAINER),
    ("checkpoint-torn", 18, TRAINER),
    ("engine-hang", 24, r"vLLM hangs: it (answers /health but )?makes no progress: "),
    (
        "orchestrator-wedge",
        30,
        r"The orchestrator (or the trainer )?is stuck|vLLM hangs|The job hangs: no new step for",
    ),
    ("trainer-killed", 36, TRAINER),
)
"""Kind, step, and what the verdict says."""
MAX_STEPS = 42


@pytest.mark.soak
@pytest.mark.timeout(280)
@pytest.mark.parametrize(("era", "torn"), [("2026-01-06", "shard"), ("2026-08-21", "short")])
def test_every_fault_in_one_run(era: str, torn: str, tmp_path: Path) -> None:
    more = {"checkpoint-torn": {"how": torn}}
    faults = [{"kind": kind, "at_step": step, **more.get(kind, {})} for kind, step, _ in FAULTS]
    pod = Pod(tmp_path, era, faults=faults, max_steps=MAX_STEPS, step_s=0.6)
    try:
        pod.start()
        assert pod.wait_exit(240) == 0, pod.story()
        closed = pod.sentences("incident-closed")
        assert len(closed) == len(FAULTS), pod.story()
        for verdict, (kind, _, words) in zip(pod.sentences("verdict"), FAULTS, strict=False):  # the last tells the end
            assert re.search(words, verdict), f"{kind}: {verdict}"
        resumed = pod.resume_steps()
        assert len(resumed) == len(FAULTS) + 1
        assert resumed[0] is None
        assert None not in resumed[1:]
        steps = [step for step in resumed[1:] if step is not None]
        assert steps == sorted(steps), f"each restart goes on from a later step: {steps}"
        for step, (kind, at_step, _) in zip(steps, FAULTS, strict=True):
            assert at_step - 4 <= step <= at_step + 3, f"{kind} at {at_step} cost too much: resumed at {step}"
        assert not pod.practice.alive()
        assert max(pod.stored()) == MAX_STEPS
    finally:
        pod.close()
