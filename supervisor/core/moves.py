"""The moves that reactions and policy share: change the mode, stop, survey, end, open an incident."""

from __future__ import annotations

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core import machines, recurring
from supervisor.core.deadlines import start_of_limit
from supervisor.core.evolve import replace
from supervisor.core.records import LONGEST_WHY, Happened
from supervisor.core.save_under_way import Saving
from supervisor.core.starts import HUNG, progress_of_start
from supervisor.core.state import BEING_LISTED, Failure, Incident, Mode, Next, OwnEngine, State
from supervisor.core.under_way import order_effect
from supervisor.core.unsaved import unsaved_sentences
from supervisor.core.words import span

EXIT_OK, EXIT_TRY_AGAIN, EXIT_PERSON, EXIT_UNFIT = 0, 75, 93, 94
WARM = "The inference server ran on and is taken over warm."
NETWORK_BASE_S, NETWORK_CAP_S = 60.0, 1200.0
DISK_PATIENCE_S, ROOM_AGAIN_S = 3600.0, 60.0
WITHOUT_IT_S = 5.0

Actions = list[a.Action]


def say(event: str, sentence: str, level: str = "info", **fields: str | float | None) -> a.Say:
    """A sentence for people."""
    return a.Say(level, event, sentence, tuple(sorted(fields.items())))


def enter(state: State, mode: Mode, why: str) -> State:
    """Change the mode, with the sentence that explains it."""
    since = state.since if mode == state.mode else state.now
    wall = state.since_wall if mode == state.mode else state.wall
    return replace(state, mode=mode, since=since, since_wall=wall, why=why)


def with_all(first: Actions, result: tuple[State, Actions]) -> tuple[State, Actions]:
    return result[0], [*first, *result[1]]


def stop(
    state: State,
    after: Next,
    reason: str,
    *,
    keep_engine: bool = False,
    at_once: bool = False,
    saving: Saving | None = None,
) -> tuple[State, Actions]:
    """Order the job's end. ``at_once``: it has failed. ``saving``: the checkpoint that is waited for then."""
    state = replace(state, own=replace(state.own, wanted=keep_engine and state.own.wanted, alone=False))
    if state.is_being_stopped:
        return replace(state, attempt=replace(state.attempt, after_stop=after, stop_reason=reason)), []
    state = replace(
        enter(state, "stopping", reason),
        attempt=replace(state.attempt, after_stop=after, stop_reason=reason, stop_at_once=at_once),
    )
    brief = state.leave.exit_at is not None
    order = a.Stop(state.attempt.number, reason, stop_budget(state), brief=brief, at_once=at_once)
    if saving is not None and not brief:
        order = replace(order, saving=saving.step, writers=saving.writers, save_s=saving.patience_s)
    return order_effect(state, order)


def stop_budget(state: State) -> float:
    """Seconds that a stop may take; on a pod that is about to go a publish has to fit in after it, if that can be."""
    if state.leave.exit_at is None:
        return state.settings.stop_budget_s
    left, publish_s = state.leave.exit_at - state.now, state.publishing.took_s
    patience = left - publish_s if publish_s is not None and publish_s < left else left / 2
    return min(state.settings.stop_budget_s, max(1.0, patience))


def want_engine(state: State, snapshot: int | None) -> tuple[State, Actions]:
    """A job is about to start with ``snapshot``: its inference server, where that is a role of its own, is started with
    the same, or goes on.
    """
    own = state.own
    if state.settings.inference != "own-role":
        return state, []
    if own.alive:
        return replace(state, own=replace(own, wanted=True, alone=False)), [say("engine", WARM)]
    number = own.number + 1
    own = OwnEngine(number=number, asked="start", wanted=True, alone=own.alone)
    return replace(state, own=own), [a.StartEngine(number, state.attempt.resume_step, snapshot)]


def restart_engine(state: State, reason: str) -> tuple[State, Actions]:
    """Restart the inference server under a job that goes on; the incident is over at the next step, as ever."""
    own = state.own
    state = enter(state, "starting", "The inference server is restarted by itself; the job goes on.")
    state = replace(
        state, own=replace(own, asked="stop", alone=True, alive=True), attempt=replace(state.attempt, started=state.now)
    )
    return state, [a.StopEngine(own.number, reason, state.settings.stop_budget_s)]


def incident_stop(state: State, cause: str, after: Next, sentence: str) -> tuple[State, Actions]:
    state, told = open_incident(state, cause, sentence)
    evidence = a.CollectEvidence(state.attempt.number, state.incidents.open.id if state.incidents.open else 0, sentence)
    return with_all([told, evidence], stop(state, after, sentence))


def open_incident(state: State, cause: str, sentence: str) -> tuple[State, a.Say]:
    one = state.incidents.open
    if one is None:
        since = state.suspicion.since if state.suspicion.since is not None else state.now
        if state.job.gone:
            since = min(since, state.job.gone[0].t)
        number = state.incidents.count + 1
        wall, attempt, step = state.wall - (state.now - since), state.attempt.number, state.progress.step
        one = Incident(number, cause, sentence, since, wall, attempt, step, decided=state.now)
        state = replace(state, incidents=replace(state.incidents, open=one, count=number))
    return state, say("verdict", sentence, "error", verdict=cause, incident=one.id, attempt=state.attempt.number)


def to_go_back(state: State, step: int | None, why: str = "") -> State:
    """The next start is at ``step``; what is above it is another lineage then. ``why``: where no person said so.

    None: the start is as the run file's options (--step, --fresh) say.
    """
    return replace(
        state, orders=replace(state.orders, override=True, asked_step=step, asked_why=why, left_higher=False)
    )


def note_failure(state: State, signature: str, suspect: int | None = None) -> State:
    """Count the end of an attempt. ``suspect``: the good step that can have caused it."""
    failure = Failure(signature, state.progress.step, state.attempt.resume_step, suspect)
    if signature in HUNG:
        failure = replace(failure, shown=progress_of_start(state), lasted_s=state.now - start_of_limit(state))
    state = recurring.note(state, signature)
    old = state.recovery
    return replace(state, recovery=replace(old, failures=(*old.failures, failure)[-10:], barren=old.barren + 1))


def one_step_back(state: State, lower: int, why: str) -> tuple[State, Actions]:
    """Quarantine the resume step, since the checkpoint may be poisoned, and go to the one before.

    Whatever is complete above that one from now on is progress.
    """
    step, since = state.attempt.resume_step, state.wall_after(state.attempt.resume_step)
    state = replace(
        state,
        recovery=replace(state.recovery, best_complete=lower),
        store=replace(state.store, quarantined={**state.store.quarantined, str(step): since}),
    )
    if step is not None:
        event = Happened("quarantine", step, since, why.rstrip(".")[:LONGEST_WHY])
        state = replace(state, lineage=replace(state.lineage, unwritten=(*state.lineage.unwritten, event)))
    state = replace(state, store=replace(state.store, published=max(state.good_stored(), default=None)))
    sentence = f"{why.rstrip('.')}: that step is quarantined, and the run goes one good step back, to step {lower}."
    return state, [say("one-step-back", sentence, "warning", step=step)]


def backoff(state: State) -> tuple[State, float]:
    """Full jitter: uniform between 0 and the doubled base, none before the first restart after progress."""
    if state.recovery.waits:
        limit = min(NETWORK_CAP_S, NETWORK_BASE_S * 2 ** (state.recovery.waits - 1))
    elif state.recovery.barren <= 1:
        return state, 0.0
    else:
        limit = min(state.settings.backoff_cap, state.settings.backoff * 2 ** (state.recovery.barren - 2))
    # A multiplicative hash of seed and draw number: repeatable from the state alone (Knuth's constant).
    draw = ((state.settings.seed * 7919 + state.recovery.draws + 1) * 2654435761) % 2**32 / 2**32
    return replace(state, recovery=replace(state.recovery, draws=state.recovery.draws + 1)), limit * draw


def after_failure(state: State, sentence: str) -> tuple[State, Actions]:
    if state.recovery.barren > state.settings.max_restarts:
        count = f"{state.recovery.barren} failures without a new complete step in between"
        return end(state, "gave-up", EXIT_PERSON, f"{sentence} That makes {count}: a person has to look.")
    state, wait = backoff(state)
    return try_again(state, wait, f"{sentence} Next try in {span(wait)}.", outside=state.recovery.waits > 0)


def try_again(
    state: State, wait_s: float, text: str, *, outside: bool, event: str = "backing-off"
) -> tuple[State, Actions]:
    """Start anew after ``wait_s``. ``outside``: sooner, where what lay outside of the run is well again."""
    recovery = replace(state.recovery, backoff_until=state.now + wait_s, backoff_outside=outside, full_since=None)
    return enter(replace(state, recovery=recovery), "backing-off", text), [say(event, text, "warning")]


def list_anew(state: State, acts: Actions) -> tuple[State, Actions]:
    """List the disk and the store: what is known may be minutes old, and only this answer counts."""
    return replace(state, local=replace(state.local, reason=BEING_LISTED, asked=state.now)), [*acts, a.Survey()]


def survey(state: State, acts: Actions, why: str) -> tuple[State, Actions]:
    return list_anew(enter(state, "surveying", why), acts)


def finish(state: State, acts: Actions) -> tuple[State, Actions]:
    why = "Training is finished; the last step is being published."
    return list_anew(close_incident(enter(state, "publishing", why)), acts)


def close_incident(state: State, step: int | None = None) -> State:
    """The open one, if any, is over: with a step, or None because the run is stopped or has finished."""
    if state.incidents.open is None:
        return state
    done = replace(state.incidents.open, closed=state.now, closed_wall=state.wall, closed_step=step)
    return replace(state, incidents=replace(state.incidents, open=None, closed=(*state.incidents.closed, done)[-20:]))


def forgiven(state: State) -> State:
    """A person acted: the budget of restarts begins anew, and what could not be restored is tried again."""
    return replace(
        state,
        recovery=replace(
            state.recovery, barren=0, failures=(), crashes=(), stepped_back=False, waits=0, full_since=None
        ),
        store=replace(state.store, damaged={}),
    )


def end(state: State, mode: Mode, code: int, sentence: str) -> tuple[State, Actions]:
    level = "error" if code != EXIT_OK else "warning" if unsaved_sentences(state) else "info"
    state = replace(enter(state, mode, sentence), ending=replace(state.ending, code=code))
    return replace(state, recovery=replace(state.recovery, full_since=None)), [say(mode, sentence, level)]


def start_failed(state: State, fact: f.StartFailed) -> tuple[State, Actions]:
    if state.mode != "starting":
        return state, []
    if fact.unfit and (not fact.host or machines.cannot_start(state, fact.host)):
        return end(state, "unfit", EXIT_UNFIT, f"This pod is unfit: {fact.reason}")
    state = machines.note_failed_start(state, fact.host, for_good=fact.unfit)
    if fact.unfit:
        sentence = f"The next start leaves {fact.host} out, where another machine is there in its place: {fact.reason}"
        return try_again(state, WITHOUT_IT_S, sentence, outside=False)
    if fact.permanent:
        return end(state, "gave-up", EXIT_PERSON, f"The job cannot be started: {fact.reason}")
    sentence = f"The job could not be launched: {fact.reason.rstrip('.')}."
    if fact.no_room:
        return wait_for_room(state, sentence)
    return after_failure(note_failure(state, "start-failed"), sentence)


def wait_for_room(state: State, sentence: str) -> tuple[State, Actions]:
    """Not the run's failure: its budget stays, and only the patience is counted, from the first of such waits."""
    told: Actions = []
    if state.incidents.open is None:
        state, first = open_incident(state, "disk-full", sentence)
        told.append(first)
    since = state.now if state.recovery.full_since is None else state.recovery.full_since
    if state.now - since > DISK_PATIENCE_S:
        sentence = f"{sentence} Nothing became free in {span(DISK_PATIENCE_S)}: a person has to make room."
        return end(state, "gave-up", EXIT_PERSON, sentence)
    state, acts = try_again(state, ROOM_AGAIN_S, f"{sentence} It is tried again each minute.", outside=True)
    return replace(state, recovery=replace(state.recovery, full_since=since)), [*told, *acts]
