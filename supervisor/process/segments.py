"""Removes shared-memory files that a killed engine left in /dev/shm, but only those that provably belong to no process.

A stale segment makes the next vLLM hang for half an hour (prime-rl issue 2331), so they have to go; a segment of
another run on the same pod must stay. A file goes when it is ours by user, was made since the attempt began, and no
living process has it open or mapped, in two looks: on its way from one process to another it may be without an
owner for a moment. Where some process cannot be looked into, or processes of other containers may use the same folder,
only files go that processes of the attempt were seen to hold before they were stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.process.survivors import Process, look_at, process_table

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
D_STATE_PATIENCE_S = 1.0  # for all processes of one look together
BLIND_PATIENCE_S = 3.0  # a process that is just being made, by an init with more rights, is looked into a moment later
SECOND_LOOK_S = 0.5
MADE_BY = re.compile(r"torch_(\d+)_")  # torch names the maker (NewProcessWideShmHandle in ATen/MapAllocator.cpp)
PATTERNS = ("vllm-*", "psm_*", "nccl-*", "torch_*")  # vLLM; Python; NCCL's transport; tensors shared by file
# The first namespaces of the machine, as /proc/PID/ns names them (include/linux/proc_ns.h): a container that was given
# the machine's shared memory (--ipc=host), but not its processes, cannot see who holds a segment.
FIRST_IPC, FIRST_PID = "ipc:[4026531839]", "pid:[4026531836]"

File = tuple[int, int]
"""Device and inode number."""


@dataclass(frozen=True)
class Held:
    """Shared-memory files that processes hold; ``blind`` when some process could not be looked into."""

    files: frozenset[File]
    blind: bool


def held_by(processes: Iterable[Process], patience_s: float = D_STATE_PATIENCE_S) -> Held:
    """Files below /dev/shm that these processes have open or mapped. ``patience_s``: for those in D state, in all."""
    files: set[File] = set()
    blind = False
    for process in processes:
        if process.dead or not _has_program(process.pid):
            continue
        began = time.monotonic()
        readable = _readable(process, began + patience_s)
        patience_s -= time.monotonic() - began
        if not readable:
            blind = True
            continue
        try:
            files |= _mapped_files(process.pid) | _open_files(process.pid)
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


def _readable(process: Process, until: float) -> bool:
    """Is it out of D state by then? The maps of one that hangs in a driver can hang the reader too."""
    now: Process | None = process
    while now is not None and now.state == "D":
        if time.monotonic() > until:
            return False
        time.sleep(0.02)  # a disk is slow, a driver is stuck
        now = look_at(process.pid)
    return True


def remove_stale(since_wall: float | None, ours: frozenset[File], *, brief: bool = False) -> list[str]:
    """Remove segments that no process holds; returns their paths.

    ``since_wall``: when the attempt began (Unix time); None when that is unknown, and then only ``ours`` go.
    ``ours``: what processes of the attempt held before they were stopped. ``brief``: nothing is waited for, since this
    pod is about to go, and so only ``ours`` go: that needs no second look.
    """
    candidates = _candidates(since_wall, ours)
    if not candidates:
        return []
    removed = _remove(
        {path: file for path, file in candidates.items() if file in ours},
        held_by(process_table().values(), 0.0 if brief else D_STATE_PATIENCE_S).files,
    )
    if brief:
        return removed
    others = {path: file for path, file in candidates.items() if file not in ours and not _maker_lives(path)}
    if not others or shared_with_unseen():
        return removed
    # Held in the first look or in the second: in use.
    first = _look_at_all()
    if first.blind or first.files.issuperset(others.values()):
        return removed
    time.sleep(SECOND_LOOK_S)
    second = _look_at_all()
    return removed if second.blind else [*removed, *_remove(others, first.files | second.files)]


def _candidates(since_wall: float | None, ours: frozenset[File]) -> dict[Path, File]:
    """Files of our user with a telling name that processes of the attempt held, or that were made since it began."""
    found: dict[Path, File] = {}
    for pattern in PATTERNS:
        for path in sorted(SHARED_MEMORY.glob(pattern)):
            with contextlib.suppress(OSError):  # vanished: nothing is lost
                look = path.lstat()
                file = (look.st_dev, look.st_ino)
                mine = stat.S_ISREG(look.st_mode) and look.st_uid == os.geteuid()
                if mine and (file in ours or (since_wall is not None and look.st_mtime >= since_wall)):
                    found[path] = file
    return found


def _remove(files: dict[Path, File], held: frozenset[File]) -> list[str]:
    removed = []
    for path, file in files.items():
        with contextlib.suppress(OSError):  # vanished, or not ours after all
            look = path.lstat()
            if file not in held and (look.st_dev, look.st_ino) == file:
                path.unlink()
                removed.append(str(path))
    return removed


def _look_at_all() -> Held:
    """What all processes hold; looked at again for a while where one could not be looked into."""
    until = time.monotonic() + BLIND_PATIENCE_S
    while (held := held_by(process_table().values())).blind and time.monotonic() < until:
        time.sleep(0.1)
    return held


def _maker_lives(path: Path) -> bool:
    """A tensor in a queue is open in no process while it waits there, and belongs still to its living maker."""
    named = MADE_BY.match(path.name)
    maker = look_at(int(named[1])) if named else None
    return maker is not None and not maker.dead


def shared_with_unseen(namespaces: Path = Path("/proc/self/ns")) -> bool:
    """Is the folder the whole machine's, and most of the machine's processes hidden from us?"""
    try:
        names = {kind: os.readlink(namespaces / kind) for kind in ("ipc", "pid")}  # noqa: PTH115
    except OSError:
        return False
    return names["ipc"] == FIRST_IPC and names["pid"] != FIRST_PID


def _mapped_files(pid: int) -> set[File]:
    files = set()
    with Path(f"/proc/{pid}/maps").open(errors="replace") as lines:
        for line in lines:
            if "/dev/shm/" in line:  # noqa: S108
                _, _, _, device, inode, _ = line.split(maxsplit=5)
                major, minor = (int(part, 16) for part in device.split(":"))
                files.add((os.makedev(major, minor), int(inode)))
    return files


def _open_files(pid: int) -> set[File]:
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
