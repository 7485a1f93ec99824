"""Writing into the run folder, with a volume that can be full or slow."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from tests.practice.dcp import write_file
from tests.practice.knobs import Knobs, State
from tests.practice.pathing import folder_bytes

BLOCK_BYTES = 4 << 20


def write_ballast(path: Path, size_bytes: int, mb_s: float = 0.0) -> None:
    """Write and sync a file of so many bytes that no file system can leave out, at a rate if one is given."""
    block = os.urandom(BLOCK_BYTES)
    began, written = time.monotonic(), 0
    with path.open("wb", buffering=0) as stream:
        while written < size_bytes:
            written += stream.write(block[: size_bytes - written])
            if mb_s:
                time.sleep(max(0.0, began + written / (mb_s * 1e6) - time.monotonic()))
        os.fsync(stream.fileno())


class Volume:
    """The run folder as a volume of `knobs.volume_bytes` (0: as large as the real one). A full one fails with
    ENOSPC, real or not."""

    def __init__(self, root: Path, knobs: Knobs, state: State) -> None:
        self._root = root
        self._knobs = knobs
        self._state = state

    def write(self, path: Path, data: bytes) -> None:
        """Raises OSError(ENOSPC) after writing what fits."""
        path.parent.mkdir(parents=True, exist_ok=True)
        room = None
        if self._knobs.volume_bytes:
            present = path.stat().st_size if path.exists() else 0
            room = self._knobs.volume_bytes - folder_bytes(self._root) + present
        try:
            write_file(path, data, room)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._state.mark("disk-was-full")
            raise
