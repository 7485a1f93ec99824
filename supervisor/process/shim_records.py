"""What the shim and the daemon share: what the shim is told and writes, and how a process is told from later ones.

The shim imports this file, which therefore imports the standard library only, and little of it.
"""
# ruff: noqa: PTH104, PTH120, PTH123
# (pathlib would cost a third of the shim's start-up time)

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # importing typing costs more than all the rest of this page
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypedDict

    class Spec(TypedDict):
        """What the shim is told. ``env`` holds secrets."""

        name: str
        argv: list[str]
        shown_argv: list[str]  # for the record: no secrets
        cwd: str
        env: dict[str, str]
        nofile: int
        attempt_dir: str
        run_id: str
        how: str
        unit: str | None
        cgroup: str | None  # folder of a control group that the child alone is put into
        reply: str  # path of the answer to the launching daemon

    class Answer(TypedDict, total=False):
        """The record, which is also the answer; or ``error`` and ``kind`` when the child could not be started."""

        shim_pid: int
        shim_start_ticks: int | None
        child_pid: int
        child_start_ticks: int | None
        boot_id: str
        started_wall: float
        run_id: str
        argv: list[str]
        nofile: int
        how: str
        unit: str | None
        cgroup: str | None
        forks: int | None
        init_start_ticks: int | None  # of process 1: a container that is started again counts its pids anew
        notes: list[str]
        error: str
        kind: str


def boot_id() -> str:
    """The kernel's name for this boot, "" where it is hidden."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def forks() -> int | None:
    """Processes and threads that the machine has made since boot (proc(5), /proc/stat); None where that is hidden."""
    try:
        with open("/proc/stat", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("processes "):
                    return int(line.split()[1]) or None  # some sandboxes always say 0
    except (OSError, ValueError, IndexError):
        pass
    return None


def stat_fields(pid: int) -> tuple[str, list[str]] | None:
    """Name and the fields after it (state first) of ``/proc/PID/stat``; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    head, _, tail = text.rpartition(")")  # the name may hold brackets and blanks itself
    fields = tail.split()
    return (head.partition("(")[2], fields) if len(fields) > 19 else None


def start_ticks(pid: int) -> int | None:
    """Kernel start time of ``pid`` in clock ticks since boot (field 22 of its stat), None when it is gone."""
    found = stat_fields(pid)
    return int(found[1][19]) if found else None


def write_atomically(path: str, data: Mapping[str, object], *, reserved: str = "") -> None:
    """Put ``data`` at ``path`` as JSON: all of it or nothing, durable. ``reserved``: a file with room for it."""
    text = json.dumps(data, indent=1).encode() + b"\n"
    temporary = reserved or f"{path}.tmp"
    flags = os.O_WRONLY if reserved else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    fd = os.open(temporary, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # Into the reserved blocks first, cut to size after: at no time is a new block needed.
        view = memoryview(text)
        while view:
            view = view[os.write(fd, view) :]
        os.ftruncate(fd, len(text))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
