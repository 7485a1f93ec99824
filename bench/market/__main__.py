"""`python -m bench.market [--days 30] [--seeds 4]`: the fleet's controller and what people use instead, in a
market that never was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.market.compare import ORACLE, SOURCE, MarketScore, compare_policies, table
from bench.market.draw import draw_market, read_traces
from bench.market.policies import ToldAtOnce
from supervisor.base.errors import ConfigError

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


def main(words: Sequence[str] | None = None) -> int:
    """0 when the table was printed; raises ConfigError for what cannot be simulated."""
    parser = argparse.ArgumentParser(prog="python -m bench.market", description=__doc__)
    parser.add_argument("--days", type=float, default=30.0, metavar="N", help="of each market (30)")
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="so many markets (4)")
    traces = "when zones were up, instead of modelled runs: JSON as in skypilot-org/spot-traces, or CSV"
    parser.add_argument("--trace", dest="traces", type=Path, nargs="+", metavar="FILE", help=traces)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(words)
    return compare(given.days, given.seeds, given.traces, given.json)


if __name__ == "__main__":
    sys.exit(main())
