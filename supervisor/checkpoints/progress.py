"""How far a transfer is: counted by many threads, told to one listener."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from supervisor.base.records import dataclass


@dataclass(frozen=True)
class Moved:
    """``bytes`` of ``total`` and ``files`` done in this phase: "placing" and "renaming" (no bytes), "hashing",
    "sending", "checking", "fetching".

    Any difference from the report before is progress; a watchdog looks at nothing else.
    """

    phase: str
    bytes: int
    total: int
    files: int


Report = Callable[[Moved], None]


class Meter:
    """Counts one transfer. ``stop`` makes every thread that counts give up at its next byte."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._moved = Moved("starting", 0, 0, 0)
        self._stopped: BaseException | None = None

    def phase(self, name: str, total: int) -> None:
        """Begin a phase of ``total`` bytes."""
        with self._lock:
            self._moved = Moved(name, 0, total, 0)
            self._report(self._moved)

    def more(self, size: int) -> None:
        """``size`` further bytes turned out to be to do in this phase."""
        with self._lock:
            self._moved = replace(self._moved, total=self._moved.total + size)

    def add(self, size: int, files: int = 0) -> None:
        """``size`` further bytes and ``files`` further files are done; size is negative for bytes to do again."""
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            moved = self._moved
            self._moved = Moved(moved.phase, moved.bytes + size, moved.total, moved.files + files)
            self._report(self._moved)

    def stop(self, error: BaseException) -> None:
        """Let all others fail with ``error`` as soon as they count."""
        with self._lock:
            self._stopped = self._stopped or error
