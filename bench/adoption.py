"""What a daemon that is killed fifty times costs the job: pids, signals, published steps, and the time of a step.

`python -m bench.adoption [--kills 50]`: half of the kills under the built-in restarter (`run --restart`), half with a
fresh start by hand, at random moments, while the next daemon takes the job over, while a step is on its way to the
store, and in an open incident. The control is the same run: phases in which the daemon lives and phases with kills
take turns, so that a machine that slows down meanwhile slows both. A step of the practice job sleeps and writes; the
helper beside it computes (4 MiB of SHA-256, then 0.08 s of sleep), which a disturbed core would show at once.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

from tests.e2e.killing import How, Told, fifty

PHASE_S = 20.0
BLOCKS = 4
IN_INCIDENTS = 3
HOWS: tuple[How, ...] = ("restarter", "fresh")


def measure(kills: int, phase_s: float, folder: Path) -> dict[How, Told]:
    """Both kinds of a next daemon, half of the kills each."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}", file=sys.stderr, flush=True)
    incidents = min(IN_INCIDENTS, kills // 4)
    found: dict[How, Told] = {}
    for how, share in zip(HOWS, (kills // 2, kills - kills // 2), strict=True):
        found[how] = fifty(folder / how, how, share, incidents, seed, phase_s, BLOCKS)
        print(f"{how}: {found[how].kills} kills are done ...", file=sys.stderr, flush=True)
        print(table({how: found[how]}), file=sys.stderr, flush=True)
    return found


def table(found: dict[How, Told]) -> str:
    """The figures, a column each kind of a next daemon."""
    kinds = list(found.values())
    rows = [
        ("", "asked", *found),
        ("kills of the daemon", "50 in all", *(str(told.kills) for told in kinds)),
        *(
            (f"  {moment}", "", *(str(told.moments.get(moment, 0)) for told in kinds))
            for moment in ("any", "adopting", "publish", "incident", "verdict")
        ),
        ("pids of the job that changed", "0", *(str(len(told.changed)) for told in kinds)),
        ("signals that the job got", "0", *(str(len(told.signals)) for told in kinds)),
        ("  processes that would not have told", "0", *(str(len(told.deaf)) for told in kinds)),
        ("published steps, lost", "0 lost", *(f"{told.published}, {len(told.lost)}" for told in kinds)),
        ("incidents caused, seen", "the same", *("{}, {}".format(*told.incidents) for told in kinds)),
        ("kill to the next one's word, median, longest", "", *(_gaps(told) for told in kinds)),
        ("step, median of control and kills", "", *(_pair(told, "steps") for told in kinds)),
        ("  ratio", "0.95 to 1.05", *(_ratio(told, "steps") for told in kinds)),
        ("work, median of control and kills", "", *(_pair(told, "work") for told in kinds)),
        ("  ratio", "0.95 to 1.05", *(_ratio(told, "work") for told in kinds)),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _gaps(told: Told) -> str:
    gaps = sorted(told.gaps)
    return f"{gaps[len(gaps) // 2]:.1f} s, {gaps[-1]:.1f} s" if gaps else "-"


def _pair(told: Told, what: str) -> str:
    one, two = (told.median(what, phase) for phase in ("control", "kills"))
    counts = [len(getattr(told, what)[phase]) for phase in ("control", "kills")]
    return f"{one * 1000:.1f} ms ({counts[0]}), {two * 1000:.1f} ms ({counts[1]})"


def _ratio(told: Told, what: str) -> str:
    return f"{told.median(what, 'kills') / told.median(what, 'control'):.3f}"


def main(words: list[str] | None = None) -> int:
    """Measure and print; exit code 1 where a figure is missed, or there were fewer kills than asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.adoption", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="in all, both kinds together")
    parser.add_argument("--phase", type=float, default=PHASE_S, help="seconds of each of the four control phases")
    options = parser.parse_args(words)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="rl-adoption-") as folder:
        found = measure(options.kills, options.phase, Path(folder))
    print(table(found))
    for told in found.values():
        for sentence in (*told.changed, *told.signals, *told.deaf):
            print(f"  {sentence}")
    print(f"\n{os.cpu_count()} cores, load {before:.1f} before and {os.getloadavg()[0]:.1f} after")
    short = missed(found, options.kills)
    print("\n".join(short))
    return int(bool(short))


def missed(found: dict[How, Told], kills: int) -> list[str]:
    """What of all that is asked for was not reached, the time of a step included; empty where all was."""
    seen = sum(told.kills for told in found.values())
    short = [f"{seen} of {kills} kills were done."] if seen < max(1, kills) else []
    for how, told in found.items():
        for what in ("steps", "work"):
            if not 0.95 <= told.median(what, "kills") / told.median(what, "control") <= 1.05:  # NaN: not measured
                short.append(f"{how}: the ratio of {what} is {_ratio(told, what)}.")
        if told.incidents[0] != told.incidents[1]:
            short.append(f"{how}: {told.incidents[0]} incidents were caused, and {told.incidents[1]} seen.")
        if told.changed or told.signals or told.deaf or told.lost or not told.published:
            short.append(f"{how}: the job was touched, or nobody can say that it was not.")
    return short


if __name__ == "__main__":
    sys.exit(main())
