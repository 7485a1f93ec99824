"""Patience with a store: try again after a transient error, with jitter, for a bounded number of times.

b2sdk sends an upload five times back to back without a pause and ignores Retry-After on 429 (b2sdk 2.13.1,
``B2Http.TRY_COUNT_*`` and ``should_retry_upload``), so that a hiccup of a second would fail a whole file.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from supervisor.base.errors import StoreError
from supervisor.base.records import dataclass

T = TypeVar("T")
LONGEST_RETRY_AFTER_S = 120.0


@dataclass(frozen=True)
class Retry:
    """How often and how long to wait: full jitter below a doubling ceiling, never less than the server asked for."""

    tries: int = 8
    base_s: float = 0.5
    cap_s: float = 30.0
    sleep: Callable[[float], None] = time.sleep

    def call(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until it returns; raises its last StoreError, and every one that is not transient."""
        for number in range(1, self.tries):
            try:
                return attempt()
            except StoreError as error:
                if error.kind != "transient":
                    raise
                self.sleep(self.pause(number, error.retry_after_s))
        return attempt()

    def pause(self, number: int, retry_after_s: float | None = None) -> float:
        """Seconds to wait after failure ``number`` (from 1)."""
        jittered = random.uniform(0, min(self.cap_s, self.base_s * 2**number))  # noqa: S311
        return max(jittered, min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))
