"""Steps that take longer for good: a throttled GPU, a straggler, a slow disk, or longer rollouts. Said, never acted on.

What is usual is the median of the newest steps that were not slow, or what the run had learned before this pod. A row
of slow steps is judged by the median of the last nine, so that one freak step begins none and a fast one ends none.
"""

from __future__ import annotations

from statistics import median

from supervisor.base.records import dataclass
from supervisor.core.evolve import replace
from supervisor.core.phases import SOFT_MEDIANS
from supervisor.core.records import PhaseTimes
from supervisor.core.words import span

SLOW, FAST = 1.5, 1.25  # times the usual: from here on slow, and below this fast again
LATEST, USUAL, KNOWN_AFTER = 9, 50, 16  # steps
LEAST_STEPS, LEAST_S = 12, 1500.0
REGULAR = 1.05 * SOFT_MEDIANS  # medians: where late steps stay below, no row of slow ones comes by chance


@dataclass(frozen=True)
class Pace:
    """How long steps took, in seconds, those of saves and evaluations left out."""

    latest: tuple[tuple[float, float], ...] = ()  # (how long it took, when it ended)
    usual: tuple[float, ...] = ()  # of the newest steps that were not slow
    before_s: float | None = None  # the usual time of a step when the present row of slow ones began
    steps: int = 0  # of that row
    since: float = 0.0
    said: bool = False


def with_step(pace: Pace, took_s: float, learned: PhaseTimes | None, t: float, wall: float) -> tuple[Pace, str]:
    """``pace`` after one more step, and what is new for people ("" mostly). ``learned``: of all steps of the run."""
    latest = (*pace.latest, (took_s, t))[-LATEST:]
    pace = replace(pace, latest=latest)
    now_s, before_s = median(one for one, _ in latest), pace.before_s
    if before_s is None:
        before_s = _usual(pace, learned)
    if before_s is None or now_s < before_s * (SLOW if pace.before_s is None else FAST):
        over = f"Steps take {span(now_s)} again." if pace.said else ""
        return Pace(latest, (*pace.usual, took_s)[-USUAL:]), over
    if pace.before_s is None:
        began = next(ended - one for one, ended in latest if one >= SLOW * before_s)
        pace = replace(pace, before_s=before_s, since=began)
    pace = replace(pace, steps=pace.steps + 1)
    regular = learned is not None and learned.late_s <= REGULAR * learned.median_s
    least = 1 if regular else LEAST_STEPS
    if pace.said or pace.steps < least or t - pace.since < LEAST_S or now_s < SLOW * before_s:
        return pace, ""
    hour, minute = divmod(int(wall - (t - pace.since)) // 60 % 1440, 60)
    told = f"Steps take {span(now_s)} since {hour:02}:{minute:02} UTC, {span(before_s)} before."
    return replace(pace, said=True), told


def _usual(pace: Pace, learned: PhaseTimes | None) -> float | None:
    if len(pace.usual) >= KNOWN_AFTER:
        return median(pace.usual)
    return learned.median_s if learned is not None and learned.count >= KNOWN_AFTER else None
