"""Standstills made by real processes, seen by the real sensor, judged by the core: a second here is ten of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.sensors import effort
from supervisor.sensors.effort import EffortSensor
from supervisor.sensors.processes import identity_of
from tests.core.test_standstill import BUSY_W, QUIET, RESTS, SPINS, SPINS_W, look
from tests.core.world import World

STEP_S, LOOK_S, PER_LOOK_S = 240.0, 0.25, 10.0
RANKS = {
    "spins": "while True: pass",
    "sleeps in a futex": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
}
FETCHES = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as link, open(sys.argv[2], "wb", buffering=0) as file:
    while data := link.recv(1 << 20):
        file.seek(0), file.write(data)
"""


class Proxy:
    """Hands out bytes without end to each connection, until it is cut: then the connection stays and nothing comes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        link, _ = self._listener.accept()
        with link, contextlib.suppress(OSError):
            while not self.cut.is_set():
                link.sendall(b"x" * (1 << 20))
                self.cut.wait(0.01)
            self._over.wait(60)

    def close(self) -> None:
        self.cut.set(), self._over.set()
        self._listener.close()
        self._thread.join(5)


@contextlib.contextmanager
def child(*words: str) -> Iterator[tuple[int, int]]:
    process = subprocess.Popen([sys.executable, "-c", *words])
    try:
        known = identity_of(process.pid)
        assert known is not None
        yield known
    finally:
        process.kill()
        process.wait()


def run_of_sixty_steps() -> World:
    """A run that is known well."""
    world = World()
    world.boot()
    world.job_up()
    look(world, SPINS_W, tokens=False)
    for number in range(1, 61):
        for _ in range(int(STEP_S / 40)):
            world.t += 40
            look(world, BUSY_W, tokens=True, load=SPINS)
            world.see(QUIET)
        world.see(f.StepDone("trainer", number, STEP_S, loss=0.1))
    world.actions.clear()
    return world


@pytest.mark.soak
@pytest.mark.parametrize(("rank", "load", "limit_s"), [("spins", SPINS, 90.0), ("sleeps in a futex", RESTS, 300.0)])
def test_a_network_that_is_cut_leaves_a_standstill_behind(
    rank: str, load: float, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the environment fetches through the proxy the run lives; when that is cut, its picture convicts it."""
    monkeypatch.setattr(effort, "HEARTBEAT_S", 0.0)  # of the real clock, which is slower than that of the core here
    world, proxy = run_of_sixty_steps(), Proxy()
    with child(RANKS[rank]) as trainer, child(FETCHES, str(proxy.port), str(tmp_path / "fetched")) as env:
        watched: list[tuple[f.Role | None, int, int, bool]] = [("trainer", *trainer, True), ("env", *env, True)]
        quiet = tmp_path / "dev"  # other programs of this machine may receive what they like meanwhile
        quiet.write_text("\n\n  eth0: 9 0 0 0 0 0 0 0 9\n")
        sensor = EffortSensor(lambda: watched, net=quiet, vmstat=quiet)

        def stands(most_s: float) -> float:
            began = world.t
            while not world.asked(a.Stop) and world.t < began + most_s:
                time.sleep(LOOK_S)  # how long the processes work or rest between two looks
                world.t += PER_LOOK_S
                look(world, SPINS_W, tokens=False, load=load)
                for fact in sensor.look():
                    world.see(fact)
            return world.t - began

        try:
            deadline = time.monotonic() + 30
            while not (tmp_path / "fetched").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert stands(130.0) == 130.0, world.said("verdict")
            proxy.cut.set()
            assert limit_s - 30 <= stands(3600.0) <= limit_s + 50
        finally:
            proxy.close()
    (sentence,) = world.said("verdict")
    assert load == RESTS or "no environment, file or network moved" in sentence
    assert ("as in a collective that never ends" in sentence) == (rank == "spins")
