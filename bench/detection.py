"""From a fault to the verdict, and on to the job's next start: the real daemon with production's defaults.

The faults are made here, by process number, so that the moment is known without asking anybody: an engine process that
is killed; an engine that is stopped (its requests hang); an engine and its API server that are stopped while the memory
is taken from the GPUs, so that the process table shows nothing and only signals can tell.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.peer import Peer
from bench.pod import environment, practice_of, production_pod, times
from tests.e2e.rig import Pod
from tests.practice.processes import start_ticks
from tests.practice.run import Practice, wait_until

PEER_WAITS_S = 60.0
KNOBS = {"step_s": 1.5, "interval": 4, "engine_exit_delay_s": 5.0, "pipeline_log_s": 10.0, "liveness_timeout_s": 30.0}
"""The practice job's own times where the real job's decide what can be seen when: a dead engine's API server looks
every 5 s, pipeline lines come every 10 s, /liveness waits for 30 s."""


@dataclass
class Measured:
    """Seconds, one for each repetition."""

    killed: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    hang: list[float] = field(default_factory=list)
    relaunch: list[float] = field(default_factory=list)
    """From the verdict to the next launcher's start, the job's stopping included."""
    stopping: list[float] = field(default_factory=list)
    """From the verdict until nothing of the old attempt was left."""
    sentences: list[str] = field(default_factory=list)
    peer_noticed: bool = False
    peer_engines: int = 0


def measure(folder: Path, kills: int, progress: Callable[[str], None]) -> Measured:
    """Two pods at a time: one whose engine is killed again and again, one that meets the two quiet faults."""
    measured = Measured()

    def killed_engines() -> None:
        with _Bench(folder / "killed") as bench:
            for number in range(kills):
                bench.ready()
                measured.killed.append(bench.fault(_kill_engine, measured))
                progress(f"engine killed, {number + 1} of {kills}: verdict after {measured.killed[-1]:.1f} s")

    def quiet_faults() -> None:
        with _Bench(folder / "quiet") as bench:
            bench.ready()
            measured.memory.append(bench.fault(_empty_memory, measured))
            progress(f"memory fell: verdict after {measured.memory[-1]:.1f} s")
            bench.ready()
            measured.hang.append(bench.fault(_hang_engine, measured))
            progress(f"engine hangs: verdict after {measured.hang[-1]:.1f} s")

    def peer() -> None:
        measured.peer_noticed, measured.peer_engines = _peer(folder / "peer")
        progress(f"engine killed under supervisord: {'noticed' if measured.peer_noticed else 'not noticed'}")

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(work) for work in (killed_engines, quiet_faults, peer)]:
            future.result()
    return measured


class _Bench:
    """A pod that meets one fault after the other."""

    def __init__(self, folder: Path) -> None:
        self.practice = practice_of(folder, **KNOBS)  # type: ignore[arg-type]
        self.pod = production_pod(folder, self.practice, interval=int(KNOBS["interval"]))
        self._published = 0

    def __enter__(self) -> _Bench:
        self.pod.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pod.close()

    def ready(self) -> None:
        """Wait until this attempt has published a step: then a fault finds a run in full swing."""
        self.pod.wait_for(lambda: len(times(self.pod, "published")) > self._published, "a step is published", 180)

    def fault(self, make: Callable[[Practice], float], measured: Measured) -> float:
        """Make the fault, wait until the run is well again; returns the seconds to the verdict."""
        pod, practice = self.pod, self.practice
        verdicts, starts, closed = (
            len(times(pod, "verdict")),
            len(practice.starts()),
            len(times(pod, "incident-closed")),
        )
        old = set(practice.alive())
        struck = make(practice)
        pod.wait_for(lambda: len(times(pod, "verdict")) > verdicts, "a verdict", 180)
        verdict = times(pod, "verdict")[-1]
        measured.sentences.append(pod.sentences("verdict")[-1])
        gone = _when(pod, lambda: not old & practice.alive().keys())
        pod.wait_for(lambda: len(practice.starts()) > starts, "the next start", 180)
        launcher = int(practice.starts()[-1]["pid"])
        measured.stopping.append(gone - verdict)
        measured.relaunch.append(_started(launcher) - verdict)
        pod.wait_for(lambda: len(times(pod, "incident-closed")) > closed, "the incident is over", 180)
        self._published = len(times(pod, "published"))
        return verdict - struck


def _when(pod: Pod, condition: Callable[[], bool]) -> float:
    pod.wait_for(condition, "the old attempt is gone", 120)
    return time.time()


def _started(pid: int) -> float:
    """Unix time at which a process was started, to 10 ms (psutil's own is to the second of the boot)."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks(pid) / os.sysconf("SC_CLK_TCK")
    return time.time() - age


# ---------------------------------------------------------------- the faults; each returns its moment (Unix time)


def _engines(practice: Practice) -> list[int]:
    wait_until(lambda: practice.pids("engine-core"), "the engine process", 30)
    return practice.pids("engine-core")


def _kill_engine(practice: Practice) -> float:
    engines = _engines(practice)
    struck = time.time()
    for pid in engines:
        os.kill(pid, signal.SIGKILL)
    return struck


def _hang_engine(practice: Practice) -> float:
    engines = _engines(practice)
    struck = time.time()
    for pid in engines:
        os.kill(pid, signal.SIGSTOP)
    return struck


def _empty_memory(practice: Practice) -> float:
    engines = _engines(practice)
    struck = time.time()
    for pid in engines + practice.pids("inference"):
        os.kill(pid, signal.SIGSTOP)
    for pid in engines:
        held = practice.gpus / f"pid.{pid}"
        fresh = held.with_name(f".fresh.{pid}")
        fresh.write_text(held.read_text().splitlines()[0] + "\n")
        fresh.replace(held)
    return struck


# ---------------------------------------------------------------- the peer


def _peer(folder: Path) -> tuple[bool, int]:
    """Does supervisord start the launcher again within a minute? And how many engines live then?"""
    practice = practice_of(folder, **KNOBS)  # type: ignore[arg-type]
    command = [str(practice.home / ".venv" / "bin" / "rl"), "@", str(practice.config)]
    peer = Peer(folder / "supervisord", command, practice.home, environment(practice, folder / "nvml"))
    try:
        wait_until(lambda: len(practice.trained_steps()) > 2, "steps under supervisord", 60)
        _kill_engine(practice)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: peer.spawned() > 1, "another start", PEER_WAITS_S)
        return peer.spawned() > 1, len(practice.pids("engine-core"))
    finally:
        peer.close()
        practice.end_all()
