"""Where it is measured: the end-to-end pod (`tests.e2e.rig`) with every deadline and interval of production."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from supervisor.config.settings import Deadlines, Recovery, Supervision
from tests.e2e.rig import Pod
from tests.practice.run import Practice, make_practice

ROOT = Path(__file__).resolve().parent.parent
ERA = "v0.6"


def practice_of(folder: Path, *, gpus: int = 2, era: str = ERA, **knobs: Any) -> Practice:
    """A practice run that goes on until it is ended; half of the GPUs are the engine's."""
    half = gpus // 2
    return make_practice(
        folder / "practice",
        era,
        max_steps=100_000,
        gpu_count=gpus,
        inference_gpus=tuple(range(half)),
        trainer_gpus=tuple(range(half, gpus)),
        **knobs,
    )


def production_pod(
    folder: Path,
    practice: Practice,
    *,
    interval: int,
    lines_per_s: float = 0,
    era: str = ERA,
    more: dict[str, dict[str, Any]] | None = None,
    environ: dict[str, str] | None = None,
) -> Pod:
    """The daemon with the run file's defaults for all that decides how fast it is; ``more``: other tables of it."""
    folder.mkdir(parents=True, exist_ok=True)
    job: dict[str, Any] = {"checkpoint_interval": interval}
    if lines_per_s:
        job["launcher"] = chatty(practice, lines_per_s)
    settings = {
        "deadlines": Deadlines().model_dump(),
        "recovery": Recovery().model_dump(),
        "supervision": {**Supervision().model_dump(), "shim": "fork"},
        "job": job,
        **(more or {}),
    }
    # The job's environment is built from nothing, so that what it needs of ours is named.
    return Pod(folder, era, practice=practice, settings=settings, environ=environ)


def chatty(practice: Practice, lines_per_s: float) -> list[str]:
    """The practice launcher with a writer beside it."""
    script = ROOT / "bench" / "chatty.py"
    return [sys.executable, str(script), str(lines_per_s), str(practice.home / ".venv" / "bin" / "rl")]


def times(pod: Pod, event: str) -> list[float]:
    """Unix times of the daemon's events of one name."""
    return [datetime.fromisoformat(str(r["time"])).timestamp() for r in pod.said() if r.get("event") == event]


def titled(practice: Practice, title: str) -> list[int]:
    """Living processes of the run whose title begins like that."""
    found = []
    for pid in practice.alive():
        with contextlib.suppress(psutil.Error, OSError):
            if " ".join(psutil.Process(pid).cmdline()).startswith(title):
                found.append(pid)
    return found


def environment(practice: Practice, library: Path) -> dict[str, str]:
    """What a launcher that is started by another supervisor needs."""
    return {**os.environ, **practice.driver_environment(library), **practice.environment}
