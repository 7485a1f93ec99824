"""All stand still: which part do they wait for? It names the guilty one, and decides neither whether nor when to act.

The trainer tells of its phases at log level "debug" only. That the orchestrator waits for the trainer's next policy is
told at "info" in all versions, so one that has said so before and does not now waits for nothing of the trainer's. GPUs
and processes tell the rest; where nothing does, both are named.
"""

from __future__ import annotations

from supervisor.base.records import dataclass
from supervisor.core.deadlines import current
from supervisor.core.launcher import who
from supervisor.core.observe_job import LOADED
from supervisor.core.state import Phase, State
from supervisor.core.words import span

WAITS_S = 120.0  # in a call that no signal ends: two looks


@dataclass(frozen=True)
class Stuck:
    """``sentence``: who is stuck, and what shows it. ``sure``: something points at that part alone."""

    cause: str
    sentence: str
    sure: bool = True


def find(state: State) -> Stuck:
    """The part that keeps all others waiting, or both candidates."""
    return (
        _find_blocked_process(state)
        or _by_trainers_words(state)
        or _by_barrier(state)
        or _by_work(state)
        or _by_silence(state)
    )


def _stuck(part: str, why: str) -> Stuck:
    cause = {"trainer": "trainer-hang", "orchestrator": "orchestrator-wedged"}.get(part, f"{part}-hang")
    return Stuck(cause, f"{who(part)} is stuck: {why}")  # type: ignore[arg-type]  # a role


def _find_blocked_process(state: State) -> Stuck | None:
    """A process in a call that no signal ends: a mount that is gone, a driver that does not answer."""
    for role in ("trainer", "orchestrator", "env"):
        effort = state.job.efforts.get(role)
        if effort is not None and effort.waits_since is not None and state.now - effort.waits_since >= WAITS_S:
            return _stuck(role, f"its {effort.last.waits} has not moved for {span(state.now - effort.waits_since)}")
    return None


def _by_trainers_words(state: State) -> Stuck | None:
    phase = state.job.phases.get("trainer")
    if phase is None or not current(state, phase):
        return None
    lasts = span(state.now - phase.t)
    if phase.phase == "training":
        return _stuck("trainer", f"it has been training for {lasts} while all others wait for it")
    barrier = _barrier(state)
    if phase.phase != "rollouts":
        return None
    if barrier is not None and not _is_served(state, barrier):
        both = f"the trainer has waited for a batch for {lasts}, and the orchestrator for the trainer's next policy"
        return Stuck("job-stuck", f"The trainer and the orchestrator wait for each other: {both}")
    return _orchestrator(state, f"the trainer has waited for its batch for {lasts}")


def _by_barrier(state: State) -> Stuck | None:
    if "orchestrator" in state.job.finishes and "trainer" not in state.job.finishes:
        return _stuck("trainer", "the orchestrator is done")
    barrier = _barrier(state)
    if barrier is None or _is_served(state, barrier):
        return None
    return _stuck("trainer", f"the orchestrator has waited for its next policy for {span(state.now - barrier.t)}")


def _by_work(state: State) -> Stuck | None:
    """What GPUs and processes do while nothing comes of it."""
    gpus = [memory for memory in state.gpus.by_uuid.values() if memory.gpu.role == "trainer"]
    loaded = [memory.loaded_since for memory in gpus if memory.loaded_since is not None]
    hang_s, still = state.settings.hang, max(state.progress.t, state.engine.worked_t)
    since = max(still, *loaded) if loaded else state.now
    if loaded and len(loaded) == len(gpus) and state.now - since >= hang_s:
        least = min(gpus, key=lambda memory: memory.gpu.power_w or 0.0)
        spins = least.rests_since is not None
        why = f" at {least.gpu.power_w:.0f} W, as in a collective that never ends" if spins else ""
        return _stuck("trainer", f"its GPUs have been busy for {span(state.now - since)}{why}")
    for role in ("trainer", "orchestrator"):
        effort = state.job.efforts.get(role)
        since = max(still, effort.busy_since) if effort and effort.busy_since is not None else state.now
        if state.now - since >= hang_s:
            lasts = span(state.now - since)
            return _stuck(role, f"each of its processes has used a whole core for {lasts}")
    return None


def _by_silence(state: State) -> Stuck:
    phase, work = state.job.phases.get("orchestrator"), state.job.work
    heard = bool(state.progress.rewards) or work is not None or phase is not None
    would_say = heard and "orchestrator/barrier" in state.books.learned.phases
    # Its rollouts end while it waits for the trainer, unless weights are being handed over.
    holds = work is not None and work.inflight > 0 and not (phase is not None and phase.phase == "weight-update")
    loads = [memory.gpu.load for memory in state.gpus.by_uuid.values() if memory.gpu.role == "trainer"]
    idle = bool(loads) and all(load is not None and load < LOADED for load in loads)
    if _barrier(state) is None and (would_say or holds or idle):
        return _orchestrator(state, "")
    return Stuck("job-stuck", "The orchestrator or the trainer is stuck", sure=False)


def _orchestrator(state: State, why: str) -> Stuck:
    work = state.job.work
    waits = f", or the environments for which its {work.inflight} rollouts wait" if work and work.inflight else ""
    return Stuck("orchestrator-wedged", f"The orchestrator is stuck{waits}" + (f": {why}" if why else ""), sure=False)


def _barrier(state: State) -> Phase | None:
    """What the orchestrator said last, where that is that it waits for the trainer."""
    phase = state.job.phases.get("orchestrator")
    return phase if phase is not None and phase.phase == "barrier" and not phase.over else None


def _is_served(state: State, barrier: Phase) -> bool:
    """Has the trainer made a step since then, or the very version that is waited for? Then either may be at fault."""
    progress, settings = state.progress, state.settings
    if progress.step is not None and barrier.t < progress.t:
        return True
    if barrier.step is None:
        return False
    made = (
        progress.step + (settings.first_step_at == 0) if progress.step is not None else state.attempt.resume_step or 0
    )
    return made >= barrier.step
