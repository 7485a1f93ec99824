"""What the daemon's main process costs, beside supervisord's with an equal child at the same time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from bench.peer import Peer
from bench.pod import chatty, environment, practice_of, production_pod
from tests.practice.run import wait_until

GPUS = 8
LINES_PER_S = 100
MIB = 1 << 20


@dataclass(frozen=True)
class Cost:
    """Means over the measured time; memory at its end. ``cpu`` is in percent of one core."""

    seconds: float
    cpu: float
    rss_mib: float
    pss_mib: float
    highest_rss_mib: float
    threads: int
    helpers_cpu: float
    """Of the children that were started and had ended meanwhile (transfers, hashing)."""
    shim_rss_mib: float = 0.0
    lines: int = 0


def read_highest_kib(pid: int) -> int:
    """VmHWM, since ``ru_maxrss`` of a child begins with that of its parent. 0 once it has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


def measure(warm_up_s: float, seconds: float, folder: Path) -> tuple[Cost, Cost]:
    """Ours and the peer's. Steps of ten seconds, a checkpoint every ten of them, each published."""
    knobs = {"gpus": GPUS, "step_s": 10.0, "interval": 10, "pipeline_log_s": 10.0}
    ours = practice_of(folder / "ours", **knobs)  # type: ignore[arg-type]
    theirs = practice_of(folder / "theirs", **knobs)  # type: ignore[arg-type]
    pod = production_pod(folder / "ours", ours, interval=10, lines_per_s=LINES_PER_S)
    command = [*chatty(theirs, LINES_PER_S), "@", str(theirs.config)]
    peer = Peer(folder / "theirs" / "peer", command, theirs.home, environment(theirs, folder / "nvml"))
    try:
        pod.start()
        pod.wait_for(lambda: pod.step() >= 1, "the first step", 120)
        wait_until(theirs.trained_steps, "the first step under supervisord", 120)
        assert pod.daemon is not None
        time.sleep(warm_up_s)
        meters = [Meter(pod.daemon.pid), Meter(peer.process.pid)]
        log = next(pod.state_dir.glob("attempts/*/rl.log"))
        lines = _lines(log)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for meter in meters:
                meter.look()
            time.sleep(1)
        launcher = psutil.Process(int(ours.starts()[-1]["pid"]))
        shim = launcher.parent()
        shim_mib = shim.memory_info().rss / MIB if shim is not None else 0.0
        mine, other = (meter.cost() for meter in meters)
        return replace(mine, shim_rss_mib=shim_mib, lines=_lines(log) - lines), other
    finally:
        pod.close()
        peer.close()
        theirs.end_all()


class Meter:
    """One process, measured from now on."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._begun, self._times = time.monotonic(), self._process.cpu_times()
        self._highest = 0

    def look(self) -> None:
        """Note its memory, for the highest."""
        self._highest = max(self._highest, self._process.memory_info().rss)

    def cost(self) -> Cost:
        """From its beginning until now."""
        times, seconds = self._process.cpu_times(), time.monotonic() - self._begun
        before = self._times
        memory = self._process.memory_full_info()
        return Cost(
            seconds=seconds,
            cpu=100 * (times.user + times.system - before.user - before.system) / seconds,
            rss_mib=memory.rss / MIB,
            pss_mib=memory.pss / MIB,
            highest_rss_mib=self._highest / MIB,
            threads=self._process.num_threads(),
            helpers_cpu=100
            * (times.children_user + times.children_system - before.children_user - before.children_system)
            / seconds,
        )


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
