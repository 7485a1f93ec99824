"""The recovery policy: which cause, at which place, with which history, leads to what. The first row that fits decides.

Causes are the names of verdicts (``verdicts``) and of signatures (``supervisor.signatures``). Places: ``start`` is
before an attempt's first new step, ``run`` after it. ``docs/decisions.md`` explains each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from supervisor.base.records import dataclass
from supervisor.core import machines, recurring, stuck
from supervisor.core.blame import TWICE, at_one_place, is_one_of, is_unreadable, suspects
from supervisor.core.proof import Verdict
from supervisor.core.retention import disk_short, safe_locally
from supervisor.core.starts import HUNG, fruitless_s
from supervisor.core.state import State
from supervisor.core.words import span

Do = Literal["give-up", "unfit", "wait", "wait-for-room", "step-back", "engine-alone", "job-alone", "restart"]
MOST_WAITS = 12  # their limits double from 1 to 20 min and half of each is waited on average: an hour and a half
SERVED = 400  # tokens or iterations: more than our own requests take in an hour, where /liveness is not there
WAITS_ELSEWHERE = 5  # each behind a start of ten minutes or more: an hour and a half
FRUITLESS_STARTS = 2  # so many times ``deadlines.startup`` are spent on starts that show nothing new


@dataclass(frozen=True)
class Row:
    """One line of the policy. ``causes``: patterns as of a shell; ``why`` is said with the decision."""

    causes: tuple[str, ...]
    place: Literal["any", "start", "run"]
    history: str
    do: Do
    why: str


ENGINE = ("engine-*",)
NETWORK = ("wandb-unreachable", "hub-unreachable", "hub-rate-limited")

TABLE = (
    # causes, place, history -> what follows, and why
    Row(("gpu-lost",), "any", "any", "unfit", "A lost GPU comes back with another pod, not with a restart."),
    Row(("*",), "any", "same gpu", "unfit", "{gpu}: another pod goes on."),
    Row(("*",), "any", "no other machine", "unfit", "No other machine is well: another allocation goes on."),
    Row(("*",), "any", "incurable", "give-up", "A restart cannot cure this: mend it, then start the run again."),
    Row(NETWORK, "start", "patient", "wait", "The network is away, which is not the run's fault: it waits longer."),
    Row(("start-stuck",), "start", "served", "wait", "All wait, perhaps for a judge elsewhere: it waits longer."),
    Row(("disk-full",), "any", "no room", "wait-for-room", "No local step is safe to delete: it waits for room."),
    Row(HUNG, "start", "nothing new", "give-up", "{fruitless} of starts showed nothing new."),
    Row(("*",), "start", "unreadable", "step-back", "The job could not read the checkpoint of step {step}."),
    Row(("*",), "any", "same place", "step-back", "The job crashed twice soon after step {step}."),
    Row(("*",), "any", "last resort", "step-back", "No new complete step after step {step} in {tries} restarts."),
    Row(("*",), "any", "no progress", "give-up", "No new complete step in {tries} restarts: giving up, all is kept."),
    Row(ENGINE, "run", "engine first", "engine-alone", "Only the inference server failed: the job goes on without it."),
    Row(("*",), "any", "engine well", "job-alone", "The inference server is well and is kept warm."),
    Row(("startup-overdue",), "start", "any", "restart", "The next start is given more time if it shows more."),
    Row(("*",), "any", "any", "restart", ""),
)


def row_for(state: State, verdict: Verdict) -> Row:
    """The row that decides about ``verdict``; ``state`` counts this failure already."""
    place = "start" if state.mode == "starting" or state.progress.step is None else "run"
    for row in TABLE:
        fits = row.place in ("any", place) and is_one_of(verdict.cause, row.causes)
        if fits and HISTORY[row.history](state, verdict):
            return row
    raise AssertionError("the last row of the policy fits everything")


def why(row: Row, state: State) -> str:
    """The row's reason with the run's own numbers."""
    return row.why.format(
        tries=state.recovery.barren - 1,
        step=state.attempt.resume_step,
        gpu=recurring.failing_gpu(state),
        fruitless=span(fruitless_s(state)),
    )


# ---------------------------------------------------------------- histories


def lower_good_step(state: State) -> int | None:
    """The good step below the resume step, while the resume step is still good itself."""
    step, good = state.attempt.resume_step, {*state.good_local(), *state.good_stored()}
    if step is None or step not in good:
        return None
    return max((s for s in good if s < step), default=None)


def _may_step_back(state: State) -> bool:
    return not state.recovery.stepped_back and lower_good_step(state) is not None


def _unreadable(state: State, verdict: Verdict) -> bool:
    # Proven each time, so it may go down more than once.
    return lower_good_step(state) is not None and is_unreadable(state, verdict)


def _same_place(state: State, verdict: Verdict) -> bool:
    return _may_step_back(state) and at_one_place(suspects(state))


def _last_resort(state: State, verdict: Verdict) -> bool:
    return _no_progress(state, verdict) and _may_step_back(state) and len(suspects(state)) >= TWICE


def _no_progress(state: State, verdict: Verdict) -> bool:
    return state.recovery.barren > state.settings.max_restarts


def _waits_elsewhere(state: State, verdict: Verdict) -> bool:
    """Is it neither engine nor trainer that keeps all waiting? A judge elsewhere may be away for an hour."""
    found, engine = stuck.find(state), state.engine
    ours = engine.ours if engine.lively_t else SERVED
    worked = engine.worked_t > state.attempt.started and (engine.count or 0) > ours
    answers = engine.look is not None and engine.look.health == "ok" and not engine.liveness_misses
    wedged = found.cause == "orchestrator-wedged" and not found.sure
    return worked and answers and wedged and state.recovery.waits < WAITS_ELSEWHERE


def _first_try(state: State) -> bool:
    """Is this the first thing that is tried in this incident? Half a restart that did not help is not repeated."""
    return state.incidents.open is not None and state.incidents.open.decided == state.now


def _engine_first(state: State, verdict: Verdict) -> bool:
    settings = state.settings
    own = settings.inference == "own-role" and state.own.number > 0
    return own and settings.engine_alone and verdict.kind != "exited" and _first_try(state)


def _engine_well(state: State, verdict: Verdict) -> bool:
    own, settings = state.own, state.settings
    well = settings.inference == "own-role" and own.alive and not own.asked and settings.engine_warm
    # A fresh start needs a fresh server: prime-rl gives it no weights then, and it may hold those of an undone step.
    resumes = state.last_good is not None
    # A job that ended for want of a server that was restarted alone has a new one, up or not.
    new = own.alone and verdict.kind in ("exited", "dead")
    ready = new or (state.engine.ever_ok and _first_try(state))
    return well and resumes and ready and not is_one_of(verdict.cause, ENGINE)


HISTORY: dict[str, Callable[[State, Verdict], bool]] = {
    "any": lambda state, verdict: True,
    "incurable": lambda state, verdict: verdict.deterministic,
    "patient": lambda state, verdict: state.recovery.waits < MOST_WAITS,
    "served": _waits_elsewhere,
    "no room": lambda state, verdict: disk_short(state) and not safe_locally(state, keep=1),
    "no other machine": lambda state, verdict: machines.has_no_other(state, verdict.host),
    "same gpu": lambda state, verdict: recurring.failing_gpu(state) != "",
    "nothing new": lambda state, verdict: fruitless_s(state) >= FRUITLESS_STARTS * state.settings.startup,
    "unreadable": _unreadable,
    "same place": _same_place,
    "last resort": _last_resort,
    "no progress": _no_progress,
    "engine first": _engine_first,
    "engine well": _engine_well,
}
