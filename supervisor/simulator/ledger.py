"""The truth about a simulated run, for the account: where each second went, and what each fault cost.

The world tells it; no policy and no sensor reads it. A second of work on a step counts as productive until the run goes
on from an earlier step: then it moves to what was wasted. So the parts add up to all time at every moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from supervisor.core.time_kinds import CATEGORIES, OTHER, PRODUCTIVE, WASTED


@dataclass
class Strike:
    """One fault that struck, and what became of it."""

    kind: str
    t: float
    needs: str  # what it takes of the policy: "restart", "pod" or "nothing"
    detected: float | None = None  # when the policy acted upon it
    natural: float | None = None  # when it was over without the policy's doing
    sentence: str = ""  # why the policy says that it acted


@dataclass
class FalseRestart:
    """A stop of a job that would have gone on by itself."""

    t: float
    reason: str
    odd: str = ""  # what was unusual at that time and no reason to stop


@dataclass
class Account:
    """The books of one simulated run. Times in seconds."""

    begun: float
    now: float = 0.0
    category: str = OTHER
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))
    strikes: list[Strike] = field(default_factory=list)
    false_restarts: list[FalseRestart] = field(default_factory=list)
    starts: int = 0
    stops: int = 0
    pods: int = 1
    gave_up: int = 0
    steps_done: int = 0
    steps_lost: int = 0
    slept: float = 0.0
    _kept: list[tuple[int, float]] = field(default_factory=list)  # (step, its seconds), ascending
    _open: float = 0.0  # seconds of the step under way

    def __post_init__(self) -> None:
        self.now = self.begun

    # ------------------------------------------------------------ seconds

    def turn(self, t: float, category: str) -> None:
        """From ``t`` on time goes to ``category``."""
        spent = t - self.now
        self.seconds[self.category] += spent
        if self.category == PRODUCTIVE:
            self._open += spent
        self.now, self.category = t, category

    def step_done(self, t: float, step: int) -> None:
        """A training step is done; its time stays productive as long as the step stays."""
        self.turn(t, self.category)
        self._kept.append((step, self._open))
        self._open = 0.0
        self.steps_done += 1

    def abandoned(self, t: float) -> None:
        """The step under way will not be finished."""
        self.turn(t, self.category)
        self._move(self._open)
        self._open = 0.0

    def goes_on_from(self, t: float, step: int | None) -> None:
        """The run resumes at ``step`` (None: from the start): what was done above it is lost."""
        self.abandoned(t)
        while self._kept and (step is None or self._kept[-1][0] > step):
            self._move(self._kept.pop()[1])
            self.steps_lost += 1

    def _move(self, seconds: float) -> None:
        self.seconds[PRODUCTIVE] -= seconds
        self.seconds[WASTED] += seconds

    # ------------------------------------------------------------ faults

    def struck(self, kind: str, t: float, needs: str) -> Strike:
        """A fault changed the world."""
        strike = Strike(kind, t, needs)
        self.strikes.append(strike)
        return strike

    def close(self, t: float) -> None:
        """The simulated time is over; the parts must add up to it."""
        self.turn(t, self.category)
        self.check()

    def check(self) -> None:
        """Raises AssertionError where a second was lost or counted twice."""
        total, parts = self.now - self.begun, sum(self.seconds.values())
        if not math.isclose(total, parts, rel_tol=1e-9, abs_tol=1e-3):
            raise AssertionError(f"the ledger's parts are {parts} s of {total} s: {self.seconds}")
        least = min(self.seconds.values())
        if least < -1e-3:
            raise AssertionError(f"the ledger has a negative part: {self.seconds}")


@dataclass(frozen=True)
class Latencies:
    """Seconds from a fault to the act upon it, of one kind."""

    count: int
    detected: int
    median_s: float | None
    p95_s: float | None
    longest_s: float | None


def latencies(strikes: Sequence[Strike]) -> dict[str, Latencies]:
    """By kind, of the faults that need an answer."""
    found: dict[str, list[Strike]] = {}
    for strike in strikes:
        if strike.needs != "nothing":
            found.setdefault(strike.kind, []).append(strike)
    told = {}
    for kind, all_of_it in sorted(found.items()):
        times = sorted(s.detected - s.t for s in all_of_it if s.detected is not None)
        told[kind] = Latencies(
            len(all_of_it), len(times), quantile(times, 0.5), quantile(times, 0.95), times[-1] if times else None
        )
    return told


def quantile(ascending: Sequence[float], part: float) -> float | None:
    """Nearest-rank quantile; None of nothing."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(part * len(ascending)) - 1)]
