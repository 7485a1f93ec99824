"""Real jobs of many shapes, started under real shims; whatever a test leaves alive is killed and fails it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import TypeVar

import pytest

from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.jobs.base import Component, StopRules
from supervisor.jobs.plain import PlainJob
from supervisor.process import survivors
from supervisor.process.launch import Launched, ShimState, launch, look_at_component
from supervisor.process.stop import StopReport, stop_attempt
from tests.hands import Seen, effects_of

PATIENT = StopRules(((signal.SIGTERM, 10.0),))
BLUNT = StopRules(())

PRELUDE = """
import os, signal, subprocess, sys, time
def tell(name, pid=None):
    with open(name + ".tmp", "w") as file:
        file.write(str(pid or os.getpid()))
    os.rename(name + ".tmp", name)
def sleep():
    # No longer, where the test that would end it was killed. In pieces: Python sleeps on over a signal that came just
    # before its call.
    until = time.monotonic() + 900
    while time.monotonic() < until:
        time.sleep(0.5)
"""


T = TypeVar("T")


def wait_for(look_again: Callable[[], T | None], what: str, limit_s: float = 30.0) -> T:
    """Poll until the answer is true; fails with ``what`` after the limit."""
    deadline = time.monotonic() + limit_s
    while not (answer := look_again()):
        assert time.monotonic() < deadline, f"waited {limit_s} s in vain: {what}"
        time.sleep(0.01)
    return answer


def gone(pid: int, ticks: int) -> bool:
    """Is this very process no longer running?"""
    return not survivors.alive((pid, ticks))


@dataclass
class Attempt:
    """One attempt's folder and what was started in it. ``folder`` is also where the jobs run and leave their notes."""

    folder: Path
    run_id: str
    mine: list[survivors.Identity] = field(default_factory=list)

    def component(self, script: str, name: str = "job", **changes: object) -> Component:
        source = self.folder / f"{name}.py"
        source.write_text(PRELUDE + dedent(script))
        env = {"PATH": os.environ["PATH"], "COLOUR": "blue"}
        given = {"name": name, "argv": [sys.executable, "-I", "-S", str(source)], "cwd": self.folder, "env": env}
        return Component(**{**given, **changes})  # type: ignore[arg-type]

    def start(self, script: str, name: str = "job", **changes: object) -> Launched:
        launched = launch(self.component(script, name, **changes), self.folder, "fork", self.run_id)
        self.mine.append((launched.child_pid, launched.child_start_ticks))
        ticks = survivors.look_at(launched.shim_pid)
        if ticks:
            self.mine.append(ticks.identity)
        return launched

    def told(self, note: str) -> survivors.Identity:
        """The process that wrote its pid into ``note``."""
        path = self.folder / note
        process = wait_for(lambda: path.exists() and survivors.look_at(int(path.read_text())), f"{note} starts")
        assert process
        self.mine.append(process.identity)
        return process.identity

    def look(self, name: str = "job") -> ShimState:
        return look_at_component(self.folder, name)

    def ended(self, name: str = "job") -> ShimState:
        """Its state once it is no longer running."""
        return wait_for(lambda: None if (s := self.look(name)).state == "running" else s, f"{name} ends")

    def stop(self, rules: StopRules = PATIENT, budget_s: float = 60.0, **more: object) -> StopReport:
        return stop_attempt(self.folder, [], self.run_id, rules, budget_s, lambda: True, 1.0, **more)  # type: ignore[arg-type]

    def alive(self) -> list[survivors.Identity]:
        return [identity for identity in self.mine if survivors.alive(identity)]


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    folder = tmp_path / "attempt-1"
    folder.mkdir()
    made = Attempt(folder, f"test-{os.getpid()}-{tmp_path.name}"[:90])
    yield made
    left = [p.identity for p in survivors.Belongings(folder, [], made.run_id, made.mine).list_living()]
    kill(left)


def kill(identities: Sequence[survivors.Identity]) -> None:
    for identity in identities:
        survivors.send_signal(identity, signal.SIGKILL)
    wait_for(lambda: not any(map(survivors.alive, identities)), f"{identities} end")


LAST_NUMBER = Path("/proc/sys/kernel/ns_last_pid")


@contextmanager
def next_number(pid: int) -> Iterator[None]:
    """What is started in here is likely to get this pid. Raises OSError where numbers cannot be chosen.

    Behind it, numbers go on where they were: else all that the machine starts from now on would be given those that
    ended a moment ago, and another test that still knows one of them would end a stranger.
    """
    before = LAST_NUMBER.read_text()
    LAST_NUMBER.write_text(str(pid - 1))
    try:
        yield
    finally:
        LAST_NUMBER.write_text(before)


class PlainHands:
    """One daemon's hands on a script as a plain command, asked without a daemon; ``facts`` is what they told."""

    def __init__(self, folder: Path, name: str, script: str, *resume: str, **job: object) -> None:
        """``resume``: the words behind the script's name on a resume; ``job``: more of the run file's table."""
        folder.mkdir(parents=True)
        (folder / "job.py").write_text(script)
        start = [sys.executable, "-I", "-S", "job.py"]
        table = {"kind": "command", "dir": str(folder), "output_dir": "out", **job}
        self.run_file = RunFile.model_validate(
            {
                "run": {"id": name, "state_dir": str(folder / "state")},
                "job": {**table, "plain": {"start": start, "resume": [*start, *resume]}},
                "supervision": {"shim": "fork", "gpu_free": 0},
            }
        )
        self.facts: list[f.Fact] = []
        self.seen = Seen(gpu_free=True)
        self.effects = effects_of(
            self.run_file,
            self.facts,
            lambda: PlainJob(self.run_file, dict(os.environ)),
            environ=os.environ,
            seen=self.seen,
        )
