"""Runs a program of the job's environment for its answer: with a time limit, without GPUs, and leaves nothing of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from supervisor.jobs.base import Component
from supervisor.process import launch

LONGEST = 1 << 20
POLL_S = 0.05
REAP_S = 1.0
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
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    unwanted: threading.Event | None = None,
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
            try:
                code = wait_or_kill(child, timeout_s, unwanted or threading.Event())
            finally:
                launch.abandon(Component("preflight", words, cwd, marked), scratch, run_id, None)
        with output.open("rb") as said:
            return Answer(code, said.read(LONGEST).decode("utf-8", "replace"))


def ask_ours(
    words: Sequence[str], settings: str, env: Mapping[str, str], limit_s: float, unwanted: threading.Event
) -> tuple[bytes, bytes, int | None]:
    """What a part of this program said that gets ``settings`` as its input, its complaints, and its exit code: None
    where it was ended. Raises OSError."""
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complaint:
        asked.write(settings.encode())
        asked.seek(0)
        command = [sys.executable, "-P", "-m", *words]
        child = subprocess.Popen(command, stdin=asked, stdout=said, stderr=complaint, env=env, start_new_session=True)
        code = wait_or_kill(child, limit_s, unwanted)
        said.seek(0)
        complaint.seek(0)
        return said.read(), complaint.read()[-2000:], code


def wait_or_kill(child: subprocess.Popen[bytes], limit_s: float, unwanted: threading.Event) -> int | None:
    """Its exit code; None when its session was killed, because it took too long or is not needed any more."""
    until = time.monotonic() + limit_s
    try:
        while child.poll() is None and time.monotonic() < until and not unwanted.wait(POLL_S):
            pass
    finally:
        code = child.poll()
        if code is None:
            os.killpg(child.pid, signal.SIGKILL)  # our child, not reaped: the number is its own
            with suppress(subprocess.TimeoutExpired):
                child.wait(REAP_S)  # one that the kernel holds (a dead network volume) ends when that lets it go
    return code
