"""A living job that the core has not heard of: a person's, which was attached, or ours after a lost journal."""

from __future__ import annotations

from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.moves import Actions, enter, say
from supervisor.core.observe import fresh_attempt
from supervisor.core.state import Ending, State
from supervisor.core.under_way import forget_job_effects
from supervisor.core.words import span


def newly_attached(state: State, fact: f.AttemptAdopted) -> bool:
    """Is it a job that the core has not heard of? Attaching, or a journal before this one, gave it its number."""
    if fact.attempt != state.attempt.number:
        return fact.attempt > state.attempt.number
    return state.busy.start is not None or not state.holds_a_job


def watch_attached_job(state: State, fact: f.AttemptAdopted) -> tuple[State, Actions]:
    """Watch it as attempt ``fact.attempt``, whatever was begun before."""
    ours = state.settings.mode == "act"  # a job of a person is only observed
    state = fresh_attempt(
        replace(
            forget_job_effects(state),
            attempt=replace(state.attempt, number=fact.attempt),
            orders=replace(state.orders, wanted=True),
            ending=Ending(),
        )
    )
    state = replace(
        enter(state, "starting", "A job of before is watched." if ours else "A job that a person started is watched."),
        progress=replace(state.progress, timed=False),  # how long its start took was not seen
        attempt=replace(state.attempt, resume_step=fact.step, started=state.now, pid=fact.pid, snapshot=fact.attempt),
        incidents=replace(
            state.incidents, open=replace(state.incidents.open, relaunched=state.now) if state.incidents.open else None
        ),
    )
    if state.observing.would and not state.observing.would[-1].outcome:
        *earlier, last = state.observing.would
        outcome = f"a job of a person was attached {span(state.wall - last.wall)} later"
        would = (*earlier, replace(last, outcome=outcome, outcome_wall=state.wall))
        state = replace(state, observing=replace(state.observing, would=would))
    if ours:
        sentence = f"Took over the living job of attempt {fact.attempt} (pid {fact.pid}), which no journal tells of."
        return state, [say("adopted", sentence, attempt=fact.attempt)]
    sentence = f"Attached to the job of a person (pid {fact.pid}) as attempt {fact.attempt}; it is not touched."
    return state, [say("attached", sentence, attempt=fact.attempt)]
