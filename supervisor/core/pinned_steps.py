"""What keeps steps, and what a check of the store found: what is asked for and said because of it.

A person pins steps. The supervisor holds those from before training became worthless, from the first bad step on, until
the run went back behind it, or until what retention keeps anyway was all made after training was well again.
"""

from __future__ import annotations

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core import fencing
from supervisor.core.choose import list_complete_here, list_whole_in_store
from supervisor.core.evolve import replace
from supervisor.core.moves import Actions, say, with_all
from supervisor.core.retention import from_before, held_steps, next_to_publish, way_back
from supervisor.core.state import State
from supervisor.core.training_health import standing_findings, to_record, without
from supervisor.core.under_way import order_effect
from supervisor.core.watch import Watch
from supervisor.core.words import numbers


def pin(state: State, fact: f.Command) -> tuple[State, Actions]:
    """Remember the wish, so that the step stays from now on, and write it down in the store."""
    if len(fact.args) != 1 or not fact.args[0].isdigit():
        return state, [say("pin", f"{fact.verb} wants one step, not {' '.join(fact.args)!r}.", "warning")]
    step, pinned = int(fact.args[0]), fact.verb == "pin"
    if pinned and step in (state.busy.prune_store, state.busy.prune_local) and not where_kept(state, step):
        return state, [say("pin", f"Step {step} is being deleted: it cannot be pinned any more.", "warning")]
    state = replace(state, pins=replace(state.pins, wishes={**state.pins.wishes, str(step): pinned}))
    return state, [a.Pin(step, pinned)]


def where_kept(state: State, step: int) -> str:
    """Where a pinned step is kept and how long, a clause; "" while it is whole nowhere."""
    if step in list_whole_in_store(state):
        return "is kept in the store until it is unpinned"
    if step not in list_complete_here(state):
        return ""
    if step == next_to_publish(state) or step == state.busy.publish:
        return "stays on this disk until it is published, and then in the store until it is unpinned"
    return "is kept by this disk alone, and goes with it: the store has no good copy"


# ---------------------------------------------------------------- training that is worth nothing


def findings(state: State) -> dict[str, str]:
    """By name, what stands against the training, each with the way back where there is one: for status and notes."""
    return {name: with_advice(state, name, sentence) for name, sentence in standing_findings(state.worth).items()}


def with_advice(state: State, name: str, sentence: str) -> str:
    """What was found, which step from before it is kept, and the command that goes back there."""
    hold = state.worth.holds.get(name)
    if hold is None:
        return sentence
    step, which = way_back(state, hold.bad)
    if step is None:
        return f"{sentence} {which[0].upper()}{which[1:]}. {after_the_end(state, hold.bad)}"
    if state.settings.mode == "observe":
        return f"{sentence} {which}. To go back, start your job again at step {step}."
    return f"{sentence} {which}. Go back to it with: supervisorctl rollback {step}"


def after_the_end(state: State, bad: int) -> str:
    """The command that goes back once no daemon runs any more."""
    step = way_back(state, bad)[0]
    if step is None:
        return "Begin again with: rl-supervisor run RUN.toml --fresh"
    return f"Start it again at step {step} with: rl-supervisor run RUN.toml --step {step}"


def until_when(state: State, name: str) -> str:
    """A finding was taken back: what is still held, and for how long."""
    kept = sorted(held_steps(state)) if name in state.worth.holds else []
    return f" Kept until {_enough(state)} newer checkpoints are in the store: step {numbers(kept)}." if kept else ""


_OVER = "Training has been well for long enough: what was held from before goes by the usual rules again ({})."


def _enough(state: State) -> int:
    return max(2, state.settings.keep_last)


def keep_holds(state: State, watch: Watch) -> tuple[State, Actions]:
    """Let go what is well again for long enough, and see that the store has it as it is."""
    if not (state.worth.holds or state.pins.holds or state.pins.held):
        return state, []
    good = state.good_stored()
    lifted = [(name, hold.lifted) for name, hold in state.worth.holds.items() if hold.lifted is not None]
    over = [name for name, since in lifted if sum(step >= since for step in good) >= _enough(state)]
    if over:
        state = replace(state, worth=without(state.worth, over))
    holds = to_record(state.worth)
    steps = tuple(sorted({step for hold in holds for step in from_before(good, hold.bad)}))
    told: Actions = [say("worth", _OVER.format(f"step {numbers(state.pins.held)}"))] if over and state.pins.held else []
    known, unread = (steps, holds) == (state.pins.held, state.pins.holds), state.store.reason or state.pins.reason
    may = state.pins.holds_read and not state.busy.holds and fencing.may_write(state)
    if known or unread or not may or not watch.over(state.pins.holds_after, 0.0):
        return state, told
    return with_all(told, order_effect(state, a.KeepHolds(steps, holds)))


def report_holds(before: State, state: State, fact: f.HoldsKept) -> Actions:
    """That the steps which are held could not be written down."""
    if not fact.reason or fact.reason == before.pins.holds_reason:
        return []
    what = f"That step {numbers(fact.steps)} is held" if fact.steps else "That no step is held any more"
    sentence = f"{what} could not be written down in the store: {fact.reason.rstrip('.')}. It is tried again."
    return [say("hold", sentence, "warning")]


def react_to_listing(before: State, state: State) -> tuple[State, Actions]:
    """Say what a pod before this one found, and ask anew for what could not be written down."""
    acts: Actions = [
        say("worth", sentence, "warning", finding=name)
        for name, sentence in findings(state).items()
        if name in state.worth.holds and name not in before.worth.holds
    ]
    if state.pins.reason and state.pins.reason != before.pins.reason:
        acts.append(say("pin", f"Nothing is deleted from the store: {state.pins.reason}", "warning"))
    return state, [*acts, *(a.Pin(int(step), pinned) for step, pinned in state.pins.wishes.items())]


def report_pin(before: State, state: State, fact: f.PinKept) -> Actions:
    """How a wish of a person went."""
    verb = "pinned" if fact.pinned else "unpinned"
    if not fact.reason:
        kept = where_kept(state, fact.step) or "is neither here nor in the store yet, and is kept when it comes"
        kept = kept if fact.pinned else "may go when no other rule keeps it"
        return [say("pin", f"Step {fact.step} is {verb}: it {kept}.", step=fact.step)]
    then = "It is not tried again" if fact.permanent else "It is kept here meanwhile, and tried again"
    sentence = f"That step {fact.step} is {verb} could not be written down: {fact.reason.rstrip('.')}. {then}."
    return [say("pin", sentence, "warning", step=fact.step)]


def report_check(before: State, state: State, fact: f.StoreChecked) -> Actions:
    """What a check of the store found."""
    new = {step: why for step, why in fact.damaged.items() if before.store.damaged.get(step) != why}
    said: Actions = [
        say("store-damaged", f"Step {step} in the store is damaged and will not be restored: {why}", "error")
        for step, why in sorted(new.items(), key=lambda pair: int(pair[0]))
    ]
    if not fact.damaged:
        how = "listing, manifests and a sample of their bytes agree" if fact.deep else "listing and manifests agree"
        said.append(say("store-checked", f"{len(fact.good)} steps in the store were checked: {how}."))
    return said
