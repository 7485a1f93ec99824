"""The daemon goes by the configuration that runs, or that a start will run: so does `recovery.inference = "auto"`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base.errors import ConfigError, TryAgainError
from supervisor.config.run_file import load
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.state import Attempt, Orders, OwnEngine, State
from supervisor.daemon.api_backend import ApiBackend
from supervisor.daemon.loop import Before, Daemon, Options
from supervisor.effects.own_engine import engine_dir, look_at
from supervisor.jobs.base import Component, Job
from supervisor.process.attempts import attempt_dir, take_snapshot
from supervisor.process.launch import launch
from tests.primerl.eras import ERAS, write_checkout
from tests.primerl.test_own_engine import ADMIN, AUGUST, FILES, RUN

OWN, WHOLE = RUN + ADMIN + FILES, RUN + ADMIN + FILES + "[inference]\n"


class Pod:
    """A daemon that has not begun, and the files that it would find."""

    def __init__(self, folder: Path, how: str = "auto") -> None:
        self.folder, self.state_dir = folder, folder / "state"
        self.pids: list[int] = []
        write_checkout(folder / "prime-rl", ERAS[AUGUST])
        (folder / "inference.toml").touch()
        self.edit(OWN)
        (folder / "run.toml").write_text(
            f'[run]\nid = "demo"\nstate_dir = "{self.state_dir}"\n[job]\ndir = "{folder / "prime-rl"}"\n'
            f'config = "{folder / "rl.toml"}"\ninference_config = "{folder / "inference.toml"}"\n'
            f'output_dir = "{folder / "out"}"\n[gpus]\ninference = [0]\ntrainer = [1]\n[check]\nat_start = false\n'
            f'[recovery]\ninference = "{how}"\n[supervision]\nshim = "fork"\ngpu_free = 0\n'
        )
        path = folder / "run.toml"
        self.daemon = Daemon(path, load(path), os.environ, Options(), Before())

    def edit(self, config: str) -> None:
        (self.folder / "rl.toml").write_text(config)

    def snapshot(self, attempt: int, config: str) -> None:
        self.edit(config)
        folder = attempt_dir(self.state_dir, attempt)
        folder.mkdir(parents=True)
        take_snapshot(folder, [self.folder / "rl.toml", self.folder / "inference.toml"], None)

    def go(self, **parts: object) -> None:
        self.daemon.state = replace(State(self.daemon.state.settings), mode="surveying", **parts)  # type: ignore[arg-type]

    def live(self, folder: Path, name: str) -> int:
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-c", "import time; time.sleep(60)"]
        self.pids.append(
            launch(Component(name, words, self.folder, dict(os.environ)), folder, "fork", "demo").child_pid
        )
        return self.pids[-1]

    def opened(self) -> tuple[str, str]:
        job = self.daemon._open_job()
        assert list(job.problems()) == []
        return job.run.recovery.inference, job.chosen

    def told(self) -> list[f.Fact]:
        found = []
        while not self.daemon._inbox.empty():
            found.append(self.daemon._inbox.get_nowait()[0])
        return [fact for fact in found if isinstance(fact, f.Fact)]


@pytest.fixture
def pod_of(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    pods: list[Pod] = []

    def make(name: str, how: str = "auto") -> Pod:
        pods.append(Pod(tmp_path / name, how))
        return pods[-1]

    yield make
    for pod in pods:
        pod.daemon.effects.close()
        for pid in pod.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def test_the_snapshot_that_a_start_runs_is_judged_and_not_the_files_beside_it(pod_of: Callable[[str], Pod]) -> None:
    for now, then, new_config, wanted in (
        (OWN, WHOLE, False, "with-job"),  # else two servers: the snapshot's [inference], and ours
        (WHOLE, OWN, False, "own-role"),
        (OWN, WHOLE, True, "own-role"),
        (WHOLE, OWN, True, "with-job"),
    ):
        pod = pod_of(f"{now == OWN}{new_config}")
        pod.snapshot(1, then)
        pod.edit(now)
        # A server that the journal tells of and that does not live is no reason either.
        own = OwnEngine(number=1, alive=True, wanted=then == WHOLE)
        pod.go(attempt=Attempt(number=2, snapshot=1), orders=Orders(new_config=new_config), own=own)
        assert pod.opened()[0] == wanted, (now, new_config)


def test_what_lives_stays_as_it_was_started_also_where_the_files_could_not_be_read_at_first(
    pod_of: Callable[[str], Pod],
) -> None:
    job, both = pod_of("job"), pod_of("both")
    for pod, config in ((job, OWN), (both, OWN)):
        pod.snapshot(1, config)
        pod.live(attempt_dir(pod.state_dir, 1), "rl")
        pod.edit("[half-writ")
    job.go(attempt=Attempt(number=1))
    how, why = job.opened()
    assert how == "with-job" and "as it was started" in why
    server = both.live(engine_dir(both.state_dir, 1), "inference")
    both.go(attempt=Attempt(number=1), own=OwnEngine(number=1, alive=True, pid=server, wanted=True))
    assert both.daemon._engine_left() == 1, "while nothing is decided the server is not taken for gone"
    assert both.opened()[0] == "own-role"


def test_a_job_whose_record_cannot_be_read_counts_as_alive_to_a_daemon_that_begins(
    pod_of: Callable[[str], Pod],
) -> None:
    pod = pod_of("unseen")
    folder = attempt_dir(pod.state_dir, 1)
    pod.live(folder, "rl")
    (folder / "rl.shim.json").rename(folder / "kept")
    (folder / "rl.shim.json").mkdir()
    settings = pod.daemon.state.settings
    pod.go(attempt=Attempt(number=1))
    with pytest.raises(TryAgainError, match="Cannot see whether attempt 1 still lives"):
        pod.daemon._take_over(settings)  # the journal knows of no job, and a start would end this one

    pod.daemon.state = replace(pod.daemon.state, mode="running")
    pod.daemon._take_over(settings)
    begun, remark = (fact for fact, _ in pod.daemon._first)
    assert isinstance(begun, f.DaemonStarted) and begun.adopted == 1
    assert isinstance(remark, f.Remark) and "It counts as alive until then: what became of rl cannot" in remark.sentence


def test_a_new_configuration_is_judged_before_its_start_and_a_server_that_it_does_not_allow_is_ended(
    pod_of: Callable[[str], Pod],
) -> None:
    pod = pod_of("new")
    pod.snapshot(1, OWN)
    server = pod.live(engine_dir(pod.state_dir, 1), "inference")
    own = OwnEngine(number=1, alive=True, pid=server, wanted=True)
    pod.go(attempt=Attempt(number=1, snapshot=1), own=own)
    daemon, run = pod.daemon, pod.daemon.context
    run.job = daemon._open_job()
    assert run.run_file.recovery.inference == "own-role"
    daemon.effects.scan()
    assert [type(fact) for fact in pod.told()] == [f.LocalSteps], "nothing changed"
    pod.edit(WHOLE)
    daemon.state = replace(daemon.state, orders=Orders(new_config=True))
    daemon.effects.scan()
    stopped, settings, listed = pod.told()
    assert isinstance(stopped, f.EngineStopped) and not stopped.survivors
    assert isinstance(settings, f.SettingsChanged) and settings.settings.inference == "with-job"
    assert isinstance(listed, f.LocalSteps), "the start is decided last"
    assert look_at(pod.state_dir, 1).pid is None
    # The start opens the job once more, and by then nothing of the order is left in the state.
    daemon.state = replace(daemon.state, orders=Orders(), mode="starting")
    how, why = pod.opened()
    assert how == "with-job" and "still has [inference]" in why


@pytest.mark.parametrize("how", ["with-job", "auto"])
def test_an_edited_file_moves_neither_the_last_step_nor_the_engines_port_of_what_runs(
    pod_of: Callable[..., Pod], how: str
) -> None:
    edited = WHOLE.replace("max_steps = 100", "max_steps = 9") + "[inference.server]\nport = 7777\n"

    def seen(pod: Pod) -> tuple[int | None, str]:
        job = pod.daemon.context.job = pod.daemon._open_job()
        engine = job.engine()
        return pod.daemon.settings(job).max_steps, engine.url if engine is not None else ""

    def pod_with(name: str, now: str = edited) -> Pod:
        pod = pod_of(name, how)
        pod.snapshot(1, WHOLE)
        pod.edit(now)
        return pod

    for name, now in (("lives", edited), ("half-written", "[half-writ")):
        pod = pod_with(name, now)
        pod.live(attempt_dir(pod.state_dir, 1), "rl")
        pod.go(attempt=Attempt(number=1))
        assert seen(pod) == (100, "http://127.0.0.1:8100"), "it is adopted with what it was started with"

    pod = pod_with("dead")
    pod.go(attempt=Attempt(number=1, snapshot=1))
    assert seen(pod) == (100, "http://127.0.0.1:8100"), "the next start runs the snapshot"
    pod.daemon.state = replace(pod.daemon.state, orders=Orders(new_config=True))
    pod.daemon.effects.scan()
    assert pod.daemon.settings(pod.daemon.context.job).max_steps == 9, "a person asked for the files as they are now"
    pod.daemon.state = replace(pod.daemon.state, orders=Orders())
    pod.daemon.effects.scan()
    assert pod.daemon.settings(pod.daemon.context.job).max_steps == 100, "they never made a step: the snapshot again"

    for mode in ("finished", "gave-up"):
        pod = pod_with(mode)
        pod.go(attempt=Attempt(number=1, snapshot=1))
        pod.daemon.state = replace(pod.daemon.state, mode=mode)
        assert seen(pod) == (9, "http://127.0.0.1:7877"), "a person raised the last step, or mended it"


def test_a_snapshot_with_which_nothing_could_start_keeps_no_daemon_from_watching(pod_of: Callable[..., Pod]) -> None:
    """It starts a server, and the run file asks for one of its own by now: that concerns the next start alone."""
    for lives in (True, False):
        pod = pod_of(f"lives-{lives}", "own-role")
        pod.snapshot(1, WHOLE)
        pod.edit(OWN)
        if lives:
            pod.live(attempt_dir(pod.state_dir, 1), "rl")
        pod.go(attempt=Attempt(number=1, snapshot=1))
        job = pod.daemon._job_or_none()
        assert job is not None and job.problems()
    pod = pod_of("files", "own-role")
    pod.edit(WHOLE)
    pod.go()
    with pytest.raises(ConfigError, match="inference"):
        pod.daemon._job_or_none()


def test_a_job_that_a_person_started_is_not_read_from_a_snapshot_of_ours(pod_of: Callable[..., Pod]) -> None:
    pod = pod_of("attached", "with-job")
    pod.snapshot(1, WHOLE)
    pod.edit(WHOLE.replace("max_steps = 100", "max_steps = 500"))
    pod.go(attempt=Attempt(number=1, snapshot=1))
    pod.daemon.context.observed = "it is attached"
    assert pod.daemon.settings(pod.daemon._open_job()).max_steps == 500


def test_a_new_configuration_that_cannot_start_does_not_stop_the_job_that_runs(pod_of: Callable[..., Pod]) -> None:
    pod = pod_of("typo", "with-job")
    pod.go()
    backend = ApiBackend(pod.daemon, pod.daemon.attaching)
    pod.edit("[half-writ")
    refused = backend.command("restart", ["--new-config"], "root")
    assert not refused.ok and "rl.toml is not TOML" in refused.sentence and not pod.told()
    assert backend.command("restart", [], "root").ok, "which takes the snapshot"
    pod.edit(WHOLE)
    pod.told()
    assert backend.command("restart", ["--new-config"], "root").ok
    assert pod.told() == [f.Command("restart", "root", ("--new-config",))]


def test_a_run_file_that_was_changed_since_is_noted_with_what_takes_it(
    pod_of: Callable[..., Pod], tmp_path: Path
) -> None:
    (pod := pod_of("changed", "with-job")).go()
    path = tmp_path / "my run.toml"
    path.write_text("")
    os.utime(path, (1e9, 1e9))
    told = replace(pod.daemon.state.settings, run_file=shlex.quote(str(path)))
    pod.daemon.state = replace(pod.daemon.state, settings=told)
    backend = ApiBackend(pod.daemon, pod.daemon.attaching)
    sensors = pod.daemon.sensors
    sensors.look_at_configs()
    assert not sensors.run_file_note
    os.utime(path, (time.time() + 60, time.time() + 60))
    sensors.look_at_configs()
    note = sensors.run_file_note
    told = f"'{path}' was written after this daemon had read it. To take it: supervisorctl upgrade"
    assert note == f"{told} (what starts the job: and then supervisorctl restart)"
    assert note in backend.status()["notes"]
    path.unlink()
    sensors.look_at_configs()
    assert not sensors.run_file_note


def test_the_job_stays_known_while_a_start_opens_it_anew(pod_of: Callable[..., Pod]) -> None:
    run, effects, known = (pod := pod_of("anew")).daemon.context, pod.daemon.effects, []
    job = run.job = pod.daemon._open_job()

    def open_anew() -> Job:
        known.append(run.job)
        raise ConfigError("a typo")

    run._open_job = open_anew
    with pytest.raises(ConfigError, match="a typo"):
        effects._launch_attempt(a.Start(2, 5, None, False))
    assert known == [job] and run.job is job, "else a publish meanwhile says that the trainer is not installed"
