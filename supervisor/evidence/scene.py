"""What a bundle is about: the incident, the run's processes, its logs, ports and folders, as known when it began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.evidence.known import Known
from supervisor.process.survivors import Identity, Process


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
    logs: Mapping[str, Path] | None = None  # by role; None where the job's folders did not answer in time
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
