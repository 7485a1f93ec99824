"""What speaks against the run now: signals of several kinds, none of which convicts alone.

A signal is one piece of evidence. Two of different kinds may convict (``verdicts``). Detectors are pure; each compares
with the clock only through the ``Watch``, so that the core knows when it has to look again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from supervisor.base.records import dataclass
from supervisor.core.deadlines import (
    FRESH_S,
    IDLE_S,
    current,
    excuse,
    excuse_limit,
    explain_step_limits,
    explained_s,
    knows_counters,
    standstill_limits,
    start_of_limit,
    step_began,
    step_limits,
    unsaid,
)
from supervisor.core.facts import is_gpu_empty
from supervisor.core.launcher import who
from supervisor.core.observe_engine import TOLD_S, answers_from_within
from supervisor.core.observe_job import see_alone
from supervisor.core.phases import STEP, limits
from supervisor.core.pictures import (
    AT_WORK_FACTOR,
    engines_worked,
    name_picture,
    processes_moved,
    time_picture,
    trainer_rests_since,
)
from supervisor.core.state import EngineMemory, GpuMemory, GpuTrouble, State
from supervisor.core.watch import Watch
from supervisor.core.words import size, span

SLOW_S = 120.0  # grace for an engine that accepts connections and answers late (vLLM under load)
LATE_S = 600.0  # the same where the run has several, and others may be at work meanwhile
BAD_LOOKS = 3  # a server may miss a look or two under load
BAD_CANARIES = 2  # one that waits for half of hang_s each time
WORKS_ON_S = 10.0  # two looks: the first one after its end may still tell of tokens from before
SURVIVED_S = 600.0
WORKS = ("training", "checkpoint", "weight-update")  # phases in which the others wait for the trainer
TELLS_OF_TRAINING = {"trainer/rollouts", "trainer/training", "orchestrator/barrier"}
EXCUSED = ("checkpoint", "weight-update")  # each has a time limit of its own
SILENT_LONGEST = 3.0

Kind = Literal[
    "http", "slow", "memory", "counters", "request", "rollouts", "step", "log", "gpu", "power", "machine", "processes"
]


@dataclass(frozen=True)
class Signal:
    """One piece of evidence. Two of different ``kind`` may convict."""

    kind: Kind
    sentence: str


def engine_signals(state: State, watch: Watch) -> list[Signal]:
    """What speaks against the engine now, at most one signal a kind."""
    settings, engine, now = state.settings, state.engine, state.now
    signals: list[Signal] = []
    look = engine.look
    fallen = [
        m
        for m in state.gpus.by_uuid.values()
        if m.fallen_since is not None
        and m.gpu.host == (look.host if look is not None else "")
        and watch.over(m.fallen_since, settings.memory_fell)
        and not _works_on(state, m.fallen_since, watch)
    ]
    # A look that came to nothing is unknown, whatever the ones before it said.
    if was_up(state) and look is not None and look.health != "unknown":
        bad_looks = 1 if fallen else BAD_LOOKS
        bad_since = engine.bad_since
        if bad_since is not None and engine.bad_looks >= bad_looks and not _works_on(state, bad_since, watch):
            does = "has answered with an error" if look.health == "bad" else "has refused connections"
            signals.append(Signal("http", f"its port {does} for {span(now - bad_since)}"))
        elif engine.slow_since is not None and watch.over(
            max(engine.slow_since, engine.moved_t), 0.0 if fallen else SLOW_S
        ):
            # Time-outs alone are what a saturated engine gives: killing it for that is the classic false restart. But
            # a saturated engine has its memory: where that fell, one look without an answer is the second signal.
            signals.append(
                Signal("slow", f"its port has accepted and not answered for {span(now - engine.slow_since)}")
            )
    if fallen:
        memory = fallen[0]
        gpu = memory.gpu
        fell = f"fell to {size(gpu.used_bytes)} from {size(memory.plateau_bytes)}"
        is_empty = f"is no more than {size(gpu.used_bytes)} of {size(gpu.total_bytes)}"
        what = is_empty if is_gpu_empty(memory.plateau_bytes, gpu.total_bytes) else fell
        signals.append(Signal("memory", f"memory on {gpu.name} {what}"))
    signals += _standing_still(state, watch)
    work = state.job.work
    # A rollout may take its time: that none ends says something only beside other evidence against the engine, and
    # only where they may wait for it. Those that wait for their environment are not connected to an engine that is up.
    asked = engine.work_since is not None and watch.over(engine.work_since, settings.hang)
    if (
        signals
        and work is not None
        and (asked or engine.bad_looks >= BAD_LOOKS)
        and work.inflight > 0
        and not watch.over(work.t, TOLD_S)
        and work.t - work.moved_t >= settings.hang  # as told: between two reports it is unknown whether it moves
    ):
        signals.append(
            Signal("rollouts", f"{work.inflight} rollouts in flight did not move for {span(now - work.moved_t)}")
        )
    for signature in ("engine-dead", "connection-error"):
        error = state.job.errors.get(signature)
        if error and error.t > state.progress.t and not watch.over(error.t, FRESH_S):
            signals.append(Signal("log", f"the {error.role} logs: {error.text}"))
            break
    if overdue := soft_overdue(state, watch):
        signals.append(overdue)
    return signals


def was_up(state: State) -> bool:
    """Has this attempt's engine ever worked? A step says so as well as an answer: a job may be met after its death.

    Of an engine on another machine only an answer does: it may listen where its agent does not ask.
    """
    engine = state.engine
    by_step = state.settings.inference != "own-role" and not (engine.look is not None and engine.look.host)
    return engine.ever_ok or (state.progress.step is not None and by_step)


def _works_on(state: State, since: float, watch: Watch) -> bool:
    """Has a lone engine worked, or answered from within, well after ``since``? Then what was said did not end it."""
    engine = state.engine
    lone = sum(m.gpu.role in ("inference", "shared") for m in state.gpus.by_uuid.values()) <= 1 and not engine.units
    works_t = max(engine.moved_t, engine.lively_t)
    return lone and works_t >= since + WORKS_ON_S and not watch.over(works_t, state.settings.hang)


def _standing_still(state: State, watch: Watch) -> list[Signal]:
    """Counters that stand still while work waits, and requests that are not answered meanwhile."""
    engine, hang_s = state.engine, state.settings.hang
    # Counted up to the last reading: an engine with unreadable counters did not stand still.
    frozen_s = engine.counted_t - engine.moved_t
    missed = engine.liveness_misses or engine.canary_misses
    if not engine.ever_ok or (frozen_s < hang_s / 2 and not missed and not engine.units):
        return []
    signals = []
    is_counting = knows_counters(engine, watch)
    if is_counting:
        waits_s = engine.counted_t - engine.work_since if engine.work_since is not None else 0.0
        # An engine that answers from within does not hang, unless it makes no token for us either: what others call
        # work in flight may be requests that it refuses at once.
        lively = answers_from_within(engine, hang_s) and engine.canary_misses < BAD_CANARIES
        if frozen_s >= hang_s and waits_s >= hang_s and not lively:
            signals.append(Signal("counters", f"it made no token for {span(frozen_s)} while work waits"))
        elif frozen_s < hang_s or any(unit.busy_since is None for unit in engine.units.values()):
            for index, unit in engine.units.items():
                still_s = unit.t - unit.moved_t
                # While others move, or have nothing to do: that all stand together is a pause.
                if unit.busy_since is not None and still_s >= hang_s and unit.t - unit.busy_since >= hang_s:
                    of = f"engine {index} of {len(engine.units)}"
                    signals.append(Signal("counters", f"{of} made no token for {span(still_s)} though it has requests"))
                    break
    if not is_counting or frozen_s >= hang_s / 2 or signals:
        if engine.liveness_misses >= BAD_LOOKS:
            signals.append(Signal("request", f"/liveness failed {engine.liveness_misses} times in a row"))
        elif engine.canary_misses >= BAD_CANARIES:
            missed_twice = f"a one-token request was not answered, {engine.canary_misses} times in a row"
            signals.append(Signal("request", missed_twice))
    return signals


class OddEngine(NamedTuple):
    """An engine on another machine with which something may be wrong.

    ``alone``: the state as if it were the only engine. ``signals``: what speaks against it, perhaps nothing.
    """

    name: str
    host: str
    alone: State
    signals: list[Signal]


def each_odd_engine(state: State, watch: Watch) -> Iterator[OddEngine]:
    """Each by itself: what another engine, or another machine's GPU, shows says nothing of it."""
    by_host: dict[str, dict[str, GpuMemory]] = {}
    for uuid, memory in state.gpus.by_uuid.items() if state.engines else ():
        if memory.gpu.role == "inference":
            by_host.setdefault(memory.gpu.host, {})[uuid] = memory
    # Which GPU is whose is not told: where all of a machine's are empty, it is this engine's, too.
    empty = {host for host, gpus in by_host.items() if all(m.fallen_since is not None for m in gpus.values())}
    for engine in state.engines.values():
        look = engine.look
        if look is not None and (look.host in empty or _is_odd(engine, state)):
            gpus = by_host[look.host] if look.host in empty else {}
            alone = see_alone(state, engine, gpus)
            name = who("inference", look.host, look.index)
            yield OddEngine(name, look.host, alone, engine_signals(alone, watch))


def stands_alone(state: State, engine: EngineMemory) -> bool:
    """Is an engine that makes nothing the only one? All that have requests and stand together are paused together."""
    asked = [one for one in state.engines.values() if one is not engine and one.work_since is not None]
    return not asked or any(one.counted_t - one.moved_t < state.settings.hang / 2 for one in asked)


def _is_odd(engine: EngineMemory, state: State) -> bool:
    """Late answers alone are those of one that has more to do than the others, for a long time."""
    if engine.slow_since is not None and state.now - engine.slow_since >= LATE_S:
        return True
    hang_s = state.settings.hang
    still = engine.work_since is not None and engine.counted_t - engine.moved_t >= hang_s
    still = still or any(one.busy_since is not None and one.t - one.moved_t >= hang_s for one in engine.units.values())
    return still or engine.bad_since is not None or bool(engine.liveness_misses or engine.canary_misses)


def soft_overdue(state: State, watch: Watch) -> Signal | None:
    """The step is later than what this run has taught, and nothing known explains it."""
    if state.mode != "running":
        return None
    soft, _ = step_limits(state)
    # While it is not late by the plain clock, it is not asked what explains it (``calm``).
    if not watch.over(state.progress.t, soft) or excuse(state, watch):
        return None
    if not watch.over(step_began(state, watch), soft + unsaid(state, watch)):
        return None
    return Signal("step", f"no new step for {late(state)} ({explain_step_limits(state)})")


def late(state: State) -> str:
    """For how long no step was done, and how much of that known reasons explain."""
    since, explained = state.now - state.progress.t, explained_s(state)
    return f"{span(since)}, {span(explained)} of them explained," if explained >= 1 else span(since)


def idle_engine(state: State, watch: Watch) -> Signal | None:
    """An engine that is well and got no request for a while: another part is stuck."""
    engine, hang_s = state.engine, state.settings.hang
    idle_s = engine.counted_t - engine.worked_t
    if not knows_counters(engine, watch) or engine.work_since is not None or idle_s < hang_s:
        return None
    return Signal("counters", f"the engine is well and got no request for {span(idle_s)}")


def still_rollouts(state: State, watch: Watch) -> Signal | None:
    """The orchestrator's own counts stand still."""
    work = state.job.work
    # Counts without a report for a while are unknown, which is not the same as standing still.
    if work is None or watch.over(work.t, FRESH_S) or work.t - work.moved_t < state.settings.hang:
        return None
    return Signal("rollouts", f"the rollout counters stand still for {span(state.now - work.moved_t)}")


def standstill(state: State, watch: Watch) -> list[Signal]:
    """What shows that all stand still, before the step is late; [] where one of them works, or cannot be seen."""
    return _known_standstill(state, watch) or _slow_standstill(state, watch)


def _known_standstill(state: State, watch: Watch) -> list[Signal]:
    """GPUs and processes are seen too, and their picture stands for longer than any that was healthy in this run."""
    if not state.settings.has_engine and not state.engines:
        return []
    found = time_picture(state, watch)
    if found is None or not watch.over(*found):
        return []
    since, limit_s = found
    worked_t = engines_worked(state, watch) or 0.0
    engine = "no engine made a token" if state.engines else "the engine made no token"
    lasts, name = span(state.now - since), name_picture(state)
    watts = sum(m.gpu.power_w or 0.0 for m in state.gpus.by_uuid.values() if m.gpu.role == "trainer")
    gpus = {
        "spins": f"the trainer's GPUs are busy and draw little ({watts:.0f} W together), as in a collective that never "
        "ends",
        "mixed": "some of the trainer's GPUs wait for one that rests",
    }.get(name, "the trainer's GPUs have rested")
    return [
        Signal("counters", f"{engine} for {span(state.now - worked_t)}"),
        Signal("power", f"{gpus} for {lasts}"),
        Signal("processes", f"no environment, file or network moved for {lasts}; the limit here is {span(limit_s)}"),
    ]


def _slow_standstill(state: State, watch: Watch) -> list[Signal]:
    """The same by engine, rollouts and the trainer's own words, with limits that allow for what is not seen.

    The engine makes no token, the trainer's GPUs rest or it says that it waits, and no rollout ends: all of it for
    much longer than any pause so far.
    """
    found, engine = standstill_limits(state), state.engine
    if found is None or not state.settings.has_engine:
        return []
    limit_s, late_s = found
    starting = state.mode == "starting"
    last_t = state.attempt.started if starting else state.progress.t  # what the run last came to: its start, or a step
    began = start_of_limit(state, watch) if starting else step_began(state, watch)
    if not watch.over(last_t, late_s) or not watch.over(began, late_s):
        return []
    waits_since, moved_t = _idle_trainer(state, watch)
    if waits_since is None or not knows_counters(engine, watch):
        return []
    since = max(engine.worked_t, waits_since, last_t, moved_t)
    since = max(since, processes_moved(state, since + (AT_WORK_FACTOR - 1) * limit_s))
    if not watch.over(since, limit_s) or engine.counted_t - since < limit_s - FRESH_S or excuse(state, watch):
        return []
    rests = trainer_rests_since(state) is not None
    signals = (
        Signal("counters", f"the engine made no token for {span(state.now - engine.worked_t)}"),
        Signal("power", f"the trainer's GPUs have rested for {span(state.now - waits_since)}") if rests else None,
        still_rollouts(state, watch),
    )
    known = [signal for signal in signals if signal is not None]
    return known if len(known) > 1 else []


def _idle_trainer(state: State, watch: Watch) -> tuple[float | None, float]:
    """Since when it is known that the trainer does not compute, and when the last rollout ended (0 if not told).

    Its GPUs show it, or it says that it waits, which counts while the orchestrator's counts are fresh.
    """
    work, phase = state.job.work, state.job.phases.get("trainer")
    if work is None or watch.over(work.t, FRESH_S):
        return trainer_rests_since(state), 0.0
    if phase is not None and current(state, phase) and phase.phase == "rollouts":
        return phase.t, work.moved_t
    return trainer_rests_since(state), work.moved_t


def busy_trainer(state: State, watch: Watch) -> bool:
    """Is the trainer at work, as far as is known, for less than five times the longest it ever took?

    While it is, an idle engine and still rollouts prove no fault: they wait for it. Its own phases
    are told at log level "debug" only; at "info" the orchestrator tells that it waits for the trainer ("barrier").
    Where neither says anything, three times the longest step must have passed.
    """
    trainer, orchestrator = state.job.phases.get("trainer"), state.job.phases.get("orchestrator")
    for role, phase in (("trainer", trainer), ("orchestrator", orchestrator)):
        if phase is None or not current(state, phase):
            continue
        if role == "trainer" and phase.phase not in WORKS:
            return False
        if role == "trainer" or phase.phase == "barrier":
            times = state.books.learned.phases.get(f"{role}/{phase.phase}")
            hard = limits(times, state.settings.step_floor, state.settings.step_ceiling).hard_s
            if phase.phase in EXCUSED:
                hard = excuse_limit(state, role, phase.phase)
            return not watch.over(phase.t, hard)
    if state.books.learned.phases.keys() & TELLS_OF_TRAINING:
        return False  # they would say so
    times = state.books.learned.phases.get(STEP)
    return times is not None and not watch.over(step_began(state, watch), SILENT_LONGEST * times.longest_s)


def is_step_moving(state: State, watch: Watch) -> bool:
    """Does something of the step under way move: tokens for the job, rollouts that end, files that grow?"""
    work, growth = state.job.work, state.job.growth.get("rollouts")
    moved = [state.engine.worked_t]
    moved += [work.moved_t] if work is not None else []
    moved += [growth.t] if growth is not None else []
    last = max(moved)
    # The last rollouts of a step may keep all others waiting: not for longer than all before them took.
    return last > state.progress.t and not watch.over(last, max(IDLE_S, last - state.progress.t))


def lost_gpu(state: State) -> GpuTrouble | None:
    """The newest trouble of a GPU that no restart cures. One after which steps were done for long was survived."""
    survived = state.progress.t - SURVIVED_S if state.progress.step is not None else float("-inf")
    new = [one for one in state.gpus.trouble if one.fatal and one.t >= survived]
    return next((one for one in reversed(new) if one.host in ("", *state.machines_used())), None)
