"""The TCP ports that a component will listen on: free before it is launched, or a sentence on who holds them.

An engine that finds its port taken dies minutes later, after it has loaded its weights, with an error deep in a log; or
worse, the orchestrator talks to somebody else's engine.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.effects.strangers import told, user_name
from supervisor.errors import TryAgainError

PATIENCE_S = 15.0  # a listener that was killed is gone at once; another run's that is just being stopped, soon
POLL_S = 0.1
LISTENS = "0A"  # linux/include/net/tcp_states.h
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens on ``port``. ``pids``: who has it open, as far as we may look."""

    port: int
    inode: int
    uid: int
    pids: tuple[int, ...] = ()


def wait_until_free(component: str, ports: Sequence[int], patience_s: float = PATIENCE_S) -> None:
    """Until nobody listens on ``ports``. TryAgainError names who does when patience (seconds) ends.

    It ends no one: a process of this run would have been ended by the stop before, so whoever holds a port here is
    somebody else.
    """
    until = time.monotonic() + patience_s
    while found := listeners(ports):
        if time.monotonic() >= until:
            who = "; ".join(describe(listener) for listener in with_pids(found))
            raise TryAgainError(
                f"{component} needs {_named(found)} of this machine, and after {patience_s:.0f} s of waiting {who}. "
                "It is not this run's, so it is left alone: end it, or give this run another port"
            )
        time.sleep(min(POLL_S, patience_s))


def listeners(ports: Iterable[int]) -> list[Listener]:
    """Who listens on any of ``ports`` in this network namespace, by /proc/net; [] where that cannot be read."""
    wanted = set(ports)
    if not wanted:
        return []
    found: dict[int, Listener] = {}
    for table in TABLES:
        with contextlib.suppress(OSError), table.open() as rows:
            for row in rows:
                fields = row.split()
                # sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode
                if len(fields) < 10 or fields[3] != LISTENS:
                    continue
                port = int(fields[1].rpartition(":")[2], 16)
                if port in wanted:
                    found[int(fields[9])] = Listener(port, int(fields[9]), int(fields[7]))
    return sorted(found.values(), key=lambda one: (one.port, one.inode))


def with_pids(found: Sequence[Listener]) -> list[Listener]:
    """The same with the processes that hold them: one pass over everybody's open files."""
    holders: dict[str, list[int]] = {f"socket:[{one.inode}]": [] for one in found}
    for pid, link in _open_links():
        if link in holders and pid not in holders[link]:
            holders[link].append(pid)
    return [Listener(one.port, one.inode, one.uid, tuple(sorted(holders[f"socket:[{one.inode}]"]))) for one in found]


def describe(listener: Listener) -> str:
    """Who holds a port, for people."""
    if not listener.pids:
        owner = user_name(listener.uid)
        return f"port {listener.port} is held by a process of user {owner} that cannot be seen from here"
    more = f" and {len(listener.pids) - 1} more" if len(listener.pids) > 1 else ""
    return f"port {listener.port} is held by {told(listener.pids[0])}{more}"


def _named(found: Sequence[Listener]) -> str:
    ports = sorted({one.port for one in found})
    return f"port{'s' if len(ports) > 1 else ''} {', '.join(map(str, ports))}"


def _open_links() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        folder = f"/proc/{name}/fd"
        with contextlib.suppress(OSError):  # another user's, or gone
            for number in os.listdir(folder):  # noqa: PTH208
                with contextlib.suppress(OSError):
                    yield int(name), os.readlink(f"{folder}/{number}")  # noqa: PTH115
