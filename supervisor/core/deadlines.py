"""How long silence may last now: the learned limits of ``phases``, applied to what the run is doing."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.phases import RESUME, STEP, WARM, limits
from supervisor.core.starts import OVERDUE, more_time
from supervisor.core.state import Phase, State
from supervisor.core.watch import Watch
from supervisor.core.words import span

RESUME_FLOOR_S = 600.0
SAVE_FLOOR_S, EVAL_FLOOR_S = 120.0, 300.0
LEARNED_FROM = 3  # times of a phase before its own length limits the excuse
EVAL_IDLE_S = 600.0
STILL_WRITTEN_S = 60.0


@dataclass(frozen=True)
class StepDeadline:
    """Seconds since the last step after which it is overdue: ``soft_s`` with a second signal, ``hard_s`` alone."""

    soft_s: float
    hard_s: float
    sentence: str


def step_limits(state: State) -> tuple[float, float]:
    """Soft and hard limit of the next step, in seconds since the last one."""
    settings = state.settings
    found = limits(state.learned.phases.get(STEP), settings.step_floor_s, settings.step_ceiling_s)
    return found.soft_s, found.hard_s


def step_deadline(state: State) -> StepDeadline:
    """The limits of the next step with the sentence that explains them."""
    soft, hard = step_limits(state)
    times = state.learned.phases.get(STEP)
    if times is None or not times.count:
        return StepDeadline(soft, hard, f"no step was timed yet, so {span(hard)} is allowed")
    few = f", only {times.count} timed yet" if times.count < WARM else ""
    return StepDeadline(
        soft,
        hard,
        f"steps take {span(times.median_s)} (longest {span(times.longest_s)}{few}), so {span(soft)} is overdue with a "
        f"second signal and {span(hard)} alone",
    )


def startup_budget(state: State) -> float:
    """Seconds from launch to the first new step, downloads apart, after which its length alone convicts a start."""
    # Half-hour steps may make starts longer than any setting foresaw: what is only suspicious here is always allowed.
    times = state.learned.phases.get(RESUME)
    return max(_foreseen(state), limits(times, 0.0, 0.0).soft_s)


def _foreseen(state: State) -> float:
    """What is allowed by the setting, and by the starts so far; doubled for each that showed more than those before."""
    slow_starts = any(failure.signature == OVERDUE for failure in state.failures)
    budget = state.settings.startup_s
    if state.learned.phases.get(RESUME) is not None and not slow_starts:
        # Deadlocks happen while resuming (prime-rl issues 2230 and 3016): what starts took before is the better guide.
        budget = min(budget, max(RESUME_FLOOR_S, limits(state.learned.phases[RESUME], 0.0, 0.0).hard_s))
    return budget * 2.0 ** more_time(state)


def startup_suspect(state: State) -> float:
    """Seconds from launch after which a start is suspicious, and a second signal convicts it."""
    soft = limits(state.learned.phases.get(RESUME), RESUME_FLOOR_S, state.settings.startup_s).soft_s
    return min(soft, _foreseen(state))


def started(state: State) -> float:
    """When the start began, by a clock that stood still while a download grew."""
    growth = state.growth.get("download")
    return state.started + (growth.grown_s if growth else 0.0)


def excuse_limit(state: State, role: str, phase: str) -> float:
    """For how long this phase explains that nothing else moves, in seconds; below 0: it explains nothing."""
    settings = state.settings
    match phase:
        case "checkpoint":
            floor, unknown = SAVE_FLOOR_S, settings.writing_s
        case "weight-update":
            # At log level "info" no line says that an update is over, so nothing is learned of its length.
            return 3 * settings.hang_s
        case "eval":
            floor, unknown = EVAL_FLOOR_S, settings.step_ceiling_s
        case "download":
            return settings.startup_s
        case _:
            return -1.0
    times = state.learned.phases.get(f"{role}/{phase}")
    if times is None or times.count < LEARNED_FROM:
        return unknown
    # Not longer than an unknown one: where no line says that a phase is over, its length is learned too long.
    return min(unknown, max(floor, 5 * times.longest_s))


def excuse(state: State, watch: Watch | None = None) -> str:
    """A known reason for silence now (a checkpoint being written, a weight update, an evaluation), or ""."""
    watch = watch or Watch(state.now)
    for role, phase in state.phases.items():
        limit = excuse_limit(state, role, phase.phase)
        if limit <= 0 or not current(state, phase):
            continue
        if (
            phase.phase == "eval"
            and state.engine.ever_ok
            and watch.over(max(phase.t, state.engine.worked_t), EVAL_IDLE_S)
        ):
            continue  # nobody has asked the engine for anything since long ago: whatever this is, it evaluates nothing
        if not watch.over(phase.t, limit):
            return f"the {role} has been in {phase.phase} for {span(state.now - phase.t)}"
    if not state.live:
        return ""
    growth = state.growth.get("checkpoint")
    if growth is not None and growth.t > state.progress.t and not watch.over(growth.t, state.settings.hang_s):
        return "a checkpoint is being written, and it grows"
    if watch.over(state.progress.t, state.settings.writing_s):
        return ""
    for step in reversed(state.local):
        # The files' times are wall time, and only their age means something here.
        age = state.wall - step.changed_wall
        if step.state == "writing" and not watch.over(state.now - age, STILL_WRITTEN_S):
            return f"the checkpoint of step {step.step} is being written"
    return ""


def allowance(state: State, *, moves: bool = False) -> float:
    """Seconds by which slow phases begun since the last step stretch the hard deadline: they do not lift it.

    ``moves``: the engine makes tokens, so that an evaluation is not stuck, however long it takes.
    """
    present = [(role, phase.phase) for role, phase in state.phases.items() if current(state, phase)]
    if moves and any(phase == "eval" for _, phase in present):
        return state.settings.step_ceiling_s
    return max(0.0, max((excuse_limit(state, role, phase) for role, phase in present), default=0.0))


def updating(state: State, watch: Watch) -> bool:
    """Are weights being updated? Then the engine is paused, and neither tokens nor answers are to be expected."""
    return any(
        phase.phase == "weight-update"
        and current(state, phase)
        and not watch.over(phase.t, excuse_limit(state, role, phase.phase))
        for role, phase in state.phases.items()
    )


def current(state: State, phase: Phase) -> bool:
    """Does the role still do it? A step that was done since then ends it, whatever the log did not say."""
    return phase.t >= state.started and (state.progress.step is None or phase.t >= state.progress.t)
