"""How many steps apart checkpoints should be, from what this run measured. Pure arithmetic, and a sentence.

A checkpoint costs its save; none costs the steps since the last one whenever something fails. Both together are least
at sqrt(2 M S) seconds of training between saves of S seconds, with M seconds between failures (J. W. Young, "A first
order approximation to the optimum checkpoint interval", Comm. ACM 17(9), 1974; J. T. Daly, Future Generation Computer
Systems 22, 2006, for higher orders). Used here is the form that maximises availability,
T = S + sqrt(2 (M + R) S + S**2) from one save's beginning to the next one's, with R seconds to recover (N. R. Saxena et
al., NVIDIA, arXiv 2410.18124, 2024). A run that hangs or is dead computes nothing until that is noticed, so detection
latency is part of R here; it is not that paper's case of a latency larger than the interval, to which the interval has
to be raised, since no checkpoint is written while a run stands still.

Failures are few, so their rate is taken as if ``PRIOR_FAILURES`` had been seen in ``PRIOR_S`` before this run began: an
assumption, near the middle of published pod-scale rates (tens in 1000 hours, spot losses included).
"""

from __future__ import annotations

from math import sqrt

from supervisor.base.records import dataclass
from supervisor.core.goodput import Ledger
from supervisor.core.settings import FIRST_INTERVAL
from supervisor.core.time_kinds import SAVE, STOPPED
from supervisor.core.words import span

PRIOR_FAILURES = 1
PRIOR_S = 24 * 3600.0
NEAR = 0.003  # of all time: an interval that costs so little more than the best is as good


@dataclass(frozen=True)
class Measured:
    """What the advice hangs on. Times in seconds, means over the run; None what was not seen."""

    step_s: float | None
    save_s: float | None
    upload_s: float | None = None
    failures: int = 0
    watched_s: float = 0.0
    detect_s: float = 0.0  # from the first sign of a failure to the verdict
    recover_s: float = 0.0  # from the verdict to the first new step
    interval_steps: int | None = None  # the present one

    @property
    def between_failures_s(self) -> float:
        """Mean time between failures, the prior included."""
        return (self.watched_s + PRIOR_S) / (self.failures + PRIOR_FAILURES)


def measure_run(run: Ledger, lost_pods: int = 0, interval_steps: int | None = None) -> Measured:
    """What a run's ledger (``goodput.sum_ledgers``) says; ``lost_pods`` are failures that no journal saw the end of."""
    back = [outage for outage in run.outages if outage.recovered]
    count = len(back)
    seen = round(run.timed / run.saves) if run.saves and run.timed >= run.saves else None
    return Measured(
        step_s=run.timed_s / run.timed if run.timed else None,
        save_s=run.seconds.get(SAVE, 0.0) / run.saves if run.saves else None,
        upload_s=run.upload_s / run.uploads if run.uploads else None,
        failures=run.incidents + lost_pods,
        watched_s=max(0.0, run.total_s - run.seconds.get(STOPPED, 0.0)),
        detect_s=sum(one.detect_s for one in back) / count if count else 0.0,
        recover_s=sum(one.seconds - one.detect_s for one in back) / count if count else 0.0,
        interval_steps=interval_steps or seen,
    )


def best_interval_s(save_s: float, between_failures_s: float, recovery_s: float) -> float:
    """Seconds of training between two saves (the module's docstring has the formula; the save is not counted in it)."""
    return sqrt(2 * (between_failures_s + recovery_s) * save_s + save_s**2)


def loss(interval_s: float, save_s: float, between_failures_s: float) -> float:
    """Part of all time that saves, and steps done again after failures, cost at ``interval_s`` of training per save."""
    return save_s / (interval_s + save_s) + (interval_s / 2 + save_s) / between_failures_s


def best_steps(step_s: float, save_s: float, m: Measured) -> int:
    """The interval that costs least, in whole steps."""
    return max(1, round(best_interval_s(save_s, m.between_failures_s, m.detect_s + m.recover_s) / step_s))


def choose_interval(m: Measured, bounds: tuple[int, int], before: int | None) -> tuple[int, str]:
    """Steps between two checkpoints for an attempt (`checkpoint_interval = "auto"`), and the sentence that says why.

    ``before``: those of the attempt before; they stay where others would hardly be better.
    """
    least, most = bounds
    if not m.step_s or not m.save_s:
        steps = before or min(max(FIRST_INTERVAL, least), most)
        return steps, f"Checkpoints come every {count(steps, 'step')}, a first guess: no save was timed yet."
    best = min(max(best_steps(m.step_s, m.save_s, m), least), most)
    costs = {steps: loss(steps * m.step_s, m.save_s, m.between_failures_s) for steps in (best, before) if steps}
    keeps = before is not None and least <= before <= most and costs[before] - costs[best] < NEAR
    steps = before if before is not None and keeps else best
    why = say_measured(m.step_s, m.save_s, m)
    return steps, (
        f"Checkpoints come every {count(steps, 'step')} ({span(steps * m.step_s)}): {why}. "
        f"Saves and repeated steps cost about {percent(costs[steps])} of all time so."
    )


def say_measured(step_s: float, save_s: float, m: Measured) -> str:
    """What the interval hangs on, as a clause."""
    return (
        f"a save takes {span(save_s)}, a step {span(step_s)}, and something fails about every "
        f"{span(m.between_failures_s)} ({count(m.failures, 'failure')} in {span(m.watched_s)}, with "
        f"{count(PRIOR_FAILURES, 'failure')} in {span(PRIOR_S)} assumed before)"
    )


def percent(share: float) -> str:
    """``1.2 %``."""
    return f"{100 * share:.1f} %"


def count(number: int, thing: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
