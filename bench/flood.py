"""How long does a fact wait for the decision loop while the job's logs are a flood?

`python -m bench flood` (or `python -m bench.flood --seconds 60 --rounds 3`) runs the real daemon, with production's run
file, over the real practice job, and measures in turns: silence; ten thousand lines a second into the captured output
and the roles' own files (what real runs write, with tracebacks, colours, progress bars, 64 KiB lines and binary junk);
then a storm in which each of as many lines is a known error; then a captured log that grows to 1 GB in a minute; and at
last a daemon that was killed and comes back to 1 GB that nobody has read.

A *wait* is the time from the moment at which something is put into the loop's inbox until the loop takes it out, and
how late the loop is for a moment that the core named. The daemon measures it itself, always (`supervisor.daemon.inbox`,
/metrics); a probe adds fifty chores a second that do nothing, so that there are enough of them for a 99.9th percentile.
Beside it runs an idle control loop, the same inbox and the same probe in a process of its own: what it waits is the
machine's doing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.flooding import append, mean_bytes
from bench.pod import ROOT, practice_of, production_pod
from tests.e2e.rig import Pod
from tests.practice.run import wait_until

SITE = ROOT / "bench" / "flood_site"
MIB = 1 << 20
GB = 10**9
ASKED_MS = 100.0
FLOOD = 0.9  # of the bytes that so many lines have: with less of them it was none
ENOUGH = 1000  # waits: of fewer there is no 99.9th percentile


@dataclass
class Waits:
    """Waits of one kind of time, over all rounds. ``at_most``: how many were no longer than so many seconds."""

    count: int = 0
    at_most: dict[float, int] = field(default_factory=dict)

    def add(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """What came between two tellings of one daemon."""
        self.count += after["count"] - before["count"]
        for bound, number in after["at_most"].items():
            self.at_most[float(bound)] = self.at_most.get(float(bound), 0) + number - before["at_most"][bound]

    def percentile_ms(self, part: float) -> float:
        """The bound below which this part of them lies; infinite above the last one, NaN when there is none."""
        if not self.count:
            return math.nan
        wanted = part * self.count
        return 1000 * min((bound for bound, number in self.at_most.items() if number >= wanted), default=math.inf)


@dataclass
class Row:
    """One kind of time: silence, flood, storm, ..."""

    name: str
    waits: Waits = field(default_factory=Waits)
    beside: Waits = field(default_factory=Waits)
    cpu_s: float = 0.0
    seconds: float = 0.0
    rss: int = 0
    written: int = 0
    due: int = 0  # bytes that were to be written
    behind: int = 0

    @property
    def cpu(self) -> float:
        """Percent of one core."""
        return 100 * self.cpu_s / self.seconds if self.seconds else math.nan


class _Bench:
    """A pod whose logs can be flooded."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.say = say
        self.practice = practice_of(folder, step_s=2.0, interval=20, pipeline_log_s=10.0)
        self.pod: Pod = production_pod(folder, self.practice, interval=20)
        self.pod.environ = {"PYTHONPATH": f"{SITE}{os.pathsep}{ROOT}", "RL_FLOOD_PROBE": "1"}
        self.control = subprocess.Popen(
            [sys.executable, "-m", "bench.flooding", "control"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        self.rows: dict[str, Row] = {}

    def __enter__(self) -> _Bench:
        self.pod.start()
        self.pod.wait_for(lambda: self.pod.step() >= 2, "the first steps", 120)
        return self

    def __exit__(self, *_: object) -> None:
        self.control.kill()
        self.control.wait()
        self.pod.close()

    @property
    def captured(self) -> Path:
        return sorted(self.pod.state_dir.glob("attempts/*/rl.log"))[-1]

    def files(self) -> list[str]:
        """The captured output first, then the roles' own files."""
        logs = self.practice.logs()
        own = [logs / f"{role}{self.practice.era.layout['log_suffix']}" for role in ("orchestrator", "inference")]
        return [str(path) for path in (self.captured, *own) if path.exists()]

    def beside(self) -> dict[str, Any]:
        """What the control loop has waited until now."""
        assert self.control.stdin is not None
        assert self.control.stdout is not None
        self.control.stdin.write("tell\n")
        self.control.stdin.flush()
        return dict(json.loads(self.control.stdout.readline()))

    def waits(self) -> dict[str, Any]:
        """What the daemon's loop has waited until now."""
        found: dict[str, Any] = self.pod.wait_for(lambda: self.pod.status().get("loop_waits"), "a status", 30)
        return found

    @contextlib.contextmanager
    def measured(self, name: str) -> Iterator[Row]:
        """Everything that happens inside belongs to a row."""
        row = self.rows.setdefault(name, Row(name))
        assert self.pod.daemon is not None
        daemon = psutil.Process(self.pod.daemon.pid)
        stop = threading.Event()

        def highest() -> None:
            while not stop.wait(0.25):
                with contextlib.suppress(psutil.Error):
                    row.rss = max(row.rss, daemon.memory_info().rss)

        watcher = threading.Thread(target=highest, daemon=True)
        watcher.start()
        before, beside, times, began = self.waits(), self.beside(), daemon.cpu_times(), time.monotonic()
        try:
            yield row
        finally:
            after, times_after = self.waits(), daemon.cpu_times()
            row.waits.add(before, after)
            row.beside.add(beside, self.beside())
            row.cpu_s += times_after.user + times_after.system - times.user - times.system
            row.seconds += time.monotonic() - began
            stop.set()
            watcher.join()

    def quiet(self, seconds: float) -> None:
        """No line but the job's own."""
        with self.measured("silence"):
            time.sleep(seconds)

    def flood(self, name: str, kind: str, seconds: float, lines_per_s: float) -> None:
        """So many lines a second, then wait until they are read."""
        words = [sys.executable, "-m", "bench.flooding", "write", kind, str(lines_per_s), *self.files()]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as writer:
            try:
                assert writer.stdout is not None
                writer.stdout.readline()
                sizes = self.sizes()
                with self.measured(name) as row:
                    time.sleep(seconds)
                    row.behind = max(row.behind, self.behind())
                    row.written += sum(self.sizes().values()) - sum(sizes.values())
                    row.due += int(seconds * lines_per_s * mean_bytes(kind))
                if writer.poll() is not None:
                    raise RuntimeError(f"{name}: the writer ended by itself ({writer.returncode}): this was no flood.")
            finally:
                writer.kill()
        self.caught_up(row)

    def sizes(self) -> dict[str, int]:
        return {name: Path(name).stat().st_size for name in self.files()}

    def behind(self) -> int:
        """Bytes that are not read yet, as the journal knew it at most five seconds ago."""
        read = self.positions()
        return sum(max(0, size - read.get(name, 0)) for name, size in self.sizes().items())

    def positions(self) -> dict[str, int]:
        """Path to offset, from the journal."""
        path = self.pod.state_dir / "journal.db"
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'log_positions'").fetchone()
        kept = json.loads(row[0])["positions"] if row else []
        return {str(one["path"]): int(one["offset"]) for one in kept}

    def caught_up(self, row: Row, limit_s: float = 300) -> None:
        """Wait until all that was written is read, to the last whole line."""
        began = time.monotonic()
        wait_until(lambda: self.behind() < 64 << 10, f"the reader is at the end after {row.name}", limit_s)
        self.say(f"{row.name}: read to the end {time.monotonic() - began:.0f} s after the last line")

    def grow(self, name: str, size: int, seconds: float) -> None:
        """The captured log grows by ``size`` bytes."""
        with self.measured(name) as row:
            row.written += append(self.captured, size, seconds)
            row.behind = max(row.behind, self.behind())
            self.caught_up(row)

    def come_back(self, name: str, size: int, seconds: float) -> None:
        """A daemon is killed, ``size`` bytes come that nobody reads, and the next daemon adopts the job."""
        self.pod.kill_daemon()
        written = append(self.captured, size, 0)
        # Whoever writes to a disk that has a gigabyte to catch up with is made to wait up to 200 ms by the kernel
        # (MAX_PAUSE of mm/page-writeback.c): here the writer's doing, and no part of what is asked.
        os.sync()
        pids = self.practice.pids("trainer")
        self.pod.start()
        self.pod.wait_for(lambda: self.pod.status().get("state") == "running", "the job is adopted", 120)
        with self.measured(name) as row:
            row.written += written
            row.behind = max(row.behind, self.behind())
            began = time.monotonic()
            self.caught_up(row)
            time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        assert self.practice.pids("trainer") == pids, "the job was touched"


@dataclass
class Measured:
    """All rows, what the upkeep left of the captured log on the disk, and the incidents (there should be none)."""

    rows: list[Row]
    captured: int = 0
    on_disk: int = 0
    incidents: int = 0

    def table(self) -> str:
        """As it is printed; percentiles are upper bounds, at the edges of the daemon's histogram."""
        head = ("", "waits", "p50", "p99", "p99.9", "longest", "CPU", "RSS", "written", "behind")
        lines = [head]
        for row in self.rows:
            for name, waits in ((row.name, row.waits), ("  control loop beside it", row.beside)):
                mine = waits is row.waits
                lines.append(
                    (
                        name,
                        str(waits.count),
                        *(f"{waits.percentile_ms(part):g} ms" for part in (0.5, 0.99, 0.999, 1.0)),
                        f"{row.cpu:.1f} %" if mine else "",
                        f"{row.rss / MIB:.0f} MiB" if mine else "",
                        f"{row.written / 1e6:.0f} MB" if mine and row.written else "",
                        f"{row.behind / 1e6:.1f} MB" if mine and row.written else "",
                    )
                )
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        text.append(
            f"Asked: p99.9 within {ASKED_MS:g} ms. The captured log is {self.captured / 1e6:.0f} MB long, "
            f"{self.on_disk / 1e6:.0f} MB of it on the disk; incidents: {self.incidents}."
        )
        return "\n".join(text)


def measure(
    folder: Path,
    seconds: float,
    rounds: int,
    *,
    lines_per_s: float = 10_000,
    big: int = GB,
    say: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Silence, flood and storm in turns, then the two long logs. Raises TimeoutError where the reader stays behind."""
    with _Bench(folder, say) as bench:
        for number in range(rounds):
            say(f"Round {number + 1} of {rounds} ...")
            bench.quiet(seconds)
            bench.flood(f"{lines_per_s:.0f} lines/s", "ordinary", seconds, lines_per_s)
            bench.quiet(seconds)
            bench.flood(f"{lines_per_s:.0f} known errors/s", "storm", seconds / 4, lines_per_s)
        if big:
            bench.grow(f"a log grows by {big / 1e6:.0f} MB", big, seconds)
            bench.come_back(f"{big / 1e6:.0f} MB unread, adopted", big, seconds)
        path = bench.captured
        if big:
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: _on_disk(path) < 100 * MIB, "the upkeep has given the older part back", 300)
        captured, on_disk = path.stat().st_size, _on_disk(path)
        return Measured(list(bench.rows.values()), captured, on_disk, len(bench.pod.sentences("incident")))


def missed(found: Measured) -> list[str]:
    """What was not reached, or not measured; empty where all was."""
    short = [] if found.rows else ["Nothing was measured."]
    for row in found.rows:
        late = row.waits.percentile_ms(0.999)
        if row.waits.count < ENOUGH:
            short.append(f"{row.name}: {row.waits.count} waits, and it takes {ENOUGH} for a 99.9th percentile.")
        elif not late <= ASKED_MS:
            short.append(f"{row.name}: the 99.9th percentile is {late:g} ms.")
        if row.written < FLOOD * row.due:
            short.append(f"{row.name}: {row.written / 1e6:.1f} of {row.due / 1e6:.1f} MB were written.")
    return short + ([f"There were {found.incidents} incidents, and nothing had happened."] if found.incidents else [])


def _on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 where the 99.9th percentile is missed, or there are too few waits to tell."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m bench.flood", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=float, default=10_000, help="lines a second")
    parser.add_argument("--megabytes", type=int, default=1000, help="of the long log; 0 leaves it out")
    options = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="rl-flood-"))
    try:
        found = measure(
            folder,
            options.seconds,
            options.rounds,
            lines_per_s=options.lines,
            big=options.megabytes * 10**6,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(found.table())
    short = missed(found)
    print("\n".join(short))
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main())
