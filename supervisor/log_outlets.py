"""The places a log record can go to. None of them raises, none waits longer than a second, each counts what it lost."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

Record = Mapping[str, object]
PATIENCE_S = 1.0
PIECE = 4096  # POSIX: a pipe that polls writable takes at least this much (PIPE_BUF) without blocking
PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # syslog(3)


class Outlet(Protocol):
    """Somewhere to write."""

    def write(self, record: Record) -> None:
        """Write the record, or count it as lost."""

    def close(self) -> None:
        """Release what is held."""


def json_line(record: Record) -> str:
    """The record as one JSON object; whatever JSON does not know becomes text."""
    return json.dumps(record, default=str, ensure_ascii=False)


def stderr_is_journal(env: Mapping[str, str] = os.environ) -> bool:
    """True when stderr goes straight to journald: $JOURNAL_STREAM holds its device and inode (systemd.exec(5))."""
    device, _, inode = env.get("JOURNAL_STREAM", "").partition(":")
    try:
        seen = os.fstat(2)
    except OSError:
        return False
    return (device, inode) == (str(seen.st_dev), str(seen.st_ino))


class StreamOutlet:
    """Lines on a file descriptor, stderr unless told otherwise, that may be a pipe which nobody reads."""

    def __init__(self, render: Callable[[Record], str], fd: int = 2) -> None:
        self._render = render
        self._fd = fd
        self._lost = 0
        self._torn = False  # the last line was cut off in the middle

    def write(self, record: Record) -> None:
        lines = [self._render(record)]
        if self._lost:
            lines.insert(0, self._render(_lost_record(record, self._lost)))
        # After a loss there is no further waiting: one stuck reader must not cost a second for each line.
        patience_s = 0.0 if self._lost else PATIENCE_S
        text = ("\n" if self._torn else "") + "".join(line + "\n" for line in lines)
        self._torn, whole = self._send(text.encode("utf-8", "replace"), patience_s)
        self._lost = 0 if whole else self._lost + 1

    def close(self) -> None:
        return

    def _send(self, data: bytes, patience_s: float) -> tuple[bool, bool]:
        """Returns (cut off in the middle, all written)."""
        deadline = time.monotonic() + patience_s
        view = memoryview(data)
        sent = 0
        try:
            poller = select.poll()
            poller.register(self._fd, select.POLLOUT)
            while sent < len(view):
                ready = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
                if not ready or ready[0][1] & (select.POLLNVAL | select.POLLERR):
                    return sent > 0, False
                sent += os.write(self._fd, view[sent : sent + PIECE])
        except OSError:
            return sent > 0, False
        return False, True


def _lost_record(record: Record, lost: int) -> Record:
    sentence = f"{lost} log line{'s were' if lost > 1 else ' was'} lost: nothing could be written here."
    return {**record, "level": "warning", "event": "log-lines-lost", "sentence": sentence}


def _priority_line(record: Record) -> str:
    """What journald understands on a plain stderr: a priority and the sentence (sd-daemon(3))."""
    text = " ".join(str(record.get("sentence", "")).splitlines())
    return f"<{PRIORITY.get(str(record.get('level')), 6)}>{text}"


class JournalOutlet:
    """journald's native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): one datagram a record, every field indexed.

    Where the socket is missing or full, the sentence goes to stderr with its priority, which is the journal too.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._fallback = StreamOutlet(_priority_line)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE_S)

    def write(self, record: Record) -> None:
        data = journal_datagram(record)
        try:
            self._socket.sendto(data, self._path)
            self._socket.settimeout(PATIENCE_S)
        except TimeoutError:
            self._socket.settimeout(0.001)
            self._fallback.write(record)
        except OSError:
            if not self._send_as_file(data):
                self._fallback.write(record)

    def close(self) -> None:
        self._socket.close()

    def _send_as_file(self, data: bytes) -> bool:
        """Records too large for a datagram travel as a sealed memory file."""
        if len(data) < PIECE:
            return False
        try:
            fd = os.memfd_create("journal-entry", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        except OSError:
            return False
        try:
            os.write(fd, data)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]
            self._socket.sendmsg([b""], rights, 0, self._path)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def journal_datagram(record: Record) -> bytes:
    """The record as journald's fields: MESSAGE is the sentence, everything else is RL_SOMETHING.

    ``journalctl -f`` shows plain sentences, and ``journalctl RL_RUN=x RL_INCIDENT=3`` finds them again.
    """
    fields = {
        "MESSAGE": str(record.get("sentence") or record.get("event", "")),
        "PRIORITY": str(PRIORITY.get(str(record.get("level")), 6)),
        "SYSLOG_IDENTIFIER": "rl-supervisor",
    }
    for name, value in record.items():
        if name not in ("sentence", "level", "time") and value is not None:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            fields["RL_" + re.sub(r"[^A-Z0-9_]", "_", name.upper())[:60]] = text
    return b"".join(_journal_field(name, value) for name, value in fields.items())


def _journal_field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"


class RotatedFile:
    """JSON lines in a file of at most ``limit_bytes``; older ones move to FILE.1 ... FILE.5.

    Not logging.handlers.RotatingFileHandler: it buffers, so that a full disk comes back as an error much later.
    """

    def __init__(self, path: Path, limit_bytes: int = 20_000_000, keep: int = 5) -> None:
        self._path = path
        self._limit = limit_bytes
        self._keep = keep
        self._fd: int | None = None
        self._size = 0
        self._torn = False
        self._lost = 0

    def write(self, record: Record) -> None:
        text = json_line(record) + "\n"
        if self._lost:
            text = json_line(_lost_record(record, self._lost)) + "\n" + text
        data = (("\n" if self._torn else "") + text).encode("utf-8", "replace")
        try:
            if self._fd is not None and self._size + len(data) > self._limit and self._size:
                self._rotate()
            if self._fd is None:
                self._fd = self._open()
            written = os.write(self._fd, data)
        except OSError:
            self._lost += 1
            return
        self._size += written
        self._torn = written < len(data)
        self._lost = self._lost + 1 if self._torn else 0

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        self._size = os.fstat(fd).st_size
        return fd

    def _rotate(self) -> None:
        self.close()
        for number in range(self._keep - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
