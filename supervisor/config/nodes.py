"""The table of the run file about a run over several machines: which component runs on which."""

# ruff: noqa: RUF012 - pydantic gives each instance its own copy of a default

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from supervisor.config.section import HostPort, Section

LEASE_S = 480.0
WRITERS = ("trainer", "orchestrator")
"""Roles that write what the run keeps, unless it is said otherwise."""


class NodeComponent(Section):
    """One component of the job: one process on one machine, and what it starts itself."""

    role: Literal["trainer", "orchestrator", "inference", "env"]
    """What it is. Of each role the first is number 0. Trainer 0 ends the job; only its output tells of steps."""
    machine: Annotated[int, Field(ge=0, lt=4096)] = 0
    """The machine it runs on, counted from 0. Which one that is, is decided at each start."""
    start: list[str]
    """Command line of a fresh start. Beside the holes of `[job.plain]`: `{attempt}`, `{address.N}` and `{name.N}`."""
    resume: list[str] = []
    """Command line that resumes, with `{step}` and `{checkpoint}`. Default: that of a fresh start."""
    port: Annotated[int, Field(gt=0, lt=65536)] | None = None
    """Of a vLLM engine: the port at which it answers HTTP on its machine. Its health and its counters are then watched.
    """
    writes: bool | None = None
    """Does it write what the run keeps? Default: true for trainer and orchestrator. While a machine that ran such a
    component is silent, no other copy of it starts before its agent must have ended it (`lease`)."""

    @property
    def is_writer(self) -> bool:
        """Could a second copy spoil what the run keeps?"""
        return self.role in WRITERS if self.writes is None else self.writes


class Nodes(Section):
    """A run over several machines; on each, `rl-supervisor node RUN.toml` runs. Not for `kind = "vf-rl"`."""

    folder: Path
    """Folder that all machines see: where the daemon listens, and the run's token, for our user alone. Required."""
    listen: HostPort = "0.0.0.0:0"
    """`host:port` for the agents. Port 0: any. What is said there is authenticated and not encrypted."""
    address: str | None = None
    """Name or address by which the other machines reach this one. Default: that of `listen`, else the host name."""
    lease: Annotated[float, Field(ge=4, le=86_400)] = LEASE_S
    """Seconds after which an agent that hears from no daemon ends what runs on its machine. Keep it two minutes below
    `store.take_over_after`: so long another daemon waits that knows nothing of these machines."""
    wait: Annotated[float, Field(ge=0, le=86_400)] = 300
    """How long a start waits for machines enough; then the daemon ends with 94."""
    disks: Literal["shared", "local"] = "shared"
    """`"local"`: each machine writes its part of a step on a disk of its own, below the same `output_dir`. A start then
    brings the whole step to each machine from the store, which must be one that all of them reach."""
    components: list[NodeComponent] = []
    """The job's components, for `kind = "command"`. prime-rl says itself what it is made of."""

    @field_validator("components")
    @classmethod
    def one_ends_the_job(cls, value: list[NodeComponent]) -> list[NodeComponent]:
        if value and not any(one.role == "trainer" for one in value):
            raise ValueError('needs a component with role = "trainer": its end is the end of the job')
        return value

    @property
    def machines_wanted(self) -> int:
        """So many machines the components need."""
        return 1 + max(one.machine for one in self.components)
