"""Does a fact only say that all goes on? Then, until the next limit passes, no ladder has to be climbed.

Such a fact moves limits into the future and brings none nearer: a counter that moved, memory that stands, a scan that
found the same, a phase that began while the step is not late. Whatever is not listed here is news.
``tests/core/test_calm.py`` holds this page to that: with and without it, the core decides the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.core import facts as f
from supervisor.core.deadlines import asked_from
from supervisor.core.launcher import STOPPING
from supervisor.core.pictures import name_picture, picture_limit, sees_processes
from supervisor.core.retention import disk_over, disk_short
from supervisor.core.state import EngineMemory, State


def only_goes_on(before: State, after: State, fact: f.Fact) -> bool:
    """True when ``fact``, which led from ``before`` to ``after``, can lead to no conclusion by itself."""
    look = _LOOKS.get(type(fact))
    return look is not None and look(before, after, fact)


def _in_time(state: State) -> bool:
    """While the step is not late, no rule asks for an excuse, or which part waits for which."""
    picture = picture_limit(state)  # no picture stands for longer than the step
    asked = asked_from(state) if picture is None else min(picture, asked_from(state))
    return state.mode == "running" and state.now < state.progress.t + asked


def only_reacted_to(before: State, after: State, fact: f.Fact) -> bool:
    """True when ``fact`` may have to be told of, and can change nothing for the ladders of the mode."""
    match fact:
        case f.HostLook():
            return True
        case f.StepDone():
            well = not before.worth.holds and not after.worth.holds
            return well and before.progress.step == after.progress.step and _in_time(after)
    return False


def _always(before: State, after: State, fact: f.Fact) -> bool:
    return True


def _gpus(before: State, after: State, fact: f.GpuLook) -> bool:
    if fact.reason or before.gpus.reason or fact.lost:
        return False
    old = before.gpus.by_uuid
    for uuid in [gpu.uuid for gpu in fact.gpus]:
        memory = after.gpus.by_uuid[uuid]
        known = old.get(uuid)
        if known is None or memory.fallen_since is not None or known.fallen_since is not None:
            return False
        if (memory.rests_since is None) != (known.rests_since is None) and not _in_time(after):
            return False
    return len(old) == len(after.gpus.by_uuid)


def _engine(before: State, after: State, fact: f.EngineLook) -> bool:
    old, new = before.engine, after.engine
    if fact.host:
        old, new = before.engines.get(fact.place, EngineMemory()), after.engines[fact.place]
    if fact.health != "ok" or fact.liveness in ("bad", "timeout") or fact.canary in ("bad", "timeout"):
        return False
    if not old.ever_ok or old.bad_since is not None or old.slow_since is not None or old.liveness_misses:
        return False
    hang_s = after.settings.hang
    if new.counted_t != after.now or new.canary_misses:
        return False
    if new.units and not all(unit.busy_since is None or unit.moved_t == after.now for unit in new.units.values()):
        return False
    if new.counted_t - new.moved_t >= hang_s / 2 and new.work_since is not None:
        return False
    # An engine that becomes idle, or has work again, changes who is thought to be stuck; one that is seen
    # idle again is no evaluation.
    same = (old.work_since is None) == (new.work_since is None) and new.worked_t == after.now
    return same or _in_time(after)


def _effort(before: State, after: State, fact: f.EffortLook) -> bool:
    # Who is stuck needs no ladder; that processes can be seen, or show another picture, brings a limit nearer.
    return sees_processes(before) == sees_processes(after) and name_picture(before) == name_picture(after)


def _phase(before: State, after: State, fact: f.PhaseSeen) -> bool:
    return _in_time(after) and fact.phase != STOPPING and not (fact.phase == "checkpoint" and disk_short(after))


def _work(before: State, after: State, fact: f.WorkSeen) -> bool:
    # The first word of rollouts, and the first or the last of them in flight, change who is thought to be stuck.
    old, new = before.job.work, after.job.work
    if new is None or new.moved_t != after.now:
        return False
    return _in_time(after) or (old is not None and (old.inflight > 0) == (new.inflight > 0))


def _disk(before: State, after: State, fact: f.DiskLook) -> bool:
    # Room that appears is news, too: it wakes what waits.
    return not fact.reason and not any(_full(state) for state in (before, after))


def _full(state: State) -> bool:
    return disk_over(state) or disk_short(state)


def _steps(before: State, after: State, fact: f.LocalSteps) -> bool:
    return not fact.settled and not fact.reason and not before.local.reason and before.local.steps == after.local.steps


_LOOKS: dict[type, Callable[[State, State, Any], bool]] = {
    f.Tick: _always,
    f.Growing: _always,
    f.PhaseSeen: _phase,
    f.ProcessSeen: _always,
    f.GpuLook: _gpus,
    f.EffortLook: _effort,
    f.EngineLook: _engine,
    f.WorkSeen: _work,
    f.DiskLook: _disk,
    f.LocalSteps: _steps,
}
