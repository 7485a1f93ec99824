"""The present belief in pieces, for people: what was seen, how old it is, against what it is measured, and what then.

``forecast`` says what would change the verdict. It does not repeat the rules in other words: it asks the core itself
what it would conclude if all stayed as it is now.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from supervisor.base.records import dataclass
from supervisor.core import facts as f
from supervisor.core.deadlines import (
    FRESH_S,
    excuse,
    excuse_limit,
    start_of_limit,
    startup_budget,
    step_began,
    step_limits,
)
from supervisor.core.evolve import replace
from supervisor.core.launcher import who
from supervisor.core.moves import note_failure
from supervisor.core.observe import observe
from supervisor.core.observe_job import NEAR_ZERO, SHARED_DROP
from supervisor.core.proof import Verdict, grace
from supervisor.core.signals import BAD_CANARIES, BAD_LOOKS, SLOW_S, each_odd_engine
from supervisor.core.state import Gone, GpuMemory, State
from supervisor.core.table import row_for
from supervisor.core.verdicts import judge, progress_sentence
from supervisor.core.watch import NEVER, Watch
from supervisor.core.words import size, span

STEPS_AHEAD = 40  # moments that are tried: each limit that passes may bring a verdict or none
A_SIGNAL = "would be a signal"
PRESENT_ERRORS = ("engine-dead", "connection-error")  # signatures that speak against the engine


@dataclass(frozen=True)
class Piece:
    """One piece of evidence. Ages and limits in seconds; ``would``: what happens once the limit has passed."""

    name: str
    sentence: str
    age_s: float | None = None
    deadline_s: float | None = None
    left_s: float | None = None
    would: str = ""


def evidence(state: State) -> list[dict[str, Any]]:
    """Every piece, ready for JSON."""
    pieces = [
        *_processes_belief(state),
        *_gpus_belief(state),
        *_engine_belief(state),
        *_rollouts_belief(state),
        *_words_belief(state),
        *_step_belief(state),
    ]
    return [asdict(_round_times(piece)) for piece in pieces]


def forecast(state: State) -> list[dict[str, Any]]:
    """What would be concluded, and in how many seconds, if nothing moved from now on; up to the first that acts."""
    if not state.live or (known := judge(state)).act:
        return []
    found: list[dict[str, Any]] = []
    ahead = 0.0
    for _ in range(STEPS_AHEAD):
        then = _state_later(state, ahead)
        watch = Watch(then.now)
        judge(then, watch)
        # Counters are measured from reading to reading, which no watch sees: their pieces say how much is left.
        left = [piece.left_s for piece in (*_engine_belief(then), *_rollouts_belief(then)) if piece.left_s is not None]
        nearest = min([watch.next - then.now, *(s for s in left if s > 0)])
        if nearest == NEVER:
            break
        ahead += nearest + 0.001
        verdict = judge(_state_later(state, ahead))
        if (verdict.kind, verdict.cause, verdict.act) == (known.kind, known.cause, known.act):
            continue
        known = verdict
        if verdict.act or verdict.kind == "suspect":
            told = {"in_s": round(ahead, 1), "act": verdict.act, "cause": verdict.cause, "sentence": verdict.sentence}
            found.append(told)
        if verdict.act:
            break
    return found


def would_do(state: State, verdict: Verdict) -> str:
    """What acting upon ``verdict`` means now: ``the job would be stopped and started again at step 40``."""
    if verdict.kind == "finished":
        return "the run would be brought to its end: the last step published, the job stopped if it is still there"
    do = row_for(note_failure(state, verdict.cause), verdict).do
    step = f"step {state.last_good}" if state.last_good is not None else "the start"
    return {
        "give-up": "the run would be given up, with everything kept, for a person to look at",
        "unfit": "this pod would be given up for another one",
        "wait-for-room": "the job would be stopped until there is room on the disk",
        "wait": f"the job would be stopped, and started again at {step} once the network is back",
        "step-back": "the job would be stopped and started again one good step further back",
        "engine-alone": "the inference server would be restarted, and the job left as it is",
        "job-alone": f"the job would be started again at {step} beside the inference server, which stays",
    }.get(do, f"the job would be stopped and started again at {step}")


def _state_later(state: State, seconds: float) -> State:
    """The state after ``seconds``, in which each sensor has looked again and has seen what was seen last."""
    t, wall = state.now + seconds, state.wall + seconds
    seen: list[f.Fact] = [f.Tick()]
    if state.engine.look is not None:
        seen += [state.engine.look] * BAD_LOOKS
    if state.job.work is not None:
        seen.append(f.WorkSeen(state.job.work.inflight, state.job.work.done))
    for fact in seen:
        state = observe(state, f.Observation(t, wall, fact))
    return state


# ---------------------------------------------------------------- the pieces


def _processes_belief(state: State) -> list[Piece]:
    found = []
    for p in sorted(state.job.processes.values(), key=lambda p: (p.role, p.pid)):
        if p.key:
            limit = grace(state, Gone(p.role, p.pid, state.now))
            would = f"its end, seen for {span(limit)}, is proof"
            found.append(Piece(f"process {p.role}", f"pid {p.pid} is alive: {p.title}", would=would))
    for gone in state.job.gone:
        since, limit = state.now - gone.t, grace(state, gone)
        text = "proof: acted upon when nothing else explains it"
        found.append(Piece(f"process {gone.role}", f"pid {gone.pid} is gone", since, limit, limit - since, text))
    return found


def _gpus_belief(state: State) -> list[Piece]:
    found = [Piece("GPUs", f"unknown: {state.gpus.reason}", would="unknown is no signal")] if state.gpus.reason else []
    limit = state.settings.memory_fell
    for memory in sorted(state.gpus.by_uuid.values(), key=lambda m: (m.gpu.host, m.gpu.index)):
        gpu, name = memory.gpu, memory.gpu.name
        if gpu.host and memory.fallen_since is None:
            continue  # of hundreds, those that speak against the engine
        text = f"{gpu.role}, {size(gpu.used_bytes)} used, plateau {size(memory.plateau_bytes)}"
        if memory.fallen_since is not None:
            since = state.now - memory.fallen_since
            found.append(Piece(name, text, since, limit, limit - since, f"so little for so long {A_SIGNAL}"))
        else:
            watched = _limit_if_watched(memory, limit)
            found.append(Piece(name, text, deadline_s=watched, would=_if_it_fell(memory, limit)))
    return found


def _limit_if_watched(memory: GpuMemory, limit_s: float) -> float | None:
    return limit_s if memory.gpu.role in ("inference", "shared") and memory.plateau_bytes else None


def _if_it_fell(memory: GpuMemory, limit_s: float) -> str:
    if _limit_if_watched(memory, limit_s) is None:
        return ""
    least = memory.plateau_bytes * (SHARED_DROP if memory.gpu.role == "shared" else NEAR_ZERO)
    return f"less than {size(least)} for {span(limit_s)} {A_SIGNAL}"


def _engine_belief(state: State) -> list[Piece]:
    """Of the engine, or of each on another machine with which something is wrong."""
    odd = [one.alone for one in each_odd_engine(state, Watch(state.now)) if one.signals]
    return [piece for one in (state, *odd) if one.live for piece in _one_engine_belief(one)]


def _one_engine_belief(state: State) -> list[Piece]:
    engine, now = state.engine, state.now
    look = engine.look
    if look is None:
        return []
    name = who("inference", look.host, look.index) if look.host else "engine"
    running = "unknown" if look.running is None else f"{look.running:.0f}"
    text = f"/health {look.health}, /liveness {look.liveness}, requests running: {running}"
    found = []
    if not engine.ever_ok:
        found.append(Piece(name, text, now - engine.look_t, would="it was never up here: no answer is no signal"))
    elif engine.slow_since is not None:
        since = now - max(engine.slow_since, engine.moved_t)
        would = f"{span(SLOW_S)} without an answer or a token {A_SIGNAL}"
        found.append(Piece(name, text, now - engine.look_t, SLOW_S, SLOW_S - since, would))
    elif engine.bad_since is not None:
        missing = max(0, BAD_LOOKS - engine.bad_looks)
        would = f"{missing} more such answers in a row {A_SIGNAL}" if missing else "this is a signal"
        found.append(Piece(name, text, now - engine.look_t, would=would))
    else:
        would = f"{BAD_LOOKS} refused or failed answers in a row {A_SIGNAL}"
        found.append(Piece(name, text, now - engine.look_t, would=would))
    found.append(_counters_belief(state))
    for what, misses, least, text in (
        ("liveness", engine.liveness_misses, BAD_LOOKS, "/liveness failed"),
        ("canary", engine.canary_misses, BAD_CANARIES, "a one-token request was not answered,"),
    ):
        if misses:
            would = f"at {least}, with counters that stand still, it {A_SIGNAL}"
            if misses >= least:
                would = "with counters that stand still, this is a signal"
            found.append(Piece(f"{name} {what}", f"{text} {times(misses)} in a row", would=would))
    return found


def _counters_belief(state: State) -> Piece:
    engine, hang_s = state.engine, state.settings.hang
    if engine.count is None or engine.look is None:
        return Piece("engine counters", "unknown", would="unknown is no signal")
    what = "iterations" if engine.look.iterations is not None else "tokens made"
    text, age = f"{engine.count:.0f} {what}", state.now - engine.moved_t
    unread_s = state.now - engine.counted_t
    if unread_s >= FRESH_S or (
        unread_s > 0 and engine.look.iterations is None and engine.look.generation_tokens is None
    ):
        return Piece("engine counters", f"{text}, not readable for {span(unread_s)}", age, would="unknown is no signal")
    rule = f"{span(hang_s)} without a token while work waits {A_SIGNAL}"
    if engine.work_since is None:
        return Piece("engine counters", text, age, hang_s, None, f"{rule}; no work waits now")
    if engine.look.liveness == "ok" and engine.canary_misses < BAD_CANARIES:
        return Piece("engine counters", text, age, hang_s, None, f"{rule}; not while /liveness is answered, as now")
    still = min(engine.counted_t - engine.moved_t, engine.counted_t - engine.work_since)
    return Piece("engine counters", text, age, hang_s, hang_s - still, rule)


def _rollouts_belief(state: State) -> list[Piece]:
    work, hang_s = state.job.work, state.settings.hang
    if work is None:
        return []
    since = state.now - work.moved_t
    text = f"{work.inflight} in flight" + (f", {work.done} done" if work.done is not None else "")
    would = f"{span(hang_s)} without a change while some are in flight {A_SIGNAL}"
    return [Piece("rollouts", text, since, hang_s, hang_s - since if work.inflight else None, would)]


def _words_belief(state: State) -> list[Piece]:
    """What the job itself said: phases, and error lines."""
    found = []
    for role, phase in state.job.phases.items():
        since = state.now - phase.t
        limit = excuse_limit(state, role, phase.phase)
        text = f"{phase.phase} {phase.text}".strip()
        if limit > 0 and state.live:
            would = "then it excuses silence no longer" if since < limit else "it excuses silence no longer"
            found.append(Piece(f"phase {role}", text, since, limit, limit - since, would))
        else:
            found.append(Piece(f"phase {role}", text, since))
    for error in state.job.errors.values():
        since = state.now - error.t
        text = f"{times(error.count)}, last: {error.text}"
        if error.deterministic:
            found.append(Piece(f"error {error.signature}", text, since, would="no restart cures this"))
        elif error.signature in PRESENT_ERRORS:
            would = "until then it is a signal, unless a step is done" if since < FRESH_S else "too old to be a signal"
            found.append(Piece(f"error {error.signature}", text, since, FRESH_S, FRESH_S - since, would))
        else:
            found.append(Piece(f"error {error.signature}", text, since, would="it explains an end, and is no signal"))
    return found


def _step_belief(state: State) -> list[Piece]:
    since = state.now - state.progress.t
    if state.mode == "starting":
        begun = state.now - state.attempt.started
        budget = startup_budget(state) + start_of_limit(state) - state.attempt.started  # known reasons stretch it
        would = f"{span(budget)} without one alone would be acted upon"
        return [Piece("start", "no new step yet", begun, budget, budget - begun, would)]
    if state.mode != "running":
        return []
    limits, explained = step_limits(state), step_began(state) - state.progress.t
    soft, hard = limits.soft_s + explained, limits.hard_s + explained
    if since < soft < hard:
        would = f"{span(soft)} without a new step {A_SIGNAL}; {span(hard)} alone would be acted upon"
        return [Piece("step", progress_sentence(state), since, soft, soft - since, would)]
    why = excuse(state)
    would = f"overdue, and excused: {why}; " if why and since >= soft else ""
    would += f"{span(hard)} without a new step alone would be acted upon"
    return [Piece("step", progress_sentence(state), since, hard, hard - since, would)]


def times(count: int) -> str:
    """``once``, ``3 times``."""
    return "once" if count == 1 else f"{count} times"


def _round_times(piece: Piece) -> Piece:
    def short(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds, 1)

    return replace(piece, age_s=short(piece.age_s), deadline_s=short(piece.deadline_s), left_s=short(piece.left_s))
