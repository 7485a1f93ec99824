"""`python -m bench.cluster [--machines 1 8 64] [--days 30] [--seeds 4]`: a run over many machines, and what people use
instead, in a modelled cluster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from bench.cluster.compare import SOURCE, compare_clusters, table
from supervisor.base.errors import ConfigError

MOST_MACHINE_DAYS = 1e7


def compare(machines: Sequence[int], seeds: int, days: float, as_json: bool) -> int:
    """Simulate and print the table. Raises ConfigError for what cannot be simulated."""
    if not 0 < days * seeds * sum(machines) <= MOST_MACHINE_DAYS or max(machines) > 4096:
        raise ConfigError(
            f"--machines takes numbers up to 4096, and --days, --seeds and --machines must come to more than 0 and at "
            f"most {MOST_MACHINE_DAYS:,.0f} days of a machine."
        )
    scores = compare_clusters(machines, seeds, days)
    if as_json:
        found = {"days": days, "source": SOURCE, "clusters": [one.as_json() for one in scores]}
        print(json.dumps(found, indent=1))
        return 0
    print(f"One run for {days:,.0f} virtual days in each of {seeds} clusters, ETTR:\n\n{table(scores, days)}")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """0 when the table was printed; raises ConfigError for what cannot be simulated."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 8, 64, 512], metavar="N", help="sizes")
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="so many clusters of each size (4)")
    parser.add_argument("--days", type=float, default=30.0, metavar="N", help="of each cluster (30)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(words)
    return compare(given.machines, given.seeds, given.days, given.json)


if __name__ == "__main__":
    sys.exit(main())
