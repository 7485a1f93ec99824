"""The daemon: the small loop that joins sensors, core, effects, journal and people.

``Daemon.run`` is the whole of it: wait for a fact or for the core's deadline, decide, write the journal, act, ping
systemd's watchdog. Everything that can hang runs beside this loop.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import queue
import shlex
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from supervisor import __version__
from supervisor.api.protocol import Api
from supervisor.base import env_file, logs, trim_memory, trust
from supervisor.base.errors import EXIT_TRY_AGAIN, ConfigError, SupervisorError, TryAgainError
from supervisor.base.records import dataclass
from supervisor.base.sd_notify import notifier
from supervisor.base.secrets import MASK, mask_fact
from supervisor.config.core_settings import of_run_file
from supervisor.config.run_file import load
from supervisor.config.settings import RunFile
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core import leaving
from supervisor.core.decide import Decision, decide
from supervisor.core.journal_lost import go_on
from supervisor.core.repeats import Said, once
from supervisor.core.state import State
from supervisor.daemon import fetch_run_files
from supervisor.daemon.active_sensors import ActiveSensors
from supervisor.daemon.api_backend import ApiBackend
from supervisor.daemon.attach_requests import AttachRequests
from supervisor.daemon.housekeeping import Housekeeping
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.leaving import LeavingWatch
from supervisor.daemon.sights import DaemonSights
from supervisor.daemon.start_check import StartCheck
from supervisor.daemon.upgrade import Launch, Orders, Upgrade, arrival_remark, arrive, busy_with, listen, orders_of
from supervisor.daemon.witness import Witness, sentence
from supervisor.effects.before_start import NO_CHECK
from supervisor.effects.carry_out import Effects
from supervisor.effects.heartbeat import Heartbeat
from supervisor.effects.own_engine import last_engine, look_at
from supervisor.effects.run_context import RunContext
from supervisor.jobs.base import Job
from supervisor.journal.clock import Clock
from supervisor.journal.journal import Journal
from supervisor.journal.series import SeriesWriter
from supervisor.primerl import open_job
from supervisor.process import attached, run_lock
from supervisor.process.attached import look_at_component
from supervisor.process.attempts import attempt_dir, read_snapshot
from supervisor.process.survivors import Identity
from supervisor.views import status

FOR_A_PERSON = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""System errors that no other start of the daemon cures."""
Item = f.Fact | Callable[[], None]
"""What waits for the loop: a fact for the core, or a small chore that must come after the facts before it."""
STATUS_S = 5.0  # between two status lines when nothing of weight happened: they also tell ages
SWITCH_S = 0.0005  # the loop gets Python's lock after so long from a thread that parses; 5 ms each time, by default
OWN_UMASK = 0o027  # whatever the caller's was: logs and evidence are for us and our group; job and hooks have 022
ROOT_CAUSE_S = 10.0  # the end waits so long for a look at what failed
PAUSE_S = 10.0  # a loop that was away for longer did not run: the host slept, or the daemon was stopped


@dataclass(frozen=True)
class Options:
    """What a person asked for at this start. ``onstart``: the pod may be new (``[setup]``, settings from the store).

    ``attach_to``: the living job that a person started, by pid and start ticks; it is only observed. ``attached``: such
    a job is watched already. ``overrule``: ids of findings that do not stop a start.
    """

    fresh: bool = False
    step: int | None = None
    take_over: bool = False
    onstart: bool = False
    attach_to: Identity | None = None
    attached: bool = False
    overrule: Sequence[str] = ()


@dataclass(frozen=True)
class Before:
    """The program that this process replaces: its version, "" where there is none, and what people asked it for in its
    last moment, with who did.
    """

    version: str = ""
    orders: Sequence[tuple[f.Fact, str]] = ()


class Daemon:
    """One run on one pod."""

    def __init__(
        self, path: Path, run_file: RunFile, environ: Mapping[str, str], options: Options, before: Before
    ) -> None:
        """Open what is needed. Raises SupervisorError with a sentence when the run cannot be watched at all."""
        # First of all, and from the process's own environment: what a child inherits, it would use (systemctl does).
        self.notifier = notifier()
        if before.version:
            self.notifier.ping()  # the watchdog's time goes on over the exec
        self._options, self._before = options, before
        self._path = path
        self._new_pod = options.onstart
        self._setup = options.onstart and bool(run_file.setup.commands or run_file.setup.beside) and not before.version
        self._state_dir = run_file.state_dir
        self._inbox: Inbox[tuple[Item, str]] = Inbox()
        self.waits = self._inbox.waits
        self._first: deque[tuple[Item, str]] = deque()
        self._signals = 0
        self._unwritten = 0  # turns that the journal could not take
        self._repeats: dict[str, Said] = {}
        self._left = Orders()  # for a program that takes this place
        self.is_ending = False
        self._shown: tuple[object, ...] = ()
        self._shown_at = 0.0
        self._lock_file = run_lock.take_lock(self._state_dir, run_file.run.id, environ)
        self._heir = run_lock.Heir(self._state_dir, environ)
        self.journal = Journal(self._state_dir)
        self.state, _ = self.journal.rebuild()
        owner = self.state.settings.run_id
        # An id that looks like a secret, or is in an address of one, is masked there.
        if owner not in ("", run_file.run.id) and MASK not in owner:
            raise ConfigError(
                f"{self._state_dir} is the state folder of run {owner}, and {path} names run {run_file.run.id}. A "
                "second run needs a [run] state_dir and a [job] output_dir of its own. To rename a run, end it under "
                "its old id, then change id and state_dir: it goes on from the checkpoints in its output folder."
            )
        self.witness = Witness(self._state_dir, self.journal)
        self.clock = Clock(self.journal)
        self._series = SeriesWriter(self._state_dir, lambda: self.effects.store.transfers.moving.get("publish"))
        observed = _OBSERVED if run_file.recovery.mode == "observe" else ""
        run = self.context = RunContext(run_file, environ, self.post, self._open_late, observed)
        self.sensors = ActiveSensors(
            run_file, self.post, self._attempt_dir, lambda: self.state, lambda: run.disks.room if run.disks else None
        )
        run.choose_again = self._choose_again
        self._asked = run_file.recovery.inference
        self._chosen_for: Mapping[Path, Path] | None = None  # the snapshot that the job was opened with
        if run_file.nodes is not None:  # by name: who has one machine loads nothing of it
            several = import_module("supervisor.nodes.head")
            run.machines = several.Head(
                run_file.nodes, run_file.run.id, self._state_dir, environ, self.post, lambda: self.state
            )
        sights = DaemonSights(run, self.journal, self.sensors, lambda: self.state)
        checks = run_file.check.at_start
        start_check = StartCheck(run, path, lambda: self.state, options.overrule) if checks else NO_CHECK
        self.effects = Effects(run, sights, start_check)
        self.housekeeping = Housekeeping(
            self, run_file.supervision, self.effects, self.sensors, self.journal, self.witness
        )
        store, claiming = self.effects.store, self.effects.store.claiming
        self.leaving = LeavingWatch(
            run_file,
            environ,
            self.sensors.start_sensor,
            lambda: self.state,
            lambda: store.transfers.moving.get("publish"),
        )
        self.heartbeat = Heartbeat(
            run_file, self.post, lambda: self.state, self.clock.now, store.put_heartbeat, holds=lambda: claiming.holds
        )
        from supervisor.effects.notify import Notifier  # of no use to most who import this module

        self.messages = Notifier(run_file, self.post, lambda: self.state)
        launch = Launch(path, run.environ, self.notifier.variables, options.onstart)
        self.upgrade = Upgrade(self, run, self.journal, launch)
        self.attaching = AttachRequests(self, run, lambda attempt: self.attend(attempt, adopting=True))
        api = run_file.api
        self.api = Api(ApiBackend(self, self.attaching), run_file.socket, int(api.mode, 8), api.tcp, api.group)

    def _open_job(self) -> Job:
        run = self.context
        if self._new_pod:
            # Done here, since [setup] may have just put the files there that would otherwise come from the store.
            stored = fetch_run_files.fetch(run.run_file, run.environ)
            # What is filled in is also what the pod after this one is given.
            run.run_file = fetch_run_files.fill_in(run.run_file, self._path, stored)
            self._new_pod = False
        if self._chosen_for is None:
            attempt, engine = self.state.attempt.number, look_at(self._state_dir, self.state.own.number).pid is not None
            lives = engine or bool(self._pids(attempt))  # what lives is not made another by the daemon that comes after
            beside = engine or self.state.own.wanted if lives else None
            # A job that a person started by hand runs by files of theirs, and not by a snapshot of ours.
            to_start = {} if run.observed else self._configs_to_start()
            copies = read_snapshot(self._attempt_dir(attempt)) if lives else to_start
        else:
            beside, copies = run.run_file.recovery.inference == "own-role", self._chosen_for
        job = open_job(run.run_file.with_inference(self._asked), run.environ, beside, copies)
        run.run_file, self._chosen_for = job.run, copies
        return job if run.disks is None else run.disks.see(job, run.run_file, run.environ)

    def _configs_to_start(self) -> Mapping[Path, Path]:
        """The snapshot that the next start would run; empty where it takes the files as they are.

        A run that is over goes on only after a person has mended something, or raised its last step.
        """
        anew = self.state.orders.new_config or self.state.mode in ("finished", "gave-up")
        snapshot = None if anew else self.state.attempt.snapshot
        return {} if snapshot is None else read_snapshot(self._attempt_dir(snapshot))

    def _choose_again(self) -> None:
        """Before a start, whose configuration may differ from the last one's and allow another `auto`: open it."""
        run, own = self.context, self.state.own
        if run.job is None or run.observed or self.state.mode != "surveying":
            return
        before, self._chosen_for = self._chosen_for, self._configs_to_start()
        if run.machines is not None or (self._asked != "auto" and self._chosen_for == before):
            return
        with contextlib.suppress(SupervisorError):  # the start says it
            job = open_job(run.run_file.with_inference(self._asked), run.environ, None, self._chosen_for)
            last, settings = self.settings(run.job), self.settings(job)
            if settings.inference == "with-job" and look_at(self._state_dir, own.number).pid is not None:
                self.effects.engine.stop(a.StopEngine(own.number, job.chosen, settings.stop_budget_s))
            run.job, run.run_file = job, job.run
            if last != settings:
                self.chore(lambda: self.sensors.watch_pod(job))
                self.post(f.SettingsChanged(settings), "daemon")

    def find_config_problem(self) -> str:
        """Why no job could start with the configuration files as they are now; "" when one can."""
        run = self.context
        try:
            return " ".join(open_job(run.run_file.with_inference(self._asked), run.environ).problems())
        except SupervisorError as error:
            return str(error)

    def _open_late(self) -> Job:
        """Open the job after the beginning: [setup] has installed it, or the store has answered at last."""
        job = self._open_job()
        self._inbox.put((lambda: self._opened_late(job), "daemon"))
        return job

    def _opened_late(self, job: Job) -> None:
        self.sensors.watch_pod(job)
        self.post(f.SettingsChanged(self.settings(job)), "daemon")
        self.effects.do(a.Survey())
        self._adopt_engine(self._engine_left())
        if self.state.live and self.state.attempt.pid is not None and self.sensors.positions() is None:
            self.attend(self.state.attempt.number, adopting=True)  # a living job that could not be looked at until now

    def _attempt_dir(self, attempt: int) -> Path:
        return attempt_dir(self._state_dir, attempt)

    # ------------------------------------------------------------ the loop

    def post(self, fact: f.Fact, source: str = "") -> None:
        """Hand a fact to the core; from any thread."""
        self._inbox.put((fact, source))

    def chore(self, work: Callable[[], None]) -> None:
        """Have the loop do ``work``, after the facts that were told before; from any thread."""
        self._inbox.put((work, "daemon"))

    def run(self) -> int:
        """Watch the run until the core asks for the end; returns the exit code of the contract."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *self.leaving.signals):
            signal.signal(number, self._on_signal)
        listen()
        self.api.start()
        code = None
        try:
            self._begin()
            code = self._loop()
        finally:
            self._end(code)
        if self.upgrade.is_going:
            self.upgrade.become(self._late_orders)
        return code

    def _begin(self) -> None:
        if self.witness.lost or self.state.attempt.number == 0:
            # Count on from the folders, so that no earlier evidence is written over, and keep what persons ordered.
            before, attempt = self.witness.before, self.witness.last_attempt
            known = before.orders if before is not None and self.witness.lost else None
            own = replace(self.state.own, number=max(self.state.own.number, last_engine(self._state_dir)))
            living = bool(self._pids(attempt))
            self.state = replace(go_on(self.state, known, attempt, living=living), own=own)
            # No fact tells of it, and a replay has to begin with it.
            self.journal.snapshot(self.state)
        if self._options.attach_to is not None or self._options.attached or self.attaching.watches():
            self.context.observed = _ATTACHED
        self.context.job = self._job_or_none()
        if self.context.job is not None and not self.context.observed:
            self.effects.finish_deletions(self.context.job.output_dir)
        settings = self.settings(self.context.job)
        self.sensors.watch_pod(self.context.job)
        self._take_over(settings)
        if self.context.machines is not None:
            self.context.machines.start()
        from supervisor.daemon.side_child import side_children

        self.housekeeping.start(side_children(self._path, self.context.run_file))
        self.leaving.start()
        self.heartbeat.start()
        self.messages.start()
        self.notifier.tell_ready(f"watching {self.context.run_file.run.id}")
        if self._before.version:
            self.post(arrival_remark(self._before.version), "daemon")

    def _job_or_none(self) -> Job | None:
        if self._setup:
            try:
                return self._open_job()
            except SupervisorError:
                return None  # [setup] installs it; it is opened again, and its complaint told, after that
        try:
            job = self._open_job()
        except TryAgainError as error:
            logs.say("warning", "next-pod", str(error))
            return None  # it is opened as soon as the store answers; nothing can be started before that
        # Of a snapshot they concern a start, which says them: what lives is watched, and a person may take other files.
        if not self._chosen_for and (problems := job.problems()):
            raise ConfigError("\n".join(problems))
        return job

    def _take_over(self, settings: f.Settings) -> None:
        """Find what the daemon before left: a living job is adopted, an ended one's status is told."""
        state = self.state
        adopted = None
        after: list[f.Fact] = []
        taken = self.attaching.claim(self._options.attach_to) if self._options.attach_to is not None else None
        # A job of a journal that was lost: of what any other tells, nothing lives while it looks where to begin.
        forgotten = (
            state.mode in ("new", "surveying")
            or attached.find_living(self._attempt_dir(state.attempt.number)) is not None
        )
        if taken is None and not state.live and forgotten and self._pids(state.attempt.number):
            taken = state.attempt.number
        if taken is not None and (taken != state.attempt.number or not state.live):
            if None in (pids := self._pids(taken)):
                raise TryAgainError(f"Cannot see whether attempt {taken} still lives: its record cannot be read.")
            after.extend(f.AttemptAdopted(taken, None, pid) for pid in pids if pid)
        elif state.attempt.number and (state.holds_a_job or state.busy.start is not None):
            for component in self._components(state.attempt.number):
                found = look_at_component(self._attempt_dir(state.attempt.number), component)
                if found.state == "absent":
                    continue
                adopted = state.attempt.number
                if found.state == "running" and found.pid:
                    after.append(f.AttemptAdopted(state.attempt.number, state.attempt.resume_step, found.pid))
                elif found.state == "unknown":
                    after.append(f.Remark("adopted", f"It counts as alive until then: {found.reason}", "warning"))
                elif self.context.job is None or not state.live:
                    end = (found.exit_code, found.signal, found.state == "lost")
                    after.append(f.ComponentExited(state.attempt.number, component, *end))
                # Else its end is told as any other is: after its last lines, which no daemon has read yet.
            if adopted is None and state.live and state.busy.start is None:
                adopted = state.attempt.number
                after.append(f.ComponentExited(state.attempt.number, "launcher", None, None, lost=True))
        lives = any(isinstance(fact, f.AttemptAdopted | f.Remark) for fact in after)
        # Nothing is installed under a job that runs.
        setup = self._setup and not lives
        # Before whatever a sensor or a person has posted by now: until the core knows how long no daemon watched, each
        # age in its state (the last step, the last token) counts that time as silence of the job.
        journal = self.context.journal = self.journal.identity()
        self.effects.store.claiming.journal = self.witness.claimant
        engine = self._engine_left()
        started = f.DaemonStarted(
            __version__, settings, self.clock.boot_id, adopted, setup, journal, engine, self._lost_sentence()
        )
        self._first.extend((fact, "daemon") for fact in (started, *after))
        self._first.extend(self._before.orders)
        self._adopt_engine(engine)
        if adopted is not None and (lives or not after):
            self.attend(adopted, adopting=True)
        elif lives and taken is not None:
            self._inbox.put((lambda: self.attend(taken, adopting=True), "daemon"))

    def _lost_sentence(self) -> str:
        if not self.witness.lost:
            return ""
        last = self.journal.last_time()
        return sentence(self.witness.lost, self.witness.before, last[1] if last else None, self.state.attempt.number)

    def _pids(self, attempt: int) -> list[int | None]:
        """The living components of an attempt; None for one that may live: its record cannot be read."""
        folder = self._attempt_dir(attempt)
        found = (look_at_component(folder, component) for component in self._components(attempt))
        return [one.pid for one in found if one.state == "unknown" or (one.state == "running" and one.pid)]

    def _components(self, attempt: int) -> list[str]:
        return attached.component_names(self._attempt_dir(attempt))

    def _loop(self) -> int:
        deadline = self.clock.now()
        while not (self.upgrade.due(self.state) or self._heir.due(self._calm)):
            fact, source = self._next(deadline)
            if not isinstance(fact, f.Fact):
                fact()
                continue
            before = self.state
            decision = self._decide(fact, source)
            self.messages.note(before, self.state)
            deadline = decision.deadline
            for action in decision.actions:
                if isinstance(action, a.Exit):
                    self.is_ending = True
                    self._hear_root_cause()
                    self.messages.note_end(action.code, action.reason)
                    return action.code
                self._act(action)
            self._follow(before, fact)
            self.leaving.follow()
            self._show()
        return EXIT_TRY_AGAIN  # another one goes on; or no other program could be put here

    def _hear_root_cause(self) -> None:
        """Before the end: what the look at the last evidence finds is what a person asks first. A signal is not kept
        waiting for it.
        """
        until = self.clock.now() + ROOT_CAUSE_S
        while not self._signals and self.clock.now() < until:
            looks = self.effects.root_cause.looks  # before the inbox: its fact is posted first
            try:
                fact, source = self._inbox.get(0.1 if looks else 0.0)
            except queue.Empty:
                if not looks:
                    return
            else:
                if isinstance(fact, f.RootSeen):
                    self._decide(fact, source)
                elif isinstance(fact, f.Command):
                    self._first.append((fact, source))
            self._show()

    def _calm(self) -> bool:
        return not self._signals and not busy_with(self.state)

    def _decide(self, fact: f.Fact, source: str) -> Decision:
        # The one door through which text enters the core: journal, store, messages and terminals have it from there.
        fact = mask_fact(fact)
        before, observation = self.state, f.Observation(self.clock.now(), time.time(), fact, source)
        decision = decide(before, observation)
        self.state = decision.state
        said = self.journal.record(observation, before, self.state, decision.actions)
        self._say_events(said)
        self._series.note(observation, self.state, said)
        self.witness.note(self.state, self.journal)
        return decision

    def _next(self, deadline: float) -> tuple[Item, str]:
        if self._first:
            return self._first.popleft()
        wanted = max(0.0, min(deadline - self.clock.now(), 5.0))
        began = self.clock.now()
        try:
            found = self._inbox.get(wanted)
        except queue.Empty:
            return self._clock_jump(began, wanted) or (f.Tick(), "clock")
        if (jumped := self._clock_jump(began, wanted)) is None:
            return found
        # What waited in the inbox was seen before the pause; it is judged after the clocks are set right, and before
        # all that waits behind it: an exit is told after the job's last lines, and has to stay behind them.
        self._first.append(found)
        return jumped

    def _clock_jump(self, began: float, wanted: float) -> tuple[Item, str] | None:
        away = self.clock.now() - began - wanted
        return (f.ClockJumped(away), "clock") if away > PAUSE_S else None

    def _say_events(self, events: list[Any]) -> None:
        # All that is said while an incident is open belongs to its story (`journalctl RL_INCIDENT=1`).
        known = {
            "attempt": self.state.attempt.number,
            "incident": self.state.incidents.open.id if self.state.incidents.open else None,
        }
        for event in events:
            logs.say(event.level, event.event, event.sentence, **{**known, **event.fields})
        self._tell_of_the_journal()

    def _tell_of_the_journal(self) -> None:
        """That it cannot be written no core can be told: what it consumed would be written nowhere."""
        self._unwritten += bool(self.journal.failure)
        if not (self.journal.failure or self._unwritten):
            return
        sentence = self.journal.failure or "The journal can be written again."
        self._repeats, told = once(self._repeats, "journal", sentence, self.state.now)
        if told and self.journal.failure:
            logs.say("error", "journal", told)
        elif told:
            logs.say("warning", "journal", f"{told} Of {self._unwritten} turns of the loop it has no record.")
        if not self.journal.failure:
            self._unwritten = 0

    def _act(self, action: a.Action) -> None:
        if isinstance(action, a.Start) and self.context.job is not None:
            # Followed from before the launch, so that not even the first line is missed.
            self.sensors.prepare(self.context.job, action.attempt)
        if not isinstance(action, a.Say):
            self.effects.do(action)
        if isinstance(action, a.Stop) and self._signals > 1:
            self.effects.hurry()

    def _follow(self, before: State, fact: f.Fact) -> None:
        """Keep the sensors in step with the state."""
        if isinstance(fact, f.AttemptStarted):
            self.attend(fact.attempt, adopting=False)
        if isinstance(fact, f.AttemptStopped):
            self.sensors.leave(fact.attempt)
        if isinstance(fact, f.EngineStarted) and self.context.job is not None:
            self.sensors.watch_engine(self.context.job, fact.engine)
        if isinstance(fact, f.EngineStopped):
            self.sensors.leave_engine(fact.engine)
        if isinstance(fact, f.Suppressed) and not self.state.holds_a_job:
            self.sensors.leave(None)  # what ended by itself was not stopped, and is not looked at any more either
        if isinstance(fact, f.StoreSteps) and fact.wandb_id and not self.journal.get("wandb_id"):
            self.journal.put("wandb_id", fact.wandb_id)

    def _engine_left(self) -> int | None:
        """The inference server of our own that the daemon before left running, or that ended without a report."""
        own = self.state.own
        if self.context.run_file.recovery.inference == "with-job" or own.number == 0:
            return None
        found = look_at(self._state_dir, own.number)
        is_left = found.pid is not None or (found.state != "absent" and (own.alive or own.asked == "start"))
        return own.number if is_left else None

    def _adopt_engine(self, engine: int | None) -> None:
        if engine is None or self.context.job is None or self.sensors.engine is not None:
            return
        kept = self.journal.get_json("log_positions").get("positions", [])
        self.sensors.watch_engine(self.context.job, engine, kept)
        if not self.context.observed:  # giving weights is acting
            self.effects.engine.adopt()

    def attend(self, attempt: int, *, adopting: bool) -> None:
        """Look at an attempt. The logs of one that lives already are read on from where they were read to."""
        job = self.context.job
        if job is None:
            return
        components = self._components(attempt)
        folder = self._attempt_dir(attempt)
        kept = self.journal.get_json("log_positions") if adopting else {}
        positions = kept.get("positions", []) if kept.get("attempt") == attempt else [] if adopting else None
        self.sensors.watch_attempt(
            job, attempt, components, lambda name: look_at_component(folder, name), positions=positions
        )

    def keep_positions(self) -> None:
        """Write down how far the logs were read, after the loop has consumed what was read until now."""
        positions, attempt = self.sensors.positions(), self.state.attempt.number
        if positions is not None:
            text = json.dumps({"attempt": attempt, "positions": positions})
            self._inbox.put((lambda: self.journal.put("log_positions", text), "daemon"))

    def _show(self) -> None:
        """Ping the watchdog at each turn; the status line costs more and changes seldom."""
        self.notifier.ping()
        key = (self.state.mode, self.state.progress.step, self.state.store.published, self.state.incidents.open is None)
        if key != self._shown or self.state.now - self._shown_at > STATUS_S:
            self._shown, self._shown_at = key, self.state.now
            self.notifier.status(status.headline(self.state))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            return  # a terminal that went away is no reason to end
        if number not in self.leaving.signals:
            self._signals += 1
        if self._signals > 1:
            self.effects.hurry()
            self.effects.store.claiming.ended.set()  # who asks twice does not wait for a store that is away
        self._inbox.put((self.leaving.meaning_of(number), "signal"))

    def _late_orders(self) -> Orders:
        """What was asked of the program that goes on here. It finds by itself what sensors and effects have told."""
        for fact, source in self._empty_inbox():
            self._left.take(fact, source)
        return self._left

    def _empty_inbox(self) -> Iterator[tuple[f.Fact, str]]:
        while self._first or not self._inbox.empty():
            fact, source = self._first.popleft() if self._first else self._inbox.get_nowait()
            if isinstance(fact, f.Fact):
                yield fact, source

    def _end(self, code: int | None) -> None:
        if not self.is_ending:
            self.api.close()  # another daemon goes on here, and takes the orders
        if self.upgrade.is_going:
            self.notifier.tell_reloading("the installed program takes over")
            self._late_orders()
        else:
            self.notifier.tell_stopping(status.headline(self.state))  # why it ended stays in `systemctl status`
        self.heartbeat.close()
        self.messages.close()
        self.housekeeping.stop()
        now = self.clock.now()
        self.effects.close(self.leaving.left_s(now), self.leaving.release_s(now))
        self.leaving.close()
        self.sensors.close()
        if self.context.machines is not None:
            self.context.machines.close(None if self.upgrade.is_going or code == EXIT_TRY_AGAIN else code)
        if self.effects.store.claiming.unreturned:
            logs.say("warning", "release-failed", self.effects.store.claiming.unreturned)
            if told := leaving.list_unpublished(self.state):
                logs.say("error", "unpublished", told)  # once more: what goes with this disk has the last word
        self.api.close()
        for fact, source in self._empty_inbox() if self.is_ending else ():
            # An order that was taken before the end was decided: the next daemon keeps to it.
            if isinstance(fact, f.Command) and fact.verb != "shutdown":
                self._decide(fact, source)
        self.journal.snapshot(self.state)
        self.journal.close()
        self.witness.keep()

    # ------------------------------------------------------------ settings, identity

    def settings(self, job: Job | None) -> f.Settings:
        """What the core needs of the run file and of the trainer's configuration."""
        own = of_run_file(job.run if job is not None else self.context.run_file)
        role = job.engine_role() if job is not None and own.inference == "own-role" else None
        return replace(
            own,
            max_steps=own.max_steps or (job.max_steps() if job else None),
            first_step_at=job.facts().first_step if job else 0,
            has_engine=job is None or job.engine() is not None,
            has_finish_line=job is None or job.facts().finish_line,
            mode="observe" if self.context.observed else "act",
            fresh=self._options.fresh,
            pin_step=self._options.step,
            fencing=self.context.run_file.store.url is not None,  # the embedded store is this machine's own
            take_over=self._options.take_over,
            engine_alone=role is None or role.restart_alone,
            engine_warm=role is None or role.keep_warm,
            run_file=shlex.quote(str(self._path.absolute())),
        )


_OBSERVED = (
    'this run is only observed, because its run file says [recovery] mode = "observe". Set it to "act" and start the '
    "daemon anew to let it act."
)
_ATTACHED = (
    "this run is only observed, because a person started its job and attached it. End the job where it was started; "
    "`rl-supervisor run` then starts it from its last good step."
)


def main(path: Path, options: Options | None = None) -> int:
    """Run the daemon for one run file; returns the exit code. Raises SupervisorError when it cannot begin."""
    with contextlib.suppress(RuntimeError, ValueError, OSError):  # a closed stderr
        faulthandler.enable()  # a watchdog ends a loop that hangs with SIGABRT: then it says where
    options = options or Options()
    before = Before(arrive(os.environ), orders_of(os.environ))
    if before.version:
        options = replace(options, fresh=False, step=None, take_over=False)  # that has been done
    os.umask(OWN_UMASK)
    run_file = load(path)
    keys = env_file.beside(path)
    os.environ.update(keys.values)  # our parent read it once; a key may be new since
    about = run_file.logging
    size = int(about.file_mb * 1e6)
    logs.configure(about.format, about.level, run_file.log_file, run_file.run.id, file_bytes=size, keep=about.keep)
    for note in keys.notes:
        logs.say("warning", "env-file", note)
    threading.current_thread().name = "loop"
    sys.setswitchinterval(SWITCH_S)
    trim_memory.few_arenas()
    try:
        daemon = Daemon(path, run_file, os.environ, options, before)
        if warning := trust.accept(path, run_file.state_dir):
            logs.say("warning", "files", warning)
        return daemon.run()
    except OSError as error:
        raise explain_os_error(error) from error


def explain_os_error(error: OSError) -> SupervisorError:
    """How the daemon ends of it: to be started again, as after a crash, or not before a person has mended it."""
    kind = SupervisorError if error.errno in FOR_A_PERSON else TryAgainError
    return kind(f"{error.filename or 'The daemon'}: {error.strerror or error}")
