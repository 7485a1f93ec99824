"""The host as its cgroup lets the run have it: memory, its pressure and OOM kills, open files, /dev/shm."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.core.facts import Fact, HostLook
from supervisor.sensors.base import Clock
from supervisor.sensors.cgroups import Cgroup, Limit, cgroup_of, number_of_key, some_avg10

MEMORY_STEP = 0.02  # of the total; when little is left a fifth of that is news, too
SCARCE_STEP = 0.2
PRESSURE_STEP = 5.0  # percentage points
FILES_STEP = 0.05  # of the limit
SHM_STEP = 0.05  # of its size
LONGEST_COUNT = 200_000  # open files that are counted one by one, on kernels that do not tell their number

Watched = Callable[[], Iterable[tuple[int, str]]]
"""The run's processes: (pid, role)."""


@dataclass(frozen=True)
class Roots:
    """Where the kernel tells; other folders in tests."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shm: Path = Path("/dev/shm")  # noqa: S108 - it is looked at, nothing is written there


class HostSensor:
    """Posts ``HostLook`` when something moved by enough to matter, and every ``heartbeat_s``. Look every few seconds.

    Which cgroup: that of the run's processes, and while there are none the daemon's own. ``memory_total_bytes`` is the
    smallest limit from there up to the root, or the machine's memory; ``memory_available_bytes`` the smallest of what
    any of these levels, or the machine, has left, with page cache that can be dropped counted as available.

    ``oom_kills`` only ever grows: a job that systemd started has a cgroup of its own, which vanishes with it, and the
    next one begins at zero. Kills that a cgroup had counted before it was first seen here are not counted, but for the
    first one's. Where no cgroup tells, it is the machine's count since boot.

    Open files are counted with ``stat`` where the kernel tells their number so (Linux 6.2), else by listing.
    """

    name = "host"

    def __init__(
        self,
        processes: Watched = lambda: (),
        *,
        roots: Roots | None = None,
        heartbeat_s: float = 60.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._processes = processes
        self._roots = roots or Roots()
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._kills: int | None = None
        self._kills_seen: dict[Path, int] = {}
        self._said: HostLook | None = None
        self._said_at = float("-inf")

    def look(self) -> Sequence[Fact]:
        now = self._clock()
        fact = self._look()
        said = self._said
        if said is not None and now - self._said_at < self._heartbeat_s and not _worth_saying(said, fact):
            return ()
        self._said, self._said_at = fact, now
        return (fact,)

    def unknown(self, reason: str) -> Sequence[Fact]:
        self._said = None
        return (HostLook(reason=reason),)

    # ------------------------------------------------------------ one look

    def _look(self) -> HostLook:
        watched = list(self._processes())
        cgroups = self._cgroups(watched)
        memory = self._memory(cgroups)
        files = self._open_files(watched)
        shm = self._shm()
        return HostLook(
            memory_total_bytes=memory.total_bytes if memory else None,
            memory_available_bytes=memory.available_bytes if memory else None,
            memory_pressure=self._pressure(cgroups),
            oom_kills=self._oom_kills(cgroups),
            open_files=files[0] if files else None,
            open_files_limit=files[1] if files else None,
            open_files_of=files[2] if files else "",
            shm_total_bytes=shm[0] if shm else None,
            shm_free_bytes=shm[1] if shm else None,
            reason="" if memory else f"{self._roots.proc / 'meminfo'} could not be read",
        )

    def _cgroups(self, watched: Sequence[tuple[int, str]]) -> list[Cgroup]:
        """The cgroups of the run's processes, each once; the daemon's own when there are none."""
        names = [str(pid) for pid, _ in watched]
        found = {self._cgroup(name) for name in names} - {None}
        own = self._cgroup("self") if not found else None
        return sorted((cgroup for cgroup in (*found, own) if cgroup is not None), key=lambda cgroup: str(cgroup.folder))

    def _cgroup(self, process: str) -> Cgroup | None:
        return cgroup_of(self._roots.proc / process / "cgroup", self._roots.cgroup)

    def _memory(self, cgroups: Sequence[Cgroup]) -> Limit | None:
        machine = _machine(self._roots.proc / "meminfo")
        if machine is None:
            return None
        limits = [machine, *(limit for cgroup in cgroups for limit in cgroup.limits())]
        return Limit(min(limit.total_bytes for limit in limits), min(limit.available_bytes for limit in limits))

    def _pressure(self, cgroups: Sequence[Cgroup]) -> float | None:
        told = [value for cgroup in cgroups if (value := cgroup.pressure()) is not None]
        return max(told) if told else some_avg10(self._roots.proc / "pressure" / "memory")

    def _oom_kills(self, cgroups: Sequence[Cgroup]) -> int | None:
        told = {cgroup.folder: kills for cgroup in cgroups if (kills := cgroup.oom_kills()) is not None}
        if not told and not self._kills_seen:
            return number_of_key(self._roots.proc / "vmstat", "oom_kill")
        if self._kills is None:
            self._kills = sum(told.values())
            self._kills_seen = dict(told)
        for folder, kills in told.items():
            self._kills += max(0, kills - self._kills_seen.get(folder, kills))
            self._kills_seen[folder] = kills
        return self._kills

    def _open_files(self, watched: Sequence[tuple[int, str]]) -> tuple[int, int, str] | None:
        """Of the process that is nearest to its limit: open files, limit, and which it is."""
        nearest: tuple[float, int, int, str] | None = None
        for pid, role in watched:
            folder = self._roots.proc / str(pid)
            count, limit = _count_files(folder / "fd"), _file_limit(folder / "limits")
            if count is None or not limit:
                continue
            if nearest is None or count / limit > nearest[0]:
                nearest = (count / limit, count, limit, f"{role} (pid {pid})")
        return nearest[1:] if nearest else None

    def _shm(self) -> tuple[int, int] | None:
        try:
            look = os.statvfs(self._roots.shm)
        except OSError:
            return None
        return look.f_blocks * look.f_frsize, look.f_bavail * look.f_frsize


def _worth_saying(said: HostLook, fact: HostLook) -> bool:
    if any(
        (before is None) != (now is None)
        for before, now in (
            (said.memory_available_bytes, fact.memory_available_bytes),
            (said.memory_pressure, fact.memory_pressure),
            (said.open_files, fact.open_files),
            (said.shm_free_bytes, fact.shm_free_bytes),
        )
    ):
        return True
    same = ("memory_total_bytes", "oom_kills", "shm_total_bytes", "reason")
    return (
        any(getattr(said, name) != getattr(fact, name) for name in same)
        or _has_moved(said.memory_available_bytes, fact.memory_available_bytes, fact.memory_total_bytes, MEMORY_STEP)
        or _has_moved(said.shm_free_bytes, fact.shm_free_bytes, fact.shm_total_bytes, SHM_STEP)
        or abs((said.memory_pressure or 0.0) - (fact.memory_pressure or 0.0)) >= PRESSURE_STEP
        or abs(_share(said) - _share(fact)) >= FILES_STEP
    )


def _has_moved(before: int | None, now: int | None, total: int | None, step: float) -> bool:
    if before is None or now is None:
        return False  # both are None here
    # Never finer than a thousandth, or a volume that is full but for a few pages would speak at every look.
    floor = (total or 0) / 1000
    return abs(now - before) > max(floor, min(step * (total or 0), SCARCE_STEP * before))


def _share(fact: HostLook) -> float:
    """Of the limit of open files."""
    return (fact.open_files or 0) / fact.open_files_limit if fact.open_files_limit else 0.0


def _machine(meminfo: Path) -> Limit | None:
    """Memory of the whole machine as /proc/meminfo tells it; None when it does not."""
    found = {}
    try:
        for line in meminfo.read_text(errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0]) * 1024
        return Limit(found["MemTotal"], found["MemAvailable"])
    except (OSError, ValueError, LookupError):
        return None


def _count_files(folder: Path) -> int | None:
    try:
        # Since Linux 6.2 the size of /proc/PID/fd is the number of open files (fs/proc/fd.c); before it is 0.
        size = folder.stat().st_size
        if size and folder.is_relative_to("/proc"):
            return size
        with os.scandir(folder) as entries:
            return sum(1 for _, _ in zip(entries, range(LONGEST_COUNT), strict=False))
    except OSError:
        return None  # gone, or of a user with files that we may not count


def _file_limit(limits: Path) -> int | None:
    """The soft limit of open files; None when it cannot be read or there is none."""
    try:
        text = limits.read_text(errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Max open files"):
            soft = line.removeprefix("Max open files").split()[0]
            return int(soft) if soft.isdecimal() else None
    return None
