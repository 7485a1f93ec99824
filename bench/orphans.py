"""Stops under load of a job with every bad habit, and what observers who know nothing of a stop find afterwards.

`python -m bench.orphans [--stops 200]`: as many busy processes as cores run beside it. Half of the stops with a control
group of the job's own where that may be made here, half without; four in ten as a daemon does them in an incident
(evidence, stop, and the next attempt at once, which looks itself for what the one before left).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.process import zoo


def measure(stops: int, folder: Path, seed: int, found: dict[str, zoo.Count]) -> None:
    """With a group and without; ``found`` gets the figures as they come."""
    shares = {True: stops // 2, False: stops - stops // 2} if zoo.can_group(folder) else {False: stops}
    with zoo.busy(os.cpu_count() or 1):
        for grouped, share in shares.items():
            name = "own group" if grouped else "no group"
            count = found[name] = zoo.Count()
            with pytest.MonkeyPatch.context() as patch:
                alone = share * 6 // 10
                zoo.stops(folder / f"{name} stops", alone, seed, count, grouped=grouped, patch=patch)
                zoo.incidents(folder / f"{name} incidents", share - alone, seed, count, grouped=grouped, patch=patch)


def missed(found: dict[str, zoo.Count], stops: int) -> list[str]:
    """Why these are not so many stops that left nothing; empty where they are."""
    seen = sum(count.stops for count in found.values())
    short = [f"{seen} of {stops} stops were done."] if seen < max(1, stops) else []
    return short + [f"{name}: something is left, or somebody hurt." for name, c in found.items() if not c.clean()]


def main(words: list[str] | None = None) -> int:
    """Measure and print; exit code 1 where anything was left, anybody else hurt, or it was ended before."""
    parser = argparse.ArgumentParser(prog="python -m bench.orphans", description=__doc__)
    parser.add_argument("--stops", type=int, default=200)
    options = parser.parse_args(words)
    seed, began, before = random.SystemRandom().randrange(1 << 30), time.monotonic(), os.getloadavg()[0]
    found: dict[str, zoo.Count] = {}
    # Interrupted (Ctrl-C), it tells what it has seen until then.
    with tempfile.TemporaryDirectory(prefix="rl-orphans-") as folder, contextlib.suppress(KeyboardInterrupt):
        measure(options.stops, Path(folder), seed, found)
    for name, count in found.items():
        print(
            f"{name}: {count.stops} stops, {len(count.left)} processes left, {len(count.segments)} segments left, "
            f"{len(count.ports)} ports taken, {len(count.innocents)} innocents hurt, {count.recycled} recycled numbers "
            f"spared, longest stop {count.longest_s:.1f} s"
        )
        for way, times in sorted(count.ways.items()):
            print(f"  {times:>4}  {way}")
        for sentence in (*count.left, *count.segments, *count.innocents):
            print(f"  {sentence}")
    print(f"seed {seed}, {time.monotonic() - began:.0f} s, {os.cpu_count()} cores, load {before:.1f} before, ", end="")
    print(f"{os.getloadavg()[0]:.1f} after")
    short = missed(found, options.stops)
    print("\n".join(short))
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main())
