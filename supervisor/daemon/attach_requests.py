"""Jobs that a person started: which attempt they are watched under, and what is answered who asks for it.

They are only observed: we never stop what we did not start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from supervisor.api.protocol import Reply
from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core.state import State
from supervisor.daemon import find_job
from supervisor.effects import kept_logs
from supervisor.process import attached
from supervisor.process.attached import look_at_component
from supervisor.process.attempts import attempt_dir, last_attempt, take_snapshot
from supervisor.process.survivors import Identity, alive
from supervisor.views import status


class House(Protocol):
    """What attaching needs of the daemon."""

    run_file: RunFile
    state: State
    effects: Any
    observed: str

    def post(self, fact: f.Fact, source: str = "") -> None:
        """Hand a fact to the core."""

    def chore(self, work: Callable[[], None]) -> None:
        """Have the loop do ``work``, after the facts that were told before."""

    def attend(self, attempt: int, *, adopting: bool) -> None:
        """Look at this attempt's processes and logs."""


class Attaching:
    """What is known and asked of a person's own job."""

    def __init__(self, house: House) -> None:
        self._house = house

    def watches(self) -> bool:
        """Is the present attempt one that was attached, and does anything of it live? We never stop that."""
        folder = self._folder(self._house.state.attempt.number)
        if not attached.read_records(folder):
            return False
        left = any(alive((p.pid, p.start_ticks)) for p in self._house.state.job.processes.values())
        return left or bool(attached.find_living(folder))

    def claim(self, process: Identity) -> int:
        """The attempt under which ``process`` is watched: a new one, unless the present one is this very process.

        Raises SupervisorError when the process has ended, or another job of the run lives.
        """
        state, job = self._house.state, self._house.effects.job
        run, folder = self._house.run_file, self._folder(state.attempt.number)
        living = attached.find_living(folder)
        if living is not None and living.process == process:
            return state.attempt.number
        for component in attached.component_names(folder):
            found = look_at_component(folder, component)
            if found.state == "running":
                raise ConfigError(
                    f"Attempt {state.attempt.number} of run {run.run.id} is alive (pid {found.pid}): a run has one job "
                    "at a time. End that one first."
                )
        if job is None:
            raise ConfigError("The trainer cannot be opened, so its job cannot be watched: see rl-supervisor check.")
        number = max(state.attempt.number, last_attempt(run.state_dir)) + 1
        folder = self._folder(number)
        take_snapshot(folder, job.config_files(), None)
        kept_logs.begin(folder, job.log_sources(folder))
        name = find_job.component(job, folder)
        attached.write_record(folder, name, process, find_job.title(process[0]), find_job.output_file(process[0]))
        return number

    def ask(self, words: list[str]) -> Reply:
        """Answer who asks to watch the process ``PID:START_TICKS``; from any thread."""
        state, run = self._house.state, self._house.run_file.run.id
        if not self._house.observed:
            return Reply(
                False,
                f"The daemon of run {run} starts and stops its job itself, and we never stop what we did not start: "
                'set [recovery] mode = "observe" in the run file, start the daemon anew, then attach.',
            )
        pid, _, ticks = words[0].partition(":") if words else ("", "", "")
        process = (int(pid or 0), int(ticks or 0))
        if not alive(process):
            return Reply(False, f"There is no living process {pid}: nothing to attach to.")
        living = attached.find_living(self._folder(state.attempt.number))
        if living is not None and living.process == process:
            return Reply(True, f"Process {pid} is watched already, as attempt {state.attempt.number}.")
        if state.live and state.job.ended is None and state.attempt.pid is not None:
            return Reply(
                False, f"Run {run} has a living job already (pid {state.attempt.pid}), and a run has one at a time."
            )
        if state.mode in ("leaving", "finished", "finishing"):
            return Reply(False, f"The daemon of run {run} is about to end: {status.headline(state)}")
        self._house.chore(lambda: self._attach(process))
        return Reply(True, f"Process {pid} is watched from now on, and never touched. See: supervisorctl status")

    def _attach(self, process: Identity) -> None:
        """Watch a job that a person started; in the loop, since only the loop's state is the present one."""
        try:
            number = self.claim(process)
        except SupervisorError as error:
            self._house.post(f.Remark("attach-failed", str(error), "warning"), "daemon")
            return
        self._house.post(f.AttemptAdopted(number, None, process[0]), "daemon")
        self._house.chore(lambda: self._house.attend(number, adopting=True))

    def _folder(self, attempt: int) -> Path:
        return attempt_dir(self._house.run_file.state_dir, attempt)
