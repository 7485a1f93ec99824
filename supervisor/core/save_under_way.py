"""Which checkpoint is being written while the job has to be stopped, and how long it is worth waiting for."""

from __future__ import annotations

from supervisor.base.records import dataclass
from supervisor.core.deadlines import save_of_trainer
from supervisor.core.proof import Verdict
from supervisor.core.state import State

SAVE = "trainer/checkpoint"
UNKNOWN_SAVE_S = 60.0
LONGEST = 2.0  # times the longest save of this run


@dataclass(frozen=True)
class Saving:
    """Step ``step`` is being written by ``writers`` (pid, start ticks), and may take ``patience_s`` seconds more."""

    step: int
    writers: tuple[tuple[int, int], ...]
    patience_s: float


def save_under_way(state: State, verdict: Verdict) -> Saving | None:
    """The save that a trainer which is well is in the midst of; None where there is none, or the trainer has failed.

    Each kind of standstill but the engine's may be the save's own. No save is wanted of a trainer that began from
    scratch, or at a step that is quarantined.
    """
    phase = save_of_trainer(state)
    if phase is None or phase.step is None:
        return None
    failed = verdict.cause.startswith("trainer") or any(gone.role == "trainer" for gone in state.job.gone)
    unwanted = verdict.cause == "fresh-start" or str(state.attempt.resume_step) in state.store.quarantined
    if failed or unwanted or (verdict.kind == "hung" and not verdict.cause.startswith("engine")):
        return None
    writers = tuple(
        (one.pid, one.start_ticks) for one in state.job.processes_here() if one.role == "trainer" and one.key
    )
    times = state.books.learned.phases.get(SAVE)
    usual_s = UNKNOWN_SAVE_S if times is None or not times.count else LONGEST * times.longest_s
    left_s = min(usual_s, state.settings.checkpoint_save) - (state.now - phase.t)
    return Saving(phase.step, writers, left_s) if writers and left_s > 0 else None
