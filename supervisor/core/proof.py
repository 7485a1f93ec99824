"""What needs no second signal: the job has ended, has finished, or a process of it is gone while it should run."""

from __future__ import annotations

from typing import Literal

from supervisor.base.records import dataclass
from supervisor.core.deadlines import worked_last
from supervisor.core.launcher import ENDS_WITHIN_S, FAILED, Stop, who, why_launcher_stops
from supervisor.core.machines import find_oom
from supervisor.core.signals import Signal, lost_gpu
from supervisor.core.state import Ended, Error, Gone, State
from supervisor.core.watch import Watch
from supervisor.core.words import size, span

Kind = Literal["healthy", "starting", "suspect", "unknown", "exited", "dead", "hung", "finished"]

APART_S = 3.0
"""What several sensors see of one moment is told up to so far apart, in any order: logs, processes and GPUs are looked
at each second, and a look on a busy machine takes its time."""
ENDING_GRACE_S = 120.0  # processes end one by one when training is over
DRAIN_LIMIT_S = 600.0  # a finished job that does not go away (prime-rl issues 2912 and f34efdbf4) is helped out
CULPRIT_S = ENDS_WITHIN_S  # how old an error may be to explain an end: a launcher may take minutes to end its tree
TOLD_WITHIN_S = 60.0  # from what a part says of its end to the launcher's line about it
KILLS = (1, 2, 9, 15)  # SIGHUP, SIGINT, SIGKILL, SIGTERM
CRASHES = (4, 6, 7, 8, 11)  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV
OOM_S = 60.0  # how far apart the kernel's counter and the end may be seen


@dataclass(frozen=True)
class Verdict:
    """What the core concludes, and why."""

    kind: Kind
    cause: str
    sentence: str
    signals: tuple[Signal, ...] = ()
    deterministic: bool = False
    host: str = ""  # the machine that is to blame, where the run has several

    @property
    def act(self) -> bool:
        """Is that enough to act?"""
        return self.kind in ("exited", "dead", "hung", "finished")


def judge_exit(state: State, watch: Watch) -> Verdict | None:
    ended = state.job.ended
    if ended is None:
        return None
    settings, step = state.settings, state.progress.step
    reached = _is_last_step_done(state)
    finish = sorted(state.job.finishes)
    how, where = _how(ended), _where(state)
    # Old launchers print their line of success and exit 0 even when trainer and orchestrator both crashed within one
    # poll (prime-rl@be0e3d131): where the last step is known, theirs is not enough.
    # An orchestrator is done before the trainer's last steps, and says nothing about them.
    early = step is not None and settings.max_steps is not None and not reached
    others = ("launcher", "orchestrator") if early else ("launcher",)
    own = [role for role in finish if role not in others or settings.max_steps is None]
    # A pipe hides the exit code of what fails in it: where steps are known to be left, exit code 0 is not enough. But
    # twice without a new checkpoint is a job that stops early, or says less than it does.
    resumed = settings.max_steps is not None and state.attempt.resume_step is not None
    left = early or (resumed and step is None and state.progress.highest is not None)
    left = left and all(one.signature != "exit-0" for one in state.recovery.failures)
    if ended.exit_code == 0 and (own or reached or not (settings.has_finish_line or left)):
        return Verdict("finished", "finished", f"The job finished: exit code 0 {where}.")
    if finish and reached:
        return Verdict(
            "finished",
            "finished",
            f"The job finished: the {finish[0]} said so and the last step is done, though it ended with {how}.",
        )
    if (ended.exit_code == 0 or finish or reached) and not watch.over(ended.t, APART_S):
        # A line of success, the last step and the exit are in different files, and one may be read after the other.
        sentence = f"The job ended with {how} {where}; its last lines are read before it is judged."
        return Verdict("unknown", "ended", sentence)
    if ended.exit_code == 0 and settings.max_steps is None and step is None and state.attempt.resume_step is not None:
        return Verdict(
            "exited",
            "exit-0-no-step",
            f"The job ended with exit code 0 without doing a step after it resumed at step "
            f"{state.attempt.resume_step}; if the run is complete, say so with max_steps.",
            deterministic=True,
        )
    deeper = _deeper(state, ended.t)
    if deeper is not None:
        return Verdict("exited", deeper[0], f"The job ended with {how} {where}: {deeper[1]}.")
    error, stop = _culprit(state), why_launcher_stops(state)
    if stop is not None and not stop.failed and (error is None or error.t > stop.t):
        sentence = f"The job ended with {how} {where}. {stop.sentence}."
        return Verdict("exited", stop.cause, sentence)
    because = f": {error.text.rstrip('. ')}." if error else "."
    told = f" {error.sentence}" if error and error.sentence else ""
    return Verdict(
        "exited",
        error.signature if error else f"exit-{ended.exit_code if ended.exit_code is not None else 'signal'}",
        f"The job ended with {how} {where}{because}{told}",
        deterministic=bool(error and error.deterministic and step is None and not killed_from_outside(ended)),
    )


def _deeper(state: State, t: float, host: str = "") -> tuple[str, str] | None:
    """What the machine itself says of an end at ``t``, on ``host``: it explains more than any line of the job."""
    trouble = lost_gpu(state)
    if trouble is not None:
        return trouble.cause, trouble.text.rstrip(".")
    place = find_oom(state, t, OOM_S, host)
    if place is not None:
        return "host-oom", f"the kernel ended a process because {place or 'the host'}'s memory was full"
    return None


def killed_from_outside(ended: Ended) -> bool:
    """Was it killed, or did no one see how it ended? Then no line of its own has to be why.

    A shell, and ``uv run``, hand a signal on as 128 and its number. A crash in native code is the job's own end.
    """
    if ended.exit_code is not None:
        return ended.exit_code in tuple(128 + number for number in KILLS)
    return ended.signal not in CRASHES


def _how(ended: Ended) -> str:
    if ended.lost:
        return "an unknown status (its shim is gone, the pod rebooted, or a person started it)"
    if ended.signal is not None:
        return f"signal {ended.signal}"
    return f"exit code {ended.exit_code}"


def _where(state: State) -> str:
    if state.progress.step is None:
        return "before its first step"
    of = f" of {state.settings.max_steps}" if state.settings.max_steps is not None else ""
    return f"after step {state.progress.step}{of}"


def _is_last_step_done(state: State) -> bool:
    last, step = state.settings.max_steps, state.progress.step
    # With steps counted from 0, prime-rl's last log line is step max_steps - 1 (facts: step base).
    return last is not None and step is not None and step >= (last - 1 if state.settings.first_step_at == 0 else last)


def _culprit(state: State) -> Error | None:
    """The error line that best explains the end: a deterministic one, else the latest; an old one was survived.

    What came after the launcher said that it ends the job is what the others cry while they are ended. Its own line
    says no more than which part ended, and may be read before or after what that part says.
    """
    ended, stop = state.job.ended.t if state.job.ended else state.now, why_launcher_stops(state)
    errors = [e for e in state.job.errors.values() if ended - e.t < CULPRIT_S]
    if stop is not None:
        errors = [e for e in errors if e.first_t <= stop.t + APART_S or e.signature == FAILED]

    def worth(error: Error) -> tuple[bool, int, float]:
        rank = 1
        if stop is not None and error.signature != FAILED:
            if error.role != stop.part:
                rank = 0 if error.first_t > stop.t else 1
            elif abs(error.t - stop.t) <= TOLD_WITHIN_S:
                rank = 2
        return error.deterministic, rank, error.t

    return max(errors, key=worth, default=None)


def is_about_to_end(state: State) -> bool:
    """Is the job about to end by itself (finish line seen, or the last step done)?"""
    return bool(state.job.finishes) or is_trainer_through(state)


def finished_but_alive(state: State, watch: Watch) -> Verdict | None:
    if state.settings.max_steps is not None and not _is_last_step_done(state):
        return None
    # The orchestrator is done while the trainer still has steps and the last checkpoint before it: not counted.
    done = [t for role, t in state.job.finishes.items() if role != "orchestrator"]
    if not done:
        return None
    # Evaluations that began before the last step are completed: that is no drain that hangs.
    if not watch.over(max(*done, worked_last(state)), DRAIN_LIMIT_S):
        return None
    since = span(state.now - max(done))
    sentence = f"Training finished {since} ago and the job is still there: it is stopped, nothing is lost."
    return Verdict("finished", "finished-not-ended", sentence)


def grace(state: State, gone: Gone) -> float:
    """For how many seconds a process may be gone before that is a death.

    An engine that is gone while the others work has died. Any other part, and an engine that goes last, may have ended
    because it was done, and the line that says so may be read after its end is seen.
    """
    if is_about_to_end(state):
        # A launcher that is done ends its parts one by one, and each may take a minute.
        return DRAIN_LIMIT_S if "launcher" in state.job.finishes else ENDING_GRACE_S
    settings = state.settings
    others = any(p.key and p.role not in ("launcher", "inference", "env") for p in state.job.processes.values())
    return settings.engine_grace if gone.role == "inference" and others else max(settings.engine_grace, APART_S)


def is_past_grace(state: State, gone: Gone, watch: Watch) -> bool:
    """Counted from the answer of a launch on: what else tells of an end is read only then."""
    return watch.over(max(gone.t, state.attempt.started), grace(state, gone))


def process_gone(state: State, watch: Watch) -> Verdict | None:
    if not state.job.gone:
        return None
    for gone in state.job.gone:
        if gone.role == "inference" and state.own.asked:
            continue  # we are stopping it, or starting another
        if _ended_itself(state, gone) or not is_past_grace(state, gone, watch) or _was_replaced(state, gone, watch):
            continue
        stop = why_launcher_stops(state, watch)
        if stop is not None and gone.t > stop.t and gone.role != stop.part:
            return ended_by_launcher(state, stop, f"{whose_process(gone)} has been gone for {span(state.now - gone.t)}")
        said = f"; the launcher says: {stop.text}" if stop is not None else ""
        # A launcher's own end proves nothing (the shim tells it), but that it lives on is what makes the death silent.
        main = [p.role for p in state.job.processes.values() if p.key or p.role == "launcher"]
        others: list[str] = sorted({role for role in main if role not in (gone.role, "env")})
        alive = f" while {_list(others)} {'lives' if len(others) == 1 else 'live'} on" if others else ""
        subject = who(gone.role, gone.host, gone.index)
        lasts = span(state.now - gone.t)
        seen = f"{gone.how} {lasts} ago" if gone.how else f"its process {gone.pid} has been gone for {lasts}"
        deeper = _deeper(state, gone.t, gone.host)
        if deeper is not None:
            sentence = f"{subject} died: {seen}; {deeper[1]}."
            return Verdict("dead", deeper[0], sentence, host=gone.host)
        if stop is not None and gone.role == stop.part:
            alive, said = "", f"; {stop.text}"
        if gone.role == "inference":
            silently = "" if stop is not None and stop.part == "inference" else " silently"
            sentence = f"{subject} died{silently}: {seen}{alive}{said}."
            return Verdict("dead", "engine-gone", _with_memory(state, sentence), host=gone.host)
        sentence = f"{subject} died: {seen}{alive}{said}."
        return Verdict("dead", f"{gone.role}-gone", sentence, host=gone.host)
    return None


def ended_by_launcher(state: State, stop: Stop, seen: str, signals: tuple[Signal, ...] = ()) -> Verdict:
    """The launcher ends the job, and ``seen`` shows that it does: its own line says why."""
    deeper = _deeper(state, stop.t)
    why = f"; {deeper[1]}" if deeper is not None else ""
    cause = deeper[0] if deeper is not None else stop.cause
    sees = f". The launcher ends the rest: {seen}" if stop.part is not None else f"; {seen}"
    return Verdict("dead", cause, f"{stop.sentence}{why}{sees}.", signals)


def whose_process(gone: Gone) -> str:
    """A process that is gone, as the subject of a sentence."""
    return f"{who(gone.role, gone.host, gone.index)}'s process {gone.pid or ''}".rstrip()


def engine_missing(state: State) -> Verdict | None:
    """A job of which the other half was never launched: it could not be, or the daemon that was to do it has ended."""
    own = state.own
    if state.settings.inference != "own-role" or not own.wanted or own.alive or own.asked or is_about_to_end(state):
        return None
    if any(gone.role == "inference" for gone in state.job.gone):
        return None  # its end was seen, and is judged with its grace
    return Verdict("dead", "engine-gone", "The job lives and its inference server was never launched.")


def _was_replaced(state: State, gone: Gone, watch: Watch) -> bool:
    """A role's process that went while another of the role was started anew by the job itself (an engine restart)."""
    return any(
        p.role == gone.role and p.key and p.pid > gone.pid and watch.over(gone.t, state.settings.startup)
        for p in state.job.processes.values()
    )


def _ended_itself(state: State, gone: Gone) -> bool:
    """A role that said that it is done, and went: prime-rl's orchestrator ends up to ``max_async_level`` steps and a
    checkpoint before the trainer, which may take much longer than any grace (rl.py waits for both, be0e3d131 and
    559b44772). Its line may be read after its end was seen, never written after it."""
    said = state.job.finishes.get(gone.role)
    return said is not None and gone.t - said <= DRAIN_LIMIT_S


def is_trainer_through(state: State) -> bool:
    """Is the trainer through, by its own line or the launcher's, or by its last step?"""
    return _is_last_step_done(state) or any(role != "orchestrator" for role in state.job.finishes)


def _with_memory(state: State, sentence: str) -> str:
    empty = [m.gpu for m in state.gpus.by_uuid.values() if m.gpu.role == "inference" and m.fallen_since is not None]
    if not empty:
        return sentence
    gpus = ", ".join(f"{gpu.name} at {size(gpu.used_bytes)}" for gpu in empty)
    return f"{sentence[:-1]} ({gpus})."


def _list(words: list[str]) -> str:
    named = ["vLLM" if word == "inference" else f"the {word}" for word in words]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + " and " + named[-1]
