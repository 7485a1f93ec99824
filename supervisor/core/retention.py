"""Which steps may go. Promise 1: no published work is lost, and no needed local work is deleted."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core.state import State


def next_to_publish(state: State) -> int | None:
    """The newest complete local step that is newer than everything in the store; skipped ones stay local."""
    if (healthy := _healthy_to_publish(state)) is not None:
        return healthy
    newest, latest = max((s.step for s in state.local.steps if s.state == "complete"), default=None), state.store.latest
    if newest is None or (newest == latest == state.store.published and not state.store.quarantined):
        return None  # the usual case, in short
    # Not against those that were left: no run would resume from such a step.
    good, stored = max(state.good_local(), default=-1), max(state.good_stored(), default=-1)
    # Its publish may have died between manifest and pointer: once more, which sends nothing and moves the pointer.
    again = latest is not None and good == stored > latest
    return good if good > stored or again else None


def list_pinned(state: State) -> set[int]:
    """Steps that a person keeps, written down in the store or not yet."""
    return {*state.pins.steps, *(int(step) for step, pinned in state.pins.wishes.items() if pinned)}


def pinned_here(state: State) -> set[int]:
    """Steps that are complete on this disk, pinned by a person, and not (or soon not) good in the store."""
    here = {s.step for s in state.local.steps if s.state == "complete"} & list_pinned(state)
    return here - ({*state.good_stored()} - {state.busy.prune_store}) if here else here


def from_before(steps: Sequence[int], bad: int) -> list[int]:
    """Of ``steps``, ascending, what is kept while training is worth nothing since step ``bad``: the newest before it.

    The loss of a step is that of the weights which the step before it left. So where ``bad`` follows at once, the
    checkpoint may be the broken one, and the one below it is kept as well.
    """
    before = [step for step in steps if step < bad]
    return before[-2:] if before and before[-1] == bad - 1 else before[-1:]


def way_back(state: State, bad: int) -> tuple[int | None, str]:
    """The step to go back to from what is bad since step ``bad``, and a clause that says which one that is."""
    kept = from_before(sorted({*state.good_local(), *state.good_stored()}), bad)
    if not kept:
        return None, "no checkpoint from before it exists"
    if len(kept) > 1 and state.attempt.resume_step == kept[-1]:
        return kept[0], f"It was bad at once after step {kept[-1]}; step {kept[0]}, the one before that, is kept"
    return kept[-1], f"Step {kept[-1]}, the newest checkpoint from before it, is kept"


def held_steps(state: State) -> set[int]:
    """Steps from before training became worthless: needed work while that is known, or feared (promise 13)."""
    kept = set(state.pins.held)
    for hold in state.worth.holds.values():
        kept.update(from_before(state.good_stored(), hold.bad))
        kept.update(from_before(sorted({*state.good_local(), *state.good_stored()}), hold.bad))
    return kept


def _held_here(state: State, stored: set[int]) -> set[int]:
    """Of what is held, what this disk keeps: the newest, and what the store lacks. The other is safe in the store."""
    good = sorted({*state.good_local(), *state.good_stored()})
    newest = {step for hold in state.worth.holds.values() for step in from_before(good, hold.bad)[-1:]}
    return newest | (held_steps(state) - stored)


def _healthy_to_publish(state: State) -> int | None:
    """A complete step from before training became worthless that the store lacks: it goes before newer ones."""
    for hold in state.worth.holds.values():
        here, there = from_before(state.good_local(), hold.bad), from_before(state.good_stored(), hold.bad)
        if here and (not there or here[-1] > there[-1]):
            return here[-1]
    return None


def safe_locally(state: State, keep: int) -> list[int]:
    """Local steps that may be deleted, oldest first: published ones, and ones below a newer published one.

    Never the ``keep`` newest complete ones, the resume step of the living attempt, a step that is being published or
    that a person asked to go back to, what is held, what is pinned and not in the store, or anything at or above the
    newest published step that is not itself published.
    """
    if state.fence.lost:
        return []  # what the store holds is another pod's now: nothing of it makes a step here superfluous
    stored = set(state.good_stored())
    newest_stored = max(stored, default=-1)
    kept = {*state.good_local()[-keep:], state.busy.publish, *_asked_for(state), *_held_here(state, stored)}
    kept |= pinned_here(state)
    if state.live and state.progress.step is None:
        kept.add(state.attempt.resume_step)  # a job that is loading it still reads it
    last_good = max(state.good_local(), default=-1)
    return sorted(
        s.step
        for s in state.local.steps
        if s.step not in kept
        and (s.step in stored or s.step < newest_stored)
        and (s.state == "complete" or s.step < last_good)
    )


def disk_over(state: State) -> bool:
    """Is the checkpoint volume fuller than the threshold?"""
    total, free = state.disk.total or 0, state.disk.free
    return total > 0 and free is not None and 1 - free / total > state.settings.prune_above


def disk_critical(state: State) -> bool:
    """Is there less free than the job needs to go on?"""
    return state.disk.free is not None and state.disk.free < state.settings.stop_below_bytes


def next_save_bytes(state: State) -> int:
    """What the next checkpoint will take of this disk, judged by the newest ones; 0 when none is known."""
    return round(state.disk.part * step_bytes(state))


def step_bytes(state: State) -> int:
    """What all of a step takes, by the newest ones; 0 when none is known."""
    sizes = [s.size_bytes for s in state.local.steps if s.state == "complete"][-2:]
    return max(sizes, default=0) or max((s.size_bytes for s in state.store.steps if s.committed), default=0)


def room_to_go_on(state: State) -> float:
    """How much has to be free before a job that was stopped for want of room starts: all of a step is brought then."""
    return step_bytes(state) + 1.5 * state.settings.stop_below_bytes


def which_disk(state: State) -> str:
    """For a sentence."""
    return f"disk of {state.disk.host}" if state.disk.host else "disk"


def disk_short(state: State) -> bool:
    """Does the next checkpoint not fit? Told before it is written, while there is still something to be done.

    It holds wherever ``disk_critical`` does.
    """
    return state.disk.free is not None and state.disk.free < next_save_bytes(state) + state.settings.stop_below_bytes


def victims_in_store(state: State) -> list[int]:
    """Stored steps beyond retention, oldest first, then unfinished ones; at least two good ones always remain.

    Kept: the last N good ones, every M-th, what the pointer names, what this attempt resumed from, pinned steps, what
    a pod is restoring or a person asked to go back to, what is held, and the newest verified one.
    Damaged and quarantined steps are a person's to delete. While the pins are unknown nothing goes.
    """
    settings = state.settings
    if state.pins.reason:
        return []
    good = state.good_stored()
    kept = _asked_for(state) | held_steps(state) | {state.store.latest, state.attempt.resume_step}
    kept |= {
        *good[-max(2, settings.keep_last) :],
        *state.pins.steps,
        *map(int, state.pins.wishes),
        *state.store.reading,
    }
    kept |= {step for step in good if settings.keep_every and step % settings.keep_every == 0}
    kept.update([step for step in state.store.verified if step in good][-1:])
    beyond = [step for step in good if step not in kept] if len(state.store.steps) > max(2, settings.keep_last) else []
    # Last, so that one which the store does not let go keeps no other from going.
    return [*beyond, *(step for step in _unfinished_in_store(state) if step not in kept)]


def _asked_for(state: State) -> set[int | None]:
    """The step that a person wants to go on at, until that is done: stopping the job first may take minutes."""
    return {state.orders.asked_step, state.settings.pin_step if state.orders.override else None}


def _unfinished_in_store(state: State) -> list[int]:
    """Stored steps that are half-deleted, or half-sent and passed by: billed, and no pod can restore them.

    Not those above the newest good one: a publish goes on with them. One without a manifest may also be a whole step
    of the original scripts, once the pointer is no longer theirs; they came before every step of ours. So below our
    oldest step only what this run is known to have touched itself is taken.
    """
    good = state.good_stored()
    if not good or state.store.latest is None:
        return []
    oldest = min((s.step for s in state.store.steps if s.committed and not s.legacy), default=good[-1])
    spare = {state.busy.publish, next_to_publish(state)}
    return sorted(
        s.step
        for s in state.store.steps
        if not s.committed
        and not s.manifest  # with one it is damaged
        and not s.legacy
        and s.step < min(good[-1], state.store.latest)
        and (s.step > oldest or s.step in state.store.begun)
        and s.step not in spare
        and str(s.step) not in state.store.damaged
    )
