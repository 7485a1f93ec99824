"""`make bench`: all measurements, then one table: what is asked, what was measured, and what supervisord does.

`python -m bench detection`, `footprint`, `decisions`, `vault` or `second_step` does one of them; `--seconds` and
`--kills` say how much of the first two, `python -m bench.decisions --help` tells of the third, which is by the
simulator and starts nothing, `python -m bench.vault --help` of publishing and restoring beside other tools (here with
2 GB, as its figures are asked for), and the last of them is what the second step of a LoRA run sends.

Eleven are not among "all", since they take long, and end with exit code 1 where a figure is missed or was not measured
to the end: `flood`, how long facts wait while logs are a flood, `long_life`, 24 days in fast motion, `adoption`, what
fifty kills of the daemon cost the job, `orphans`, what two hundred stops under load leave, `stops`, how long the stop
after a death takes with the launchers' own joins, `starts`, when a fresh pod does its first step, `diagnose`, how fast
it reads logs, `fleet_tick`, what a look at a hundred runs costs, `many_agents`, what a run over 64 machines costs its
head, `head_facts`, how many facts its core takes, and `sight`, what the page, `top` and messages cost
(`python -m bench.flood --help`, and so on).

`python -m bench.house` runs nothing: it measures the program's own size, imports, names and words.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from bench import (
    adoption,
    decisions,
    detection,
    diagnose,
    fleet_tick,
    flood,
    footprint,
    head_facts,
    long_life,
    many_agents,
    orphans,
    peer,
    second_step,
    sight,
    starts,
    stops,
    vault,
)

WARM_UP_S = 30.0
BY_ITSELF = {
    "flood": flood.main,
    "long_life": long_life.main,
    "adoption": adoption.main,
    "diagnose": diagnose.main,
    "orphans": orphans.main,
    "fleet_tick": fleet_tick.main,
    "many_agents": many_agents.main,
    "head_facts": head_facts.main,
    "sight": sight.main,
    "starts": starts.main,
    "stops": stops.main,
}


def main() -> int:
    """Measure and print; exit code 0 whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["all", "detection", "footprint", "decisions", "vault", "second_step", *BY_ITSELF],
        default="all",
    )
    parser.add_argument("--kills", type=int, default=4, help="how often the engine is killed")
    parser.add_argument("--seconds", type=float, default=120, help="how long the footprint is measured")
    options = parser.parse_args()
    if options.what == "decisions":
        print(decisions.measure().text())
        return 0
    if options.what == "vault":
        return vault.main(["--full"])
    if options.what == "second_step":
        second_step.main()
        return 0
    if options.what in BY_ITSELF:
        return BY_ITSELF[options.what]([])
    folder = Path(tempfile.mkdtemp(prefix="rl-bench-"))
    rows: list[tuple[str, str, str, str]] = []
    try:
        version = f"supervisord {peer.install()}"
        if options.what != "footprint":
            _say("Faults, with production's deadlines (about five minutes) ...")
            rows += _detection(detection.measure(folder / "detection", options.kills, _say))
        if options.what != "detection":
            _say(f"Footprint, {WARM_UP_S:.0f} s of warm-up and {options.seconds:.0f} s ...")
            ours, theirs = footprint.measure(WARM_UP_S, options.seconds, folder / "footprint")
            rows += _footprint(ours, theirs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = ""
    if options.what == "all":
        vault.main(["--full"])
        second_step.main()
        found = decisions.measure()
        rows += [(*row, "-") for row in found.rows]
        told = "\n" + found.tables()
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    _print([("", "asked", "rl-supervisor", version), *rows])
    print(told)
    return 0


def _detection(m: detection.Measured) -> list[tuple[str, str, str, str]]:
    never = f"not within {detection.PEER_WAITS_S:.0f} s"
    for sentence in m.sentences:
        _say(f"  {sentence}")
    return [
        ("engine killed to verdict", "5 s", _spread(m.killed), "noticed" if m.peer_noticed else never),
        ("memory fell, with a second signal, to verdict", "15 s", _spread(m.memory), "cannot see it"),
        ("hang with work waiting to verdict", "90 s", _spread(m.hang), "cannot see it"),
        ("verdict to relaunch, stopping included", "10 s + stopping", _spread(m.relaunch), "-"),
        ("  of it until the old attempt was gone", "", _spread(m.stopping), "-"),
        ("  of it after that", "10 s", _spread([a - b for a, b in zip(m.relaunch, m.stopping, strict=True)]), "-"),
    ]


def _footprint(ours: footprint.Cost, theirs: footprint.Cost) -> list[tuple[str, str, str, str]]:
    return [
        ("resident memory (RSS)", "64 MiB", f"{ours.rss_mib:.1f} MiB", f"{theirs.rss_mib:.1f} MiB"),
        ("  highest while measured", "", f"{ours.highest_rss_mib:.1f} MiB", f"{theirs.highest_rss_mib:.1f} MiB"),
        ("  its share of what is shared (PSS)", "", f"{ours.pss_mib:.1f} MiB", f"{theirs.pss_mib:.1f} MiB"),
        ("CPU, of one core", "1 %", f"{ours.cpu:.2f} %", f"{theirs.cpu:.2f} %"),
        ("  helper children (transfers), of one core", "apart", f"{ours.helpers_cpu:.2f} %", "none"),
        ("  the job's shim, RSS", "apart", f"{ours.shim_rss_mib:.1f} MiB", "none"),
        ("threads", "", str(ours.threads), str(theirs.threads)),
        ("log lines a second", "100", f"{ours.lines / ours.seconds:.0f}", "same child"),
        ("GPUs sampled each second", "8", str(footprint.GPUS), "none"),
    ]


def _spread(values: list[float]) -> str:
    if not values:
        return "not measured"
    if len(values) == 1:
        return f"{values[0]:.1f} s"
    return f"{min(values):.1f} to {max(values):.1f} s ({len(values)} times)"


def _print(rows: list[tuple[str, str, str, str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for number, row in enumerate(rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
