"""The settings that decisions hang on: each is declared here alone, and the run file's tables take them from here.

A setting has the same name in its table of the run file, in the core, and in the journal. Its docstring is what
docs/settings.md says. pydantic reads the limits; nothing here does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt

from supervisor.base.records import dataclass

Seconds = Annotated[float, Ge(0)]
Patience = Annotated[float, Gt(0)]
"""Seconds, and more than none."""
Positive = Annotated[int, Ge(1)]
FIRST_INTERVAL = 10
"""Steps between two checkpoints before anything was measured: few are done again, and a save is seldom long."""


@dataclass(frozen=True, kw_only=True)
class DeadlineSettings:
    """`[deadlines]`, each in seconds."""

    startup: Patience = 3600
    """From launch to the first new step: download, compile, load, first rollouts."""
    step_floor: Patience = 600
    """A step is never overdue before this, nor before three times the median step."""
    step_ceiling: Patience = 7200
    """Without any step to learn from, a step is overdue after this."""
    engine_grace: Seconds = 2
    """From the end of an engine process to the verdict; a launcher that ends by itself is a plain exit."""
    memory_fell: Seconds = 10
    """How long an inference GPU must be empty before it is a signal."""
    hang: Patience = 55
    """How long the engine's counters must stand still, while work waits, before it is a signal."""
    checkpoint_save: Patience = 900
    """How long a checkpoint that is being written excuses silence."""
    machine_silent: Patience = 30
    """How long a machine's agent must be silent before that is a signal ([nodes])."""


@dataclass(frozen=True, kw_only=True)
class RecoverySettings:
    """`[recovery]`."""

    mode: Literal["act", "observe"] = "act"
    """`observe`: publishing goes on, nothing is started, stopped or deleted, and what would have been done is told."""
    inference: Literal["with-job", "own-role", "auto"] = "with-job"
    """`own-role`: the inference server is started beside the job, from `job.inference_config`, and each is restarted
    without the other where that is safe. `auto`: so where this prime-rl was tried with it and all that it needs is
    there, else `with-job`; decided before each start, and `check` says why."""
    max_restarts: Annotated[int, Ge(0)] = 3
    """Restarts without a new complete step before giving up (exit 93)."""
    on_worthless: Literal["say", "stop", "rollback"] = "say"
    """While training is worth nothing (loss NaN, reward fallen to zero). The newest step from before it is always kept.
    `stop`: the job is stopped and a person called (exit 93). `rollback`: the run goes back to that step, again only
    from newer healthy checkpoints, else as `stop`."""
    backoff: Seconds = 5
    """First wait before a restart that follows a failed one; doubles, with jitter."""
    backoff_cap: Patience = 300
    """Longest such wait."""


@dataclass(frozen=True, kw_only=True)
class DiskSettings:
    """What decisions hang on of `[disk]`."""

    prune_above: Annotated[float, Gt(0), Lt(1)] = 0.85
    """Used part of the checkpoint volume above which published steps are deleted, oldest first."""
    keep_local: Positive = 2
    """Newest complete steps that stay on the local disk; where the next one would not fit, the newest alone."""


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """What decisions hang on of `[store]`."""

    keep_last: Annotated[int, Ge(2)] = 3
    """Newest steps kept in the store; at least two."""
    keep_every: Positive | None = None
    """Besides, every step that is a multiple of this."""


@dataclass(frozen=True)
class Settings(DeadlineSettings, RecoverySettings, DiskSettings, StoreSettings):
    """What decisions hang on: settings of the run file under their own names, and what the job and the daemon tell."""

    run_id: str
    max_steps: int | None = None
    first_step_at: int = 0  # 0 or 1: the number of the first training step in this dialect
    has_engine: bool = True
    has_finish_line: bool = True  # False: no line says success, so exit 0 means finished, unless steps are left
    fresh: bool = False  # --fresh: a person said that starting from scratch is meant
    pin_step: int | None = None  # --step N by hand
    fencing: bool = False  # the store is one that other pods reach, too: nothing is started before the run is claimed
    take_over: bool = False  # --take-over: a person said that the pod that holds the run has to yield
    engine_alone: bool = True  # own-role: the job goes on with an inference server that was restarted under it
    engine_warm: bool = True  # own-role: a restarted job takes over an inference server that ran on
    stop_budget_s: float = 400.0
    publish_retry_s: float = 5.0  # first wait after a failed publish; doubles up to ten minutes
    stop_below_bytes: int = 0
    seed: int = 0
    interval_between: tuple[int, int] | None = None  # checkpoint_interval = "auto": the least and the most steps
    hooks: tuple[str, ...] = ()
    run_file: str = "RUN.toml"  # its path, for the commands in sentences


OLD_NAMES = {
    **{f"{name}_s": name for name in ("startup", "step_floor", "step_ceiling", "engine_grace", "memory_fell", "hang")},
    "writing_s": "checkpoint_save",
    "backoff_base_s": "backoff",
    "backoff_cap_s": "backoff_cap",
}
"""What journals and traces from before called a setting, and its name."""


def with_new_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``Settings`` out of an old journal or trace, under today's names."""
    # ``has_store`` always was true.
    return {OLD_NAMES.get(name, name): value for name, value in fields.items() if name != "has_store"}
