"""What is done about it: from state and verdict to actions, one ladder a mode.

The recovery policy in short (promise 7):

==========================================  =====================================================
cause, history                              what follows
==========================================  =====================================================
configuration error or missing key at start stop for good, exit 93, say what a person has to do
same cause at the same step, second time    quarantine the resume step, go one good step back, once
no new complete step in ``max_restarts``    stop for good, exit 93, everything kept
anything else                               stop, restart at the last good step, full-jitter back-off
GPU memory that nothing frees               exit 94, this pod is unfit
==========================================  =====================================================

A run that completes a new step gets its budget back. Paused: nothing is started or stopped; publishing and safe
pruning go on.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.choose import choose
from supervisor.core.deadlines import size, span
from supervisor.core.observe import fresh_attempt, rebase
from supervisor.core.retention import (
    disk_critical,
    disk_over,
    next_to_publish,
    safe_locally,
    victims_in_store,
)
from supervisor.core.state import ENDED, Failure, Incident, Mode, Next, State
from supervisor.core.verdicts import Verdict, judge, progress_sentence

EXIT_OK, EXIT_TRY_AGAIN, EXIT_PERSON, EXIT_UNFIT = 0, 75, 93, 94
SURVEY_AGAIN_S = 20.0
DISK_PATIENCE_S = 3600.0
LEAVE_S = 60.0  # what SIGTERM leaves for the publish in flight, after the job is stopped
LAST_PUBLISH_S = 3600.0  # how long giving up waits for the last good step to reach the store

Actions = list[a.Action]


def say(event: str, sentence: str, level: str = "info", **fields: str | float | None) -> a.Say:
    """A sentence for people."""
    return a.Say(level, event, sentence, tuple(sorted(fields.items())))


def enter(state: State, mode: Mode, why: str) -> State:
    """Change the mode, with the sentence that explains it."""
    since = state.since if mode == state.mode else state.now
    wall = state.since_wall if mode == state.mode else state.wall
    return replace(state, mode=mode, since=since, since_wall=wall, why=why)


# ---------------------------------------------------------------- reactions to single facts


def react(before: State, state: State, fact: f.Fact) -> tuple[State, Actions]:
    """What a fact itself asks for, before the mode's ladder is climbed."""
    match fact:
        case f.DaemonStarted():
            return _daemon_started(before, state, fact)
        case f.Command():
            return _command(state, fact)
        case f.AttemptStarted() if fact.attempt == state.attempt:
            return _attempt_started(state, fact)
        case f.AttemptAdopted() if fact.attempt == state.attempt:
            sentence = f"Took over the living job of attempt {fact.attempt} (pid {fact.pid}); it was not touched."
            return replace(state, pid=fact.pid), [say("adopted", sentence, attempt=fact.attempt)]
        case f.StartFailed() if fact.attempt == state.attempt:
            return _start_failed(state, fact)
        case f.AttemptStopped() if fact.attempt == state.attempt and state.mode == "stopping":
            return _attempt_stopped(state, fact)
        case f.StepDone():
            return _step_done(before, state)
        case f.Published():
            rate = fact.sent_bytes / fact.seconds if fact.seconds > 0 else 0
            sentence = (
                f"Published step {fact.step}: {size(fact.size_bytes)} in {span(fact.seconds)}"
                f"{f' ({size(rate)}/s)' if fact.sent_bytes else ', nothing had to be sent'}."
            )
            return state, [say("published", sentence, step=fact.step, bytes=fact.size_bytes)]
        case f.PublishFailed():
            wait = "" if fact.step_changed else f" Next try in {span(state.publish_after - state.now)}."
            level = "info" if fact.step_changed else ("error" if fact.permanent else "warning")
            sentence = f"Publishing step {fact.step} failed: {fact.reason}{wait}"
            return state, [say("publish-failed", sentence, level, step=fact.step)]
        case f.Pruned():
            place = "from the local disk" if fact.where == "local" else "from the store"
            freed = f", {size(fact.freed_bytes)} free again" if fact.freed_bytes else ""
            if fact.step < 0:
                sentence = f"Deleted rollouts and broadcasts of steps that are gone{freed}."
            else:
                sentence = f"Deleted step {fact.step} {place}{freed}."
            return state, [say("pruned", sentence, step=fact.step, bytes=fact.freed_bytes)]
        case f.PruneFailed():
            what = f"step {fact.step}" if fact.step >= 0 else "old rollouts"
            return state, [say("prune-failed", f"Could not delete {what} ({fact.where}): {fact.reason}", "warning")]
        case f.Restored():
            sentence = (
                f"Restored step {fact.step} from the store: {size(fact.size_bytes)} in {span(fact.seconds)}, "
                "every byte verified."
            )
            return state, [say("restored", sentence, step=fact.step, bytes=fact.size_bytes)]
        case f.RestoreFailed():
            return _restore_failed(state, fact)
        case f.SetupDone():
            return _setup_done(state, fact)
        case f.ConfigChanged() if fact.path not in before.config_changed:
            sentence = (
                f"{fact.path} was changed on disk; the run goes on with the snapshot it was started with. "
                "Take the change with: supervisorctl restart --new-config"
            )
            return state, [say("config-changed", sentence, "warning")]
        case f.ClockJumped():
            sentence = f"The host slept or its clock jumped by {span(abs(fact.seconds))}: all deadlines start anew."
            return state, [say("clock-jumped", sentence, "warning")]
        case f.StoreSteps() if fact.reason and fact.reason != before.store_reason:
            return state, [say("store-unknown", f"The store cannot be listed: {fact.reason}", "warning")]
        case f.HookDone() if state.mode == "finishing":
            return _hook_done(state, fact)
    return state, []


def _daemon_started(before: State, state: State, fact: f.DaemonStarted) -> tuple[State, Actions]:
    settings = fact.settings
    told = say("daemon", f"rl-supervisor {fact.version} watches run {settings.run_id}.")
    raised = (settings.max_steps or 0) > (before.settings.max_steps or 0)
    asked = fact.adopted is None and (settings.fresh or settings.pin_step is not None)
    if before.mode in ("publishing", "finishing") and not asked:
        return _finish(state, [told])
    if before.mode == "finished" and not raised and not asked:
        sentence = "This run is finished. Raise max_steps to go on, or start with --fresh."
        return _with(told, _end(replace(state, exit_said=False), "finished", EXIT_OK, sentence))
    state = replace(state, exit_code=None, exit_said=False, override=asked, wanted=state.wanted or asked)
    if not state.wanted:
        sentence = "Stopped by a person, and stays so until: supervisorctl start"
        return enter(state, "stopped", sentence), [told, say("stopped", sentence), a.Survey()]
    if fact.adopted == state.attempt and state.live:
        return rebase(state), [told, a.Survey()]
    if fact.adopted is not None and fact.adopted == state.attempt:
        # It was being stopped, or its start was never confirmed: finish what was begun.
        return _stop(
            state, state.after_stop, state.stop_reason or "The daemon before was ended while it stopped the job."
        )
    if state.live and state.ended is not None:
        return state, [told]  # the ladder of the mode sees the end
    state = _forgiven(state) if before.mode in ENDED else state
    state = enter(state, "surveying", "Looking for checkpoints, here and in the store.")
    return replace(state, survey_asked=state.now), [told, a.Survey()]


def _forgiven(state: State) -> State:
    """A person acted: the budget of restarts begins anew."""
    return replace(state, barren=0, failures=(), stepped_back=False)


def _command(state: State, fact: f.Command) -> tuple[State, Actions]:
    by = f" by {fact.who}" if fact.who else ""
    told = say("command", f"{fact.verb}{' ' + ' '.join(fact.args) if fact.args else ''} was asked for{by}.")
    match fact.verb:
        case "pause":
            return replace(state, paused=True), [told]
        case "resume":
            return rebase(replace(state, paused=False)), [told]
        case "stop":
            state = replace(state, wanted=False)
            if state.live or state.mode == "stopping":
                return _with(told, _stop(state, "stop", f"Stopped{by}."))
            if state.mode in ("surveying", "restoring", "backing-off", "disk-full"):
                state = enter(replace(state, incident=_close(state)), "stopped", f"Stopped{by}.")
            return state, [told]
        case "start":
            state = replace(state, wanted=True)
            if state.mode in ("stopped", "gave-up", "unfit", "disk-full"):
                state = replace(_forgiven(state), exit_code=None, exit_said=False)
                return _survey(state, [told], "Started by a person; looking for checkpoints.")
            return state, [told]
        case "restart":
            state = replace(state, wanted=True, new_config="--new-config" in fact.args, config_changed=())
            if state.live:
                return _with(told, _stop(state, "restart", f"Restarted{by}."))
            return _survey(_forgiven(state), [told], "Restarted by a person; looking for checkpoints.")
        case "shutdown":
            if state.live or state.mode == "stopping":
                return _with(told, _stop(state, "shutdown", f"The daemon is shut down{by}."))
            state = replace(enter(state, "leaving", f"The daemon is shut down{by}."), exit_code=EXIT_OK)
            return state, [told]
    return state, [say("command", f"{fact.verb} is no command that the core knows.", "warning")]


def _with(first: a.Action, result: tuple[State, Actions]) -> tuple[State, Actions]:
    return result[0], [first, *result[1]]


def _attempt_started(state: State, fact: f.AttemptStarted) -> tuple[State, Actions]:
    state = replace(state, busy=replace(state.busy, start=None))
    if state.mode != "starting":
        return state, []  # it is being stopped already
    if state.incident is not None:
        state = replace(state, incident=replace(state.incident, relaunched=state.now, resume_step=fact.step))
    where = f"resuming at step {fact.step}" if fact.step is not None else "from the start"
    sentence = f"Attempt {fact.attempt} is launched, {where}: {fact.command}"
    return enter(state, "starting", f"Started {where}."), [say("launched", sentence, step=fact.step)]


def _start_failed(state: State, fact: f.StartFailed) -> tuple[State, Actions]:
    state = replace(state, busy=replace(state.busy, start=None))
    if state.mode != "starting":
        return state, []
    if fact.unfit:
        return _end(state, "unfit", EXIT_UNFIT, f"This pod is unfit: {fact.reason}")
    if fact.permanent:
        return _end(state, "gave-up", EXIT_PERSON, f"The job cannot be started: {fact.reason}")
    state = _note_failure(state, "start-failed")
    return _after_failure(state, f"The job could not be launched: {fact.reason}")


def _attempt_stopped(state: State, fact: f.AttemptStopped) -> tuple[State, Actions]:
    state = replace(state, busy=replace(state.busy, stop=None), processes={}, pid=None, gone=())
    if state.incident is not None:
        state = replace(state, incident=replace(state.incident, stopped=state.now))
    told: Actions = [say("stopped-job", f"The job is stopped after {span(fact.seconds)}; nothing of it is left.")]
    if fact.survivors:
        left = "; ".join(fact.survivors)
        sentence = f"Something of the job cannot be ended: {left}. The pod has to be replaced."
        return _with(say("survivors", sentence, "error"), _end(state, "unfit", EXIT_UNFIT, sentence))
    if fact.gpu_free is False and state.after_stop == "restart":
        sentence = (
            "The job is gone and its GPU memory is not: no living process of the run holds it, so the driver does. "
            "The pod has to be replaced."
        )
        return _end(state, "unfit", EXIT_UNFIT, sentence)
    match state.after_stop:
        case "stop":
            state = replace(state, incident=_close(state))
            return enter(state, "stopped", state.stop_reason), [*told, a.Survey()]
        case "shutdown":
            return replace(enter(state, "leaving", state.stop_reason), exit_code=EXIT_OK), told
        case "give-up":
            state, acts = _end(state, "gave-up", EXIT_PERSON, state.stop_reason)
            return state, told + acts
        case "unfit":
            state, acts = _end(state, "unfit", EXIT_UNFIT, state.stop_reason)
            return state, told + acts
        case "finish":
            return _finish(state, told)
        case "disk-full":
            return enter(state, "disk-full", state.stop_reason), [*told, a.Survey()]
        case "restart":
            state, wait = _backoff(state) if state.incident else (state, 0.0)
            if wait < 0.1:
                return _survey(state, told, "Looking for the last good step.")
            text = f"{state.barren} failures without a new complete step in between: waiting {span(wait)} first."
            state = replace(enter(state, "backing-off", text), backoff_until=state.now + wait)
            return state, [*told, say("backing-off", text, "warning")]


def _restore_failed(state: State, fact: f.RestoreFailed) -> tuple[State, Actions]:
    if fact.damaged:
        sentence = (
            f"Step {fact.step} in the store is damaged and is left as it is: {fact.reason} Trying the one before."
        )
        state = enter(state, "surveying", sentence)
        return state, [say("restore-damaged", sentence, "error", step=fact.step)]
    if fact.permanent:
        return _end(state, "gave-up", EXIT_PERSON, f"Step {fact.step} cannot be restored: {fact.reason}")
    state = replace(state, backoff_until=state.now + 30)
    sentence = f"Restoring step {fact.step} failed, next try in 30 s: {fact.reason}"
    return enter(state, "backing-off", sentence), [say("restore-failed", sentence, "warning", step=fact.step)]


def _setup_done(state: State, fact: f.SetupDone) -> tuple[State, Actions]:
    if not fact.reason:
        return state, [say("setup", "The pod's [setup] commands are done.")]
    return _end(state, "gave-up", EXIT_PERSON, f"The pod's [setup] failed: {fact.reason}")


def _step_done(before: State, state: State) -> tuple[State, Actions]:
    step = state.progress.step
    if step is None or step == before.progress.step or not state.live:
        return state, []
    progress = state.progress
    acts: Actions = [
        say("step", progress_sentence(state), step=step, seconds=progress.duration_s, reward=progress.reward)
    ]
    if state.mode == "starting":
        if state.resume_step is not None and state.scratch and step < state.resume_step:
            return state, acts  # it began from scratch: the verdicts deal with it
        state = enter(state, "running", "The run makes steps.")
        state = replace(state, snapshot=state.attempt)
        closed = _close(state)
        if state.incident is not None:
            lasted = span(state.now - state.incident.opened)
            sentence = (
                f"Incident {state.incident.id} is over after {lasted}: step {step} is done. It was: "
                f"{state.incident.sentence}"
            )
            acts.append(say("incident-closed", sentence, incident=state.incident.id, step=step))
            done = replace(state.incident, closed=state.now, closed_wall=state.wall, closed_step=step)
            state = replace(state, incidents=(*state.incidents, done)[-20:])
        state = replace(state, incident=closed)
    return state, acts


def _close(state: State) -> Incident | None:
    """Incidents end with a new step or by a person's stop; either way none is open afterwards."""
    return None


def _hook_done(state: State, fact: f.HookDone) -> tuple[State, Actions]:
    state = replace(state, busy=replace(state.busy, hook=None))
    acts: Actions = []
    if fact.reason:
        acts.append(say("hook-failed", f"The {fact.hook} hook failed: {fact.reason}", "error"))
    return _with_all(acts, _end(state, "finished", EXIT_OK, f"The run is finished: {progress_sentence(state)}."))


def _with_all(first: Actions, result: tuple[State, Actions]) -> tuple[State, Actions]:
    return result[0], [*first, *result[1]]


# ---------------------------------------------------------------- the ladder of each mode


def advance(state: State) -> tuple[State, Actions]:
    """What the present mode asks for now, housekeeping included."""
    if state.mode == "new":
        return state, []
    acts: Actions = []
    match state.mode:
        case "starting" | "running":
            state, acts = _live(state)
        case "surveying":
            state, acts = _choose(state)
        case "restoring":
            if state.busy.restore is None:
                state, acts = _choose(enter(state, "surveying", "Restored."))
        case "backing-off":
            if state.now >= state.backoff_until and not state.paused:
                state, acts = _survey(state, [], "Looking for the last good step.")
        case "disk-full":
            state, acts = _disk_full(state)
        case "publishing":
            state, acts = _publishing(state)
    state, more = _housekeeping(state)
    state, last = _leave(state)
    return state, acts + more + last


def _leave(state: State) -> tuple[State, Actions]:
    """End the daemon once nothing is left to publish, or the time for it is over."""
    if state.exit_code is None or state.exit_said:
        return state, []
    waiting = state.busy.publish is not None or (
        next_to_publish(state) is not None and state.publish_failures == 0 and not state.store_reason
    )
    limit = LEAVE_S if state.mode == "leaving" else LAST_PUBLISH_S
    if waiting and state.settings.has_store and state.now - state.since < limit:
        return state, []
    return replace(state, exit_said=True), [a.Exit(state.exit_code, state.why)]


def _live(state: State) -> tuple[State, Actions]:
    verdict = judge(state)
    if verdict.act and state.paused:
        return _suspect(state, replace(verdict, sentence=f"Paused, so nothing is done about it: {verdict.sentence}"))
    if verdict.kind == "finished":
        told = say("verdict", verdict.sentence, verdict=verdict.kind)
        return _with(told, _stop(state, "finish", verdict.sentence))
    if verdict.act:
        return _failed(state, verdict)
    if verdict.kind == "suspect":
        return _suspect(state, verdict)
    if state.suspicion:
        cleared = say("cleared", f"No longer under suspicion: {state.suspicion}") if state.suspect_since else None
        state = replace(state, suspicion="", suspect_since=None)
        return state, [cleared] if cleared else []
    if disk_critical(state) and not _can_free(state) and not state.paused:
        free = size(state.disk_free or 0)
        sentence = (
            f"The disk is full ({free} free) and no local step is safe to delete: the job is stopped before it "
            f"crashes. {state.publish_reason or 'It goes on once there is room.'}"
        )
        return _incident_stop(state, "disk-full", "disk-full", sentence)
    return state, []


def _can_free(state: State) -> bool:
    return bool(safe_locally(state, keep=1)) or state.busy.prune_local is not None


def _suspect(state: State, verdict: Verdict) -> tuple[State, Actions]:
    since = state.suspect_since if state.suspect_since is not None else state.now
    known = state.suspicion.split(":")[0] == verdict.sentence.split(":")[0] and state.suspicion != ""
    state = replace(state, suspicion=state.suspicion if known else verdict.sentence, suspect_since=since)
    return state, [] if known else [say("suspect", verdict.sentence, "warning", verdict=verdict.cause)]


def _failed(state: State, verdict: Verdict) -> tuple[State, Actions]:
    """A verdict that convicts: open the incident, decide what follows, stop what is left."""
    state, told = _open_incident(state, verdict.cause, verdict.sentence)
    evidence = a.CollectEvidence(state.attempt, state.incident.id if state.incident else 0, verdict.sentence)
    state = _note_failure(state, verdict.cause)
    acts: Actions = [told, evidence]
    if verdict.deterministic:
        sentence = f"{verdict.sentence} A restart cannot cure this: mend it, then run supervisorctl start."
        return _with_all(acts, _stop(state, "give-up", sentence))
    state, back = _one_step_back(state)
    acts += back
    if state.barren > state.settings.max_restarts:
        sentence = (
            f"{verdict.sentence} No new complete step in {state.barren - 1} restarts: giving up, everything is kept. "
            "A person has to look at the evidence and run supervisorctl start."
        )
        return _with_all(acts, _stop(state, "give-up", sentence))
    return _with_all(acts, _stop(state, "restart", verdict.sentence))


def _open_incident(state: State, cause: str, sentence: str) -> tuple[State, a.Say]:
    if state.incident is None:
        since = state.suspect_since if state.suspect_since is not None else state.now
        if state.gone:
            since = min(since, state.gone[0].t)
        number = state.incident_count + 1
        incident = Incident(
            number,
            cause,
            sentence,
            since,
            state.wall - (state.now - since),
            state.attempt,
            state.progress.step,
            decided=state.now,
        )
        state = replace(state, incident=incident, incident_count=number)
    number = state.incident.id if state.incident else 0
    told = say("verdict", sentence, "error", verdict=cause, incident=number, attempt=state.attempt)
    return state, told


def _note_failure(state: State, signature: str) -> State:
    failure = Failure(signature, state.progress.step, state.resume_step)
    return replace(state, failures=(*state.failures, failure)[-10:], barren=state.barren + 1)


def _one_step_back(state: State) -> tuple[State, Actions]:
    """The same cause at the same step twice: the checkpoint may be poisoned, so take the one before, once."""
    if state.stepped_back or len(state.failures) < 2:
        return state, []
    last, before = state.failures[-1], state.failures[-2]
    if (last.signature, last.step) != (before.signature, before.step):
        return state, []
    step = state.resume_step
    if step is None or step not in {*state.good_local(), *state.good_stored()}:
        return state, []
    lower = [s for s in {*state.good_local(), *state.good_stored()} if s < step]
    if not lower:
        return state, []
    state = replace(state, stepped_back=True, quarantined={**state.quarantined, str(step): state.wall})
    sentence = (
        f"The same failure twice after resuming at step {step}: that step is quarantined, and the run goes one good "
        f"step back, to step {max(lower)}."
    )
    return state, [say("one-step-back", sentence, "warning", step=step)]


def _stop(state: State, after: Next, reason: str) -> tuple[State, Actions]:
    if state.mode == "stopping" and state.busy.stop is not None:
        return replace(state, after_stop=after, stop_reason=reason), []
    state = replace(
        enter(state, "stopping", reason),
        after_stop=after,
        stop_reason=reason,
        busy=replace(state.busy, stop=state.attempt, start=None),
    )
    return state, [a.Stop(state.attempt, reason, state.settings.stop_budget_s)]


def _incident_stop(state: State, cause: str, after: Next, sentence: str) -> tuple[State, Actions]:
    state, told = _open_incident(state, cause, sentence)
    return _with(told, _stop(state, after, sentence))


def _after_failure(state: State, sentence: str) -> tuple[State, Actions]:
    if state.barren > state.settings.max_restarts:
        return _end(state, "gave-up", EXIT_PERSON, f"{sentence} Tried {state.barren} times: a person has to look.")
    state, wait = _backoff(state)
    state = replace(state, backoff_until=state.now + wait)
    text = f"{sentence} Next try in {span(wait)}."
    return enter(state, "backing-off", text), [say("backing-off", text, "warning")]


def _backoff(state: State) -> tuple[State, float]:
    """Full jitter: uniform between 0 and the doubled base, none before the first restart after progress."""
    if state.barren <= 1:
        return state, 0.0
    limit = min(state.settings.backoff_cap_s, state.settings.backoff_base_s * 2 ** (state.barren - 2))
    # A multiplicative hash of seed and draw number: repeatable from the state alone (Knuth's constant).
    draw = ((state.settings.seed * 7919 + state.draws + 1) * 2654435761) % 2**32 / 2**32
    return replace(state, draws=state.draws + 1), limit * draw


def _survey(state: State, acts: Actions, why: str) -> tuple[State, Actions]:
    # What is on the disk is looked at anew before each start; what was known may be minutes old.
    state = replace(enter(state, "surveying", why), survey_asked=state.now, local_reason="being listed")
    return state, [*acts, a.Survey()]


def _choose(state: State) -> tuple[State, Actions]:
    if not state.wanted:
        return enter(state, "stopped", "Stopped by a person."), []
    if state.paused:
        return state, []
    choice = choose(state)
    match choice.do:
        case "wait":
            if state.survey_asked is not None and state.now - state.survey_asked < SURVEY_AGAIN_S:
                return enter(state, "surveying", choice.sentence), []
            state = replace(enter(state, "surveying", choice.sentence), survey_asked=state.now)
            return state, [a.Survey()]
        case "give-up":
            return _end(state, "gave-up", EXIT_PERSON, choice.sentence)
        case "restore" if choice.step is not None:
            state = replace(enter(state, "restoring", choice.sentence), busy=replace(state.busy, restore=choice.step))
            return state, [say("restoring", choice.sentence, step=choice.step), a.Restore(choice.step)]
    if state.setup_pending:
        return enter(state, "surveying", "Waiting for the pod's [setup] commands."), []
    return _start(state, choice.step, choice.sentence)


def _start(state: State, step: int | None, sentence: str) -> tuple[State, Actions]:
    if state.override:
        # A person went back on purpose: whatever is higher belongs to another lineage from now on.
        known = {s.step for s in state.local} | {s.step for s in state.store}
        higher = {known_step for known_step in known if step is None or known_step > step}
        quarantined = {**state.quarantined, **{str(s): state.wall for s in higher}}
        state = replace(state, quarantined=quarantined, override=False, best_complete=None)
    again = state.attempt > 0
    attempt = state.attempt + 1
    snapshot = None if state.new_config else state.snapshot
    fresh = step is None
    state = fresh_attempt(replace(state, attempt=attempt))
    state = replace(
        enter(state, "starting", sentence),
        resume_step=step,
        started=state.now,
        pid=None,
        new_config=False,
        began_fresh=state.began_fresh or fresh,
        restarts=state.restarts + (1 if again else 0),
        busy=replace(state.busy, start=attempt),
        gone=(),
    )
    return state, [say("starting", sentence, step=step, attempt=attempt), a.Start(attempt, step, snapshot, fresh=fresh)]


def _disk_full(state: State) -> tuple[State, Actions]:
    room = 1.5 * state.settings.stop_below_bytes
    if state.disk_free is not None and state.disk_free > room and not state.paused:
        return _survey(state, [say("disk-room", f"There is room again: {size(state.disk_free)} free.")], "Room again.")
    if state.now - state.since > DISK_PATIENCE_S and state.busy.publish is None:
        sentence = f"{state.why} Nothing became free in {span(DISK_PATIENCE_S)}: a person has to make room."
        return _end(state, "gave-up", EXIT_PERSON, sentence)
    return state, []


def _finish(state: State, acts: Actions) -> tuple[State, Actions]:
    why = "Training is finished; the last step is being published."
    state = replace(enter(state, "publishing", why), survey_asked=state.now, local_reason="being listed", incident=None)
    return state, [*acts, a.Survey()]


def _publishing(state: State) -> tuple[State, Actions]:
    if state.local_reason or state.busy.publish is not None:
        return state, []
    step = next_to_publish(state) if state.settings.has_store else None
    if step is None:
        if "finish" in state.settings.hooks:
            state = enter(state, "finishing", "The last step is published; the finish hook runs.")
            return replace(state, busy=replace(state.busy, hook="finish")), [a.RunHook("finish")]
        return _end(state, "finished", EXIT_OK, f"The run is finished: {progress_sentence(state)}.")
    if state.store_permanent and state.now - state.since > 60:
        sentence = (
            f"Training is finished, and its last step {step} is not in the store: {state.store_reason} "
            "It is kept on this disk; mend the store and run supervisorctl start."
        )
        return _end(state, "gave-up", EXIT_PERSON, sentence)
    if state.publish_failures >= 5 and state.now < state.publish_after and state.publish_after - state.now > 300:
        sentence = (
            f"Training is finished, and its last step {step} is not in the store: {state.publish_reason} "
            "It is kept on this disk; mend the store and run supervisorctl start."
        )
        return _end(state, "gave-up", EXIT_PERSON, sentence)
    return state, []


def _end(state: State, mode: Mode, code: int, sentence: str) -> tuple[State, Actions]:
    level = "info" if code == EXIT_OK else "error"
    state = replace(enter(state, mode, sentence), exit_code=code)
    return state, [say(mode, sentence, level)]


# ---------------------------------------------------------------- housekeeping


def _housekeeping(state: State) -> tuple[State, Actions]:
    """Publish, prune, keep the store small: one effect of a kind at a time."""
    acts: Actions = []
    busy = state.busy
    if (
        state.settings.has_store
        and busy.publish is None
        and state.now >= state.publish_after
        and not state.store_reason
    ):
        step = next_to_publish(state)
        if step is not None and not state.exit_said:
            skipped = [s for s in state.good_local() if _skipped(state, s, step)]
            if skipped:
                steps = ", ".join(map(str, skipped))
                acts.append(say("skipped", f"Steps complete faster than the link carries them: {steps} skipped."))
            back = state.store_latest is not None and str(state.store_latest) in state.quarantined
            acts.append(a.Publish(step, back))
            state = replace(state, busy=replace(state.busy, publish=step))
    if state.busy.prune_local is None and disk_over(state) and not state.local_reason:
        state, more = _prune_local(state)
        acts += more
    if state.settings.has_store and busy.prune_store is None and not state.store_reason and state.busy.publish is None:
        victims = victims_in_store(state)
        if victims and state.now >= state.publish_after:
            acts.append(a.PruneStore(victims[0]))
            state = replace(state, busy=replace(state.busy, prune_store=victims[0]))
    return state, acts


def _skipped(state: State, step: int, chosen: int) -> bool:
    stored = {s.step for s in state.store if s.committed}
    return step < chosen and step not in stored and (state.published is None or step > state.published)


def _prune_local(state: State) -> tuple[State, Actions]:
    keep = 1 if disk_critical(state) else state.settings.keep_local
    victims = safe_locally(state, keep)
    if victims:
        return replace(state, busy=replace(state.busy, prune_local=victims[0])), [a.PruneLocal(victims[0])]
    if state.prune_nothing_said:
        return state, []
    free, total = state.disk_free or 0, state.disk_total or 1
    sentence = (
        f"The disk is {100 * (1 - free / total):.0f} % full ({size(free)} free) and no local step is safe to delete "
        f"yet: {_why_nothing(state)}."
    )
    # Rollouts and broadcasts of steps that are gone may go at any time.
    kept = min((s.step for s in state.local), default=None)
    acts: Actions = [say("disk", sentence, "warning")]
    state = replace(state, prune_nothing_said=True)
    if kept is not None:
        state = replace(state, busy=replace(state.busy, prune_local=-1))
        acts.append(a.PruneStale(kept))
    return state, acts


def _why_nothing(state: State) -> str:
    if not any(s.committed for s in state.store):
        return "nothing is published yet" + (f" ({state.publish_reason})" if state.publish_reason else "")
    return f"the {state.settings.keep_local} newest complete steps stay"
