"""Effects without a daemon: for tests that ask them for something, and see what they tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.effects.carry_out import Effects
from supervisor.effects.run_context import RunContext
from supervisor.evidence.known import Known
from supervisor.jobs.base import Job
from supervisor.process.survivors import Identity


class Seen:
    """What a daemon would see: nothing, unless a test says more."""

    def __init__(self, gpu_free: bool | None = None, log_files: Callable[[], dict[str, Path]] = dict) -> None:
        self.free = gpu_free
        self.log_files = log_files
        self.processes: list[Identity] = []

    def gpu_free(self) -> bool | None:
        return self.free

    def engine_gpu_free(self) -> bool | None:
        return self.free

    def gpu_pids(self) -> list[int]:
        return []

    def job_processes(self) -> list[Identity]:
        return self.processes

    def engine_processes(self) -> list[Identity]:
        return []

    def scene(self) -> Known:
        return Known(dict)

    def beat(self) -> dict[str, Any]:
        return {}

    def peak_memory(self) -> int | None:
        return None

    def wandb_notes(self) -> str:
        return ""

    def wandb_id(self) -> str:
        return "wandb"


def context(
    run_file: RunFile,
    facts: list[f.Fact],
    open_job: Callable[[], Job | None] = lambda: None,
    environ: Mapping[str, str] | None = None,
) -> RunContext:
    """The run of effects that tell their facts to a list."""

    def post(fact: f.Fact, source: str = "", /) -> None:
        facts.append(fact)

    return RunContext(run_file, environ or {}, post, open_job)  # type: ignore[arg-type]


def effects_of(
    run_file: RunFile,
    facts: list[f.Fact],
    open_job: Callable[[], Job | None] = lambda: None,
    *,
    environ: Mapping[str, str] | None = None,
    seen: Seen | None = None,
) -> Effects:
    """A daemon's effects, which tell their facts to a list."""
    return Effects(context(run_file, facts, open_job, environ), seen or Seen())
