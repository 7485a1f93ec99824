"""The ages that a daemon leaves to the next one: of the last step, of the start, of what each role is doing.

They are facts, and a daemon that dies every few minutes beside a stuck job must not make them young. But what happened
while none watched stands in logs that the new one has not read yet, and of engine and rollouts it knows nothing. So at
first each deadline begins anew (``observe.rebase``), and once everything has had the time to be seen, the ages of what
has not moved since are put back.
"""

from __future__ import annotations

from supervisor.core.deadlines import FRESH_S, excuse_limit, with_span
from supervisor.core.evolve import replace
from supervisor.core.observe_job import last_update
from supervisor.core.state import EngineMemory, Left, Phase, State, Work
from supervisor.core.watch import Watch


def left_by(before: State, state: State) -> State:
    """A daemon takes over the living job of ``before``, and the deadlines of ``state`` have begun anew."""
    known = before.left if before.left is not None else Left(-1.0, None, 0.0, 0.0)
    started = known.started if before.attempt.started == known.since else before.attempt.started
    if "download" in before.job.growth and before.mode == "starting":
        started += state.now - before.now  # it may have gone on while no daemon looked, and stops the start's clock
    untouched = (before.progress.t, before.progress.step) == (known.since, known.step)
    left = Left(
        since=state.now,
        step=before.progress.step,
        progress_t=known.progress_t if untouched else before.progress.t,
        started=started,
        phases={
            role: _with_known_age(phase, known.phases.get(role), known.since)
            for role, phase in before.job.phases.items()
        },
        update=(update := last_update(before.job)) and _with_known_age(update, known.update, known.since),
        count=before.engine.count,
        worked_t=_engine_with_known_age(before, known).worked_t,
        work=_work(before.job.work, known),
    )
    return replace(state, left=left)


def put_back(state: State, watch: Watch) -> State:
    """With the true ages of what has not moved since this daemon came, once it has looked for long enough."""
    left = state.left
    if left is None or not watch.over(left.since, FRESH_S):
        return state
    progress = state.progress
    if (progress.t, progress.step) == (left.since, left.step):
        progress = replace(progress, t=left.progress_t)
    return replace(
        state,
        left=None,
        progress=progress,
        engine=_engine_with_known_age(state, left),
        attempt=replace(
            state.attempt, started=left.started if state.attempt.started == left.since else state.attempt.started
        ),
        job=replace(
            state.job,
            phases={
                role: _with_known_age(phase, left.phases.get(role), left.since)
                for role, phase in state.job.phases.items()
            },
            update=state.job.update and _with_known_age(state.job.update, left.update, left.since),
            work=_work(state.job.work, left),
            explained=_explained_times(state, left),
        ),
    )


def _explained_times(state: State, left: Left) -> tuple[tuple[float, float], ...]:
    """What stood when the daemon came had explained the silence until then, also where it is over by now."""
    spans = state.job.explained
    for name, phase in left.phases.items():
        limit = excuse_limit(state, name.partition("/")[0], phase.phase)
        if limit > 0 and not phase.over and phase.phase != "download":
            spans = with_span(spans, phase.t, min(left.since, phase.t + limit))
    return spans


def _engine_with_known_age(state: State, left: Left) -> EngineMemory:
    """With the time when it last worked. Its counter goes on while no daemon looks: the same number is a proof."""
    engine = state.engine
    if (engine.worked_t, engine.count) != (left.since, left.count):
        return engine
    moved_t = left.worked_t if engine.moved_t == left.since else engine.moved_t
    return replace(engine, worked_t=left.worked_t, moved_t=moved_t)


def _work(work: Work | None, left: Left) -> Work | None:
    before = left.work
    if work is None or before is None or work.moved_t != left.since:
        return work
    same = (work.inflight, work.done) == (before.inflight, before.done)
    return replace(work, moved_t=before.moved_t) if same else work


def _with_known_age(phase: Phase, before: Phase | None, since: float) -> Phase:
    same = before is not None and phase.t == since and (phase.phase, phase.step) == (before.phase, before.step)
    return replace(phase, t=before.t) if before is not None and same else phase
