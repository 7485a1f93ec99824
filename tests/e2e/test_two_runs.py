"""Two runs on one pod, each with GPUs, ports and folders of its own: the death of one is nothing to the other.

The same programs, the same user, the same names of processes, even the same name of the run; and one driver that lists
the GPUs of both.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.process import survivors
from supervisor.process.survivors import Identity
from tests.e2e.rig import Pod
from tests.practice.gpus import make_gpus
from tests.practice.run import make_practice

ERA = "v0.6"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Pod, Pod]]:
    gpus = tmp_path / "gpus"
    make_gpus(gpus, 4)
    pods = []
    for number, (name, interval) in enumerate((("victim", 2), ("neighbour", 20))):
        folder = tmp_path / name
        mine = (2 * number, 2 * number + 1)
        made = make_practice(folder / "practice", ERA, max_steps=2000, interval=interval, step_s=0.3, gpu_count=4)
        practice = replace(made, gpus=gpus)
        settings = {"gpus": {"inference": [mine[0]], "trainer": [mine[1]]}}
        pods.append(Pod(folder, ERA, practice=practice, settings=settings, interval=interval))
    yield pods[0], pods[1]
    for pod in pods:
        pod.close()


def identities(pod: Pod) -> set[Identity]:
    """Everything of the run that is to stay: its registered processes and its shims."""
    pids = [*pod.practice.alive(), *(shim.pid for shim in pod._shims())]
    return {found.identity for pid in pids if (found := survivors.look_at(pid))}


def kill_again_and_again(victim: Pod, neighbour: Pod) -> None:
    for pod in (victim, neighbour):
        pod.start()
    for pod in (victim, neighbour):
        pod.wait_for(lambda pod=pod: pod.step() >= 2, "step 2")
    before, step = identities(neighbour), neighbour.step()
    assert len(before) >= 5
    for number, role in enumerate(("trainer-rank", "rl", "engine-core", "orchestrator", "trainer-rank")):
        stored = max(victim.stored(), default=0)
        found = victim.practice.pids(role)
        assert found, victim.story()
        os.kill(found[0], signal.SIGKILL)
        victim.wait_for(lambda number=number: len(victim.practice.starts()) > number + 1, f"start {number + 2}")
        victim.wait_for(lambda number=number: len(victim.sentences("incident-closed")) > number, "a new step")
        # A run that makes no progress between its deaths would be given up, and rightly.
        victim.wait_for(lambda stored=stored: max(victim.stored(), default=0) > stored, "a new complete step")
    assert identities(neighbour) == before
    assert len(neighbour.practice.starts()) == 1
    assert neighbour.sentences("verdict") == []
    assert not neighbour.status().get("incident")
    neighbour.wait_for(lambda: neighbour.step() > step, "the neighbour goes on")
    assert victim.daemon is not None and victim.daemon.poll() is None


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_each_part_of_one_run_is_killed_and_the_other_is_never_touched(two: tuple[Pod, Pod]) -> None:
    kill_again_and_again(*two)
