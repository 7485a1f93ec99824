"""What of a run no checkpoint holds, and what only this disk has: told at its end, in sentences."""

from __future__ import annotations

from supervisor.core.state import State
from supervisor.core.words import numbers


def unsaved_sentences(state: State) -> str:
    """Sentences on the steps that the store lacks; "" where the last step done is there, and all that is here."""
    stored = state.good_stored()
    here = _never_published(state)
    told = _nowhere(state)
    if told:
        none = "The store holds no checkpoint of this run."
        told.append(f"The newest in the store is step {stored[-1]}." if stored else none)
    if here:
        told.append(f"Complete on this disk and not in the store: step {numbers(here)}.")
    return " ".join(told)


def _never_published(state: State) -> list[int]:
    """Complete steps of this disk that retention would not have deleted from the store, and that are not there."""
    there = sorted(one.step for one in state.store.steps if one.committed)
    keep = max(2, state.settings.keep_last)
    least = there[-keep] if len(there) >= keep else 0
    return [step for step in state.good_local() if step >= least and step not in there]


def _nowhere(state: State) -> list[str]:
    step, newest = state.progress.step, state.last_good
    if step is None or (newest is not None and newest >= _checkpoint_of(state, step)):
        return []
    if state.settings.first_step_at == 0 and newest is not None:
        lost = f"what was trained after the checkpoint of step {newest} exists nowhere"
    else:
        first = (newest or 0) + 1 if state.settings.first_step_at else newest or 0
        lost = f"step {step} exists nowhere" if first >= step else f"steps {first} to {step} exist nowhere"
    told = [f"No checkpoint holds step {step}, the last one done: {lost}."]
    torn = [one for one in state.local.steps if one.state != "complete" and one.step > (newest or 0)]
    told += [f"Step {one.step} on this disk is not complete: {one.reason.rstrip('.')}." for one in torn]
    return told


def _checkpoint_of(state: State, step: int) -> int:
    """The lowest checkpoint that holds ``step``. Where steps count from 0, step_N holds N of them, up to N - 1.

    Without a known end step_N is taken to hold step N as well: a false alarm would be worse.
    """
    if state.settings.first_step_at == 1 or state.settings.max_steps is None:
        return step
    return min(step + 1, state.settings.max_steps)
