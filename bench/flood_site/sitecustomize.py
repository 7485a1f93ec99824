"""Loaded into the daemon of `bench.flood` by PYTHONPATH: puts fifty chores a second into the inbox that do nothing.

Each waits exactly as long as any fact that came at that moment would have, and they are many enough for a percentile.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

PERIOD_S = 0.02


def _nothing() -> None:
    return None


def _install() -> None:
    from supervisor.daemon import loop

    run = loop.Daemon.run

    def probed(self: Any) -> int:
        def probe() -> None:
            while True:
                time.sleep(PERIOD_S)
                self.chore(_nothing)

        threading.Thread(target=probe, name="probe", daemon=True).start()
        return run(self)

    loop.Daemon.run = probed  # type: ignore[method-assign]


if os.environ.get("RL_FLOOD_PROBE") and "supervisor.cli.main" in sys.orig_argv and "run" in sys.orig_argv:
    _install()
