"""What a bundle is about: the incident, the run's processes, its logs, ports and folders, as known when it began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.process.survivors import Identity, Process


@dataclass(frozen=True)
class Known:
    """What the daemon knows besides, taken at the moment of the verdict."""

    explain: Callable[[], Mapping[str, Any]] = dict
    processes: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # pid -> (role, title)
    engine_page: tuple[float, bytes] | None = None  # when /metrics was last read (Unix time), and what it said
    journal: str = ""  # its identity


@dataclass(frozen=True)
class Scene:
    """One incident of one attempt."""

    run: str
    attempt: int
    incident: int
    reason: str
    state_dir: Path
    known: Known
    living: Callable[[], Sequence[Process]] = list  # the run's processes; may take long
    shims: Callable[[], frozenset[Identity]] = frozenset
    logs: Callable[[], Mapping[str, Path]] = dict  # by role; looks at the job's folders, which may hang
    engine_url: str | None = None
    folders: Sequence[Path] = ()  # the disks of these matter
    stack_programs: Callable[[], Sequence[Path]] = list  # where py-spy is, none: it is not asked; may hang, too

    @property
    def journal_path(self) -> Path:
        """The flight recorder."""
        return self.state_dir / "journal.db"

    def role(self, pid: int) -> str:
        """Of a process, "" for a helper."""
        return self.known.processes.get(pid, ("", ""))[0]

    def title(self, pid: int) -> str:
        """As a sensor last saw it: asking for it now may hang."""
        return self.known.processes.get(pid, ("", ""))[1]


def executable(pid: int) -> str:
    """Path of the program that a process runs, "" when it is not told."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")
    except OSError:
        return ""
