"""How good the decisions are, by the simulator: every figure beside what is asked, `python -m bench.decisions`.

Each figure is of several seeds and told with its spread: the mean with its 95 % confidence interval, and the least and
the greatest. `--output FILE` also writes all of it as FILE (text) and FILE.json, which CI keeps. The whole thing
simulates some 90,000 hours; `--quick` does a twentieth. The exit code is 1 where a healthy run was restarted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.core.actions import Action
from supervisor.core.decide import decide
from supervisor.core.facts import Observation
from supervisor.core.goodput import sum_ledgers
from supervisor.core.interval import measure_run
from supervisor.core.state import State
from supervisor.simulator import compare, sensitivity
from supervisor.simulator.baselines import ALL, PlainWatcher
from supervisor.simulator.healthy import BLOCK
from supervisor.simulator.ledger import Score, add_scores, quantile, score
from supervisor.simulator.policy import CorePolicy
from supervisor.simulator.run import simulate
from supervisor.simulator.scenario import Scenario, load_scenario
from supervisor.views.interval_advice import advise

PRICE = 4.0  # dollars an hour, for two H100 on the spot market
# Kinds of ``faults.KINDS`` in which a process of the engine, trainer, orchestrator or launcher is gone at once.
DEATH = (
    "engine-exit-0",
    "engine-crash",
    "trainer-crash",
    "orchestrator-crash",
    "job-killed",
    "host-oom",
    "torn-checkpoint",
)
HANG = ("engine-hang",)
GAP_FIXED, GAP_TIMES_4, GAP_SILENT = 0.35, 0.7, 1.2  # points of ETTR below the oracle that are asked, at most
SHOWN = (compare.CORE, compare.ORACLE, PlainWatcher.name)
THINNED = 0.95  # part of the healthy hours in which looks that would say the same are left out


@dataclass
class Decisions:
    """All figures. ``rows``: what it is, what is asked, what was measured."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    mixes: list[Mix] = field(default_factory=list)
    healthy_hours: float = 0.0
    unthinned_hours: float = 0.0  # of them, with all looks that real sensors make
    false_restarts: list[str] = field(default_factory=list)  # where, what was odd then, and the policy's reason
    speed: dict[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """Everything, for people."""
        return "\n".join(compare.columns([("", "asked", "measured"), *self.rows])) + "\n\n" + self.tables()

    def tables(self) -> str:
        """What stands behind the figures: all policies, and the core's detection by kind of fault."""
        core = next(s for s in self.scores if s.policy == compare.CORE)
        mixes = "\n".join(compare.columns([SPREAD_HEAD, *(row for mix in self.mixes for row in mix.rows())]))
        parts = [mixes, compare.table(self.scores, PRICE), detection_table(core)]
        if self.false_restarts:
            parts.append("\n".join(["False restarts of the healthy runs:", *self.false_restarts]))
        return "\n\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "version": __version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "rows": [list(row) for row in self.rows],
            "scores": [s.as_json(PRICE) for s in self.scores],
            "mixes": [mix.as_json() for mix in self.mixes],
            "healthy": {
                "hours": self.healthy_hours,
                "unthinned_hours": self.unthinned_hours,
                "false_restarts": self.false_restarts,
            },
            "speed": self.speed,
        }


@dataclass(frozen=True)
class Mix:
    """One mix of faults: each policy's figures by seed. ``asked``: points of ETTR below the oracle, at most."""

    name: str
    asked: float
    hours: float
    by_seed: dict[str, list[Score]]

    def gaps(self, policy: str) -> list[float]:
        """Percentage points of ETTR below the oracle, by seed."""
        pairs = zip(self.by_seed[compare.ORACLE], self.by_seed[policy], strict=True)
        return [100 * (oracle.ettr - mine.ettr) for oracle, mine in pairs]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """One row a policy, best first."""
        order = sorted(self.by_seed, key=lambda name: -statistics.mean(s.ettr for s in self.by_seed[name]))
        return [
            (
                f"{self.name}, {name}",
                spread([100 * s.ettr for s in self.by_seed[name]]),
                "" if name == compare.ORACLE else spread(self.gaps(name)),
                str(sum(s.false_restarts for s in self.by_seed[name])),
            )
            for name in order
        ]

    def as_json(self) -> dict[str, Any]:
        """ETTR and gap of each policy, by seed."""
        return {
            "name": self.name,
            "asked": self.asked,
            "hours": self.hours,
            "ettr": {name: [round(s.ettr, 6) for s in scores] for name, scores in self.by_seed.items()},
            "gap_points": {name: [round(gap, 4) for gap in self.gaps(name)] for name in self.by_seed},
            "false_restarts": {name: [s.false_restarts for s in scores] for name, scores in self.by_seed.items()},
        }


SPREAD_HEAD = ("mix, policy", "ETTR %: mean (least to greatest)", "points below the oracle", "false restarts")
STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)


def spread(values: Sequence[float]) -> str:
    """Mean with its 95 % confidence interval (Student's t), least and greatest."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.2f} (one seed)"
    t = STUDENT_95[min(len(values) - 2, len(STUDENT_95) - 1)]
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.2f} ± {half:.2f} ({min(values):.2f} to {max(values):.2f})"


def measure_mix(
    name: str, asked: float, scenario: Scenario, *, hours: float, seeds: Sequence[int], policies: Sequence[str]
) -> Mix:
    """Every policy through the same hours of each seed."""
    _say(f"{name}: {len(policies)} policies, {hours:g} h of {len(seeds)} seeds each ...")
    accounts = iter(compare.run_all([(scenario, hours, seed, policy) for policy in policies for seed in seeds]))
    return Mix(name, asked, hours, {policy: [score(policy, [next(accounts)]) for _ in seeds] for policy in policies})


def measure(hours: float = 1000, seeds: int = 8, healthy_hours: float = 500, worlds: int = BLOCK) -> Decisions:
    """Simulate and account; ``hours`` of each of ``seeds`` for every policy at the default mix."""
    found = Decisions()
    scenario = load_scenario()
    found.speed = speed(scenario, hours)
    some = range(1, seeds + 1)
    fixed = measure_mix("fixed mix", GAP_FIXED, scenario, hours=hours, seeds=some, policies=list(ALL))
    at_four = sensitivity.at_rates(scenario, 4.0)
    found.mixes = [
        fixed,
        measure_mix("rates x 4", GAP_TIMES_4, at_four, hours=hours / 2, seeds=some, policies=SHOWN),
        measure_mix("silent mix", GAP_SILENT, load_scenario("silent"), hours=hours / 2, seeds=some, policies=SHOWN),
    ]
    found.scores = [add_scores(scores) for scores in fixed.by_seed.values()]
    _say(f"No spot pods, {hours:g} h of 2 seeds ...")
    steady = compare.compare(load_scenario("no-spot"), hours, (1, 2), [compare.CORE, compare.ORACLE])
    steps = advised_interval(hours)
    _say(f"The same with a checkpoint each {steps} steps, as the core advises ...")
    advised = compare.compare(load_scenario("no-spot", [f"interval={steps}"]), hours, (1, 2), [compare.CORE])
    _healthy(found, healthy_hours, worlds)
    found.rows = _rows(found, steady, steps, advised[0])
    return found


def _healthy(found: Decisions, hours: float, worlds: int) -> None:
    """Healthy worlds, a twentieth of the time with all looks that real sensors make, and the odd default world."""
    numbers = range(1, worlds + 1)
    _say(f"{worlds} healthy worlds, {hours:g} h each ...")
    runs = [(f"world-{n}", [], hours * THINNED, n) for n in numbers]
    runs += [(f"world-{n}", ["thinned=false"], hours * (1 - THINNED), 1000 + n) for n in numbers]
    runs += [("healthy", [], hours, n) for n in range(1, 1 + max(1, worlds // 5))]
    jobs: list[compare.Job] = [(load_scenario(name, sets), h, seed, compare.CORE) for name, sets, h, seed in runs]
    accounts = compare.run_all(jobs)
    found.healthy_hours = sum(account.now - account.begun for account in accounts) / 3600
    found.unthinned_hours = sum(h for _, sets, h, _ in runs if sets)
    found.false_restarts = [
        f"{name}{''.join(f' --set {text}' for text in sets)} --seed {seed}, hour {one.t / 3600:.2f}"
        f"{f' ({one.odd})' if one.odd else ''}: {one.reason}"
        for (name, sets, _, seed), account in zip(runs, accounts, strict=True)
        for one in account.false_restarts
    ]


def advised_interval(hours: float) -> int:
    """Steps between checkpoints that the core itself advises, from the ledger it kept where the pod is not spot."""
    policies: list[CorePolicy] = []

    def make() -> CorePolicy:
        policies.append(CorePolicy())
        return policies[-1]

    simulate(load_scenario("no-spot"), hours=hours, seed=1, factory=make)
    ledgers = {str(number): policy.state.books.ledger for number, policy in enumerate(policies)}
    advice = advise(measure_run(sum_ledgers(ledgers)))
    assert advice.steps is not None, advice.sentence
    return advice.steps


def _rows(found: Decisions, steady: Sequence[Score], steps: int, advised: Score) -> list[tuple[str, str, str]]:
    core = next(s for s in found.scores if s.policy == compare.CORE)
    oracle = next(s for s in found.scores if s.policy == compare.ORACLE)
    how_far = compare.distance(found.scores)
    assert how_far is not None
    closed = "-" if how_far.closed is None else f"{100 * how_far.closed:.0f} % of {how_far.best_other}'s"
    steady_core, steady_oracle = steady
    gaps = [
        (f"{mix.name}: points of ETTR below the oracle", f"{mix.asked:g}", spread(mix.gaps(compare.CORE)))
        for mix in found.mixes
    ]
    return [
        *gaps,
        ("ETTR at the default mix", "", f"{100 * core.ettr:.2f} %"),
        ("  the oracle's", "", f"{100 * oracle.ettr:.2f} %"),
        ("  without pods and saves, below the oracle", "1 point", f"{how_far.points:.2f} points"),
        ("  gap to the oracle closed", "50 %", closed),
        ("ETTR where the pod is not spot", "97 %", f"{100 * steady_core.ettr:.2f} %"),
        ("  the oracle's", "", f"{100 * steady_oracle.ettr:.2f} %"),
        ("  without pods and saves", "97 %", f"{100 * steady_core.ettr_apart:.2f} %"),
        (f"  with a checkpoint each {steps} steps, as advised", "97 %", f"{100 * advised.ettr:.2f} %"),
        ("process death, median / 95th", "3 s / 5 s", _detection(core, DEATH)),
        ("hang with work waiting, median / 95th", "60 s / 120 s", _detection(core, HANG)),
        (
            f"false restarts in {found.healthy_hours:,.0f} healthy hours, {found.unthinned_hours:,.0f} with every look",
            "0",
            str(len(found.false_restarts)),
        ),
        ("observations a second, one core", "100,000", f"{found.speed['observations_per_s']:,.0f}"),
        ("simulated hours a second, one core", "100", f"{found.speed['hours_per_s']:,.0f}"),
    ]


def _detection(core: Score, kinds: Sequence[str]) -> str:
    times = sorted(t for kind in kinds for t in core.detection_s.get(kind, []))
    needed = sum(core.needing.get(kind, 0) for kind in kinds)
    spread = f"{compare.span(quantile(times, 0.5))} / {compare.span(quantile(times, 0.95))}"
    return f"{spread} ({len(times)} of {needed})"


def detection_table(core: Score) -> str:
    """The core's time from fault to act, by kind of fault."""
    rows = [
        (kind, f"{len(times)}/{core.needing[kind]}", *(compare.span(quantile(times, q)) for q in (0.5, 0.95, 1.0)))
        for kind, times in core.detection_s.items()
    ]
    return "\n".join(compare.columns([("fault, to the core's act", "seen", "median", "95th", "longest"), *rows]))


# ---------------------------------------------------------------- how fast


class Recording(CorePolicy):
    """The core, and what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Observation] = []
        TRACES.append(self.seen)

    def see(self, observation: Observation) -> tuple[Sequence[Action], float]:
        self.seen.append(observation)
        return super().see(observation)


TRACES: list[list[Observation]] = []


def speed(scenario: Scenario, hours: float) -> dict[str, float]:
    """Of the simulator with the core in it, and of the core alone with the same observations; seconds of one core."""
    began = time.process_time()
    simulate(scenario, hours=hours, seed=1)
    whole_s = time.process_time() - began
    # The core alone is given what sensors really say: the simulator's are quieter while all is calm.
    TRACES.clear()
    simulate(load_scenario("default", ["thinned=false"]), hours=min(hours, 40), seed=1, factory=Recording)
    count = sum(len(trace) for trace in TRACES)
    rounds = []
    for _ in range(3):
        began = time.process_time()
        for trace in TRACES:
            state = State()
            for observation in trace:
                state = decide(state, observation).state
        rounds.append(time.process_time() - began)
    TRACES.clear()
    return {
        "hours": hours,
        "hours_per_s": hours / whole_s,
        "observations": count,
        "observations_per_s": count / statistics.median(rounds),
    }


def main() -> int:
    """Measure and print; exit code 1 where a healthy run was restarted, else 0 whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m bench.decisions", description=__doc__)
    parser.add_argument("--hours", type=float, default=1000, help="of each seed at the default mix (1000)")
    parser.add_argument("--seeds", type=int, default=8, help="of each mix (8)")
    parser.add_argument("--healthy-hours", type=float, default=500, help="of each healthy world (500)")
    parser.add_argument("--worlds", type=int, default=BLOCK, help=f"healthy worlds ({BLOCK})")
    parser.add_argument("--quick", action="store_true", help="a twentieth of all that: fewer hours, and half the seeds")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write FILE and FILE.json")
    options = parser.parse_args()
    part = 0.1 if options.quick else 1.0
    seeds = max(2, options.seeds // 2) if options.quick else options.seeds
    healthy_hours = options.healthy_hours * (0.1 if options.quick else 1.0)
    found = measure(options.hours * part, seeds, healthy_hours, options.worlds)
    print(found.text())
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(found.text() + "\n")
        json_file = options.output.with_name(options.output.name + ".json")
        json_file.write_text(json.dumps(found.as_json(), indent=1) + "\n")
        _say(f"Wrote {options.output} and {json_file}.")
    for line in found.false_restarts:
        _say(f"A healthy run was restarted: rl-supervisor simulate --scenario {line}")
    return 1 if found.false_restarts else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
