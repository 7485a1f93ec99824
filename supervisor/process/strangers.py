"""Processes that are not the run's, in words: they are never signalled, only named where they are in its way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from supervisor.base.secrets import mask_command
from supervisor.base.socket_paths import login_name
from supervisor.process.survivors import Identity, Process, look_at

LONGEST_COMMAND = 120
DRIVER = Path("/dev/nvidiactl")


def describe_stranger(pid: int) -> str:
    """``pid 4711 of user anna (python serve.py)``: what a person needs to find its owner."""
    try:
        owner = login_name(Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return f"pid {pid}, which has just ended"
    return f"pid {pid} of user {owner} ({command_of(pid)})"


def command_of(pid: int) -> str:
    """Its command line without secrets, cut to a sentence's length; its name where it has or shows none."""
    process = look_at(pid)
    name = process.name if process else "unknown"
    if process is None or process.state == "D":
        return name  # reading the command line of a process in D state can hang the reader with it
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb", buffering=0) as file:
            words = file.read(4096).decode(errors="replace").replace("\0", " ").split()
    except OSError:
        words = []
    text = mask_command(words)
    return (f"{text[:LONGEST_COMMAND]}..." if len(text) > LONGEST_COMMAND else text) or name


def on_the_gpus(pids: Iterable[int], ours: Iterable[Identity], driver: Path = DRIVER) -> tuple[str, ...]:
    """The living processes among ``pids`` that are not ``ours``, one phrase each.

    ``pids`` is the driver's list, which in a container may be in the machine's numbers: that number here is then some
    innocent's. So the list is never a reason to end anything, and one that is seen to hold no file of the driver is
    not named either.
    """
    mine = set(ours)
    found = [process for pid in sorted(set(pids)) if (process := look_at(pid)) is not None and not process.dead]
    return tuple(describe_stranger(one.pid) for one in found if one.identity not in mine and _may_hold(one, driver))


def _may_hold(process: Process, driver: Path) -> bool:
    if not driver.exists():
        return True  # no such files on this machine, so they tell nothing
    try:
        return any(link.startswith("/dev/nvidia") for link in open_links(process.pid))
    except OSError:
        return True


def open_links(pid: int, most: int | None = None) -> list[str]:
    """Where the first ``most`` open files of a process point to; one that it closes meanwhile is none. Raises OSError.

    psutil's ``open_files`` leaves out devices and sockets, which are what is looked for here.
    """
    folder, found = f"/proc/{pid}/fd", []
    for number in os.listdir(folder)[:most]:  # noqa: PTH208
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"{folder}/{number}"))  # noqa: PTH115
    return found
