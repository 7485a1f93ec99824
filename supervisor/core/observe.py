"""Fold one fact into the state: knowledge only, no judgement and no action.

One small function a fact, found by its type. What concerns another attempt than the present one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.core import facts as f
from supervisor.core import machines, observe_engine, observe_job, observe_steps
from supervisor.core.evolve import replace
from supervisor.core.observe_job import last_update
from supervisor.core.phases import merge_learned
from supervisor.core.state import (
    EngineMemory,
    Fence,
    Gone,
    GpuMemory,
    Job,
    Leave,
    Left,
    Machine,
    SetupTimes,
    State,
    Suspicion,
    Work,
)
from supervisor.core.under_way import free_slots
from supervisor.core.waking import is_back, wake
from supervisor.core.watch import NEVER

STAYS_S = 60.0  # after the moment at which a pod was to be gone
CRASH_PAUSE_S = 60.0  # before an effect that crashed is asked for again
OF_THE_ENGINE = ("engine-dead", "engine-stalled", "connection-error")  # what its end leaves in the logs
SUPPRESSED_AGAIN_S = 3600.0


def observe(state: State, observation: f.Observation) -> State:
    """The state after ``observation``; time never runs backwards."""
    t, fact, before = observation.t, observation.fact, state
    state = replace(state, now=t if t > state.now else state.now, wall=observation.wall)
    if is_of_the_past(state, fact):
        return state
    state = free_slots(state, fact)
    handler = _HANDLERS.get(type(fact))
    if handler is None:
        return state
    seen = handler(state, fact)
    return wake(seen) if is_back(before, seen, fact) else seen


_OF_AN_ATTEMPT = (
    f.ProcessSeen,
    f.ProcessGone,
    f.ComponentExited,
    f.AttemptStarted,
    f.AttemptStopped,
    f.StartFailed,
)
_OF_AN_ENGINE = (f.EngineStarted, f.EngineStartFailed, f.EngineExited, f.EngineStopped)


def is_of_the_past(state: State, fact: f.Fact) -> bool:
    """Does it concern an attempt, or an inference server of ours, other than the present one?"""
    if isinstance(fact, _OF_AN_ATTEMPT):
        return fact.attempt != state.attempt.number
    return isinstance(fact, _OF_AN_ENGINE) and fact.engine != state.own.number


def fresh_attempt(state: State) -> State:
    """Forget what was known of the attempt before; what was learned of the run stays."""
    gpus = {
        uuid: GpuMemory(m.gpu, m.plateau_bytes if m.gpu.role == "other" else 0, power_high_w=m.power_high_w)
        for uuid, m in state.gpus.by_uuid.items()
    }
    # What the driver told only after the end that it caused still speaks against the GPU.
    incident = state.incidents.open
    trouble = tuple(one for one in state.gpus.trouble if incident is not None and one.t >= incident.decided)
    return replace(
        state,
        engine=EngineMemory(),
        engines={},
        progress=replace(state.progress, step=None, t=state.now, timed=True),
        left=None,
        job=Job(),
        gpus=replace(state.gpus, by_uuid=gpus, trouble=trouble),
        suspicion=Suspicion(),
        observing=replace(state.observing, spared=""),
    )


def rebase(state: State) -> State:
    """Start all deadlines anew: another daemon watched until now. ``adoption`` puts back what is known."""
    now = state.now
    return replace(
        state,
        progress=replace(state.progress, t=now, timed=False),
        engine=_rebase_engine(state.engine, now),
        engines={name: _rebase_engine(engine, now) for name, engine in state.engines.items()},
        attempt=replace(state.attempt, started=now if state.mode == "starting" else state.attempt.started),
        job=_job_later(state.job, lambda t: now),
        gpus=replace(state.gpus, by_uuid={uuid: machines.without_times(m) for uuid, m in state.gpus.by_uuid.items()}),
        suspicion=Suspicion(),
        machines={
            name: replace(
                one, speaks=False, silent_since=None, down="", sees_gpus=False, host=replace(one.host, look=None)
            )
            for name, one in state.machines.items()
        },
    )


def _job_later(job: Job, later: Callable[[float], float]) -> Job:
    """With what was seen of it at later times; what its processes did meanwhile was not seen."""
    update = last_update(job)
    return replace(
        job,
        phases={role: replace(phase, t=later(phase.t), timed=False) for role, phase in job.phases.items()},
        update=update and replace(update, t=later(update.t)),
        growth={what: replace(growth, t=later(growth.t)) for what, growth in job.growth.items()},
        work=_work_later(job.work, later),
        efforts={},
        activity=None,
        pictures={},
        gone=tuple(replace(gone, t=later(gone.t)) for gone in job.gone),
    )


def _work_later(work: Work | None, later: Callable[[float], float]) -> Work | None:
    return None if work is None else replace(work, t=later(work.t), moved_t=later(work.moved_t))


def _rebase_engine(engine: EngineMemory, now: float) -> EngineMemory:
    engine = replace(engine, moved_t=now, worked_t=now, work_since=None, units={})
    return replace(engine, bad_since=None, bad_looks=0, slow_since=None, liveness_misses=0, canary_misses=0)


def _left_later(left: Left | None, later: Callable[[float], float]) -> Left | None:
    if left is None:
        return None
    return replace(
        left,
        since=later(left.since),
        progress_t=later(left.progress_t),
        started=later(left.started),
        phases={role: replace(phase, t=later(phase.t)) for role, phase in left.phases.items()},
        update=left.update and replace(left.update, t=later(left.update.t)),
        worked_t=later(left.worked_t),
        work=_work_later(left.work, later),
    )


def suspend(state: State, seconds: float) -> State:
    """The host stood still for ``seconds``: no deadline counts them, and what was a miss may have been the pause."""
    now = state.now

    def later(t: float) -> float:
        return min(now, t + max(0.0, seconds))

    def later_if(t: float | None) -> float | None:
        return None if t is None else later(t)

    def engine_later(engine: EngineMemory) -> EngineMemory:
        return replace(
            engine,
            moved_t=later(engine.moved_t),
            worked_t=later(engine.worked_t),
            counted_t=later(engine.counted_t),
            lively_t=later(engine.lively_t) if engine.lively_t else 0.0,  # it may have no /liveness
            work_since=later_if(engine.work_since),
            bad_since=later_if(engine.bad_since),
            slow_since=later_if(engine.slow_since),
            bad_looks=0,
            liveness_misses=0,
            canary_misses=0,
            units={},
        )

    explained = tuple((later(began), later(ended)) for began, ended in state.job.explained)
    return replace(
        state,
        progress=replace(state.progress, t=later(state.progress.t), timed=False),
        engine=engine_later(state.engine),
        engines={name: engine_later(engine) for name, engine in state.engines.items()},
        left=_left_later(state.left, later),
        attempt=replace(state.attempt, started=later(state.attempt.started)),
        job=replace(_job_later(state.job, later), explained=explained),
        gpus=replace(
            state.gpus,
            by_uuid={
                uuid: replace(
                    m,
                    fallen_since=later_if(m.fallen_since),
                    rests_since=later_if(m.rests_since),
                    loaded_since=later_if(m.loaded_since),
                )
                for uuid, m in state.gpus.by_uuid.items()
            },
        ),
        suspicion=Suspicion(),
        machines={name: replace(one, silent_since=later_if(one.silent_since)) for name, one in state.machines.items()},
    )


# ---------------------------------------------------------------- attempts, people, daemon


def _attempt_started(state: State, fact: f.AttemptStarted) -> State:
    used = {name: state.machines.get(name, Machine()) for name in fact.machines}
    used = {name: replace(one, attempt=fact.attempt, failed_starts=0, sees_gpus=False) for name, one in used.items()}
    # What a machine that is left out shows is none of the run's.
    gpus = {uuid: memory for uuid, memory in state.gpus.by_uuid.items() if memory.gpu.host in ("", *fact.machines)}
    return replace(
        state,
        progress=replace(state.progress, t=state.now),
        attempt=replace(state.attempt, pid=fact.pid, started=state.now),
        # A launch moves what lies after its step out of the way: on a full disk that may go at once, even if the start
        # was preceded by a pruning.
        disk=replace(state.disk, stale_attempt=-1),
        gpus=replace(state.gpus, by_uuid=gpus),
        machines={**state.machines, **used},
    )


def _setup_part(state: State, fact: f.SetupPart) -> State:
    part = state.setup.get(fact.name, SetupTimes(state.now))
    if fact.ended:
        part = replace(part, took_s=state.now - part.since, reason=fact.reason)
    return replace(state, setup={**state.setup, fact.name: part})


def _effect_crashed(state: State, fact: f.EffectCrashed) -> State:
    """What crashed is asked for again after a pause."""
    after = state.now + CRASH_PAUSE_S
    match fact.lane:
        case "publish":
            held = f"a defect in the supervisor: {fact.reason}"
            failures = state.publishing.failures + 1
            return replace(state, publishing=replace(state.publishing, failures=failures, after=after, held=held))
        case "prune":
            return replace(state, disk=replace(state.disk, prune_after=after))
        case "pin":
            return replace(state, pins=replace(state.pins, holds_after=after))
        case "prune-store":
            return replace(state, publishing=replace(state.publishing, after=after))
        case "setup":
            return replace(state, setup_pending=False)
    return state


def _config_changed(state: State, fact: f.ConfigChanged) -> State:
    others = tuple(path for path in state.orders.config_changed if path != fact.path)
    return replace(state, orders=replace(state.orders, config_changed=others + (() if fact.same else (fact.path,))))


def _observe_suppressed_effect(state: State, fact: f.Suppressed) -> State:
    """Nothing was done. As if it had failed, but asked for anew much later: a person hears of it now and then."""
    later, ours = state.now + SUPPRESSED_AGAIN_S, fact.number == state.own.number
    match fact.action:
        case "PruneLocal" | "PruneStale":
            return replace(state, disk=replace(state.disk, prune_after=later))
        case "PruneStore":
            return replace(state, store=replace(state.store, prune_after=later))
        case "Setup":
            return replace(state, setup_pending=False)
        case "StartEngine" if ours:
            return replace(state, own=replace(state.own, asked="", wanted=False))
        case "StopEngine" if ours:
            return replace(state, own=replace(state.own, asked="", alone=False, stop_after=later))
    return state


def _engine_started(state: State, fact: f.EngineStarted) -> State:
    return replace(state, own=replace(state.own, alive=True, pid=fact.pid, asked=""))


def _engine_start_failed(state: State, fact: f.EngineStartFailed) -> State:
    return replace(state, own=replace(state.own, alive=False, pid=None, asked=""))


def _engine_exited(state: State, fact: f.EngineExited) -> State:
    own = state.own
    if not own.alive:
        return state
    state = replace(state, own=replace(own, alive=False))
    if own.asked or not state.live or any(gone.role == "inference" for gone in state.job.gone):
        return state
    gone = (*state.job.gone, Gone("inference", own.pid or 0, state.now))[-16:]
    return replace(state, job=replace(state.job, gone=gone))


def _engine_stopped(state: State, fact: f.EngineStopped) -> State:
    processes = {key: one for key, one in state.job.processes.items() if one.role != "inference"}
    gone = tuple(one for one in state.job.gone if one.role != "inference")
    errors = {name: one for name, one in state.job.errors.items() if name not in OF_THE_ENGINE}
    known = state.gpus.by_uuid.items()
    gpus = {uuid: m if m.gpu.role == "trainer" else GpuMemory(m.gpu, look_t=-NEVER) for uuid, m in known}
    return replace(
        state,
        own=replace(state.own, alive=False, pid=None, asked=""),
        engine=EngineMemory(),
        job=replace(state.job, processes=processes, gone=gone, errors=errors),
        gpus=replace(state.gpus, by_uuid=gpus),
    )


def _store_records(state: State, fact: f.StoreRecords) -> State:
    learned = merge_learned(state.books.learned, fact.learned) if fact.learned is not None else state.books.learned
    return replace(state, books=replace(state.books, learned=learned, others=fact.ledgers))


def _stays_at(state: State) -> float | None:
    """The daemon before left a pod that was about to go, in the midst of a stop: when that pod, if it is still there,
    counts as one that stays. None: there is nothing to wait for.
    """
    until, at = state.leave.until, state.leave.stays_at
    if state.mode == "stopping" and state.ending.said and until is not None:
        at = until + STAYS_S
    return at if at is not None and at > state.now else None


def _daemon_started(state: State, fact: f.DaemonStarted) -> State:
    # Effects of the daemon before are gone; those that matter are asked for again by the policy.
    own = replace(state.own, asked="", alive=state.own.number > 0 and fact.engine_adopted == state.own.number)
    return rebase(
        replace(
            state,
            settings=fact.settings,
            journal=fact.journal or state.journal,
            began=state.now,
            own=own,
            setup_pending=fact.setup,
            setup={},
            fence=Fence(once=state.fence.once, unswept=state.fence.unswept),
            leave=Leave(stays_at=_stays_at(state)),
            local=replace(state.local, asked=None),
            tier=replace(state.tier, waiting=(), failed=""),  # told anew before the steps are listed
            publishing=replace(state.publishing, held="this daemon has only just begun."),
        )
    )


_HANDLERS: dict[type, Callable[[State, Any], State]] = {
    **observe_job.HANDLERS,
    **observe_steps.HANDLERS,
    f.EngineLook: observe_engine.observe_engine,
    f.Suppressed: _observe_suppressed_effect,
    f.EngineStarted: _engine_started,
    f.EngineStartFailed: _engine_start_failed,
    f.EngineExited: _engine_exited,
    f.EngineStopped: _engine_stopped,
    f.StoreRecords: _store_records,
    f.AttemptStarted: _attempt_started,
    f.SetupDone: lambda state, fact: replace(state, setup_pending=False),
    f.SetupPart: _setup_part,
    f.SettingsChanged: lambda state, fact: replace(state, settings=fact.settings),
    f.EffectCrashed: _effect_crashed,
    f.ConfigChanged: _config_changed,
    f.ClockJumped: lambda state, fact: suspend(state, abs(fact.seconds)),
    # A step may stand in them: the silence since the daemon before is not known.
    f.LinesMissed: lambda state, fact: replace(state, left=None),
    f.PublishMoves: lambda state, fact: replace(state, leave=replace(state.leave, moves=fact)),
    f.StoreBack: lambda state, fact: state,
    f.DaemonStarted: _daemon_started,
}
