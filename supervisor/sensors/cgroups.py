"""Memory limits and OOM kills of the control groups that processes live in, version 2 or 1, as far as they can be seen.

A container's memory is what its cgroup (or one above it) allows, while /proc/meminfo speaks of the whole machine.
File names: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the Linux kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from supervisor.base.records import dataclass

OWN = "rl-job-"  # groups without controllers that process/own_cgroup.py makes below the daemon's own
UNLIMITED_BYTES = 1 << 60  # version 1 says "no limit" with a number just below 2**63


@dataclass(frozen=True)
class Limit:
    """What the tightest of some cgroups allows and has left, in bytes. Page cache that can be dropped is not used."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Cgroup:
    """One cgroup of the memory controller: its folder, and the folder where that hierarchy is mounted."""

    folder: Path
    mount: Path
    version: int

    def levels(self) -> Iterator[Path]:
        """The cgroup and those above it. In a container /proc may name folders that only the host sees."""
        folder = self.folder
        while folder != self.mount:
            yield folder
            folder = folder.parent
        yield self.mount

    def limits(self) -> Iterator[Limit]:
        """One for each level that has a limit."""
        names = ("memory.max", "memory.current", "inactive_file")
        if self.version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in self.levels():
            total, used = read_number(folder / names[0]), read_number(folder / names[1])
            if total is None or used is None or total >= UNLIMITED_BYTES:
                continue
            cache = number_of_key(folder / "memory.stat", names[2]) or 0
            yield Limit(total, max(0, min(total, total - used + cache)))

    def oom_kills(self) -> int | None:
        """Processes of this cgroup (version 2: or below it) that the kernel killed for memory; None if not told."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return number_of_key(self.folder / name, "oom_kill")

    def pressure(self) -> float | None:
        """Percent of the last 10 s in which a task of this cgroup (or the nearest that tells) waited for memory."""
        if self.version == 1:
            return None
        told = (some_avg10(folder / "memory.pressure") for folder in self.levels())
        return next((value for value in told if value is not None), None)


def cgroup_of(membership: Path, root: Path) -> Cgroup | None:
    """The memory cgroup that a /proc/PID/cgroup file tells of, below ``root`` (/sys/fs/cgroup); None when it cannot."""
    try:
        lines = membership.read_text(errors="replace").splitlines()
    except OSError:
        return None
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    # Where version 1 has the memory controller, version 2 (mounted beside it, or not) knows nothing of memory.
    for _, controllers, path in parts:
        if "memory" in controllers.split(","):
            return _below(root / "memory", path, 1)
    for hierarchy, controllers, path in parts:
        if hierarchy == "0" and not controllers:
            found = _below(root, path, 2)
            ours = found.folder.name.startswith(OWN) and not found.folder.name.endswith(".service")
            return Cgroup(found.folder.parent, found.mount, 2) if ours else found  # memory is accounted there
    return None


def _below(mount: Path, path: str, version: int) -> Cgroup:
    words = [word for word in PurePosixPath(path).parts if word not in ("/", "..")]
    folder = mount.joinpath(*words)
    return Cgroup(folder if folder.is_dir() else mount, mount, version)


def read_number(path: Path) -> int | None:
    """The whole number in a file; None when it cannot be read or holds a word ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def number_of_key(path: Path, key: str) -> int | None:
    """The number behind ``key`` in a file of lines "key number"; None when there is none."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdecimal():
            return int(value)
    return None


def some_avg10(path: Path) -> float | None:
    """avg10 of the line "some" of a pressure file; None when the kernel (or its command line) has no such file."""
    try:
        for line in path.read_text(errors="replace").splitlines():
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if line.startswith("some ") and "avg10" in words:
                return float(words["avg10"])
    except (OSError, ValueError):
        return None
    return None
