"""The truth about a simulated run, for the account: where each second went, and what each fault cost.

The world tells it; no policy and no sensor reads it. A second of work on a step counts as productive until the run goes
on from an earlier step: then it moves to what was wasted. So the parts add up to all time at every moment.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.core.time_kinds import CATEGORIES, INFRASTRUCTURE, OTHER, PRODUCTIVE, SAVE, WASTED


@dataclass
class Strike:
    """One fault that struck, and what became of it."""

    kind: str
    t: float
    needs: str  # what it takes of the policy: "restart", "pod" or "nothing"
    detected: float | None = None  # when the policy acted upon it
    natural: float | None = None  # when it was over without the policy's doing
    sentence: str = ""  # why the policy says that it acted

    @property
    def asks_for_an_act(self) -> bool:
        """Does the job not go on by itself?"""
        return self.needs in ("restart", "pod")


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

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)

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

    def abandon_step(self, t: float) -> None:
        """The step under way will not be finished."""
        self.turn(t, self.category)
        self._move_to_waste(self._open)
        self._open = 0.0

    def goes_on_from(self, t: float, step: int | None) -> None:
        """The run resumes at ``step`` (None: from the start): what was done above it is lost."""
        self.abandon_step(t)
        while self._kept and (step is None or self._kept[-1][0] > step):
            self._move_to_waste(self._kept.pop()[1])
            self.steps_lost += 1

    def _move_to_waste(self, seconds: float) -> None:
        self.seconds[PRODUCTIVE] -= seconds
        self.seconds[WASTED] += seconds

    # ------------------------------------------------------------ faults

    def struck(self, kind: str, t: float, needs: str) -> Strike:
        """A fault changed the world."""
        strike = Strike(kind, t, needs)
        self.strikes.append(strike)
        return strike

    def struck_by_kind(self) -> dict[str, int]:
        """How often each kind struck."""
        return dict(sorted(Counter(strike.kind for strike in self.strikes).items()))

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
class Score:
    """One policy's figures over all its seeds. Times in seconds, shares from 0 to 1."""

    policy: str
    hours: float
    seconds: dict[str, float]  # by category of ``core.time_kinds``
    detection_s: dict[str, list[float]] = field(default_factory=dict)  # by kind of fault, ascending
    needing: dict[str, int] = field(default_factory=dict)  # by kind: faults that needed an act of the policy
    false_restarts: int = 0
    steps_lost: int = 0
    pods: int = 0
    gave_up: int = 0

    @property
    def ettr(self) -> float:
        """Effective training time ratio: time on steps that stayed, of all time."""
        return self.seconds[PRODUCTIVE] / sum(self.seconds.values())

    @property
    def ettr_apart(self) -> float:
        """The same without what no policy changes: waiting for a pod, and saving checkpoints."""
        rest = sum(self.seconds.values()) - self.seconds[SAVE] - self.seconds[INFRASTRUCTURE]
        return self.seconds[PRODUCTIVE] / rest if rest > 0 else 0.0

    @property
    def all_detections_s(self) -> list[float]:
        """Of every kind, ascending. Faults that were never acted upon are in none of them."""
        return sorted(s for times in self.detection_s.values() for s in times)

    def dollars_lost(self, per_hour: float) -> float:
        """The price of all hours that brought no step that stayed."""
        return self.hours * (1 - self.ettr) * per_hour

    def as_json(self, per_hour: float | None = None) -> dict[str, Any]:
        """All figures, rounded, as plain values."""
        return {
            "policy": self.policy,
            "hours": self.hours,
            "ettr": round(self.ettr, 6),
            "ettr_without_saves_and_pods": round(self.ettr_apart, 6),
            "ledger_s": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "detection_s": {
                kind: {
                    "count": self.needing[kind],
                    "detected": len(times),
                    "median": quantile(times, 0.5),
                    "p95": quantile(times, 0.95),
                }
                for kind, times in self.detection_s.items()
            },
            "false_restarts": self.false_restarts,
            "steps_lost": self.steps_lost,
            "pods": self.pods,
            "gave_up": self.gave_up,
            "dollars_lost": None if per_hour is None else round(self.dollars_lost(per_hour), 2),
        }


def score(policy: str, accounts: Sequence[Account]) -> Score:
    """The figures of one policy from the books of its runs."""
    seconds = {name: sum(a.seconds[name] for a in accounts) for name in accounts[0].seconds}
    strikes = [s for a in accounts for s in a.strikes if s.asks_for_an_act]
    times = {
        kind: sorted(s.detected - s.t for s in strikes if s.kind == kind and s.detected is not None)
        for kind in sorted({s.kind for s in strikes})
    }
    return Score(
        policy,
        sum(a.now - a.begun for a in accounts) / 3600,
        seconds,
        times,
        {kind: sum(s.kind == kind for s in strikes) for kind in times},
        sum(len(a.false_restarts) for a in accounts),
        sum(a.steps_lost for a in accounts),
        sum(a.pods for a in accounts),
        sum(a.gave_up for a in accounts),
    )


def add_scores(scores: Sequence[Score]) -> Score:
    """One policy's figures over all these runs of it."""
    kinds = sorted({kind for s in scores for kind in s.needing})
    return Score(
        scores[0].policy,
        sum(s.hours for s in scores),
        {name: sum(s.seconds[name] for s in scores) for name in scores[0].seconds},
        {kind: sorted(t for s in scores for t in s.detection_s.get(kind, ())) for kind in kinds},
        {kind: sum(s.needing.get(kind, 0) for s in scores) for kind in kinds},
        sum(s.false_restarts for s in scores),
        sum(s.steps_lost for s in scores),
        sum(s.pods for s in scores),
        sum(s.gave_up for s in scores),
    )


def quantile(ascending: Sequence[float], part: float) -> float | None:
    """Nearest-rank quantile; None of nothing."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(part * len(ascending)) - 1)]
