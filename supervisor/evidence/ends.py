"""How the job's logs ended, at most so many bytes of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

TAIL_BYTES = 256 << 10


def log_ends(logs: Mapping[str, Path]) -> dict[str, bytes]:
    """By name: the ends of the logs."""
    return {f"{role}.log": tail_of(path) for role, path in logs.items()}


def tail_of(path: Path, limit_bytes: int = TAIL_BYTES) -> bytes:
    """The last bytes of a file from the beginning of a line, or a sentence why it cannot be read.

    A first line that is cut is left out: it may begin in the middle of a secret, which then nothing would recognize.
    """
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - limit_bytes)
            file.seek(start)
            data = file.read(limit_bytes)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}\n".encode()
    if start == 0:
        return data
    _, newline, rest = data.partition(b"\n")
    if newline:
        return rest
    # One line that is longer than all that may be kept (progress bars): from a blank on, which ends any secret.
    return data.partition(b" ")[2] or f"the last line of {path} is longer than {limit_bytes} bytes\n".encode()
