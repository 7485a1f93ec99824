"""Fold one fact into the state: knowledge only, no judgement and no action.

One small function a fact, found by its type. Whatever concerns an attempt other than the present one is dropped here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.core import facts as f
from supervisor.core.deadlines import GROWS_S
from supervisor.core.evolve import replace, settle
from supervisor.core.phases import STEP, learn, merged
from supervisor.core.state import (
    BEING_LISTED,
    Busy,
    Ended,
    EngineMemory,
    EngineUnit,
    Error,
    Gone,
    GpuMemory,
    GpuTrouble,
    Growth,
    Phase,
    Process,
    Progress,
    State,
    Work,
)
from supervisor.core.watch import NEVER

NEAR_ZERO = 0.10  # of the plateau: what "memory fell to nothing" means on a GPU that only the engine uses
SHARED_DROP = 0.75  # of the plateau: below it one of two tenants of a shared GPU must have left
HELD_S = 3.0  # how long a level must stand to count as the plateau
KEEP_REWARDS = 16  # steps by which the orchestrator may be ahead of the trainer
CRASH_PAUSE_S = 60.0  # before an effect that crashed is asked for again
CHOOSE_ANEW_S = 5.0
OF_THE_ENGINE = ("engine-dead", "engine-stalled", "connection-error")  # what its end leaves in the logs
SUPPRESSED_AGAIN_S = 3600.0
# The GPU, or its memory, is no longer usable without a reset (NVIDIA, "Xid Errors": double-bit ECC, row remapping
# failure, fallen off the bus, NVLink, uncontained ECC, GSP time-out and error). Others are mostly the program's own.
FATAL_XIDS = frozenset({48, 64, 74, 79, 95, 119, 120})
COUNTED = ("trainer", "job")  # roles whose steps are the run's steps


def observe(state: State, observation: f.Observation) -> State:
    """The state after ``observation``; time never runs backwards."""
    t, fact = observation.t, observation.fact
    state = replace(state, now=t if t > state.now else state.now, wall=observation.wall)
    handler = _HANDLERS.get(type(fact))
    return handler(state, fact) if handler else state


def fresh_attempt(state: State) -> State:
    """Forget what was known of the attempt before; what was learned of the run stays."""
    return replace(
        state,
        ended=None,
        processes={},
        gone=(),
        gpus={
            uuid: GpuMemory(m.gpu, plateau_bytes=m.plateau_bytes if m.gpu.role == "other" else 0)
            for uuid, m in state.gpus.items()
        },
        engine=EngineMemory(),
        work=None,
        phases={},
        errors={},
        finishes={},
        scratch="",
        suspicion="",
        suspect_since=None,
        progress=replace(state.progress, step=None, t=state.now, timed=True),
        growth={},
        spared="",
        trouble=(),
    )


def rebase(state: State) -> State:
    """Start all deadlines anew: the host slept, or another daemon watched until now."""
    now = state.now
    return replace(
        state,
        started=now if state.mode == "starting" else state.started,
        progress=replace(state.progress, t=now, timed=False),
        phases={role: replace(phase, t=now, timed=False) for role, phase in state.phases.items()},
        growth={what: replace(growth, t=now) for what, growth in state.growth.items()},
        engine=replace(
            state.engine,
            moved_t=now,
            work_since=None,
            bad_since=None,
            bad_looks=0,
            slow_since=None,
            liveness_misses=0,
            canary_misses=0,
            units={},
        ),
        work=replace(state.work, t=now, moved_t=now) if state.work else None,
        gpus={uuid: replace(memory, fallen_since=None) for uuid, memory in state.gpus.items()},
        gone=tuple(replace(gone, t=now) for gone in state.gone),
        suspect_since=None,
        suspicion="",
    )


# ---------------------------------------------------------------- processes


def _process_seen(state: State, fact: f.ProcessSeen) -> State:
    if fact.attempt != state.attempt:
        return state
    process = Process(fact.role, fact.pid, fact.start_ticks, fact.key, fact.title)
    return replace(state, processes={**state.processes, f"{fact.pid}:{fact.start_ticks}": process})


def _process_gone(state: State, fact: f.ProcessGone) -> State:
    if fact.attempt != state.attempt:
        return state
    name = f"{fact.pid}:{fact.start_ticks}"
    rest = {key: process for key, process in state.processes.items() if key != name}
    gone = state.gone
    if fact.role == "inference" and state.own.number and name not in state.processes:
        return state  # of the inference server before this one
    if fact.key and state.live:
        gone = (*gone, Gone(fact.role, fact.pid, state.now))[-16:]
    return replace(state, processes=rest, gone=gone)


def _component_exited(state: State, fact: f.ComponentExited) -> State:
    if fact.attempt != state.attempt or state.ended is not None:
        return state
    return replace(state, ended=Ended(fact.exit_code, fact.signal, fact.lost, state.now))


# ---------------------------------------------------------------- GPUs and engine


def _gpu_look(state: State, fact: f.GpuLook) -> State:
    if fact.reason:
        # Unknown is not zero: what was fallen must be seen fallen again.
        gpus = {uuid: replace(memory, fallen_since=None) for uuid, memory in state.gpus.items()}
        since = state.gpu_unseen_since if state.gpu_unseen_since is not None else state.now
        return replace(state, gpu_reason=fact.reason, gpus=gpus, gpu_unseen_since=since)
    if fact.lost:
        known = {trouble.text for trouble in state.trouble if trouble.t >= state.started}
        new = [text for text in fact.lost if text not in known]
        lost = tuple(GpuTrouble(text.partition(":")[0], text, state.now, fatal=True) for text in new)
        state = replace(state, trouble=(*state.trouble, *lost)[-16:])
    gpus = {gpu.uuid: _remember(state, gpu) for gpu in fact.gpus}
    settle(state, gpu_reason="", gpu_unseen_since=None, gpus=gpus)
    return state


def _gpu_fault(state: State, fact: f.GpuFault) -> State:
    text = f"{fact.gpu}: Xid {fact.xid}{f' ({fact.text})' if fact.text else ''}"
    trouble = GpuTrouble(fact.gpu, text, state.now, fatal=fact.xid in FATAL_XIDS)
    return replace(state, trouble=(*state.trouble, trouble)[-16:])


def _host_look(state: State, fact: f.HostLook) -> State:
    state = replace(state, host=fact)
    if fact.oom_kills is None:
        return state
    rose = state.oom_kills is not None and fact.oom_kills > state.oom_kills  # backwards: another cgroup, a new base
    return replace(state, oom_kills=fact.oom_kills, oom_t=state.now if rose else state.oom_t)


def _remember(state: State, gpu: f.Gpu) -> GpuMemory:
    memory = state.gpus.get(gpu.uuid)
    if memory is None:
        return GpuMemory(gpu, look_t=state.now)
    # The sensor speaks on change, so a level stood from its look to this one; a short spike is no plateau.
    # What was held before this attempt began belongs to the one before it.
    held = memory.look_t >= state.started and state.now - memory.look_t >= min(HELD_S, state.settings.memory_fell_s)
    plateau = max(memory.plateau_bytes, memory.gpu.used_bytes) if held else memory.plateau_bytes
    limit = plateau * (SHARED_DROP if gpu.role == "shared" else NEAR_ZERO)
    fell = plateau > 0 and gpu.used_bytes < limit and gpu.role in ("inference", "shared")
    since = (memory.fallen_since if memory.fallen_since is not None else state.now) if fell else None
    return GpuMemory(gpu, plateau, state.now, since)


def _engine_look(state: State, fact: f.EngineLook) -> State:
    now, old = state.now, state.engine
    new: dict[str, Any] = {"look": fact, "look_t": now}
    if fact.health == "ok":
        new.update(ever_ok=True, ok_t=now, bad_since=None, bad_looks=0, slow_since=None)
    elif fact.health == "timeout":
        new.update(slow_since=old.slow_since if old.slow_since is not None else now)
    elif fact.health in ("bad", "refused"):
        new.update(bad_since=old.bad_since if old.bad_since is not None else now, bad_looks=old.bad_looks + 1)
    if fact.liveness in ("ok", "absent"):
        new["liveness_misses"] = 0
        if fact.liveness == "ok":
            new["lively_t"] = now
    elif fact.liveness in ("bad", "timeout") and fact.health != "timeout":  # else the server is slow, whatever is asked
        new["liveness_misses"] = old.liveness_misses + 1
    if fact.canary in ("timeout", "bad") and fact.health != "timeout":
        new["canary_misses"] = old.canary_misses + 1
    count = fact.iterations if fact.iterations is not None else fact.generation_tokens
    if count is not None:
        new["counted_t"] = now
        if count != old.count:
            # Backwards means a restarted engine: a new base, and no proof of standing still either.
            new.update(count=count, moved_t=now, canary_misses=0)
    if fact.canary == "ok":
        new.update(canary_misses=0, moved_t=now)  # it made a token for us, whatever its counters say
    if fact.engines or old.units:
        new["units"] = {str(unit.index): _unit(old.units.get(str(unit.index)), unit, now) for unit in fact.engines}
    if waiting_work(fact, state.work):
        if old.work_since is None:
            new["work_since"] = now
    elif fact.health == "ok" and count is not None:
        new["work_since"] = None
    settle(state, engine=replace(old, **new))
    return state


def _unit(old: EngineUnit | None, unit: f.EngineCount, now: float) -> EngineUnit:
    busy = (unit.running or 0) > 0 or (unit.waiting or 0) > 0
    if old is None or unit.iterations != old.count:
        return EngineUnit(unit.iterations, now, now, now if busy else None)
    since = old.busy_since if old.busy_since is not None else now
    return EngineUnit(old.count, old.moved_t, now, since if busy else None)


def waiting_work(look: f.EngineLook, work: Work | None) -> bool:
    """Does work wait for the engine? Its own counts can stay 0 on a stopped engine, so others are asked as well."""
    if (look.running or 0) > 0 or (look.waiting or 0) > 0:
        return True
    if (look.connections or 0) > 0:
        return True
    return work is not None and work.inflight > 0


# ---------------------------------------------------------------- logs


def _step_done(state: State, fact: f.StepDone) -> State:
    progress = state.progress
    if fact.reward is not None:
        rewards = (*progress.rewards, (fact.step, fact.reward))[-KEEP_REWARDS:]
        progress = replace(progress, reward=fact.reward, reward_step=fact.step, rewards=rewards)
    if state.live and fact.role not in COUNTED:
        state = _phase_over(state, fact.role)
    if state.work is not None:
        # A finished step is rollouts that moved, even where the count reads the same each time it is printed.
        state = replace(state, work=replace(state.work, moved_t=state.now))
    if not state.live or fact.role not in COUNTED:
        return replace(state, progress=progress)
    if progress.step is not None and fact.step <= progress.step:
        return replace(state, progress=progress)  # the same step from a second file (log and metrics.jsonl)
    timed = progress.step is not None and fact.step == progress.step + 1
    # Lines that a daemon reads after it was away come all at once: a step took at least what its own line says.
    interval = max(state.now - progress.t, fact.duration_s or 0.0)
    own = dict(progress.rewards).get(fact.step)
    if timed and progress.timed:
        state = replace(state, learned=learn(state.learned, STEP, interval))
    state = _phase_over(state, fact.role)
    return replace(
        state,
        progress=Progress(
            step=fact.step,
            t=state.now,
            highest=fact.step if progress.highest is None else max(fact.step, progress.highest),
            interval_s=interval if timed else None,
            reward=own if own is not None else progress.reward,
            reward_step=fact.step if own is not None else progress.reward_step,
            rewards=progress.rewards,
            loss=fact.loss if fact.loss is not None else progress.loss,
            duration_s=fact.duration_s if fact.duration_s is not None else (interval if timed else None),
        ),
    )


def _phase_seen(state: State, fact: f.PhaseSeen) -> State:
    old = state.phases.get(fact.role)
    if old is not None and (old.phase, old.step) == (fact.phase, fact.step) and fact.phase != "weight-update":
        return state  # repeating oneself does not renew an excuse
    state = _phase_over(state, fact.role)
    phase = Phase(fact.phase, fact.step, state.now, fact.text, timed=state.live)
    settle(state, phases={**state.phases, fact.role: phase})
    return state


def _phase_over(state: State, role: f.Role) -> State:
    """The role goes on to something else: how long its phase took is learned, once."""
    phase = state.phases.get(role)
    if phase is None or not phase.timed:
        return state
    learned = learn(state.learned, f"{role}/{phase.phase}", state.now - phase.t)
    settle(state, learned=learned, phases={**state.phases, role: replace(phase, timed=False)})
    return state


def _growing(state: State, fact: f.Growing) -> State:
    old = state.growth.get(fact.what)
    if old is None or fact.size_bytes < old.size_bytes:
        grown = Growth(fact.size_bytes, state.now, old.grown_s if old else 0.0)
    elif fact.size_bytes == old.size_bytes:
        return state
    else:
        lasted = state.now - old.t
        grown = Growth(fact.size_bytes, state.now, old.grown_s + (lasted if lasted <= GROWS_S else 0.0))
    return replace(state, growth={**state.growth, fact.what: grown})


def _work_seen(state: State, fact: f.WorkSeen) -> State:
    old = state.work
    moved = old is None or (old.inflight, old.done) != (fact.inflight, fact.done)
    moved_t = state.now if moved or old is None else old.moved_t
    settle(state, work=Work(fact.inflight, fact.done, state.now, moved_t))
    return state


def _finish_seen(state: State, fact: f.FinishSeen) -> State:
    return replace(state, finishes={**state.finishes, fact.role: state.now}) if state.live else state


def _error_seen(state: State, fact: f.ErrorSeen) -> State:
    old = state.errors.get(fact.signature)
    error = Error(
        fact.role,
        fact.signature,
        fact.text,
        state.now,
        fact.deterministic,
        count=old.count + 1 if old else 1,
        first_t=old.first_t if old else state.now,
        sentence=fact.sentence,
        remedy=fact.remedy,
    )
    return replace(state, errors={**state.errors, fact.signature: error})


def _fresh_start_seen(state: State, fact: f.FreshStartSeen) -> State:
    return replace(state, scratch=fact.text) if state.live else state


# ---------------------------------------------------------------- disk, checkpoints, store


def _disk_look(state: State, fact: f.DiskLook) -> State:
    settle(state, disk_total=fact.total_bytes, disk_free=fact.free_bytes, disk_reason=fact.reason, disk_t=state.now)
    return state


def _local_steps(state: State, fact: f.LocalSteps) -> State:
    if state.local_reason == BEING_LISTED and not fact.settled:
        return state  # a scan that was under way: it may hold the newest step for one that is still being written
    if fact.reason:
        return replace(state, local_reason=fact.reason)
    # A quarantined step that was written anew since is another checkpoint: another lineage's.
    written = {str(s.step) for s in fact.steps if s.changed_wall > state.quarantined.get(str(s.step), float("inf"))}
    quarantined = {step: since for step, since in state.quarantined.items() if step not in written}
    outdated = tuple(sorted({*state.outdated, *map(int, written)}))
    stored = tuple(s for s in state.store if s.step not in outdated)
    state = replace(state, local=fact.steps, local_reason="", local_t=state.now, quarantined=quarantined, store=stored)
    state = replace(state, outdated=outdated)
    best = max(state.good_local(), default=None)
    if best is None or (state.best_complete is not None and best <= state.best_complete):
        return state
    state = replace(state, best_complete=best)
    # Also when it is found only after the attempt's end: a job that dies right after each save makes progress, too.
    if state.progress.step is None or best <= (state.resume_step or 0):
        return state
    # A new complete step is the only proof that the run goes on: its budget comes back.
    return replace(state, barren=0, failures=(), stepped_back=False, waits=0)


def _store_steps(state: State, fact: f.StoreSteps) -> State:
    if fact.reason:
        return replace(state, store_reason=fact.reason, store_permanent=fact.permanent)
    quarantined = state.quarantined
    if state.rolled_back is not None:
        step, wall = state.rolled_back
        quarantined = {**quarantined, **{str(s.step): wall for s in fact.steps if s.step > step}}
    state = replace(
        state,
        store=tuple(s for s in fact.steps if s.step not in state.outdated),
        store_latest=fact.latest,
        store_reason="",
        store_permanent=False,
        store_t=state.now,
        quarantined=quarantined,
        rolled_back=None,
    )
    return replace(state, published=max(state.good_stored(), default=None))


def _published(state: State, fact: f.Published) -> State:
    others = tuple(s for s in state.store if s.step != fact.step)
    stored = tuple(sorted((*others, f.StoredStep(fact.step, True, fact.size_bytes)), key=lambda s: s.step))
    return replace(
        state,
        store=stored,
        store_latest=fact.step,
        published=fact.step,
        records_t=-NEVER,  # what a next pod begins with goes along
        outdated=tuple(step for step in state.outdated if step != fact.step),
        damaged={step: why for step, why in state.damaged.items() if step != str(fact.step)},
        busy=replace(state.busy, publish=None),
        publish_failures=0,
        publish_reason="",
        publish_after=state.now,
        prune_nothing_said=False,
    )


def _publish_failed(state: State, fact: f.PublishFailed) -> State:
    failures = 0 if fact.step_changed else state.publish_failures + 1
    wait = 600.0 if fact.permanent else min(600.0, state.settings.publish_retry_s * 2 ** min(failures - 1, 6))
    return replace(
        state,
        busy=replace(state.busy, publish=None),
        publish_failures=failures,
        publish_reason="" if fact.step_changed else fact.reason,
        # A step that changed is not listed anew at once, and until then the same one would be chosen again.
        publish_after=state.now + (CHOOSE_ANEW_S if fact.step_changed else wait),
    )


def _pruned(state: State, fact: f.Pruned) -> State:
    if fact.where == "store":
        left = tuple(s for s in state.store if s.step != fact.step)
        return replace(state, store=left, busy=replace(state.busy, prune_store=None))
    remaining = tuple(s for s in state.local if s.step != fact.step)
    free = state.disk_free + fact.freed_bytes if state.disk_free is not None else None
    return replace(state, local=remaining, disk_free=free, busy=replace(state.busy, prune_local=None))


def _prune_failed(state: State, fact: f.PruneFailed) -> State:
    if fact.where == "store":
        return replace(state, busy=replace(state.busy, prune_store=None), publish_after=state.now + 60)
    # Forget it until the next scan lists it again, or the same failing step would be asked for at once.
    remaining = tuple(s for s in state.local if s.step != fact.step)
    return replace(state, local=remaining, busy=replace(state.busy, prune_local=None))


def _restored(state: State, fact: f.Restored) -> State:
    local = tuple(s for s in state.local if s.step != fact.step)
    step = f.LocalStep(fact.step, "complete", "", fact.size_bytes, changed_wall=0.0)
    return replace(
        state,
        local=tuple(sorted((*local, step), key=lambda s: s.step)),
        busy=replace(state.busy, restore=None),
    )


def _restore_failed(state: State, fact: f.RestoreFailed) -> State:
    damaged = {**state.damaged, str(fact.step): fact.reason} if fact.damaged else state.damaged
    return replace(state, damaged=damaged, busy=replace(state.busy, restore=None))


# ---------------------------------------------------------------- attempts, people, daemon


def _attempt_started(state: State, fact: f.AttemptStarted) -> State:
    if fact.attempt != state.attempt:
        return state
    return replace(state, pid=fact.pid, started=state.now, progress=replace(state.progress, t=state.now))


def _setup_done(state: State, fact: f.SetupDone) -> State:
    return replace(state, setup_pending=False, setup_reason=fact.reason)


def _settings_changed(state: State, fact: f.SettingsChanged) -> State:
    return replace(state, settings=fact.settings)


def _effect_crashed(state: State, fact: f.EffectCrashed) -> State:
    """Free the slot, so that a defect in one effect does not stop that kind of effect for ever."""
    busy = state.busy
    match fact.lane:
        case "publish":
            after = state.now + CRASH_PAUSE_S
            state = replace(state, publish_failures=state.publish_failures + 1, publish_after=after)
            busy = replace(busy, publish=None)
        case "prune":
            state = replace(state, prune_after=state.now + CRASH_PAUSE_S)
            busy = replace(busy, prune_local=None)
        case "prune-store":
            state = replace(state, publish_after=state.now + CRASH_PAUSE_S)
            busy = replace(busy, prune_store=None)
        case "restore" | "setup":  # a restore that waits for the trainer is done on the lane of [setup]
            busy = replace(busy, restore=None)
    return replace(state, busy=busy)


def _config_changed(state: State, fact: f.ConfigChanged) -> State:
    if fact.path in state.config_changed:
        return state
    return replace(state, config_changed=(*state.config_changed, fact.path))


def _suppressed(state: State, fact: f.Suppressed) -> State:
    """Nothing was done: what the action had reserved is free again."""
    busy, step = state.busy, fact.number
    match fact.action:
        case "Start":
            busy = replace(busy, start=None)
        case "Stop":
            busy = replace(busy, stop=None)
        case "PruneLocal" | "PruneStale":
            # As if it had failed; asked for anew much later, so that a person hears of it now and then.
            state = replace(state, prune_after=state.now + SUPPRESSED_AGAIN_S)
            busy = replace(busy, prune_local=None)
        case "PruneStore":
            return replace(
                state, busy=replace(busy, prune_store=None), prune_store_after=state.now + SUPPRESSED_AGAIN_S
            )
        case "Restore":
            busy = replace(busy, restore=None)
        case "RunHook":
            busy = replace(busy, hook=None)
        case "Setup":
            state = replace(state, setup_pending=False)
        case "StartEngine" | "StopEngine":
            if step == state.own.number:
                state = replace(state, own=replace(state.own, asked=""))
    return replace(state, busy=busy)


def _engine_started(state: State, fact: f.EngineStarted) -> State:
    if fact.engine != state.own.number:
        return state
    return replace(state, own=replace(state.own, alive=True, pid=fact.pid, asked=""))


def _engine_start_failed(state: State, fact: f.EngineStartFailed) -> State:
    if fact.engine != state.own.number:
        return state
    return replace(state, own=replace(state.own, alive=False, pid=None, asked=""))


def _engine_exited(state: State, fact: f.EngineExited) -> State:
    own = state.own
    if fact.engine != own.number or not own.alive:
        return state
    state = replace(state, own=replace(own, alive=False))
    if own.asked or not state.live or any(gone.role == "inference" for gone in state.gone):
        return state
    return replace(state, gone=(*state.gone, Gone("inference", own.pid or 0, state.now))[-16:])


def _engine_stopped(state: State, fact: f.EngineStopped) -> State:
    if fact.engine != state.own.number:
        return state
    processes = {key: one for key, one in state.processes.items() if one.role != "inference"}
    gone = tuple(one for one in state.gone if one.role != "inference")
    errors = {name: one for name, one in state.errors.items() if name not in OF_THE_ENGINE}
    own = replace(state.own, alive=False, pid=None, asked="")
    return replace(
        state,
        own=own,
        processes=processes,
        gone=gone,
        errors=errors,
        engine=EngineMemory(),
        gpus={
            uuid: m if m.gpu.role == "trainer" else GpuMemory(m.gpu, look_t=-NEVER) for uuid, m in state.gpus.items()
        },
    )


def _store_records(state: State, fact: f.StoreRecords) -> State:
    learned = merged(state.learned, fact.learned) if fact.learned is not None else state.learned
    return replace(state, learned=learned, ledgers=fact.ledgers)


def _clock_jumped(state: State, fact: f.ClockJumped) -> State:
    return rebase(state)


def _daemon_started(state: State, fact: f.DaemonStarted) -> State:
    # Effects of the daemon before are gone; those that matter are asked for again by the policy.
    own = replace(state.own, asked="", alive=state.own.number > 0 and fact.engine_adopted == state.own.number)
    return rebase(
        replace(
            state,
            settings=fact.settings,
            journal=fact.journal or state.journal,
            busy=Busy(),
            own=own,
            survey_asked=None,
            setup_pending=fact.setup,
            setup_reason="",
        )
    )


_HANDLERS: dict[type, Callable[[State, Any], State]] = {
    f.ProcessSeen: _process_seen,
    f.ProcessGone: _process_gone,
    f.ComponentExited: _component_exited,
    f.GpuLook: _gpu_look,
    f.EngineLook: _engine_look,
    f.StepDone: _step_done,
    f.PhaseSeen: _phase_seen,
    f.WorkSeen: _work_seen,
    f.Growing: _growing,
    f.GpuFault: _gpu_fault,
    f.HostLook: _host_look,
    f.Suppressed: _suppressed,
    f.EngineStarted: _engine_started,
    f.EngineStartFailed: _engine_start_failed,
    f.EngineExited: _engine_exited,
    f.EngineStopped: _engine_stopped,
    f.StoreRecords: _store_records,
    f.FinishSeen: _finish_seen,
    f.ErrorSeen: _error_seen,
    f.FreshStartSeen: _fresh_start_seen,
    f.DiskLook: _disk_look,
    f.LocalSteps: _local_steps,
    f.StoreSteps: _store_steps,
    f.Published: _published,
    f.PublishFailed: _publish_failed,
    f.Pruned: _pruned,
    f.PruneFailed: _prune_failed,
    f.Restored: _restored,
    f.RestoreFailed: _restore_failed,
    f.AttemptStarted: _attempt_started,
    f.SetupDone: _setup_done,
    f.SettingsChanged: _settings_changed,
    f.EffectCrashed: _effect_crashed,
    f.ConfigChanged: _config_changed,
    f.ClockJumped: _clock_jumped,
    f.DaemonStarted: _daemon_started,
}
