"""A limit on a whole command that looks at other people's volumes: a volume that is gone holds its readers for ever."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from types import FrameType

from supervisor.base.secrets import mask_secrets
from supervisor.cli.render import safe

EXIT_HUNG = 1
PIECES = 60


@contextmanager
def within(limit_s: float, what: str) -> Iterator[None]:
    """End the program, with a sentence on what it waited for, where the block takes longer than ``limit_s`` seconds.

    A thread that the kernel holds hears neither a signal's handler nor an exception: only the end of the process helps.
    """
    done = threading.Event()
    waiting = threading.get_ident()

    def watch() -> None:
        # In small pieces: the time for which a person has stopped the program with ^Z does not count.
        if not any(done.wait(limit_s / PIECES) for _ in range(PIECES)):
            _give_up(waiting, f"{what} did not end within {limit_s:g} s")

    threading.Thread(target=watch, daemon=True, name="patience").start()
    try:
        yield
    finally:
        done.set()


def _give_up(waiting: int, told: str) -> None:
    place = waits_for(sys._current_frames().get(waiting))
    at = f": {place} gives no answer. Is the volume that it lies on still there?" if place else "."
    with suppress(OSError):  # past Python's own buffers: the thread that hangs may hold their lock
        os.write(2, f"{safe(mask_secrets(told + at))}\n".encode())
    os._exit(EXIT_HUNG)


def waits_for(frame: FrameType | None) -> str:
    """The file or folder that the innermost call with one is about, "" where none is."""
    while frame is not None:
        named = dict(frame.f_locals)
        first = [named[name] for name in ("self", "path", "file", "folder") if name in named]
        for value in (*first, *named.values()):
            if isinstance(value, PurePath) and value.is_absolute():
                return str(value)
            if isinstance(value, str) and value.startswith("/") and "\n" not in value:
                return value
        frame = frame.f_back
    return ""
