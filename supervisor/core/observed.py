"""What follows where we only look on: an action that was held back, and a job that a person started and attached."""

from __future__ import annotations

from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.moves import EXIT_OK, Actions, end, enter, finish, say, survey
from supervisor.core.observe import fresh_attempt, rebase
from supervisor.core.state import State
from supervisor.core.verdicts import finished_sentence

ALONE = "No job runs, and none is started: the run is only observed. Attach one with: rl-supervisor attach RUN.toml"


def newly_attached(state: State, fact: f.AttemptAdopted) -> bool:
    """Is it a job that the core has not heard of? Only attaching gives an attempt a number that no ``Start`` gave."""
    if fact.attempt != state.attempt:
        return fact.attempt > state.attempt
    return state.busy.start is not None or not (state.live or state.mode == "stopping")


def attached(state: State, fact: f.AttemptAdopted) -> tuple[State, Actions]:
    """A job that we did not start is watched from now on, as attempt ``fact.attempt``."""
    state = fresh_attempt(replace(state, attempt=fact.attempt, wanted=True, exit_code=None, exit_said=False))
    state = replace(
        enter(state, "starting", "A job that a person started is watched."),
        resume_step=fact.step,
        started=state.now,
        pid=fact.pid,
        snapshot=fact.attempt,
        busy=replace(state.busy, start=None, stop=None, restore=None),
        incident=replace(state.incident, relaunched=state.now) if state.incident else None,
    )
    sentence = (
        f"Attached to the job that a person started (pid {fact.pid}) as attempt {fact.attempt}; it is not touched."
    )
    return state, [say("attached", sentence, attempt=fact.attempt)]


def suppressed(state: State, fact: f.Suppressed) -> tuple[State, Actions]:
    """Beliefs stay true: what was held back did not happen."""
    busy = state.busy
    match fact.action:
        case "Stop" if busy.stop == fact.number:
            return _not_stopped(replace(state, busy=replace(busy, stop=None)))
        case "Start" if busy.start == fact.number and state.mode == "starting":
            before = fact.number - 1 if fact.number else 0
            state = replace(state, busy=replace(busy, start=None), attempt=before, restarts=max(0, state.restarts - 1))
            return enter(state, "stopped", ALONE), [say("suppressed", f"Not started: {fact.why} {ALONE}", "warning")]
        case "Restore" if busy.restore == fact.number:
            state = enter(replace(state, busy=replace(busy, restore=None)), "stopped", ALONE)
            told = f"Step {fact.number} was not restored: {fact.why} {ALONE}"
            return state, [say("suppressed", told, "warning")]
        case "RunHook" if state.mode == "finishing":
            return end(replace(state, busy=replace(busy, hook=None)), "finished", EXIT_OK, finished_sentence(state))
        case "Setup":
            return replace(state, setup_pending=False), []
    return state, []  # a pruning stays "under way" until the next daemon: it is not asked for again


def _not_stopped(state: State) -> tuple[State, Actions]:
    if state.mode != "stopping":
        return state, []
    told = say("suppressed", f"Only observed, so the job was not stopped: {state.stop_reason}", "warning")
    if state.after_stop == "shutdown":
        return replace(enter(state, "leaving", state.stop_reason), exit_code=EXIT_OK), [told]
    if state.ended is None:
        mode = state.progress.step is not None
        state = enter(state, "running" if mode else "starting", "The job was not stopped: it is only observed.")
        return replace(rebase(state), gone=()), [told]
    state = replace(state, processes={}, pid=None, gone=())
    if state.after_stop == "finish":
        return finish(state, [])
    return survey(state, [told], "The job has ended by itself.")
