"""``rl-supervisor simulate market``: the fleet's controller and what people use instead, in a market that never was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from supervisor.base.errors import ConfigError
from supervisor.simulator.market import draw_market, read_traces
from supervisor.simulator.market_compare import ORACLE, SOURCE, MarketScore, compare_policies, table
from supervisor.simulator.market_policies import ToldAtOnce

MOST_HOURS = 100_000.0


def compare(days: float, markets: int, traces: Sequence[Path] | None, as_json: bool) -> int:
    """Simulate and print the table. Raises ConfigError for what cannot be simulated."""
    up, hours = read_traces(traces) if traces else (None, 24.0 * days)
    if not 0 < hours * markets <= MOST_HOURS:
        raise ConfigError(
            f"{markets} markets of {hours:,.0f} h are {markets * hours:,.0f} h in all: --days and --seeds must come to "
            f"more than 0 and at most {MOST_HOURS:,.0f} h."
        )
    scores = compare_policies([draw_market(seed, hours, up) for seed in range(1, markets + 1)])
    if as_json:
        print(json.dumps({"hours": hours, "source": SOURCE, "policies": [one.as_json() for one in scores]}, indent=1))
        return 0
    runs = f"runs of {len(up)} zones from {len(traces or ())} files" if up else "modelled runs"
    print(f"One run for {hours:,.0f} virtual hours in each of {markets} markets, {runs}:\n\n{table(scores)}\n")
    print(say_distance(scores))
    return 0


def say_distance(scores: Sequence[MarketScore]) -> str:
    """How far ours is below the two bounds."""
    by_name = {one.policy: one for one in scores}
    ours = scores[0]
    future, present = by_name[ORACLE].useful - ours.useful, by_name[ToldAtOnce.name].useful - ours.useful
    return (
        f"Ours has {-present:+.2f} points of useful hours beside one that is told of each loss at once and takes the "
        f"cheapest machine, and {-future:+.2f} beside an oracle that knows the future."
    )
