"""`python -m bench.hangs`: how long each kind of hang lasts until the verdict, as modelled; nothing is started.

Three mixes (faults of every kind beside the hangs), three lengths of a step. The hangs strike more often than in the
mixes, so that their percentiles mean something. "before" is the same world without what /proc tells, where the slower
rules hold alone. ``--stood`` counts from when the job could not go on: a collective that hangs while rollouts are made
holds up nothing before their end. ``--loss`` prints the share of the simple watcher's loss that the core removes at
four times the rates of the mix, and ``--lifts`` what becomes of collectives that wait and then go on by themselves.

The worlds and their pictures of a hang are written by the detector's authors: the figures are modelled.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from supervisor.simulator.compare import run_all
from supervisor.simulator.ledger import quantile, score
from supervisor.simulator.scenario import Rate, load_scenario
from supervisor.simulator.sensitivity import at

MIXES = ("default", "no-spot", "silent")
HOURS = {20: 40.0, 240: 200.0, 1800: 600.0}
"""Of each seed, by the median step in seconds."""
EACH_PER_1000_H = {20: 400.0, 240: 60.0, 1800: 20.0}
KINDS = {
    "engine-hang": "engine",
    "nccl-hang": "collective",
    "orchestrator-wedge": "orchestrator",
    "env-hang": "environments",
    "resume-deadlock": "resume",
}
WATCHER = "plain-watcher"


def detections(
    seeds: Sequence[int],
    steps: Sequence[int],
    sets: Sequence[str],
    *,
    mixes: Sequence[str] = MIXES,
    stood: bool = False,
) -> Iterator[str]:
    """Lines of a table: median / 95th percentile in minutes of each kind, with and without the pictures."""
    yield _line("mix, step", *(f"{word} (n)" for word in KINDS.values()), "false restarts")
    for mix in mixes:
        for step in steps:
            rates = [f"rate.{kind}={EACH_PER_1000_H[step]}" for kind in KINDS]
            for name, proc in (("before", "false"), ("now", "true")):
                scenario = load_scenario(mix, [f"step_s={step}", f"proc={proc}", *rates, *sets])
                accounts = run_all([(scenario, HOURS[step], seed, "core") for seed in seeds])
                cells = []
                for kind in KINDS:
                    strikes = [one for account in accounts for one in account.strikes if one.kind == kind]
                    times = sorted(
                        one.detected - (max(one.t, one.stood or one.t) if stood else one.t)
                        for one in strikes
                        if one.detected is not None
                    )
                    middle, late = quantile(times, 0.5), quantile(times, 0.95)
                    told = "-" if middle is None or late is None else f"{middle / 60:.1f} / {late / 60:.1f}"
                    cells.append(f"{told} ({len(times)})")
                false = sum(len(account.false_restarts) for account in accounts)
                yield _line(f"{mix}, {step} s, {name}", *cells, str(false))


def _line(first: str, *cells: str) -> str:
    return first.ljust(24) + "".join(cell.rjust(20) for cell in cells)


def loss_removed(seeds: Sequence[int], hours: float, factor: float) -> str:
    """The share of what the plain watcher loses against the oracle that the core removes: of all seeds together, and
    of the middle one, since a seed's steps fall here or there between two saves, and a watcher may lose a whole day.
    """
    scenario = at(load_scenario("default"), factor, 2.0, 20.0)
    names = ("core", WATCHER, "oracle")
    accounts = iter(run_all([(scenario, hours, seed, name) for name in names for seed in seeds]))
    ettr = {name: [score(name, [next(accounts)]).ettr for _ in seeds] for name in names}
    told = ", ".join(f"{name} {100 * statistics.mean(found):.2f} %" for name, found in ettr.items())
    won = [core - watcher for core, watcher in zip(ettr["core"], ettr[WATCHER], strict=True)]
    gap = [oracle - watcher for oracle, watcher in zip(ettr["oracle"], ettr[WATCHER], strict=True)]
    share, middle = sum(won) / sum(gap), statistics.median(won) / statistics.median(gap)
    return f"x{factor:g} rates, ETTR: {told}. Of the watcher's gap {share:.0%} removed; by the medians {middle:.0%}."


def lifting(seeds: Sequence[int]) -> str:
    """Collectives that wait for 1 to 15 minutes and go on: how many of them were restarted meanwhile."""
    scenario = load_scenario("healthy")
    stall = Rate("collective-stall", 100.0, "", {"seconds": [60.0, 900.0]})
    scenario = replace(scenario, rates=(stall,))
    accounts = run_all([(scenario, 200.0, seed, "core") for seed in seeds])
    struck = sum(sum(account.struck_by_kind().values()) for account in accounts)
    stopped = sum(len(account.false_restarts) for account in accounts)
    return f"Of {struck} collectives that waited for 1 to 15 min and would have gone on, {stopped} were restarted."


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hangs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, nargs="+", default=list(HOURS), choices=list(HOURS))
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--first-seed", type=int, default=1, help="the rules were tuned on seeds 1 to 5")
    parser.add_argument("--mixes", nargs="+", default=list(MIXES), choices=list(MIXES))
    parser.add_argument("--stood", action="store_true")
    parser.add_argument("--loss", action="store_true")
    parser.add_argument("--lifts", action="store_true")
    options = parser.parse_args(words)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.loss:
        print(loss_removed(seeds, 400.0, 4.0))
    elif options.lifts:
        print(lifting(seeds))
    else:
        for line in detections(seeds, options.steps, options.sets, mixes=options.mixes, stood=options.stood):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
