"""Jobs that a person started: which attempt they are watched under, and what is answered who asks for it.

They are only observed: we never stop what we did not start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from supervisor.api.protocol import Reply
from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.core import facts as f
from supervisor.daemon.inbox import Loop
from supervisor.daemon.person_process import command_words, first_component, output_file, shown_command
from supervisor.effects import kept_logs
from supervisor.effects.run_context import RunContext
from supervisor.process import attached
from supervisor.process.attached import look_at_component
from supervisor.process.attempts import attempt_dir, last_attempt, take_snapshot
from supervisor.process.survivors import Identity, alive
from supervisor.views import status


class AttachRequests:
    """What is known and asked of a person's own job."""

    def __init__(self, loop: Loop, run: RunContext, attend: Callable[[int], None]) -> None:
        """``attend`` looks at the processes and logs of an attempt that lives already."""
        self._loop, self._run, self._attend = loop, run, attend

    def watches(self) -> bool:
        """Is the present attempt one that was attached, and does anything of it live? We never stop that."""
        folder = self._folder_of_attempt(self._loop.state.attempt.number)
        if not attached.read_records(folder):
            return False
        left = any(alive((p.pid, p.start_ticks)) for p in self._loop.state.job.processes_here())
        return left or bool(attached.find_living(folder))

    def claim(self, process: Identity) -> int:
        """The attempt under which ``process`` is watched: a new one, unless the present one is this very process.

        Raises SupervisorError when the process has ended, or another job of the run lives.
        """
        state, job = self._loop.state, self._run.job
        run, folder = self._run.run_file, self._folder_of_attempt(state.attempt.number)
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
        folder = self._folder_of_attempt(number)
        take_snapshot(folder, job.config_files(), None)
        kept_logs.begin(folder, job.log_sources(folder))
        name = first_component(job, folder)
        title = shown_command(command_words(process[0]))
        attached.write_record(folder, name, process, title, output_file(process[0]))
        return number

    def ask(self, words: list[str]) -> Reply:
        """Answer who asks to watch the process ``PID:START_TICKS``; from any thread."""
        state, run = self._loop.state, self._run.run_file.run.id
        if not self._run.observed:
            return Reply(
                False,
                f"The daemon of run {run} starts and stops its job itself, and we never stop what we did not start: "
                'set [recovery] mode = "observe" in the run file, start the daemon anew, then attach.',
            )
        pid, _, ticks = words[0].partition(":") if words else ("", "", "")
        process = (int(pid or 0), int(ticks or 0))
        if not alive(process):
            return Reply(False, f"There is no living process {pid}: nothing to attach to.")
        living = attached.find_living(self._folder_of_attempt(state.attempt.number))
        if living is not None and living.process == process:
            return Reply(True, f"Process {pid} is watched already, as attempt {state.attempt.number}.")
        if state.live and state.job.ended is None and state.attempt.pid is not None:
            return Reply(
                False, f"Run {run} has a living job already (pid {state.attempt.pid}), and a run has one at a time."
            )
        if state.mode in ("leaving", "finished", "finishing"):
            return Reply(False, f"The daemon of run {run} is about to end: {status.headline(state)}")
        self._loop.chore(lambda: self._watch_process(process))
        return Reply(True, f"Process {pid} is watched from now on, and never touched. See: supervisorctl status")

    def _watch_process(self, process: Identity) -> None:
        """Watch a job that a person started; in the loop, since only the loop's state is the present one."""
        try:
            number = self.claim(process)
        except SupervisorError as error:
            self._loop.post(f.Remark("attach-failed", str(error), "warning"), "daemon")
            return
        self._loop.post(f.AttemptAdopted(number, None, process[0]), "daemon")
        self._loop.chore(lambda: self._attend(number))

    def _folder_of_attempt(self, attempt: int) -> Path:
        return attempt_dir(self._run.run_file.state_dir, attempt)
