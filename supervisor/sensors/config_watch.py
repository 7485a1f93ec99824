"""Does the configuration on disk still say what the running attempt's snapshot says?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.core.facts import ConfigChanged, Fact


class ConfigWatch:
    """Reports each changed file once, until it is as it was again. A file that vanished is no change to take."""

    name = "config"

    def __init__(self, snapshot: Mapping[Path, Path]) -> None:
        """``snapshot``: original path -> the copy that the attempt runs."""
        self._digests = {path: _digest(copy) for path, copy in snapshot.items()}
        self._told: set[Path] = set()

    def look(self) -> Sequence[Fact]:
        facts = []
        for path, digest in self._digests.items():
            now = _digest(path)
            if now is None or now == digest:
                self._told.discard(path)
            elif path not in self._told:
                self._told.add(path)
                facts.append(ConfigChanged(str(path)))
        return facts

    def unknown(self, reason: str) -> Sequence[Fact]:
        return ()


def _digest(path: Path) -> bytes | None:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None
