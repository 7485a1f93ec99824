"""`[slurm]` of the run file: what is asked of a Slurm cluster for this run."""

# ruff: noqa: RUF012 - pydantic gives each instance its own copy of a default

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from supervisor.config.section import Section
from supervisor.core.settings import Positive

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:@+-]{0,99}$")]
Nodes = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,\[\]-]{0,199}$")]
Option = Annotated[str, StringConstraints(pattern=r"^--[a-z][a-z-]*(=[^\s]+)?$")]


class Slurm(Section):
    """What `rl-supervisor slurm` asks of a cluster (docs/clusters.md)."""

    account: Name | None = None
    """Account that the job is charged to. Default: the trainer's `[slurm]`, else the cluster's."""
    partition: Name | None = None
    """Partition, or several with commas. Default: the trainer's `[slurm]`, else the cluster's."""
    time: Annotated[str, StringConstraints(pattern=r"^(\d+-)?\d+(:\d\d){0,2}$")] | None = None
    """Wall time of one job, as Slurm writes it (`24:00:00`, `2-00:00:00`). A longer run is a chain of jobs. Default:
    the trainer's `[slurm]`, else the partition's."""
    nodes: Positive = 1
    """Machines of the run."""
    spares: Annotated[int, Field(ge=0)] = 0
    """Machines more, for one that turns out unfit."""
    gpus_per_node: Annotated[int, Field(ge=0)] | None = None
    """GPUs that are asked for on each machine. Default: as many as `[gpus]` or the trainer's `[deployment]` name."""
    exclude: list[Nodes] = []
    """Machines that the job must not get. Default: the trainer's `[slurm]`. Unfit ones are added to the job itself."""
    notice: Annotated[int, Field(ge=30, le=3600)] = 420
    """Seconds before the wall time at which the run is published and the job requeues itself. Slurm may say it up to a
    minute early."""
    requeue: bool = True
    """False: the job is never requeued, so one wall time or one lost machine ends it."""
    setup: list[str] = []
    """Lines of bash before the start, on the first machine: `module load cuda`. Secrets belong into RUN.env."""
    options: list[Option] = []
    """Further options of sbatch, as on its command line: `["--mem=0", "--qos=high"]`."""

    @field_validator("setup")
    @classmethod
    def one_line_each(cls, value: list[str]) -> list[str]:
        if any("\n" in line or "\0" in line for line in value):
            raise ValueError("each line is an entry of its own")
        return value

    @field_validator("options")
    @classmethod
    def not_ours(cls, value: list[str]) -> list[str]:
        for option in value:
            if option.partition("=")[0] in OURS:
                raise ValueError(f"{option} is said by a setting of [slurm], or by rl-supervisor itself: take it out")
        return value


OURS = frozenset(
    f"--{name}"
    for name in (
        *("account", "array", "comment", "exclude", "job-name", "no-requeue", "nodes", "ntasks", "ntasks-per-node"),
        *("open-mode", "output", "partition", "requeue", "signal", "time", "wrap"),
    )
)
"""Options of sbatch that a script of ours has anyway, or that would make it another thing."""
