"""From knowledge to a verdict with one sentence: a ladder of early returns, most severe first.

The rule of promise 6: a process that is gone (pid and start time) is proof. Everything else is a signal of some kind,
and two signals of different kinds are needed, or silence of five times the longest step seen. What one signal alone
gives is "suspect": said once, acted upon never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.core.deadlines import allowance, excuse, size, span, startup_budget, step_deadline
from supervisor.core.state import Error, Gone, State

Kind = Literal["healthy", "starting", "suspect", "unknown", "exited", "dead", "hung", "finished"]

ENDING_GRACE_S = 120.0  # processes end one by one when training is over
DRAIN_LIMIT_S = 600.0  # a finished job that does not go away (prime-rl issues 2912 and f34efdbf4) is helped out
FRESH_S = 120.0  # how long an error line counts as a present signal
CULPRIT_S = 600.0  # how old an error may be to explain an end: a launcher may take minutes to end its tree
SLOW_S = 120.0  # grace for an engine that accepts connections and answers late (vLLM under load)
BAD_LOOKS = 3  # a server may miss a look or two under load


@dataclass(frozen=True)
class Signal:
    """One piece of evidence. Two of different ``kind`` may convict."""

    kind: Literal["http", "slow", "memory", "counters", "request", "rollouts", "step", "log"]
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """What the core concludes, why, and whether that is enough to act."""

    kind: Kind
    cause: str
    sentence: str
    act: bool = False
    signals: tuple[Signal, ...] = ()
    deterministic: bool = False


def judge(state: State) -> Verdict:
    """The verdict on a live attempt."""
    return (
        _exited(state)
        or _finished_but_alive(state)
        or _process_gone(state)
        or _from_scratch(state)
        or _engine_dead(state)
        or _engine_hung(state)
        or _wedged(state)
        or _overdue(state)
        or _startup_overdue(state)
        or _suspect(state)
        or _calm(state)
    )


# ---------------------------------------------------------------- proof


def _exited(state: State) -> Verdict | None:
    ended = state.ended
    if ended is None:
        return None
    settings, step = state.settings, state.progress.step
    reached = settings.max_steps is not None and step is not None and step >= _last_step(state)
    finish = sorted(state.finishes)
    where = _where(state)
    # Old launchers print their line of success and exit 0 even when trainer and orchestrator both crashed within one
    # poll (prime-rl@be0e3d131): where the last step is known, theirs is not enough.
    # An orchestrator is done before the trainer's last steps, and says nothing about them.
    early = step is not None and settings.max_steps is not None and not reached
    others = ("launcher", "orchestrator") if early else ("launcher",)
    own = [role for role in finish if role not in others or settings.max_steps is None]
    if ended.exit_code == 0 and (own or reached or not settings.has_finish_line):
        return Verdict("finished", "finished", f"The job finished: exit code 0 {where}.", act=True)
    if finish and reached:
        return Verdict(
            "finished",
            "finished",
            f"The job finished: the {finish[0]} said so and the last step is done, though it ended with {_how(state)}.",
            act=True,
        )
    if ended.exit_code == 0 and settings.max_steps is None and step is None and state.resume_step is not None:
        return Verdict(
            "exited",
            "exit-0-no-step",
            f"The job ended with exit code 0 without doing a step after it resumed at step {state.resume_step}; "
            "if the run is complete, say so with max_steps.",
            act=True,
            deterministic=True,
        )
    error = _culprit(state)
    because = f": {error.text.rstrip('. ')}." if error else "."
    return Verdict(
        "exited",
        error.signature if error else f"exit-{ended.exit_code if ended.exit_code is not None else 'signal'}",
        f"The job ended with {_how(state)} {where}{because}",
        act=True,
        deterministic=bool(error and error.deterministic and step is None),
    )


def _how(state: State) -> str:
    ended = state.ended
    if ended is None:
        return "nothing"
    if ended.lost:
        return "an unknown status (its shim is gone, or the pod rebooted)"
    if ended.signal is not None:
        return f"signal {ended.signal}"
    return f"exit code {ended.exit_code}"


def _where(state: State) -> str:
    if state.progress.step is None:
        return "before its first step"
    of = f" of {state.settings.max_steps}" if state.settings.max_steps is not None else ""
    return f"after step {state.progress.step}{of}"


def _last_step(state: State) -> int:
    # With steps counted from 0, prime-rl's last log line is step max_steps - 1 (facts: step base).
    last = state.settings.max_steps or 0
    return last - 1 if state.settings.first_step_at == 0 else last


def _culprit(state: State) -> Error | None:
    """The error line that best explains the end: a deterministic one, else the latest; an old one was survived."""
    ended = state.ended.t if state.ended else state.now
    errors = sorted((e for e in state.errors.values() if ended - e.t < CULPRIT_S), key=lambda e: (e.deterministic, e.t))
    return errors[-1] if errors else None


def ending(state: State) -> bool:
    """Is the job about to end by itself (finish line seen, or the last step done)?"""
    return bool(state.finishes) or _trained(state)


def _finished_but_alive(state: State) -> Verdict | None:
    if not state.finishes or not ending(state):
        return None
    step = state.progress.step
    if state.settings.max_steps is not None and (step is None or step < _last_step(state)):
        return None
    # The orchestrator is done while the trainer still has steps and the last checkpoint before it: not counted.
    done = [t for role, t in state.finishes.items() if role != "orchestrator"]
    if not done:
        return None
    since = state.now - max(done)
    if since < DRAIN_LIMIT_S:
        return None
    return Verdict(
        "finished",
        "finished-not-ended",
        f"Training finished {span(since)} ago and the job is still there: it is stopped, nothing is lost.",
        act=True,
    )


def _process_gone(state: State) -> Verdict | None:
    grace = ENDING_GRACE_S if ending(state) else state.settings.engine_grace_s
    for gone in state.gone:
        since = state.now - gone.t
        if since < grace or _replaced(state, gone) or _ended_itself(state, gone):
            continue
        # A launcher's own end proves nothing (the shim tells it), but that it lives on is what makes the death silent.
        others: list[str] = sorted(
            {p.role for p in state.processes.values() if (p.key or p.role == "launcher") and p.role != gone.role}
        )
        alive = f" while {_list(others)} {'lives' if len(others) == 1 else 'live'} on" if others else ""
        if gone.role == "inference":
            noticed = state.errors.get("component-failed")
            if noticed is not None and noticed.t >= gone.t - 1:
                sentence = f"vLLM died: its process {gone.pid} has been gone for {span(since)}; {noticed.text}."
            else:
                sentence = f"vLLM died silently: its process {gone.pid} has been gone for {span(since)}{alive}."
            return Verdict("dead", "engine-gone", _with_memory(state, sentence), act=True)
        return Verdict(
            "dead",
            f"{gone.role}-gone",
            f"The {gone.role} died: its process {gone.pid} has been gone for {span(since)}{alive}.",
            act=True,
        )
    return None


def _replaced(state: State, gone: Gone) -> bool:
    """A role's process that went while another of the role was started anew by the job itself (an engine restart)."""
    return any(
        p.role == gone.role and p.key and p.pid > gone.pid and state.now - gone.t > state.settings.startup_s
        for p in state.processes.values()
    )


def _ended_itself(state: State, gone: Gone) -> bool:
    """A role that said that it is done, and then went: prime-rl's orchestrator ends up to ``max_async_level`` steps and
    a checkpoint before the trainer, which may take much longer than any grace (rl.py waits for both, be0e3d131 and
    559b44772)."""
    said = state.finishes.get(gone.role)
    return said is not None and 0 <= gone.t - said <= DRAIN_LIMIT_S


def _trained(state: State) -> bool:
    """Is the trainer through, by its own line or the launcher's, or by its last step?"""
    step = state.progress.step
    at_last = state.settings.max_steps is not None and step is not None and step >= _last_step(state)
    return at_last or any(role != "orchestrator" for role in state.finishes)


def _with_memory(state: State, sentence: str) -> str:
    empty = [m.gpu for m in state.gpus.values() if m.gpu.role == "inference" and m.fallen_since is not None]
    if not empty:
        return sentence
    gpus = ", ".join(f"GPU {gpu.index} at {size(gpu.used_bytes)}" for gpu in empty)
    return f"{sentence[:-1]} ({gpus})."


def _list(words: list[str]) -> str:
    named = [f"the {word}" for word in words]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + " and " + named[-1]


# ---------------------------------------------------------------- two signals


def _from_scratch(state: State) -> Verdict | None:
    if not state.scratch or state.resume_step is None:
        return None
    step = state.progress.step
    if step is None or step >= state.resume_step:
        return None
    return Verdict(
        "dead",
        "fresh-start",
        f"The job was told to resume at step {state.resume_step}, said that it starts from scratch, and is at step "
        f"{step}: stopped before it overwrites checkpoints.",
        act=True,
    )


def engine_signals(state: State) -> list[Signal]:
    """What speaks against the engine now, at most one signal a kind."""
    settings, engine, now = state.settings, state.engine, state.now
    signals: list[Signal] = []
    look = engine.look
    fallen = [
        m for m in state.gpus.values() if m.fallen_since is not None and now - m.fallen_since >= settings.memory_fell_s
    ]
    bad_looks = 1 if fallen else BAD_LOOKS
    if engine.ever_ok and look is not None and engine.bad_since is not None and engine.bad_looks >= bad_looks:
        does = "has answered with an error" if look.health == "bad" else "has refused connections"
        signals.append(Signal("http", f"its port {does} for {span(now - engine.bad_since)}"))
    elif (
        engine.ever_ok
        and engine.slow_since is not None
        and now - max(engine.slow_since, engine.moved_t) >= (0 if fallen else SLOW_S)
    ):
        # Time-outs alone are what a saturated engine gives: killing it for that is the classic false restart. But a
        # saturated engine has its memory: where that fell, one look without an answer is the second signal.
        signals.append(Signal("slow", f"its port has accepted and not answered for {span(now - engine.slow_since)}"))
    if fallen:
        memory = fallen[0]
        to = f"{size(memory.gpu.used_bytes)} from {size(memory.plateau_bytes)}"
        signals.append(Signal("memory", f"memory on GPU {memory.gpu.index} fell to {to}"))
    # Counted up to the last reading: an engine whose counters nobody could read did not stand still.
    frozen_s = engine.counted_t - engine.moved_t
    waits_s = engine.counted_t - engine.work_since if engine.work_since is not None else 0.0
    counting = _counting(state)
    still = not counting or frozen_s >= settings.hang_s / 2
    if counting and frozen_s >= settings.hang_s and waits_s >= settings.hang_s:
        signals.append(Signal("counters", f"it made no token for {span(frozen_s)} while work waits"))
    if engine.liveness_misses >= BAD_LOOKS and still:
        signals.append(Signal("request", f"/liveness failed {engine.liveness_misses} times in a row"))
    elif engine.canary_misses >= 1 and still:
        signals.append(Signal("request", "a one-token request was not answered"))
    work = state.work
    if work is not None and work.inflight > 0 and now - work.moved_t >= settings.hang_s and now - work.t < 60:
        signals.append(
            Signal("rollouts", f"{work.inflight} rollouts in flight did not move for {span(now - work.moved_t)}")
        )
    for signature in ("engine-dead", "connection-error"):
        error = state.errors.get(signature)
        if error and now - error.t < FRESH_S and error.t > state.progress.t:
            signals.append(Signal("log", f"the {error.role} logs: {error.text}"))
            break
    late = _soft_overdue(state)
    if late:
        signals.append(late)
    return signals


def _counting(state: State) -> bool:
    """Are the engine's counters known at present?"""
    engine = state.engine
    return engine.count is not None and engine.ever_ok and state.now - engine.counted_t < FRESH_S


def _engine_dead(state: State) -> Verdict | None:
    if not state.settings.has_engine or ending(state):
        return None
    signals = engine_signals(state)
    kinds = {s.kind for s in signals}
    memory = "memory" in kinds
    if memory and kinds & {"http", "slow", "log", "counters", "request", "step"}:
        holds = [m.gpu for m in state.gpus.values() if m.gpu.role == "trainer" and m.gpu.used_bytes > 1 << 30]
        trainer = f" while the trainer holds {size(max(g.used_bytes for g in holds))}" if holds else ""
        return Verdict("dead", "engine-memory", f"vLLM is dead{trainer}: {_both(signals)}.", True, tuple(signals))
    if "http" in kinds and kinds & {"log", "rollouts", "step"} and not memory:
        return Verdict("dead", "engine-unreachable", f"vLLM is dead: {_both(signals)}.", True, tuple(signals))
    if kinds >= {"slow", "step"} and not excuse(state):
        return Verdict("hung", "engine-silent", f"vLLM hangs: {_both(signals)}.", True, tuple(signals))
    return None


def _engine_hung(state: State) -> Verdict | None:
    if not state.settings.has_engine or ending(state):
        return None
    signals = engine_signals(state)
    kinds = {s.kind for s in signals}
    stuck = kinds & {"counters", "request", "rollouts", "step"}
    if len(stuck) < 2 or not kinds & {"counters", "request"} or excuse(state):
        return None
    answers = "answers /health but " if state.engine.look and state.engine.look.health == "ok" else ""
    return Verdict(
        "hung",
        "engine-hang",
        f"vLLM hangs: it {answers}makes no progress: {_both(signals)}.",
        True,
        tuple(signals),
    )


def _both(signals: list[Signal]) -> str:
    return "; ".join(s.sentence.rstrip(".") for s in signals[:3])


def _soft_overdue(state: State) -> Signal | None:
    if state.mode != "running" or excuse(state):
        return None
    deadline = step_deadline(state.progress, state.settings)
    since = state.now - state.progress.t
    if since < deadline.soft_s:
        return None
    return Signal("step", f"no new step for {span(since)} ({deadline.sentence})")


def _wedged(state: State) -> Verdict | None:
    """The engine is fine and idle, rollouts do not move, and the step is overdue: the orchestrator is stuck."""
    late = _soft_overdue(state)
    if late is None or ending(state):
        return None
    settings, now, engine = state.settings, state.now, state.engine
    idle_s = engine.counted_t - engine.moved_t
    if _counting(state) and idle_s < settings.hang_s:
        return None  # the engine makes tokens for somebody: a long step, not a stuck one
    signals = [late]
    work = state.work
    if work is not None and now - work.moved_t >= settings.hang_s:
        signals.append(Signal("rollouts", f"the rollout counters stand still for {span(now - work.moved_t)}"))
    if _counting(state) and engine.work_since is None:
        signals.append(Signal("counters", f"the engine is well and nobody asked it anything for {span(idle_s)}"))
    if len(signals) < 2:
        return None
    return Verdict("hung", "orchestrator-wedged", f"The orchestrator is stuck: {_both(signals)}.", True, tuple(signals))


def _overdue(state: State) -> Verdict | None:
    if state.mode != "running":
        return None
    deadline = step_deadline(state.progress, state.settings)
    since = state.now - state.progress.t
    # After the last step come the last save and the way out; a job that hangs there says no more than one that trains.
    ends = state.settings.writing_s + DRAIN_LIMIT_S if _trained(state) else 0.0
    if since < deadline.hard_s + allowance(state) + ends:
        return None
    return Verdict(
        "hung", "step-overdue", f"The job hangs: no new step for {span(since)}; {deadline.sentence}.", act=True
    )


def _startup_overdue(state: State) -> Verdict | None:
    if state.mode != "starting":
        return None
    budget = startup_budget(state)
    since = state.now - state.started
    if since < budget:
        return None
    last = max(state.phases.items(), key=lambda item: item[1].t, default=None)
    doing = f" (last seen: the {last[0]} in {last[1].phase})" if last else ""
    return Verdict(
        "hung",
        "startup-overdue",
        f"The job made no step in {span(since)} since it was started, {span(budget)} are allowed{doing}.",
        act=True,
    )


# ---------------------------------------------------------------- one signal, or none


def _suspect(state: State) -> Verdict | None:
    if ending(state):
        return None
    fresh = [g for g in state.gone if state.now - g.t < state.settings.engine_grace_s]
    if fresh:
        whose = "vLLM" if fresh[0].role == "inference" else f"The {fresh[0].role}"
        return Verdict("suspect", f"{fresh[0].role}-gone", f"{whose}'s process {fresh[0].pid} is gone.")
    if state.scratch and state.resume_step is not None:
        return Verdict("suspect", "fresh-start", f"The job says that it starts from scratch: {state.scratch}")
    signals = engine_signals(state) if state.settings.has_engine else [s for s in [_soft_overdue(state)] if s]
    if not signals:
        return None
    subject = "The job" if signals[0].kind in ("step", "rollouts") else "vLLM"
    sentence = f"{subject} is under suspicion: {signals[0].sentence.rstrip('.')}; one signal is not enough to act."
    return Verdict("suspect", f"suspect-{signals[0].kind}", sentence, signals=tuple(signals))


def _calm(state: State) -> Verdict:
    if state.mode == "starting":
        phase = max(state.phases.values(), key=lambda p: p.t, default=None)
        doing = f" ({phase.phase})" if phase else ""
        resumed = f"step {state.resume_step}" if state.resume_step is not None else "the start"
        since = span(state.now - state.started)
        return Verdict("starting", "starting", f"The job has been starting from {resumed} for {since}{doing}.")
    blind = state.gpu_reason and not state.processes and (state.engine.look is None or not state.engine.ever_ok)
    if blind and state.progress.step is None:
        return Verdict(
            "unknown", "blind", f"Cannot say: no process, no GPU and no engine was seen ({state.gpu_reason})."
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
    """The last sentence of a run: its last step, or the checkpoint that was found to be the last."""
    if state.progress.highest is None and state.last_good is not None:
        return f"The run is finished: step {state.last_good} is the last one, and it is in the store."
    return f"The run is finished: {progress_sentence(state)}."
