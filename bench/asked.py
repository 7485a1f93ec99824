"""The figures that are asked of saves and decisions, beside what the simulator makes of them: `python -m bench.asked`.

Every policy meets the same world: same seeds, same fault times, same steps, same pods. An oracle knows each fault at
the moment it strikes and saves at the scenario's interval. It is the reference of the policies of that interval and
tier, and no strict bound: what follows a fault at another moment may fall better.
All figures are modelled: save time is bytes by rate, with the rates of `supervisor/simulator/scenario.py`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from supervisor.core.time_kinds import SAVE, WASTED
from supervisor.simulator import compare, sensitivity
from supervisor.simulator.ledger import score
from supervisor.simulator.scenario import Scenario, load_scenario

POLICIES = ("core", "oracle", "core-auto", "core-tier", "oracle-tier", "core-auto-tier")
BOUND = {"core": "oracle", "core-tier": "oracle-tier"}
PUBLISHED = ("llama3", "byterobust", "hbd", "flaky", "network-volume")


def rows(name: str, scenario: Scenario, hours: float, seeds: Sequence[int], policies: Sequence[str]) -> list[list[str]]:
    """One row a policy: ETTR, its range over the seeds, what saves and repeated steps cost, the gap to its oracle."""
    accounts = iter(compare.run_all([(scenario, hours, seed, policy) for policy in policies for seed in seeds]))
    books = {policy: [next(accounts) for _ in seeds] for policy in policies}
    ettr = {policy: [100 * score(policy, [one]).ettr for one in mine] for policy, mine in books.items()}
    found = []
    for policy, mine in books.items():
        all_of_it = score(policy, mine)
        total = sum(all_of_it.seconds.values())
        gaps = [b - m for b, m in zip(ettr.get(BOUND.get(policy, ""), ()), ettr[policy], strict=False)]
        found.append(
            [
                f"{name}, {policy}",
                f"{statistics.mean(ettr[policy]):.2f}",
                f"{min(ettr[policy]):.2f} to {max(ettr[policy]):.2f}",
                *(f"{100 * all_of_it.seconds[kind] / total:.2f}" for kind in (SAVE, WASTED)),
                f"{statistics.mean(gaps):.2f} ({min(gaps):.2f} to {max(gaps):.2f})" if gaps else "",
                str(all_of_it.false_restarts),
            ]
        )
    return found


def main() -> int:
    """Simulate and print; exit code 1 where a policy was better than its oracle."""
    parser = argparse.ArgumentParser(prog="python -m bench.asked", description=__doc__)
    parser.add_argument("--hours", type=float, default=800, help="of each seed (800)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23, 24], help="(21 22 23 24)")
    parser.add_argument("--published", action="store_true", help="also the published mixes, core and oracle alone")
    options = parser.parse_args()
    default = load_scenario()
    asked = [
        ("fixed mix", default, POLICIES),
        ("not spot", load_scenario("no-spot"), POLICIES),
        ("rates x 4", sensitivity.at_rates(default, 4.0), POLICIES[:2]),
        ("144 silent faults", load_scenario("silent"), POLICIES[:2]),
    ]
    asked += [(name, load_scenario(name), POLICIES[:2]) for name in PUBLISHED if options.published]
    head = ["mix, policy", "ETTR %", "by seed", "saves", "repeated", "points below its oracle", "false restarts"]
    beaten = False
    for name, scenario, policies in asked:
        found = rows(name, scenario, options.hours, options.seeds, policies)
        beaten = beaten or any("(-" in row[5] and not row[5].split("(")[1].startswith("-0.00") for row in found)
        print("\n".join(compare.columns([head, *found])), end="\n\n", flush=True)
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())
