"""Writing into the run folder, with a volume that can be full."""

from __future__ import annotations

import errno
from pathlib import Path

from supervisor.practice.dcp import write_file
from supervisor.practice.knobs import Knobs, State
from supervisor.practice.pathing import folder_bytes


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
