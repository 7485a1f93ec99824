"""The inference server as a role of its own: real practice processes, and the actions asked for by hand, with no core.

Each half is started, stopped and found again without the other being touched.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from supervisor.config.settings import RunFile
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.effects import own_engine
from supervisor.effects.carry_out import Effects
from supervisor.jobs.base import Job
from supervisor.primerl import open_job
from supervisor.process.attempts import attempt_dir
from supervisor.process.launch import look_at_component
from supervisor.process.survivors import Belongings, send_signal
from tests.hands import Seen, effects_of
from tests.practice.run import Practice, make_practice

F = TypeVar("F", bound=f.Fact)
ROUTER, OLD = "2026-08-21", "2026-01-06"
OLD_TOO = pytest.param(OLD, marks=pytest.mark.soak)


class Driver:
    """What the daemon's loop does with effects, as far as these tests need it: it asks, and takes the answers."""

    def __init__(self, practice: Practice, folder: Path) -> None:
        self.practice = practice
        job = {
            "dir": practice.home,
            "config": [practice.config],
            "inference_config": practice.engine_config,
            "checkpoint_interval": 2,
            "env": {name: value for name, value in practice.environment.items() if name != "PATH"},
        }
        self.run_file = RunFile.model_validate(
            {
                "run": {"id": "practice", "state_dir": folder / "state"},
                "job": job,
                "gpus": {"inference": [0], "trainer": [1]},
                "store": {"url": (folder / "store").as_uri()},
                "recovery": {"inference": "own-role"},
                "supervision": {"shim": "fork", "gpu_free": 5, "quiet": 0.2},
            }
        )
        self.facts: list[f.Fact] = []
        self.effects = self.hands()

    def hands(self) -> Effects:
        """The effects of a daemon that has just begun."""
        self.effects = effects_of(self.run_file, self.facts, self.job, environ=os.environ, seen=Seen(gpu_free=True))
        return self.effects

    def job(self) -> Job:
        return open_job(self.run_file, os.environ)

    def ask(self, action: a.Action, answer: type[F], timeout_s: float = 30) -> F:
        """Do it, and wait for the answer of this kind."""
        seen = len(self.facts)
        self.effects.do(action)
        return wait_for(lambda: next((x for x in self.facts[seen:] if isinstance(x, answer)), None), action, timeout_s)

    def pids(self, *roles: str) -> set[int]:
        return {pid for role in roles for pid in self.practice.pids(role)}

    def engine_pids(self) -> set[int]:
        return self.pids("inference", "engine-core", "vllm-router")

    def job_pids(self) -> set[int]:
        return self.pids("rl", "trainer-rank", "orchestrator", "torchrun")

    def steps_past(self, step: int) -> bool:
        return any(done > step for done in self.practice.trained_steps())

    def remarks(self) -> list[str]:
        return [fact.sentence for fact in self.facts if isinstance(fact, f.Remark)]

    def close(self) -> None:
        self.effects.close()
        deadline = time.monotonic() + 20
        folders = [*(self.run_file.state_dir / "attempts").glob("*"), *(self.run_file.state_dir / "engines").glob("*")]
        while left := [one for folder in folders for one in Belongings(folder, (), "practice").list_living()]:
            for one in left:
                send_signal(one.identity, signal.SIGKILL)  # which may have ended since
            assert time.monotonic() < deadline, left
            time.sleep(0.02)
        self.practice.end_all()


def wait_for(look_again: Callable[[], F | None], what: object, timeout_s: float = 30) -> F:
    deadline = time.monotonic() + timeout_s
    while not (answer := look_again()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        time.sleep(0.02)
    return answer


@pytest.fixture
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    era, knobs = request.param if isinstance(request.param, tuple) else (request.param, {})
    practice = make_practice(tmp_path, era, own_engine=True, max_steps=500, step_s=0.4, **knobs)
    made = Driver(practice, tmp_path)
    yield made
    made.close()


def started(driver: Driver) -> int:
    """Both halves run and train; returns a step that is done."""
    driver.ask(a.StartEngine(1, None), f.EngineStarted)
    driver.ask(a.Start(1, None), f.AttemptStarted)
    wait_for(lambda: driver.steps_past(3) or None, "some steps")
    return max(driver.practice.trained_steps())


@pytest.mark.soak
@pytest.mark.parametrize("driver", [ROUTER, OLD_TOO], indirect=True)
def test_the_launcher_starts_no_second_server_and_each_half_has_its_own_gpu(driver: Driver) -> None:
    started(driver)
    assert len(driver.pids("inference")) == 1
    words = driver.practice.starts()[0]["arguments"]
    assert not any("inference" in word for word in words), words
    (server,) = driver.pids("inference")
    (rank,) = driver.pids("trainer-rank")
    assert "CUDA_VISIBLE_DEVICES=0" in environment(server)
    assert "CUDA_VISIBLE_DEVICES=1" in environment(rank)
    launcher_log = (attempt_dir(driver.run_file.state_dir, 1) / "rl.log").read_text()
    assert "inference server" in launcher_log and "WARNING" in launcher_log


@pytest.mark.soak
@pytest.mark.parametrize("driver", [ROUTER, OLD_TOO], indirect=True)
def test_the_job_is_stopped_and_resumed_while_the_server_lives_on(driver: Driver) -> None:
    started(driver)
    before = driver.engine_pids()
    wait_for(lambda: driver.job().check_step(2, settled=True).state == "complete" or None, "step 2")
    stopped = driver.ask(a.Stop(1, "a test", 30), f.AttemptStopped)
    assert (stopped.survivors, stopped.gpu_free) == ((), True)
    assert driver.job_pids() == set()
    assert driver.engine_pids() == before
    driver.ask(a.Start(2, 2, snapshot=1), f.AttemptStarted)
    wait_for(lambda: driver.steps_past(4) or None, "steps of the second attempt")
    assert driver.engine_pids() == before
    assert driver.practice.answers()[-1]["weights"] != "base"


@pytest.mark.soak
@pytest.mark.parametrize("driver", [ROUTER, OLD_TOO], indirect=True)
def test_the_server_is_stopped_alone_and_nothing_of_the_job_is_touched(driver: Driver) -> None:
    started(driver)
    job = driver.job_pids()
    stopped = driver.ask(a.StopEngine(1, "a test", 30), f.EngineStopped)
    assert (stopped.engine, stopped.survivors, stopped.gpu_free) == (1, (), True)
    assert driver.engine_pids() == set()
    # An orchestrator of 6 Jan 2026 that was about to hand over weights ends with the server: that is its own doing.
    assert driver.job_pids() == job or driver.practice.era.name == OLD


# An update that falls due meanwhile is tried for 65 s, as by the real orchestrator.
@pytest.mark.parametrize("driver", [(ROUTER, {"patience": 1.0})], indirect=True)
def test_a_server_restarted_under_the_living_job_answers_with_the_runs_weights_only(driver: Driver) -> None:
    step = started(driver)
    job, old = driver.job_pids(), driver.engine_pids()
    for pid in driver.pids("engine-core"):
        os.kill(pid, signal.SIGKILL)
    driver.ask(a.StopEngine(1, "it died", 30), f.EngineStopped)
    driver.ask(a.StartEngine(2, None), f.EngineStarted)
    wait_for(lambda: driver.steps_past(step + 4) or None, "new steps")
    assert driver.job_pids() == job
    assert not driver.engine_pids() & old
    (core,) = driver.pids("engine-core")
    new = [answer["weights"] for answer in driver.practice.answers() if answer["pid"] == core]
    assert new and "base" not in new
    assert any("was given the weights of step" in sentence for sentence in driver.remarks())


@pytest.mark.soak
@pytest.mark.parametrize("driver", [ROUTER], indirect=True)
def test_without_weights_on_the_disk_the_server_is_not_restarted_under_the_job(driver: Driver) -> None:
    started(driver)
    driver.ask(a.StopEngine(1, "a test", 30), f.EngineStopped)
    for mark in (driver.practice.run_dir / "broadcasts").glob("*/STABLE"):
        mark.unlink()
    failed = driver.ask(a.StartEngine(2, 2), f.EngineStartFailed)
    assert "Both halves have to restart" in failed.reason
    assert driver.engine_pids() == set()


@pytest.mark.soak
@pytest.mark.parametrize("driver", [ROUTER], indirect=True)
def test_a_server_that_refuses_the_weights_is_ended(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    started(driver)
    driver.ask(a.StopEngine(1, "a test", 30), f.EngineStopped)
    real = driver.job

    def wrong() -> Job:
        job = real()
        update = job.weight_update()
        assert update is not None
        monkeypatch.setattr(job, "weight_update", lambda: replace(update, calls=[("/no-such-path", {})]))
        return job

    driver.effects.run.job = wrong()
    driver.ask(a.StartEngine(2, None), f.EngineStarted)
    wait_for(lambda: own_engine.look_at(driver.run_file.state_dir, 2).state == "exited" or None, "its end")
    told = wait_for(lambda: next((s for s in driver.remarks() if "could not be given" in s), None), "the sentence")
    assert "POST /no-such-path was answered with 404" in told


@pytest.mark.soak
@pytest.mark.parametrize("driver", [ROUTER], indirect=True)
def test_a_fresh_start_is_refused_while_a_server_lives_that_an_earlier_attempt_used(driver: Driver) -> None:
    started(driver)
    driver.ask(a.Stop(1, "a test", 30), f.AttemptStopped)
    failed = driver.ask(a.Start(2, None), f.StartFailed)
    assert "A fresh start needs a fresh inference server" in failed.reason
    assert driver.job_pids() == set()


@pytest.mark.soak
@pytest.mark.parametrize("driver", [ROUTER], indirect=True)
def test_another_daemons_effects_find_both_halves_by_their_records(driver: Driver) -> None:
    started(driver)
    driver.effects.close()
    driver.hands()
    state_dir = driver.run_file.state_dir
    assert own_engine.last_engine(state_dir) == 1
    assert own_engine.look_at(state_dir, 1).state == "running"
    assert look_at_component(attempt_dir(state_dir, 1), "rl").state == "running"
    job = driver.job_pids()
    driver.ask(a.StopEngine(1, "a test", 30), f.EngineStopped)
    assert driver.job_pids() == job
    driver.ask(a.Stop(1, "a test", 30), f.AttemptStopped)
    assert driver.job_pids() == set()


@pytest.mark.soak
@pytest.mark.parametrize("driver", [ROUTER], indirect=True)
def test_weights_that_the_daemon_before_did_not_come_to_give_are_given_by_the_next_one(driver: Driver) -> None:
    started(driver)
    driver.ask(a.StopEngine(1, "a test", 30), f.EngineStopped)
    driver.effects.engine.give_weights = lambda engine: None  # type: ignore[method-assign]  (it was killed right then)
    driver.ask(a.StartEngine(2, None), f.EngineStarted)
    assert not any("was given" in sentence for sentence in driver.remarks())
    driver.hands().engine.adopt()
    wait_for(lambda: any("was given" in sentence for sentence in driver.remarks()) or None, "the weights")


def environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
