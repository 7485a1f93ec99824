"""How much of a log is there: its older part may have been given back to the file system, which leaves a hole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

MIB = 1 << 20


def data_bytes(path: Path) -> int:
    """Bytes after the hole at a file's beginning."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size - first_data(file)
    except OSError:
        return 0


def first_data(file: IO[bytes]) -> int:
    """Where a file's hole ends, to the byte: the rest of the hole's last block is zeros, and no log begins with one."""
    try:
        start = os.lseek(file.fileno(), 0, os.SEEK_DATA)
    except OSError:
        return os.fstat(file.fileno()).st_size  # nothing but a hole, or nothing at all
    while block := os.pread(file.fileno(), 64 << 10, start):
        rest = block.lstrip(b"\0")
        start += len(block) - len(rest)
        if rest:
            break
    return start
