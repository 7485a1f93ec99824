"""A market that never was: machines with runs, prices and faults, and what troubles a provider and a store, by a seed.

All of it is drawn before any policy acts, so each policy meets the same. **Every figure is modelled**; these are the
sources:

- Spot machines: up-runs of 0.9 h median and 4.4 h mean, 4.6 losses a day, gaps of 29 min median: V100 on AWS in 2023,
  9 zones, 45 days (skypilot-org/spot-traces@221da1ab; Wu et al., NSDI'24). Run and gap are lognormal, fitted to median
  and mean; the mean gap is what 4.6 losses a day leave. Zones are independent here; in the traces they are not.
- Server faults: 4.18 in 1,000 days of a server; after one the same server fails again within a day in 21.3 %, within 7
  days in 30.3 %, within 30 days in 42.9 %; repair of 20.4 h median and 133 h mean: 400 GPU servers over 348 days
  (stepfun-ai/InfiniteHBD-Trace@7aacdc8c, SIGCOMM'25).
- Prices ($ an hour for two H100), liars, boots that never end, and all of ``TROUBLES``: assumed.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

from supervisor.base.errors import ConfigError
from supervisor.simulator.clockwork import NEVER
from supervisor.simulator.scenario import load_scenario
from supervisor.simulator.virtual_fleet import BEAT_S, PATIENCE_S, JobTimes

HOUR_S, DAY_S = 3600.0, 86400.0
UP_S, GAP_S = (0.9 * HOUR_S, 4.4 * HOUR_S), (29 * 60.0, DAY_S / 4.6 - 4.4 * HOUR_S)  # median, mean
FAULTS_A_DAY, REPAIR_S = 4.18e-3, (20.4 * HOUR_S, 133 * HOUR_S)
AGAIN = ((0.213, 0.0, 1.0), (0.303, 1.0, 7.0), (0.429, 7.0, 30.0))  # so many of the servers, from and to which day
SPOT_MACHINES, ON_DEMAND_MACHINES, REGIONS = 8, 4, 4
SPOT_PRICE, ON_DEMAND_PRICE = (1.8, 2.8), (4.0, 4.8)
DRIFT = 0.09
"""Prices move by so much around a machine's own: less than the margin of our bids, so that a loss is a lost run."""
LIAR_COSTS = 0.8  # of the cheapest other
NO_BOOT = 0.03  # of the runs of a machine
DISK_AN_HOUR = 0.03  # of a stopped instance
BURN_IN_S = 30 * DAY_S

Trouble = Literal["provider", "empty-list", "unknown", "store", "cut", "late-beats"]
TROUBLES: dict[Trouble, tuple[float, float, float]] = {  # hours between two, median seconds, sigma of its logarithm
    "provider": (48.0, 300.0, 1.0),  # it answers nothing
    "empty-list": (12.0, 15.0, 1.0),  # its list lacks all instances
    "unknown": (24.0, 120.0, 1.0),  # it lists them as unknown
    "store": (72.0, 180.0, 1.2),
    "cut": (24.0, 45.0, 1.2),  # the pod reaches no one, and no one reaches the pod
    "late-beats": (24.0, 120.0, 0.8),  # the pod is busy, trains and publishes
}
HEALTHY_TIMES = 4.0
"""Troubles are so much more frequent in a healthy market."""
LONGEST_HEALTHY_S = {
    "store": PATIENCE_S - 10.0,
    "cut": PATIENCE_S - BEAT_S - 10.0,
    "late-beats": PATIENCE_S - BEAT_S - 10.0,
}
"""There each trouble alone leaves a silence that is shorter than the patience. Two in a row may leave a longer one."""


@dataclass(frozen=True)
class UpRun:
    """A machine can be had from ``begin`` to ``end``, in seconds."""

    begin: float
    end: float
    how: Literal["outbid", "gone", "silent"]  # it ends
    boot_s: float  # of a pod that is made in it; NEVER: it hangs


@dataclass(frozen=True)
class Machine:
    """What is offered on one host."""

    name: str
    region: str
    spot: bool
    price: float
    moves: tuple[float, ...]  # its price by the hour, as a factor
    lies: bool  # two GPUs are offered, and it has one
    runs: tuple[UpRun, ...]

    def run_at(self, t: float) -> UpRun | None:
        """The run in which it can be had at ``t``."""
        return next((run for run in self.runs if run.begin <= t < run.end), None)

    def price_at(self, t: float) -> float:
        """Its lowest bid, or its price on demand."""
        return self.price * self.moves[min(int(t / HOUR_S), len(self.moves) - 1)]


@dataclass(frozen=True)
class Market:
    """All that will happen, whatever a policy does."""

    seed: int
    hours: float
    machines: tuple[Machine, ...]
    troubles: tuple[tuple[float, Trouble, float], ...]  # when, what, for how many seconds


def job_times() -> JobTimes:
    """The job of the other simulator's default scenario."""
    job = load_scenario().physics
    upload_s = job.checkpoint_gb * 8 / job.link_gbit
    return JobTimes(job.step_s, job.interval, job.save_s + upload_s, job.load_s)


def draw_market(
    seed: int, hours: float, traces: dict[str, Sequence[tuple[float, float]]] | None = None, *, healthy: bool = False
) -> Market:
    """The market of a seed. ``traces``: when each zone was up, instead of the modelled runs; a zone is one machine.

    ``healthy``: no machine is lost, lies or hangs, and no trouble alone is longer than the patience.
    """
    end = hours * HOUR_S
    zones = list(traces or (f"{chr(97 + n % REGIONS)}{n // REGIONS}" for n in range(SPOT_MACHINES)))
    names = [*zones, *(f"demand{n}" for n in range(ON_DEMAND_MACHINES))]
    liar = None if traces or healthy else Random(f"{seed}/liar").choice(zones)
    machines = []
    for name in names:
        random = Random(f"{seed}/{name}")
        spot = name in zones
        price = random.uniform(*(SPOT_PRICE if spot else ON_DEMAND_PRICE))
        price = LIAR_COSTS * SPOT_PRICE[0] if name == liar else price
        moves = tuple(_draw_moves(random, hours))
        up: Sequence[tuple[float, float]] = [(0.0, end)]
        if spot and not healthy:
            up = traces[name] if traces else list(_draw_up(random, end))
        faults = [] if healthy else list(_draw_faults(random, end))
        runs = tuple(_cut_runs(random, up, faults, hangs=0.0 if healthy else NO_BOOT))
        region = re.sub(r"(?<=\d)[a-z]$", "", name) if traces else name[0]
        machines.append(Machine(name, region, spot, price, moves, name == liar, runs))
    return Market(seed, hours, tuple(machines), tuple(sorted(_draw_troubles(seed, end, healthy))))


def draw_lognormal(random: Random, median: float, mean: float) -> float:
    """A number of the lognormal distribution with this median and mean."""
    return random.lognormvariate(math.log(median), math.sqrt(2 * math.log(mean / median)))


def _draw_moves(random: Random, hours: float) -> Iterator[float]:
    level = 0.0
    for _ in range(int(hours) + 1):
        level = max(-DRIFT, min(DRIFT, 0.95 * level + random.gauss(0.0, 0.02)))
        yield 1 + level


def _draw_up(random: Random, end: float) -> Iterator[tuple[float, float]]:
    t = -BURN_IN_S * (1 + random.random())
    while t < end:
        until = t + draw_lognormal(random, *UP_S)
        if until > 0:
            yield max(t, 0.0), min(until, end)
        t = until + draw_lognormal(random, *GAP_S)


def _draw_faults(random: Random, end: float) -> Iterator[tuple[float, float]]:
    """When the machine breaks, and when it is repaired."""
    fresh_a_day = FAULTS_A_DAY * (1 - AGAIN[-1][0])  # the others are followers
    t = -BURN_IN_S + random.expovariate(fresh_a_day / DAY_S)
    while t < end:
        repaired = t + draw_lognormal(random, *REPAIR_S)
        yield t, repaired
        luck = random.random()
        soon = next(((low, high) for part, low, high in AGAIN if luck < part), None)
        t = repaired + (
            random.expovariate(fresh_a_day / DAY_S) if soon is None else DAY_S * random.uniform(soon[0], soon[1])
        )


def _cut_runs(
    random: Random, up: Sequence[tuple[float, float]], faults: Sequence[tuple[float, float]], hangs: float
) -> Iterator[UpRun]:
    job = load_scenario().physics
    for begin, end in up:
        at = begin
        for broken, repaired in [*faults, (NEVER, NEVER)]:
            if repaired <= at or at >= end:
                continue
            boot_s = random.lognormvariate(math.log(job.replacement_s), job.replacement_sigma)
            boot_s = NEVER if random.random() < hangs else boot_s
            if broken > at:
                how: Literal["gone", "silent"] = "gone" if random.random() < 0.5 else "silent"
                yield UpRun(at, min(broken, end), how if broken < end else "outbid", boot_s)
            at = repaired


def _draw_troubles(seed: int, end: float, healthy: bool) -> Iterator[tuple[float, Trouble, float]]:
    for kind, (every_h, median_s, sigma) in TROUBLES.items():
        random = Random(f"{seed}/{kind}")
        rate = (HEALTHY_TIMES if healthy else 1.0) / every_h / HOUR_S
        t = random.expovariate(rate)
        while t < end:
            seconds = random.lognormvariate(math.log(median_s), sigma)
            yield t, kind, min(seconds, LONGEST_HEALTHY_S.get(kind, NEVER)) if healthy else seconds
            t += seconds + random.expovariate(rate)


# ---------------------------------------------------------------- traces of others


def read_traces(paths: Sequence[Path]) -> tuple[dict[str, Sequence[tuple[float, float]]], float]:
    """When each zone was up, in seconds, and the hours that all of them tell. Raises ConfigError.

    JSON is one zone a file, as in skypilot-org/spot-traces: ``{"metadata": {"gap_seconds": 300}, "data": [0, 1]}``, the
    zone being the file's name up to its first ``_``. CSV is any number of zones: a head ``seconds,ZONE,ZONE``, and rows
    that hold until the next one. A count above 0 is up.
    """
    series: dict[str, list[tuple[float, bool]]] = {}
    for path in paths:
        try:
            if path.suffix == ".csv":
                rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
                for zone in [name for name in rows[0] if name != "seconds"]:
                    series[zone] = [(float(row["seconds"]), float(row[zone]) > 0) for row in rows]
            else:
                found = json.loads(path.read_text(encoding="utf-8"))
                gap_s, data = float(found["metadata"]["gap_seconds"]), [*found["data"], 0]
                series[path.stem.partition("_")[0]] = [(n * gap_s, float(count) > 0) for n, count in enumerate(data)]
        except OSError as error:
            raise ConfigError(f"The trace {path} cannot be read: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, IndexError) as error:
            what = 'JSON with "metadata": {"gap_seconds": N} and "data": [0, 1, ...], or CSV with a head seconds,ZONE'
            raise ConfigError(f"{path} is no trace ({error!r}). A trace is {what}.") from error
    end = min(points[-1][0] for points in series.values())
    return {zone: _join_up(points, end) for zone, points in series.items()}, end / HOUR_S


def _join_up(points: Sequence[tuple[float, bool]], end: float) -> list[tuple[float, float]]:
    runs: list[tuple[float, float]] = []
    for (begin, up), (until, _) in pairwise(points):
        if up and begin < end:
            if runs and runs[-1][1] == begin:
                begin = runs.pop()[0]
            runs.append((begin, min(until, end)))
    return runs
