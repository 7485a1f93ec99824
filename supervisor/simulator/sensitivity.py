"""How the figures move with what we do not know: fault rates, the link, the checkpoint interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from supervisor.simulator.compare import CORE, ORACLE, PERCENT, Job, columns, run_all
from supervisor.simulator.ledger import score
from supervisor.simulator.scenario import Scenario

RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
LINKS_GBIT = (0.5, 2.0, 8.0)
INTERVALS_MIN = (10.0, 20.0, 40.0)


@dataclass(frozen=True)
class Cell:
    """ETTR (0 to 1) of the core and of the oracle at one place."""

    rates: float  # times the scenario's
    link_gbit: float
    interval_min: float
    core: float
    oracle: float


def at_rates(scenario: Scenario, times: float) -> Scenario:
    """The scenario with every fault ``times`` as frequent."""
    return replace(scenario, rates=tuple(replace(r, per_1000_h=r.per_1000_h * times) for r in scenario.rates))


def at(scenario: Scenario, times: float, link_gbit: float, interval_min: float) -> Scenario:
    """The scenario at one place of the table; the interval is rounded to whole steps."""
    steps = max(1, round(interval_min * 60 / scenario.physics.step_s))
    physics = replace(scenario.physics, link_gbit=link_gbit, interval=steps)
    return replace(at_rates(scenario, times), physics=physics)


def sensitivity(
    scenario: Scenario,
    hours: float,
    seeds: Sequence[int],
    *,
    rates: Sequence[float] = RATES,
    links_gbit: Sequence[float] = LINKS_GBIT,
    intervals_min: Sequence[float] = INTERVALS_MIN,
    workers: int | None = None,
) -> list[Cell]:
    """Every combination, with the same seeds in each."""
    places = [(r, link, interval) for interval in intervals_min for link in links_gbit for r in rates]
    jobs: list[Job] = [
        (at(scenario, *place), hours, seed, name) for place in places for name in (CORE, ORACLE) for seed in seeds
    ]
    accounts = run_all(jobs, workers)
    n = len(seeds)
    cells = []
    for i, (r, link, interval) in enumerate(places):
        mine = accounts[2 * n * i : 2 * n * (i + 1)]
        cells.append(Cell(r, link, interval, score(CORE, mine[:n]).ettr, score(ORACLE, mine[n:]).ettr))
    return cells


def table(cells: Sequence[Cell]) -> str:
    """Rates to the right, link and interval downwards; in each cell the core's ETTR and how far below the oracle."""
    rates = sorted({c.rates for c in cells})
    head = ["checkpoint every, link", *(f"faults x{r:g}" for r in rates)]
    rows = []
    for interval, link in sorted({(c.interval_min, c.link_gbit) for c in cells}):
        here = {c.rates: c for c in cells if (c.interval_min, c.link_gbit) == (interval, link)}
        rows.append(
            [f"{interval:g} min, {link:g} Gbit/s"]
            + [f"{PERCENT * here[r].core:.1f} ({PERCENT * (here[r].core - here[r].oracle):+.1f})" for r in rates]
        )
    note = "ETTR of the core in percent; in brackets the percentage points to the oracle at the same place."
    return "\n".join([*columns([head, *rows]), "", note])
