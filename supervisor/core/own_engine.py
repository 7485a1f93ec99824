"""The inference server that is a role of its own: what follows from its launch, its end, and failures of both."""

from __future__ import annotations

from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.moves import (
    EXIT_PERSON,
    EXIT_UNFIT,
    Actions,
    end,
    note_failure,
    say,
    stop,
    want_engine,
    with_all,
)
from supervisor.core.observe import CRASH_PAUSE_S
from supervisor.core.state import State
from supervisor.core.words import span


def start_failed(before: State, state: State, fact: f.EngineStartFailed) -> tuple[State, Actions]:
    sentence = f"The inference server could not be launched: {fact.reason.rstrip('.')}."
    told = say("engine", sentence, "error")
    if state.orders.paused:
        return state, [told]  # nothing is stopped now; once it goes on, a job without its other half is a verdict
    if fact.permanent and (state.live or _job_is_restarting(state)):
        return with_all([told], stop(state, "give-up", sentence))
    if fact.permanent and state.mode in ("surveying", "backing-off"):
        return with_all([told], end(state, "gave-up", EXIT_PERSON, sentence))
    if not state.live:
        return state, [told]
    return with_all([told], stop(note_failure(state, "engine-start-failed"), "restart", sentence))


def effect_crashed(before: State, state: State, fact: f.EffectCrashed) -> tuple[State, Actions]:
    own, reason = state.own, f"a defect in the supervisor: {fact.reason}"
    if own.asked == "start":
        state = replace(state, own=replace(own, alive=False, pid=None, asked=""))
        return start_failed(before, state, f.EngineStartFailed(own.number, reason))
    state = replace(state, own=replace(own, asked="", stop_after=state.now + CRASH_PAUSE_S))
    if not own.alone or not state.live:
        return state, []
    state = note_failure(state, "engine-stop-failed")
    return stop(state, "restart", f"The inference server could not be stopped: {reason}")


def react_to_stop(before: State, state: State, fact: f.EngineStopped) -> tuple[State, Actions]:
    told = say("engine", f"The inference server is stopped after {span(fact.seconds)}.")
    if fact.survivors:
        left = "; ".join(fact.survivors)
        sentence = f"Something of the inference server cannot be ended: {left}. The pod has to be replaced."
        if state.live or _job_is_restarting(state):
            return with_all([told], stop(state, "unfit", sentence))
        if state.mode in ("surveying", "restoring", "backing-off", "disk-full"):
            return with_all([told], end(state, "unfit", EXIT_UNFIT, sentence))
        return state, [told, say("survivors", sentence, "error")]
    if not before.own.alone or not state.live:
        return state, [told]
    state, acts = want_engine(state, state.attempt.snapshot)
    return replace(state, attempt=replace(state.attempt, started=state.now)), [told, *acts]


def _job_is_restarting(state: State) -> bool:
    """Is the job being stopped only to be started again? What a person asked for, and an end, stay as they are."""
    return state.mode == "stopping" and state.attempt.after_stop in ("restart", "disk-full")
