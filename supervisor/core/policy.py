"""What is done about it: from state and verdict to actions, one ladder a mode.

What follows a failure is looked up in the policy's table (``table``). A run that completes a new step gets its budget
back. Paused: nothing is started or stopped; publishing and safe pruning go on. Observing: what would be done is asked
for, comes back as suppressed, and is kept as a counterfactual.
"""

from __future__ import annotations

from supervisor.core import actions as a
from supervisor.core import fencing, leaving, machines, pinned_steps, recurring, training_health
from supervisor.core.adoption import put_back
from supervisor.core.blame import may_be_the_checkpoint
from supervisor.core.choose import choose, knows_store
from supervisor.core.deadlines import save_of_trainer
from supervisor.core.evolve import replace
from supervisor.core.goodput import sum_ledgers
from supervisor.core.interval import choose_interval, measure_run
from supervisor.core.moves import (
    DISK_PATIENCE_S,
    EXIT_OK,
    EXIT_PERSON,
    Actions,
    end,
    enter,
    finish,
    incident_stop,
    note_failure,
    one_step_back,
    open_incident,
    restart_engine,
    say,
    stop,
    survey,
    to_go_back,
    want_engine,
    with_all,
)
from supervisor.core.observe import fresh_attempt
from supervisor.core.proof import Verdict
from supervisor.core.records import Hold
from supervisor.core.reminders import remind
from supervisor.core.retention import (
    disk_critical,
    disk_short,
    next_save_bytes,
    next_to_publish,
    room_to_go_on,
    way_back,
    which_disk,
)
from supervisor.core.save_under_way import SAVE, save_under_way
from supervisor.core.state import Next, State, Suspicion, Would
from supervisor.core.table import lower_good_step, row_for, why
from supervisor.core.time_kinds import STOPPED
from supervisor.core.under_way import order_effect
from supervisor.core.upkeep import can_free, leave, publish_until, upkeep
from supervisor.core.verdicts import finished_sentence, judge
from supervisor.core.watch import Watch
from supervisor.core.words import size, span

SURVEY_AGAIN_S = 20.0
KEEP_WOULD = 50
LOOK_AT_THEM = "It restarts each time; look at what they have in common: supervisorctl explain"


def advance(state: State, watch: Watch) -> tuple[State, Actions]:
    """What the present mode asks for now, housekeeping included. ``watch`` learns when it may ask for more."""
    if state.mode == "new":
        return state, []
    acts: Actions = []
    match state.mode:
        case "starting" | "running":
            state, acts = _live(state, watch)
        case "surveying":
            state, acts = _choose(state)
        case "restoring":
            if state.busy.restore is None:
                state, acts = _choose(enter(state, "surveying", "Restored."))
        case "backing-off":
            if state.now >= state.recovery.backoff_until and not state.orders.paused:
                state, acts = survey(state, [], "Looking for the last good step.")
        case "stopping":
            if state.busy.stop is None and state.now >= state.recovery.backoff_until:
                attempt = state.attempt
                state, acts = stop(state, attempt.after_stop, attempt.stop_reason, at_once=attempt.stop_at_once)
        case "disk-full":
            state, acts = _disk_full(state)
        case "publishing":
            state, acts = _finish_publishing(state)
    state, more = upkeep(state, watch)
    state, told = remind(state, watch)
    state, last = leave(state, watch)
    return state, acts + more + told + last


def _live(state: State, watch: Watch) -> tuple[State, Actions]:
    if state.leave.asked:
        return leaving.live(state, watch)
    state = put_back(state, watch)
    verdict = _held_back(state, judge(state, watch), _full(state, watch))
    if verdict.kind == "finished":
        told = say("verdict", verdict.sentence, verdict=verdict.kind)
        return with_all([told], stop(state, "finish", verdict.sentence))
    if verdict.act:
        return _act_on_verdict(state, verdict)
    if (worthless := _worthless(state)) is not None:
        return worthless
    told_first: Actions = []
    if verdict.kind == "suspect":
        state, told_first = _suspect(state, verdict)
    elif state.suspicion.sentence:
        told_first = [say("cleared", _clearing_sentence(state.suspicion.sentence))] if state.suspicion.since else []
        state = replace(state, suspicion=Suspicion())
    return with_all(told_first, _while_there_is_room(state, watch))


def _held_back(state: State, verdict: Verdict, full: str) -> Verdict:
    """What a pause, or observing, makes of a verdict, or of a disk that is ``full``: a suspicion."""
    if full and state.orders.paused and not verdict.act:
        free = size(state.disk.free or 0)
        sentence = (
            f"Paused, so the job is not stopped although {full[0].lower()}{full[1:]}: {free} free, no local step is "
            "safe to delete, and the next checkpoint may crash the job. Make room, or let it be stopped: "
            "supervisorctl resume"
        )
        return replace(verdict, kind="suspect", cause="disk-full", sentence=sentence)
    if verdict.act and state.orders.paused:
        why = "Paused, so nothing is done about it"
    elif verdict.act and state.observing.spared == verdict.cause and verdict.kind not in ("finished", "exited"):
        why = "Observed only, so nothing is done"
    else:
        return verdict
    return replace(verdict, kind="suspect", sentence=f"{why}: {verdict.sentence}")


def _while_there_is_room(state: State, watch: Watch) -> tuple[State, Actions]:
    """Stop a job that would crash in its next save. An observer, who stops nothing, is told once a step at most."""
    full = _full(state, watch)
    if full and not state.orders.paused and not state.observing.spared:
        then = state.publishing.reason or f"It goes on once {size(room_to_go_on(state))} are free."
        sentence = (
            f"{full} ({size(state.disk.free or 0)} free) and no local step is safe to delete: the job is stopped "
            f"before it crashes. {then}"
        )
        state, acts = _told_if_observed(state, "disk-full", sentence, "stopped the job until there is room")
        # Whatever else is under suspicion is not when this began.
        state = replace(state, suspicion=replace(state.suspicion, since=None))
        return with_all(acts, incident_stop(state, "disk-full", "disk-full", sentence))
    return state, []


def _full(state: State, watch: Watch) -> str:
    """That the disk has no room for the next save and nothing can be deleted, a clause; "" otherwise."""
    if not (disk_critical(state) or _save_will_fail(state)) or can_free(state, watch):
        return ""
    if disk_critical(state):
        return f"The {which_disk(state)} is full"
    return _TOO_LARGE.format(size(next_save_bytes(state)), which_disk(state), size(state.settings.stop_below_bytes))


def _worthless(state: State) -> tuple[State, Actions] | None:
    """Training was worth nothing at this attempt's last steps, and the run file says that this is acted upon."""
    choice = state.settings.on_worthless
    may_act = choice != "say" and not state.orders.paused
    hold = training_health.find_ruin(state.worth, state.attempt.started) if may_act else None
    if hold is None:
        return None
    step, which = way_back(state, hold.bad)
    if hold.finding == "reward-flat" and not state.worth.rewarded:
        return None  # it was never seen above zero: so many a run begins, and its next pod knows no earlier reward
    if state.settings.mode == "observe":
        goes_back = choice == "rollback" and step is not None
        return _would_act(state, hold, f"gone back to step {step}" if goes_back else "stopped the job")
    before = _went_back_to(state)
    if choice == "rollback" and step is not None and not state.fence.lost and step > before:
        sentence = f"{hold.why} Going back to step {step} (recovery.on_worthless = rollback)."
        return incident_stop(to_go_back(state, step, sentence), hold.finding, "restart", sentence)
    why_not = ""
    if choice == "rollback":
        because = which if step is None else f"the run went back to step {before} for this already"
        why_not = f", since {f'pod {state.fence.by} holds the run' if state.fence.lost else because}"
    sentence = f"{hold.why} The job is stopped (recovery.on_worthless = {choice}{why_not})."
    return incident_stop(state, hold.finding, "give-up", f"{sentence} {pinned_steps.after_the_end(state, hold.bad)}")


def _went_back_to(state: State) -> int:
    """The highest step that the supervisor itself went back to, on any pod; -1: none.

    It goes back only to a higher one than that: one that was made, healthy, beyond what was bad then.
    """
    happened = (*state.lineage.known, *state.lineage.unwritten)
    return max((one.step for one in happened if one.kind == "rollback" and one.why), default=-1)


def _would_act(state: State, hold: Hold, what: str) -> tuple[State, Actions] | None:
    said = state.worth.rows[hold.finding].said_wall
    if any(one.cause == hold.finding and one.wall >= said for one in state.observing.would):
        return None  # told once
    return _told_if_observed(state, hold.finding, hold.why, what)


_TOO_LARGE = "The checkpoint that is being saved, of about {}, does not fit on the {} beside the {} that stay free"
SAVE_BEGINS_S = 5.0


def _save_will_fail(state: State) -> bool:
    """Has a save begun that cannot fit? Judged by a look at the disk from before it: later ones count its own bytes."""
    phase = save_of_trainer(state)
    if phase is None or state.now - phase.t > SAVE_BEGINS_S:
        return False
    return disk_short(state) and state.disk.t <= phase.t


def _clearing_sentence(suspicion: str) -> str:
    subject, told, _ = suspicion.partition(" is under suspicion: ")
    return f"{subject} is no longer under suspicion." if told else f"No longer under suspicion. It was: {suspicion}"


def _suspect(state: State, verdict: Verdict) -> tuple[State, Actions]:
    since = state.suspicion.since if state.suspicion.since is not None else state.now
    known = state.suspicion.sentence.split(":")[0] == verdict.sentence.split(":")[0] and state.suspicion.sentence != ""
    state = replace(state, suspicion=Suspicion(state.suspicion.sentence if known else verdict.sentence, since))
    return state, [] if known else [say("suspect", verdict.sentence, "warning", verdict=verdict.cause)]


_WOULD = {
    "give-up": "given up",
    "unfit": "left this pod",
    "wait": "stopped the job and waited longer",
    "wait-for-room": "waited for room on the disk",
    "step-back": "restarted one good step back",
    "engine-alone": "restarted the inference server alone",
    "job-alone": "restarted the job beside a warm inference server",
    "restart": "restarted the job at the last good step",
}


def _act_on_verdict(state: State, verdict: Verdict) -> tuple[State, Actions]:
    """A verdict that convicts: open the incident, look up what follows, stop what has to go."""
    before = state
    state = machines.blame(state, verdict.host)
    state = note_failure(state, verdict.cause, state.last_good if may_be_the_checkpoint(state, verdict) else None)
    again = recurring.sentence(state)
    state, told = open_incident(state, verdict.cause, f"{verdict.sentence} {again}".rstrip())
    evidence = a.CollectEvidence(
        state.attempt.number, state.incidents.open.id if state.incidents.open else 0, verdict.sentence
    )
    acts: Actions = [told, evidence]
    if recurring.worth_saying(state):
        acts.append(say("recurring", f"{again} {LOOK_AT_THEM}", "error", cause=verdict.cause))
    row = row_for(state, verdict)
    reason = why(row, state)
    state, would = _told_if_observed(state, verdict.cause, verdict.sentence, _WOULD[row.do])
    if would:
        # Nothing is done, so nothing is used up.
        state = _give_back_budget(state, before)
        state = replace(state, recovery=replace(state.recovery, crashes=before.recovery.crashes))
    acts += would
    sentence = f"{verdict.sentence} {reason}".rstrip()
    if reason and row.do not in ("give-up", "unfit", "step-back"):  # these say it themselves
        acts.append(say("policy", reason, cause=verdict.cause, does=row.do))
    after: Next = "restart"
    match row.do:
        case "engine-alone":
            return with_all(acts, restart_engine(state, verdict.sentence))
        case "give-up" if row.history in ("no progress", "nothing new"):
            after, sentence = "give-up", f"{sentence} A person has to look at the evidence, then start the run again."
            if row.history == "nothing new":
                sentence += " If this run's start needs longer, raise deadlines.startup first."
        case "give-up":
            error = state.job.errors.get(verdict.cause)
            remedy = error.remedy if error else ""
            after, sentence = "give-up", f"{sentence} {remedy}".rstrip()
        case "unfit":
            after = "unfit"
        case "wait-for-room":
            after = "disk-full"
        case "wait":
            # Not the run's failure: its budget stays, and only the patience is counted.
            state = _give_back_budget(state, before)
            state = replace(state, recovery=replace(state.recovery, waits=state.recovery.waits + 1))
        case "step-back" if not would:  # else an untried step would be quarantined, for all pods
            state, back = one_step_back(state, lower_good_step(state) or 0, reason)
            acts += back
            if row.history == "unreadable":  # proven: it uses up neither the budget nor the one try
                state = _give_back_budget(state, before)
            else:
                left = state.attempt.resume_step
                state = replace(state, recovery=replace(state.recovery, stepped_back=True, left_step=left))
    if after == "restart":
        sentence = verdict.sentence
    keep, saving = row.do == "job-alone", save_under_way(state, verdict)
    return with_all(acts, stop(state, after, sentence, keep_engine=keep, at_once=True, saving=saving))


def _give_back_budget(state: State, before: State) -> State:
    old = before.recovery
    return replace(state, recovery=replace(state.recovery, failures=old.failures, barren=old.barren))


def _told_if_observed(state: State, cause: str, sentence: str, would: str) -> tuple[State, Actions]:
    """Keep what would be done now, when the run is only observed."""
    if state.settings.mode != "observe":
        return state, []
    text = f"Would have {would}: {sentence}"
    kept = Would(state.wall, cause, text, state.progress.step)
    return replace(
        state, observing=replace(state.observing, spared=cause, would=(*state.observing.would, kept)[-KEEP_WOULD:])
    ), [say("would", text, "warning")]


def _choose(state: State) -> tuple[State, Actions]:
    if not state.orders.wanted:
        return enter(state, "stopped", "Stopped by a person."), []
    if state.orders.paused:
        return state, []
    if state.busy.restore is not None:
        # One that was asked for before a stop or a restart: nothing is begun beside it.
        return enter(state, "restoring", f"Step {state.busy.restore} is being restored."), []
    choice = fencing.held_back(state) or choose(state)
    match choice.do:
        case "wait":
            return _survey_again(enter(state, "surveying", choice.sentence))
        case "give-up":
            sentence = choice.sentence
            if state.orders.asked_step is not None and not (state.orders.left_higher or state.store.reason):
                # Nothing was left for it yet. Kept, it would stop each start from now on.
                state = replace(state, orders=replace(state.orders, override=False, asked_step=None, asked_why=""))
                sentence += " The order is dropped: a start goes on at the last good step."
            return end(state, "gave-up", EXIT_PERSON, sentence)
        case "finish" if not state.setup_pending:  # what a pod still installs may raise the last step
            return finish(state, [say("verdict", choice.sentence, verdict="finished", step=choice.step)])
        case "finish":
            return enter(state, "surveying", "Waiting for the pod's [setup] commands."), []
        case "restore" if not knows_store(state):
            return _survey_again(enter(state, "surveying", f"{choice.sentence} The store is listed anew first."))
        case "restore" if choice.step is not None:
            state = _leave_higher(state, choice.step)  # now: a restore takes long, and a spot pod may not live so long
            state = enter(state, "restoring", choice.sentence)
            told = [*_passed_over(state, choice.step), say("restoring", choice.sentence, step=choice.step)]
            return with_all(told, order_effect(state, a.Restore(choice.step)))
    if state.busy.prune_local is not None and (disk_critical(state) or state.busy.prune_local == choice.step):
        return enter(state, "surveying", "Making room on the disk before the start."), []
    if state.setup_pending:
        return enter(state, "surveying", "Waiting for the pod's [setup] commands."), []
    if state.own.asked == "start":
        return enter(state, "surveying", "Waiting until the inference server is launched."), []
    if state.own.asked == "stop" or (state.own.alive and (not state.own.wanted or choice.step is None)):
        state = replace(state, own=replace(state.own, wanted=False))
        return enter(state, "surveying", "Waiting until the inference server has ended."), []
    return _start(state, choice.step, choice.sentence)


def _passed_over(state: State, step: int) -> Actions:
    """What is higher in the store and cannot be restored."""
    return [
        say("restore-damaged", f"Step {higher} in the store is damaged and is left as it is: {problem}.", "error")
        for higher, problem in state.list_spoiled_steps().items()
        if higher > step
    ]


def _survey_again(state: State) -> tuple[State, Actions]:
    """Ask once more when the answer does not come."""
    if state.local.asked is not None and state.now - state.local.asked < SURVEY_AGAIN_S:
        return state, []
    return replace(state, local=replace(state.local, asked=state.now)), [a.Survey()]


def _start(state: State, step: int | None, sentence: str) -> tuple[State, Actions]:
    state = _leave_higher(state, step)
    state = replace(
        state, orders=replace(state.orders, override=False, asked_step=None, asked_why="", left_higher=False)
    )
    state = replace(state, worth=training_health.gone_back(state.worth, step))
    again = state.attempt.number > 0
    attempt = state.attempt.number + 1
    snapshot = None if state.orders.new_config else state.attempt.snapshot
    fresh = step is None
    state = fresh_attempt(replace(state, attempt=replace(state.attempt, number=attempt)))
    state = replace(
        enter(state, "starting", sentence),
        attempt=replace(
            state.attempt, resume_step=step, started=state.now, pid=None, began_fresh=state.attempt.began_fresh or fresh
        ),
        recovery=replace(state.recovery, restarts=state.recovery.restarts + (1 if again else 0)),
        job=replace(state.job, gone=()),
    )
    state, engine = want_engine(state, snapshot)
    told = [say("starting", sentence, step=step, attempt=attempt), *engine]
    state, interval = _choose_interval(state)
    order = a.Start(attempt, step, snapshot, fresh, machines.to_avoid(state), state.attempt.interval)
    order = replace(order, no_tier=state.tier.over)
    return with_all([*told, *interval], order_effect(state, order))


def _choose_interval(state: State) -> tuple[State, Actions]:
    bounds = state.settings.interval_between
    if bounds is None:
        return replace(state, attempt=replace(state.attempt, interval=None)), []
    others = state.books.others.values()
    run = sum_ledgers({**state.books.others, state.journal: state.books.ledger})
    measured = measure_run(run, lost_pods=sum(one.last != STOPPED for one in others))
    if not measured.save_s and (saves := state.books.learned.phases.get(SAVE)) is not None:
        measured = replace(measured, save_s=saves.median_s)  # no line tells of saves, but their files do
    steps, sentence = choose_interval(measured, bounds, state.attempt.interval)
    return replace(state, attempt=replace(state.attempt, interval=steps)), [say("checkpoint-interval", sentence)]


def _leave_higher(state: State, step: int | None) -> State:
    """A person went back on purpose: whatever is higher belongs to another lineage from now on."""
    if not state.orders.override or state.orders.left_higher:
        return state
    known = {s.step for s in state.local.steps} | {s.step for s in state.store.steps}
    higher = {known_step for known_step in known if step is None or known_step > step}
    quarantined = {**state.store.quarantined, **{str(s): state.wall_after(s) for s in higher}}
    state = fencing.went_back(state, step)
    quarantined.pop(str(step), None)  # the person wants it
    stored = tuple(replace(s, left="") if s.step == step else s for s in state.store.steps)
    state = replace(
        state,
        local=replace(state.local, left={}, restored=(-1, "")),  # what is higher is quarantined now
        store=replace(state.store, quarantined=quarantined, steps=stored),
        recovery=replace(state.recovery, best_complete=None, stepped_back=False, left_step=None),
        attempt=replace(state.attempt, began_fresh=False),
        orders=replace(state.orders, left_higher=True),
    )
    state = replace(state, store=replace(state.store, published=max(state.good_stored(), default=None)))
    if state.store.reason:
        # What the store holds is not known: none of it that is higher is this lineage's, whenever it is listed.
        state = replace(state, store=replace(state.store, rolled_back=(-1 if step is None else step, state.wall)))
    return state


def _disk_full(state: State) -> tuple[State, Actions]:
    if state.disk.free is not None and state.disk.free > room_to_go_on(state) and not state.orders.paused:
        return survey(state, [say("disk-room", f"There is room again: {size(state.disk.free)} free.")], "Room again.")
    if state.now - state.since > DISK_PATIENCE_S and state.busy.publish is None:
        sentence = f"{state.why} Nothing became free in {span(DISK_PATIENCE_S)}: a person has to make room."
        return end(state, "gave-up", EXIT_PERSON, sentence)
    return state, []


def _finish_publishing(state: State) -> tuple[State, Actions]:
    if state.local.reason:
        return _survey_again(state)
    if state.busy.publish is not None:
        return state, []
    step = next_to_publish(state)
    if step is not None and state.fence.lost:
        why_kept = fencing.sentence_of_lost_run(state)
        sentence = f"Training is finished, and its last step {step} is kept on this disk: {why_kept}"
        return end(state, "gave-up", EXIT_PERSON, sentence)
    if step is None:
        if "finish" in state.settings.hooks:
            state = enter(state, "finishing", "The last step is published; the finish hook runs.")
            return order_effect(state, a.RunHook("finish"))
        return end(state, "finished", EXIT_OK, finished_sentence(state))
    is_refused = (state.store.permanent or state.publishing.permanent) and state.now - state.since > 60
    if is_refused or state.now >= publish_until(state):
        sentence = (
            f"Training is finished, and its last step {step} is not in the store: "
            f"{state.store.reason if state.store.permanent else leaving.why_unpublished(state)} "
            "It is kept on this disk; mend the store, then start the run again."
        )
        return end(state, "gave-up", EXIT_PERSON, sentence)
    return state, []
