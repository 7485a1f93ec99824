"""Runs a program of the job's environment for its answer: with a time limit, without GPUs, and leaves nothing of it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from supervisor.base.own_child import NEVER, OwnChild
from supervisor.base.records import dataclass
from supervisor.jobs.base import Component
from supervisor.process import launch

QUIET = {
    "CUDA_VISIBLE_DEVICES": "",  # a look must not take GPU memory from a job that trains there
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


def ask(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float, unwanted: threading.Event | None = None
) -> Answer:
    """Run ``argv`` and wait, ``timeout_s`` at most; then whatever it started is killed. Raises OSError.

    ``{scratch}`` in a word becomes a folder that is deleted afterwards. ``unwanted``: set once no answer is needed.
    """
    run_id = f"preflight-{uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="rl-supervisor-preflight-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        # By these every process of it is known, whatever became of its parents.
        marked = {**env, **QUIET, **launch.markers(scratch, run_id)}
        words = [word.replace("{scratch}", name) for word in argv]
        with OwnChild(words, environ=marked, cwd=cwd, together=True) as child:
            try:
                code = child.wait(time.monotonic() + timeout_s, unwanted or NEVER)
            finally:
                child.kill()
                launch.abandon(Component("preflight", words, cwd, marked), scratch, run_id, None)
            return Answer(code, child.answer().decode("utf-8", "replace"))
