"""A child that is asked one thing: it reads what it is given, says its answer, and ends. It never holds its parent up.

What goes in and comes out is kept in memory, not in pipes: what the child started may hold a pipe open for ever, and a
disk may be full or hang.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

LONGEST = 1 << 20  # bytes of what it says that are read
POLL_S = 0.02
REAP_S = 1.0
NEVER = threading.Event()


class OwnChild:
    """It runs in a session of its own. As a context its memory is given back; the child itself may live on."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        environ: Mapping[str, str],
        given: bytes = b"",
        cwd: Path | None = None,
        together: bool = False,
    ) -> None:
        """Start it. ``together``: its complaints go where its answer goes. Raises OSError."""
        self._files: list[int] = []
        try:
            asked, self._said, self._complaint = (self._make_file(name) for name in ("asked", "said", "complaint"))
            os.pwrite(asked, given, 0)
            self.process = subprocess.Popen(
                list(words),
                stdin=asked,
                stdout=self._said,
                stderr=subprocess.STDOUT if together else self._complaint,
                env=dict(environ),
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            self._close_files()
            raise

    def _make_file(self, name: str) -> int:
        self._files.append(os.memfd_create(name))
        return self._files[-1]

    def wait(self, until: float, unwanted: threading.Event = NEVER) -> int | None:
        """Its exit code; None when it lives at ``until`` (monotonic time), or is not needed any more."""
        while self.process.poll() is None and time.monotonic() < until and not unwanted.wait(POLL_S):
            pass
        return self.process.poll()

    def kill(self) -> None:
        """End it with all of its session, where it still lives."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # our child, not reaped: the number is its own
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(REAP_S)  # one that the kernel holds (a dead volume) ends when that lets it go

    def answer(self, limit_bytes: int = LONGEST) -> bytes:
        """What it has said until now."""
        return os.pread(self._said, limit_bytes, 0)

    def complaint(self) -> str:
        """The last line of what it wrote to stderr, "" where there is none."""
        size = os.fstat(self._complaint).st_size
        text = os.pread(self._complaint, LONGEST, max(0, size - LONGEST)).decode(errors="replace").strip()
        return text.rpartition("\n")[2]

    def __enter__(self) -> OwnChild:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_files()

    def _close_files(self) -> None:
        while self._files:
            os.close(self._files.pop())
