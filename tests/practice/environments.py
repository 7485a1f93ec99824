"""The practice environment servers and workers: processes that are only there, with the titles and the parents of each
era.

Source: prime-rl's orchestrator/env_worker.py at be0e3d131 (workers without titles, which outlive a killed
orchestrator), orchestrator/ envs.py at 38494ccb4 (verifiers' ZMQEnvServer as the orchestrator's child),
entrypoints/env_server.py at 559b44772 (the launcher's child); verifiers' process titles.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.practice.era import Era
from tests.practice.processes import set_title, spawn

WORKER = "from tests.practice.entry import main; main()"


def serve(era: Era, home: Path, title: str) -> int:
    """An environment server with one worker. It holds its parent's pipe and ends with it, or by a signal."""
    set_title(title)
    worker = spawn([sys.executable, "-c", WORKER, "env-worker", era.name, str(home)], pipe_in=True)
    print("Environment server is ready", flush=True)
    _wait_for_end(home, follow_parent=title.startswith("Verifiers"))
    worker.terminate()
    worker.wait()
    return 0


def work(era: Era, home: Path) -> int:
    """One worker. Without titles (January 2026) it does not notice that its orchestrator is gone."""
    if era.titles:
        set_title("Verifiers::EnvWorker0")
    _wait_for_end(home, follow_parent=era.titles)
    return 0


def _wait_for_end(home: Path, *, follow_parent: bool) -> None:
    if follow_parent:
        sys.stdin.buffer.read()
        return
    while home.exists():
        time.sleep(0.5)
