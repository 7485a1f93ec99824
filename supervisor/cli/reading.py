"""What a person sees while diagnose reads for long: what the newest lines say, and how far it is."""

from __future__ import annotations

import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TextIO

from supervisor.base.secrets import mask_secrets
from supervisor.cli import render
from supervisor.cli.moving import CLEAR
from supervisor.core.words import size
from supervisor.diagnosis.causes import diagnose
from supervisor.diagnosis.places import Source
from supervisor.diagnosis.scan import scan
from supervisor.diagnosis.seen import Log
from supervisor.diagnosis.telling import headline

QUIET_S: Final = 2.0  # most logs are read by then, and nothing is said
AGAIN_S: Final = 0.5  # on a terminal; elsewhere one line is enough
NEWEST_BYTES: Final = 512 << 10
MOST_LOGS: Final = 16


class Progress:
    """Call it with the number of bytes that were read, and ``end`` it. It writes to standard error."""

    def __init__(
        self, sources: Iterable[Source], out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sources = list(sources)
        self._out = out if out is not None else sys.stderr
        self._clock = clock
        self._due = clock() + QUIET_S
        self._done = 0
        self._said = False

    def __call__(self, count: int) -> None:
        self._done += count
        if self._clock() < self._due:
            return
        again = self._out.isatty()
        if not self._said:
            newest = _newest_failure(self._sources)
            self._write_text(f"{newest}\n" if newest else "")
            whole = _size_of(self._sources)
            self._of = f" of {size(whole)}" if whole else ""
        self._due = self._clock() + AGAIN_S if again else float("inf")
        self._said = True
        read = f"Reading the logs: {size(self._done)}{self._of} so far."
        self._write_text(f"{CLEAR}{read}" if again else f"{read}\n")

    def end(self) -> None:
        """Wipe the line on a terminal."""
        if self._said and self._out.isatty():
            self._write_text(CLEAR)

    def _write_text(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _newest_failure(sources: Sequence[Source]) -> str:
    """What the ends of the newest logs say, in one line; "" where that is no failure."""
    ends: list[tuple[float, Source, bytes]] = []
    for source in sources:
        if source.pieces and (end := _read_end(source.pieces[-1])):
            ends.append((end[0], source, end[1]))
    logs: list[Log] = []
    for _, source, end_of_it in sorted(ends, key=lambda one: one[0])[-MOST_LOGS:]:
        logs += scan(io.BytesIO(end_of_it), source.name, source.role, attempt=source.attempt, kernel=source.kernel)
    found = diagnose(logs)[-1] if logs else None
    if found is None or found.root is None:
        return ""
    return render.safe(mask_secrets(f"The newest lines say: {headline(found.root)}"))


def _read_end(path: Path) -> tuple[float, bytes] | None:
    """When a plain file was written last, and its last lines; None of any other."""
    try:
        with path.open("rb") as file:
            look = os.fstat(file.fileno())
            if not stat.S_ISREG(look.st_mode) or file.read(2) == b"\x1f\x8b":
                return None
            file.seek(max(0, look.st_size - NEWEST_BYTES))
            data = file.read(NEWEST_BYTES)
    except OSError:
        return None
    return look.st_mtime, data if look.st_size <= NEWEST_BYTES else data.partition(b"\n")[2]


def _size_of(sources: Sequence[Source]) -> int:
    """Of all logs, in bytes; 0 where that is not known: of standard input, of what is packed."""
    found = 0
    for source in sources:
        if not source.pieces or any(path.suffix == ".gz" for path in source.pieces):
            return 0
        try:
            found += sum(path.stat().st_size for path in source.pieces)
        except OSError:
            return 0
    return found
