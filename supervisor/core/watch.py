"""Elapsed time against limits, remembering when the nearest of the limits will pass.

Whatever the ladders compare with the clock, they compare through a ``Watch``; so the core can name the next moment at
which it could conclude something that it did not conclude now, and the daemon need not ask it every second.
"""

from __future__ import annotations

NEVER = float("inf")


class Watch:
    """One look at the clock, ``now`` in seconds. ``next`` is the earliest limit that has not passed yet."""

    __slots__ = ("next", "now")

    def __init__(self, now: float) -> None:
        self.now = now
        self.next = NEVER

    def over(self, since: float, limit_s: float) -> bool:
        """Have ``limit_s`` seconds passed since ``since``?"""
        at = since + limit_s
        if self.now >= at:
            return True
        self.next = min(self.next, at)
        return False
