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

from dataclasses import dataclass
from math import sqrt

from supervisor.core.goodput import Ledger
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


@dataclass(frozen=True)
class Advice:
    """``steps`` and ``interval_s`` (training between two saves) are None when not enough was measured."""

    sentence: str
    warning: str = ""
    steps: int | None = None
    interval_s: float | None = None
    loss: float | None = None  # part of all time that saves and repeated steps cost at this interval
    present_loss: float | None = None


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


def advise(m: Measured) -> Advice:
    """The checkpoint interval that would cost least, and whether the link bounds the loss whatever the interval."""
    if not m.step_s or not m.save_s:
        missing = "step was timed" if not m.step_s else "checkpoint save was timed: this job's log does not tell them"
        return Advice(f"No advice on the checkpoint interval yet: no {missing}.", _upload_warning(m, None))
    between = m.between_failures_s
    steps = max(1, round(best_interval_s(m.save_s, between, m.detect_s + m.recover_s) / m.step_s))
    interval = steps * m.step_s
    least = loss(interval, m.save_s, between)
    why = (
        f"a save takes {span(m.save_s)}, a step {span(m.step_s)}, and something fails about every {span(between)} "
        f"({_count(m.failures, 'failure')} in {span(m.watched_s)}, with {_count(PRIOR_FAILURES, 'failure')} in "
        f"{span(PRIOR_S)} assumed before)"
    )
    best = f"{_count(steps, 'step')} ({span(interval)})"
    present = None
    if m.interval_steps:
        now = m.interval_steps * m.step_s
        present = loss(now, m.save_s, between)
        kept = f"Checkpoints come every {_count(m.interval_steps, 'step')} ({span(now)})"
        if m.interval_steps == steps or present - least < NEAR:
            sentence = f"{kept}, which is as good as the best interval, {best}: {why}."
        else:
            sentence = (
                f"{kept}; every {best} would cost less, {_percent(least)} of all time for saves and repeated steps "
                f"instead of {_percent(present)}: {why}."
            )
    else:
        sentence = f"A checkpoint every {best} costs least, {_percent(least)} of all time: {why}."
    return Advice(sentence, _upload_warning(m, interval), steps, interval, least, present)


def _upload_warning(m: Measured, best_s: float | None) -> str:
    now = m.interval_steps * m.step_s if m.interval_steps and m.step_s else best_s
    if m.upload_s is None or now is None or m.upload_s <= now:
        return ""
    # An upload begins with the newest step, and the next one when it ends: the store is one to two uploads behind.
    behind = 1.5 * m.upload_s + now / 2
    return (
        f"An upload takes {span(m.upload_s)}, longer than the {span(now)} between two checkpoints: the link, not the "
        f"interval, decides what a lost pod costs, about {span(behind)} of training. A pod with a faster uplink, or "
        "less in a checkpoint, is what would help."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
