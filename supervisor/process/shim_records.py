"""What the shim and the daemon share: what the shim is told, and what it writes.

The shim imports this file, which therefore imports the standard library only, and little of it.
"""
# ruff: noqa: PTH104, PTH120
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
        """The record, which is also the answer; or ``error``, ``kind`` and ``errno`` when nothing was started."""

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
        errno: int


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
