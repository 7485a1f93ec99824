"""All policies in the same virtual pod: `python -m bench.policies [--hours 1000] [--seeds 1] [--scenario default]`."""

from __future__ import annotations

import argparse
import sys

from bench.policies import compare, sensitivity
from supervisor.simulator.scenario import load_scenario


def main(words: list[str] | None = None) -> int:
    """0 when the table was printed. Raises ConfigError for a scenario or a setting that does not exist."""
    parser = argparse.ArgumentParser(prog="python -m bench.policies", description=__doc__)
    parser.add_argument("--hours", type=float, default=1000.0, help="virtual hours of each seed (1000)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="so many seeds (1)")
    parser.add_argument("--scenario", default="default", metavar="NAME", help="as of rl-supervisor simulate")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="as there")
    parser.add_argument("--price", type=float, metavar="D", help="dollars an hour: count money, too")
    about = "the core and the oracle over fault rates, links and checkpoint intervals instead"
    parser.add_argument("--sensitivity", action="store_true", help=about)
    given = parser.parse_args(words)
    scenario, seeds = load_scenario(given.scenario, given.sets), range(1, given.seeds + 1)
    if given.sensitivity:
        print(sensitivity.table(sensitivity.sensitivity(scenario, given.hours, seeds)))
    else:
        print(compare.table(compare.compare(scenario, given.hours, seeds), given.price))
    return 0


if __name__ == "__main__":
    sys.exit(main())
