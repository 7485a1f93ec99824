"""Keep the ledger: each second of a journal goes into one category, decided when what it was spent on is over.

Time is attributed lazily, from a mark: nothing is done while neither mode, step, phase nor attempt changes.

===================================================  ===========================================================
what passed                                          where it is booked
===================================================  ===========================================================
from step to step, while the job runs                GOODPUT, less the trainer's checkpoint saves in it
the trainer's phase ``checkpoint``                   UNPRODUCTIVE_CHECKPOINT_SAVE_TIME
from the launch to the first step                    PROGRAM_STARTUP
a step fetched from the store                        UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME
from the first sign of an incident to its verdict    DETECTION
the part of a step before that; steps above the one  WASTED_PROGRESS_FROM_DISRUPTION
at which a later attempt resumes
ending the job                                       STOPPING
back-off, surveying, a full disk, the last publish,  WAITING
a person who is needed
a pod that is set up, unfit, or was shut down while  INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION
the run was wanted; a daemon that was away when the
job died
stopped by a person, or finished                     STOPPED_BY_A_PERSON
===================================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core import facts as f
from supervisor.core import goodput as g
from supervisor.core import time_kinds as k
from supervisor.core.evolve import replace
from supervisor.core.goodput import Ledger, Outage
from supervisor.core.state import Incident, Phase, State

READ_LATE_S = 1.0
SAVING = "checkpoint"  # the phase, in ``supervisor.jobs.base.PHASES``
_BOOKED = frozenset(
    {f.DaemonStarted, f.AttemptStarted, f.AttemptAdopted, f.Published, f.Claimed, f.Command, f.SetupDone, f.Suppressed}
)
_CATEGORIES = {
    "restoring": k.RESTORE,
    "starting": k.STARTUP,
    "running": k.PRODUCTIVE,
    "stopping": k.STOPPING,
    "surveying": k.WAITING,
    "backing-off": k.WAITING,
    "disk-full": k.WAITING,
    "publishing": k.WAITING,
    "gave-up": k.WAITING,
    "unfit": k.INFRASTRUCTURE,
    "stopped": k.STOPPED,
    "finished": k.STOPPED,
}


def account(before: State, after: State, fact: f.Fact) -> Ledger:
    """The ledger after one fact. ``before`` holds the one until then; ``after`` is what was decided about the fact."""
    ledger = before.books.ledger
    if (
        before.mode == after.mode
        and before.progress is after.progress
        and before.job.phases is after.job.phases
        and before.incidents.open is after.incidents.open
        and before.attempt.number == after.attempt.number
        and fact.__class__ not in _BOOKED
    ):
        return ledger
    if ledger.mark is None:
        return replace(ledger, mark=after.now, wall=after.wall, began_wall=after.wall, last=_category(after))
    match fact:
        case f.DaemonStarted() if before.live:
            ledger = replace(ledger, away=after.now - before.now)
            # Hours without a daemon are no save: the next interval would be chosen by it.
            ledger = ledger if ledger.saving is None else _end_save(ledger, before.now)
        case f.AttemptAdopted() if fact.attempt == after.attempt.number:
            ledger = replace(ledger, away=0.0)
        case f.Published() if fact.sent_bytes:
            ledger = replace(
                ledger,
                uploads=ledger.uploads + 1,
                upload_s=ledger.upload_s + fact.seconds,
                upload_bytes=ledger.upload_bytes + fact.sent_bytes,
            )
    if before.job.phases is not after.job.phases:
        ledger = _phases(ledger, before, after)
    ledger = _book_if_over(ledger, before, after, fact)
    if isinstance(fact, f.AttemptStarted) and fact.attempt == after.attempt.number:
        ledger = _resume_at(ledger, after, g.FROM_SCRATCH if fact.step is None else fact.step)
    elif isinstance(fact, f.Claimed) and before.live and fact.generation != (before.fence.once or 0) + 1:
        # Another pod had the run while the job went on here: from its next step on, this one's steps are the run's.
        step = after.progress.step
        ledger = ledger if step is None else g.start_ledger(ledger, step, after.wall, fact.generation)
    if after.recovery.restarts != before.recovery.restarts:
        ledger = replace(ledger, restarts=ledger.restarts + after.recovery.restarts - before.recovery.restarts)
    if before.incidents.open is not after.incidents.open:
        ledger = _incident(ledger, before, after)
    return ledger


def ledger_until_now(state: State) -> Ledger:
    """The ledger up to now, as if what is under way ended well: to be shown, and to be kept in the store."""
    ledger = state.books.ledger
    if ledger.mark is None:
        return ledger
    if state.mode != "running":
        return _book_until_now(ledger, state, {_category(state): state.now - ledger.mark})
    pending = max(0.0, state.now - ledger.mark)
    doubtful = min(pending, state.now - _first_sign(state, state.now))
    saved = min(_saves(ledger, state.now), pending - doubtful)
    productive = pending - doubtful - saved
    step = state.progress.step or 0
    ledger = replace(ledger, spans=g.with_span(ledger.spans, (step + 1, step, productive), ledger.starts))
    return _book_until_now(ledger, state, {k.PRODUCTIVE: productive, k.SAVE: saved, k.DETECTION: doubtful})


def _book_if_over(ledger: Ledger, before: State, after: State, fact: f.Fact) -> Ledger:
    """Book the time since the mark if what it was spent on is over."""
    same = before.attempt.number == after.attempt.number
    step = after.progress.step
    if same and step is not None and step != before.progress.step:
        return _step(ledger, before, after, fact)
    if before.live:
        return ledger if after.live and same else _broken_off(ledger, before, after)
    if before.mode == after.mode and _category(before) == _category(after):
        return ledger
    return _book_until_now(ledger, after, {_category(before): after.now - (ledger.mark or 0.0)})


def _book_until_now(ledger: Ledger, state: State, parts: Mapping[str, float]) -> Ledger:
    """All time until now is booked, in these parts."""
    ledger = g.book(ledger, parts)
    return replace(ledger, mark=state.now, wall=state.wall, last=_category(state), saved=0.0, away=0.0)


def _step(ledger: Ledger, before: State, after: State, fact: f.Fact) -> Ledger:
    """A step is done."""
    now, step, previous = after.now, after.progress.step or 0, before.progress.step
    if previous is None:
        ledger = _resume_at(ledger, after, step - 1)  # what is done again was lost, whatever the logs said about it
    if ledger.saving is not None:
        # No line said when the save ended, so it ended at the latest when the step itself began.
        own = (fact.duration_s or 0.0) if isinstance(fact, f.StepDone) else 0.0
        ledger = _end_save(ledger, max(ledger.saving, now - own))
    pending = now - (ledger.mark or 0.0)
    saved = min(ledger.saved, pending)
    took = pending - saved
    if isinstance(fact, f.StepDone) and (fact.duration_s or 0.0) > now - after.attempt.started + READ_LATE_S:
        # A line from before the watch began: a job that a person started, and that was attached late.
        return _book_until_now(
            ledger, after, {k.STARTUP if before.mode == "starting" else k.PRODUCTIVE: took, k.SAVE: saved}
        )
    first = step if previous is None or previous >= step else previous + 1  # lines may have been missed
    ledger = replace(ledger, steps=ledger.steps + step - first + 1)
    if before.mode == "starting":
        ledger = replace(ledger, spans=g.with_span(ledger.spans, (first, step, 0.0), ledger.starts))
        return _book_until_now(ledger, after, {k.STARTUP: took, k.SAVE: saved})
    ledger = replace(
        ledger,
        spans=g.with_span(ledger.spans, (first, step, took), ledger.starts),
        timed=ledger.timed + step - first + 1,
        timed_s=ledger.timed_s + took,
    )
    return _book_until_now(ledger, after, {k.PRODUCTIVE: took, k.SAVE: saved})


def _broken_off(ledger: Ledger, before: State, after: State) -> Ledger:
    """The attempt ends between two steps, or before the first."""
    now = after.now
    rest = now - (ledger.mark or 0.0)
    detection = 0.0
    if after.incidents.open is not None:
        newly = before.incidents.open is None or before.incidents.open.id != after.incidents.open.id
        sign = after.incidents.open.opened if newly else _first_sign(before, now)
        detection = min(rest, max(0.0, now - sign))
    rest -= detection
    away = min(ledger.away, rest)
    rest -= away
    saved = min(_saves(ledger, now), rest)
    rest -= saved
    finished = after.attempt.after_stop == "finish" or after.mode in ("publishing", "finishing", "finished")
    what = k.STARTUP if before.mode == "starting" else k.OTHER if finished else k.WASTED
    ledger = replace(ledger, saves=ledger.saves + (ledger.saving is not None), saving=None)
    return _book_until_now(ledger, after, {k.DETECTION: detection, k.INFRASTRUCTURE: away, k.SAVE: saved, what: rest})


def _first_sign(state: State, now: float) -> float:
    """Since when the attempt has been in doubt; ``now``, when it is not."""
    signs = [now if state.suspicion.since is None else state.suspicion.since]
    if state.job.gone:
        signs.append(state.job.gone[0].t)
    if state.job.ended is not None:
        signs.append(state.job.ended.t)
    return min(signs)


def _phases(ledger: Ledger, before: State, after: State) -> Ledger:
    for role in ("trainer", "job"):
        old, new = before.job.phases.get(role), after.job.phases.get(role)
        if new is old:
            continue
        saves = new is not None and new.phase == SAVING
        if ledger.saving is not None and not saves:
            ledger = _end_save(ledger, _save_ended(ledger.saving, old, after))
        elif ledger.saving is None and new is not None and saves and after.live:
            again = old is not None and (old.phase, old.step) == (new.phase, new.step)
            ledger = ledger if again else replace(ledger, saving=after.now)
    return ledger


def _save_ended(begun: float, phase: Phase | None, state: State) -> float:
    """When the newest file of the saved step was written, if the sensor saw it: it waits for quiet, the trainer not."""
    saved = (s for s in state.local.steps if phase and s.step == phase.step and s.state == "complete")
    written = next((state.now - (state.wall - s.changed_wall) for s in saved), state.now)
    return written if begun <= written <= state.now else state.now


def _end_save(ledger: Ledger, until: float) -> Ledger:
    """The save that is under way is over."""
    return replace(ledger, saved=_saves(ledger, until), saving=None, saves=ledger.saves + 1)


def _saves(ledger: Ledger, until: float) -> float:
    """Seconds of saves since the mark."""
    return ledger.saved + (max(0.0, until - ledger.saving) if ledger.saving is not None else 0.0)


def _resume_at(ledger: Ledger, state: State, step: int) -> Ledger:
    """The attempt goes on at ``step``. It has had the run since it was started, not since its first step."""
    wall = max(ledger.began_wall or 0.0, state.wall - max(0.0, state.now - state.attempt.started))
    return g.resume_ledger(ledger, step, wall, state.fence.generation)


def _incident(ledger: Ledger, before: State, after: State) -> Ledger:
    old, new = before.incidents.open, after.incidents.open
    if old is not None and (new is None or new.id != old.id):
        last = after.incidents.closed[-1] if after.incidents.closed else None
        closed = last if last is not None and last.id == old.id else None
        outage = _outage(closed or old, after.now, ledger.steps_lost - ledger.lost_before)
        ledger = replace(ledger, outages=(*ledger.outages, outage)[-g.MOST_OUTAGES :])
    if new is not None and (old is None or new.id != old.id):
        ledger = replace(ledger, incidents=ledger.incidents + 1, lost_before=ledger.steps_lost)
    return ledger


def _outage(incident: Incident, now: float, steps_lost: int) -> Outage:
    opened = incident.opened
    end = max(opened, incident.closed if incident.closed is not None else now)
    decided = min(end, max(opened, incident.decided))
    stopped = min(end, max(decided, incident.stopped if incident.stopped is not None else end))
    relaunched = min(end, max(stopped, incident.relaunched if incident.relaunched is not None else end))
    lasted = decided - opened, stopped - decided, relaunched - stopped, end - relaunched
    is_over = incident.closed is not None
    return Outage(incident.id, incident.cause, incident.opened_wall, incident.step, *lasted, steps_lost, is_over)


def _category(state: State) -> str:
    """What time in the state's mode is spent on."""
    if state.mode == "surveying" and state.setup_pending:
        return k.INFRASTRUCTURE
    if state.mode == "leaving":
        # A daemon that is told to end while the run is wanted: a reboot, a pod that is taken away, an upgrade.
        return k.INFRASTRUCTURE if state.orders.wanted else k.STOPPED
    return _CATEGORIES.get(state.mode, k.OTHER)
