"""What a fresh pod still needs, side by side: ``setup.commands``, each of ``setup.beside``, and a step fetched ahead.

Each has a time limit, a log and a line in `status` of its own. A step's place is decided by the trainer that the
commands install, so it is fetched beside the job's folders and moved there once they are done.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from supervisor.base.errors import SupervisorError, TryAgainError
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.effects import move_aside
from supervisor.effects.run_context import RunContext
from supervisor.jobs.base import Job
from supervisor.jobs.environment import environment_of_commands
from supervisor.process.survivors import alive, look_at

COMMANDS = "commands"
EARLY = ".rl-supervisor-early-"


class PodSetup:
    """Runs ``[setup]``. ``SetupDone`` comes when all parts have ended, or the commands have failed."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._left: set[str] = set()
        self._reason = ""
        self.installs = False
        """True until ``setup.commands`` have ended: half of an install would be misread."""

    def begin(self) -> list[Callable[[], None]]:
        """What is to run side by side, each on a lane of its own; the first is ``setup.commands``."""
        setup = self._run.run_file.setup
        self.installs = True
        self._left = {COMMANDS, *setup.beside}
        self._reason = ""
        beside = [
            lambda name=name, number=number: self._run_beside(name, number)
            for number, name in enumerate(dict.fromkeys(setup.beside), 1)
        ]
        return [self._run_commands, *beside]

    def _run_commands(self) -> None:
        self._run.post(f.SetupPart(COMMANDS))
        reason = self._run_in_order(self._run.run_file.setup.commands, "setup")
        self.installs = False
        if not reason:
            try:
                self._run.need_job()
            except TryAgainError as error:
                self._run.post(f.Remark("next-pod", str(error)))  # each look at the checkpoints tries again
            except SupervisorError as error:
                reason = str(error)
        self._end_part(COMMANDS, reason)

    def _run_beside(self, command: str, number: int) -> None:
        self._run.post(f.SetupPart(command))
        reason = "a defect in the supervisor"
        try:
            reason = self._run_in_order([command], f"setup-{number}")
        finally:
            self._end_part(command, reason)

    def _run_in_order(self, commands: Sequence[str], log: str) -> str:
        env = environment_of_commands(self._run.environ)
        deadline = time.monotonic() + self._run.run_file.setup.timeout
        for command in commands:
            left_s = max(1.0, deadline - time.monotonic())
            if reason := run_shell(command, left_s, env, self._run.state_dir / f"{log}.log"):
                return reason
        return ""

    def _end_part(self, name: str, reason: str) -> None:
        self._run.post(f.SetupPart(name, ended=True, reason=reason))
        with self._lock:
            was_left = bool(self._left)
            self._left.discard(name)
            if name == COMMANDS:
                self._reason = reason
                if reason:
                    self._left.clear()
            done = was_left and not self._left
        if done:
            self._run.post(f.SetupDone(self._reason))


def end_commands(records: Iterable[Path]) -> None:
    """End what these files say was begun, if it is still that process."""
    for record in records:
        with contextlib.suppress(OSError, ValueError):
            pid, ticks = map(int, record.read_text().split())
            if alive((pid, ticks)):
                os.killpg(pid, 9)  # it leads a group of its own


def run_shell(command: str, timeout_s: float, env: Mapping[str, str], log: Path) -> str:
    """Run a person's shell command with its output in ``log``; returns why it failed, or "".

    What a daemon that was killed left running with the same log is ended first: two of one install break each other.
    """
    shell = shutil.which("bash") or "/bin/sh"
    home = env.get("HOME") or "/"
    record = log.with_suffix(".pid")
    end_commands([record])
    with log.open("ab") as output:
        child = subprocess.Popen(
            [shell, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=home if Path(home).is_dir() else "/",
            start_new_session=True,
            umask=0o022,  # all users may read what it installs, unlike what we write
        )
        if (started := look_at(child.pid)) is not None:
            record.write_text(f"{child.pid} {started.start_ticks}\n")
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)  # its own session, and it is our child: the number cannot be another's
            child.wait()
            return f"{command!r} took longer than {timeout_s:.0f} s; its output is in {log}."
    return "" if code == 0 else f"{command!r} ended with exit code {code}; its output is in {log}."


# ---------------------------------------------------------------- a step that is fetched ahead


def early_folder(run_file: RunFile, step: int) -> Path | None:
    """Where ``step`` waits for its place; None where it could not be moved there by a rename.

    Not in the job's folder, which the commands may be about to clone into. What is there of another step is deleted.
    """
    folder = move_aside.nearest_folder((run_file.job.dir or run_file.output_dir).absolute().parent)
    there = move_aside.nearest_folder(run_file.output_dir.absolute())
    ours = folder / f"{EARLY}{run_file.run.id}"
    with contextlib.suppress(OSError):
        if folder.stat().st_dev != there.stat().st_dev:
            return None
        ours.mkdir(mode=0o700, exist_ok=True)
        found = ours.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            for other in ours.iterdir():
                if other.name != str(step):
                    shutil.rmtree(other, ignore_errors=True)
            early = ours / str(step)
            early.mkdir(exist_ok=True)
            return early
    return None


def place_early(early: Path, job: Job, step: int) -> None:
    """Move what was fetched ahead to its place. The restore that follows checks every byte. Raises OSError."""
    primary = job.output_dir / job.place(step, "x").parent
    moves = [(early / f"step_{step}", primary)]
    moves += [
        (path, job.output_dir / path.relative_to(early))
        for path in early.rglob("*")
        if path.is_file() and not path.is_relative_to(early / f"step_{step}")
    ]
    for source, target in moves:
        if source.exists() and not os.path.lexists(target):
            move_aside.make_for_job(target.parent)
            source.rename(target)


def forget_early(run_file: RunFile) -> None:
    """Delete what a step that was fetched ahead left, also where a daemon was killed before it could use it."""
    for folder in (run_file.job.dir or run_file.output_dir).absolute().parents:
        shutil.rmtree(folder / f"{EARLY}{run_file.run.id}", ignore_errors=True)
