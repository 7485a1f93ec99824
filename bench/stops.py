"""From a verdict until nothing of the job is left, with the launchers' own joins and production's defaults.

`python -m bench.stops [--deaths 5]`: in two eras, one role after the other is killed by process number. The practice
launcher joins its monitor threads for 5 s each and gives each child 60 s, as prime-rl's do (utils/process.py at
559b44772, rl.py at be0e3d131). "Nothing left": none of the job's processes, whoever its parent is. That the GPUs'
memory is back is asked of the driver by the daemon, which begins no other attempt before.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.pod import practice_of, production_pod, times

ERAS = ("2026-01-06", "2026-08-21")
ROLES = ("engine-core", "trainer-rank", "orchestrator", "rl")
MEDIAN_S = 6.0
KNOBS = {"step_s": 1.5, "interval": 4, "patience": 1.0, "engine_exit_delay_s": 5.0, "stop_s": 0.5}


@dataclass
class Stops:
    """Of one era. Seconds from each verdict until nothing was left, beside the role that had been killed."""

    seconds: list[tuple[str, float]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def median(self) -> float:
        return statistics.median([s for _, s in self.seconds]) if self.seconds else float("inf")


def measure(era: str, deaths: int, folder: Path, found: Stops) -> None:
    """``found`` gets the figures as they come."""
    practice = practice_of(folder, era=era, **KNOBS)
    pod = production_pod(folder, practice, interval=int(KNOBS["interval"]), era=era)
    try:
        pod.start()
        for number in range(deaths):
            closed, verdicts = len(times(pod, "incident-closed")), len(times(pod, "verdict"))
            published = len(times(pod, "published"))
            pod.wait_for(lambda n=published: len(times(pod, "published")) > n, "a step is published", 240)
            role = ROLES[number % len(ROLES)]
            old = set(practice.alive())
            victims = practice.pids(role)
            assert victims, f"no {role} lives"
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            pod.wait_for(lambda n=verdicts: len(times(pod, "verdict")) > n, "a verdict", 180)
            verdict = times(pod, "verdict")[verdicts]
            pod.wait_for(lambda kept=old: not kept & practice.alive().keys(), "the old attempt is gone", 240)
            found.seconds.append((role, max(0.0, time.time() - verdict)))
            print(f"{era}, {role} killed: {found.seconds[-1][1]:.1f} s", file=sys.stderr, flush=True)
            pod.wait_for(lambda n=closed: len(times(pod, "incident-closed")) > n, "the incident is over", 240)
            found.left += [f"{role}: pid {pid} of the attempt before lives" for pid in old & practice.alive().keys()]
    finally:
        pod.close()


def main(words: list[str] | None = None) -> int:
    """Measure and print; exit code 1 where a median is missed, something is left, or there were fewer deaths."""
    parser = argparse.ArgumentParser(prog="python -m bench.stops", description=__doc__)
    parser.add_argument("--deaths", type=int, default=8, help="in each era")
    parser.add_argument("--era", choices=ERAS, action="append")
    options = parser.parse_args(words)
    before, missed = os.getloadavg()[0], 0
    for era in options.era or ERAS:
        found = Stops()
        with tempfile.TemporaryDirectory(prefix="rl-stops-", ignore_cleanup_errors=True) as folder:
            measure(era, options.deaths, Path(folder), found)
        all_s = [s for _, s in found.seconds]
        print(f"{era}: {len(all_s)} deaths, median {found.median():.1f} s, longest {max(all_s, default=0.0):.1f} s")
        for role in ROLES:
            print(f"  {role}: {', '.join(f'{s:.1f} s' for r, s in found.seconds if r == role)}")
        print("\n".join(f"  {sentence}" for sentence in found.left), end="\n" if found.left else "")
        missed += found.median() > MEDIAN_S or bool(found.left) or len(all_s) < options.deaths
    print(f"{os.cpu_count()} cores, load {before:.1f} before and {os.getloadavg()[0]:.1f} after")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
