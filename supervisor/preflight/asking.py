"""Runs a program of the job's environment for its answer: with a time limit, without GPUs, and leaves nothing of it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from supervisor.effects import launch
from supervisor.jobs.base import Component

LONGEST = 1 << 20
QUIET = {
    "CUDA_VISIBLE_DEVICES": "",  # a look must not take GPU memory from whoever trains there
    "WANDB_MODE": "disabled",
    "PYTHONDONTWRITEBYTECODE": "1",
    "UV_NO_SYNC": "1",  # `uv run` would else change the environment
    # Error boxes are drawn to the terminal's width: one line for one sentence.
    "COLUMNS": "2000",
    "NO_COLOR": "1",
    "TERM": "dumb",
}


@dataclass(frozen=True)
class Answer:
    """What it said, stdout and stderr together, and how it ended; ``code`` None when its time was over."""

    code: int | None
    text: str


def ask(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float) -> Answer:
    """Run ``argv`` and wait, ``timeout_s`` at most; then whatever it started is killed. Raises OSError.

    ``{scratch}`` in a word becomes a folder that is deleted afterwards.
    """
    run_id = f"preflight-{uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="rl-supervisor-preflight-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        # By these every process of it is known, whatever became of its parents.
        marked = {**env, **QUIET, **launch.markers(scratch, run_id)}
        words = [word.replace("{scratch}", name) for word in argv]
        output = scratch / "said"
        with output.open("wb") as said:
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=marked,
                start_new_session=True,
            )
            code: int | None = None
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
                launch.abandon(Component("preflight", words, cwd, marked), scratch, run_id, None)
        with output.open("rb") as said:
            return Answer(code, said.read(LONGEST).decode("utf-8", "replace"))
