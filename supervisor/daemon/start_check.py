"""Runs the pre-flight check before a job's first start: its errors stop that start, and nothing else of it can.

The check is a child with a time limit: it looks at drivers, volumes and other people's files, and none of them may hang
or end the daemon. A check that fails or takes too long is told, and the run starts. So it does after any error where
the run has shown that it trains, or where a start is the supervisor's own: a restart, or a resume on a new pod.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.base.errors import ConfigError
from supervisor.core.facts import Remark
from supervisor.core.state import State
from supervisor.effects.run_context import RunContext
from supervisor.jobs.base import Job
from supervisor.process.ask_program import ask_ours
from supervisor.process.attempts import attempt_dir, digest, read_snapshot

LIMIT_S = 20.0
VERB = "start-check"
"""The hidden command that the child is; it reads the run's settings as JSON and prints what it found as JSON."""
_SAYS = ("id", "severity", "overruled", "file", "line", "sentence", "remedy")
"""What is read of a finding. The child may be of another version: an upgrade replaces files under a living daemon."""


class StartCheck:
    """The check before the first start of one daemon. Called on the lanes of the job and of the inference server."""

    def __init__(self, run: RunContext, path: Path, state: Callable[[], State], overrule: Sequence[str] = ()) -> None:
        """``path`` is the run file's; ``overrule``: ids of findings that do not stop a start."""
        self._run = run
        self._path = path
        self._state = state
        self._overrule = tuple(overrule)
        self._lock = threading.Lock()
        self._passed = False

    def before_start(self, job: Job, step: int | None, snapshot: int | None, unwanted: threading.Event) -> None:
        """Raises ConfigError, with the id of each error and how to overrule it, where the start must not be.

        ``step`` is the one that is resumed at. The configuration of attempt ``snapshot`` is used again; None takes the
        files as they are. ``unwanted``: set where a stop has been asked for: then no answer is needed.
        """
        with self._lock:  # the inference server of its own is started at the same moment
            if self._passed:
                return
            found, yields = self._look_at_start(unwanted)
            if unwanted.is_set():
                return  # nothing is started, and what was found was not shown
            errors = [one for one in found if one["severity"] == "error" and not one["overruled"]]
            excuse = self._excuse_for_errors(job, step, snapshot) if errors else ""
            if errors and not excuse:
                for one in errors if len(errors) > 1 else ():
                    self._run.post(Remark("check", _finding_text(one), "warning"), "check")
                raise ConfigError(_refusal_sentence(errors, self._path, yields=yields))
            self._say_findings(found, f"The run starts anyway: {excuse}.")
            self._passed = True

    def say(self) -> None:
        """Only tell what is found: the run is observed."""
        with self._lock:
            if not self._passed:
                self._say_findings(
                    self._look_at_start(threading.Event())[0],
                    "It would stop a start of this run, which is only observed.",
                )
                self._passed = True

    def _excuse_for_errors(self, job: Job, step: int | None, snapshot: int | None) -> str:
        """Why an error does not stop this start, "" where it does."""
        state = self._state()
        if snapshot is not None:
            return "it goes on with the configuration that last made steps"
        if state.attempt.snapshot is not None and self._is_same_configuration(job, state.attempt.snapshot):
            return "the run has made steps with this very configuration"
        if state.recovery.failures or state.recovery.barren:
            return "this is a restart of the supervisor's own"
        if step is not None and state.attempt.snapshot is None:
            return "the run resumes from a checkpoint, and what it was made with is not known here"
        return ""

    def _is_same_configuration(self, job: Job, attempt: int) -> bool:
        """Are the configuration files those of the attempt's snapshot?"""
        before = read_snapshot(attempt_dir(self._run.run_file.state_dir, attempt))
        try:
            return digest(before) == digest({path: path for path in job.config_files()})
        except OSError:
            return False

    def _say_findings(self, found: Sequence[Mapping[str, Any]], of_errors: str) -> None:
        for one in found:
            if one["severity"] == "error":
                then = "It is overruled." if one["overruled"] else of_errors
                self._run.post(Remark("check", f"{_finding_text(one)} {then}", "warning"), "check")
            elif one["severity"] == "warning":
                self._run.post(Remark("check", _finding_text(one), "warning"), "check")

    # ------------------------------------------------------------ the child

    def _look_at_start(self, unwanted: threading.Event) -> tuple[list[dict[str, Any]], bool]:
        """What is found, and whether a start would follow if a person overruled all errors of it."""
        settings = self._run.run_file.model_dump_json(exclude_unset=True)
        words = ["supervisor.cli.main", VERB, str(self._path), *self._overrule]
        try:
            said, complaint, code = ask_ours(words, settings, self._run.environ, LIMIT_S, unwanted)
        except OSError as error:  # no room for a temporary file, no memory for a child
            return self._without_look(f"could not be begun ({error.strerror})")
        if unwanted.is_set():
            return [], False
        if code is None:
            return self._without_look(f"took longer than {LIMIT_S:.0f} s")
        try:
            told = json.loads(said)
            return [{name: one[name] for name in _SAYS} for one in told["findings"]], bool(told.get("yields", True))
        except (ValueError, KeyError, TypeError, RecursionError):
            last = complaint.decode(errors="replace").strip().splitlines()
            return self._without_look(f"failed ({last[-1].rstrip('.') if last else f'exit code {code}'})")

    def _without_look(self, how: str) -> tuple[list[dict[str, Any]], bool]:
        told = (
            f"The check before the start {how}, so the run starts without it. By hand: rl-supervisor check {self._path}"
        )
        self._run.post(Remark("check", told, "warning"), "check")
        return [], True


def _finding_text(one: Mapping[str, Any]) -> str:
    """A finding in one or two sentences, with its id and its place."""
    place = f"{one['file']} line {one['line']}" if one["line"] else one["file"] or ""
    return f"[{one['id']}] {f'{place}: ' if place else ''}{one['sentence']} {one['remedy']}"


def _refusal_sentence(errors: Sequence[Mapping[str, Any]], path: Path, *, yields: bool) -> str:
    """One sentence for the log, the status and the notices: a lone error whole, of several their names."""
    ids = list(dict.fromkeys(one["id"] for one in errors))
    words = " ".join(f"--overrule {name}" for name in ids)
    listed = ", ".join(f'"{name}"' for name in ids)
    if len(errors) == 1:
        told = f"1 error. {_finding_text(errors[0])}"
    else:
        told = f"{len(errors)} errors: {', '.join(ids)}. Each is said above, and by rl-supervisor check {path}."
    told = f"rl-supervisor check finds {told}"
    if yields:
        told += f" To start anyway: {words}, or [check] overrule = [{listed}] in {path}."
    return told
