"""Fold what sensors see of a living job: its processes, GPUs, host and logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.core import facts as f
from supervisor.core import machines
from supervisor.core.deadlines import BESIDE, PAUSED_BY_S, explained_s, explained_until_now, with_span
from supervisor.core.evolve import replace, settle
from supervisor.core.phases import ENGINE_UPDATE, STEP, WARM
from supervisor.core.pictures import KNOWN_POWER_W, after_look, learn_pictures, with_effort
from supervisor.core.state import (
    Ended,
    EngineMemory,
    Error,
    Gone,
    GpuMemory,
    GpuTrouble,
    Growth,
    Job,
    Machine,
    Phase,
    Process,
    Progress,
    RoleEffort,
    State,
    Work,
)
from supervisor.core.tier import end_out_of_memory, learn_peak

NEAR_ZERO = 0.10  # of the plateau: what "memory fell to nothing" means on a GPU that only the engine uses
SHARED_DROP = 0.75  # of the plateau: below it one of two tenants of a shared GPU must have left
RESTS, WORKS = 0.5, 0.6  # of the most that a GPU was seen to draw: below it does not compute, above it does again
LOADED = 90.0  # percent of the time
WHOLE_CORE = 0.8
HELD_S = 3.0  # how long a level must stand to count as the plateau
KEEP_REWARDS = 16  # steps by which the orchestrator may be ahead of the trainer
GROWS_S = 120.0  # a download that has not grown for so long does not grow
UPDATED_S = 10.0  # tokens so long after an update of weights began tell its end: prime-rl 559b44772 says it at "debug"
MISSED_STEPS, FASTER = 10, 4  # lines that a log may have lost at once, and a step against the fastest of the window
IN_A_ROW = 3  # numbers that are believed whatever the clock says
# The GPU, or its memory, is no longer usable without a reset (NVIDIA, "Xid Errors": double-bit ECC, row remapping
# failure, fallen off the bus, uncontained ECC, GSP time-out and error). Others are mostly the program's own.
FATAL_XIDS = frozenset({48, 64, 79, 95, 119, 120})
TOLD_AGAIN_S = 5.0  # an agent tells all that it knows with each new connection: the same fault is about so far apart
LINK_XIDS = frozenset({74})  # NVLink: often well after one restart (``recurring``)
# Notices, and the clearing away of what a program that ended had there: each kill gives one.
HARMLESS_XIDS = frozenset({37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 121, 141, 154, 157, *range(160, 166)})
COUNTED = ("trainer", "job")  # the steps of these roles are the run's steps


# ---------------------------------------------------------------- processes


def _process_seen(state: State, fact: f.ProcessSeen) -> State:
    process = Process(fact.role, fact.pid, fact.start_ticks, fact.key, fact.title, fact.host, fact.index)
    return replace(state, job=replace(state.job, processes={**state.job.processes, _name_process(fact): process}))


def _name_process(fact: f.ProcessSeen | f.ProcessGone) -> str:
    return f"{fact.host}:" * bool(fact.host) + f"{fact.pid}:{fact.start_ticks}"


def _process_gone(state: State, fact: f.ProcessGone) -> State:
    name = _name_process(fact)
    rest = {key: process for key, process in state.job.processes.items() if key != name}
    gone = state.job.gone
    if fact.role == "inference" and state.own.number and name not in state.job.processes:
        return state  # of the inference server before this one
    if fact.role == "inference" and fact.key and state.own.number and not state.live:
        state = replace(state, own=replace(state.own, wanted=False))  # it is broken: no job takes it over warm
    if fact.key and state.live:
        one = Gone(fact.role, fact.pid, max(state.now - fact.age_s, state.attempt.started), fact.host, fact.index)
        gone = gone if machines.is_gone(state, fact) else (*gone, one)[-16:]
    return replace(state, job=replace(state.job, processes=rest, gone=gone))


def _one_of_many_exited(state: State, fact: f.ComponentExited) -> State:
    """One component of many has ended: a death, unless the job is about to end or it was the one that ends it."""
    place = (fact.role, fact.host, fact.index)
    processes = {key: one for key, one in state.job.processes.items() if (one.role, one.host, one.index) != place}
    state = replace(state, job=replace(state.job, processes=processes))
    if fact.role is None or machines.ends_the_job(fact) or not state.live:
        return state
    known = [one for one in state.job.gone if (one.role, one.host, one.index) == place]
    how = "it is gone with its shim, seen"
    if not fact.lost:
        code = f"exit code {fact.exit_code}"
        how = f"it ended with {code if fact.signal is None else f'signal {fact.signal}'},"
    t = known[0].t if known else max(state.now - fact.age_s, state.attempt.started)
    one = Gone(fact.role, 0, t, fact.host, fact.index, how)
    others = tuple(gone for gone in state.job.gone if gone not in known)
    return replace(state, job=replace(state.job, gone=(*others, one)[-16:]))


def _component_exited(state: State, fact: f.ComponentExited) -> State:
    if state.job.ended is not None:
        return state
    if fact.host:
        state = _one_of_many_exited(state, fact)
        if not machines.ends_the_job(fact):
            return state
    return replace(state, job=replace(state.job, ended=Ended(fact.exit_code, fact.signal, fact.lost, state.now)))


# ---------------------------------------------------------------- GPUs and engine


def _gpu_look(state: State, fact: f.GpuLook) -> State:
    if fact.host:
        return _gpus_of_machine(state, fact)
    if fact.reason:
        # Unknown is not zero: what was fallen must be seen fallen again.
        gpus = {uuid: machines.without_times(memory) for uuid, memory in state.gpus.by_uuid.items()}
        since = state.gpus.unseen_since if state.gpus.unseen_since is not None else state.now
        return replace(state, gpus=replace(state.gpus, reason=fact.reason, by_uuid=gpus, unseen_since=since))
    if fact.lost:
        known = {trouble.text for trouble in state.gpus.trouble if trouble.t >= state.attempt.started}
        new = [text for text in fact.lost if text not in known]
        lost = tuple(GpuTrouble(text.partition(":")[0], text, state.now, fatal=True) for text in new)
        state = replace(state, gpus=replace(state.gpus, trouble=(*state.gpus.trouble, *lost)[-16:]))
    gpus = {gpu.uuid: _remember(state, gpu) for gpu in fact.gpus}
    settle(state, gpus=replace(state.gpus, reason="", unseen_since=None, by_uuid=gpus))
    return state


def see_alone(state: State, engine: EngineMemory, gpus: dict[str, GpuMemory]) -> State:
    """To judge one of several engines by: the state as if it were the only one, with these GPUs."""
    return replace(state, engine=engine, gpus=replace(state.gpus, by_uuid=gpus))


def _machine_look(state: State, fact: f.MachineLook) -> State:
    state = machines.look(state, fact)
    return state if fact.silent_s is None else _gpus_unknown(state, fact.host)


def _gpus_unknown(state: State, host: str) -> State:
    """Unknown is not zero: what had fallen, or rested, must be seen so again."""
    by_uuid = {
        uuid: machines.without_times(memory) if memory.gpu.host == host else memory
        for uuid, memory in state.gpus.by_uuid.items()
    }
    return machines.note_gpus(replace(state, gpus=replace(state.gpus, by_uuid=by_uuid)), host, seen=False)


def _gpus_of_machine(state: State, fact: f.GpuLook) -> State:
    if fact.reason:
        return _gpus_unknown(state, fact.host)
    by_uuid = {**state.gpus.by_uuid, **{gpu.uuid: _remember(state, gpu) for gpu in fact.gpus}}
    uuids = tuple(gpu.uuid for gpu in fact.gpus)
    for uuid in {*state.machines.get(fact.host, Machine()).gpus} - {*uuids}:
        by_uuid.pop(uuid, None)
    state = replace(state, gpus=replace(state.gpus, reason="", by_uuid=by_uuid))
    return machines.note_gpus(state, fact.host, seen=True, uuids=uuids)


def _gpu_fault(state: State, fact: f.GpuFault) -> State:
    gpu = f"{fact.gpu} of {fact.host}" if fact.host else fact.gpu
    said = f"Xid {fact.xid}{f' ({fact.text})' if fact.text else ''}" if fact.xid else fact.text
    uuid = next((uuid for uuid, one in state.gpus.by_uuid.items() if one.gpu.name == gpu), "")
    t, fatal = state.now - fact.age_s, fact.xid in FATAL_XIDS or not fact.xid
    trouble = GpuTrouble(gpu, f"{gpu}: {said}", t, fatal, fact.xid, uuid, fact.host)
    if fact.host and any(one.text == trouble.text and abs(one.t - t) < TOLD_AGAIN_S for one in state.gpus.trouble):
        return state
    state = machines.note_bad_gpu(state, fact.host) if fatal and fact.host else state
    return replace(state, gpus=replace(state.gpus, trouble=(*state.gpus.trouble, trouble)[-16:]))


def _effort_look(state: State, fact: f.EffortLook) -> State:
    """A role that a look does not show is unknown."""
    efforts: dict[str, RoleEffort] = {}
    for effort in fact.efforts:
        old = state.job.efforts.get(effort.role)
        busy = old.busy_since if old is not None and old.busy_since is not None else state.now
        waits = old.waits_since if old is not None and old.last.waits == effort.waits else state.now
        busy_since = busy if effort.least_cores >= WHOLE_CORE else None
        efforts[effort.role] = RoleEffort(effort, busy_since, waits if effort.waits else None)
    activity = with_effort(state, fact)
    state = replace(state, job=replace(state.job, efforts=efforts, activity=activity))
    if fact.reason or activity is None:
        return state
    activity, pictures = after_look(state, activity)
    return replace(state, job=replace(state.job, activity=activity, pictures=pictures))


def _host_look(state: State, fact: f.HostLook) -> State:
    known = machines.host_of(state, fact.host)
    host = replace(known, look=fact)
    rose = None not in {known.oom_kills, fact.oom_kills} and fact.oom_kills > known.oom_kills  # type: ignore[operator]
    if fact.oom_kills is not None:  # backwards: another cgroup, a new base
        host = replace(host, oom_kills=fact.oom_kills, oom_t=state.now - fact.age_s if rose else host.oom_t)
    if fact.host:
        return machines.note_host(state, fact.host, host)
    state = replace(state, host=replace(host, peak_bytes=learn_peak(state, fact)))
    return end_out_of_memory(state) if rose else state


def _remember(state: State, gpu: f.Gpu) -> GpuMemory:
    memory = state.gpus.by_uuid.get(gpu.uuid)
    if memory is None:
        return GpuMemory(gpu, look_t=state.now, power_high_w=gpu.power_w or 0.0)
    # The sensor speaks on change, so a level stood from its look to this one; a short spike is no plateau.
    # What was held before this attempt began belongs to the one before it.
    lasted_s = state.now - memory.look_t
    held = memory.look_t >= state.attempt.started and lasted_s >= min(HELD_S, state.settings.memory_fell)
    plateau = max(memory.plateau_bytes, memory.gpu.used_bytes) if held else memory.plateau_bytes
    limit = plateau * (SHARED_DROP if gpu.role == "shared" else NEAR_ZERO)
    fell = plateau > 0 and gpu.used_bytes < limit and gpu.role in ("inference", "shared")
    met_empty = gpu.role == "inference" and not gpu.host and f.is_gpu_empty(plateau, gpu.total_bytes)
    if met_empty and state.progress.step is not None:
        # A job that was met after its engine's death; one of our own that is not up yet may still have to load.
        fell = gpu.is_empty and (state.engine.ever_ok or state.settings.inference != "own-role")
    since = (memory.fallen_since if memory.fallen_since is not None else state.now) if fell else None
    loaded = memory.loaded_since if memory.loaded_since is not None else memory.look_t
    loaded_since = loaded if gpu.load is not None and gpu.load >= LOADED else None
    slowed = memory.slowed_since if memory.slowed_since is not None else state.now
    slowed_since = slowed if gpu.slowed else None
    new = GpuMemory(
        gpu, plateau, state.now, since, memory.power_high_w, None, loaded_since, slowed_since, memory.power_low_w
    )
    return _with_power(new, memory.rests_since)


def _with_power(memory: GpuMemory, rests_since: float | None) -> GpuMemory:
    """A GPU in a collective that never ends is "100 % busy" and draws little: its power says what its load does not."""
    power = memory.gpu.power_w
    if power is None:
        return memory
    high = max(memory.power_high_w, power)
    rests = high > KNOWN_POWER_W and power < (RESTS if rests_since is None else WORKS) * high
    since = (rests_since if rests_since is not None else memory.look_t) if rests else None
    low = power if memory.power_low_w is None else min(power, memory.power_low_w)
    return replace(memory, power_high_w=high, power_low_w=low, rests_since=since)


# ---------------------------------------------------------------- logs


def _step_done(state: State, fact: f.StepDone) -> State:
    progress = state.progress
    if fact.reward is not None:
        rewards = (*progress.rewards, (fact.step, fact.reward))[-KEEP_REWARDS:]
        progress = replace(progress, reward=fact.reward, reward_step=fact.step, rewards=rewards)
    if state.live and fact.role not in COUNTED:
        state = _phase_over(state, fact.role)
    if state.job.work is not None:
        # A finished step is rollouts that moved, even where the count reads the same each time it is printed.
        state = replace(state, job=replace(state.job, work=replace(state.job.work, moved_t=state.now)))
    # Without its engine, a trainer trains on with the rollouts that it has, and may complete a checkpoint with them.
    if not (state.live or state.is_being_stopped) or fact.role not in COUNTED:
        return replace(state, progress=progress)
    if progress.step is not None and fact.step <= progress.step:
        return replace(state, progress=_note_lower_number(progress, fact.step, state.now))
    if not _possible(state, fact.step):
        progress = _refuse_step_number(progress, fact.step, state.now)
        if not _is_confirmed_by_next(state, progress):
            return replace(state, progress=progress)
    timed = progress.step is not None and fact.step == progress.step + 1
    # Lines that a daemon reads after it was away come all at once: a step took at least what its own line says, and
    # no longer than there has been an attempt.
    interval = max(state.now - progress.t, min(fact.duration_s or 0.0, state.now - state.attempt.started))
    own = dict(progress.rewards).get(fact.step)
    # A line that tells of a longer step than the attempt has lasted is from before we came.
    watched = (fact.duration_s or 0.0) <= state.now - state.attempt.started + 1.0
    if timed and progress.timed and watched and state.live:
        # What a known reason explains has a limit of its own: learned as a step, one evaluation would hide each hang.
        state = replace(state, books=state.books.with_time(STEP, interval - explained_s(state)))
    state = _phase_over(state, fact.role)
    settle(state, books=replace(state.books, learned=learn_pictures(state.books.learned, state.job.pictures)))
    return replace(
        state,
        progress=Progress(
            step=fact.step,
            t=state.now,
            done_wall=state.wall,
            highest=fact.step if progress.highest is None else max(fact.step, progress.highest),
            interval_s=interval if timed else None,
            reward=own if own is not None else progress.reward,
            reward_step=fact.step if own is not None else progress.reward_step,
            rewards=progress.rewards,
            loss=fact.loss if fact.loss is not None else progress.loss,
            duration_s=fact.duration_s if fact.duration_s is not None else (interval if timed else None),
        ),
        job=replace(state.job, explained=(), pictures={}),
    )


def _possible(state: State, step: int) -> bool:
    """Can the run be at ``step`` now? A garbled number, once believed, makes the true ones old news."""
    progress = state.progress
    if step < 0:
        return False
    if progress.step is None or not progress.timed:
        return True
    return (step - progress.step - MISSED_STEPS) * _fastest(state) <= state.now - progress.t


def _fastest(state: State) -> float:
    """Seconds that any step of this run takes; 0.0 while that is unknown."""
    times = state.books.learned.phases.get(STEP)
    return 0.0 if times is None or times.count < WARM else min(times.seconds) / FASTER


def _refuse_step_number(progress: Progress, step: int, now: float) -> Progress:
    """With a number that cannot be; one that does not follow the last of them begins a new row."""
    if step in progress.refused:
        return progress  # from a second file
    if progress.refused and step == progress.refused[-1] + 1:
        return replace(progress, refused=(*progress.refused, step))
    return replace(progress, refused=(step,), refused_t=now)


def _note_lower_number(progress: Progress, step: int, now: float) -> Progress:
    """The same step from a second file (metrics.jsonl); or a trainer that counts each epoch from 1, and moves."""
    row, highest = progress.refused, progress.step or 0
    follows = bool(row) and step == row[-1] + 1 and step < highest
    begins = step < highest - IN_A_ROW or step <= 1
    again = step in row and not (step <= 1 and row[-1] >= highest - 1)  # a late file's; else the next epoch's first
    if again or not (follows or begins):
        return progress
    row = (*row, step)[-IN_A_ROW:] if follows else (step,)
    return replace(progress, refused=row, refused_t=now, t=now if len(row) == IN_A_ROW else progress.t)


def _is_confirmed_by_next(state: State, progress: Progress) -> bool:
    """Did the next lines say the same: lines were lost, and the run is really that far?

    The next step's line, at the pace of a run; or the next two, where all were read in one go.
    """
    row = len(progress.refused)
    return row >= IN_A_ROW or (row > 1 and state.now - progress.refused_t >= _fastest(state))


def _phase_seen(state: State, fact: f.PhaseSeen) -> State:
    old = state.job.phases.get(fact.role)
    if old is not None and (old.phase, old.step) == (fact.phase, fact.step) and fact.phase != "weight-update":
        return state  # repeating oneself does not renew an excuse
    if old is not None and old.phase == "eval" and fact.phase == "draining":
        return state  # it drains by completing the evaluations
    if old is not None and old.phase == "eval" and not old.over and _is_beside_other_work(fact):
        state = replace(state, job=replace(state.job, phases={**state.job.phases, BESIDE: old}))
    elif not _is_beside_other_work(fact):
        state = _phase_over(state, fact.role)
    else:
        state = end_phase(state, fact.role)
    phase = Phase(fact.phase, fact.step, state.now, fact.text, timed=state.live)
    update, engine = state.job.update, state.engine
    if fact.phase == "weight-update":
        # In steps of seconds the next one comes before it is known that tokens are made behind its pause.
        if update is not None and state.now - update.t < UPDATED_S and max(engine.moved_t, engine.lively_t) > update.t:
            settle(state, books=state.books.with_time(ENGINE_UPDATE, state.now - update.t))
        update = phase
    settle(state, job=replace(state.job, phases={**state.job.phases, fact.role: phase}, update=update))
    return state


def _is_beside_other_work(fact: f.PhaseSeen) -> bool:
    """Weights are updated beside whatever else the orchestrator does, and its end says nothing of that either."""
    return fact.role == "orchestrator" and (
        fact.phase in ("weight-update", "barrier") or (fact.phase == "rollouts" and fact.step is None)
    )


def _phase_over(state: State, role: f.Role) -> State:
    """The role goes on to something else: how long its phase took is learned, once."""
    state = end_phase(state, role)
    return end_phase(state, BESIDE) if role == "orchestrator" else state


def end_phase(state: State, name: str) -> State:
    """The phase of this role is over: what it took is learned, once."""
    phase, role = state.job.phases.get(name), name.partition("/")[0]
    if phase is None or phase.over:
        return state
    explained = explained_until_now(state, role, phase)
    books = state.books.with_time(f"{role}/{phase.phase}", state.now - phase.t) if phase.timed else state.books
    over = replace(phase, timed=False, over=True)
    phases = {**state.job.phases, name: over}
    settle(state, books=books, job=replace(state.job, explained=explained, phases=phases))
    return state


def last_update(job: Job) -> Phase | None:
    """The newest update of weights. An older daemon's state has it only as what its role said last."""
    said = [one for one in job.phases.values() if one.phase == "weight-update"]
    return job.update or max(said, key=lambda one: one.t, default=None)


def note_updated(state: State, still_s: float, *, waited: bool) -> None:
    """The engine makes tokens, after so many seconds without one, in which work ``waited``: its update is over."""
    update = state.job.update
    if update is None or (age_s := state.now - update.t) < UPDATED_S or still_s < age_s - PAUSED_BY_S:
        return
    paused_s = min(still_s, age_s)
    if update.until is not None and (paused_s < state.settings.hang / 2 or not waited):
        return
    # Before its pause, the engine may have made tokens for a while.
    update = replace(update, until=update.until or state.now)
    known = state.job.explained
    job = replace(state.job, explained=with_span(known, state.now - paused_s, state.now) if waited else known)
    settle(state, books=state.books.with_time(ENGINE_UPDATE, paused_s), job=replace(job, update=update))


def _observe_growth(state: State, fact: f.Growing) -> State:
    old = state.job.growth.get(fact.what)
    if old is None or fact.size_bytes < old.size_bytes:
        grown = Growth(fact.size_bytes, state.now, old.grown_s if old else 0.0)
    elif fact.size_bytes == old.size_bytes:
        return state
    else:
        lasted = state.now - old.t
        grown = Growth(fact.size_bytes, state.now, old.grown_s + (lasted if lasted <= GROWS_S else 0.0))
        if fact.what == "checkpoint" and lasted <= GROWS_S:
            state = replace(state, job=replace(state.job, explained=with_span(state.job.explained, old.t, state.now)))
    return replace(state, job=replace(state.job, growth={**state.job.growth, fact.what: grown}))


def _work_seen(state: State, fact: f.WorkSeen) -> State:
    old = state.job.work
    moved = old is None or (old.inflight, old.done) != (fact.inflight, fact.done)
    moved_t = state.now if moved or old is None else old.moved_t
    settle(state, job=replace(state.job, work=Work(fact.inflight, fact.done, state.now, moved_t)))
    return state


def _finish_seen(state: State, fact: f.FinishSeen) -> State:
    finishes = {**state.job.finishes, fact.role: state.now}
    return replace(state, job=replace(state.job, finishes=finishes)) if state.live else state


def _error_seen(state: State, fact: f.ErrorSeen) -> State:
    old = state.job.errors.get(fact.signature)
    count, first_t = (old.count + 1, old.first_t) if old else (1, state.now)
    told = fact.role, fact.signature, fact.text, state.now, fact.deterministic
    error = Error(*told, count, first_t, fact.sentence, fact.remedy)
    return replace(state, job=replace(state.job, errors={**state.job.errors, fact.signature: error}))


def _fresh_start_seen(state: State, fact: f.FreshStartSeen) -> State:
    return replace(state, job=replace(state.job, scratch=fact.text)) if state.live else state


HANDLERS: dict[type, Callable[[State, Any], State]] = {
    f.ProcessSeen: _process_seen,
    f.ProcessGone: _process_gone,
    f.ComponentExited: _component_exited,
    f.MachineLook: _machine_look,
    f.MachineDown: machines.note_down,
    f.GpuLook: _gpu_look,
    f.StepDone: _step_done,
    f.PhaseSeen: _phase_seen,
    f.WorkSeen: _work_seen,
    f.Growing: _observe_growth,
    f.GpuFault: _gpu_fault,
    f.HostLook: _host_look,
    f.EffortLook: _effort_look,
    f.FinishSeen: _finish_seen,
    f.ErrorSeen: _error_seen,
    f.FreshStartSeen: _fresh_start_seen,
}
