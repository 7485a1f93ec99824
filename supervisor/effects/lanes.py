"""One thread a kind of effect: one kind's things happen one after the other, different kinds' side by side."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Lanes:
    """Named queues of work, each with a daemon thread of its own, made at first use."""

    def __init__(self, on_crash: Callable[[str, BaseException], None]) -> None:
        """``on_crash`` is told of an exception that a piece of work let escape; the lane goes on."""
        self._on_crash = on_crash
        self._lock = threading.Lock()
        self._queues: dict[str, queue.SimpleQueue[Callable[[], object] | None]] = {}
        self._threads: dict[str, threading.Thread] = {}

    def put(self, lane: str, work: Callable[[], object]) -> None:
        """Queue ``work`` on ``lane``."""
        with self._lock:
            if lane not in self._queues:
                self._queues[lane] = queue.SimpleQueue()
                thread = threading.Thread(target=self._run_lane, args=(lane,), name=f"effect-{lane}", daemon=True)
                self._threads[lane] = thread
                thread.start()
            self._queues[lane].put(work)

    def idle(self, lane: str) -> bool:
        """Is nothing queued on ``lane``? (What runs now is not counted.)"""
        with self._lock:
            return lane not in self._queues or self._queues[lane].empty()

    def close(self, timeout_s: float) -> None:
        """Ask all lanes to end after what they do now, and wait a little for each."""
        with self._lock:
            for pending in self._queues.values():
                pending.put(None)
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(timeout_s)

    def _run_lane(self, lane: str) -> None:
        pending = self._queues[lane]
        while (work := pending.get()) is not None:
            try:
                work()
            except Exception as error:
                self._on_crash(lane, error)
