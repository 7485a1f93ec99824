"""One simulated run from scenario and seed to a report. Same arguments, same report, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.core.time_kinds import CATEGORIES
from supervisor.simulator.faults import with_defaults
from supervisor.simulator.ledger import Account, Score, quantile, score
from supervisor.simulator.policy import CorePolicy, PolicyFactory
from supervisor.simulator.scenario import Rate, Scenario
from supervisor.simulator.world import Planned, World

HOUR = 3600.0
IN_ATTEMPT = frozenset(
    ("engine-hang", "nccl-hang", "orchestrator-wedge", "engine-exit-0", "engine-crash", "trainer-crash", "host-oom")
)
"""Kinds that strike more often while an attempt is young (73 % of failed tasks fail in ten minutes: Aegis, NSDI'25)."""


@dataclass(frozen=True)
class Outcome:
    """A simulated run: what was asked for, and the world as it was at the end."""

    policy: str
    scenario: str
    hours: float
    seed: int
    world: World

    @property
    def account(self) -> Account:
        """The books, with every single fault."""
        return self.world.account

    @property
    def score(self) -> Score:
        """The figures that the books come to."""
        return score(self.policy, [self.account])

    def as_json(self, price: float | None = None) -> dict[str, Any]:
        """All figures as plain values, rounded: the same on every machine."""
        figures, account = self.score, self.account
        return {
            "policy": self.policy,
            "scenario": self.scenario,
            "hours": self.hours,
            "seed": self.seed,
            "ettr": round(figures.ettr, 6),
            "ettr_without_saves_and_pods": round(figures.ettr_apart, 6),
            "ledger_s": {name: round(account.seconds[name], 3) for name in CATEGORIES},
            "detection_s": {
                kind: {
                    "count": figures.needing[kind],
                    "detected": len(times),
                    "median": _round_s(quantile(times, 0.5)),
                    "p95": _round_s(quantile(times, 0.95)),
                    "longest": _round_s(quantile(times, 1.0)),
                }
                for kind, times in figures.detection_s.items()
            },
            "faults": account.struck_by_kind(),
            "false_restarts": [
                {"t": round(one.t, 3), "reason": one.reason, "odd": one.odd} for one in account.false_restarts
            ],
            "restarts": account.restarts,
            "steps_done": account.steps_done,
            "steps_lost": account.steps_lost,
            "pods": account.pods,
            "gave_up": account.gave_up,
            "observations": self.world.observations,
            "finished": self.world.finished,
            "dollars": round(figures.hours * price, 2) if price is not None else None,
            "dollars_lost": round(figures.dollars_lost(price), 2) if price is not None else None,
        }


def _round_s(value: float | None) -> float | None:
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
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """Run one policy for ``hours`` virtual hours.

    ``faults``: exactly these, instead of the scenario's rates. ``trace`` takes the observations as lines of JSON.
    """
    planned = plan(scenario, hours, seed) if faults is None else list(faults)
    early = EarlyFailures(scenario, seed) if faults is None else None
    if trace is not None:
        trace(json.dumps(_trace_head(scenario, hours, seed)))
    world = World(
        scenario,
        seed,
        factory,
        planned=planned,
        trace=_trace_writer(trace) if trace is not None else None,
        early=early,
    )
    world.run_until(hours * HOUR)
    return Outcome(world.policy.name, scenario.name, hours, seed, world)


def _trace_head(scenario: Scenario, hours: float, seed: int) -> dict[str, Any]:
    return {
        "format": "rl-supervisor-trace",
        "version": 1,
        "made_by": "rl-supervisor simulate",
        "scenario": scenario.name,
        "hours": hours,
        "seed": seed,
    }


def _trace_writer(trace: Callable[[str], None]) -> Callable[[f.Observation], None]:
    def write(seen: f.Observation) -> None:
        line = {"t": seen.t, "wall": seen.wall, "source": seen.source, "fact": encode(seen.fact)}
        trace(json.dumps(line, separators=(",", ":")))

    return write
