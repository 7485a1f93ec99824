"""What a daemon answers to an order at once: that it will be done, or why not. Pure: the core's state in, words out."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core import fencing, pinned_steps
from supervisor.core.choose import list_complete_here, list_whole_in_store
from supervisor.core.retention import list_pinned
from supervisor.core.state import State
from supervisor.core.words import numbers

_ANSWERS = {
    "start": "The run will be started from its last good step.",
    "stop": "The job is being stopped. The run stays stopped until you run: supervisorctl start",
    "restart": "The job is being stopped and started from its last good step.",
    "pause": "Paused: nothing is started or stopped from now on; publishing goes on.",
    "resume": "Resumed: the supervisor acts again.",
    "shutdown": "The job is being stopped, then the daemon ends; it resumes at the next start.",
}
_OBSERVED_ANSWERS = {
    "resume": "Resumed. This run is in observe mode, so nothing is started or stopped.",
    "shutdown": "The daemon ends; the job is left as it is.",
}
_ONCE_RESUMED = "once the supervisor, which is paused, acts again: supervisorctl resume"


def answer(state: State, verb: str, args: Sequence[str], observed: str) -> tuple[bool, str]:
    """Is the order taken, and the sentence for the person. ``observed``: why the run is only looked at, or ""."""
    if observed and verb in ("start", "stop", "restart", "rollback"):
        return False, f"Nothing is started or stopped: {observed}"
    if state.fence.lost and verb in ("restart", "rollback", "pin", "unpin"):
        return False, f"Nothing is changed. {fencing.sentence_of_lost_run(state)}"
    if verb == "rollback":
        return _reply_to_rollback(state, int(args[0]))
    if verb in ("pin", "unpin"):
        return _reply_to_pin(state, int(args[0]), pinned=verb == "pin")
    if verb == "shutdown" and state.fence.lost and not observed:
        return True, (
            f"The job is being stopped, then the daemon ends; the next one waits while pod {state.fence.by} holds the "
            "run."
        )
    if verb == "start" and "--take-over" in args:
        return True, "The run is taken from the pod that holds it, and started from its last good step."
    if observed and verb in _OBSERVED_ANSWERS:
        return True, _OBSERVED_ANSWERS[verb]
    return True, _as_it_is(state, verb) or _ANSWERS[verb]


def _as_it_is(state: State, verb: str) -> str:
    """Where the usual answer would promise what does not happen: it runs already, it is stopped, nothing may start."""
    if verb == "start" and state.live:
        return "The job is already running."
    if verb == "stop" and not state.holds_a_job:
        return "No job runs, and none is started until: supervisorctl start"
    if verb == "restart" and not state.holds_a_job and not state.orders.paused:
        return _ANSWERS["start"]
    if verb == "start" and state.orders.paused:
        return f"The run will be started from its last good step, {_ONCE_RESUMED}"
    if verb == "restart" and state.orders.paused:
        return f"The job is being stopped. It is started from its last good step {_ONCE_RESUMED}"
    if verb == "pause" and state.mode == "stopping":
        return "Paused: the stop that is under way goes on, and nothing is started after it; publishing goes on."
    if verb == "pause" and state.orders.paused:
        return "Paused already: nothing is started or stopped; publishing goes on."
    return ""


def _reply_to_rollback(state: State, step: int) -> tuple[bool, str]:
    here, there = list_complete_here(state), list_whole_in_store(state)
    if step not in here | there:
        if step in (state.busy.prune_local, state.busy.prune_store):
            known = numbers(here | there)
            return False, f"Step {step} is being deleted at this moment, so nothing is changed. Others: {known}."
        if state.store.reason:
            return False, f"Step {step} is not here, and the store cannot be listed ({state.store.reason})."
        return False, (
            f"Step {step} is neither here nor in the store, so nothing is changed. Complete here: {numbers(here)}; in "
            f"the store: {numbers(there)}."
        )
    so_far = "job is being stopped and" if state.holds_a_job else "run"
    return True, (
        f"The {so_far} goes on at step {step}. What is above it is left, also for "
        "the next pod; no file of it is deleted." + (f" It is started {_ONCE_RESUMED}" if state.orders.paused else "")
    )


def _reply_to_pin(state: State, step: int, *, pinned: bool) -> tuple[bool, str]:
    if not pinned:
        kept = list_pinned(state)
        if step not in kept and str(step) not in state.pins.wishes and not state.pins.reason and state.store.t >= 0:
            return False, f"Step {step} is not pinned; pinned: {numbers(kept)}."
        return True, f"Step {step} is kept no longer than the rules of retention say."
    if kept_there := pinned_steps.where_kept(state, step):
        return True, f"Step {step} {kept_there}."
    if step in (state.busy.prune_store, state.busy.prune_local):
        return False, f"Step {step} is being deleted at this moment: it cannot be pinned any more."
    if step in {local.step for local in state.local.steps if local.state == "writing"}:
        return True, f"Step {step} is not complete yet; once it is, it is published and kept until it is unpinned."
    highest = max((state.progress.highest or 0, *(one.step for one in state.local.steps), *list_whole_in_store(state)))
    if step > highest and (state.settings.max_steps is None or step <= state.settings.max_steps):
        return True, f"There is no step {step} yet; it is kept in the store when it comes."
    if state.store.t < 0 or state.store.reason:
        return True, f"The store is not listed yet; if step {step} is there, it is kept."
    return False, f"Step {step} is not whole here or in the store; in the store: {numbers(list_whole_in_store(state))}."
