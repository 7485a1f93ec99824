"""A limit on bytes a second over all streams together, so that a transfer leaves room for the job's own traffic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BURST_S = 0.25
"""What may go at once after a pause, in seconds of the limit: more would be felt by the job as an outage."""


class TokenBucket:
    """Tokens are bytes. Pure: it is told what the clock says, and it never waits itself."""

    def __init__(self, bytes_per_s: float, now: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._tokens = bytes_per_s * BURST_S
        self._at = now

    def take(self, size: int, now: float) -> float:
        """Take ``size`` bytes, on credit if need be; returns the seconds to wait before they may move."""
        earned = max(0.0, now - self._at) * self.bytes_per_s
        self._tokens = min(self.bytes_per_s * BURST_S, self._tokens + earned) - size
        self._at = max(self._at, now)
        return max(0.0, -self._tokens / self.bytes_per_s)


class Throttle:
    """One bucket that many threads draw from. Without a limit it costs nothing."""

    def __init__(
        self,
        bytes_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bucket = TokenBucket(bytes_per_s, clock()) if bytes_per_s else None
        self._lock = threading.Lock()
        self._clock = clock
        self._sleep = sleep

    def block(self, size: int) -> int:
        """How many of ``size`` bytes should be moved at a time: small pieces where they are metered."""
        if self._bucket is None:
            return size
        return max(4096, min(size, int(self._bucket.bytes_per_s * BURST_S / 4)))

    def pass_(self, size: int) -> None:
        """Return when ``size`` further bytes may move."""
        if self._bucket is None:
            return
        with self._lock:
            wait_s = self._bucket.take(size, self._clock())
        if wait_s > 0:
            self._sleep(wait_s)
