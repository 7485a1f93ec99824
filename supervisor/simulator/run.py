"""One simulated run from scenario and seed to a report. Same arguments, same report, byte for byte."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.core.time_kinds import CATEGORIES, INFRASTRUCTURE, PRODUCTIVE, SAVE
from supervisor.simulator.faults import with_defaults
from supervisor.simulator.ledger import Account, Latencies, latencies
from supervisor.simulator.policy import CorePolicy, PolicyFactory
from supervisor.simulator.scenario import Rate, Scenario
from supervisor.simulator.world import Planned, World

HOUR = 3600.0
IN_ATTEMPT = frozenset(
    ("engine-hang", "nccl-hang", "orchestrator-wedge", "engine-exit-0", "engine-crash", "trainer-crash", "host-oom")
)
"""Kinds that strike more often while an attempt is young (73 % of failed tasks fail in ten minutes: Aegis, NSDI'25)."""


@dataclass(frozen=True)
class Report:
    """What one simulated run came to. Times in seconds. ``cpu_s`` is real processor time and varies; so
    does ``policy_s``, the part of it that the policy took, which is measured only where asked for."""

    policy: str
    scenario: str
    hours: float
    seed: int
    seconds: dict[str, float]
    detection: dict[str, Latencies]
    struck: dict[str, int]
    false_restarts: tuple[tuple[float, str, str], ...]
    restarts: int
    steps_done: int
    steps_lost: int
    pods: int
    gave_up: int
    observations: int
    finished: bool
    cpu_s: float
    policy_s: float

    @property
    def all_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def ettr(self) -> float:
        """Time on steps that stayed, divided by all time."""
        return self.seconds[PRODUCTIVE] / self.all_s

    @property
    def ettr_apart(self) -> float:
        """The same, without the time of checkpoint saves and of waiting for a pod."""
        rest = self.all_s - self.seconds[SAVE] - self.seconds[INFRASTRUCTURE]
        return self.seconds[PRODUCTIVE] / rest if rest > 0 else 0.0

    def as_json(self, price: float | None = None) -> dict[str, Any]:
        """Everything that does not vary from machine to machine."""
        hours = self.all_s / HOUR
        return {
            "policy": self.policy,
            "scenario": self.scenario,
            "hours": self.hours,
            "seed": self.seed,
            "ettr": round(self.ettr, 6),
            "ettr_without_saves_and_pods": round(self.ettr_apart, 6),
            "ledger_s": {name: round(self.seconds[name], 3) for name in CATEGORIES},
            "detection_s": {
                kind: {
                    "count": one.count,
                    "detected": one.detected,
                    "median": _rounded(one.median_s),
                    "p95": _rounded(one.p95_s),
                    "longest": _rounded(one.longest_s),
                }
                for kind, one in self.detection.items()
            },
            "faults": self.struck,
            "false_restarts": [{"t": round(t, 3), "reason": why, "odd": odd} for t, why, odd in self.false_restarts],
            "restarts": self.restarts,
            "steps_done": self.steps_done,
            "steps_lost": self.steps_lost,
            "pods": self.pods,
            "gave_up": self.gave_up,
            "observations": self.observations,
            "finished": self.finished,
            "dollars": round(hours * price, 2) if price is not None else None,
            "dollars_lost": round(hours * (1 - self.ettr) * price, 2) if price is not None else None,
        }


@dataclass(frozen=True)
class Outcome:
    """A simulated run: the report, and the world as it was at the end."""

    report: Report
    world: World

    @property
    def account(self) -> Account:
        """The books, with every single fault."""
        return self.world.account


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def plan(scenario: Scenario, hours: float, seed: int) -> list[Planned]:
    """Faults of the scenario's rates, drawn once for all policies: at the same times, whatever the policy does."""
    faults = []
    for rate in scenario.rates:
        if rate.per_1000_h <= 0:
            continue
        random = Random(f"{seed}/plan/{rate.kind}")
        parameters = with_defaults(rate.kind, rate.parameters)
        t = random.expovariate(rate.per_1000_h / 1000.0 / HOUR)
        while t < hours * HOUR:
            faults.append(Planned(t, rate.kind, parameters))
            t += random.expovariate(rate.per_1000_h / 1000.0 / HOUR)
    return sorted(faults, key=lambda fault: (fault.at, fault.kind))


class EarlyFailures:
    """What more goes wrong in the first minutes of an attempt: a Weibull hazard with k < 1 that meets the later rate.

    The expected number in excess of the constant rate r over the first T seconds is r T (1/k - 1).
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._random = Random(f"{seed}/early")
        self._rates: list[Rate] = [r for r in scenario.rates if r.kind in IN_ATTEMPT and r.per_1000_h > 0]
        self._shape, self._first_s = scenario.physics.early_shape, scenario.physics.early_s

    def draw(self) -> Planned | None:
        """For one attempt: a fault some seconds after its launch, or none."""
        total = sum(rate.per_1000_h for rate in self._rates) / 1000.0 / HOUR
        expected = total * self._first_s * (1.0 / self._shape - 1.0)
        if self._random.random() >= expected:
            return None
        rate = self._random.choices(self._rates, [r.per_1000_h for r in self._rates])[0]
        after_s = self._first_s * self._random.random() ** (1.0 / self._shape)
        return Planned(after_s, rate.kind, with_defaults(rate.kind, rate.parameters))


def simulate(
    scenario: Scenario,
    hours: float,
    seed: int,
    factory: PolicyFactory = CorePolicy,
    *,
    faults: Sequence[Planned] | None = None,
    measure: bool = False,
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """Run one policy for ``hours`` virtual hours.

    ``faults``: exactly these, instead of the scenario's rates. ``measure``: time the policy apart. ``trace`` takes the
    observations as lines of JSON.
    """
    began = time.process_time()
    timed = _Timed(factory, measure)
    planned = plan(scenario, hours, seed) if faults is None else list(faults)
    early = EarlyFailures(scenario, seed) if faults is None else None
    if trace is not None:
        trace(json.dumps(_head(scenario, hours, seed)))
    world = World(
        scenario,
        seed,
        timed.make,
        planned=planned,
        trace=_tracer(trace) if trace is not None else None,
        early=early,
    )
    world.run_until(hours * HOUR)
    report = _report(scenario, world, timed, hours=hours, seed=seed, cpu_s=time.process_time() - began)
    return Outcome(report, world)


def _report(scenario: Scenario, world: World, timed: _Timed, *, hours: float, seed: int, cpu_s: float) -> Report:
    account: Account = world.account
    struck: dict[str, int] = {}
    for strike in account.strikes:
        struck[strike.kind] = struck.get(strike.kind, 0) + 1
    return Report(
        policy=timed.name,
        scenario=scenario.name,
        hours=hours,
        seed=seed,
        seconds=dict(account.seconds),
        detection=latencies(account.strikes),
        struck=dict(sorted(struck.items())),
        false_restarts=tuple((one.t, one.reason, one.odd) for one in account.false_restarts),
        restarts=max(0, account.starts - 1),
        steps_done=account.steps_done,
        steps_lost=account.steps_lost,
        pods=account.pods,
        gave_up=account.gave_up,
        observations=world.observations,
        finished=world.finished,
        cpu_s=cpu_s,
        policy_s=timed.seconds,
    )


class _Timed:
    """Measures how much of the real time is the policy's."""

    def __init__(self, factory: PolicyFactory, measure: bool) -> None:
        self._factory, self._measure = factory, measure
        self.seconds = 0.0
        self.name = ""

    def make(self) -> Any:
        policy = self._factory()
        self.name = policy.name
        return _TimedPolicy(self, policy) if self._measure else policy


class _TimedPolicy:
    def __init__(self, timed: _Timed, policy: Any) -> None:
        self._timed, self._see = timed, policy.see
        self.policy = policy
        self.name, self.omniscient, self.told = policy.name, policy.omniscient, policy.told

    def see(self, observation: f.Observation) -> Any:
        began = time.process_time()
        answer = self._see(observation)
        self._timed.seconds += time.process_time() - began
        return answer


def _head(scenario: Scenario, hours: float, seed: int) -> dict[str, Any]:
    return {
        "format": "rl-supervisor-trace",
        "version": 1,
        "made_by": "rl-supervisor simulate",
        "scenario": scenario.name,
        "hours": hours,
        "seed": seed,
    }


def _tracer(trace: Callable[[str], None]) -> Callable[[f.Observation], None]:
    def write(seen: f.Observation) -> None:
        line = {"t": seen.t, "wall": seen.wall, "source": seen.source, "fact": encode(seen.fact)}
        trace(json.dumps(line, separators=(",", ":")))

    return write
