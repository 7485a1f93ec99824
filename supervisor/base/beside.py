"""Looks that may hang, each in a thread of its own: no caller has to wait for it, nor does the end of the program."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """One such look, begun at once. A thread of a ``ThreadPoolExecutor`` would be waited for when Python ends."""

    def __init__(self, what: Callable[[], T]) -> None:
        self._seen: Future[T] = Future()
        threading.Thread(target=self._look, args=(what,), daemon=True, name="look-beside").start()

    def result(self, until: float | None) -> T:
        """What was seen, waited for until then (monotonic time; None: as long as it takes).

        Raises TimeoutError, and whatever the look raised.
        """
        return self._seen.result(None if until is None else max(0.0, until - time.monotonic()))

    def wait(self, until: float) -> None:
        """Until it has come back, or until then."""
        futures.wait([self._seen], max(0.0, until - time.monotonic()))

    def result_or_none(self, until: float) -> T | None:
        """The same; None where it failed or gave no answer: what the files of a pod say may be anything."""
        try:
            return self.result(until)
        # TimeoutError is an OSError; a name with a NUL, or bytes that are no text, are the other.
        except (OSError, ValueError):
            return None

    @property
    def hangs(self) -> bool:
        """Has it not come back yet?"""
        return not self._seen.done()

    def _look(self, what: Callable[[], T]) -> None:
        try:
            self._seen.set_result(what())
        except BaseException as error:  # raised again where it is asked for
            self._seen.set_exception(error)


def side_by_side(looks: Sequence[Callable[[], T]], at_once: int) -> list[T]:
    """What all of them see, in their order, ``at_once`` of them at a time. Raises what the first of them raised."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(looks)):
        waiting.put(number)
    seen: dict[int, T] = {}

    def work() -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            seen[number] = looks[number]()

    for worker in [Beside(work) for _ in range(min(at_once, len(looks)))]:
        worker.result(None)
    return [seen[number] for number in range(len(looks))]
