"""What a single fact asks for by itself, before the ladder of the mode is climbed: from fact type to handler.

A fact that is only told stands in ``reports``. What a person orders, a step that is done, the inference server, the
claim of the run, pins and the end of a pod have modules of their own, which hold all that follows from their facts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from supervisor.core import actions as a
from supervisor.core import (
    adoption,
    fencing,
    journal_lost,
    leaving,
    observed,
    orders,
    own_engine,
    pinned_steps,
    recurring,
    step_done,
)
from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.moves import (
    EXIT_OK,
    EXIT_PERSON,
    EXIT_UNFIT,
    Actions,
    backoff,
    close_incident,
    end,
    enter,
    finish,
    forgiven,
    list_anew,
    say,
    start_failed,
    stop,
    survey,
    to_go_back,
    try_again,
    wait_for_room,
    with_all,
)
from supervisor.core.observe import CRASH_PAUSE_S, is_of_the_past, rebase
from supervisor.core.reports import REPORTS
from supervisor.core.state import ENDED, Ending, Mode, Root, State
from supervisor.core.unsaved import unsaved_sentences
from supervisor.core.verdicts import finished_sentence
from supervisor.core.warnings import warn
from supervisor.core.words import root_line, span


def react(before: State, state: State, fact: f.Fact) -> tuple[State, Actions]:
    """What a fact itself asks for, before the mode's ladder is climbed."""
    if is_of_the_past(state, fact):
        return state, []
    if (report := REPORTS.get(type(fact))) is not None:
        return state, report(before, state, fact)
    handler = _HANDLERS.get(type(fact))
    return (state, []) if handler is None else handler(before, state, fact)


def _daemon_started(before: State, state: State, fact: f.DaemonStarted) -> tuple[State, Actions]:
    state, lost = journal_lost.record_loss(state, fact.lost)
    return with_all(lost, _begin(before, state, fact))


def _begin(before: State, state: State, fact: f.DaemonStarted) -> tuple[State, Actions]:
    settings = fact.settings
    state = replace(state, ending=Ending())  # of the daemon before: this one has ordered no end yet
    told = say("daemon", f"rl-supervisor {fact.version} watches run {settings.run_id}.")
    raised = (settings.max_steps or 0) > (before.settings.max_steps or 0)
    asked = fact.adopted is None and (settings.fresh or settings.pin_step is not None)
    if before.mode == "finished" and not raised and not asked:
        missing = f" {unsaved_sentences(before)}".rstrip()
        sentence = f"This run is finished.{missing} Raise max_steps to go on, or start with --fresh."
        return with_all([told], end(state, "finished", EXIT_OK, sentence))
    state, claim = fencing.begin(state)
    looks: Actions = [*claim, a.Setup(), a.Survey()] if fact.setup else [*claim, a.Survey()]
    over = before.mode == "leaving" and before.attempt.after_stop == "finish"
    if (over or before.mode in ("publishing", "finishing")) and not asked:
        return finish(state, [told, *claim])
    state = replace(state, orders=replace(state.orders, wanted=state.orders.wanted or asked))
    if asked:
        # A person may have mended what is asked for.
        state = replace(to_go_back(state, None), store=replace(state.store, damaged={}))
    else:  # a rollback that the daemon before had begun
        state = replace(state, orders=replace(state.orders, override=state.orders.asked_step is not None))
    if before.mode == "gave-up" or (before.mode == "finished" and raised):
        # What a person has mended counts, and the snapshot of a finished run ends where the run ended.
        state = replace(state, orders=replace(state.orders, new_config=True))
    if fact.adopted == state.attempt.number and before.mode == "stopping":
        # What was begun is ended first, also where a person wants the run stopped: its job may still be alive.
        reason = state.attempt.stop_reason or "The daemon before was ended while it stopped the job."
        after, at_once = state.attempt.after_stop, state.attempt.stop_at_once
        wanted = "restart" if after == "shutdown" else after
        return with_all([told, *looks], stop(state, wanted if state.orders.wanted else "stop", reason, at_once=at_once))
    if not state.orders.wanted:
        sentence = "Stopped by a person. It stays stopped until you run: supervisorctl start"
        return enter(state, "stopped", sentence), [told, say("stopped", sentence), *looks]
    if fact.adopted == state.attempt.number and state.live:
        return adoption.left_by(before, rebase(state)), [told, *looks]
    if fact.adopted is not None and fact.adopted == state.attempt.number:
        # No mode says that it should be alive, and something of it may be.
        return with_all([told, *looks], stop(state, "restart", "The daemon before left a job that was not asked for."))
    if state.live and state.job.ended is not None:
        return state, [told, *looks]  # the ladder of the mode sees the end
    state = forgiven(state) if before.mode in ENDED else state
    state = enter(state, "surveying", "Looking for checkpoints, here and in the store.")
    return replace(state, local=replace(state.local, asked=state.now)), [told, *looks]


def _attempt_started(before: State, state: State, fact: f.AttemptStarted) -> tuple[State, Actions]:
    if state.mode != "starting":
        return state, []  # in another mode it is being stopped already
    state = replace(state, recovery=replace(state.recovery, full_since=None))
    state = replace(state, orders=replace(state.orders, new_config=False))  # it runs with that
    if state.incidents.open is not None:
        again = replace(state.incidents.open, relaunched=state.now, resume_step=fact.step)
        state = replace(state, incidents=replace(state.incidents, open=again))
    where = f"resuming at step {fact.step}" if fact.step is not None else "from the start"
    sentence = f"Attempt {fact.attempt} is launched, {where}: {fact.command}"
    return enter(state, "starting", f"Started {where}."), [say("launched", sentence, step=fact.step)]


def _attempt_adopted(before: State, state: State, fact: f.AttemptAdopted) -> tuple[State, Actions]:
    if observed.newly_attached(state, fact):
        return observed.watch_attached_job(state, fact)
    if fact.attempt != state.attempt.number:
        return state, []
    sentence = f"Took over the living job of attempt {fact.attempt} (pid {fact.pid}); it was not touched."
    adopted = replace(state, attempt=replace(state.attempt, pid=fact.pid))
    if state.mode == "starting":
        adopted = replace(adopted, orders=replace(adopted.orders, new_config=False))
    return adopted, [say("adopted", sentence, attempt=fact.attempt)]


def _attempt_stopped(before: State, state: State, fact: f.AttemptStopped) -> tuple[State, Actions]:
    if state.mode != "stopping":
        return state, []
    state = replace(state, job=replace(state.job, processes={}, gone=()), attempt=replace(state.attempt, pid=None))
    if state.incidents.open is not None:
        stopped = replace(state.incidents.open, stopped=state.now)
        state = replace(state, incidents=replace(state.incidents, open=stopped))
    how = "has ended" if state.attempt.after_stop == "finish" else f"is stopped after {span(fact.seconds)}"
    left = f"nothing of it is known of {', '.join(fact.unheard)}" if fact.unheard else "nothing of it is left"
    sentence = f"The job {how}; {left}."
    if state.settings.mode == "observe" and before.job.ended is None:
        sentence = "The job is only observed. It was not touched."
    told: Actions = [say("stopped-job", sentence)]
    if fact.survivors:
        left = "; ".join(fact.survivors)
        sentence = f"Something of the job cannot be ended: {left}. The pod has to be replaced."
        return with_all([say("survivors", sentence, "error")], end(state, "unfit", EXIT_UNFIT, sentence))
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
            return enter(close_incident(state), "stopped", state.attempt.stop_reason), [*told, a.Survey()]
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
            failures = f"{state.recovery.barren} failures without a new complete step in between"
            text = f"{failures}: waiting {span(wait)} first."
            return with_all(told, try_again(state, wait, text, outside=state.recovery.waits > 0))


def _last_look(result: tuple[State, Actions], told: Actions) -> tuple[State, Actions]:
    """List the disk once more before the daemon ends: a step that was completed just now is published first."""
    state, acts = result
    return list_anew(state, [*told, *acts])


def _go_on_without_effect(before: State, state: State, fact: f.Suppressed) -> tuple[State, Actions]:
    """The run is only observed: go on with what is true, which is that nothing was done."""
    # With a pid, a job of a person was attached since.
    if fact.action == "Start" and fact.number == state.attempt.number and state.attempt.pid is None:
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
            # Nothing of it lives any more, or only our own end was asked for. An observer gives nothing up: the
            # person may start another job, and until then there may be steps to publish.
            after = "stop" if state.attempt.after_stop in ("give-up", "unfit") else state.attempt.after_stop
            return _attempt_stopped(
                before,
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


def _effect_crashed(before: State, state: State, fact: f.EffectCrashed) -> tuple[State, Actions]:
    told = say("defect", f"A defect in the supervisor itself ({fact.lane}): {fact.reason}. Please report it.", "error")
    reason = f"a defect in the supervisor: {fact.reason}"
    if fact.lane == "job" and state.mode == "stopping":
        # Asked for anew by the ladder of the mode, after a pause: what crashed once may crash at once again.
        recovery = replace(state.recovery, backoff_until=state.now + CRASH_PAUSE_S, backoff_outside=False)
        return replace(state, recovery=recovery), [told]
    if fact.lane == "hook" and state.mode == "finishing":
        return with_all([told], _hook_done(before, state, f.HookDone("finish", reason)))
    if fact.lane == "setup" and before.setup_pending:
        return with_all([told], _setup_done(before, state, f.SetupDone(reason)))
    if fact.lane in ("restore", "setup") and before.busy.restore is not None:
        return with_all([told], _restore_failed(before, state, f.RestoreFailed(before.busy.restore, reason)))
    if fact.lane == "engine" and state.own.asked:
        return with_all([told], own_engine.effect_crashed(before, state, fact))
    if fact.lane == "job" and before.busy.start is not None:
        return with_all([told], start_failed(state, f.StartFailed(state.attempt.number, reason)))
    return state, [told]


def _restore_failed(before: State, state: State, fact: f.RestoreFailed) -> tuple[State, Actions]:
    if state.mode not in ("restoring", "surveying"):
        # A person stopped the run, or the daemon is leaving: nothing is to be started now.
        sentence = f"Restoring step {fact.step} came to nothing: {fact.reason}"
        return state, [say("restore-failed", sentence, "warning", step=fact.step)]
    if fact.damaged:
        reason = fact.reason.rstrip(".")
        sentence = f"Step {fact.step} in the store is damaged and is left as it is: {reason}. Trying the one before."
        state = enter(state, "surveying", sentence)
        return state, [say("restore-damaged", sentence, "error", step=fact.step)]
    if fact.permanent:
        return end(state, "gave-up", EXIT_PERSON, f"Step {fact.step} cannot be restored: {fact.reason}")
    if fact.no_room:
        return wait_for_room(state, f"Step {fact.step} cannot be restored: {fact.reason.rstrip('.')}.")
    sentence = f"Restoring step {fact.step} failed, next try in 30 s: {fact.reason}"
    return try_again(state, 30.0, sentence, outside=True, event="restore-failed")


def _root_seen(before: State, state: State, fact: f.RootSeen) -> tuple[State, Actions]:
    """Keep a root cause with its incident, which may be over by now; the same one in each attempt is said once."""
    known_ones = (*state.incidents.closed, state.incidents.open)
    one = next((one for one in known_ones if one is not None and one.id == fact.incident), None)
    root = Root(fact.attempt, fact.name, fact.role, fact.text, fact.remedy)
    if one is not None:
        if any((known.name, known.role) == (root.name, root.role) for known in one.roots):
            return state, []
        after = replace(one, roots=(*one.roots[:1], root))
        incidents = tuple(after if known is one else known for known in state.incidents.closed)
        still = after if state.incidents.open is one else state.incidents.open
        state = replace(state, incidents=replace(state.incidents, closed=incidents, open=still))
    line = root_line(root.name, root.role, root.text)
    sentence = f"{line[0].upper()}{line[1:]} (incident {fact.incident}, attempt {fact.attempt}). Remedy: {fact.remedy}"
    told = say("root-cause", sentence.removesuffix(" Remedy: "), "error", incident=fact.incident, **asdict(root))
    return state, [told]


def _setup_done(before: State, state: State, fact: f.SetupDone) -> tuple[State, Actions]:
    if not before.setup_pending:
        return state, []
    if not fact.reason:
        return state, [say("setup", "The pod's [setup] commands are done.")]
    if state.live or state.mode in ("stopped", "leaving", *ENDED):
        return state, [say("setup", f"The pod's [setup] failed: {fact.reason}", "error")]
    return end(state, "gave-up", EXIT_PERSON, f"The pod's [setup] failed: {fact.reason}")


def _setup_part(before: State, state: State, fact: f.SetupPart) -> tuple[State, Actions]:
    part = state.setup[fact.name]
    if part.took_s is None or fact.name == "commands":  # of those ``SetupDone`` tells
        return state, []
    if fact.reason:
        return state, [say("setup", f"{fact.reason} The job itself fetches what it lacks.", "warning")]
    return state, [say("setup", f"Done beside [setup] after {span(part.took_s)}: {fact.name}")]


def _hook_done(before: State, state: State, fact: f.HookDone) -> tuple[State, Actions]:
    if state.mode != "finishing":
        return state, []
    acts: Actions = []
    if fact.reason:
        acts.append(say("hook-failed", f"The {fact.hook} hook failed: {fact.reason}", "error"))
    return with_all(acts, end(state, "finished", EXIT_OK, finished_sentence(state)))


def _warn_of_hardware(before: State, state: State, fact: f.HostLook | f.GpuLook | f.GpuFault) -> tuple[State, Actions]:
    return warn(before, recurring.told_late(before, state))


def _store_steps(before: State, state: State, fact: f.StoreSteps) -> tuple[State, Actions]:
    if not fact.reason:
        return pinned_steps.react_to_listing(before, state)
    if fact.reason == before.store.reason:
        return state, []
    return state, [say("store-unknown", f"The store cannot be listed: {fact.reason}", "warning")]


_HANDLERS: dict[type, Callable[[State, State, Any], tuple[State, Actions]]] = {
    f.DaemonStarted: _daemon_started,
    f.Command: orders.react,
    f.AttemptStarted: _attempt_started,
    f.AttemptAdopted: _attempt_adopted,
    f.StartFailed: lambda before, state, fact: start_failed(state, fact),
    f.AttemptStopped: _attempt_stopped,
    f.StepDone: step_done.react,
    f.ErrorSeen: step_done.judge_training,
    f.RootSeen: _root_seen,
    f.EngineStartFailed: own_engine.start_failed,
    f.EngineStopped: own_engine.react_to_stop,
    f.HostLook: _warn_of_hardware,
    f.GpuLook: _warn_of_hardware,
    f.GpuFault: _warn_of_hardware,
    f.StoreSteps: _store_steps,
    **dict.fromkeys(fencing.HANDLERS, fencing.react),
    f.RestoreFailed: _restore_failed,
    f.LeaveSoon: lambda before, state, fact: leaving.soon(state, fact),
    f.PublishMoves: lambda before, state, fact: leaving.report_publish_progress(state),
    f.SetupDone: _setup_done,
    f.SetupPart: _setup_part,
    f.HookDone: _hook_done,
    f.Suppressed: _go_on_without_effect,
    f.EffectCrashed: _effect_crashed,
}
