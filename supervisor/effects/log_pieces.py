"""One log file at a time: the older part of a living one is compressed and given back, an ended one is compressed.

**A living log** is appended to by the job itself, so that the job depends on no other process: no pipe, no reader that
could die. Its older part is compressed into a numbered piece and then given back to the file system by punching a hole:
the file keeps its name, its inode and its offsets, so the job, the sensors and a ``tail -f`` notice nothing, and no
line is lost. Where a file system can punch no holes, the file is truncated once it is four times as long; what the job
writes between the last read and that moment is lost, and the sentence says so. What is written faster than it can be
compressed is given up, oldest first, and told.
"""

from __future__ import annotations

import ctypes
import errno
import gzip
import os
from pathlib import Path
from typing import IO

from supervisor.effects.log_holes import MIB, first_data
from supervisor.journal.attempt_folders import PIECE

PIECE_BYTES = 64 * MIB
ROUND_PIECES = 8  # of one log in one round; what is more has come faster than it can be compressed
TRUNCATE_AT = 4  # times the limit, where no hole can be punched
LEVEL = 4  # of gzip: a third of the time of 9, for a tenth more bytes


def squeeze(path: Path, target: Path) -> None:
    """Compress a log that is no longer written, from behind its hole on, and remove it. May be repeated at any time;
    the compressed file has its times and mode."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    with path.open("rb") as file:
        look = os.fstat(file.fileno())
        start = first_data(file)
        if start < look.st_size:
            _compress(file, start, look.st_size, target)
            os.utime(target, (look.st_atime, look.st_mtime))
    path.unlink(missing_ok=True)
    if path.parent != target.parent:
        try:
            path.parent.rmdir()
        except OSError:
            pass  # another one waits there


def rotate(path: Path, limit: int) -> str:
    """Compress the older part of a log that is being written, and give its room back; a sentence on what is lost."""
    lost = ""
    with path.open("r+b") as file:
        number, done = _newest_piece(path)
        size = os.fstat(file.fileno()).st_size
        start = first_data(file)
        if start < done <= size and punch(file, done):
            start = done  # the last round ended between its piece and its hole
        end = _line_end(file, start, size - limit // 4)
        if end - start > ROUND_PIECES * PIECE_BYTES:
            cut = _line_end(file, start, end - ROUND_PIECES * PIECE_BYTES)
            if punch(file, cut):
                lost = f"Of {path} not all is kept: it grows faster than it can be compressed."
                start = cut
        while start < end:
            until = _line_end(file, start, min(end, start + PIECE_BYTES)) or end
            number += 1
            piece = path.with_name(f"{path.name}.{number:04d}-{until:012d}.gz")
            try:
                _compress(file, start, until, piece)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not punch(file, until):
                    raise
                # A log that fills the disk ends the run; what it said an hour ago is worth less.
                lost = f"The older part of {path} was given up, for the disk is full."
                start = until
                continue
            if not punch(file, until):
                piece.unlink()
                return _truncate_file(path, file, limit)
            start = until
    return lost


def _truncate_file(path: Path, file: IO[bytes], limit: int) -> str:
    size = os.fstat(file.fileno()).st_size
    if size < TRUNCATE_AT * limit:
        return ""
    number, _ = _newest_piece(path)
    # "-0": its offsets are not those of the file that goes on from nothing.
    _compress(file, 0, size, path.with_name(f"{path.name}.{number + 1:04d}-{0:012d}.gz"))
    os.ftruncate(file.fileno(), 0)
    return (
        f"{path} was compressed and begun anew, because its file system can punch no holes; what was written in that "
        "very moment is lost."
    )


def _newest_piece(path: Path) -> tuple[int, int]:
    """Number of the newest piece, and up to which byte of the file the pieces reach."""
    matches = [PIECE.fullmatch(one.name) for one in path.parent.iterdir()]
    found = [match for match in matches if match and match["name"] == path.name]
    newest = max(found, key=lambda match: int(match["number"]), default=None)
    return (int(newest["number"]), int(newest["end"])) if newest else (0, 0)


def _line_end(file: IO[bytes], start: int, wanted: int) -> int:
    """The end of the last line that ends at or before ``wanted``; where there is none for 1 MiB, ``wanted``."""
    if wanted <= start:
        return start
    begin = max(start, wanted - MIB)
    found = os.pread(file.fileno(), wanted - begin, begin).rfind(b"\n")
    return begin + found + 1 if found >= 0 else wanted


def _compress(file: IO[bytes], start: int, end: int, target: Path) -> None:
    """Bytes ``start`` to ``end`` as a gzip file: all of it or nothing."""
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with temporary.open("wb") as raw:
            os.fchmod(raw.fileno(), 0o640)
            with gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as packed:
                while start < end and (block := os.pread(file.fileno(), min(MIB, end - start), start)):
                    packed.write(block)
                    start += len(block)
            raw.flush()
            os.fsync(raw.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def punch(file: IO[bytes], until: int) -> bool:
    """Give the file's first ``until`` bytes back to the file system, without moving the rest (fallocate(2)); False when
    it cannot (NFS before 4.2, some FUSE file systems)."""
    keep_size, punch_hole = 0x01, 0x02  # linux/falloc.h
    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        return False
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while call(file.fileno(), keep_size | punch_hole, 0, until) != 0:
        if ctypes.get_errno() != errno.EINTR:
            return False
    return True
