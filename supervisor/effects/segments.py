"""Shared-memory files that a killed engine leaves in /dev/shm, and removing only those that are provably nobody's.

A stale segment makes the next vLLM hang for half an hour (prime-rl issue 2331), so they have to go; a segment of
another run on the same pod must stay. A file goes when it is ours by user, was made since the attempt began, and no
living process has it open or mapped; where some process cannot be looked into, or processes of other containers may
use the same folder, only files go that processes of the attempt were seen to hold before they were stopped.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.effects.survivors import Process, look_at, table

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
D_STATE_PATIENCE_S = 1.0
PATTERNS = ("vllm-*", "psm_*", "nccl-*", "torch_*")  # vLLM; Python; NCCL's transport; tensors shared by file
# The first namespaces of the machine, as /proc/PID/ns names them (include/linux/proc_ns.h): a container that was given
# the machine's shared memory (--ipc=host), but not its processes, cannot see who holds a segment.
FIRST_IPC, FIRST_PID = "ipc:[4026531839]", "pid:[4026531836]"

File = tuple[int, int]
"""Device and inode number."""


@dataclass(frozen=True, slots=True)
class Held:
    """Shared-memory files that processes hold; ``blind`` when some process could not be looked into."""

    files: frozenset[File]
    blind: bool


def held_by(processes: Iterable[Process]) -> Held:
    """Files below /dev/shm that these processes have open or mapped."""
    files: set[File] = set()
    blind = False
    for process in processes:
        if process.dead or not _has_program(process.pid):
            continue
        if not _readable(process):
            blind = True
            continue
        try:
            files |= _mapped(process.pid) | _open(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        except PermissionError:
            # Segments are made for their owner's processes, so other users' hold none of ours; nor does an init that
            # has more rights than we have (the init of small virtual machines).
            blind = blind or (process.pid != 1 and _owner(process.pid) == os.geteuid())
    return Held(frozenset(files), blind)


def _has_program(pid: int) -> bool:
    """False for the kernel's own threads, which hold no files."""
    try:
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _readable(process: Process) -> bool:
    """Is it out of D state within a second? The maps of one that hangs in a driver can hang the reader too."""
    until = time.monotonic() + D_STATE_PATIENCE_S
    now: Process | None = process
    while now is not None and now.state == "D":
        if time.monotonic() > until:
            return False
        time.sleep(0.02)  # a disk is slow, a driver is stuck
        now = look_at(process.pid)
    return True


def remove_stale(since_wall: float | None, ours: frozenset[File]) -> list[str]:
    """Remove segments that nobody holds; returns their paths.

    ``since_wall``: when the attempt began (Unix time); None when that is unknown, and then only ``ours`` go.
    ``ours``: what processes of the attempt held before they were stopped.
    """
    held = held_by(table().values())
    blind = held.blind or shared_with_unseen()
    removed = []
    for pattern in PATTERNS:
        for path in sorted(SHARED_MEMORY.glob(pattern)):
            with contextlib.suppress(OSError):  # vanished, or not ours after all: nothing is lost
                found = path.lstat()
                file = (found.st_dev, found.st_ino)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or file in held.files:
                    continue
                provably_nobodys = not blind and since_wall is not None and found.st_mtime >= since_wall
                if file in ours or provably_nobodys:
                    path.unlink()
                    removed.append(str(path))
    return removed


def shared_with_unseen(namespaces: Path = Path("/proc/self/ns")) -> bool:
    """Is the folder the whole machine's, and most of the machine's processes hidden from us?"""
    try:
        names = {kind: os.readlink(namespaces / kind) for kind in ("ipc", "pid")}  # noqa: PTH115
    except OSError:
        return False
    return names["ipc"] == FIRST_IPC and names["pid"] != FIRST_PID


def _mapped(pid: int) -> set[File]:
    files = set()
    with Path(f"/proc/{pid}/maps").open(errors="replace") as lines:
        for line in lines:
            if "/dev/shm/" in line:  # noqa: S108
                _, _, _, device, inode, _ = line.split(maxsplit=5)
                major, minor = (int(part, 16) for part in device.split(":"))
                files.add((os.makedev(major, minor), int(inode)))
    return files


def _open(pid: int) -> set[File]:
    files = set()
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):  # noqa: PTH208
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"{folder}/{name}").startswith("/dev/shm/"):  # noqa: PTH115, S108
                found = os.stat(f"{folder}/{name}")  # noqa: PTH116
                files.add((found.st_dev, found.st_ino))
    return files


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
