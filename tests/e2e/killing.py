"""Killing a real daemon again and again under a practice job with witnesses in it, and what became of the job."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from supervisor.process import survivors
from supervisor.process.survivors import Identity
from tests.practice.run import make_practice

from . import witness
from .rig import Pod

How = Literal["restarter", "fresh"]
MOMENTS = ("any", "adopting", "publish")
STEP = re.compile(r"Step (\d+) \|\s+(?:(\d+)ms|([\d.]+)s) ")
STEP_S = 0.3
# The shim hands what it gets to the launcher, and `tail` is no program of ours: a signal would end it, which shows.
NO_WITNESS = ("shim", "tail")
PATIENCE_S = 60.0


@dataclass
class Told:
    """What was seen over all kills of one kind. ``steps``: median seconds of the practice job's steps, ``work``: of the
    helper's pieces of work; each in control phases and in phases with kills.
    """

    kills: int = 0
    seed: int | None = None
    moments: dict[str, int] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    published: int = 0
    deaf: list[str] = field(default_factory=list)  # processes of the job that would not have told of a signal
    incidents: tuple[int, int] = (0, 0)  # those that we caused, and those that the daemon saw
    steps: dict[str, list[float]] = field(default_factory=lambda: {"control": [], "kills": []})
    work: dict[str, list[float]] = field(default_factory=lambda: {"control": [], "kills": []})
    gaps: list[float] = field(default_factory=list)  # seconds from a kill to the next daemon's word that it took over

    def median(self, what: Literal["steps", "work"], phase: str) -> float:
        """Median seconds, nan where nothing was measured."""
        values: list[float] = getattr(self, what)[phase]
        return statistics.median(values) if values else float("nan")


class Victim:
    """A pod whose daemon is killed. ``how``: who starts the next one."""

    def __init__(self, folder: Path, how: How, seed: int) -> None:
        self.how, self.chance = how, random.Random(seed)
        self.notes = folder / "witness"
        practice = make_practice(
            folder / "practice", "v0.6", max_steps=1_000_000, interval=4, step_s=STEP_S, checkpoint_bytes=20_000_000
        )
        script = Path(witness.__file__).absolute()
        launcher = [sys.executable, str(script), str(self.notes), str(practice.home / ".venv" / "bin" / "rl")]
        settings = {
            "job": {"launcher": launcher, "checkpoint_interval": 4},
            "store": {"keep_last": 100_000, "take_over_after": 600},
            # On a machine that many share, a silence of seconds is no hang.
            "deadlines": {"step_floor": 60, "step_ceiling": 120, "hang": 60, "checkpoint_save": 120, "startup": 120},
        }
        environ = {"RL_SUPERVISOR_BACKOFF": "0.1"}
        self.pod = Pod(folder, practice=practice, settings=settings, environ=environ)
        self.told = Told(seed=seed)
        self.seen: set[int] = set()
        self.hits = 0
        self.since = 0.0  # when the present attempt was launched; the one before was ended by signals

    def start(self) -> None:
        """Start all, until something is published."""
        self._start_daemon()
        self.until(lambda: self.pod.stored(), "a step is published", 120)
        self.until(lambda: (self.notes / "helper").exists(), "the helper is up")

    def close(self) -> None:
        """End all of it: the restarter first, then the daemon that it would start again, then the job."""
        left = self.daemon() if self.pod.daemon is not None else None
        if self.pod.daemon is not None:
            self.pod.daemon.kill()
            self.pod.daemon.wait()
        if left is not None:
            with contextlib.suppress(psutil.Error):
                left.kill()
                left.wait(10)
        self.pod.close()

    def until(self, what: Callable[[], object], about: str, limit_s: float = PATIENCE_S) -> None:
        """Poll; whatever the store has meanwhile is remembered."""
        deadline = time.monotonic() + limit_s
        while not what():
            self.seen.update(self.pod.stored())
            assert time.monotonic() < deadline, f"not in {limit_s} s: {about}\n{self.pod.story()}"
            time.sleep(0.05)

    # ------------------------------------------------------------ the daemon

    def _start_daemon(self) -> None:
        self.pod.start("run", *(["--restart"] if self.how == "restarter" else []))

    def daemon(self) -> psutil.Process | None:
        """The daemon's own process, None between two of them."""
        assert self.pod.daemon is not None
        if self.how == "fresh":
            return psutil.Process(self.pod.daemon.pid) if self.pod.daemon.poll() is None else None
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pod.daemon.pid).children():
                with contextlib.suppress(psutil.Error):
                    if str(self.pod.run_file) in child.cmdline():
                        return child
        return None

    def _kill(self, *, wait: bool = True) -> None:
        """SIGKILL, and the next one is started; ``wait``: until it has taken the job over."""
        before, found = len(self.pod.sentences("adopted")), self.daemon()
        assert found is not None, self.pod.story()
        began = time.monotonic()
        found.kill()
        assert self.pod.daemon is not None
        if self.how == "fresh":
            self.pod.daemon.wait()
            self._start_daemon()
        else:
            self.until(lambda: self._next_one(found.pid), "the restarter starts another daemon")
        if wait:
            self.until(lambda: len(self.pod.sentences("adopted")) > before, "the next daemon took the job over")
            self.told.gaps.append(time.monotonic() - began)

    def _next_one(self, old: int) -> bool:
        now = self.daemon()
        if now is not None and now.pid != old:
            return True
        assert self.pod.daemon is not None
        os.kill(self.pod.daemon.pid, signal.SIGHUP)  # it waits longer from death to death: a person cuts that short
        return False

    # ------------------------------------------------------------ kills

    def kill(self, moment: str) -> None:
        """One kill at this moment; what must not change is compared before and after."""
        before = self.identities()
        if moment == "adopting":
            self._kill(wait=False)
            self._count(moment)
            time.sleep(self.chance.uniform(0.1, 1.5))  # anywhere between its first line and its first look
        elif moment == "publish":
            self.until(self._publishing, "a step is on its way to the store")
            time.sleep(self.chance.uniform(0, 0.2))
        else:
            time.sleep(self.chance.uniform(0, 1.5))
        self._kill()
        self._count(moment)
        self.told.changed += [
            f"{pid} {before[pid, ticks]}" for pid, ticks in before if not survivors.alive((pid, ticks))
        ]
        self.seen.update(self.pod.stored())

    def _count(self, moment: str) -> None:
        self.told.kills += 1
        self.told.moments[moment] = self.told.moments.get(moment, 0) + 1

    def kill_in_an_incident(self, *, early: bool) -> None:
        """The engine dies, the job is started anew, and before its first step the daemon is killed.

        ``early``: it is killed at the verdict, while evidence is collected and the job is stopped. That job has to go
        in any case; the next daemon goes on where the stop was, and starts the job once.
        """
        self.note_signals()
        self.hits += 1
        launches, starts = len(self.pod.sentences("launched")), len(self.pod.practice.starts())
        os.kill(self.pod.practice.pids("engine-core")[0], signal.SIGKILL)
        if early:
            self.until(lambda: len(self.pod.sentences("verdict")) >= self.hits, "the verdict", 120)
            time.sleep(self.chance.uniform(0, 0.5))
            self._kill(wait=False)
            self._count("verdict")
        self.until(lambda: len(self.pod.sentences("launched")) > launches, "the job is started anew", 120)
        self.since = time.time()  # whoever was told to end before has ended
        if not early:
            self.kill("incident")
        self.until(lambda: len(self.pod.sentences("incident-closed")) >= self.hits, "the incident is over", 120)
        if (again := len(self.pod.practice.starts()) - starts) != 1:
            self.told.changed.append(f"the job of incident {self.hits} was started {again} times")

    def _publishing(self) -> bool:
        folder = Path(self.pod.store.removeprefix("file://")) / "practice"
        return any(not (step / "manifest.json").exists() for step in folder.glob("step_*"))

    # ------------------------------------------------------------ what is seen

    def identities(self) -> dict[Identity, str]:
        """Everything of the job that lives now: its registered processes, the helper, the shim."""
        named = dict(self.pod.practice.alive())
        named |= {shim.pid: "shim" for shim in self.pod._shims()}
        with contextlib.suppress(OSError, ValueError):
            named[int((self.notes / "helper").read_text())] = "helper"
        return {found.identity: role for pid, role in named.items() if (found := survivors.look_at(pid)) is not None}

    def note_signals(self) -> None:
        """Take down what the witnesses of the present attempt have heard so far."""
        for file in self.notes.glob("signals-*"):
            for line in file.read_text().splitlines():
                if float(line.split()[0]) >= self.since and (told := f"{file.name}: {line}") not in self.told.signals:
                    self.told.signals.append(told)

    def deaf(self) -> list[str]:
        """Who of the job would not have told of a signal: each is sent a harmless one, the last thing that is done."""
        asked = {pid: role for (pid, _), role in self.identities().items() if role not in NO_WITNESS}
        for pid in asked:
            os.kill(pid, signal.SIGWINCH)
        deadline = time.monotonic() + 20
        while (left := {pid for pid in asked if not self._heard(pid, "SIGWINCH")}) and time.monotonic() < deadline:
            time.sleep(0.05)
        return sorted(f"{asked[pid]} ({pid})" for pid in left)

    def _heard(self, pid: int, name: str) -> bool:
        file = self.notes / f"signals-{pid}"
        return file.exists() and name in file.read_text()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is measured meanwhile counts as ``name``."""
        steps, work = len(self._durations()), len(self._pieces())
        yield
        self.told.steps[name] += self._durations()[steps + 1 :]  # the first may have begun before
        self.told.work[name] += self._pieces()[work + 1 :]

    def _durations(self) -> list[float]:
        found = STEP.findall(self.pod.practice.log("trainer"))
        return [int(ms) / 1000 if ms else float(seconds) for _, ms, seconds in found]

    def _pieces(self) -> list[float]:
        with contextlib.suppress(OSError):
            lines = (self.notes / "work").read_text().splitlines()
            return [float(line.split()[1]) for line in lines if len(line.split()) == 2]
        return []

    # ------------------------------------------------------------ the end

    def finish(self) -> Told:
        """What became of the job and of what was published."""
        self.note_signals()
        newest = max(self.seen)
        self.until(lambda: max(self.pod.stored()) > newest, "publishing goes on", 120)
        self.seen.update(self.pod.stored())
        there = set(self.pod.stored())
        self.told.published = len(self.seen)
        self.told.lost = sorted(self.seen - there)
        latest = int(str(self.pod.latest()["step"]).removeprefix("step_"))
        assert latest >= newest, f"latest.json went back to {latest}, and {newest} was published"
        self.told.incidents = (self.hits, len(self.pod.sentences("verdict")))
        self.told.deaf = self.deaf()
        return self.told


def fifty(  # noqa: PLR0917 (how much of what)
    folder: Path, how: How, kills: int, in_incidents: int, seed: int, phase_s: float = 0.0, blocks: int = 1
) -> Told:
    """``kills`` of a daemon that ``how`` starts again, ``in_incidents`` of them in one.

    ``phase_s`` above 0: in ``blocks`` turns of a control phase of so many seconds, in which the daemon lives, and a
    phase with a share of the kills.
    """
    victim = Victim(folder, how, seed)
    try:
        victim.start()
        turn, free = 0, kills - in_incidents
        for block in range(blocks):
            if phase_s:
                with victim.phase("control"):
                    time.sleep(phase_s)
            until = free * (block + 1) // blocks
            with victim.phase("kills"):
                while victim.told.kills < until:
                    moment = MOMENTS[turn % len(MOMENTS)]
                    victim.kill("any" if moment == "adopting" and until - victim.told.kills < 2 else moment)
                    turn += 1
        for number in range(in_incidents):
            victim.kill_in_an_incident(early=number % 2 == 1)
        return victim.finish()
    finally:
        victim.close()


def story(told: Told) -> str:
    """All that was seen, for an assertion's message."""
    return json.dumps({**vars(told), "steps": {}, "work": {}}, default=str)
