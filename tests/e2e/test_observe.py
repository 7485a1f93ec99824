"""Observing: a job that a person started is attached, its engine dies, the daemon says what it would do."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from supervisor.api.client import Client
from supervisor.cli.main import main
from tests.people.in_process import call

from .rig import Pod

OBSERVE: dict[str, dict[str, Any]] = {"recovery": {"mode": "observe"}}


def files_of(pod: Pod) -> set[str]:
    """Everything in the run's checkpoint folders."""
    return {
        path.relative_to(pod.practice.run_dir).as_posix()
        for path in pod.practice.run_dir.glob("**/checkpoints/step_*/**/*")
    }


def by_hand(pod: Pod, *words: str) -> subprocess.Popen[bytes]:
    """The job as a person starts it in tmux."""
    return pod.practice.start(*words)


def send_to_steppers(pod: Pod, number: int) -> None:
    for pid, role in pod.practice.alive().items():
        if "trainer" in role or "orchestrator" in role:
            os.kill(pid, number)


@pytest.mark.soak
@pytest.mark.parametrize("era", ["2026-01-06", "v0.6"])
def test_a_job_started_by_hand_is_attached_and_only_watched_while_its_engine_dies(
    era: str, tmp_path: Path, pods: list[Pod]
) -> None:
    faults = [{"kind": "engine-exit-0", "at_step": 7}]
    pod = Pod(tmp_path, era, faults=faults, max_steps=12, step_s=0.8)
    pods.append(pod)
    job = by_hand(pod)
    pod.wait_for_here(lambda: pod.practice.trained_steps(), "the person's job makes a step")
    send_to_steppers(pod, signal.SIGSTOP)  # however slow this machine is: the engine dies after it is watched

    pod.start("attach")
    pod.wait_for(lambda: pod.sentences("attached"), "the job is attached")
    assert f"Attached to the job of a person (pid {job.pid})" in pod.sentences("attached")[0]
    pod.wait_for(lambda: pod.status().get("state") == "running", "its steps are seen")
    pod.wait_for(lambda: "process inference" in pod.ctl("explain").stdout, "its engine is seen")
    send_to_steppers(pod, signal.SIGCONT)
    (verdict, *_) = pod.wait_for(lambda: pod.sentences("verdict"), "the engine's death is seen")
    assert "vLLM died" in verdict
    pod.wait_for(
        lambda: pod.said_so("would", "Would have restarted the job at the last good step"), "what is not done is told"
    )

    # Nothing was sent: what lived on after the engine's death lives still, and no second start was made.
    launcher_lives = job.poll() is None
    assert launcher_lives, pod.story()
    assert "trainer" in " ".join(pod.practice.alive().values())
    assert len(pod.practice.starts()) == 1
    assert not list(pod.practice.home.glob("outputs/.set-aside/**"))
    kept = files_of(pod)
    assert any("step_2" in name for name in kept)
    pod.wait_for(lambda: (pod.status().get("published_step") or 0) >= 4, "publishing goes on")

    shown = pod.ctl("status").stdout
    assert "(OBSERVED)" in shown.splitlines()[0]
    told = pod.ctl("explain").stdout
    assert "only observed, because a person started its job" in " ".join(told.split())
    for verb in ("start", "stop", "restart"):
        refused = pod.ctl(verb)
        assert refused.returncode == 1
        assert "Nothing is started or stopped: this run is only observed" in refused.stderr
    pod.ctl("pause")
    assert "so nothing is started or stopped" in pod.ctl("resume").stdout

    # The person ends it, and starts it again by hand; the daemon that watches is told.
    pod.practice.end_all()
    job.wait()
    pod.wait_for(lambda: pod.status().get("state") == "stopped", "the daemon waits without a job")
    assert files_of(pod) >= kept, "no file of the job was moved or deleted"
    assert "rl-supervisor attach" in pod.status()["sentence"]
    pod.practice.set_knobs(faults=[], step_s=1.0)  # long enough to be attached on a slow machine
    again = by_hand(pod, *pod.practice.resume_flags(4))
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "the second start")
    answer = pod.wait_for(lambda: (a := pod.by_hand("attach")).returncode == 0 and a, "attach tells the daemon")
    assert f"Process {again.pid} is watched from now on, and never touched." in answer.stdout
    pod.wait_for(lambda: pod.sentences("incident-closed"), "it is seen to make steps again")
    assert pod.wait_exit() == 0, pod.story()
    assert again.wait(10) == 0, "it ended by itself"
    assert pod.latest()["step"] == "step_12"
    assert len(pod.practice.starts()) == 2


@pytest.mark.soak
def test_a_daemon_that_is_killed_finds_the_attached_job_again(tmp_path: Path, pods: list[Pod]) -> None:
    pod = Pod(tmp_path, "v0.6", max_steps=400, step_s=0.4)
    pods.append(pod)
    job = by_hand(pod)
    pod.wait_for_here(lambda: pod.practice.trained_steps(), "the person's job makes a step")
    pod.start("attach")
    pod.wait_for(lambda: pod.status().get("state") == "running", "its steps are seen")
    pod.kill_daemon()
    # The run file says "act", and still: what a person started is not ours to stop, in no life of the daemon.
    pod.start("run")
    pod.wait_for(lambda: pod.sentences("adopted"), "the record is found again")
    pod.wait_for(lambda: pod.status().get("observed"), "the daemon answers")
    seen = pod.status()["step"]
    pod.wait_for(lambda: (pod.status().get("step") or 0) > seen, "steps are followed")
    assert pod.status()["attempt"] == 1
    pod.kill_daemon()
    pod.start("attach")
    pod.wait_for(lambda: len(pod.sentences("adopted")) == 2, "attaching again is the same attempt")
    assert pod.daemon is not None
    pod.daemon.send_signal(signal.SIGTERM)
    assert pod.wait_exit() == 0, pod.story()
    assert job.poll() is None, "SIGTERM ends the daemon and leaves the person's job"
    assert len(pod.practice.starts()) == 1


def test_a_run_that_is_only_observed_starts_nothing_and_deletes_nothing(tmp_path: Path, pods: list[Pod]) -> None:
    size = 1 << 20
    pod = Pod(
        tmp_path,
        "v0.6",
        settings={**OBSERVE, "disk": {"capacity_gb": 15 * size / 1e9, "prune_above": 0.2, "keep_local": 1}},
        max_steps=6,
        step_s=2.0,  # it is attached while it trains, on a busy machine too
        checkpoint_bytes=size,
    )
    pods.append(pod)
    pod.start("run")
    pod.wait_for(lambda: pod.status().get("state") == "stopped", "it waits for a job")
    assert "Nothing is started: this run is only observed" in pod.status()["sentence"]
    assert pod.practice.starts() == []
    job = by_hand(pod)
    pod.wait_for(lambda: pod.practice.starts(), "the person starts it")
    pod.wait_for(lambda: pod.by_hand("attach", "--pid", str(job.pid)).returncode == 0, "it is attached by its pid")
    assert pod.wait_exit() == 0, pod.story()
    assert job.wait(10) == 0
    assert pod.latest()["step"] == "step_6"
    here = {path.name for path in pod.practice.run_dir.glob("checkpoints/step_*")}
    assert {"step_2", "step_4", "step_6"} <= here, f"the disk is over its mark and nothing was deleted: {here}"
    assert not pod.sentences("pruned")
    assert len(pod.practice.starts()) == 1


@pytest.mark.soak
def test_pause_suspends_acting_and_not_looking(tmp_path: Path, pods: list[Pod]) -> None:
    pod = Pod(tmp_path, "v0.6", faults=[{"kind": "engine-exit-0", "at_step": 14}], max_steps=18, step_s=0.6)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: pod.step() >= 1, "a first step")
    taken, why = Client(pod.socket).command("attach", [f"{os.getpid()}:1"])
    assert not taken
    assert "starts and stops its job itself, and we never stop what we did not start" in why
    assert pod.ctl("pause").returncode == 0
    assert "(PAUSED)" in pod.wait_for(lambda: pod.ctl("status").stdout, "status").splitlines()[0]
    pod.wait_for(lambda: any("vLLM died" in s for s in pod.sentences("suspect")), "the death is seen all the same")
    told = " ".join(pod.ctl("explain").stdout.split())
    assert "Paused: nothing is done about it" in told
    assert "the job would be stopped and started again at step" in told
    pod.wait_for(lambda: (pod.status().get("published_step") or 0) >= 12, "publishing goes on")
    assert len(pod.practice.starts()) == 1
    assert pod.ctl("resume").returncode == 0
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "resumed, it acts")
    assert pod.wait_exit() == 0, pod.story()


def test_attach_says_what_it_looked_for_when_there_is_no_job(tmp_path: Path, pods: list[Pod]) -> None:
    pod = Pod(tmp_path, "v0.6")
    pods.append(pod)
    none = call(main, ["attach", str(pod.run_file)])
    assert none.returncode == 93
    assert "No living job of run practice was found" in none.stderr
    assert str(pod.practice.config) in none.stderr
    foreign = call(main, ["attach", str(pod.run_file), "--pid", str(os.getppid())])
    assert foreign.returncode == 93
    assert f"Process {os.getppid()}" in foreign.stderr
