"""``rl-supervisor simulate cluster``: a run over many machines, and what people use instead, in a modelled cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence

from supervisor.base.errors import ConfigError
from supervisor.simulator.cluster_compare import SOURCE, compare_clusters, table

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
