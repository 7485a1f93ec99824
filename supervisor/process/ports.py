"""The TCP ports that a component will listen on: free before it is launched, or a sentence on who holds them.

An engine that finds its port taken dies minutes later, after it has loaded its weights, with an error deep in a log; or
worse, the orchestrator talks to another user's engine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

from supervisor.base.errors import TryAgainError
from supervisor.base.own_child import NEVER
from supervisor.base.records import dataclass
from supervisor.base.socket_paths import login_name
from supervisor.process.strangers import describe_stranger, open_links

PATIENCE_S = 15.0  # a listener that was killed is gone at once; another run's that is just being stopped, soon
POLL_S = 0.1
LISTENS = "0A"  # linux/include/net/tcp_states.h
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LOOPBACK = ("127.0.0.1", "::1")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Listener:
    """A socket that listens on ``port``. ``pids``: who has it open, as far as we may look."""

    port: int
    inode: int
    uid: int
    pids: tuple[int, ...] = ()
    address: str = ""


def wait_until_free(
    component: str,
    ports: Sequence[int],
    patience_s: float = PATIENCE_S,
    *,
    hosts: Mapping[int, str] | None = None,
    unwanted: Event = NEVER,
) -> None:
    """Until no process listens on ``ports``. TryAgainError names who does when patience (seconds) ends.

    It ends no one: a process of this run would have been ended by the stop before, so the holder of a port here is
    a stranger. ``hosts``: where a port is bound at one address alone. ``unwanted``: when set, the start is not wanted
    any more (a stop waits behind it), and the wait ends at once, also with a TryAgainError.
    """
    until = time.monotonic() + patience_s
    while found := listeners(ports, hosts):
        if unwanted.is_set():
            raise TryAgainError(f"{component} was to be stopped again while it waited for {_port_words(found)}")
        if time.monotonic() >= until:
            who = "; ".join(describe_listener(listener) for listener in with_pids(found))
            raise TryAgainError(
                f"{component} needs {_port_words(found)} of this machine, and after {patience_s:.0f} s of waiting "
                f"{who}. It is not this run's, so it is left alone: end it, or give this run another port"
            )
        unwanted.wait(min(POLL_S, patience_s))


def listeners(ports: Iterable[int], hosts: Mapping[int, str] | None = None) -> list[Listener]:
    """Who listens on any of ``ports`` in this network namespace, by /proc/net; [] where that cannot be read.

    ``hosts``: the one address at which a port is wanted. A listener at another address leaves that one free.
    """
    wanted = set(ports)
    at = {port: addresses_of(host) for port, host in (hosts or {}).items()}
    if not wanted:
        return []
    found: dict[int, Listener] = {}
    for fields in tcp_sockets():
        if fields[3] != LISTENS:
            continue
        port = int(fields[1].rpartition(":")[2], 16)
        if port not in wanted:
            continue
        address = kernel_address(fields[1].rpartition(":")[0])
        asked = at.get(port, frozenset())
        # All addresses hold each one; a server that wants all finds none of them taken.
        if not asked or address.is_unspecified or address in asked:
            found[int(fields[9])] = Listener(port, int(fields[9]), int(fields[7]), address=str(address))
    return sorted(found.values(), key=lambda one: (one.port, one.inode))


def tcp_sockets() -> Iterator[list[str]]:
    """Of each TCP socket in this network namespace the kernel's ten fields and more; none where they cannot be read.

    sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode. Not psutil.net_connections, which takes
    almost twice the time and leaves out queues, and the user of a socket when its process is hidden.
    """
    for table in TABLES:
        with contextlib.suppress(OSError), table.open() as rows:
            next(rows, "")
            yield from (fields for row in rows if len(fields := row.split()) >= 10)


def addresses_of(host: str) -> frozenset[Address]:
    """The addresses that a server binds which is told ``host``; empty: all of them, or unknown without asking a name
    server, which could hold up the start.
    """
    names = LOOPBACK if host.lower() == "localhost" else (host.strip("[]"),)
    try:
        found = frozenset(map(ipaddress.ip_address, names))
    except ValueError:
        return frozenset()
    return frozenset() if any(one.is_unspecified for one in found) else found


def kernel_address(field: str) -> Address:
    """``0100007F`` of /proc/net/tcp: words in the machine's own byte order. IPv4 in IPv6's clothes is IPv4."""
    words = [bytes.fromhex(field[at : at + 8]) for at in range(0, len(field), 8)]
    address = ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    return getattr(address, "ipv4_mapped", None) or address


def with_pids(found: Sequence[Listener]) -> list[Listener]:
    """The same with the processes that hold them: one pass over all open files."""
    holders: dict[str, list[int]] = {f"socket:[{one.inode}]": [] for one in found}
    for pid, link in _open_links():
        if link in holders and pid not in holders[link]:
            holders[link].append(pid)
    return [replace(one, pids=tuple(sorted(holders[f"socket:[{one.inode}]"]))) for one in found]


def describe_listener(listener: Listener) -> str:
    """Who holds a port, for people."""
    if not listener.pids:
        owner = login_name(listener.uid)
        return f"port {listener.port} is held by a process of user {owner} that cannot be seen from here"
    more = f" and {len(listener.pids) - 1} more" if len(listener.pids) > 1 else ""
    return f"port {listener.port} is held by {describe_stranger(listener.pids[0])}{more}"


def _port_words(found: Sequence[Listener]) -> str:
    ports = sorted({one.port for one in found})
    return f"port{'s' if len(ports) > 1 else ''} {', '.join(map(str, ports))}"


def _open_links() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # another user's, or gone
            for link in open_links(int(name)):
                yield int(name), link
