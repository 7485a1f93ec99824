"""A cluster that never was: one run over many machines, and the faults that strike it, by a seed.

All of it is drawn before any policy acts, so each policy meets the same. **Every figure is modelled**; these are the
sources:

- How often a machine of 8 GPUs fails (``RATES``): 419 unexpected interruptions in 54 days on 2,048 machines (Llama 3,
  arXiv 2407.21783, table 5); 6.50 and 2.34 in 1,000 days of a machine (RSC-1 and RSC-2, arXiv 2410.21680); 4.18
  (stepfun-ai/InfiniteHBD-Trace@7aacdc8c, 400 servers, 348 days). Seed 1 has the first of them, seed 2 the second, and
  so on.
- What fails (``MIX``): the 419 of Llama 3 by their kinds. Its 35 of network switches and cables: half of them are a
  switch here, and take a rack (assumed).
- A server that was struck fails again within a day in 21.3 % (InfiniteHBD). Here that holds for each fault that leaves
  its machine in use.
- An engine that dies ends with exit code 0 in two of three cases (assumed, as in ``mix.toml``): vLLM with one API
  server does (vllm issue 48966).
- The job is that of the other simulator's default scenario, whatever the number of machines: steps of 240 s median, a
  save of 30 s after every fifth, 300 s from launch to the first step. A quarter of the machines train, the others are
  engines (assumed). A job whose process or machine is gone makes no progress, and spares and racks are assumed.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from math import log
from random import Random
from typing import Literal

from supervisor.simulator.scenario import load_scenario

HOUR_S, DAY_S = 3600.0, 86400.0
Kind = Literal["lost", "switch", "gpu", "crash", "hang"]
RATES = {"Llama 3": 419 / 54 / 2048, "RSC-1": 6.50e-3, "RSC-2": 2.34e-3, "InfiniteHBD": 4.18e-3}  # a day of a machine
MIX: dict[Kind, float] = {
    "lost": 53 + 17.5,  # host maintenance 32, NIC 7, SSD 3, PSU 3, chassis, IO, CPU, memory 2 each; cables
    "switch": 17.5,
    "gpu": 268,  # faulty GPU 148, HBM3 72, SRAM 19, GPU system processor 17, silent corruption 6, thermal 6
    "crash": 56,  # software 54, dependency 2: its machine is well, or looks so
    "hang": 7,  # NCCL watchdog timeouts
}
AGAIN = 0.213  # of the faults that leave their machine in use, within a day
SILENT = 2 / 3  # of the deaths of engines: exit code 0
RACK = 4
MACHINES_A_SPARE = 64

SAVES = ("trainer_gpus=8", "checkpoint_gb=45", "volume_gb_s=1.5")  # assumed: a volume that many machines share


@dataclass(frozen=True)
class Fault:
    """It strikes ``t`` seconds after the beginning what works at ``place``; a place beyond the job's is a spare."""

    t: float
    kind: Kind
    place: int
    silent: bool = False  # an engine that dies of it ends with exit code 0
    again: tuple[float, ...] = ()  # so many seconds after each time the same machine is struck again, if it is in use

    @property
    def takes_machine(self) -> bool:
        """Is nothing heard of the machine any more?"""
        return self.kind in ("lost", "switch")


@dataclass(frozen=True)
class Cluster:
    """All that will happen, whatever a policy does."""

    seed: int
    machines: int  # that the job needs
    days: float
    steps: tuple[float, ...]  # how long each takes
    faults: tuple[Fault, ...]

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.days * DAY_S

    @property
    def trainers(self) -> int:
        """Machines that train, the first ones; the orchestrator is on the first."""
        return max(1, self.machines // 4)

    def is_engine(self, place: int) -> bool:
        """Does an engine die of what strikes this place? One machine alone has all of the job: it is its engine."""
        return self.machines == 1 or place >= self.trainers

    def is_struck_by(self, fault: Fault) -> bool:
        """Does it strike a machine that the job needs?"""
        return fault.place < self.machines


def count_spares(machines: int) -> int:
    """One for each 64 machines begun; none beside a single one, which is the head."""
    return 0 if machines == 1 else -(-machines // MACHINES_A_SPARE)


def draw_cluster(seed: int, machines: int, days: float) -> Cluster:
    """The cluster of a seed."""
    job, end_s = load_scenario("default", SAVES).physics, days * DAY_S
    random = Random(f"{seed}/{machines}/steps")
    enough = int(2 * end_s / job.step_s) + 1
    steps = tuple(random.lognormvariate(log(job.step_s), job.step_sigma) for _ in range(enough))
    random, faults = Random(f"{seed}/{machines}/faults"), []
    rate = list(RATES.values())[(seed - 1) % len(RATES)]
    there = machines + count_spares(machines)
    t = random.expovariate(rate * there / DAY_S)
    while t < end_s:
        [kind] = random.choices(list(MIX), list(MIX.values()))
        place, silent, again = random.randrange(there), random.random() < SILENT, []
        while random.random() < AGAIN:
            again.append(random.uniform(0, DAY_S))
        leaves = kind in ("crash", "hang")
        faults.append(Fault(t, kind, place, silent, tuple(again) if leaves else ()))
        t += random.expovariate(rate * there / DAY_S)
    return Cluster(seed, machines, days, steps, tuple(faults))


class Track:
    """Where a job is that trains for some seconds: steps and the saves between them, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        job = load_scenario("default", SAVES).physics
        self.steps, self.interval, self.load_s = cluster.steps, job.interval, job.load_s
        ends = list(accumulate(cluster.steps, initial=0.0))
        self._ends = [end + (n - 1) // job.interval * job.save_s if n else 0.0 for n, end in enumerate(ends)]
        self._saved = [self._ends[n] + (job.save_s if n else 0.0) for n in range(0, len(ends), job.interval)]

    def seconds_to(self, resumed: int, step: int, *, saved: bool = False) -> float:
        """From the launch of a job that resumed at a saved step until this one is done, or also saved."""
        began = self._saved[resumed // self.interval]
        return self.load_s + (self._saved[step // self.interval] if saved else self._ends[step]) - began

    def find_steps(self, resumed: int, seconds: float) -> tuple[int, int]:
        """The last step done, and the last one saved, by a job that was launched so long ago."""
        at = self._saved[resumed // self.interval] + max(0.0, seconds - self.load_s)
        return bisect_right(self._ends, at) - 1, (bisect_right(self._saved, at) - 1) * self.interval
