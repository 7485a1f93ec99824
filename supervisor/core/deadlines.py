"""How long silence may last, learned from the run's own steps.

Estimator: the median and the longest of the last fifty intervals between two trainer steps, as observed here. The
factors are those of the field: NVRx learns "longest seen times five" for its hard time-outs after removing fixed
ones (nvidia-resiliency-ext, PR 271); the soft limit (three medians, one and a half times the longest) only ever
counts together with a second signal of another kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from supervisor.core.facts import Settings
from supervisor.core.state import Phase, Progress, State

KEEP_INTERVALS = 50


@dataclass(frozen=True)
class StepDeadline:
    """Seconds since the last step after which it is overdue: ``soft_s`` with a second signal, ``hard_s`` alone."""

    soft_s: float
    hard_s: float
    sentence: str


def step_deadline(progress: Progress, settings: Settings) -> StepDeadline:
    """Deadlines for the next step once this attempt has done one."""
    if not progress.intervals:
        ceiling = max(settings.step_ceiling_s, settings.step_floor_s)
        return StepDeadline(ceiling, ceiling, f"no step was timed yet, so {span(ceiling)} is allowed")
    middle = median(progress.intervals)
    soft = max(settings.step_floor_s, 3 * middle, 1.5 * progress.longest_s)
    hard = max(settings.step_floor_s, soft, 5 * progress.longest_s)
    return StepDeadline(
        soft,
        hard,
        f"steps take {span(middle)} (longest {span(progress.longest_s)}), so {span(soft)} is overdue with a second "
        f"signal and {span(hard)} alone",
    )


def startup_budget(state: State) -> float:
    """Seconds from launch to the first new step; doubled after each start that made none (compilation, download)."""
    slow_starts = sum(1 for failure in state.failures[-3:] if failure.signature == "startup-overdue")
    return state.settings.startup_s * 2.0**slow_starts


def _limits(state: State) -> dict[str, float]:
    """Phases that are a known reason for silence, and for how long (seconds)."""
    return {
        "checkpoint": state.settings.writing_s,
        "weight-update": min(300.0, state.settings.writing_s),
        "eval": state.settings.step_ceiling_s,
        "download": state.settings.startup_s,
    }


def excuse(state: State) -> str:
    """A known reason for silence now (a checkpoint being written, a weight update, an evaluation), or ""."""
    limits = _limits(state)
    for role, phase in sorted(state.phases.items()):
        since = state.now - phase.t
        if since <= limits.get(phase.phase, -1.0) and _current(state, phase):
            return f"the {role} has been in {phase.phase} for {span(since)}"
    writing = [s for s in state.local if s.state == "writing" and state.wall - s.changed_wall < 60]
    if writing and state.live and state.now - state.progress.t < state.settings.writing_s:
        return f"the checkpoint of step {writing[-1].step} is being written"
    return ""


def allowance(state: State) -> float:
    """Seconds by which slow phases begun since the last step stretch the hard deadline: they do not lift it."""
    limits = _limits(state)
    return max((limits.get(p.phase, 0.0) for p in state.phases.values() if _current(state, p)), default=0.0)


def _current(state: State, phase: Phase) -> bool:
    # A step that was done since then ends the phase, whatever the log did not say.
    return phase.t >= state.started and (state.progress.step is None or phase.t >= state.progress.t)


def span(seconds: float) -> str:
    """A duration for people: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 0:
        return "0 s"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def size(count: float) -> str:
    """A number of bytes for people, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit in ("B", "KiB") or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"
