"""The journal of a living run is damaged or deleted between two daemons: real processes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from .rig import Pod
from .test_pods import first_pod

LONG = {"store": {"take_over_after": 600}}
"""What no test waits for: who goes on within a test did not wait for its own heartbeat."""


def noise(path: Path) -> None:
    """From its middle on; a log that is empty gets some all the same."""
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[:half] + random.Random(7).randbytes(max(4096, len(data) - half)))


def junk(path: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(max(4096, path.stat().st_size)))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def gone(path: Path) -> None:
    path.unlink()


def damaged(pod: Pod, *endings: str, how: Callable[[Path], None] = gone) -> None:
    """Kill the daemon, and do so to these files of its journal."""
    pod.kill_daemon()
    for ending in endings:
        how(pod.state_dir / f"journal.db{ending}")
    pod.start()


def adopts(pod: Pod) -> None:
    """The job of before is watched on: none is started beside it, and the run is claimed at once."""
    claims, steps = len(pod.sentences("claimed")), len(pod.sentences("published"))
    pod.wait_for(lambda: len(pod.sentences("claimed")) > claims, "it waits for no heartbeat of its own")
    pod.wait_for(lambda: len(pod.sentences("published")) > steps, "the job makes steps, and they are published")
    assert len(pod.practice.starts()) == 1, pod.story()


@pytest.mark.soak
def test_a_living_job_is_adopted_after_its_journal_is_gone_and_a_stopped_run_stays_stopped(
    tmp_path: Path, pods: list[Pod]
) -> None:
    pod = first_pod(
        tmp_path / "one", "v0.6", store=(tmp_path / "store").as_uri(), settings=LONG, max_steps=400, step_s=0.4
    )
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: pod.stored(), "a step is stored")
    assert not pod.sentences("journal-lost"), "a first start is no loss"

    damaged(pod, "", "-wal", "-shm")
    adopts(pod)
    (said,) = pod.sentences("journal-lost")
    assert said.startswith(f"The journal {pod.state_dir}/journal.db is missing: what was decided until ")
    assert said.rstrip(".") in str(pod.status()["sentence"])
    incidents = pod.ctl("incidents")
    assert incidents.returncode == 0 and "[journal-lost]" in incidents.stdout, incidents

    pod.command("stop")
    pod.wait_for(lambda: pod.status().get("state") == "stopped", "it is stopped")
    damaged(pod, "", "-wal", how=junk)  # each alone may cost nothing: what the log holds goes over the database
    pod.wait_for(lambda: len(pod.sentences("journal-lost")) == 2, "the loss is told")
    assert "was damaged, and is kept as journal.db.damaged-" in pod.sentences("journal-lost")[-1]
    pod.wait_for(lambda: pod.status().get("state") == "stopped" and pod.status().get("stored_steps"), "it is looked at")
    assert len(pod.practice.starts()) == 1, "a person had stopped it"
    pod.command("start")
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "a person starts it")


@pytest.mark.soak
def test_no_damage_of_the_journal_touches_the_living_job(tmp_path: Path, pods: list[Pod]) -> None:
    store = (tmp_path / "store").as_uri()
    pod = first_pod(tmp_path / "one", "v0.6", store=store, settings=LONG, max_steps=2000, step_s=0.4, interval=6)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: pod.stored(), "a step is stored")
    for endings, how in (
        (("-wal",), gone),
        (("",), gone),
        (("", "-shm"), gone),
        (("-wal",), noise),
        (("",), noise),
        (("-wal", "-shm"), cut),
        (("",), cut),
    ):
        before = len(pod.sentences("journal-lost"))
        damaged(pod, *endings, how=how)
        adopts(pod)
        # What one of the two files lacks the other may hold; without the database all of it is lost.
        if "" in endings and how is gone:
            assert len(pod.sentences("journal-lost")) > before, (endings, how)
