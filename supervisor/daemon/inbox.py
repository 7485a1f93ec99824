"""What waits for the loop, and how long it waited: a queue that measures itself, cheaply enough to do it always.

The wait of a fact is the time from the moment at which a sensor, an effect or a person put it in until the loop took it
out: all that the loop did meanwhile, and whatever kept it from the processor. The wait of a moment that the core named
is how late the loop was for it. Operators see both as one histogram in /metrics (``rl_supervisor_loop_wait_seconds``).
"""

from __future__ import annotations

import queue
import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

from supervisor.core import facts as f
from supervisor.core.state import State

Item = TypeVar("Item")

_MS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000)
BOUNDS_S = tuple(milliseconds / 1000 for milliseconds in _MS)


class Loop(Protocol):
    """The daemon's loop, as what lives beside it meets it. ``state`` is replaced whole at each turn."""

    state: State

    def post(self, fact: f.Fact, source: str = "", /) -> None:
        """Hand a fact to the core; from any thread."""

    def chore(self, work: Callable[[], None], /) -> None:
        """Have the loop do ``work``, after the facts that were told before; from any thread."""

    def keep_positions(self) -> None:
        """Write down how far the logs were read, after the loop has consumed what was read until now."""


class Waits:
    """A histogram of seconds. Written by one thread; ``as_dict`` may be called from any."""

    def __init__(self) -> None:
        """All zero."""
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def note(self, seconds: float) -> None:
        """Count one wait."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def as_dict(self) -> dict[str, Any]:
        """``count``, ``sum_s``, and ``at_most``: how many were no longer than so many seconds (keys as text)."""
        up_to = list(accumulate(self._counts))
        at_most = {repr(bound): number for bound, number in zip(BOUNDS_S, up_to, strict=False)}
        return {"count": up_to[-1], "sum_s": self._sum_s, "at_most": at_most}


class Inbox(Generic[Item]):
    """First in, first out; many threads put, one takes. ``put`` never waits, also within a signal handler."""

    def __init__(self) -> None:
        """Empty."""
        self.waits = Waits()
        self._queue: queue.SimpleQueue[tuple[float, Item]] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        """Put in behind what is there."""
        self._queue.put((time.monotonic(), item))

    def get(self, timeout_s: float) -> Item:
        """The oldest, waited for at most ``timeout_s``. Raises queue.Empty."""
        began = time.monotonic()
        try:
            put_at, item = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
        except queue.Empty:
            self.waits.note(max(0.0, time.monotonic() - began - timeout_s))
            raise
        self.waits.note(max(0.0, time.monotonic() - put_at))
        return item

    def get_nowait(self) -> Item:
        """The oldest. Raises queue.Empty."""
        return self._queue.get_nowait()[1]

    def empty(self) -> bool:
        """Is there nothing now?"""
        return self._queue.empty()
