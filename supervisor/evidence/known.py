"""What the daemon knows of an incident at the verdict, and hands to the child that collects the evidence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from supervisor.base.records import dataclass

FOLDER = "incidents"  # in the run's state folder: the bundles of all incidents
MANIFEST = "bundle.json"
TRACE = "trace.jsonl.gz"
NO_JOURNAL = "none"  # of a machine on which no daemon is


def bundles_dir(state_dir: Path) -> Path:
    """Where the bundles of all incidents are. Not in the attempts' folders: those go by their own rules."""
    return state_dir / FOLDER


@dataclass(frozen=True)
class Known:
    """What the daemon knows, taken at the moment of the verdict."""

    explain: Callable[[], Mapping[str, Any]] = dict
    processes: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # pid -> (role, title)
    engine_page: tuple[float, bytes] | None = None  # when /metrics was last read (Unix time), and what it said
    journal: str = ""  # its identity


@dataclass(frozen=True)
class Asked:
    """One bundle, as plain data: ``evidence.child`` reads it from its standard input."""

    run: str
    attempt: int
    incident: int
    reason: str
    state_dir: str
    until: float  # on the monotonic clock, which is the same for all processes of a machine
    explain: Mapping[str, Any]
    processes: Sequence[tuple[int, str, str]]  # pid, role, title
    engine_page: tuple[float, str] | None
    journal: str
    trees: Sequence[str]  # folders of the attempt, and of an inference server of our own
    seen: Sequence[tuple[int, int]]  # the job's processes that a sensor saw, with their start in clock ticks
    logs: Mapping[str, str] | None  # by role; None where the job's folders did not answer in time
    engine_url: str | None
    folders: Sequence[str]  # the disks of these matter
    py_spy: Sequence[str] | None  # folders where it may be, besides PATH and our own; None: it is not asked
    secrets: Sequence[str]  # masked in all that is written

    def as_json(self) -> bytes:
        """For the child."""
        return json.dumps(asdict(self), default=str).encode()
