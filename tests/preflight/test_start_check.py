"""The child that looks before a start: what of its answer stops the start, and that nothing else of it can."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import ConfigError
from supervisor.config.settings import RunFile
from supervisor.core.facts import Remark
from supervisor.core.state import Failure, State
from supervisor.daemon import start_check
from supervisor.daemon.start_check import StartCheck
from supervisor.jobs.base import Job
from supervisor.primerl import open_job
from supervisor.process import own_child
from supervisor.process.attempts import attempt_dir, take_snapshot
from tests.hands import context

ERROR = {
    "id": "batch-of-whole-groups",
    "severity": "error",
    "file": "/a/rl.toml",
    "line": 7,
    "key": "orchestrator.batch_size",
    "sentence": "batch_size = 7 is no multiple of group_size = 2.",
    "why": "It ends at once.",
    "remedy": "Set it to 6 or 8.",
    "source": "prime-rl",
    "fixable": False,
    "overruled": False,
}
WARNING = {**ERROR, "id": "no-gpu", "severity": "warning", "file": None, "line": None, "sentence": "No GPU."}


class Start:
    """One daemon's first start, with a child that answers what a test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.config = folder / "rl.toml"
        self.config.write_text("batch_size = 7\n")
        job: dict[str, Any] = {"kind": "command", "dir": str(folder), "config": "rl.toml"}
        job["plain"] = {"start": ["true"], "resume": ["true", "{step}"]}
        self.run_file = RunFile.model_validate({"run": {"id": "x", "state_dir": str(folder / "state")}, "job": job})
        self.job: Job = open_job(self.run_file, {})
        self.said: list[Remark] = []
        self.state = State()
        self.unwanted = threading.Event()
        self.program = folder / "python"
        monkeypatch.setattr(sys, "executable", str(self.program))
        self.child("exit 3")

    def child(self, script: str) -> None:
        self.program.write_text(f'#!/bin/sh\necho "$@" > {self.folder}/words\ncat > {self.folder}/asked\n{script}\n')
        self.program.chmod(0o755)

    def finds(self, *findings: dict[str, Any], **more: bool) -> None:
        (self.folder / "answer").write_text(json.dumps({"findings": findings, **more}))
        self.child(f"cat {self.folder}/answer")

    def check(self, overrule: Sequence[str] = ()) -> StartCheck:
        run = context(self.run_file, self.said, environ={"PATH": "/usr/bin:/bin"})  # type: ignore[arg-type]
        return StartCheck(run, self.folder / "run.toml", lambda: self.state, overrule)

    def begin(self, step: int | None = None, snapshot: int | None = None, **options: Any) -> None:
        self.check(**options).before_start(self.job, step, snapshot, self.unwanted)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(one.level, one.sentence) for one in self.said]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


def test_an_error_stops_the_first_start_and_says_its_id_its_place_and_how_to_overrule_it(start: Start) -> None:
    start.finds(ERROR, WARNING)
    with pytest.raises(ConfigError) as stopped:
        start.begin()
    assert str(stopped.value) == (
        "rl-supervisor check finds 1 error. [batch-of-whole-groups] /a/rl.toml line 7: batch_size = 7 is no multiple "
        "of group_size = 2. Set it to 6 or 8. To start anyway: --overrule batch-of-whole-groups, or [check] "
        f'overrule = ["batch-of-whole-groups"] in {start.folder}/run.toml.'
    )


def test_where_overruling_does_not_help_it_is_not_offered(start: Start) -> None:
    start.finds({**ERROR, "id": "slurm", "sentence": "[slurm] is there."}, yields=False)
    with pytest.raises(ConfigError) as stopped:
        start.begin()
    assert str(stopped.value).endswith("[slurm] is there. Set it to 6 or 8.")


def test_of_several_errors_each_has_a_line_of_its_own_and_the_last_names_them(start: Start) -> None:
    start.finds(ERROR, {**ERROR, "line": 8}, {**ERROR, "id": "slurm", "sentence": "[slurm] is there."}, WARNING)
    with pytest.raises(ConfigError) as stopped:
        start.begin()
    assert [sentence.partition(": ")[0] for _, sentence in start.told] == [
        "[batch-of-whole-groups] /a/rl.toml line 7",
        "[batch-of-whole-groups] /a/rl.toml line 8",
        "[slurm] /a/rl.toml line 7",
    ]
    assert str(stopped.value) == (
        "rl-supervisor check finds 3 errors: batch-of-whole-groups, slurm. Each is said above, and by rl-supervisor "
        f"check {start.folder}/run.toml. To start anyway: --overrule batch-of-whole-groups --overrule slurm, or "
        f'[check] overrule = ["batch-of-whole-groups", "slurm"] in {start.folder}/run.toml.'
    )


def test_warnings_and_overruled_errors_are_said_once_and_stop_nothing(start: Start) -> None:
    start.finds({**ERROR, "overruled": True}, WARNING, {**WARNING, "severity": "note"})
    check = start.check(["batch-of-whole-groups"])
    for _ in range(3):
        check.before_start(start.job, None, None, start.unwanted)
    assert [level for level, _ in start.told] == ["warning", "warning"]
    assert start.told[0][1].endswith("Set it to 6 or 8. It is overruled.")
    assert start.told[1][1] == "[no-gpu] No GPU. Set it to 6 or 8."
    words = (start.folder / "words").read_text().split()
    assert words[-3:] == ["start-check", str(start.folder / "run.toml"), "batch-of-whole-groups"]
    assert json.loads((start.folder / "asked").read_text())["run"]["id"] == "x"


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("exit 3", "failed (exit code 3)"),
        ("echo Traceback >&2; echo 'ValueError: of a defect.' >&2; exit 1", "failed (ValueError: of a defect)"),
        ("echo '[1, 2]'", "failed (exit code 0)"),
        ("echo '{\"findings\": 3'", "failed (exit code 0)"),
        ('echo \'{"findings": [{"id": "of-a-later-version"}]}\'', "failed (exit code 0)"),
        ("exec sleep 60", "took longer than 0 s"),
    ],
)
def test_a_check_that_fails_or_hangs_is_told_and_the_run_starts(
    start: Start, monkeypatch: pytest.MonkeyPatch, script: str, how: str
) -> None:
    monkeypatch.setattr(start_check, "LIMIT_S", 0.4 if "sleep" in script else 20.0)
    start.child(script)
    began = time.monotonic()
    start.begin()
    assert time.monotonic() - began < 15
    [(level, sentence)] = start.told
    assert level == "warning"
    assert sentence.startswith(f"The check before the start {how}, so the run starts without it.")


def test_a_program_that_is_not_there_costs_no_run(start: Start) -> None:
    start.program.unlink()
    start.begin()
    assert "could not be begun (No such file or directory)" in start.told[0][1]


def test_a_child_that_the_kernel_holds_is_not_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a dead network volume: SIGKILL does nothing until the volume answers."""
    monkeypatch.setattr(start_check, "LIMIT_S", 0.2)
    monkeypatch.setattr(own_child, "REAP_S", 0.2)
    monkeypatch.setattr(os, "killpg", lambda pid, number: None)
    start.child("exec sleep 4")
    began = time.monotonic()
    start.begin()
    assert time.monotonic() - began < 3
    assert "took longer than 0 s" in start.told[0][1]


def test_a_stop_does_not_wait_for_the_check(start: Start) -> None:
    start.child("exec sleep 60")
    start.unwanted.set()
    began = time.monotonic()
    check = start.check()
    check.before_start(start.job, None, None, start.unwanted)
    assert time.monotonic() - began < 5
    assert start.told == []
    start.unwanted.clear()
    start.finds(ERROR)
    with pytest.raises(ConfigError):  # the next start is looked at
        check.before_start(start.job, None, None, start.unwanted)


def _trained_with(start: Start, text: str) -> None:
    path = start.folder / "was.toml"
    path.write_text(text)
    folder = attempt_dir(start.run_file.state_dir, 4)
    folder.mkdir(parents=True)
    copies = take_snapshot(folder, [start.config], None)
    copies[start.config].write_text(text)
    start.state = replace(start.state, attempt=replace(start.state.attempt, snapshot=4, number=5))


def test_a_run_that_has_made_steps_with_this_configuration_is_never_stopped(start: Start) -> None:
    start.finds(ERROR)
    _trained_with(start, start.config.read_text())
    start.begin(step=20)
    assert start.told[0][1].endswith("starts anyway: the run has made steps with this very configuration.")


def test_a_configuration_that_was_changed_since_is_stopped(start: Start) -> None:
    start.finds(ERROR)
    _trained_with(start, "batch_size = 8\n")
    with pytest.raises(ConfigError):
        start.begin(step=20)
    start.begin(step=20, snapshot=4)  # but not where the one from before is what it goes on with
    assert start.told[0][1].endswith("it goes on with the configuration that last made steps.")


def test_a_restart_after_a_failure_is_never_stopped(start: Start) -> None:
    start.finds(ERROR)
    start.state = replace(start.state, recovery=replace(start.state.recovery, failures=(Failure("oom", None, None),)))
    start.begin()
    assert start.told[0][1].endswith("this is a restart of the supervisor's own.")


def test_a_run_that_resumes_on_a_new_pod_is_never_stopped(start: Start) -> None:
    start.finds(ERROR)
    start.begin(step=40)
    assert "the run resumes from a checkpoint" in start.told[0][1]


def test_where_a_run_is_only_observed_it_is_only_said(start: Start) -> None:
    start.finds(ERROR)
    check = start.check()
    check.say()
    check.say()
    [(_, sentence)] = start.told
    assert sentence.endswith("It would stop a start of this run, which is only observed.")
