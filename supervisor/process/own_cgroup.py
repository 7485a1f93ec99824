"""The control group (cgroup v2) that one component has to itself: made, found, killed as a whole, removed.

``cgroup.kill`` is the one way to end a tree that forks faster than it can be listed: the kernel marks the whole
group, and a process that is being forked in that moment dies as well (Documentation/admin-guide/cgroup-v2.rst; Linux
5.14 and newer). A transient systemd service has such a group anyway. Elsewhere one is made below our own, where that
is ours to divide: see ``make_group``. Everything works without it, so every failure here only means "none".
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from supervisor.process import transient

MOUNTS = Path("/proc/self/mountinfo")
NAME = "rl-job-"  # as the units'; sensors/cgroups.py knows it too


def name_of(run_id: str, attempt_dir: Path, component: str) -> str:
    """Name of a component's group: for people the run and the attempt, for us a hash that no other run's folder has."""
    told = transient.unit_name(run_id, attempt_dir.name, component).removesuffix(".service")
    return f"{told[:150]}-{hashlib.sha256(f'{attempt_dir}/{component}'.encode()).hexdigest()[:12]}"


def make_group(run_id: str, attempt_dir: Path, component: str) -> Path | None:
    """Make the group of a component below the daemon's own group; None where that may or can not be.

    Not where systemd runs: there it alone divides control groups, and units that live outside its tree are its right
    to remove. No controller is switched on, so no limit and no account changes: the group is a list of processes.
    """
    own = None if transient.BOOTED.is_dir() else folder_of("self")
    if own is None or not os.access(own, os.W_OK) or not os.access(own / "cgroup.procs", os.W_OK):
        return None
    folder = own / name_of(run_id, attempt_dir, component)
    try:
        folder.mkdir(exist_ok=True)
        usable = (folder / "cgroup.type").read_text().strip() == "domain" and (folder / "cgroup.kill").exists()
    except OSError:
        return None
    if not usable:
        remove_group(folder)
        return None
    return folder


def folder_of(pid: int | str) -> Path | None:
    """Where the control group (version 2) of ``pid`` is to be found; None where it is hidden, or the process gone."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        mounts = [line.split() for line in MOUNTS.read_text().splitlines() if " - cgroup2 " in line]
    except OSError:
        return None
    path = next((line[3:] for line in groups if line.startswith("0::")), None)
    if path is None or not mounts:
        return None
    root, point = mounts[0][3], Path(mounts[0][4])  # the first one: proc(5), mountinfo
    if root not in ("/", path) and not path.startswith(f"{root}/"):
        return None
    below = path if root == "/" else path[len(root) :]
    parts = [part for part in below.split("/") if part]
    folder = point.joinpath(*parts)
    return None if ".." in parts or not folder.is_dir() else folder


def kill_group(folder: Path) -> bool:
    """SIGKILL to everything in the group and below it, at once; False where the kernel cannot, or it is gone.

    Not to a group that we are in ourselves (a daemon that was started from inside a job).
    """
    own = folder_of("self")
    if own is not None and own.is_relative_to(folder):
        return False
    try:
        (folder / "cgroup.kill").write_text("1")
    except OSError:
        return False
    return True


def is_populated(folder: Path) -> bool:
    """Does anything live in the group or below it? False where it is gone."""
    try:
        return "populated 1" in (folder / "cgroup.events").read_text()
    except OSError:
        return False


def remove_group(folder: Path) -> None:
    """Remove an empty group, with the empty ones that the job made below it; one that is not empty stays."""
    with contextlib.suppress(OSError):
        for inner, _, _ in os.walk(folder, topdown=False):
            Path(inner).rmdir()
