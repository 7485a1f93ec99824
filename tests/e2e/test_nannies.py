"""Where no systemd is: a daemon that hangs, and a nanny that is killed. The job does not notice either."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from .rig import Pod, pids_of

SOON = {"RL_SUPERVISOR_WATCHDOG": "10", "RL_SUPERVISOR_BACKOFF": "0.1"}


def end(pod: Pod) -> None:
    """The nanny first, which would start another daemon; then the daemon, whose own session it has."""
    assert pod.daemon is not None
    daemons = psutil.Process(pod.daemon.pid).children() if pod.daemon.poll() is None else []
    pod.daemon.kill()
    pod.daemon.wait()
    for one in daemons:
        if not one.name().startswith("rl-"):  # the job's shims are the nanny's as well
            one.kill()
    pod.end_job()


@pytest.mark.soak
def test_a_daemon_that_hangs_is_replaced_by_one_that_adopts_the_job(tmp_path: Path) -> None:
    pod = Pod(tmp_path / "pod", max_steps=4000, step_s=0.4, interval=20, environ=SOON)
    try:
        pod.start("run", "--restart")
        pod.wait_for(lambda: pod.step() >= 2, "steps are made")
        hung, job = int(pod.status()["daemon_pid"]), set(pids_of(pod.practice))
        time.sleep(15.0)  # longer than its patience: what is asserted is that nothing happens
        assert pod.status()["daemon_pid"] == hung, pod.story()
        os.kill(hung, signal.SIGSTOP)
        pod.wait_for(lambda: pod.said_so("nanny", "rl-supervisor hangs: its loop has not turned for"), "it is seen")
        pod.wait_for(lambda: pod.status().get("daemon_pid", hung) != hung, "another one is there")
        before = pod.wait_for(pod.step, "it has the job's steps")
        pod.wait_for(lambda: pod.step() >= before + 3, "steps go on")
        assert pod.said_so("adopted", "Took over the living job of attempt 1")
        assert job <= set(pids_of(pod.practice)), pod.story()
        assert len(pod.practice.starts()) == 1
        assert pod.daemon is not None
        pod.daemon.send_signal(signal.SIGTERM)
        assert pod.wait_exit() == 0, pod.story()
        assert not pod.practice.alive()
    finally:
        end(pod)


@pytest.mark.soak
def test_after_a_killed_nanny_the_next_one_is_the_parent_of_the_run(tmp_path: Path) -> None:
    """What `onstart.sh` starts when it is called again: its daemon gets the place of the one that was left."""
    pod = Pod(tmp_path / "pod", max_steps=4000, step_s=0.4, interval=20, environ=SOON)
    try:
        pod.start("run", "--restart")
        pod.wait_for(lambda: pod.step() >= 2, "steps are made")
        left, job = int(pod.status()["daemon_pid"]), set(pids_of(pod.practice))
        pod.kill_daemon()  # its nanny, that is
        pod.wait_for_here(lambda: psutil.Process(left).ppid() != pod.daemon.pid, "it is an orphan")
        assert pod.status()["daemon_pid"] == left
        pod.start("run", "--restart")
        pod.wait_for(lambda: pod.status().get("daemon_pid", left) != left, "another one is there")
        assert pod.said_so("lock", "The nanny of this daemon is gone, and another one is there")
        assert psutil.Process(int(pod.status()["daemon_pid"])).ppid() == pod.daemon.pid
        before = pod.wait_for(pod.step, "it has the job's steps")
        pod.wait_for(lambda: pod.step() >= before + 3, "steps go on")
        assert job <= set(pids_of(pod.practice)) and len(pod.practice.starts()) == 1, pod.story()
        pod.daemon.send_signal(signal.SIGTERM)
        assert pod.wait_exit() == 0, pod.story()
        assert not pod.practice.alive()
    finally:
        end(pod)
