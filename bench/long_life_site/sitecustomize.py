"""Loaded into the daemon of `bench.long_life` by PYTHONPATH: shortens what the journal keeps, and leaks on demand."""

from __future__ import annotations

import os
import sys
import threading
import time

_HELD: list[object] = []


def _shorten(scale: float) -> None:
    """How long the journal keeps its older part, in the proportion in which a day is shorter here."""
    from supervisor.daemon import housekeeping
    from supervisor.journal import archive, journal

    archive.KEEP_S /= scale
    archive.KEEP_OBSERVATIONS = 3000  # a day has about as many facts here; 200 000 is about a day of a real pod's
    archive.BEFORE_INCIDENT_S /= scale
    archive.AFTER_INCIDENT_S /= scale
    archive.KEEP_INCIDENTS = 4
    journal.KEEP_EVENTS = 1000
    housekeeping.TRIM_S = 1.0  # a minute of a real day: less than a tenth of a second of these


def _leak(what: str) -> None:
    """A descriptor, a sleeping thread and 256 KiB every half second: what a mistake in the product would do."""
    while True:
        time.sleep(0.5)
        if "fds" in what:
            _HELD.append(open(os.devnull, "rb"))  # noqa: PTH123, SIM115
        if "threads" in what:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        if "memory" in what:
            _HELD.append(os.urandom(1 << 18))


if "supervisor.cli.main" in sys.orig_argv and "run" in sys.orig_argv and os.environ.get("RL_LONG_LIFE_SCALE"):
    _shorten(float(os.environ["RL_LONG_LIFE_SCALE"]))
    if os.environ.get("RL_LONG_LIFE_LEAK"):
        threading.Thread(target=_leak, args=(os.environ["RL_LONG_LIFE_LEAK"],), daemon=True).start()
