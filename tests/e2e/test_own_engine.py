"""`recovery.inference = "own-role"`: the half that failed is restarted, and the other one lives on.

The real daemon and core, the practice job of two eras with an inference server beside `rl`, and kill -9.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.rig import Pod
from tests.practice.run import make_practice

ROUTER, OLD = "2026-08-21", "2026-01-06"


@pytest.fixture
def pod_of(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    pods: list[Pod] = []

    def make(era: str, step_s: float = 0.3, how: str = "own-role", **knobs: float) -> Pod:
        practice = make_practice(
            tmp_path / "practice", era, own_engine=True, max_steps=500, interval=2, step_s=step_s, **knobs
        )
        with practice.config.open("a") as config:  # else NCCL would be the default of a start with the job
            config.write('[weight_broadcast]\ntype = "filesystem"\n' if how == "auto" else "")
        settings = {
            "job": {"inference_config": str(practice.engine_config)},
            "gpus": {"inference": [0], "trainer": [1]},
            "recovery": {"inference": how},
        }
        pods.append(Pod(tmp_path, era, practice=practice, settings=settings))
        return pods[-1]

    yield make
    for pod in pods:
        pod.close()


def pids(pod: Pod, *roles: str) -> set[int]:
    return {pid for role in roles for pid in pod.practice.pids(role)}


def running(pod: Pod, step: int = 3) -> int:
    """The pod has published something and gone on; returns the newest step."""
    pod.start()
    pod.wait_for(lambda: pod.step() >= step and pod.stored(), f"step {step}")
    return pod.step()


def kill(found: set[int]) -> None:
    assert found
    send(found, signal.SIGKILL)


def send(found: set[int], number: signal.Signals) -> None:
    for pid in found:
        os.kill(pid, number)


def test_a_dead_engine_is_restarted_alone_with_the_runs_weights_and_the_launcher_lives_on(
    pod_of: Callable[..., Pod],
) -> None:
    # An answer takes longer than the engine serves the base model for, and an update that falls due is tried for 65 s.
    pod = pod_of(ROUTER, step_s=0.5, how="auto", patience=1.0)
    running(pod)
    launcher, server = pids(pod, "rl"), pids(pod, "inference")
    kill(pids(pod, "engine-core"))
    pod.wait_for(lambda: pod.status().get("incident"), "the incident")
    at = pod.step()
    pod.wait_for(lambda: pod.step() > at + 3 and not pod.status().get("incident"), "new steps after the incident")
    assert pids(pod, "rl") == launcher
    assert len(pod.practice.starts()) == 1
    assert pids(pod, "inference") and pids(pod, "inference") != server
    (core,) = pids(pod, "engine-core")
    assert {answer["weights"] for answer in pod.practice.answers() if answer["pid"] == core}.isdisjoint({"base"})
    assert pod.said_so("engine", "was given the weights of step")
    assert any("Only the inference server failed" in str(record) for record in pod.said())


@pytest.mark.soak
def test_weights_that_fall_due_long_before_the_engine_is_back_end_the_job_which_resumes_beside_it(
    pod_of: Callable[..., Pod],
) -> None:
    pod = pod_of(ROUTER, patience=0.1, start_s=10.0)  # an update is tried for 6.5 s
    running(pod)
    launcher, trainer = pids(pod, "rl"), pids(pod, "trainer-rank")
    send(trainer, signal.SIGSTOP)
    waits = "Pausing dispatcher"
    (log,) = pod.practice.home.glob("outputs/**/attempt_1/orchestrator.log")
    before = log.read_text().count(waits)
    pod.wait_for(lambda: log.read_text().count(waits) > before, "an orchestrator that waits for the next weights")
    kill(pids(pod, "engine-core"))
    send(trainer, signal.SIGCONT)
    pod.wait_for(lambda: pids(pod, "rl") != launcher and len(pod.practice.starts()) == 2, "the second start")
    resumed = pod.resume_steps()[1]
    assert resumed is not None
    pod.wait_for(lambda: pod.step() > resumed + 3 and not pod.status().get("incident"), "new steps")
    assert [path.name for path in sorted((pod.state_dir / "engines").iterdir())] == ["0001", "0002"]
    assert any("kept warm" in str(record) for record in pod.said())


@pytest.mark.soak
@pytest.mark.parametrize("era", [ROUTER, OLD])
def test_a_killed_trainer_leaves_the_engine_warm_and_resumes_at_the_last_good_step(
    pod_of: Callable[..., Pod], era: str
) -> None:
    pod = pod_of(era)
    running(pod)
    engine = pids(pod, "inference", "engine-core", "vllm-router")
    kill(pids(pod, "trainer-rank"))
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "the second start")
    resumed = pod.resume_steps()[1]
    assert resumed is not None and resumed >= 2
    pod.wait_for(lambda: pod.step() > resumed + 3 and not pod.status().get("incident"), "new steps")
    assert pids(pod, "inference", "engine-core", "vllm-router") == engine
    assert any("kept warm" in str(record) for record in pod.said())


@pytest.mark.soak
def test_a_dead_engine_of_january_takes_both_halves_along_since_failed_rollouts_would_be_trained_on(
    pod_of: Callable[..., Pod],
) -> None:
    pod = pod_of(OLD)
    running(pod)
    launcher, server = pids(pod, "rl"), pids(pod, "inference")
    kill(pids(pod, "engine-core"))
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "the second start")
    resumed = pod.resume_steps()[1]
    assert resumed is not None
    pod.wait_for(lambda: pod.step() > resumed + 3 and not pod.status().get("incident"), "new steps")
    assert not pids(pod, "rl") & launcher
    assert not pids(pod, "inference") & server


@pytest.mark.soak
def test_a_killed_daemon_is_followed_by_one_that_adopts_both_halves(pod_of: Callable[..., Pod]) -> None:
    pod = pod_of(ROUTER, how="auto")
    running(pod)
    everything = pids(pod, "rl", "inference", "engine-core", "trainer-rank")
    pod.kill_daemon()
    with pod.practice.config.open("a") as config:
        config.write("[inference]\n")  # for the next start: of what lives `auto` makes nothing else
    at = max(pod.practice.trained_steps())
    pod.start()
    pod.wait_for(lambda: pod.step() > at + 3, "steps under the next daemon")
    assert pids(pod, "rl", "inference", "engine-core", "trainer-rank") == everything
    pod.command("restart", "--new-config")  # and that start has no choice left
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "the second start")
    pod.wait_for(lambda: pod.step() > at + 6 and pids(pod, "inference"), "steps of the second start")
    assert not pids(pod, "inference", "engine-core") & everything
    assert [path.name for path in (pod.state_dir / "engines").iterdir()] == ["0001"]


@pytest.mark.soak
def test_stop_ends_both_halves_and_the_engines_log_can_be_read(pod_of: Callable[..., Pod]) -> None:
    pod = pod_of(ROUTER)
    running(pod)
    assert "APIServer pid=" in pod.ctl("tail", "practice", "inference").stdout
    pod.command("stop")
    pod.wait_for(lambda: not pod.practice.alive(), "the end of both halves")
    pod.wait_for(lambda: pod.status().get("state") == "stopped", "the state that says so")
