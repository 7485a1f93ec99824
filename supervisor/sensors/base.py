"""How a sensor is asked to look: one outstanding look at a time, with a deadline, in threads of its own.

A look may hang for ever (a broken GPU driver, a dead mount, a process with a locked memory map). Then the sensor says
*unknown* through its ``Looker`` and no other sensor waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from supervisor.core.facts import Fact

Post = Callable[[Fact], None]
"""Hands one fact to the daemon's queue. Thread-safe, never blocks for long."""
Clock = Callable[[], float]
"""Seconds of a clock that never goes back."""


class Sensor(Protocol):
    """Something that looks. A sensor keeps what it said last, and says nothing when nothing changed.

    ``look`` and ``unknown`` may be called in different threads at the same time, because ``unknown`` is called just
    when ``look`` hangs. After ``unknown`` the sensor's next look says everything anew.
    """

    name: str

    def look(self) -> Sequence[Fact]:
        """Look once. May take long, may hang; raises nothing that it expects."""

    def unknown(self, reason: str) -> Sequence[Fact]:
        """The facts that say that this sensor cannot see at present. Returns at once."""


@runtime_checkable
class Confirmed(Protocol):
    """A sensor that wants to know when the facts of its last look have been handed on (see ``logs``)."""

    def note_posted(self) -> None:
        """The facts of the last ``look`` were posted."""


@runtime_checkable
class Hasty(Protocol):
    """A sensor that may want its next look before its rhythm has it (see ``logs``)."""

    def again_s(self, took_s: float) -> float | None:
        """Seconds from the end of the last look, which took ``took_s``, to the next one; None: as usual."""


class Looker:
    """Calls ``sensor.look()`` every ``interval_s`` seconds and posts what it says.

    Two threads: one looks, the other waits for a look that takes longer than ``deadline_s`` and then posts
    ``sensor.unknown(...)``, again every ``heartbeat_s`` until that look returns. No second look is started beside it.
    What a late look brings is still posted (a process that was seen to end did end), and the next look follows at
    once. Both are daemon threads: a look that never returns does not keep the program from ending.
    """

    def __init__(
        self,
        sensor: Sensor,
        post: Post,
        *,
        interval_s: float,
        deadline_s: float = 10.0,
        heartbeat_s: float = 30.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self.sensor = sensor
        self._posted = sensor.note_posted if isinstance(sensor, Confirmed) else lambda: None
        self._again = sensor.again_s if isinstance(sensor, Hasty) else lambda took_s: None
        self._post = post
        self._interval_s = interval_s
        self._deadline_s = deadline_s
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._changed = threading.Condition()
        self._stopping = False
        self._asked = False
        self._since: float | None = None  # when the outstanding look began
        self._said: float | None = None  # when this look was last said to be overdue
        self._worker = threading.Thread(target=self._look_until_ended, name=f"look-{sensor.name}", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{sensor.name}", daemon=True)

    def start(self) -> None:
        """Begin; the first look is at once."""
        self._worker.start()
        self._watcher.start()

    def wake(self) -> None:
        """Look now, or as soon as the outstanding look has returned. Safe in any thread."""
        with self._changed:
            self._asked = True
            self._changed.notify_all()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End. False when a look still hangs after ``timeout_s``; its thread then ends with the program.

        What such a look brings later is not posted: a line of a log says not of which attempt it is, and by then the
        next one may run.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        until = time.monotonic() + timeout_s
        for thread in (self._worker, self._watcher):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        return not self._worker.is_alive()

    # ------------------------------------------------------------ the thread that looks

    def _look_until_ended(self) -> None:
        due = self._clock()
        while self._wait_until(due):
            begun = self._clock()
            with self._changed:
                self._since, self._said, self._asked = begun, None, False
            facts = self._look()
            now = self._clock()
            with self._changed:
                late = self._said is not None
                self._since = None
            self._say(facts)
            # A fixed rhythm; looks that were missed are not made up for.
            due = now if late else max(begun + self._interval_s, now)
            again_s = self._again(now - begun)
            if again_s is not None:
                due = min(due, now + again_s)

    def _wait_until(self, due: float) -> bool:
        with self._changed:
            while not self._stopping and not self._asked:
                left = due - self._clock()
                if left <= 0:
                    break
                self._changed.wait(left)
            return not self._stopping

    def _look(self) -> Sequence[Fact]:
        # The loop's edge: a mistake in a sensor must not silence it for ever, nor end the daemon.
        try:
            return self.sensor.look()
        except Exception as error:
            return self.sensor.unknown(f"looking at {self.sensor.name} failed: {type(error).__name__}: {error}")

    def _say(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if self._stopping:
                return
            self._post(fact)
        self._posted()

    # ------------------------------------------------------------ the thread that watches it

    def _watch(self) -> None:
        while (overdue_s := self._next_overdue()) is not None:
            for fact in self.sensor.unknown(f"{self.sensor.name} did not answer for {overdue_s:.0f} s"):
                self._post(fact)

    def _next_overdue(self) -> float | None:
        """Wait until it is time to say that a look is overdue; seconds since it began, None at the end."""
        with self._changed:
            while not self._stopping:
                now = self._clock()
                if self._since is None:
                    # No look that begins while this thread sleeps can be overdue when it wakes, so that it need not
                    # be woken for each look: with many sensors those wake-ups would be most of the daemon's work.
                    due = now + self._deadline_s
                elif self._said is None:
                    due = self._since + self._deadline_s
                else:
                    due = self._said + self._heartbeat_s
                if due <= now and self._since is not None:
                    self._said = now
                    return now - self._since
                self._changed.wait(due - now)
        return None
