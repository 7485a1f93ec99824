"""Attaching: which living process is the run's job, its record; and that an observed run is not touched."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.config.settings import RunFile
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core import observe_only
from supervisor.daemon import find_job, person_process
from supervisor.effects.carry_out import Effects
from supervisor.jobs.plain import PlainJob
from supervisor.process import attached, survivors
from supervisor.process.attempts import attempt_dir
from tests.hands import effects_of

from .conftest import Attempt, wait_for

Spawn = Callable[..., subprocess.Popen[bytes]]
TRAIN = "import time\nwhile True: time.sleep(0.1)\n"


@pytest.fixture
def run_file(tmp_path: Path) -> RunFile:
    """A plain command: ``python train.py --out FOLDER``, with two steps on disk."""
    (tmp_path / "train.py").write_text(TRAIN)
    for step in (1, 2):
        folder = tmp_path / "out" / "checkpoints" / f"step_{step}"
        folder.mkdir(parents=True)
        (folder / "optimizer.pt").write_bytes(b"state")
    start = [sys.executable, "train.py", "--out", "{output_dir}"]
    return RunFile.model_validate(
        {
            "run": {"id": "mine", "state_dir": str(tmp_path / "state")},
            "job": {
                "kind": "command",
                "dir": str(tmp_path),
                "output_dir": "out",
                "plain": {"start": start, "resume": [*start, "--from", "{step}"]},
            },
            "supervision": {"shim": "fork", "gpu_free": 0},
        }
    )


@pytest.fixture
def job(run_file: RunFile) -> PlainJob:
    return PlainJob(run_file, {})


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    made: list[subprocess.Popen[bytes]] = []

    def go(*words: str, **more: Any) -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(words, cwd=tmp_path, start_new_session=True, **more))
        return made[-1]

    yield go
    for process in made:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def trains(tmp_path: Path, *more: str) -> list[str]:
    return [sys.executable, "train.py", "--out", str(tmp_path / "out"), *more]


# ---------------------------------------------------------------- which process


def test_the_one_process_that_runs_the_command_is_found_whatever_its_step(
    run_file: RunFile, job: PlainJob, spawn: Spawn, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"No living job of run mine was found .* Start it, or name its process"):
        find_job.find(run_file, job)
    process = spawn(*trains(tmp_path, "--from", "2"))
    found = wait_for(lambda: find_job.candidates(run_file, job), "it is seen")
    assert [one.process[0] for one in found] == [process.pid]
    assert find_job.find(run_file, job) == found[0]
    assert found[0].why == "it runs the command of [job.plain]"


def test_several_that_could_be_meant_are_listed_and_one_has_to_be_named(
    run_file: RunFile, job: PlainJob, spawn: Spawn, tmp_path: Path
) -> None:
    first, second = spawn(*trains(tmp_path)), spawn(*trains(tmp_path))
    wait_for(lambda: len(find_job.candidates(run_file, job)) == 2, "both are seen")
    with pytest.raises(ConfigError) as told:
        find_job.find(run_file, job)
    text = str(told.value)
    assert text.startswith("2 processes could be the job of run mine; name one with --pid:\n")
    assert f"\n  {first.pid}: " in text
    assert f"\n  {second.pid}: " in text
    assert find_job.find(run_file, job, second.pid).process[0] == second.pid


def test_the_same_command_of_another_run_is_not_this_runs_job(
    run_file: RunFile, job: PlainJob, spawn: Spawn, tmp_path: Path
) -> None:
    other = [*trains(tmp_path)[:-1], str(tmp_path / "other")]
    foreign = spawn(*other)
    mine = spawn(sys.executable, "train.py", "--out", "out")
    (found,) = wait_for(lambda: find_job.candidates(run_file, job), "the run's own is seen")
    assert found.process[0] == mine.pid != foreign.pid


def test_the_shell_that_runs_the_command_may_be_named_and_a_foreign_process_may_not(
    run_file: RunFile, job: PlainJob, spawn: Spawn, tmp_path: Path
) -> None:
    words = " ".join(trains(tmp_path))
    shell = spawn("/bin/sh", "-c", f"{words}; true")
    (found,) = wait_for(lambda: find_job.candidates(run_file, job), "its child is seen")
    assert found.process[0] != shell.pid
    named = find_job.find(run_file, job, shell.pid)
    assert named.process[0] == shell.pid
    assert f"process {found.process[0]} below it is: it runs the command" in named.why

    foreign = subprocess.Popen(["sleep", "60"], cwd="/")
    try:
        words = Path(f"/proc/{foreign.pid}/cmdline")
        wait_for(lambda: words.read_bytes() == b"sleep\x0060\x00", "its words are there")
        with pytest.raises(ConfigError) as told:
            find_job.find(run_file, job, foreign.pid)
    finally:
        foreign.kill()
        foreign.wait()
    assert f"Process {foreign.pid} (sleep 60) is not of run mine" in str(told.value)
    assert f"These could be meant:\n  {found.process[0]}: " in str(told.value)
    with pytest.raises(ConfigError, match=f"There is no process {foreign.pid}"):
        find_job.find(run_file, job, foreign.pid)
    with pytest.raises(ConfigError, match="is not a job but what this command runs in"):
        find_job.find(run_file, job, os.getpid())


def test_a_job_of_ours_is_no_job_to_attach_to(run_file: RunFile, job: PlainJob, attempt: Attempt) -> None:
    launched = attempt.start("while True: time.sleep(0.1)")
    with pytest.raises(ConfigError, match="was started by rl-supervisor, and is no job to attach to"):
        find_job.find(run_file, job, launched.child_pid)


def test_a_secret_on_the_command_line_is_not_shown(
    run_file: RunFile, job: PlainJob, spawn: Spawn, tmp_path: Path
) -> None:
    spawn(*trains(tmp_path, "--api-key=hunter2"))
    (found,) = wait_for(lambda: find_job.candidates(run_file, job), "it is seen")
    assert "hunter2" not in found.describe()
    assert "--api-key=***" in found.title


# ---------------------------------------------------------------- the record


def test_an_attached_process_is_running_until_it_is_gone_and_then_lost(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn("sleep", "60")
    known = survivors.look_at(process.pid)
    assert known is not None
    folder = tmp_path / "attempts" / "0001"
    attached.write_record(folder, "rl", known.identity, "rl @ x.toml")
    assert attached.component_names(folder) == ["rl"]
    seen = attached.look_at_component(folder, "rl")
    assert (seen.state, seen.pid, seen.how) == ("running", process.pid, "attached")
    assert seen.started_wall == pytest.approx(time.time(), abs=5)
    process.kill()
    process.wait()
    gone = attached.look_at_component(folder, "rl")
    assert (gone.state, gone.pid, gone.exit_code) == ("lost", None, None)
    assert "was started by a person: that it is gone is all that can be known" in gone.reason
    with pytest.raises(SupervisorError, match=f"Process {process.pid} has ended"):
        attached.write_record(folder, "rl", known.identity, "")


@pytest.mark.parametrize("change", [{"boot_id": "another boot"}, {"start_ticks": 1}])
def test_another_boot_or_another_process_of_that_number_is_never_taken_for_it(
    change: dict[str, object], spawn: Spawn, tmp_path: Path
) -> None:
    process = spawn("sleep", "60")
    known = survivors.look_at(process.pid)
    assert known is not None
    attached.write_record(tmp_path, "rl", known.identity, "")
    record = tmp_path / "rl.attached.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), **change}))
    assert attached.look_at_component(tmp_path, "rl").state == "lost"
    assert attached.find_living(tmp_path) is None
    record.write_text("{")
    assert attached.component_names(tmp_path) == []


def test_a_plain_file_that_takes_the_output_stands_where_a_shim_would_have_captured_it(
    spawn: Spawn, tmp_path: Path
) -> None:
    with (tmp_path / "mine.log").open("wb") as output:
        process = spawn("/bin/sh", "-c", "echo step 1; sleep 60", stdout=output)
    file = person_process.output_file(process.pid)
    assert file == tmp_path / "mine.log"
    known = survivors.look_at(process.pid)
    assert known is not None
    attached.write_record(tmp_path / "a", "job", known.identity, "", file)
    wait_for(lambda: (tmp_path / "a" / "job.log").read_text() == "step 1\n", "its lines are read there")
    assert person_process.output_file(spawn("sleep", "60", stdout=subprocess.PIPE).pid) is None


# ---------------------------------------------------------------- the net under the core


def test_only_looking_publishing_and_telling_is_allowed_where_a_run_is_observed() -> None:
    allowed = {kind.__name__ for kind in observe_only.ALLOWED}
    of_publishing = {"Claim", "Sweep", "Publish", "KeepRecords", "Pin", "KeepHolds", "Release", "MarkLeaving", "Hurry"}
    assert allowed == {"Survey", "CollectEvidence", "Say", "Exit"} | of_publishing
    held = {kind.__name__ for kind in a.Action.__subclasses__()} - allowed
    assert held >= {"Start", "Stop", "StartEngine", "StopEngine", "PruneLocal", "PruneStale", "PruneStore", "Restore"}
    assert held >= {"RunHook", "Setup"}


def made(kind: type[a.Action]) -> a.Action:
    values = {"int": 7, "int | None": 7, "str": "finish", "float": 5.0, "tuple[Happened, ...]": ()}
    asked = [field for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    asked = [field for field in asked if field.default_factory is dataclasses.MISSING]
    return kind(**{field.name: values[str(field.type)] for field in asked})


def hands(run_file: RunFile, job: PlainJob, told: list[f.Fact], observed: str) -> Effects:
    effects = effects_of(run_file, told, lambda: job)
    effects.run.job, effects.run.observed = job, observed
    return effects


@pytest.mark.soak
def test_whatever_the_core_asks_no_process_is_signalled_and_no_file_touched(
    run_file: RunFile, job: PlainJob, tmp_path: Path
) -> None:
    folder = attempt_dir(run_file.state_dir, 7)
    folder.mkdir(parents=True)
    running = Attempt(folder, "mine")
    launched = running.start("signal.signal(signal.SIGTERM, lambda *_: tell('signalled'))\nwhile True: time.sleep(0.1)")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    marker = tmp_path / "hook-ran"
    run_file = run_file.model_copy(
        update={
            "hooks": run_file.hooks.model_copy(update={"finish": f"touch {marker}"}),
            "setup": run_file.setup.model_copy(update={"commands": [f"touch {marker}"]}),
        }
    )
    told: list[f.Fact] = []
    effects = hands(run_file, job, told, "this run is only observed.")
    try:
        asked = [made(kind) for kind in a.Action.__subclasses__() if kind not in observe_only.ALLOWED]
        for action in asked:
            effects.do(action)
        effects.hurry()
        effects.close()
        assert [(fact.action, fact.why) for fact in told if isinstance(fact, f.Suppressed)] == [
            (type(action).__name__, "this run is only observed.") for action in asked
        ]
        assert f.Suppressed("Stop", 7, "this run is only observed.") in told
        assert f.Suppressed("RunHook", None, "this run is only observed.") in told
        assert len(told) == len(asked), "nothing else was done"
        assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
        assert not marker.exists()
        assert running.look().state == "running"
        assert not (folder / "signalled").exists()

        # The same hands, where they may act: so it is the mode that held them back.
        acting = hands(run_file, job, told, "")
        acting.do(a.Stop(7, "for the test", 5.0))
        wait_for(lambda: any(isinstance(fact, f.AttemptStopped) for fact in told), "the same stop, carried out")
        acting.close()
        assert not survivors.alive((launched.child_pid, launched.child_start_ticks))
    finally:
        for process in survivors.Belongings(folder, [], "mine", running.mine).list_living():
            survivors.send_signal(process.identity, signal.SIGKILL)
