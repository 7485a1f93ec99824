"""How long things take in this run, and how long that lets them take: the estimator of all learned deadlines.

Each phase of each role, the step as a whole, and ``resume`` (launch to first new step) keep their last fifty times,
their longest, and their count. From these come two limits:

- **soft** (suspicion): the time that a lognormal with the phase's median and spread exceeds once in a thousand
  (phi = 3 in the terms of the phi-accrual detector, Hayashibara et al., SRDS 2004), and at least three medians and one
  and a half times the longest of the window. The spread is the median absolute deviation of the logarithms, so one
  freak step does not widen it, and it is widened while few times are known.
- **hard** (act on it alone): five times the longest ever seen, the factor of NVRx (nvidia-resiliency-ext, PR 271, which
  took fixed time-outs out because they were wrong).

Both have a floor, and until ``WARM`` times are known the hard one is at least the configured ceiling. The limits of
this: a distribution that changes for good (longer rollouts late in a run) is learned within the window, and the first
step beyond five times everything before it would be taken for a hang.
"""

from __future__ import annotations

from math import exp, log, sqrt
from statistics import median
from typing import Any, NamedTuple

from supervisor.core.evolve import replace
from supervisor.core.records import Learned, PhaseTimes

KEEP = 50
WARM = 5
SHORTEST_S = 0.05
EACH_AT_FIRST, THEN_EVERY = 16, 8  # how often the estimate is made anew
Z_PHI_3 = 3.09  # standard normal quantile of 1 - 10**-3
LEAST_SPREAD = 0.15  # of the logarithm: no phase is more regular than that for ever
SOFT_MEDIANS, SOFT_LONGEST, HARD_LONGEST = 3.0, 1.5, 5.0
STEP, RESUME = "step", "resume"
ENGINE_UP = "engine/up"  # from the launch until its server answers
ENGINE_IDLE = "engine/idle"  # for how long it was idle before it worked again
ENGINE_UPDATE = "engine/update"  # for how long it stood still in an update of its weights


class Limits(NamedTuple):
    """Seconds after which a phase is suspicious (``soft_s``), and after which its length alone convicts."""

    soft_s: float
    hard_s: float


def learn(learned: Learned, name: str, seconds: float) -> Learned:
    """``learned`` with one more time of phase ``name``."""
    seconds = round(seconds, 3)
    if not SHORTEST_S <= seconds < 1e9:  # lines that were read in one go say nothing of how long it took
        return learned
    old = learned.phases.get(name, PhaseTimes())
    window = (*old.seconds, seconds)[-KEEP:]
    count = old.count + 1
    new: dict[str, Any] = {"seconds": window, "longest_s": max(old.longest_s, seconds), "count": count}
    # Fifty logarithms a phase are no work for each time of it; what is unusual counts at once.
    if count <= EACH_AT_FIRST or count % THEN_EVERY == 0 or seconds > old.late_s:
        new.update(median_s=median(window), late_s=_late(window))
    times = replace(old, **new)
    return replace(learned, phases={**learned.phases, name: times})


def _late(window: tuple[float, ...]) -> float:
    logs = [log(seconds) for seconds in window]
    middle = median(logs)
    spread = max(LEAST_SPREAD, 1.4826 * median(abs(one - middle) for one in logs))
    widened = spread * (1 + 2 / sqrt(len(window)))
    return max(exp(middle + Z_PHI_3 * widened), SOFT_MEDIANS * exp(middle), SOFT_LONGEST * max(window))


def limits(times: PhaseTimes | None, floor_s: float, ceiling_s: float) -> Limits:
    """The limits of a phase: the ceiling while nothing is known, never below the floor."""
    unknown = max(floor_s, ceiling_s)
    if times is None or not times.count:
        return Limits(unknown, unknown)
    soft = max(floor_s, times.late_s)
    hard = max(soft, HARD_LONGEST * times.longest_s)
    return Limits(soft, max(hard, unknown) if times.count < WARM else hard)


def merge_learned(mine: Learned, stored: Learned) -> Learned:
    """What this journal and the store know: a phase that this journal has timed as often is kept as it is."""
    phases = dict(stored.phases)
    for name, times in mine.phases.items():
        if name not in phases or phases[name].count <= times.count:
            phases[name] = times
    return Learned(phases)
