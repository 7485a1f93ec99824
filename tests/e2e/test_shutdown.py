"""A daemon that is stopped in a bad moment: real processes, and a store that is slow or away."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.b2server import B2Server

from .rig import Pod
from .test_leaving import newest_complete, over_b2, terminate
from .test_pods import first_pod, in_bucket, in_latest


def unpublished(pod: Pod, b2: B2Server) -> int:
    """A job that lives, whose newest complete step the store has not taken."""
    pod.start()
    pod.wait_for(lambda: pod.sentences("published"), "a step is published")
    b2.fail("b2_get_upload_url|b2_start_large_file|b2_upload_file", times=100_000, status=503)

    def behind() -> bool:
        newest = pod.status().get("last_good_step")
        return newest is not None and newest > max(in_bucket(b2)) + 1

    pod.wait_for(behind, "a step is complete and not published")
    return max(in_bucket(b2))


def status(pod: Pod) -> subprocess.CompletedProcess[str]:
    """`supervisorctl status RUN.toml`, with no daemon there."""
    command = [sys.executable, "-m", "supervisor.cli.ctl", "status", str(pod.run_file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.soak
def test_a_daemon_that_was_killed_and_is_stopped_as_soon_as_it_is_active_again_publishes_the_newest_step(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    pod = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.3, **over_b2(b2))
    pods.append(pod)
    stored = unpublished(pod, b2)
    pod.kill_daemon()
    b2.state.faults.clear()
    b2.fail("b2_list_file_versions|b2_list_file_names", times=3, delay_s=2)  # as far away as a real store
    watched = len(pod.sentences("daemon"))
    pod.start()
    pod.wait_for(lambda: len(pod.sentences("daemon")) > watched, "it watches the run again")
    terminate(pod)
    assert pod.wait_exit() == 0, pod.story()
    assert not pod.practice.alive()
    newest = newest_complete(pod)
    assert newest > stored and max(in_bucket(b2)) == newest, pod.story()
    assert in_latest(b2)["step"] == f"step_{newest}"
    assert not pod.sentences("unpublished")


def test_a_daemon_that_is_told_to_end_before_it_listens_ends_the_job_all_the_same_and_the_next_one_goes_on(
    tmp_path: Path, pods: list[Pod]
) -> None:
    """systemd calls an end by SIGTERM clean: the job would live on, and nobody would hear of it."""
    pod = first_pod(tmp_path / "one", "v0.6", store=(tmp_path / "store").as_uri(), max_steps=400, step_s=0.3)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: pod.stored(), "a step is stored")
    pod.kill_daemon()
    pod.start()
    assert pod.daemon is not None
    mask = Path(f"/proc/{pod.daemon.pid}/status")

    def waits() -> bool:
        blocked = next(line for line in mask.read_text().splitlines() if line.startswith("SigBlk"))
        return bool(int(blocked.split()[1], 16) & (1 << (signal.SIGTERM - 1)))

    pod.wait_for(waits, "signals wait")
    terminate(pod)
    assert pod.wait_exit() == 0, pod.story()
    assert not pod.practice.alive()
    newest = newest_complete(pod)
    assert max(pod.stored()) == newest
    assert pod.latest()["step"] == f"step_{newest}"
    pod.start()
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "the next daemon goes on")
    assert pod.resume_steps() == [None, newest]


@pytest.mark.soak
def test_a_store_that_is_away_for_fifteen_seconds_at_a_stop_still_gets_the_last_step_and_the_run_back(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    pod = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.3, **over_b2(b2))
    pods.append(pod)
    unpublished(pod, b2)
    b2.fail(".*", times=100_000, status=503, code="service_unavailable")
    terminate(pod)
    back = threading.Timer(15.0, b2.state.faults.clear)
    back.start()
    assert pod.wait_exit() == 0, pod.story()
    back.join()
    assert max(in_bucket(b2)) == newest_complete(pod), pod.story()
    assert not pod.sentences("unpublished") and not pod.sentences("release-failed"), pod.story()


@pytest.mark.soak
def test_with_the_store_away_the_last_sentence_and_status_name_the_step_and_its_command_publishes_it(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    pod = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.3, **over_b2(b2))
    pods.append(pod)
    stored = unpublished(pod, b2)
    b2.fail(".*", times=100_000, status=403, code="access_denied")
    terminate(pod)
    assert pod.wait_exit() == 0, pod.story()
    newest = newest_complete(pod)
    words = f"Step {newest} is complete and only on this disk: "
    last = pod.said()[-1]
    assert last["event"] == "unpublished" and str(last["sentence"]).startswith(words), pod.story()
    command = f"rl-supervisor publish {pod.run_file} --step {newest}"
    assert str(last["sentence"]).endswith(f"Do not end this pod. Publish the step with: {command}")
    assert f"The store's newest is step {stored}." in str(last["sentence"])
    told = status(pod)
    on_one_line = " ".join(told.stdout.split())  # it is broken at the width of a terminal, where pytest has one
    assert told.returncode == 3 and words.strip() in on_one_line and command in on_one_line, told

    b2.state.faults.clear()
    done = pod.by_hand("publish", "--step", str(newest))
    assert done.returncode == 0, done
    assert max(in_bucket(b2)) == newest
