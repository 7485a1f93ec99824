"""A shim that is killed costs the exit status of its job, and nothing else: the job trains on, is stopped and ends."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from .rig import Pod


def kill_shims(pod: Pod) -> psutil.Process:
    """Returns the launcher."""
    launcher = psutil.Process(pod.wait_for(lambda: pod.step() >= 3 and pod.status().get("pid"), "steps", 120))
    shims = pod._shims()
    assert shims
    for shim in shims:
        shim.kill()
    return launcher


def begin(pods: list[Pod], folder: Path, max_steps: int = 1_000_000) -> Pod:
    pods.append(pod := Pod(folder, max_steps=max_steps, step_s=0.4))
    return pod.start()


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.timeout(600)
def test_a_job_without_a_shim_is_taken_over_by_the_next_daemon_and_stopped_whole(
    tmp_path: Path, pods: list[Pod]
) -> None:
    pod = begin(pods, tmp_path)
    launcher = kill_shims(pod)
    tree = [launcher, *launcher.children(recursive=True)]
    pod.wait_for(lambda: pod.sentences("shim-gone"), "it is told")
    pod.kill_daemon()
    pod.start()
    pod.wait_for(lambda: pod.sentences("adopted"), "it is taken over")
    before = pod.step()
    pod.wait_for(lambda: pod.step() > before + 2, "it trains on")
    assert (len(pod.practice.starts()), pod.sentences("verdict"), lives(launcher)) == (1, [], True)
    assert len(set(pod.sentences("shim-gone"))) == 1, "told by each daemon once"
    pod.command("stop")
    pod.wait_for(lambda: pod.status().get("state") == "stopped", "it is stopped")
    assert [one for one in tree if lives(one)] == []
    assert len(pod.practice.starts()) == 1


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_training_that_finishes_without_its_shim_is_finished(tmp_path: Path, pods: list[Pod]) -> None:
    pod = begin(pods, tmp_path, 14)
    kill_shims(pod)
    assert pod.wait_exit() == 0
    assert pod.latest()["step"] == "step_14"
    assert len(pod.practice.starts()) == 1


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_launcher_that_dies_while_shim_and_daemon_are_gone_is_restarted_once(tmp_path: Path, pods: list[Pod]) -> None:
    pod = begin(pods, tmp_path)
    pod.wait_for(lambda: pod.stored(), "a step in the store")
    launcher = kill_shims(pod)
    below = launcher.children(recursive=True)
    pod.kill_daemon()
    launcher.kill()
    pod.start()
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "it starts again")
    assert [one for one in below if lives(one)] == [], "its orphans are gone before"
    assert len(pod.sentences("verdict")) == 1
    assert (pod.resume_steps()[1] or 0) >= pod.stored()[0]
