"""How long silence may last now: the learned limits of ``phases``, applied to what the run is doing.

Time that a known reason explains (a save, an evaluation, an update of weights) counts against no limit, neither while
it lasts nor afterwards: all rules that ask how late a step or a start is ask by a clock that stood still meanwhile.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from supervisor.core.machines import rest_since
from supervisor.core.phases import ENGINE_IDLE, ENGINE_UP, ENGINE_UPDATE, KEEP, RESUME, STEP, WARM, Limits, limits
from supervisor.core.starts import OVERDUE, more_time
from supervisor.core.state import EngineMemory, Phase, State
from supervisor.core.watch import NEVER, Watch
from supervisor.core.words import span

RESUME_FLOOR_S = 600.0
SAVE_FLOOR_S = 120.0
LEARNED_FROM = 3  # times of a phase before its own length limits the excuse
EVAL_CEILINGS, EVAL_LONGEST = 2.0, 2.0  # step ceilings, or the longest evaluation seen, that one may take
PAUSE_LONGEST, PAUSE_STEPS = 3.0, 1.5  # times the engine's longest pause, and the median step
IDLE_S = 600.0  # an engine that was asked for nothing for so long evaluates nothing
STILL_WRITTEN_S = 60.0
FRESH_S = 120.0  # how long an error line, or a reading of the engine's counters, counts as present
MOST_SPANS = 64
UPDATE_S = 720.0  # after which prime-rl gives up a request to update the weights (559b44772, utils/client.py)
PAUSED_BY_S = 60.0  # of an update that pauses the engine, where requests under way are ended first
APART = ("eval", "checkpoint")  # work that a step of the trainer does not end
BESIDE = "orchestrator/eval"
"""Where an evaluation stands in ``State.phases`` while the orchestrator does something else beside it: prime-rl updates
weights meanwhile (559b44772, dispatcher.py: eval episodes may finish even if training advances)."""


def step_limits(state: State) -> Limits:
    """Seconds since the last step after which the next one is overdue, with a second signal and alone."""
    settings = state.settings
    return limits(state.books.learned.phases.get(STEP), settings.step_floor, settings.step_ceiling)


def explain_step_limits(state: State) -> str:
    """Why the limits of the next step are what they are, a clause."""
    soft, hard = step_limits(state)
    times = state.books.learned.phases.get(STEP)
    if times is None or not times.count:
        return f"no step was timed yet, so {span(hard)} is allowed"
    few = f", only {times.count} timed yet" if times.count < WARM else ""
    return (
        f"steps take {span(times.median_s)} (longest {span(times.longest_s)}{few}), so {span(soft)} is overdue with a "
        f"second signal and {span(hard)} alone"
    )


def startup_budget(state: State) -> float:
    """Seconds from launch to the first new step, downloads apart, after which its length alone convicts a start."""
    # Half-hour steps may make starts longer than any setting foresaw: what is only suspicious here is always allowed.
    times = state.books.learned.phases.get(RESUME)
    return max(_foreseen(state), limits(times, 0.0, 0.0).soft_s)


def _foreseen(state: State) -> float:
    """What is allowed by the setting, and by the starts so far; doubled for each that showed more than those before."""
    slow_starts = any(failure.signature == OVERDUE for failure in state.recovery.failures)
    budget = state.settings.startup
    if state.books.learned.phases.get(RESUME) is not None and not slow_starts:
        # Deadlocks happen while resuming (prime-rl issues 2230 and 3016): what starts took before is the better guide.
        budget = min(budget, max(RESUME_FLOOR_S, limits(state.books.learned.phases[RESUME], 0.0, 0.0).hard_s))
        up = state.books.learned.phases.get(ENGINE_UP)
        if up is not None and up.count >= LEARNED_FROM and _refuses(state):
            budget = min(budget, max(RESUME_FLOOR_S, limits(up, 0.0, 0.0).hard_s))
    return budget * 2.0 ** more_time(state)


def _refuses(state: State) -> bool:
    """Is it known that the engine of this attempt has never been up?"""
    look = state.engine.look
    return not state.engine.ever_ok and look is not None and look.health == "refused"


def startup_suspect(state: State) -> float:
    """Seconds from launch after which a start is suspicious, and a second signal convicts it."""
    soft = limits(state.books.learned.phases.get(RESUME), RESUME_FLOOR_S, state.settings.startup).soft_s
    return min(soft, _foreseen(state))


def knows_counters(engine: EngineMemory, watch: Watch) -> bool:
    """Are the engine's counters known at present?"""
    return engine.count is not None and engine.ever_ok and not watch.over(engine.counted_t, FRESH_S)


def standstill_limits(state: State) -> tuple[float, float] | None:
    """Two limits in seconds: how long all may rest at most, and how long after a step, or a start, that is not asked.

    Only a slow environment lets all wait at the same time. How long that may last, the engine's pauses teach; at a
    start all wait while a checkpoint is loaded, too. None: too little is known yet.
    """
    steps, starts = state.books.learned.phases.get(STEP), state.books.learned.phases.get(RESUME)
    longest_s = longest_pause(state)
    if state.mode == "starting":
        if starts is None or starts.count < LEARNED_FROM:
            return None
        return max(RESUME_FLOOR_S, longest_s), RESUME_FLOOR_S
    if steps is None or steps.count < WARM:
        return None
    # A run that never paused in so many steps is not known to do so; one of a few steps may just not have done so yet.
    least_s = state.settings.step_floor / (2 if steps.count >= KEEP else 1)
    return max(least_s, longest_s), max(least_s, PAUSE_STEPS * steps.median_s)


def longest_pause(state: State) -> float:
    """For how many seconds the engine may stand idle in this run: a slow environment lets all wait."""
    pauses = state.books.learned.phases.get(ENGINE_IDLE)
    return PAUSE_LONGEST * pauses.longest_s if pauses is not None else 0.0


def asked_from(state: State) -> float:
    """For so many seconds after a step it is not asked whether something is stuck."""
    soft, found = step_limits(state)[0], standstill_limits(state)
    return soft if found is None else min(soft, found[1])


def start_of_limit(state: State, watch: Watch | None = None, until: float = NEVER) -> float:
    """When the start began, by a clock that stood still while a download grew or a known reason explained it."""
    growth = state.job.growth.get("download")
    # A download explains a start only while it grows.
    explained = _explained_s(state, state.attempt.started, watch, but="download", until=until)
    return state.attempt.started + (growth.grown_s if growth else 0.0) + explained


def step_began(state: State, watch: Watch | None = None) -> float:
    """When the step under way began, by a clock that stood still while a known reason explained the silence.

    Of the present reasons that is as long as they may take.
    """
    return state.progress.t + _explained_s(state, state.progress.t, watch)


def worked_last(state: State) -> float:
    """When the engine, or one of several, last made a token for the job, or a rollout moved."""
    rollouts_t = state.job.work.moved_t if state.job.work is not None else 0.0
    return max(rollouts_t, *(one.worked_t for one in (state.engine, *state.engines.values())))


def explained_s(state: State, since: float | None = None) -> float:
    """Seconds since the last step, or since then, that a known reason explains, up to now."""
    return _explained_s(state, state.progress.t if since is None else since, until=state.now)


def _explained_s(
    state: State, since: float, watch: Watch | None = None, *, but: str = "", until: float = NEVER
) -> float:
    present = [(phase.t, ends) for _, phase, ends in _present(state, watch or Watch(state.now)) if phase.phase != but]
    total, reached = 0.0, since
    for began, ended in sorted((*state.job.explained, *present)):
        ended = min(ended, until)
        if ended > reached:  # two roles may be busy at the same time
            total += ended - max(began, reached)
            reached = ended
    return total


def explained_until_now(state: State, role: str, phase: Phase) -> tuple[tuple[float, float], ...]:
    """``state.explained`` with ``phase``, which is over now. That it was told to be over shows that it was no hang."""
    ends = min(state.now, _find_end(state, role, phase))
    if ends <= phase.t or phase.over or phase.phase == "download":
        return state.job.explained
    return with_span(state.job.explained, phase.t, ends)


def _find_end(state: State, role: str, phase: Phase) -> float:
    """Until when this phase can explain silence: an update of weights only until the engine makes tokens."""
    update = state.job.update if phase.phase == "weight-update" else None
    ends = phase.t + excuse_limit(state, role, phase.phase)
    return ends if update is None or update.until is None else min(ends, update.until)


def with_span(spans: tuple[tuple[float, float], ...], began: float, ended: float) -> tuple[tuple[float, float], ...]:
    """``spans`` and one more: what follows the newest without a gap becomes part of it."""
    if spans and spans[-1][0] <= began <= spans[-1][1]:
        return (*spans[:-1], (spans[-1][0], max(spans[-1][1], ended)))
    return (*spans, (began, ended))[-MOST_SPANS:]


def excuse_limit(state: State, role: str, phase: str) -> float:
    """For how long this phase explains that nothing else moves, in seconds; below 0: it explains nothing."""
    settings = state.settings
    times = state.books.learned.phases.get(f"{role}/{phase}")
    match phase:
        case "checkpoint":
            if times is None or times.count < LEARNED_FROM:
                return settings.checkpoint_save
            # Not longer than an unknown one: where no line says that it is over, its length is learned too long.
            return min(settings.checkpoint_save, max(SAVE_FLOOR_S, 5 * times.longest_s))
        case "weight-update":
            # At log level "info" no line says that it is over: only how long the engine stands still is learned.
            # Where no counter was ever read, nothing tells how much of a step it took.
            return 3 * settings.hang if state.engine.count is not None or state.engines else -1.0
        case "eval":
            # Short ones say nothing of the long one that comes once a day: it ends by the engine's idleness.
            longest_s = times.longest_s if times is not None else 0.0
            return max(EVAL_CEILINGS * settings.step_ceiling, EVAL_LONGEST * longest_s)
        case "download":
            return settings.startup
    return -1.0


def _present(state: State, watch: Watch) -> Iterator[tuple[str, Phase, float]]:
    """The phases that may explain silence now, with their roles and the time until which each does."""
    for name, phase in state.job.phases.items():
        role = name.partition("/")[0]
        ends = _find_end(state, role, phase)
        if ends > phase.t and current(state, phase):
            if phase.phase == "eval" and role != "trainer":  # the trainer validates without the engine
                ends = min(ends, _evaluation_end(state, phase, watch))
            yield role, phase, ends


def _evaluation_end(state: State, phase: Phase, watch: Watch) -> float:
    """Until when this can have been an evaluation, as far as the engine's counters tell."""
    engine = state.engine
    if engine.look is not None and engine.look.host:
        return NEVER  # one of several may have nothing to do in it
    worked_t = max(phase.t, engine.worked_t)
    idle_s = max(IDLE_S, longest_pause(state))  # the last rollouts of an evaluation may wait for a slow environment
    if not watch.over(worked_t, idle_s):
        return NEVER
    if not knows_counters(engine, watch):
        # Counters that were readable once and are not now, while its GPUs rest: the server answers nothing any more.
        rests = rest_since(state, "inference")
        still = rests is not None and watch.over(rests, idle_s)
        return worked_t if still and engine.count is not None and engine.slow_since is not None else NEVER
    # The engine has been asked for nothing for long: whatever this is, it evaluates nothing.
    return worked_t if engine.counted_t - worked_t >= idle_s else NEVER


def excuse(state: State, watch: Watch | None = None, but: Container[str] = ()) -> str:
    """A known reason for silence now (a checkpoint being written, a weight update, an evaluation), or "".

    ``but``: phases that count for nothing here, since what they do would be seen.
    """
    watch = watch or Watch(state.now)
    for role, phase, ends in _present(state, watch):
        if phase.phase not in but and not watch.over(ends, 0.0):
            return f"the {role} has been in {phase.phase} for {span(state.now - phase.t)}"
    if state.engine.work_since is not None and "weight-update" not in but and is_paused_for_update(state):
        return "the engine is paused for an update of its weights"
    if not state.live:
        return ""
    growth = state.job.growth.get("checkpoint")
    if growth is not None and growth.t > state.progress.t and not watch.over(growth.t, state.settings.hang):
        return "a checkpoint is being written, and it grows"
    if watch.over(step_began(state, watch), state.settings.checkpoint_save):
        return ""
    for step in reversed(state.local.steps):
        # The files' times are wall time, and only their age means something here.
        age = state.wall - step.changed_wall
        if step.state == "writing" and not watch.over(state.now - age, STILL_WRITTEN_S):
            return f"the checkpoint of step {step.step} is being written"
    return ""


def explanation_ended(state: State, watch: Watch, but: Container[str] = ()) -> float:
    """Until when a known reason explained silence, at most now; the last step's end where none did."""
    spans = [ends for _, phase, ends in _present(state, watch) if phase.phase not in but]
    spans += [ended for _, ended in state.job.explained[-1:]]
    return min(state.now, max(spans, default=state.progress.t))


def unsaid(state: State, watch: Watch) -> float:
    """Seconds that an evaluation may take of which no line tells: the logs of such a run show its steps alone.

    It is none where the counters say that the engine idles, nor where they were readable once and are not now.
    """
    engine = state.engine
    if not state.settings.has_engine or state.job.work is not None or state.job.phases:
        return 0.0
    idle = watch.over(engine.worked_t, IDLE_S) and engine.counted_t - engine.worked_t >= IDLE_S
    works = knows_counters(engine, watch) and not idle
    return excuse_limit(state, "orchestrator", "eval") if works or engine.count is None else 0.0


def is_paused_for_update(state: State) -> bool:
    """Does the engine stand still for an update of its weights, for no longer than updates may take in this run?

    No other line ends one: the trainer's step comes behind its save, the orchestrator ships a batch, saves and begins
    evaluations meanwhile, and a line that says that it is over may be read before the engine is looked at again.
    """
    update, engine, hang_s = state.job.update, state.engine, state.settings.hang
    if update is None:
        return False
    times, since = state.books.learned.phases.get(ENGINE_UPDATE), engine.moved_t
    if not knows_counters(engine, Watch(state.now)):
        since = max(since, engine.lively_t)
    # After a hang, which may have been none, what was learned counts for nothing: ended in each, a job makes no step.
    doubted = any(one.signature == "engine-hang" for one in state.recovery.failures)
    learned_s = UPDATE_S if times is None or times.count < LEARNED_FROM or doubted else PAUSE_LONGEST * times.longest_s
    # In steps of seconds each hang falls into an update.
    step_s = max(state.progress.duration_s or NEVER, state.progress.interval_s or NEVER)
    least_s = (1.5 if step_s < hang_s / 2 else 2.0) * hang_s
    limit = min(UPDATE_S, max(least_s, learned_s if since <= update.t + PAUSED_BY_S or doubted else 0.0))
    return since <= update.t + 2 * hang_s and max(engine.counted_t - since, state.now - update.t - PAUSED_BY_S) < limit


def save_of_trainer(state: State) -> Phase | None:
    """The trainer's own word that it saves."""
    phase = state.job.phases.get("trainer")
    return phase if phase is not None and phase.phase == "checkpoint" and current(state, phase) else None


def current(state: State, phase: Phase) -> bool:
    """Does the role still do it? Its own next line ends it, and what waits for the trainer ends with its step.

    An evaluation or a save does not: with steps of asynchrony the trainer may finish one, or several, meanwhile.
    """
    if phase.t < state.attempt.started or phase.over:
        return False
    return phase.phase in APART or state.progress.step is None or phase.t >= state.progress.t
