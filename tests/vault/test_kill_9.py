"""The same with a real process: SIGKILL to the transfer child at the n-th moment that the server sees of it.

A moment is a request that arrived and of which nothing is done yet, or one whose work is done and whose answer is
about to leave. The kill is carried out inside that moment, so the point is exact and not a matter of luck. These are
some of the moments; `test_killed_anywhere.py` stops in each of them, within this process.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.b2server import B2Server
from tests.checkpoints_store.conftest import Transfer, Transfers
from tests.checkpoints_store.conftest import transfers as transfers
from tests.vault.pod import NAMES, PART, RUN, Pod, go_back, save
from tests.vault.scenes import Scene, after_a_further_step, after_pruning, before_a_further_step, nothing, published
from tests.vault.test_killed_anywhere import _nothing_is_lost, _nothing_was_sent_twice

LAST = 500
"""No scene has as many moments."""


def where(server: B2Server) -> dict[str, Any]:
    return {"store": {"url": "b2://the-bucket/team", "realm": server.url, "streams": 4, "part_size": None}}


def publish_request(pod: Pod) -> dict[str, Any]:
    files = [{"source": str(file.source), "name": file.name} for file in pod.plan(40).files]
    return {"do": "publish", "run_id": RUN, "step": 40, "files": files, "state_dir": str(pod.state), "writer": "pod-a"}


def delete_request(pod: Pod) -> dict[str, Any]:
    return {"do": "delete", "run_id": RUN, "step": 20}


def restore_request(pod: Pod) -> dict[str, Any]:
    place = {"primary": "checkpoints/step_40"}
    return {"do": "restore", "run_id": RUN, "step": 40, "output_dir": str(pod.output), "place": place}


def empty_disk(pod: Pod) -> None:
    published(20, 40)(pod)
    shutil.rmtree(pod.output)
    pod.output.mkdir()


def after_restoring(pod: Pod) -> None:
    assert {name: pod.local(40, name).read_bytes() for name in NAMES} == pod.expected[40]


SCENES: dict[str, tuple[Scene, Callable[[Pod], dict[str, Any]]]] = {
    "publish": (Scene(before_a_further_step, nothing, after_a_further_step, (20,), (20, 40)), publish_request),
    "prune": (Scene(published(20, 40, 60), nothing, after_pruning, (40, 60), (60,)), delete_request),
    "restore": (Scene(empty_disk, nothing, after_restoring, (20, 40), (40,)), restore_request),
}


class Executioner:
    """Kills its process inside the n-th moment."""

    def __init__(self, server: B2Server, number: int) -> None:
        self.server, self.number = server, number
        self.seen: list[str] = []
        self.victim: Transfer | None = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        server.state.watch = self._moment

    def take(self, victim: Transfer) -> None:
        self.victim = victim
        self._ready.set()

    def _moment(self, which: str, entry: dict[str, Any]) -> bool:
        self._ready.wait(30)
        with self._lock:
            if len(self.seen) >= self.number:
                return True  # dead already: what other threads of it had on the way does not arrive
            self.seen.append(f"{which} {entry['op']} {entry['name']}")
            if len(self.seen) < self.number:
                return False
            assert self.victim is not None
            self.victim.process.kill()
            self.victim.process.wait(20)
            return True


def kill_and_start_again(pod: Pod, transfers: Transfers, name: str, numbers: Any) -> int:
    """Returns how many were killed; ends with the first number that no moment has any more."""
    scene, request = SCENES[name]
    server = pod.server
    assert server is not None
    scene.before(pod)
    saved = save(pod)
    killed = 0
    for number in numbers:
        go_back(pod, saved)
        executioner = Executioner(server, number)
        victim = transfers.start(request(pod) | where(server), server.environ())
        executioner.take(victim)
        victim.process.communicate(timeout=60)
        server.state.watch = None
        server.wait_idle()
        if len(executioner.seen) < number:
            return killed
        killed += 1
        try:
            assert victim.process.returncode == -9
            _nothing_is_lost(pod, scene)
            transfers.ok(request(pod) | where(server), server.environ())
            scene.afterwards(pod)
            _nothing_is_lost(pod, scene)
            assert pod.garbage() == []
            _nothing_was_sent_twice(pod)
        except AssertionError as error:
            raise AssertionError(f"{name}, killed in moment {number}, {executioner.seen[-1]}: {error}") from error
    return killed


@pytest.fixture
def b2_pod(quick_dir: Path) -> Any:
    home = quick_dir / "pod"
    home.mkdir()
    with B2Server(part_size=PART) as server:
        yield Pod(home, server)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "every", "least"), [("publish", 6, 5), ("prune", 4, 3), ("restore", 4, 3)])
def test_kill_9_from_the_first_moment_to_the_last(
    b2_pod: Pod, transfers: Transfers, name: str, every: int, least: int
) -> None:
    assert kill_and_start_again(b2_pod, transfers, name, range(1, LAST, every)) >= least
