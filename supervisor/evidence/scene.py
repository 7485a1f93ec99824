"""What a bundle is about: the incident as the daemon told it, and what is looked at when the bundle is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from supervisor.evidence.known import Asked
from supervisor.process.survivors import Identity, Process


@dataclass(frozen=True)
class Scene:
    """One incident of one attempt."""

    asked: Asked
    living: Callable[[], Sequence[Process]] = list  # the run's processes; may take long
    shims: Callable[[], frozenset[Identity]] = frozenset
    stack_programs: Callable[[], Sequence[Path]] = list  # where py-spy is, none: it is not asked; may hang, too

    @property
    def journal_path(self) -> Path:
        """The flight recorder."""
        return Path(self.asked.state_dir) / "journal.db"

    @cached_property
    def _processes(self) -> dict[int, tuple[str, str]]:
        return {pid: (role, title) for pid, role, title in self.asked.processes}

    def role(self, pid: int) -> str:
        """Of a process, "" for a helper."""
        return self._processes.get(pid, ("", ""))[0]

    def title(self, pid: int) -> str:
        """As a sensor last saw it: asking for it now may hang."""
        return self._processes.get(pid, ("", ""))[1]


def executable(pid: int) -> str:
    """Path of the program that a process runs, "" when it is not told."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")
    except OSError:
        return ""
