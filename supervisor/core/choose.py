"""Where to resume: the highest verified step, named explicitly, or a sentence why nothing may be started.

Promises 3 and 4: never a silent fresh start, never "the latest folder". A store that cannot be listed counts as
holding a checkpoint, unless the local disk has one at least as new as anything this run ever published.
"""

from __future__ import annotations

from typing import Literal

from supervisor.base.records import dataclass
from supervisor.core.state import State
from supervisor.core.tier import only_there
from supervisor.core.words import numbers

STORE_FRESH_S = 60.0
"""A listing of the store that is younger is taken for the present one, and not asked for anew."""
UNLISTED_S = 3600.0
"""So long the listings may lack the step that ``latest.json`` names, as old ones do. Then a person has to look."""


@dataclass(frozen=True)
class Choice:
    """What to do about the resume step: start (``step`` None is a fresh start), restore first, wait, or give up.

    ``finish``: the checkpoint of the last step exists, so nothing is left to train.
    """

    do: Literal["start", "restore", "finish", "wait", "give-up"]
    step: int | None
    sentence: str


def choose(state: State) -> Choice:
    """Pick the resume step from what is known of the local disk and of the store."""
    settings = state.settings
    if state.local.reason:
        return Choice("wait", None, f"The local checkpoints are not known: {state.local.reason}.")
    if state.orders.asked_step is not None and state.orders.override:
        return _choose_pinned_step(state, state.orders.asked_step, "rollback")
    if settings.fresh and state.orders.override:
        return Choice("start", None, "A person asked for a fresh start (--fresh).")
    local, stored = max(state.good_local(), default=None), max(state.good_stored(), default=None)
    if settings.pin_step is not None and state.orders.override:
        return _choose_pinned_step(state, settings.pin_step, "--step")
    if max(state.tier.waiting, default=-1) > max(local or 0, stored or 0):
        told = "Nothing is started before the newest one is on the run's own volume: make room there,"
        return Choice("wait", None, f"{only_there(state)} {told} or start with --step N.")
    if reason := state.store.reason:
        known = state.store.published if state.store.published is not None else -1
        if local is not None and state.store.t >= 0 and local >= known:
            return Choice("start", local, f"Step {local} is complete here and nothing newer was ever published.")
        if state.store.permanent:
            told = f"The store cannot be listed, and it may hold checkpoints: {reason.rstrip('.')}. Nothing is started,"
            told += " since a fresh start could lose the run; mend the store's settings, or start with --step N or"
            return Choice("give-up", None, f"{told} --fresh.")
        return Choice("wait", None, f"The store cannot be listed yet, and it may hold checkpoints: {reason}")
    best, last = max((s for s in (local, stored) if s is not None), default=None), settings.max_steps
    if best is not None and last is not None and best >= last:
        return Choice("finish", best, f"Step {best} of {last} is there: nothing is left to train.")
    latest, ahead = state.store.latest, _find_pointed_step_that_is_not_listed(state) or 0
    told = f" latest.json names step {ahead}, which the store does not list whole." if ahead > (best or 0) else ""
    if local is not None and (stored is None or local >= stored):
        return Choice("start", local, f"Step {local} is the last good step, complete on this disk.{told}")
    if stored is not None:
        told = f" latest.json is behind: it names step {latest}." if latest is not None and latest < stored else told
        return Choice("restore", stored, f"Step {stored} is the last good step, and it is in the store only.{told}")
    return _nothing_good(state)


def _find_pointed_step_that_is_not_listed(state: State) -> int | None:
    """The step of ``latest.json``, where no listing shows it whole and nothing is known against it."""
    store = state.store
    known = {s.step for s in store.steps if s.committed or s.left} | state.list_spoiled_steps().keys()
    against = {str(step) for step in known} | store.damaged.keys() | store.quarantined.keys()
    return store.latest if store.latest is not None and str(store.latest) not in against else None


def knows_store(state: State) -> bool:
    """Is the listing as young as the last look at this disk? From an older one, steps may have gone since."""
    asked = state.local.asked
    return bool(state.store.reason) or asked is None or asked - state.store.t <= STORE_FRESH_S


def list_complete_here(state: State) -> set[int]:
    """Steps that a start may take from this disk: not one that is being deleted."""
    return {s.step for s in state.local.steps if s.state == "complete"} - {state.busy.prune_local}


def list_whole_in_store(state: State) -> set[int]:
    """Steps that a start may take from the store: none that is damaged, or that is being deleted."""
    whole = {s.step for s in state.store.steps if s.committed and str(s.step) not in state.store.damaged}
    return whole - {state.busy.prune_store}


def _choose_pinned_step(state: State, step: int, how: str) -> Choice:
    here, there = list_complete_here(state), list_whole_in_store(state)
    if step in here:
        return Choice("start", step, f"{_who_asked(state, step, how)}.")
    if state.busy.publish == step:
        return Choice("wait", None, f"Step {step} was asked for ({how}), and is being published.")
    if (problem := state.store.damaged.get(str(step))) is not None:
        return Choice("give-up", None, f"Step {step} was asked for ({how}), and the store's copy is damaged: {problem}")
    if step in there:
        return Choice("restore", step, f"{_who_asked(state, step, how)}, and it is in the store only.")
    if state.store.reason and not state.store.permanent:
        asked = f"Step {step} was asked for ({how}), is not complete here, and the store cannot be listed yet"
        return Choice("wait", None, f"{asked}: {state.store.reason}")
    known = f"complete here {numbers(here)}, stored {numbers(there)}"
    return Choice("give-up", None, f"Step {step} was asked for ({how}) and cannot be used: {known}.")


def _who_asked(state: State, step: int, how: str) -> str:
    if state.orders.asked_why:
        return f"Going back to step {step} (recovery.on_worthless = rollback)"
    return f"A person asked for step {step} ({how})"


def _nothing_good(state: State) -> Choice:
    store, ours = state.store, state.store.quarantined
    broken = [f"step {s.step} ({s.reason})" for s in state.local.steps if s.state != "complete"]
    spoiled = (*store.damaged.items(), *state.list_spoiled_steps().items())
    lost = [f"stored step {step} ({why})" for step, why in spoiled]
    set_aside = [f"step {step} (quarantined)" for step in ours]
    set_aside += [f"step {step} (the run went back behind it)" for step in state.local.left]
    set_aside += [f"stored step {s.step} ({s.left})" for s in store.steps if s.left and str(s.step) not in ours]
    # Begun by us, and nothing complete since: there is nothing to lose. (Before it a person may have left another.)
    nothing_yet = state.attempt.began_fresh and state.recovery.best_complete is None
    if (pointed := _find_pointed_step_that_is_not_listed(state)) is not None and not nothing_yet:
        if store.unlisted_since is None or store.t - store.unlisted_since <= UNLISTED_S:
            too = f"delete {state.settings.run_id}/latest.json too, or " if state.progress.highest is None else ""
            told = f"latest.json names step {pointed}, which the store does not list whole. If a person deleted it, "
            return Choice("wait", None, f"{told}{too}start with --fresh.")
        lost.append(f"step {pointed} (latest.json names it, and the store does not list it whole)")
    if (lost or set_aside or broken) and not nothing_yet:
        found = "; ".join(broken + lost + set_aside)
        told = f"There are checkpoints and none of them is good: {found}. Nothing is started and nothing deleted; look"
        return Choice("give-up", None, f"{told} at them, then start with --step N, or with --fresh to begin again.")
    if state.progress.highest is not None and not nothing_yet:
        told = f"The run was at step {state.progress.highest} and no checkpoint of it is left, here or in the store."
        if store.begun:
            told += f" Step {max(store.begun)} was sent to this store: is its volume mounted, its URL the same?"
        return Choice("give-up", None, f"{told} Start with --fresh to begin again.")
    return Choice("start", None, "There is no checkpoint, here or in the store: this is a fresh start.")
