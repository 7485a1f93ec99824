"""What a single fact asks for by itself, before the ladder of the mode is climbed."""

from __future__ import annotations

from dataclasses import asdict

from supervisor.core import actions as a
from supervisor.core import adoption, fencing, journal_lost, leaving, observed, pinned_steps, recurring
from supervisor.core import facts as f
from supervisor.core.deadlines import start_took
from supervisor.core.evolve import replace
from supervisor.core.moves import (
    EXIT_OK,
    EXIT_PERSON,
    EXIT_UNFIT,
    Actions,
    backoff,
    end,
    enter,
    finish,
    forgiven,
    note_failure,
    say,
    start_failed,
    stop,
    survey,
    to_go_back,
    want_engine,
    with_all,
    with_first,
)
from supervisor.core.observe import CRASH_PAUSE_S, rebase
from supervisor.core.pace import with_step
from supervisor.core.phases import RESUME, STEP, learn
from supervisor.core.reminders import pods_without_progress
from supervisor.core.state import BEING_LISTED, ENDED, Mode, Root, State
from supervisor.core.training_health import judged
from supervisor.core.unsaved import unsaved
from supervisor.core.verdicts import finished_sentence, progress_sentence
from supervisor.core.warnings import warn
from supervisor.core.words import root_line, size, span

WENT_ON_S = 60.0
STEPS_UNDER_WAY = 3  # prime-rl's default asynchrony of one or two, and the step that the trainer is in


def react(before: State, state: State, fact: f.Fact) -> tuple[State, Actions]:
    """What a fact itself asks for, before the mode's ladder is climbed."""
    match fact:
        case f.DaemonStarted():
            state, lost = journal_lost.told(state, fact.lost)
            return with_all(lost, _daemon_started(before, state, fact))
        case f.Command():
            return _command(state, fact)
        case f.PinKept() | f.HoldsKept() | f.StoreChecked():
            return pinned_steps.react(before, state, fact)
        case f.StoreSteps() if not fact.reason:
            return pinned_steps.react(before, state, fact)
        case _ if isinstance(fact, fencing.TOLD):
            return fencing.react(before, state, fact)
        case f.AttemptStarted() if fact.attempt == state.attempt.number:
            return _attempt_started(state, fact)
        case f.AttemptAdopted() if observed.newly_attached(state, fact):
            return observed.attached(state, fact)
        case f.AttemptAdopted() if fact.attempt == state.attempt.number:
            sentence = f"Took over the living job of attempt {fact.attempt} (pid {fact.pid}); it was not touched."
            return replace(state, attempt=replace(state.attempt, pid=fact.pid)), [
                say("adopted", sentence, attempt=fact.attempt)
            ]
        case f.StartFailed() if fact.attempt == state.attempt.number:
            return start_failed(state, fact)
        case f.AttemptStopped() if fact.attempt == state.attempt.number and state.mode == "stopping":
            return _attempt_stopped(state, fact)
        case f.Suppressed():
            return _suppressed(state, fact)
        case f.EngineStarted() if fact.engine == state.own.number:
            return state, [say("engine", f"The inference server is launched ({fact.engine}): {fact.command}")]
        case f.EngineStartFailed() if fact.engine == state.own.number:
            return _engine_start_failed(state, fact)
        case f.EngineStopped() if fact.engine == state.own.number:
            return _engine_stopped(before, state, fact)
        case f.HostLook() | f.GpuLook() | f.GpuFault():
            return warn(before, recurring.told_late(before, state))
        case f.StepDone():
            state, worth = _worth(state, fact)
            return with_all(worth, _step_done(before, state))
        case f.ErrorSeen():
            return _worth(state, fact)
        case f.Published():
            rate = fact.sent_bytes / fact.seconds if fact.seconds > 0 else 0
            sentence = (
                f"Published step {fact.step}: {size(fact.size_bytes)} in {span(fact.seconds)}"
                f"{f' ({size(rate)}/s)' if fact.sent_bytes else ', nothing had to be sent'}."
            )
            return state, [say("published", sentence, step=fact.step, bytes=fact.size_bytes)]
        case f.PublishFailed() if state.mode == "disk-full" and before.publishing.reason == fact.reason:
            return state, []  # it is tried every few seconds then
        case f.PublishFailed():
            wait = "" if fact.step_changed else f" Next try in {span(state.publishing.after - state.now)}."
            level = "info" if fact.step_changed else ("error" if fact.permanent else "warning")
            sentence = f"Publishing step {fact.step} failed: {fact.reason}{wait}"
            return state, [say("publish-failed", sentence, level, step=fact.step)]
        case f.StoreRecords():
            sentence = pods_without_progress(state.books.others)
            return state, [say("pods", sentence, "warning")] if sentence else []
        case f.Pruned():
            place = "from the local disk" if fact.where == "local" else "from the store"
            freed = f", {size(fact.freed_bytes)} free again" if fact.freed_bytes else ""
            if fact.step < 0:
                sentence = f"Deleted what is left of steps that are gone{freed}."
                if not fact.freed_bytes:
                    return state, []
            else:
                sentence = f"Deleted step {fact.step} {place}{freed}."
            return state, [say("pruned", sentence, step=fact.step, bytes=fact.freed_bytes, where=fact.where)]
        case f.PruneFailed():
            what = f"step {fact.step}" if fact.step >= 0 else "old rollouts"
            return state, [say("prune-failed", f"Could not delete {what} ({fact.where}): {fact.reason}", "warning")]
        case f.Restored():
            sentence = (
                f"Restored step {fact.step} from the store: {size(fact.size_bytes)} in {span(fact.seconds)}, "
                + (
                    "every byte verified."
                    if fact.verified
                    else "it has no manifest, so sizes and loadability were checked."
                )
            )
            return state, [say("restored", sentence, step=fact.step, bytes=fact.size_bytes)]
        case f.Remark():
            return state, [say(fact.event, fact.sentence, fact.level)]
        case f.RootSeen():
            return _root_seen(state, fact)
        case f.EffectCrashed():
            return _effect_crashed(before, state, fact)
        case f.RestoreFailed():
            return _restore_failed(state, fact)
        case f.SetupDone() if before.setup_pending:
            return _setup_done(state, fact)
        case f.ConfigChanged() if fact.path not in before.orders.config_changed:
            sentence = (
                f"{fact.path} was changed on disk; the run goes on with the snapshot it was started with. "
                "Take the change with: supervisorctl restart --new-config"
            )
            return state, [say("config-changed", sentence, "warning")]
        case f.ClockJumped():
            sentence = f"The host slept or its clock jumped by {span(abs(fact.seconds))}: no deadline counts that."
            return state, [say("clock-jumped", sentence, "warning")]
        case f.LeaveSoon():
            return leaving.soon(state, fact)
        case f.PublishMoves():
            return leaving.moved(state)
        case f.StoreSteps() if fact.reason and fact.reason != before.store.reason:
            return state, [say("store-unknown", f"The store cannot be listed: {fact.reason}", "warning")]
        case f.HookDone() if state.mode == "finishing":
            return _hook_done(state, fact)
    return state, []


def _daemon_started(before: State, state: State, fact: f.DaemonStarted) -> tuple[State, Actions]:
    settings = fact.settings
    told = say("daemon", f"rl-supervisor {fact.version} watches run {settings.run_id}.")
    state, claim = fencing.begin(state)
    looks: Actions = [*claim, a.Setup(), a.Survey()] if fact.setup else [*claim, a.Survey()]
    raised = (settings.max_steps or 0) > (before.settings.max_steps or 0)
    asked = fact.adopted is None and (settings.fresh or settings.pin_step is not None)
    over = before.mode == "leaving" and before.attempt.after_stop == "finish"
    if (over or before.mode in ("publishing", "finishing")) and not asked:
        return finish(state, [told, *claim])
    if before.mode == "finished" and not raised and not asked:
        missing = unsaved(before)
        sentence = (
            f"This run is finished. {missing}{' ' if missing else ''}Raise max_steps to go on, or start with --fresh."
        )
        return with_first(
            told, end(replace(state, ending=replace(state.ending, said=False)), "finished", EXIT_OK, sentence)
        )
    state = replace(
        state,
        ending=replace(state.ending, code=None, said=False),
        orders=replace(state.orders, wanted=state.orders.wanted or asked),
    )
    if asked:
        state = replace(
            state, orders=replace(state.orders, override=True, asked_step=None, asked_why="", left_higher=False)
        )
    else:  # a rollback that the daemon before had begun
        state = replace(state, orders=replace(state.orders, override=state.orders.asked_step is not None))
    state = (
        replace(state, store=replace(state.store, damaged={})) if asked else state
    )  # a person may have mended what is asked for
    if before.mode == "finished" and raised:
        state = replace(state, orders=replace(state.orders, new_config=True))  # the snapshot ends where the run ended
    if fact.adopted == state.attempt.number and before.mode == "stopping":
        # What was begun is ended first, also where a person wants the run stopped: its job may still be alive.
        reason = state.attempt.stop_reason or "The daemon before was ended while it stopped the job."
        after = (
            "stop"
            if not state.orders.wanted
            else "restart"
            if state.attempt.after_stop == "shutdown"
            else state.attempt.after_stop
        )
        return with_all([told, *looks], stop(state, after, reason))
    if not state.orders.wanted:
        sentence = "Stopped by a person, and stays so until: supervisorctl start"
        return enter(state, "stopped", sentence), [told, say("stopped", sentence), *looks]
    if fact.adopted == state.attempt.number and state.live:
        return adoption.left_by(before, rebase(state)), [told, *looks]
    if fact.adopted is not None and fact.adopted == state.attempt.number:
        # No mode says that it should be alive, and something of it may be.
        return with_all([told, *looks], stop(state, "restart", "The daemon before left a job that nobody asked for."))
    if state.live and state.job.ended is not None:
        return state, [told, *looks]  # the ladder of the mode sees the end
    state = forgiven(state) if before.mode in ENDED else state
    state = enter(state, "surveying", "Looking for checkpoints, here and in the store.")
    return replace(state, local=replace(state.local, asked=state.now)), [told, *looks]


def _command(state: State, fact: f.Command) -> tuple[State, Actions]:
    by = f" by {fact.who}" if fact.who else ""
    told = say("command", f"{fact.verb}{' ' + ' '.join(fact.args) if fact.args else ''} was asked for{by}.")
    match fact.verb:
        case "pause":
            since = state.orders.paused_t if state.orders.paused else state.now
            return replace(state, orders=replace(state.orders, paused=True, paused_t=since)), [told]
        case "resume":
            # What was seen meanwhile stays seen. Only the step gets its time anew: a person may have held it up.
            progress = replace(state.progress, t=state.now, timed=False)
            began = state.now if state.mode == "starting" else state.attempt.started
            return replace(
                state,
                progress=progress,
                orders=replace(state.orders, paused=False),
                attempt=replace(state.attempt, started=began),
            ), [told]
        case "stop":
            state = replace(state, orders=replace(state.orders, wanted=False))
            if state.mode == "stopping" and state.attempt.after_stop == "shutdown":
                return state, [told]  # the daemon ends, and the next one leaves the run stopped
            if state.live and state.leave.asked:
                return with_first(told, stop(state, "shutdown", f"Stopped{by}."))
            if state.live or state.mode == "stopping":
                return with_first(told, stop(state, "stop", f"Stopped{by}."))
            if state.mode in ("surveying", "restoring", "backing-off", "disk-full"):
                state = enter(replace(state, incidents=replace(state.incidents, open=None)), "stopped", f"Stopped{by}.")
            return state, [told]
        case "start":
            state = replace(state, orders=replace(state.orders, wanted=True))
            if state.mode == "stopping" and state.attempt.after_stop == "stop":
                state = replace(
                    state, attempt=replace(state.attempt, after_stop="restart")
                )  # the person changed their mind while it was being stopped
            if state.leave.asked:
                return state, [told]  # the next daemon starts it
            state, claim = fencing.ask_again(state, take_over="--take-over" in fact.args)
            if state.mode in ("stopped", "gave-up", "unfit", "disk-full"):
                state = replace(forgiven(state), ending=replace(state.ending, code=None, said=False))
                return survey(state, [told, *claim], "Started by a person; looking for checkpoints.")
            return state, [told, *claim]
        case "restart":
            state = replace(
                state,
                orders=replace(state.orders, wanted=True, new_config="--new-config" in fact.args, config_changed=()),
            )
            if _ending(state):
                return state, [told]  # the next daemon starts it
            state, claim = fencing.ask_again(state, take_over="--take-over" in fact.args)
            if state.live or state.mode == "stopping":
                return with_all([told, *claim], stop(state, "restart", f"Restarted{by}."))
            state = replace(state, ending=replace(state.ending, code=None, said=False))
            return survey(forgiven(state), [told, *claim], "Restarted by a person; looking for checkpoints.")
        case "rollback":
            return with_first(told, _rollback(state, fact, by))
        case "shutdown":
            state, marked = leaving.asked(state)
            return with_all([told, *marked], leaving.end_of_the_run_here(state, f"The daemon is shut down{by}."))
        case "pin" | "unpin":
            return with_first(told, pinned_steps.pin(state, fact))
    return state, [say("command", f"{fact.verb} is no command that the core knows.", "warning")]


def _rollback(state: State, fact: f.Command, by: str) -> tuple[State, Actions]:
    """Stop, and go on at a lower step: everything above it is another lineage from then on."""
    step = int(fact.args[0])
    here = sorted(s.step for s in state.local.steps if s.state == "complete")
    there = sorted(s.step for s in state.store.steps if s.committed and str(s.step) not in state.store.damaged)
    if step not in here and step not in there:
        known = f"complete here {_numbers(here)}, stored {_numbers(there)}"
        return state, [say("rollback", f"Step {step} is not to be had: {known}. Nothing was changed.", "error")]
    if _ending(state):
        return state, [say("rollback", "The daemon is about to end: nothing was changed.", "error")]
    state = replace(
        forgiven(state),
        orders=replace(state.orders, wanted=True),
        ending=replace(state.ending, code=None, said=False),
    )
    state = to_go_back(state, step)
    state, claim = fencing.ask_again(state, take_over="--take-over" in fact.args)
    if state.live or state.mode == "stopping":
        return with_all(claim, stop(state, "restart", f"Going back to step {step}{by}."))
    return survey(state, claim, f"Going back to step {step}{by}; looking for it.")


def _ending(state: State) -> bool:
    going = state.mode == "leaving" or (state.mode == "stopping" and state.attempt.after_stop == "shutdown")
    return going or state.leave.asked


def _numbers(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "none"


def _attempt_started(state: State, fact: f.AttemptStarted) -> tuple[State, Actions]:
    state = replace(state, busy=replace(state.busy, start=None))
    if state.mode != "starting":
        return state, []  # it is being stopped already
    if state.incidents.open is not None:
        state = replace(
            state,
            incidents=replace(
                state.incidents, open=replace(state.incidents.open, relaunched=state.now, resume_step=fact.step)
            ),
        )
    where = f"resuming at step {fact.step}" if fact.step is not None else "from the start"
    sentence = f"Attempt {fact.attempt} is launched, {where}: {fact.command}"
    return enter(state, "starting", f"Started {where}."), [say("launched", sentence, step=fact.step)]


def _attempt_stopped(state: State, fact: f.AttemptStopped) -> tuple[State, Actions]:
    state = replace(
        state,
        busy=replace(state.busy, stop=None),
        job=replace(state.job, processes={}, gone=()),
        attempt=replace(state.attempt, pid=None),
    )
    if state.incidents.open is not None:
        state = replace(
            state, incidents=replace(state.incidents, open=replace(state.incidents.open, stopped=state.now))
        )
    how = "has ended" if state.attempt.after_stop == "finish" else f"is stopped after {span(fact.seconds)}"
    told: Actions = [say("stopped-job", f"The job {how}; nothing of it is left.")]
    if fact.survivors:
        left = "; ".join(fact.survivors)
        sentence = f"Something of the job cannot be ended: {left}. The pod has to be replaced."
        return with_first(say("survivors", sentence, "error"), end(state, "unfit", EXIT_UNFIT, sentence))
    if fact.gpu_free is False and state.attempt.after_stop == "restart":
        sentence = (
            "The job is gone and its GPU memory is not: no living process of the run holds it, so the driver does. "
            "The pod has to be replaced."
        )
        if fact.gpu_holders:
            sentence = (
                "The job is gone and its GPU memory is not back. Not the run's, and so left alone, but on its GPUs: "
                f"{'; '.join(fact.gpu_holders)}. End that, or replace the pod."
            )
        return end(state, "unfit", EXIT_UNFIT, sentence)
    match state.attempt.after_stop:
        case "stop":
            state = replace(state, incidents=replace(state.incidents, open=None))
            return enter(state, "stopped", state.attempt.stop_reason), [*told, a.Survey()]
        case "finish" if not state.leave.asked:
            return finish(state, told)
        case "shutdown" | "finish":
            return with_all(told, leaving.once_published(state, state.attempt.stop_reason))
        case "give-up":
            return _last_look(end(state, "gave-up", EXIT_PERSON, state.attempt.stop_reason), told)
        case "unfit":
            return _last_look(end(state, "unfit", EXIT_UNFIT, state.attempt.stop_reason), told)
        case "disk-full":
            state = replace(state, publishing=replace(state.publishing, after=min(state.publishing.after, state.now)))
            return enter(state, "disk-full", state.attempt.stop_reason), [*told, a.Survey()]
        case "restart":
            state, wait = backoff(state) if state.incidents.open else (state, 0.0)
            if wait < 0.1:
                return survey(state, told, "Looking for the last good step.")
            text = (
                f"{state.recovery.barren} failures without a new complete step in between: waiting {span(wait)} first."
            )
            state = replace(
                enter(state, "backing-off", text),
                recovery=replace(state.recovery, backoff_until=state.now + wait),
            )
            state = replace(state, recovery=replace(state.recovery, backoff_outside=state.recovery.waits > 0))
            return state, [*told, say("backing-off", text, "warning")]


def _last_look(result: tuple[State, Actions], told: Actions) -> tuple[State, Actions]:
    """List the disk once more before the daemon ends: a step that was completed just now is published first."""
    state, acts = result
    return replace(state, local=replace(state.local, reason=BEING_LISTED, asked=state.now)), [
        *told,
        *acts,
        a.Survey(),
    ]


def _restore_failed(state: State, fact: f.RestoreFailed) -> tuple[State, Actions]:
    if state.mode not in ("restoring", "surveying"):
        # A person stopped the run, or the daemon is leaving: nothing is to be started now.
        sentence = f"Restoring step {fact.step} came to nothing: {fact.reason}"
        return state, [say("restore-failed", sentence, "warning", step=fact.step)]
    if fact.damaged:
        sentence = (
            f"Step {fact.step} in the store is damaged and is left as it is: {fact.reason} Trying the one before."
        )
        state = enter(state, "surveying", sentence)
        return state, [say("restore-damaged", sentence, "error", step=fact.step)]
    if fact.permanent:
        return end(state, "gave-up", EXIT_PERSON, f"Step {fact.step} cannot be restored: {fact.reason}")
    state = replace(state, recovery=replace(state.recovery, backoff_until=state.now + 30, backoff_outside=True))
    sentence = f"Restoring step {fact.step} failed, next try in 30 s: {fact.reason}"
    return enter(state, "backing-off", sentence), [say("restore-failed", sentence, "warning", step=fact.step)]


def _root_seen(state: State, fact: f.RootSeen) -> tuple[State, Actions]:
    """Keep a root cause with its incident, which may be over by now; the same one in each attempt is said once."""
    of_it = [
        one for one in (*state.incidents.closed, state.incidents.open) if one is not None and one.id == fact.incident
    ]
    root = Root(fact.attempt, fact.name, fact.role, fact.text, fact.remedy)
    if of_it:
        (one,) = of_it
        if any((known.name, known.role) == (root.name, root.role) for known in one.roots):
            return state, []
        after = replace(one, roots=(*one.roots[:1], root))
        incidents = tuple(after if known is one else known for known in state.incidents.closed)
        state = replace(
            state,
            incidents=replace(
                state.incidents,
                closed=incidents,
                open=after if state.incidents.open is one else state.incidents.open,
            ),
        )
    line = root_line(root.name, root.role, root.text)
    sentence = f"{line[0].upper()}{line[1:]} (incident {fact.incident}, attempt {fact.attempt}). Remedy: {fact.remedy}"
    told = say("root-cause", sentence.removesuffix(" Remedy: "), "error", incident=fact.incident, **asdict(root))
    return state, [told]


def _effect_crashed(before: State, state: State, fact: f.EffectCrashed) -> tuple[State, Actions]:
    told = say("defect", f"A defect in the supervisor itself ({fact.lane}): {fact.reason}. Please report it.", "error")
    if fact.lane == "job" and state.mode == "stopping":
        # Asked for anew by the ladder of the mode, after a pause: what crashed once may crash at once again.
        state = replace(
            state,
            recovery=replace(state.recovery, backoff_until=state.now + CRASH_PAUSE_S, backoff_outside=False),
        )
        return replace(state, busy=replace(state.busy, stop=None)), [told]
    if fact.lane == "hook" and state.mode == "finishing":
        failed_hook = f.HookDone("finish", f"a defect in the supervisor: {fact.reason}")
        return with_first(told, _hook_done(state, failed_hook))
    if fact.lane == "setup" and state.setup_pending:
        state = replace(state, setup_pending=False)
        return with_first(told, _setup_done(state, f.SetupDone(f"a defect in the supervisor: {fact.reason}")))
    if fact.lane in ("restore", "setup") and before.busy.restore is not None:
        failed_restore = f.RestoreFailed(before.busy.restore, f"a defect in the supervisor: {fact.reason}")
        return with_first(told, _restore_failed(state, failed_restore))
    if fact.lane == "engine" and state.own.asked:
        return with_first(told, _engine_crashed(state, fact))
    if fact.lane == "job" and state.busy.start is not None:
        failed = f.StartFailed(state.attempt.number, f"a defect in the supervisor: {fact.reason}")
        return with_first(told, start_failed(state, failed))
    return state, [told]


def _setup_done(state: State, fact: f.SetupDone) -> tuple[State, Actions]:
    if not fact.reason:
        return state, [say("setup", "The pod's [setup] commands are done.")]
    if state.live or state.mode in ("stopped", "leaving", *ENDED):
        return state, [say("setup", f"The pod's [setup] failed: {fact.reason}", "error")]
    return end(state, "gave-up", EXIT_PERSON, f"The pod's [setup] failed: {fact.reason}")


def _worth(state: State, fact: f.StepDone | f.ErrorSeen) -> tuple[State, Actions]:
    """Training that goes on and is worth nothing: said, with the way back. What is done is the policy's to decide."""
    worth, news = judged(state.worth, fact, state.now, state.wall)
    if worth is state.worth:
        return state, []
    state = replace(state, worth=worth)
    acts: Actions = []
    for one in news:
        if one.cleared:
            acts.append(say("worth", one.sentence + pinned_steps.until_when(state, one.name), finding=one.name))
        else:
            sentence = pinned_steps.with_advice(state, one.name, one.sentence)
            acts.append(say("worth", sentence, "warning", finding=one.name))
    return state, acts


def _step_done(before: State, state: State) -> tuple[State, Actions]:
    step = state.progress.step
    if step is None or step == before.progress.step or not state.live:
        return state, []
    progress = state.progress
    acts: Actions = [
        say("step", progress_sentence(state), step=step, seconds=progress.duration_s, reward=progress.reward)
    ]
    state, went_on = _went_on(state)
    state, slower = _paced(before, state)
    acts += [*went_on, *slower]
    if state.mode == "starting":
        if state.attempt.resume_step is not None and state.job.scratch and step < state.attempt.resume_step:
            return state, acts  # it began from scratch: the verdicts deal with it
        old = before.progress.step is not None and before.progress.t <= state.attempt.started
        if old and (state.own.asked or not state.engine.ever_ok):
            return state, acts  # what was under way when its inference server failed; the new one has shown nothing yet
        if state.attempt.resume_step is not None and step + 1 < state.attempt.resume_step:
            # Not acted upon: a plain job may count its steps anew. Whoever knows better has to hear of it at once.
            sentence = (
                f"The job was told to resume at step {state.attempt.resume_step} and counts step {step}: it may "
                "have begun from scratch, and then it overwrites checkpoints. Look at its log; stop it with "
                "supervisorctl stop."
            )
            acts.append(say("fresh-start", sentence, "error", step=step, resume_step=state.attempt.resume_step))
        if before.progress.timed:
            state = replace(
                state,
                books=replace(state.books, learned=learn(state.books.learned, RESUME, start_took(before, state.now))),
            )
        state = enter(state, "running", "The run makes steps.")
        state = replace(state, attempt=replace(state.attempt, snapshot=state.attempt.number))
        if state.incidents.open is not None:
            lasted = span(state.now - state.incidents.open.opened)
            sentence = (
                f"Incident {state.incidents.open.id} is over after {lasted}: step {step} is done. It was: "
                f"{state.incidents.open.sentence}"
            )
            acts.append(say("incident-closed", sentence, incident=state.incidents.open.id, step=step))
            done = replace(state.incidents.open, closed=state.now, closed_wall=state.wall, closed_step=step)
            state = replace(state, incidents=replace(state.incidents, closed=(*state.incidents.closed, done)[-20:]))
        state = replace(state, incidents=replace(state.incidents, open=None))
    return state, acts


def _paced(before: State, state: State) -> tuple[State, Actions]:
    """Say once when steps take longer for good, and what the GPUs read then."""
    took_s, began = state.progress.interval_s, before.progress.t
    explained = any(one.phase in ("checkpoint", "eval") and one.t >= began for one in before.job.phases.values())
    if took_s is None or not before.progress.timed or explained:
        return state, []
    known = state.pace.said
    pace, told = with_step(state.pace, took_s, before.books.learned.phases.get(STEP), state.now, state.wall)
    state = replace(state, pace=pace)
    if not told:
        return state, []
    if known:
        return state, [say("pace", told)]
    gpus = [memory.gpu for memory in state.gpus.by_uuid.values()]
    slowed = [f"GPU {gpu.index}: {gpu.slowed}." for gpu in sorted(gpus, key=lambda gpu: gpu.index) if gpu.slowed]
    if gpus and all(gpu.slowed == "" for gpu in gpus):
        slowed = ["No GPU reports that it is slowed."]
    return state, [say("pace", " ".join([told, *slowed]), "warning")]


def _suppressed(state: State, fact: f.Suppressed) -> tuple[State, Actions]:
    """The run is only observed: go on with what is true, which is that nothing was done."""
    if (
        fact.action == "Start" and fact.number == state.attempt.number and state.attempt.pid is None
    ):  # else one was attached since
        sentence = f"Nothing is started: {fact.why} Attach a job that you started: rl-supervisor attach"
        state = replace(
            state,
            attempt=replace(state.attempt, number=state.attempt.number - 1),
            recovery=replace(state.recovery, restarts=max(0, state.recovery.restarts - 1)),
        )
        if state.mode == "stopping" and state.attempt.after_stop in ("finish", "shutdown"):
            return state, [say("observing", sentence)]  # asked for meanwhile, and the answer to that stop is on its way
        return enter(state, "stopped", sentence), [say("observing", sentence)]
    if fact.action == "Stop" and state.mode == "stopping":
        if state.job.ended is not None or state.attempt.after_stop in ("finish", "shutdown"):
            # Nothing of it lives any more, or nobody asks for its end but for ours. An observer gives nothing up: the
            # person may start another job, and until then there may be steps to publish.
            after = "stop" if state.attempt.after_stop in ("give-up", "unfit") else state.attempt.after_stop
            return _attempt_stopped(
                replace(state, attempt=replace(state.attempt, after_stop=after)),
                f.AttemptStopped(state.attempt.number, 0.0),
            )
        mode: Mode = "running" if state.progress.step is not None else "starting"
        return enter(state, mode, f"Observed only: {state.why}"), []
    if fact.action == "Restore" and state.mode in ("restoring", "surveying"):
        sentence = f"Nothing is restored: {fact.why}"
        return enter(state, "stopped", sentence), [say("observing", sentence)]
    if fact.action == "StopEngine" and state.mode == "starting" and state.progress.step is not None:
        return enter(state, "running", f"Observed only: {state.why}"), []  # nothing is restarted under the job
    if fact.action == "RunHook" and state.mode == "finishing":
        return end(state, "finished", EXIT_OK, finished_sentence(state))
    return state, []


def _went_on(state: State) -> tuple[State, Actions]:
    """A step is done after we would have acted: a counterfactual gets its end once that step says something."""
    if all(one.outcome for one in state.observing.would):
        return (replace(state, observing=replace(state.observing, spared="")) if state.observing.spared else state), []
    acts: Actions = []
    would = []
    for one in state.observing.would:
        since = (state.progress.step or 0) - (one.step if one.step is not None else -1)
        # With its engine gone, a trainer still does the steps whose rollouts are there already.
        under_way = STEPS_UNDER_WAY if one.cause.startswith("engine-") or one.cause.endswith("-gone") else 1
        told = one
        if not one.outcome and since >= under_way:
            after = span(state.wall - one.wall)
            outcome = f"the run went on by itself after {after}: step {state.progress.step} is done"
            acts.append(say("would-not", f"{outcome[0].upper()}{outcome[1:]}. {one.sentence}"))
            told = replace(one, outcome=outcome, outcome_wall=state.wall)
        would.append(told)
    if not acts:
        return state, []
    # Whatever went did not stop it; one that went just now may have left the trainer its last step.
    gone = tuple(one for one in state.job.gone if state.now - one.t < WENT_ON_S)
    return replace(
        state,
        observing=replace(state.observing, spared="", would=tuple(would)),
        job=replace(state.job, gone=gone),
    ), acts


def _engine_start_failed(state: State, fact: f.EngineStartFailed) -> tuple[State, Actions]:
    sentence = f"The inference server could not be launched: {fact.reason}"
    told = say("engine", sentence, "error")
    if state.orders.paused:
        return state, [told]  # nothing is stopped now; once it goes on, a job without its other half is a verdict
    if fact.permanent and (state.live or _restarting(state)):
        return with_first(told, stop(state, "give-up", sentence))
    if fact.permanent and state.mode in ("surveying", "backing-off"):
        return with_first(told, end(state, "gave-up", EXIT_PERSON, sentence))
    if not state.live:
        return state, [told]
    return with_first(told, stop(note_failure(state, "engine-start-failed"), "restart", sentence))


def _restarting(state: State) -> bool:
    """Is the job being stopped only to be started again? What a person asked for, and an end, stay as they are."""
    return state.mode == "stopping" and state.attempt.after_stop in ("restart", "disk-full")


def _engine_crashed(state: State, fact: f.EffectCrashed) -> tuple[State, Actions]:
    own, reason = state.own, f"a defect in the supervisor: {fact.reason}"
    if own.asked == "start":
        state = replace(state, own=replace(own, alive=False, pid=None, asked=""))
        return _engine_start_failed(state, f.EngineStartFailed(own.number, reason))
    state = replace(state, own=replace(own, asked="", stop_after=state.now + CRASH_PAUSE_S))
    if not own.alone or not state.live:
        return state, []
    state = note_failure(state, "engine-stop-failed")
    return stop(state, "restart", f"The inference server could not be stopped: {reason}")


def _engine_stopped(before: State, state: State, fact: f.EngineStopped) -> tuple[State, Actions]:
    told = say("engine", f"The inference server is stopped after {span(fact.seconds)}.")
    if fact.survivors:
        left = "; ".join(fact.survivors)
        sentence = f"Something of the inference server cannot be ended: {left}. The pod has to be replaced."
        if state.live or _restarting(state):
            return with_first(told, stop(state, "unfit", sentence))
        if state.mode in ("surveying", "restoring", "backing-off", "disk-full"):
            return with_first(told, end(state, "unfit", EXIT_UNFIT, sentence))
        return state, [told, say("survivors", sentence, "error")]
    if not before.own.alone or not state.live:
        return state, [told]
    state, acts = want_engine(state)
    return replace(state, attempt=replace(state.attempt, started=state.now)), [told, *acts]


def _hook_done(state: State, fact: f.HookDone) -> tuple[State, Actions]:
    state = replace(state, busy=replace(state.busy, hook=None))
    acts: Actions = []
    if fact.reason:
        acts.append(say("hook-failed", f"The {fact.hook} hook failed: {fact.reason}", "error"))
    return with_all(acts, end(state, "finished", EXIT_OK, finished_sentence(state)))
