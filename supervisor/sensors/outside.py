"""Is a process connected with anything that is not of the job? What waits for that may be well, however still it is.

TCP is read from /proc/net, the other ends of unix sockets (a container's daemon) by netlink (sock_diag(7)). Which
process holds a socket, /proc/PID/fd tells.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

OPENED = (b"01", b"02")  # ESTABLISHED and SYN_SENT (linux/tcp_states.h)
MOST_BYTES = 8 << 20
MAPPED = b"0000000000000000FFFF0000"  # before an IPv4 address in /proc/net/tcp6
DUMP_SOCKETS, REQUEST_DUMP = 20, 0x301  # SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP (linux/sock_diag.h, netlink.h)
CONNECTED, SHOW_PEER, PEER = 1 << 1, 4, 2  # state, UDIAG_SHOW_PEER, UNIX_DIAG_PEER (linux/unix_diag.h)
DONE, ERROR = 3, 2
ANSWER_S = 2.0


def is_outside_reached(asked: Iterable[int], job: Iterable[int], *, net: Path = Path("/proc/net")) -> bool | None:
    """Has a process of ``asked`` a connection to one that is not in ``job``? None: it cannot be seen."""
    try:
        mine = _sockets_of(asked)
        tcp = _read_tcp(net)
        unix = _read_unix_peers()
    except (OSError, ValueError, IndexError, struct.error):
        return None
    by_end = {ends: inode for inode, ends in tcp.items()}
    others = set()
    for inode in mine:
        if inode in tcp:
            others.add(by_end.get(tcp[inode][::-1], 0))
        elif unix.get(inode):  # 0: the other end is closed
            others.add(unix[inode])
    if not others - mine:
        return False
    try:
        return bool(others - _sockets_of(job))
    except OSError:
        return None


def _sockets_of(pids: Iterable[int]) -> set[int]:
    """Inodes of the sockets that these processes hold. Raises PermissionError for a process of another user."""
    found = set()
    for pid in pids:
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                names = [entry.path for entry in entries]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        for name in names:
            try:
                target = os.readlink(name)  # noqa: PTH115 - of thousands
            except (FileNotFoundError, ProcessLookupError):
                continue
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    return found


def _read_tcp(net: Path) -> dict[int, tuple[bytes, bytes]]:
    """Ends (own, other) of each TCP connection of this machine, by inode. One that is not accepted yet has none: 0."""
    found: dict[int, tuple[bytes, bytes]] = {}
    for name in ("tcp", "tcp6"):
        try:
            text = (net / name).open("rb").read(MOST_BYTES)
        except FileNotFoundError:
            continue  # a kernel without IPv6
        if len(text) == MOST_BYTES:
            raise ValueError("too many sockets")
        for line in text.splitlines()[1:]:
            fields = line.split(None, 10)
            if fields[3] in OPENED and fields[9] != b"0":
                found[int(fields[9])] = fields[1].removeprefix(MAPPED), fields[2].removeprefix(MAPPED)
    return found


def _read_unix_peers() -> dict[int, int]:
    """The other end of each connected unix socket, by inode."""
    found: dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as link:  # NETLINK_SOCK_DIAG
        link.settimeout(ANSWER_S)
        ask = struct.pack("=BBHIII2I", socket.AF_UNIX, 0, 0, CONNECTED, 0, SHOW_PEER, 0, 0)
        link.send(struct.pack("=IHHII", 16 + len(ask), DUMP_SOCKETS, REQUEST_DUMP, 1, 0) + ask)
        while True:
            answer = link.recv(1 << 16)
            while answer:
                length, kind = struct.unpack_from("=IH", answer)
                if kind == ERROR:
                    raise OSError("sock_diag cannot be asked")
                if kind == DONE:
                    return found
                inode = struct.unpack_from("=I", answer, 20)[0]
                at = 32  # after the header and unix_diag_msg: attributes, each at a multiple of four
                while at + 4 <= length:
                    size, attribute = struct.unpack_from("=HH", answer, at)
                    if attribute == PEER:
                        found[inode] = struct.unpack_from("=I", answer, at + 4)[0]
                    at += max(4, size + 3 & ~3)
                answer = answer[length + 3 & ~3 :]
