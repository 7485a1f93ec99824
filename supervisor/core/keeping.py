"""A person's pins, and what a check of the store found: what is asked for and said because of them."""

from __future__ import annotations

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.moves import Actions, say
from supervisor.core.state import State


def pin(state: State, fact: f.Command) -> tuple[State, Actions]:
    """Remember the wish, so that the step stays from now on, and write it down in the store."""
    if len(fact.args) != 1 or not fact.args[0].isdigit():
        return state, [say("pin", f"{fact.verb} wants one step, not {' '.join(fact.args)!r}.", "warning")]
    step, pinned = int(fact.args[0]), fact.verb == "pin"
    known = {s.step for s in state.store} | {s.step for s in state.local}
    said: Actions = []
    if pinned and step not in known:
        said = [say("pin", f"Step {step} is neither here nor in the store; it is kept when it comes.", "warning")]
    state = replace(state, pin_wishes={**state.pin_wishes, str(step): pinned})
    return state, [*said, a.Pin(step, pinned)]


def react(before: State, state: State, fact: f.PinKept | f.StoreChecked | f.StoreSteps) -> tuple[State, Actions]:
    """Say how it went, and ask anew for what could not be written down."""
    if isinstance(fact, f.PinKept):
        return state, [_pin_said(fact)]
    if isinstance(fact, f.StoreChecked):
        return state, _checked(before, state, fact)
    acts: Actions = []
    if state.pins_reason and state.pins_reason != before.pins_reason:
        acts.append(say("pin", f"Nothing is deleted from the store: {state.pins_reason}", "warning"))
    return state, [*acts, *(a.Pin(int(step), pinned) for step, pinned in state.pin_wishes.items())]


def _pin_said(fact: f.PinKept) -> a.Action:
    verb = "pinned" if fact.pinned else "unpinned"
    if not fact.reason:
        kept = "is kept in the store until it is unpinned" if fact.pinned else "may go when no other rule keeps it"
        return say("pin", f"Step {fact.step} is {verb}: it {kept}.", step=fact.step)
    then = "It is not tried again" if fact.permanent else "It is kept here meanwhile, and tried again"
    sentence = f"That step {fact.step} is {verb} could not be written down: {fact.reason.rstrip('.')}. {then}."
    return say("pin", sentence, "warning", step=fact.step)


def _checked(before: State, state: State, fact: f.StoreChecked) -> Actions:
    new = {step: why for step, why in fact.damaged.items() if before.damaged.get(step) != why}
    said: Actions = [
        say("store-damaged", f"Step {step} in the store is damaged and will not be restored: {why}", "error")
        for step, why in sorted(new.items(), key=lambda pair: int(pair[0]))
    ]
    if fact.damaged and not new:
        return []
    if not fact.damaged:
        how = "listing, manifests and a sample of their bytes agree" if fact.deep else "listing and manifests agree"
        said.append(say("store-checked", f"{len(fact.good)} steps in the store were checked: {how}."))
    return said
