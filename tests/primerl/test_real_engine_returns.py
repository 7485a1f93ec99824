"""Opt-in: does prime-rl's own orchestrator go on with an inference server that was restarted under it?

PRIME_RL_GIT=~/prime-rl PRIME_RL_PYTHON=~/venv/bin/python pytest -n 0 -m optin tests/primerl/test_real_engine_returns.py

PRIME_RL_GIT is a clone of PrimeIntellect-ai/prime-rl; PRIME_RL_PYTHON an interpreter with httpx, tenacity and loguru
(default: this one). The clients, the watcher of weights and the main loop are the real ones of each commit
(``returning_engine.py``), the server is a fake that is killed and started again, and what is handed over is what we
hand over. Two minutes: an update gives up after 65 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from supervisor.primerl.job import PrimeRlJob
from tests.primerl.eras import ERAS
from tests.primerl.test_own_engine import own

CLONE = os.environ.get("PRIME_RL_GIT", "")
PYTHON = os.environ.get("PRIME_RL_PYTHON", sys.executable)
pytestmark = [
    pytest.mark.optin,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not CLONE, reason="PRIME_RL_GIT names no clone of PrimeIntellect-ai/prime-rl"),
]
PROGRAM = Path(__file__).with_name("returning_engine.py")
SOON_S, LATE_S = 5.0, 75.0  # before and after the last of the ten tries, 65 s after the first
COMMITS = ("be0e3d131", "f6563ff0e", "38494ccb4", "d334ea529", "60bc29547", "15d6c8197", "29e422276", "559b44772")


@dataclass
class Program:
    """``returning_engine.py`` and what it printed."""

    words: Sequence[str]
    said: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [PYTHON, str(PROGRAM), *self.words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Iterable[str]) -> None:
        for line in stream:  # prime-rl's own log is among them
            if line.startswith("{"):
                self.said.append(json.loads(line))
            else:
                self.errors.append(line)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Run:
    """One orchestrator and the server that it asks, both at step 7."""

    job: PrimeRlJob
    root: Path
    at: int = 7
    engine: Program | None = None
    orchestrator: Program | None = None

    def begin(self) -> None:
        self.publish(self.at)
        update = self.job.weight_update()
        assert update is not None
        self.url, self.port = update.url, str(urlsplit(update.url).port)
        self.start_engine()
        self.hand_over()
        words = ("orchestrator", str(self.root), str(self.job.layout.orchestrator_dir), self.port, str(self.at))
        self.orchestrator = one = Program(words)
        wait_for(lambda: one.said, "the orchestrator", one)
        assert all(name.startswith(str(self.root)) for name in one.said[0]["ready"])

    def publish(self, step: int) -> None:
        folder = self.job.layout.orchestrator_dir / "broadcasts" / f"step_{step}"
        folder.mkdir(parents=True)
        (folder / "STABLE").touch()

    def start_engine(self) -> None:
        self.engine = Program(("engine", self.port))
        wait_for(lambda: answers(self.url), "the server", self.engine)

    def kill_engine(self) -> None:
        assert self.engine is not None
        self.engine.end()

    def told(self, what: dict[str, object]) -> bool:
        return self.orchestrator is not None and what in self.orchestrator.said

    def hand_over(self) -> None:
        """What ``effects/own_engine.py`` does once the server is up."""
        update = self.job.weight_update()
        assert update is not None
        for path, body in update.calls:
            post(update.url + path, body)

    def answer(self) -> str:
        """The weights that a request is answered with."""
        return str(post(f"{self.url}/v1/completions", {})["weights"])

    def gets(self, step: int) -> bool:
        """Does the orchestrator hand over ``step``?"""
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: self.told({"updated": step}), f"the update to step {step}", limit_s=25)
            return self.answer() == f"step_{step}"
        return False

    def ended(self) -> bool:
        return self.orchestrator is not None and self.orchestrator.process.poll() is not None

    def close(self) -> None:
        for one in (self.orchestrator, self.engine):
            if one is not None:
                one.end()


def post(url: str, body: object) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return dict(json.load(answer))


def answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(urllib.request.urlopen(f"{url}/health", timeout=5).status == 200)
    return False


def wait_for(found: Callable[[], object], what: str, program: Program | None = None, limit_s: float = 60) -> None:
    until = time.monotonic() + limit_s
    while not found():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come: {''.join(program.errors[-20:]) if program else ''}")
        time.sleep(0.05)


# ---------------------------------------------------------------- the three trials


def nothing_due(run: Run) -> dict[str, object]:
    """No weights fall due while the server is away; it is away for long."""
    run.kill_engine()
    time.sleep(LATE_S)
    run.start_engine()
    time.sleep(3)  # three looks of the watcher's
    without_us = run.answer()
    run.hand_over()
    given = run.answer()
    run.publish(8)
    return {"without us": without_us, "given": given, "next": run.gets(8), "ended": run.ended()}


def _due(run: Run, away_s: float) -> dict[str, object]:
    run.kill_engine()
    run.publish(8)
    time.sleep(away_s)
    run.start_engine()
    run.hand_over()
    given = run.answer()
    ended = run.ended()
    run.publish(9)
    return {"given": given, "ended": ended, "next": not ended and run.gets(9)}


def due_and_soon_back(run: Run) -> dict[str, object]:
    """Weights fall due while it is away, and it is back before the last try."""
    return _due(run, SOON_S)


def due_and_late_back(run: Run) -> dict[str, object]:
    """Weights fall due while it is away, and it comes back after the last try."""
    return _due(run, LATE_S)


TRIALS = (nothing_due, due_and_soon_back, due_and_late_back)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], dict[str, object]]]:
    """All trials of all commits, side by side."""

    def carry_out(commit: str, trial: Callable[[Run], dict[str, object]]) -> dict[str, object]:
        folder = tmp_path_factory.mktemp(f"{commit}-{trial.__name__}")
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1] - (100 if ERAS[commit].dialect.router else 0)
        run = Run(own(folder, commit, engine=f"[server]\nport = {port}\n"), roots[commit])
        try:
            run.begin()
            return trial(run)
        finally:
            run.close()

    roots = {commit: unpack(commit, tmp_path_factory.mktemp(commit)) for commit in COMMITS}
    with ThreadPoolExecutor(len(COMMITS) * len(TRIALS)) as pool:
        begun = {
            (commit, trial.__name__): pool.submit(carry_out, commit, trial) for commit in COMMITS for trial in TRIALS
        }
        yield {key: one.result() for key, one in begun.items()}


def unpack(commit: str, folder: Path) -> Path:
    there = subprocess.check_output(["git", "-C", CLONE, "ls-tree", "--name-only", commit], text=True).split()
    wanted = [name for name in ("src", "packages") if name in there]
    packed = subprocess.check_output(["git", "-C", CLONE, "archive", commit, *wanted])
    subprocess.run(["tar", "x", "-C", str(folder)], input=packed, check=True)
    return folder


@pytest.mark.parametrize("commit", COMMITS)
def test_the_table_says_what_became_of_the_real_orchestrator(
    commit: str, outcomes: dict[tuple[str, str], dict[str, object]], tmp_path: Path
) -> None:
    quiet, soon, late = (outcomes[commit, trial.__name__] for trial in TRIALS)
    print(f"\n{commit} quiet {quiet}, soon {soon}, late {late}")  # shown with -s
    assert quiet == {"without us": "base", "given": "step_7", "next": True, "ended": False}
    assert (soon["given"], late["given"]) == ("step_8", "step_8")
    assert late["ended"] is ERAS[commit].dialect.notices_parts
    goes_on = soon["next"] is True and (late["next"] or late["ended"]) is True
    assert own(tmp_path, commit).engine_role().restart_alone is goes_on
    assert goes_on or soon["next"] is (commit != "be0e3d131"), "January tries once"
