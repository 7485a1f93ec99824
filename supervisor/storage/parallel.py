"""Work side by side, as the parts of one file that travel: all of it is done, or the first failure stops the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any


def all_of(jobs: Sequence[Future[Any]], stop: Callable[[BaseException], object]) -> None:
    """Wait for all. After the first failure nothing further is begun, and it is raised when nothing is under way.

    ``stop`` is told of that failure, so that what is under way ends soon.
    """
    done, waiting = wait(jobs, return_when=FIRST_EXCEPTION)
    failed = next((error for job in done if (error := job.exception()) is not None), None)
    if failed is None:
        return
    stop(failed)
    for job in waiting:
        job.cancel()
    wait(jobs)
    raise failed
