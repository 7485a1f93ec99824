"""What a person orders, one function a command. Each gives the state after it, and what is asked for and said."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core import fencing, leaving, pinned_steps
from supervisor.core.choose import list_complete_here, list_whole_in_store
from supervisor.core.evolve import replace
from supervisor.core.moves import (
    Actions,
    close_incident,
    enter,
    forgiven,
    say,
    stop,
    survey,
    to_go_back,
    with_all,
)
from supervisor.core.state import Ending, State
from supervisor.core.words import numbers


def react(before: State, state: State, fact: f.Command) -> tuple[State, Actions]:
    """Carry out a command, and say who gave it."""
    order = _ORDERS.get(fact.verb)
    if order is None:
        return state, [say("command", f"{fact.verb} is no command that the core knows.", "warning")]
    words = " ".join((fact.verb, *fact.args))
    return order(state, fact, say("command", f"{words} was asked for{_by(fact)}."))


def _by(fact: f.Command) -> str:
    return f" by {fact.who}" if fact.who else ""


def _pause(state: State, fact: f.Command, told: a.Say) -> tuple[State, Actions]:
    since = state.orders.paused_t if state.orders.paused else state.now
    return replace(state, orders=replace(state.orders, paused=True, paused_t=since)), [told]


def _resume(state: State, fact: f.Command, told: a.Say) -> tuple[State, Actions]:
    # What was seen meanwhile stays seen. Only the step gets its time anew: a person may have held it up.
    progress = replace(state.progress, t=state.now, timed=False)
    began = state.now if state.mode == "starting" else state.attempt.started
    return replace(
        state,
        progress=progress,
        orders=replace(state.orders, paused=False),
        attempt=replace(state.attempt, started=began),
    ), [told]


def _stop(state: State, fact: f.Command, told: a.Say) -> tuple[State, Actions]:
    by = _by(fact)
    state = replace(state, orders=replace(state.orders, wanted=False))
    if state.mode == "stopping" and state.attempt.after_stop == "shutdown":
        return state, [told]  # the daemon ends, and the next one leaves the run stopped
    if state.live and state.leave.asked:
        return with_all([told], stop(state, "shutdown", f"Stopped{by}."))
    if state.holds_a_job:
        return with_all([told], stop(state, "stop", f"Stopped{by}."))
    if state.mode in ("surveying", "restoring", "backing-off", "disk-full"):
        state = enter(close_incident(state), "stopped", f"Stopped{by}.")
    return state, [told]


def _start(state: State, fact: f.Command, told: a.Say) -> tuple[State, Actions]:
    state = replace(state, orders=replace(state.orders, wanted=True))
    if state.mode == "stopping" and state.attempt.after_stop == "stop":
        # The person changed their mind while it was being stopped.
        state = replace(state, attempt=replace(state.attempt, after_stop="restart"))
    if state.leave.asked:
        return state, [told]  # the next daemon starts it
    state, claim = fencing.ask_again(state, take_over="--take-over" in fact.args)
    if state.mode in ("stopped", "gave-up", "unfit", "disk-full"):
        state = replace(forgiven(state), ending=Ending())
        return survey(state, [told, *claim], "Started by a person; looking for checkpoints.")
    return state, [told, *claim]


def _restart(state: State, fact: f.Command, told: a.Say) -> tuple[State, Actions]:
    by = _by(fact)
    state = replace(
        state, orders=replace(state.orders, wanted=True, new_config="--new-config" in fact.args, config_changed=())
    )
    if _daemon_is_ending(state):
        return state, [told]  # the next daemon starts it
    state, claim = fencing.ask_again(state, take_over="--take-over" in fact.args)
    if state.holds_a_job:
        return with_all([told, *claim], stop(state, "restart", f"Restarted{by}."))
    state = replace(state, ending=Ending())
    return survey(forgiven(state), [told, *claim], "Restarted by a person; looking for checkpoints.")


def _rollback(state: State, fact: f.Command, told: a.Say) -> tuple[State, Actions]:
    """Stop, and go on at a lower step: everything above it is another lineage from then on."""
    by, step = _by(fact), int(fact.args[0])
    here, there = list_complete_here(state), list_whole_in_store(state)
    if step not in here and step not in there:
        known = f"complete here {numbers(here)}, stored {numbers(there)}"
        return state, [told, say("rollback", f"Step {step} cannot be used: {known}. Nothing was changed.", "error")]
    if _daemon_is_ending(state):
        return state, [told, say("rollback", "The daemon is about to end: nothing was changed.", "error")]
    state = replace(forgiven(state), orders=replace(state.orders, wanted=True), ending=Ending())
    state = to_go_back(state, step)
    state, claim = fencing.ask_again(state, take_over="--take-over" in fact.args)
    if state.holds_a_job:
        return with_all([told, *claim], stop(state, "restart", f"Going back to step {step}{by}."))
    return survey(state, [told, *claim], f"Going back to step {step}{by}; looking for it.")


def _shutdown(state: State, fact: f.Command, told: a.Say) -> tuple[State, Actions]:
    state, marked = leaving.leave_without_notice(state)
    return with_all([told, *marked], leaving.end_of_the_run_here(state, f"The daemon is shut down{_by(fact)}."))


def _pin(state: State, fact: f.Command, told: a.Say) -> tuple[State, Actions]:
    return with_all([told], pinned_steps.pin(state, fact))


def _daemon_is_ending(state: State) -> bool:
    going = state.mode == "leaving" or (state.mode == "stopping" and state.attempt.after_stop == "shutdown")
    return going or state.leave.asked


_ORDERS: dict[str, Callable[[State, f.Command, a.Say], tuple[State, Actions]]] = {
    "pause": _pause,
    "resume": _resume,
    "stop": _stop,
    "start": _start,
    "restart": _restart,
    "rollback": _rollback,
    "shutdown": _shutdown,
    "pin": _pin,
    "unpin": _pin,
}
