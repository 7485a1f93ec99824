"""From knowledge to a verdict with one sentence: a ladder of early returns, most severe first.

The rule of promise 6: a process that is gone (pid and start time) is proof. Everything else is a signal of some kind,
and two signals of different kinds are needed, or silence of five times the longest step seen. What one signal alone
gives is "suspect": said once, acted upon never.
"""

from __future__ import annotations

from supervisor.core import machines, stuck
from supervisor.core.deadlines import (
    excuse,
    explain_step_limits,
    is_paused_for_update,
    knows_counters,
    longest_pause,
    standstill_limits,
    start_of_limit,
    startup_budget,
    startup_suspect,
    step_began,
    step_limits,
    unsaid,
    worked_last,
)
from supervisor.core.evolve import replace
from supervisor.core.launcher import why_launcher_stops
from supervisor.core.machines import rest_since
from supervisor.core.pictures import AT_WORK_FACTOR, processes_moved, sees_processes, trainer_rests_since
from supervisor.core.proof import (
    APART_S,
    CULPRIT_S,
    DRAIN_LIMIT_S,
    Verdict,
    ended_by_launcher,
    engine_missing,
    finished_but_alive,
    is_about_to_end,
    is_past_grace,
    is_trainer_through,
    judge_exit,
    process_gone,
    whose_process,
)
from supervisor.core.signals import (
    OddEngine,
    Signal,
    busy_trainer,
    each_odd_engine,
    engine_signals,
    idle_engine,
    is_step_moving,
    late,
    lost_gpu,
    soft_overdue,
    stands_alone,
    standstill,
    still_rollouts,
)
from supervisor.core.state import GpuTrouble, State
from supervisor.core.training_health import REFUSED
from supervisor.core.unsaved import unsaved_sentences
from supervisor.core.watch import Watch
from supervisor.core.words import size, span

GPU_ERRORS = ("gpu-fault", "gpu-missing")  # what the job's own lines say of it
HOPELESS_S, HOPELESS_AT_WORK_S, HOPELESS_TIMES = 300.0, 1800.0, 5  # one incurable error, while rollouts stand still
LOST_PEER = (
    *("connection-error", "connection-refused", "gloo-not-connected", "gloo-timeout"),
    *("nccl-remote", "nccl-timeout", "nccl-watchdog-stuck"),
)
"""What the others log of a machine that is gone, and of much else: beside its silence, a second signal."""
MOVING_FACTOR = 3.0  # a step of which something moves may take so much longer than five times the longest


def judge(state: State, watch: Watch | None = None) -> Verdict:
    """The verdict on a live attempt. ``watch`` learns when it could next be another one."""
    watch = watch or Watch(state.now)
    if state.busy.start is not None:
        # A launch that fails on one machine ends what it began on the others, and says why only then. What a start
        # waits for has a limit of its own.
        return (None if state.busy.waits else _startup_overdue(state, watch)) or _calm(state)
    proof = (
        judge_exit(state, watch)
        or finished_but_alive(state, watch)
        or process_gone(state, watch)
        or engine_missing(state)
        or _from_scratch(state)
    )
    if proof is not None:
        return proof
    judged = state.settings.has_engine and not is_about_to_end(state) and not state.own.asked
    against = engine_signals(state, watch) if judged else []
    elsewhere = [] if is_about_to_end(state) else list(each_odd_engine(state, watch))
    return (
        _gpu_lost(state, watch)
        or _machine_lost(state, against, watch)
        or _engine_dead(state, against, watch)
        or _engine_hung(state, against, watch)
        or _engine_elsewhere(state, elsewhere, watch)
        or _hopeless(state, watch)
        or _judge_standstill(state, watch)
        or _overdue(state, watch)
        or _stuck_start(state, against, watch)
        or _startup_overdue(state, watch)
        or _suspect(state, against, elsewhere, watch)
        or _calm(state)
    )


# ---------------------------------------------------------------- two signals


def _from_scratch(state: State) -> Verdict | None:
    if not state.job.scratch or state.attempt.resume_step is None:
        return None
    step = state.progress.step
    if step is None or step >= state.attempt.resume_step:
        return None
    return Verdict(
        "dead",
        "fresh-start",
        f"The job was told to resume at step {state.attempt.resume_step}, said that it starts from scratch, and is at "
        f"step {step}: stopped before it overwrites checkpoints.",
    )


def _gpu_lost(state: State, watch: Watch) -> Verdict | None:
    """A GPU that needs a reset, and something that shows that the job has lost it."""
    trouble = lost_gpu(state)
    if trouble is None:
        return None
    signal = Signal("gpu", trouble.text)
    overdue = soft_overdue(state, watch)
    error = next(
        (e for e in state.job.errors.values() if e.t >= trouble.t - CULPRIT_S and e.signature in GPU_ERRORS), None
    )
    logged = Signal("log", f"the {error.role} logs: {error.text}") if error else None
    second = overdue or logged or _just_failed(state, trouble)
    if second is None:
        return None
    sentence = f"A GPU is lost: {_both([signal, second])}."
    return Verdict("dead", trouble.cause, sentence, signals=(signal, second), host=trouble.host)


def _machine_lost(state: State, against: list[Signal], watch: Watch) -> Verdict | None:
    """A machine of which nothing is heard, and the word of the engine that gave it; or that the rest waits.

    Silence alone is no verdict: the network between two machines can be away while both work.
    """
    for name in state.machines_used():
        one = state.machines[name]
        if one.silent_since is None or not watch.over(one.silent_since, state.settings.machine_silent):
            continue
        silent = Signal("machine", f"its agent has been silent for {span(state.now - one.silent_since)}")
        overdue, since = soft_overdue(state, watch), one.silent_since
        others = [Signal("log", one.down)] if one.down else []
        others += [Signal("log", f"{heir} has its place now")] if (heir := machines.successor(state, name)) else []
        others += [*([overdue] if overdue is not None else []), *against, *standstill(state, watch)]
        others += [
            Signal("log", f"the {error.role} logs: {error.text}")
            for error in state.job.errors.values()
            if error.signature in LOST_PEER and error.t > max(since, state.progress.t)
        ]
        if others:
            sentence = f"{name} is lost: {_both([silent, others[0]])}."
            return Verdict("dead", "machine-lost", sentence, signals=(silent, others[0]), host=name)
    return None


def _just_failed(state: State, trouble: GpuTrouble) -> Signal | None:
    """The failure that the fault explains, where the driver told of the fault only after it."""
    failed = state.incidents.open
    if failed is None or not 0 <= trouble.t - failed.decided <= APART_S:
        return None
    return Signal("log", f"just before it was told: {failed.sentence}")


def _engine_dead(state: State, signals: list[Signal], watch: Watch) -> Verdict | None:
    if len(signals) < 2:
        return None
    kinds = {s.kind for s in signals}
    stop = why_launcher_stops(state, watch)
    fell = [state.engine.bad_since, *(m.fallen_since for m in state.gpus.by_uuid.values())]
    if stop is not None and stop.part != "inference" and any(t is not None and t > stop.t for t in fell):
        return ended_by_launcher(state, stop, _both(signals), tuple(signals))
    memory = "memory" in kinds
    if memory and kinds & {"http", "slow", "log", "counters", "request", "step"}:
        holds = [m.gpu for m in state.gpus.by_uuid.values() if m.gpu.role == "trainer" and not m.gpu.is_empty]
        trainer = f" while the trainer holds {size(max(g.used_bytes for g in holds))}" if holds else ""
        return Verdict("dead", "engine-memory", f"vLLM is dead{trainer}: {_both(signals)}.", tuple(signals))
    if "http" in kinds and kinds & {"log", "rollouts", "step"} and not memory:
        return Verdict("dead", "engine-unreachable", f"vLLM is dead: {_both(signals)}.", tuple(signals))
    if kinds >= {"slow", "step"} and not excuse(state, watch) and not is_step_moving(state, watch):
        return Verdict("hung", "engine-silent", f"vLLM hangs: {_both(signals)}.", tuple(signals))
    return None


def _engine_elsewhere(state: State, odd: list[OddEngine], watch: Watch) -> Verdict | None:
    """The same for each engine of a run over several machines, by itself."""
    for one in odd:
        found = _engine_dead(one.alone, one.signals, watch)
        if found is None and stands_alone(state, one.alone.engine):
            found = _engine_hung(one.alone, one.signals, watch)
        if found is not None:
            return replace(found, sentence=found.sentence.replace("vLLM", one.name, 1), host=one.host)
    return None


def _engine_hung(state: State, signals: list[Signal], watch: Watch) -> Verdict | None:
    if len(signals) < 2:
        return None
    kinds = {s.kind for s in signals}
    stuck = kinds & {"counters", "request", "rollouts", "step"}
    # Saves and evaluations explain no engine that stands still while work waits; an update, which pauses it, does.
    if len(stuck) < 2 or not kinds & {"counters", "request"}:
        return None
    # Rollouts wait for an evaluation, and a busy server is late to answer: neither proves a standstill.
    if is_paused_for_update(state) or ("counters" not in kinds and excuse(state, watch)):
        return None
    answers = "answers /health but " if state.engine.look and state.engine.look.health == "ok" else ""
    return Verdict(
        "hung", "engine-hang", f"vLLM hangs: it {answers}makes no progress: {_both(signals)}.", tuple(signals)
    )


def _both(signals: list[Signal]) -> str:
    return "; ".join(s.sentence.rstrip(".") for s in signals[:3])


def _may_work_unseen(state: State, watch: Watch) -> bool:
    """Does work wait for an engine that is up, of which no counter can be read, and whose GPUs are not seen to rest?"""
    cold = rest_since(state, "inference")
    return (cold is None or not watch.over(cold, HOPELESS_S)) and any(
        one.ever_ok and one.work_since is not None and not knows_counters(one, watch)
        for one in (state.engine, *state.engines.values())
    )


def _hopeless(state: State, watch: Watch) -> Verdict | None:
    """An error that no restart cures is repeated, no rollout ends, and no step was ever made by this attempt."""
    if state.progress.step is not None or not state.job.errors:
        return None
    look = state.engine.look
    idle = look is not None and look.running is not None and not (look.running or look.waiting)
    # While the engine works, it may be one request's error, or of code that a model wrote, and a rollout is long.
    rests = watch.over(worked_last(state), HOPELESS_S) and not _may_work_unseen(state, watch)
    patience_s = HOPELESS_S if rests else HOPELESS_AT_WORK_S
    for error in state.job.errors.values():
        # Some requests of a healthy run are refused, too: it counts only while the engine is idle.
        incurable = error.deterministic or (error.signature in REFUSED and idle)
        if not incurable or error.count < HOPELESS_TIMES or not watch.over(error.first_t, HOPELESS_S):
            continue
        still = still_rollouts(state, watch)
        stands_s = state.now - state.job.work.moved_t if state.job.work else 0.0
        if still is None or watch.over(error.t, HOPELESS_S) or not watch.over(state.now - stands_s, patience_s):
            continue
        log = Signal("log", f"the {error.role} has logged {error.count} times: {error.text}")
        what = error.sentence or "This error comes again and again, and no restart cures it."
        return Verdict("hung", error.signature, f"{what} {_both([log, still])}.", (log, still), deterministic=True)
    return None


def _judge_standstill(state: State, watch: Watch) -> Verdict | None:
    """No part works: the step is overdue, and rollouts stand still or the engine is idle. Or all stand still."""
    if is_about_to_end(state) or state.mode != "running":
        return None
    overdue = soft_overdue(state, watch)
    signals = [overdue, *_nobody_works(state, watch)] if overdue is not None else []
    if len(signals) < 2:
        signals = standstill(state, watch)
    if len(signals) < 2:
        return None
    found = stuck.find(state)
    joined = "; " if ": " in found.sentence else ": "
    return Verdict("hung", found.cause, f"{found.sentence}{joined}{_both(signals)}.", tuple(signals))


def _nobody_works(state: State, watch: Watch) -> list[Signal]:
    engine, settings = state.engine, state.settings
    # The engine makes tokens for the job, or pauses as it does here: a long step, not a stuck one. Where that is
    # unknown, one that waits for a long rollout looks the same: its lateness and the still counts are one signal.
    pause_s = max(settings.hang, longest_pause(state))
    if settings.has_engine and (not knows_counters(engine, watch) or engine.counted_t - engine.worked_t < pause_s):
        return []
    if busy_trainer(state, watch):
        return []
    limits = standstill_limits(state)
    until = _moved_last(state) + AT_WORK_FACTOR * (limits[0] if limits is not None else settings.step_floor)
    if not watch.over(processes_moved(state, until - pause_s), pause_s):
        return []
    return [one for one in (still_rollouts(state, watch), idle_engine(state, watch)) if one is not None]


def _moved_last(state: State) -> float:
    """When a step, a file, the engine or a rollout last moved."""
    return max(state.progress.t, worked_last(state), *(growth.t for growth in state.job.growth.values()))


def patience_ends(state: State, watch: Watch) -> float | None:
    """When lateness alone can next convict the step, or the start, under way; None: neither is.

    The limit; once that has passed, what it is stretched to, as things look now.
    """
    ends = 0.0
    if state.mode == "running":
        began, limit, more = step_began(state, watch), step_limits(state)[1], True
        if is_trainer_through(state):  # the last save and the way out: a job that hangs there says no more either
            ends = state.settings.checkpoint_save + DRAIN_LIMIT_S
            rests = sees_processes(state) and trainer_rests_since(state) is not None
            if rests and not excuse(state, watch, ("checkpoint",)):  # a save that hangs: no step is waited for
                return max(_moved_last(state), processes_moved(state, began + limit)) + unsaid(state, watch) + ends
    elif state.mode == "starting":
        began, limit, more = start_of_limit(state, watch), startup_budget(state), state.engine.ever_ok
    else:
        return None
    if state.now < began + limit + ends:
        return began + limit + ends
    longer = MOVING_FACTOR * limit if is_step_moving(state, watch) else limit  # rollouts of a step that is a long one
    return began + longer + (unsaid(state, watch) if more else 0.0) + ends


def _has_patience(state: State, watch: Watch) -> bool:
    """Is the step, or the start, under way not overdue yet?"""
    ends = patience_ends(state, watch)
    return ends is None or not watch.over(ends, 0.0)


def _overdue(state: State, watch: Watch) -> Verdict | None:
    if state.mode != "running" or _has_patience(state, watch):
        return None
    since, found = late(state).rstrip(","), stuck.find(state)
    sentence = f"{found.sentence};" if found.sure else "The job hangs:"
    cause = found.cause if found.sure else "step-overdue"
    return Verdict("hung", cause, f"{sentence} no new step for {since}; {explain_step_limits(state)}.")


def _stuck_start(state: State, signals: list[Signal], watch: Watch) -> Verdict | None:
    """A start that takes longer than any before it, in which no part works: deadlocks happen while resuming."""
    if state.mode != "starting" or not state.engine.ever_ok:
        return None
    slow = Signal("step", f"no step for {span(state.now - state.attempt.started)} since the start")
    others = standstill(state, watch)
    late_s = startup_suspect(state) + unsaid(state, watch)
    is_late = watch.over(start_of_limit(state, watch), late_s) and not excuse(state, watch)
    if not others and is_late and not is_step_moving(state, watch):
        others = [s for s in signals if s.kind != "step"] or _nobody_works(state, watch)
    if not others:
        return None
    evidence = [slow, *others]
    found = stuck.find(state)
    named = f" ({found.sentence[0].lower()}{found.sentence[1:]})" if found.sure else ""
    sentence = f"The start is stuck{named}: {_both(evidence)}."
    return Verdict("hung", "start-stuck", sentence, signals=tuple(evidence))


def _startup_overdue(state: State, watch: Watch) -> Verdict | None:
    if state.mode != "starting" or _has_patience(state, watch):
        return None
    since = state.now - state.attempt.started
    last = max(state.job.phases.items(), key=lambda item: item[1].t, default=None)
    doing = f" (last seen: the {last[0]} in {last[1].phase})" if last else ""
    whose = "it" if state.progress.step is None else "its inference server"  # which was restarted alone
    return Verdict(
        "hung",
        "startup-overdue",
        f"The job made no step in {span(since)} since {whose} was started, "
        f"{span(startup_budget(state))} are allowed{doing}.",
    )


# ---------------------------------------------------------------- one signal, or none


def _suspect(state: State, signals: list[Signal], elsewhere: list[OddEngine], watch: Watch) -> Verdict | None:
    if is_about_to_end(state):
        return None
    fresh = [gone for gone in state.job.gone if not is_past_grace(state, gone, watch)]
    if fresh:
        said = f" {stop.sentence}." if (stop := why_launcher_stops(state, watch)) is not None else ""
        return Verdict("suspect", f"{fresh[0].role}-gone", f"{whose_process(fresh[0])} is gone.{said}")
    if state.job.scratch and state.attempt.resume_step is not None:
        return Verdict("suspect", "fresh-start", f"The job says that it starts from scratch: {state.job.scratch}")
    engine = "vLLM"
    if not state.settings.has_engine and (overdue := soft_overdue(state, watch)):
        signals = [overdue]
    suspects = [one for one in elsewhere if one.signals]
    if suspects and not signals:
        engine, signals = suspects[0].name, suspects[0].signals
    if not signals:
        trouble = lost_gpu(state)
        signals = [Signal("gpu", trouble.text)] if trouble else []
    if not signals:
        return None
    subject = {"step": "The job", "rollouts": "The job", "gpu": "A GPU"}.get(signals[0].kind, engine)
    sentence = f"{subject} is under suspicion: {signals[0].sentence.rstrip('.')}; one signal is not enough to act."
    return Verdict("suspect", f"suspect-{signals[0].kind}", sentence, signals=tuple(signals))


def _calm(state: State) -> Verdict:
    if state.mode == "starting":
        phase = max(state.job.phases.values(), key=lambda p: p.t, default=None)
        doing = f" ({phase.phase})" if phase else ""
        resumed = f"step {state.attempt.resume_step}" if state.attempt.resume_step is not None else "the beginning"
        since = span(state.now - state.attempt.started)
        if state.busy.start is not None:
            sentence = f"The start from {resumed} has been under way for {since}; the job is not launched yet."
            return Verdict("starting", "starting", f"{sentence} {state.busy.waits}".rstrip())
        return Verdict("starting", "starting", f"The job has been starting from {resumed} for {since}{doing}.")
    blind = state.gpus.reason and not state.job.processes and (state.engine.look is None or not state.engine.ever_ok)
    if blind and state.progress.step is None:
        return Verdict(
            "unknown", "blind", f"Cannot say: no process, no GPU and no engine was seen ({state.gpus.reason})."
        )
    return Verdict("healthy", "healthy", f"Healthy: {progress_sentence(state)}.")


def progress_sentence(state: State) -> str:
    """Where the run is, for people: "step 80 of 1000, 212 s, reward 0.41"."""
    progress = state.progress
    step = progress.step if progress.step is not None else progress.highest
    if step is None:
        return "no step yet"
    of = f" of {state.settings.max_steps}" if state.settings.max_steps is not None else ""
    words = [f"step {step}{of}"]
    if progress.duration_s is not None:
        words.append(span(progress.duration_s))
    if progress.reward is not None:
        words.append(f"reward {progress.reward:.4g}")
    elif progress.loss is not None:
        words.append(f"loss {progress.loss:.4g}")
    return ", ".join(words)


def finished_sentence(state: State) -> str:
    """The last words of a run: its last step, or the checkpoint that was found to be the last, and what is missing."""
    if state.progress.highest is None and state.last_good is not None:
        told = f"The run is finished: step {state.last_good} is the last one, and it is in the store."
    else:
        told = f"The run is finished: {progress_sentence(state)}."
    return f"{told} {unsaved_sentences(state)}".rstrip()
