"""Parts of one file that travel side by side: all arrive, or the first failure stops the others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait


def all_of(jobs: Sequence[Future[None]], stop: threading.Event) -> None:
    """Wait for all. After the first failure nothing further is begun, and it is raised when nothing is under way."""
    done, waiting = wait(jobs, return_when=FIRST_EXCEPTION)
    stop.set()
    for job in waiting:
        job.cancel()
    wait(jobs)
    for job in done:
        job.result()
