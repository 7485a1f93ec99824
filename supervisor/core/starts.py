"""What a start that made no step has shown, so that the next one is given more time only if it shows more."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.state import State

OVERDUE = "startup-overdue"
HUNG = (OVERDUE, "start-stuck")
MORE = 1.1  # memory and downloads differ by a little from start to start


def progress_of_start(state: State) -> dict[str, float]:
    """How far the present start has come: phases, an engine that answers, bytes in memory and fetched."""
    found = {
        f"{role}/{phase.phase}": 1.0 for role, phase in state.job.phases.items() if phase.t >= state.attempt.started
    }
    if state.engine.ever_ok:
        found["engine"] = 1.0
    if state.job.work is not None and state.job.work.done:
        found["rollouts"] = 1.0
    found["memory"] = float(sum(m.plateau_bytes for m in state.gpus.by_uuid.values() if m.gpu.role != "other"))
    growth = state.job.growth.get("download")
    found["download"] = float(growth.size_bytes) if growth is not None and growth.grown_s else 0.0
    return found


def more_time(state: State) -> int:
    """How often the time of this start is doubled: for each overdue one, and itself, that showed more than before."""
    overdue = [one for one in state.recovery.failures if one.signature == OVERDUE]
    if not overdue:
        return 0
    before, times = overdue[0].shown, 0
    for now in (*(one.shown for one in overdue[1:]), progress_of_start(state)):
        times += _more(now, before)
        before = _furthest(before, now)
    return times


def fruitless_s(state: State) -> float:
    """Seconds of the newest hung starts that showed no more than those before them, with the one they equal."""
    before: Mapping[str, float] = {}
    seconds = 0.0
    hung = [one for one in state.recovery.failures if one.signature in HUNG]
    for one in hung:
        seconds = one.lasted_s if _more(one.shown, before) else seconds + one.lasted_s
        before = _furthest(before, one.shown)
    return 0.0 if hung and seconds == hung[-1].lasted_s else seconds


def _more(now: Mapping[str, float], before: Mapping[str, float]) -> bool:
    return any(value > MORE * before.get(name, 0.0) for name, value in now.items())


def _furthest(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}
