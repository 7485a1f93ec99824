"""Log lines, byte for byte as prime-rl's loguru set-up and vLLM write them.

Source: src/prime_rl/utils/logger.py at each era's commit (the same format in all of them), tried with loguru itself: a
dim time, a level padded to seven, colours even in files. Tracebacks are written without loguru's own colours.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

COLOURS = {
    "DEBUG": "\x1b[34m\x1b[1m",
    "INFO": "\x1b[1m",
    "SUCCESS": "\x1b[32m\x1b[1m",
    "WARNING": "\x1b[33m\x1b[1m",
    "ERROR": "\x1b[31m\x1b[1m",
}
RANKS = {"DEBUG": 10, "INFO": 20, "SUCCESS": 25, "WARNING": 30, "ERROR": 40}
NO_BOLD = "\x1b[22m"
RESET = "\x1b[0m"


def loguru_line(level: str, message: str, clock: str | None = None) -> str:
    """One line as prime-rl's logger formats it, without the newline."""
    colour = COLOURS[level]
    clock = clock or time.strftime("%H:%M:%S")
    return f"\x1b[2m{clock}{RESET} {colour}{level: >7}{RESET} {colour}{NO_BOLD}{message}{RESET}{RESET}"


class Log:
    """prime-rl's logger: to stdout, and in old eras also to a file of its own. Empty messages are not written."""

    def __init__(
        self, level: str = "info", file: Path | None = None, json_lines: bool = False, module: str = "rl"
    ) -> None:
        self._threshold = RANKS[level.upper()]
        self._json = json_lines
        self._module = module
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            self._file = file.open("a", encoding="utf-8")

    def write(self, level: str, message: str) -> None:
        if not message or RANKS[level] < self._threshold:
            return
        self.raw(self._as_json(level, message) if self._json else loguru_line(level, message))

    def raw(self, line: str) -> None:
        """A line that did not come through the logger: a traceback, or text that a model wrote."""
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            if self._file is not None:
                self._file.write(line + "\n")
                self._file.flush()

    def caught(self, message: str, error: BaseException) -> None:
        """An error line with its traceback, as a decorated entry point leaves it."""
        self.write("ERROR", message)
        self.raw("".join(traceback.format_exception(error)).rstrip("\n"))

    def _as_json(self, level: str, message: str) -> str:
        entry = {
            "timestamp": datetime.now(UTC).isoformat(),
            "level": level,
            "message": message,
            "module": self._module,
            "function": "main",
            "line": 1,
        }
        return json.dumps(entry)


def caught_line(function: str) -> str:
    """What loguru's `catch` writes, which wrapped the entry points until 2026."""
    place = f"process 'MainProcess' ({os.getpid()}), thread 'MainThread'"
    return f"An error has been caught in function '{function}', {place}:"


def format_duration(seconds: float) -> str:
    """`format_time` of utils/logger.py since v0.6: 850ms, 45.1s, 1m 5s, 2h 3m, 1d 2h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m {int(seconds % 60)}s"
    if seconds < 86400:
        return f"{int(seconds // 3600)}h {int(seconds % 3600 // 60)}m"
    return f"{int(seconds // 86400)}d {int(seconds % 86400 // 3600)}h"


class VllmLog:
    """vLLM's own lines: `(APIServer pid=7) INFO 01-06 07:26:12 [loggers.py:236] ...`, and uvicorn's."""

    def __init__(self, process: str) -> None:
        self._prefix = f"\x1b[1;36m({process} pid={os.getpid()})\x1b[0;0m "
        self._lock = threading.Lock()

    def line(self, level: str, where: str, message: str) -> None:
        self.raw(f"{level} {time.strftime('%m-%d %H:%M:%S')} [{where}] {message}")

    def uvicorn(self, message: str) -> None:
        self.raw(f"INFO:     {message}")

    def raw(self, text: str) -> None:
        with self._lock:
            sys.stdout.write("".join(f"{self._prefix}{line}\n" for line in text.splitlines()))
            sys.stdout.flush()
