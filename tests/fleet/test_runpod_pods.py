"""A run on RunPod whose pods are real: the fake starts the command of each, as a container would."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.fleet import decide, observe
from supervisor.fleet.assemble import Assembly, assemble
from tests.fleet.fake_runpod import KEY, FakeRunpod
from tests.fleet.hosts import JOB, kill_pod, processes_of, start_pod
from tests.fleet.test_real_pods import RUN_FILE, STEPS, published, tick_until

FLEET = """
[fleet]
store = "{store}"
[limits]
per_hour = 8
total = 1
[place.spot]
provider = "runpod"
gpu = "NVIDIA H100 80GB HBM3"
gpus = 2
most_per_hour = 6.0
image = "ghcr.io/me/prime-rl:1"
[run.fled]
file = "fled.toml"
places = ["spot"]
"""


class Containers(FakeRunpod):
    """Each pod has a home of its own in ``folder``, where its processes run until it is stopped."""

    folder: Path

    def add_pod(self, machine: Any, count: int = 2, **fields: Any) -> str:
        pod_id = super().add_pod(machine, count, **fields)
        home = self.folder / pod_id
        home.mkdir(mode=0o700)
        environ = self.pods[pod_id]["env"].copy()
        del environ["RL_SUPERVISOR_PROMISED"]  # this machine has no H100: it would be a host that lied
        start_pod(home, shlex.split(self.pods[pod_id]["args"]), environ)
        self.set_state(pod_id, "RUNNING")
        return pod_id

    def set_state(self, pod_id: str, status: str, desired: str = "") -> None:
        super().set_state(pod_id, status, desired)
        if status == "EXITED":
            self.kill(pod_id)

    def _end(self, pod_id: str) -> None:
        super()._end(pod_id)
        self.kill(pod_id)

    def kill(self, pod_id: str) -> None:
        kill_pod(self.folder / pod_id)


@pytest.fixture
def runpod(tmp_path: Path) -> Iterator[Containers]:
    with Containers() as fake:
        fake.folder = tmp_path
        yield fake
        for rental in fake.ledger:
            fake.kill(rental.pod)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runpod: Containers) -> Assembly:
    monkeypatch.setattr(observe, "SECOND_LOOK_S", 2.0)
    monkeypatch.setattr(decide, "SECOND_LOOK_S", 2.0)
    (tmp_path / "job.py").write_text(JOB)
    store = (tmp_path / "store").as_uri()
    words = {"steps": STEPS, "python": sys.executable, "job": tmp_path / "job.py", "store": store}
    (tmp_path / "fled.toml").write_text(RUN_FILE.format(**words))
    (tmp_path / "fleet.toml").write_text(FLEET.format(store=store))
    for name in (tmp_path, *tmp_path.iterdir()):
        name.chmod(0o700)
    return assemble(tmp_path / "fleet.toml", {"RUNPOD_API_KEY": KEY, "RUNPOD_API_BASE_URL": runpod.url})


@pytest.mark.soak
def test_an_outbid_spot_pod_is_followed_by_the_next_which_finishes(
    fleet: Assembly, runpod: Containers, tmp_path: Path
) -> None:
    runpod.add_machine(2.0, 1.0)
    machine = runpod.add_machine(2.0, 1.5)
    tick_until(fleet, lambda: published(tmp_path) >= 10)
    (first,) = runpod.living()
    runpod.set_lowest_bid(next(iter(runpod.machines.values())), 3.0)
    said = tick_until(fleet, lambda: published(tmp_path) == STEPS)
    assert any("in spot at $3.66 an hour: no beat for" in one for one in said), said
    second = runpod.ledger[1]
    steps = [int(line.split()[1]) for line in (tmp_path / second.pod / "out/steps").read_text().splitlines()]
    assert (steps[0] > 10, steps[-1]) == (True, STEPS)  # it went on, and did not begin again
    assert processes_of(tmp_path / first.pod) == []
    said = tick_until(fleet, lambda: not runpod.living())
    assert any("The run has ended: The run is finished" in one for one in said), said
    assert len(runpod.ledger) == 2
    assert machine.free == 2
