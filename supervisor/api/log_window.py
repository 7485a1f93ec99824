"""Reads the end of a growing log file in bounded pieces, and goes on from there, also when the file is replaced."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.base.errors import SupervisorError
from supervisor.base.records import dataclass

LARGEST = 256 << 10  # bytes of one answer
WRITTEN_S = 1.0  # since its last change: a process that wrote half a line a moment ago is still at it


class NoLogError(SupervisorError):
    """The log cannot be read now."""


@dataclass(frozen=True)
class Window:
    """A piece of a log. ``offset`` and ``inode`` are where the next piece starts; ``anew``: the file was replaced."""

    text: str
    offset: int
    inode: int
    size: int
    anew: bool = False


def last_lines(path: Path, lines: int) -> Window:
    """The last ``lines`` lines, but at most 256 KiB. A last line without its end is included, unless it is just being
    written: a secret that is cut in two pieces is known in neither.
    """
    with _open_log(path) as (fd, found):
        start = max(0, found.st_size - LARGEST)
        data = _read_piece(fd, start, found.st_size - start)
        if start and len(lines_found := data.splitlines(keepends=True)) > 1:
            start, data = start + len(lines_found[0]), data[len(lines_found[0]) :]
        if time.time() - found.st_mtime < WRITTEN_S:
            data = data[: _whole_lines(data) or len(data)]
        kept = b"".join(data.splitlines(keepends=True)[-lines:]) if lines > 0 else b""
        return Window(kept.decode("utf-8", "replace"), start + len(data), found.st_ino, found.st_size)


def next_piece(path: Path, offset: int, inode: int) -> Window:
    """What was written after ``offset``: whole lines, or the rest of a line that is longer than a piece.

    A file that is another one now, or shorter than ``offset``, is read from its beginning.
    """
    with _open_log(path) as (fd, found):
        anew = found.st_ino != inode or found.st_size < offset
        start = _behind_hole(fd, 0 if anew else offset)
        data = _read_piece(fd, start, min(LARGEST, found.st_size - start))
        end = _whole_lines(data)
        if len(data) < LARGEST or end:
            data = data[:end]
        return Window(data.decode("utf-8", "replace"), start + len(data), found.st_ino, found.st_size, anew)


def _whole_lines(data: bytes) -> int:
    """How much of it is whole lines; progress bars end theirs with \\r."""
    return max(data.rfind(b"\n"), data.rfind(b"\r")) + 1


def _behind_hole(fd: int, start: int) -> int:
    """``start``, or where the data goes on: the older part of a long log is compressed, and a hole in its place."""
    try:
        found = os.lseek(fd, start, os.SEEK_DATA)
    except OSError:
        return start
    block = os.pread(fd, LARGEST, found) if found > start else b""
    return found + len(block) - len(block.lstrip(b"\0"))


@contextmanager
def _open_log(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block us
    except OSError as error:
        raise NoLogError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise NoLogError(f"{path} is not a plain file.")
        yield fd, found
    except OSError as error:
        raise NoLogError(f"{path} cannot be read: {error.strerror}.") from None
    finally:
        os.close(fd)


def _read_piece(fd: int, start: int, size: int) -> bytes:
    pieces = []
    while size > 0:
        piece = os.pread(fd, size, start)
        if not piece:
            break
        pieces.append(piece)
        start, size = start + len(piece), size - len(piece)
    return b"".join(pieces)
