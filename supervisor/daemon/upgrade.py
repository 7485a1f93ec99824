"""Another program in the daemon's place: the one that is installed now is tried first, then this process becomes it.

The process id stays, and so do the job, its shim and their clocks: to them an upgrade is a daemon that blinked. What is
asked is first tried by a child, which loads the run file, opens the job and reads a copy of the journal. Only if it
comes to the same run as we do, and at a moment when nothing is launched or stopped, the loop ends as for an exit, the
journal is closed, and ``execve`` puts the new program here. It takes the job over as any next daemon does.

Why not simply end, and let systemd or the nanny start the next daemon? Both wait before they do (10 s and 5 s). In that
time `systemctl stop` would end nothing but the wait and leave the job alive, a preemption would be missed, a daemon
without either (`run` by hand, `attach`) would never come back, and `onstart` would run its ``[setup]`` again. The exec
itself, with what it hands over, is about 100 lines of this file; the trial is the rest, and would stay.

The two programs may be of different versions, so what passes between them is small and stays as it is: the command
``rl-supervisor upgrade-check RUN.toml FOLDER run|onstart``, the ``answer.json`` that it leaves in FOLDER, and the
variables ``RL_SUPERVISOR_UPGRADED_FROM`` and ``RL_SUPERVISOR_ORDERS``: what people asked for in the last moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, NoReturn

from supervisor import __version__
from supervisor.base.errors import SupervisorError, TryAgainError
from supervisor.base.own_child import OwnChild
from supervisor.base.records import dataclass
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core import leaving
from supervisor.core.codec import decode, encode
from supervisor.core.evolve import replace
from supervisor.core.state import ENDED, State
from supervisor.daemon.inbox import Loop
from supervisor.effects.run_context import RunContext
from supervisor.jobs.base import Job
from supervisor.journal.journal import Journal

VARIABLE = "RL_SUPERVISOR_UPGRADED_FROM"
ORDERS = "RL_SUPERVISOR_ORDERS"
VERB = "upgrade-check"
ANSWER = "answer.json"
TRIAL_S = 45.0
QUIET_S = 45.0  # for so long a launch or a stop that is under way is waited for
HELD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPWR)
"""Signals that wait from before the exec until the new program listens."""
FRESH_S = 600.0  # orders that are older were meant for a program that did not know them
SHOWN = 600  # characters of a complaint


@dataclass(frozen=True)
class Seen:
    """What the two programs have to agree on before one takes the other's place; "" is not known."""

    run: str
    state_dir: str
    output_dir: str
    journal: str
    attempt: int
    pid: int | None
    incident: int | None


@dataclass(frozen=True)
class Launch:
    """How this process was started, for the program that takes its place: ``path`` of the run file, ``environ`` as it
    was given, ``variables`` that were taken out of that since (the service manager's). ``onstart``: settings come from
    the store, too.
    """

    path: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    onstart: bool = False


# ---------------------------------------------------------------- in the program that gives its place


class Orders:
    """What was asked for while this program gave its place: for the one that goes on here, which carries it out."""

    def __init__(self) -> None:
        self.end: signal.Signals | None = None
        """The signal that said here that it is to end; it is sent once more, since the new program understands it."""
        self._given: list[dict[str, Any]] = []

    def take(self, fact: f.Fact, source: str) -> None:
        """One fact that came too late for this program. What sensors tell, the other one sees for itself."""
        if not isinstance(fact, f.LeaveSoon | f.Command):
            return
        if source == "signal":
            words = fact.why if isinstance(fact, f.LeaveSoon) else fact.who
            self.end = signal.Signals[words.split()[0]]  # "SIGTERM from Slurm"
        # Also beside the signal: the time that a pod has left counts from now.
        self._given.append({"at": _boot_s(), "source": source, "fact": encode(fact)})

    def text(self) -> str:
        """For the environment of the program that goes on; "" when there is nothing."""
        return json.dumps(self._given) if self._given else ""


class Upgrade:
    """At most one upgrade at a time. ``ask`` may be called from any thread, ``due`` and ``become`` by the loop's."""

    def __init__(self, loop: Loop, run: RunContext, journal: Journal, launch: Launch) -> None:
        self._loop, self._run, self._journal, self._launch = loop, run, journal, launch
        self._lock = threading.Lock()
        self._stage = ""  # "trying", "reading", "waiting", "going"
        self._is_read = False  # are all lines that the core was told of counted in the positions that are kept?
        self._until = 0.0
        self._given = inheritable()  # open files that our parent wants us to hold

    @property
    def is_going(self) -> bool:
        """Is the loop to end so that another program takes this place?"""
        return self._stage == "going"

    def ask(self, who: str) -> tuple[bool, str]:
        """Ask for the upgrade: is it tried, and a sentence. What comes of it is an event."""
        if self._loop.state.mode in (*ENDED, "leaving"):
            return False, f"The daemon of run {self._run.run_file.run.id} is about to end: there is nothing to upgrade."
        with self._lock:
            if self._stage:
                return False, "An upgrade is under way already: supervisorctl events shows what comes of it."
            self._stage = "trying"
        self._loop.chore(lambda: self._begin(who))
        return True, (
            "The installed program is tried beside this one; if it can go on with this run, it takes this place. The "
            "job is not touched."
        )

    def _begin(self, who: str) -> None:
        self._loop.post(f.Remark("upgrade", f"An upgrade was asked for by {who}: the installed program is tried."))
        self._start_trial()

    def _start_trial(self) -> None:
        self._journal.snapshot(self._loop.state)  # what the other one reads is what we know now
        before = self._what_is_seen()
        threading.Thread(target=lambda: self._try(before), name="upgrade", daemon=True).start()

    def _try(self, before: Seen) -> None:
        try:
            answer = self._trial()
        except (SupervisorError, OSError, ValueError) as error:
            refused = str(error)
            self._loop.chore(lambda: self._refuse(refused))
        else:
            self._loop.chore(lambda: self._compare_answer(before, answer))

    def _trial(self) -> dict[str, Any]:
        """Let the installed program try; returns its answer. Raises SupervisorError with its complaint."""
        folder = self._run.run_file.state_dir / "upgrade"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        words = [VERB, str(self._launch.path), str(folder), "onstart" if self._launch.onstart else "run"]
        try:
            with OwnChild([*_program(), *words], environ=self._launch.environ, together=True) as child:
                code = child.wait(time.monotonic() + TRIAL_S)
                child.kill()
                said = child.answer()
            if code is None:
                raise SupervisorError(f"it gave no answer in {TRIAL_S:.0f} s")
            if code != 0:
                raise SupervisorError(_complaint(said, code))
            answer = json.loads((folder / ANSWER).read_text())
            if not isinstance(answer, dict):
                raise SupervisorError("its answer cannot be understood")
            return answer
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _compare_answer(self, before: Seen, answer: Mapping[str, Any]) -> None:
        """The other program can start: does it see what we see, or saw when it began to look?"""
        now = self._what_is_seen()
        for name, value in asdict(now).items():
            if value != "" and answer.get(name) not in (value, getattr(before, name)):
                if now != before:  # the run moved meanwhile, and it may have looked on the way: another look
                    self._start_trial()
                    return
                self._refuse(f"it would go on with {name} {answer.get(name)!r}, and this run has {value!r}")
                return
        self._until = time.monotonic() + QUIET_S
        self._read()

    def _read(self) -> None:
        """Write down how far the logs were read, and come back to ``due`` right behind that: none is read twice."""
        self._stage = "reading"
        self._loop.keep_positions()
        self._loop.chore(self._wait)

    def _wait(self) -> None:
        self._stage, self._is_read = "waiting", True

    def due(self, state: State) -> bool:
        """Has the moment come? From then on ``is_going``."""
        if self._stage != "waiting":
            return False
        busy, is_read = busy_with(state), self._is_read
        self._is_read = False  # the loop turns on, and takes more lines
        if not busy and is_read:
            self._stage = "going"
            return True
        if not busy:
            self._read()
        elif time.monotonic() > self._until:
            self._refuse(f"it can start, but {busy}: ask again when that is over")
        return False

    def _refuse(self, reason: str) -> None:
        self._stage = ""
        told = f"The installed program does not take over, and rl-supervisor {__version__} goes on: {reason}"
        self._loop.post(f.Remark("upgrade-refused", told if told.endswith((".", "?")) else f"{told}.", "warning"))

    def _what_is_seen(self) -> Seen:
        return what_is_seen(self._run.run_file, self._run.job, self._journal.identity(), self._loop.state)

    def become(self, orders: Callable[[], Orders]) -> NoReturn:
        """Turn this process into the installed program. Everything of the run is closed by now.

        ``orders``: what was asked for since ``due``; called when no signal can come any more.
        Raises TryAgainError when the exec fails: our parent restarts us, and starts the new program.
        """
        environ = {**self._launch.environ, **self._launch.variables, VARIABLE: __version__}
        for fd in inheritable() - self._given:
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, False)  # a library's: the new program would hold it and never close it
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        left = orders()
        if left.end is not None:
            # Blocked here, it waits for the new program. (One that is sent to the process could be taken by a thread.)
            signal.pthread_kill(threading.get_ident(), left.end)
        if text := left.text():
            environ[ORDERS] = text
        try:
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606
        except OSError as error:
            raise TryAgainError(
                f"{sys.executable} could not be started in the daemon's place: {error.strerror or error}. The job is "
                "not touched; the next daemon takes it over."
            ) from error


def what_is_seen(run_file: RunFile, job: Job | None, journal: str, state: State) -> Seen:
    return Seen(
        run=run_file.run.id,
        state_dir=str(run_file.state_dir),
        output_dir=str(job.output_dir) if job is not None else "",
        journal=journal,
        attempt=state.attempt.number,
        pid=state.attempt.pid,
        incident=state.incidents.open.id if state.incidents.open is not None else None,
    )


def busy_with(state: State) -> str:
    """What must not be interrupted, as a clause; "" when an upgrade may come now.

    A transfer may: it goes on where it was. A launch or a [setup] command would be begun a second time, and the
    patience of a stop would begin anew.
    """
    settings, waits = state.settings, state.settings.take_over and state.fence.asked
    if ending := leaving.word(state):
        return ending
    if state.mode in (*ENDED, "leaving"):
        return "the daemon is about to end"
    if state.setup_pending:
        return "[setup] is under way"
    if state.busy.start is not None or state.own.asked == "start":
        return "something is just being launched"
    if state.busy.stop is not None or state.mode == "stopping" or state.own.asked == "stop":
        return "something is just being stopped"
    if state.busy.hook is not None:
        return "a hook is running"
    if state.orders.override and (settings.fresh or settings.pin_step is not None):
        return "what the daemon was started for (--fresh or --step) is not done yet"
    if waits and state.fence.generation is None and not state.fence.lost:
        return "the run that --take-over asked for is not claimed yet"
    return ""


def inheritable() -> set[int]:
    """Open files besides the three standard ones that a program started by exec would keep."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        with contextlib.suppress(OSError):  # that of this listing is closed by now
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.add(int(name))
    return found


def _program() -> list[str]:
    """How this program was started, without its own words: interpreter, its options, script or module."""
    words = sys.orig_argv[1:]
    return [sys.executable, *words[: len(words) - len(sys.argv[1:])]]


def _complaint(said: bytes, code: int) -> str:
    text = said.decode(errors="replace").strip()
    if "Traceback (most recent call last)" in text:
        text = text.splitlines()[-1]
    text = " ".join(text.split())
    return text[-SHOWN:] if text else f"it ended with {code} and said nothing"


# ---------------------------------------------------------------- in the program that takes the place


def arrive(environ: MutableMapping[str, str]) -> str:
    """The version that this process replaced by exec, "" for one that was started. Takes it out of ``environ``."""
    version = environ.pop(VARIABLE, "")
    if version:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # a child of the program before: no other process waits for it
    return version


def orders_of(environ: MutableMapping[str, str]) -> list[tuple[f.Fact, str]]:
    """What the program before had no time for, and who said it. Takes it out of ``environ``.

    The time that a pod has left goes on over the exec. What cannot be understood is left out.
    """
    found: list[tuple[f.Fact, str]] = []
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        for one in json.loads(environ.pop(ORDERS, "") or "[]"):
            fact, age_s = decode(one["fact"]), _boot_s() - one["at"]
            if isinstance(fact, f.LeaveSoon) and fact.within_s is not None:
                fact = replace(fact, within_s=max(0.0, fact.within_s - max(0.0, age_s)))
            if isinstance(fact, f.LeaveSoon | f.Command) and 0 <= age_s < FRESH_S:
                found.append((fact, str(one["source"])))
    return found


def _boot_s() -> float:
    """Seconds since the machine was started, also those in which it slept: the same for both programs."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def listen() -> None:
    """The handlers are in place: signals that waited over an exec may come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def arrival_remark(before: str) -> f.Remark:
    """What the new program tells when it watches the run."""
    if before == __version__:
        return f.Remark("upgraded", f"rl-supervisor {before} was started anew in its own place (pid {os.getpid()}).")
    return f.Remark("upgraded", f"rl-supervisor {__version__} took the place of {before} (pid {os.getpid()}).")
