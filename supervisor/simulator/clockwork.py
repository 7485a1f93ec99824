"""The virtual clock: what happens next, in order, and nothing in between."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Call = Callable[[], None]
NEVER = float("inf")


class Owner:
    """When it ends, so do its events: a pod, a job, a daemon."""

    alive = True


class Event:
    """One thing that will happen, unless it is cancelled or its owner ends before."""

    __slots__ = ("call", "owner", "t")

    def __init__(self, t: float, call: Call, owner: Owner | None) -> None:
        self.t = t
        self.call: Call | None = call
        self.owner = owner

    def cancel(self) -> None:
        """It will not happen."""
        self.call = None


class Alarm:
    """One call that is planned at most once: the earliest moment that was asked for holds, until it came."""

    def __init__(self, clock: Clockwork, call: Call, owner: Owner) -> None:
        self._clock, self._call, self._owner = clock, call, owner
        self._event: Event | None = None

    @property
    def t(self) -> float:
        """When it goes off; NEVER while nothing is planned."""
        return self._event.t if self._event is not None and self._event.call is not None else NEVER

    def not_after(self, t: float) -> None:
        """Go off at ``t``, unless it does so before."""
        if self.t <= t:
            return
        if self._event is not None:
            self._event.cancel()
        self._event = self._clock.at(t, self._call, self._owner)

    def within(self, seconds: float) -> None:
        """Go off in so many seconds, unless it does so before."""
        self.not_after(self._clock.now + seconds)


class Clockwork:
    """Events by time; those of the same time in the order in which they were planned."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._count = count()
        self._heap: list[tuple[float, int, Event]] = []

    def at(self, t: float, call: Call, owner: Owner | None = None) -> Event:
        """Plan ``call`` for time ``t`` (now, if that is past)."""
        event = Event(max(t, self.now), call, owner)
        heapq.heappush(self._heap, (event.t, next(self._count), event))
        return event

    def after(self, seconds: float, call: Call, owner: Owner | None = None) -> Event:
        """Plan ``call`` for ``seconds`` from now."""
        return self.at(self.now + seconds, call, owner)

    def next_t(self) -> float:
        """Time of the next event, NEVER when there is none."""
        heap = self._heap
        while heap:
            event = heap[0][2]
            if event.call is not None and (event.owner is None or event.owner.alive):
                return heap[0][0]
            heapq.heappop(heap)
        return NEVER

    def step(self) -> None:
        """Let the next event happen (``next_t`` was just asked)."""
        t, _, event = heapq.heappop(self._heap)
        self.now = t
        call, event.call = event.call, None
        if call is not None:
            call()

    def postpone(self, seconds: float, concerns: Callable[[Owner], bool]) -> None:
        """Whatever belongs to an owner that ``concerns`` names happens later: its host stood still."""
        moved = []
        for t, number, event in self._heap:
            if event.call is not None and event.owner is not None and concerns(event.owner):
                t += seconds
                event.t = t
            moved.append((t, number, event))
        heapq.heapify(moved)
        self._heap = moved
