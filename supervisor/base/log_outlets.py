"""The places a log record can go to. None of them raises, none waits longer than a second, each counts what it lost."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import select
import shutil
import socket
import stat
import struct
import threading
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
    """Lines on a file descriptor, stderr unless told otherwise, which may be a pipe without a reader."""

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
        self._torn, whole = self._send_data(text.encode("utf-8", "replace"), patience_s)
        self._lost = 0 if whole else self._lost + 1

    def close(self) -> None:
        return

    def _send_data(self, data: bytes, patience_s: float) -> tuple[bool, bool]:
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

    Where the socket is missing or full, or the record too large for a datagram (about 200 KB), the sentence goes to
    stderr with its priority, which is the journal too.
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
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._socket.settimeout(0.001)
            self._fallback.write(record)

    def close(self) -> None:
        self._socket.close()


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
    """JSON lines in a file of at most ``limit_bytes``; ``keep`` older ones are FILE.1, FILE.2.gz ... FILE.keep.gz.

    Not logging.handlers.RotatingFileHandler: it buffers, so that a full disk comes back as an error much later. One
    process writes it: a daemon holds the lock of its run. A file that was deleted or moved away is made anew. What is
    no plain file (/dev/null) is never rotated.
    """

    def __init__(self, path: Path, limit_bytes: int = 20_000_000, keep: int = 5) -> None:
        self._path = path
        self._limit = limit_bytes
        self._keep = keep
        self._fd: int | None = None
        self._file = (0, 0)  # device and inode of what is open
        self._size = 0
        self._plain = False
        self._torn = False
        self._lost = 0
        self._packer: threading.Thread | None = None

    def write(self, record: Record) -> None:
        text = json_line(record) + "\n"
        if self._lost:
            text = json_line(_lost_record(record, self._lost)) + "\n" + text
        data = (("\n" if self._torn else "") + text).encode("utf-8", "replace")
        try:
            fd = self._open_with_room(len(data))
            written = os.write(fd, data)
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

    def _open_with_room(self, length: int) -> int:
        """The open file, with room for so many bytes."""
        if self._fd is not None and not self._is_there():
            self.close()
        if self._fd is not None and self._plain and self._size and self._size + length > self._limit:
            with contextlib.suppress(OSError):  # a folder that takes no new names: the file grows on, and loses nothing
                self._rotate_files()
        if self._fd is None:
            self._fd = self._open_file()
        return self._fd

    def _is_there(self) -> bool:
        try:
            found = self._path.stat()
        except OSError as error:
            return not isinstance(error, FileNotFoundError)  # cannot be told: what is open still takes lines
        return (found.st_dev, found.st_ino) == self._file

    def _open_file(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        found = os.fstat(fd)
        self._size, self._file = found.st_size, (found.st_dev, found.st_ino)
        self._plain = stat.S_ISREG(found.st_mode)
        return fd

    def _rotate_files(self) -> None:
        """FILE becomes FILE.1, the older ones move up, and what was FILE.1 is compressed beside the loop."""
        if self._packer is not None and self._packer.is_alive():
            return  # it holds a name that would have to move; the file grows for a moment
        if self._keep == 0:
            os.truncate(self._path, 0)
            self._size = 0
            return
        for ending in ("", ".gz"):
            self._old_name(self._keep, ending).unlink(missing_ok=True)
            for number in range(self._keep - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._old_name(number, ending).replace(self._old_name(number + 1, ending))
        self._path.replace(self._old_name(1))
        self.close()
        second = self._old_name(2)
        if second.exists():
            self._packer = threading.Thread(target=_pack_file, args=(second,), name="pack-log", daemon=True)
            self._packer.start()

    def _old_name(self, number: int, ending: str = "") -> Path:
        return self._path.with_name(f"{self._path.name}.{number}{ending}")


def _pack_file(path: Path) -> None:
    """Replace ``path`` by ``path.gz``; where the disk is full it stays as it is."""
    packed, making = path.with_name(f"{path.name}.gz"), path.with_name(f"{path.name}.gz.tmp")
    try:
        with path.open("rb") as source, making.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw) as target:
            shutil.copyfileobj(source, target, 1 << 16)
        making.chmod(path.stat().st_mode & 0o777)
        making.replace(packed)
        path.unlink()
    except OSError:
        with contextlib.suppress(OSError):
            making.unlink(missing_ok=True)
