"""How many steps apart checkpoints should be, as advice for a person: the sentence of `report`."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.interval import NEAR, Measured, best_steps, count, loss, percent, say_measured
from supervisor.core.words import span


@dataclass(frozen=True)
class Advice:
    """``steps`` and ``interval_s`` (training between two saves) are None when not enough was measured."""

    sentence: str
    warning: str = ""
    steps: int | None = None
    interval_s: float | None = None
    loss: float | None = None  # part of all time that saves and repeated steps cost at this interval
    present_loss: float | None = None


def advise(m: Measured) -> Advice:
    """The checkpoint interval that would cost least, and whether the link bounds the loss whatever the interval."""
    if not m.step_s or not m.save_s:
        missing = "step was timed" if not m.step_s else "checkpoint save was timed: this job's log does not tell them"
        return Advice(f"No advice on the checkpoint interval yet: no {missing}.", _upload_warning(m, None))
    steps = best_steps(m.step_s, m.save_s, m)
    interval = steps * m.step_s
    least = loss(interval, m.save_s, m.between_failures_s)
    why = say_measured(m.step_s, m.save_s, m)
    best = f"{count(steps, 'step')} ({span(interval)})"
    present = None
    if m.interval_steps:
        now = m.interval_steps * m.step_s
        present = loss(now, m.save_s, m.between_failures_s)
        kept = f"Checkpoints come every {count(m.interval_steps, 'step')} ({span(now)})"
        if m.interval_steps == steps or present - least < NEAR:
            sentence = f"{kept}, which is as good as the best interval, {best}: {why}."
        else:
            sentence = (
                f"{kept}; every {best} would cost less, {percent(least)} of all time for saves and repeated steps "
                f"instead of {percent(present)}: {why}."
            )
    else:
        sentence = f"A checkpoint every {best} costs least, {percent(least)} of all time: {why}."
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
