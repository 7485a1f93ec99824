"""One simulated run from scenario and seed to a report. Same arguments, same report, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.core.time_kinds import CATEGORIES
from supervisor.simulator.faults import KINDS, with_defaults
from supervisor.simulator.ledger import Account, Score, quantile, score
from supervisor.simulator.policy import CorePolicy, PolicyFactory
from supervisor.simulator.scenario import Scenario
from supervisor.simulator.world import Planned, World

HOUR = 3600.0
IN_ATTEMPT = frozenset(
    ("engine-hang", "nccl-hang", "orchestrator-wedge", "engine-exit-0", "engine-crash", "trainer-crash", "host-oom")
)
"""Kinds that strike more often while an attempt is young (73 % of failed tasks fail in ten minutes: Aegis, NSDI'25)."""
OF_HOST = frozenset(("gpu-stumbles", "host-reboot"))
POD_LOST = frozenset(("spot-loss", "host-vanishes", "gpu-lost"))


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
    faults: list[Planned] = []
    for rate in scenario.rates:
        if rate.per_1000_h <= 0:
            continue
        random = Random(f"{seed}/plan/{rate.kind}")
        parameters = with_defaults(rate.kind, rate.parameters)
        t = random.expovariate(rate.per_1000_h / 1000.0 / HOUR)
        while t < hours * HOUR:
            faults.append(Planned(t, rate.kind, parameters))
            t += random.expovariate(rate.per_1000_h / 1000.0 / HOUR)
    more = [*_early(scenario, seed, faults), *_relapses(scenario, seed, faults)]
    return sorted((*faults, *more), key=lambda fault: (fault.at, fault.kind))


def _early(scenario: Scenario, seed: int, faults: Sequence[Planned]) -> Iterator[Planned]:
    """What more goes wrong soon after a fault, while the next attempt is young.

    A Weibull hazard with k < 1 that meets the later rate: the expected number in excess of the constant rate r over the
    first T seconds is r T (1/k - 1). It begins where a run that reacts at once would have its next attempt, and strikes
    each policy at the same time: one that starts more often does not meet more of it.
    """
    physics = scenario.physics
    rates = [rate for rate in scenario.rates if rate.kind in IN_ATTEMPT and rate.per_1000_h > 0]
    total = sum(rate.per_1000_h for rate in rates) / 1000.0 / HOUR
    expected = total * physics.early_s * (1.0 / physics.early_shape - 1.0)
    for fault in faults:
        random = Random(f"{seed}/early/{fault.kind}/{fault.at}")
        if (KINDS[fault.kind].needs == "nothing" and fault.kind not in POD_LOST) or random.random() >= expected:
            continue
        rate = random.choices(rates, [r.per_1000_h for r in rates])[0]
        away_s = physics.replacement_s if fault.kind in POD_LOST else 0.0
        after_s = away_s + physics.early_s * random.random() ** (1.0 / physics.early_shape)
        yield Planned(fault.at + after_s, rate.kind, with_defaults(rate.kind, rate.parameters))


def _relapses(scenario: Scenario, seed: int, faults: Sequence[Planned]) -> Iterator[Planned]:
    """A host that failed fails again within a day, with a chance of ``relapse``, if the run is still on it."""
    for fault in faults:
        random = Random(f"{seed}/relapse/{fault.kind}/{fault.at}")
        if fault.kind in OF_HOST and random.random() < scenario.physics.relapse:
            after_s = random.random() * 24 * HOUR
            yield Planned(fault.at + after_s, fault.kind, fault.parameters, host_of=fault.at)


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
    if trace is not None:
        trace(json.dumps(_trace_head(scenario, hours, seed)))
    writer = _trace_writer(trace) if trace is not None else None
    world = World(scenario, seed, factory, planned=planned, trace=writer)
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
