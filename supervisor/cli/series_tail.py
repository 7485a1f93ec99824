"""The newest rows of a run's series (``supervisor.journal.series``), of which each look reads only what was added."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from supervisor.journal.series import FOLDER, Row, parse_series

FIRST_BYTES = 256 << 10  # of each file, at its first look
MOST_ROWS = 4000
FILES = 2  # attempts: one that has just begun has no history


class SeriesTail:
    """``trouble``: a sentence where they cannot be read."""

    def __init__(self, state_dir: Path) -> None:
        self.trouble = ""
        self._folder = state_dir / FOLDER
        self._seen: dict[Path, tuple[int, int]] = {}  # inode, and how far it was read
        self._rows: dict[Path, deque[Row]] = {}

    def read(self) -> list[Row]:
        """Oldest first."""
        self.trouble = ""
        try:
            with os.scandir(self._folder) as entries:
                found = sorted(Path(one.path) for one in entries if one.name.endswith(".jsonl"))[-FILES:]
            for path in found:
                self._read_on(path)
        except FileNotFoundError:  # no step yet
            return []
        except OSError as error:
            self.trouble = f"The last steps cannot be shown: {self._folder}: {error.strerror}."
            return []
        self._rows = {path: self._rows[path] for path in found}
        self._seen = {path: self._seen[path] for path in found}
        return [row for path in found for row in self._rows[path]]

    def _read_on(self, path: Path) -> None:
        with path.open("rb") as file:
            look = os.fstat(file.fileno())
            inode, at = self._seen.get(path, (0, 0))
            if inode != look.st_ino or at > look.st_size:  # another file: it was thinned
                self._rows[path] = deque(maxlen=MOST_ROWS)
                at = max(0, look.st_size - FIRST_BYTES)
            file.seek(at)
            data = file.read()
        whole = data.rpartition(b"\n")[0]
        self._rows[path].extend(parse_series(whole))
        self._seen[path] = (look.st_ino, at + len(whole) + (1 if whole else 0))
