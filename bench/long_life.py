"""Twenty-four days of a daemon in fast motion: does its memory, does anything that it holds or keeps, grow?

`python -m bench long_life` (or `python -m bench.long_life --days 24`) runs the real daemon over the real practice job:
its processes, its engine over HTTP, its checkpoints, a store in a folder, and a fault about once a day. It is looked at
from outside, twice a second, and asked for its status and its metrics as Prometheus would.

What is compressed: a step stands for three minutes and takes less than a tenth of a second, so a day is 480 steps.
Deadlines, the rhythm of the looks, and how long the journal keeps its older part are shortened with it. What is not:
each step's facts, each checkpoint (one in two hours), each publish (a child process), each prune, each restart and each
piece of evidence happen as often as in so many days. Looks happen less often than in so many days, since a look at the
GPUs every second cannot be done a thousand times a second: how many facts the core was told is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from supervisor.api.client import Client
from tests.e2e.rig import Pod
from tests.practice.run import make_practice

ERA = "2026-08-21"
DAY_STEPS = 480  # of three minutes
SAVE_EVERY = 40  # steps: two hours
LOOK_S = 0.5
MIB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "bench" / "long_life_site"
FAULTS = ("trainer-crash", "engine-exit-0", "trainer-killed", "checkpoint-torn", "orchestrator-wedge", "engine-hang")
SETTINGS: dict[str, dict[str, Any]] = {
    # A third of a day of checkpoints fits on the disk, so that pruning never rests.
    "disk": {"capacity_gb": 0.02, "prune_above": 0.3, "keep_local": 2, "stop_below_mb": 0},
    "store": {"keep_last": 3},
    "logs": {"keep_attempts": 4},
    "evidence": {"keep": 4},
    "logging": {"format": "json", "file_mb": 0.2, "keep": 2},
    # Room for a loaded machine: what is wanted is a fault a day, not one that the bench's neighbours make.
    "deadlines": {"startup": 120, "step_floor": 15, "step_ceiling": 60, "hang": 8, "engine_grace": 1},
    "recovery": {"max_restarts": 20, "backoff": 0.2, "backoff_cap": 1},
}
WARM_UP = 0.3  # of the time: caches and ring buffers fill, every kind of fault is met once
WINDOWS = 14
WHOLE = 0.95  # of the days that were asked for: the last look is some steps before the end
COUNTS = ("fds", "threads", "children", "state_files", "store_objects")


@dataclass(frozen=True)
class Look:
    """The daemon from outside at one moment, ``day`` in simulated days. Sizes in bytes."""

    day: float
    rss: int
    fds: int
    threads: int
    children: int
    journal: int
    state_dir: int
    state_files: int
    store: int
    store_objects: int


@dataclass(frozen=True)
class Growth:
    """What one of them did after the warm-up: ``change`` is the robust slope over all of the time that was judged."""

    name: str
    usual: float
    change: float
    noise: float
    grows: bool

    def __str__(self) -> str:
        unit, by = ("", 1.0) if self.name in COUNTS else (" MiB", float(MIB))
        word = "GROWS" if self.grows else "does not grow"
        usual, change, noise = (number / by for number in (self.usual, self.change, self.noise))
        return f"{self.name:14} {usual:9.2f}{unit}  change {change:+8.2f}{unit}  noise {noise:7.2f}{unit}  {word}"


@dataclass
class Life:
    """One long life: the looks while the run was well, and what happened in it."""

    looks: list[Look] = field(default_factory=list)
    seconds: float = 0.0
    days: float = 0.0
    facts: int = 0
    incidents: int = 0
    publishes: int = 0
    prunes: int = 0
    exit_code: int | None = None

    def growths(self) -> list[Growth]:
        """The judgement of everything that was measured."""
        names = [name for name in Look.__dataclass_fields__ if name != "day"]
        return [judged(name, [(look.day, float(getattr(look, name))) for look in self.looks]) for name in names]


def judged(name: str, values: Sequence[tuple[float, float]]) -> Growth:
    """Does a measure grow? ``values``: (time, value), in order. Raises ValueError where they are too few to say.

    Of each of fourteen windows after the warm-up the median counts, so that what comes and goes (a transfer's child, a
    burst of sentences) does not. Their slope is Theil and Sen's, the median over all pairs, which a few odd windows do
    not move. It is growth when it is more, over the whole time, than the windows scatter around it by themselves, and
    more than a measure can show: one descriptor, thread or file; for bytes 2 % of the usual or 512 KiB.
    """
    if not values:
        raise ValueError("There was not one look at a running daemon.")
    begin, end = values[0][0], values[-1][0]
    begin += WARM_UP * (end - begin)
    width = (end - begin) / WINDOWS
    windows = []
    for number in range(WINDOWS):
        since, until = begin + number * width, begin + (number + 1) * width
        found = [value for t, value in values if since <= t <= until]
        if found:
            windows.append((since + width / 2, median(found)))
    if len(windows) < WINDOWS * 2 // 3:
        raise ValueError(f"Only {len(windows)} of {WINDOWS} windows hold a look: look more often, or longer.")
    slope = median((y2 - y1) / (t2 - t1) for i, (t1, y1) in enumerate(windows) for t2, y2 in windows[i + 1 :])
    usual = median(y for _, y in windows)
    level = median(y - slope * t for t, y in windows)
    noise = 1.4826 * median(abs(y - slope * t - level) for t, y in windows)
    change = slope * (windows[-1][0] - windows[0][0])
    least = 1.5 if name in COUNTS else max(0.02 * usual, MIB / 2)
    return Growth(name, usual, change, noise, change > max(least, 4 * noise))


def live(
    folder: Path,
    days: float,
    *,
    incidents: int,
    step_s: float = 0.04,
    limit_s: float = 1800,
    leak: str = "",
    progress: Callable[[str], None] = lambda text: None,
) -> Life:
    """A daemon from its first to its last day. ``leak``: what it is made to leak ("fds", "threads", "memory"), by a
    module of this bench, so that the judgement is known to be able to fail."""
    steps = int(days * DAY_STEPS)
    every = steps // (incidents + 1)
    faults = [{"kind": FAULTS[n % len(FAULTS)], "at_step": (n + 1) * every} for n in range(incidents)]
    practice = make_practice(
        folder / "practice",
        ERA,
        max_steps=steps,
        interval=SAVE_EVERY,
        faults=faults,
        step_s=step_s,
        pipeline_log_s=1.0,
        checkpoint_bytes=100_000,
    )
    settings = {**SETTINGS, "job": {"checkpoint_interval": SAVE_EVERY}}
    scale = 86_400 / (DAY_STEPS * 2 * step_s)
    environ = {"PYTHONPATH": f"{SITE}{os.pathsep}{ROOT}", "RL_LONG_LIFE_SCALE": str(scale), "RL_LONG_LIFE_LEAK": leak}
    pod = Pod(folder, ERA, practice=practice, settings=settings, environ=environ)
    life = Life()
    began = time.monotonic()
    try:
        pod.start()
        assert pod.daemon is not None
        daemon, client = psutil.Process(pod.daemon.pid), Client(pod.socket)
        said = 0.0
        while pod.daemon.poll() is None and time.monotonic() - began < limit_s:
            time.sleep(LOOK_S)
            status = _asked(client)
            if status.get("state") != "running" or status.get("incident"):
                continue
            with contextlib.suppress(psutil.Error, OSError):
                life.looks.append(_look(daemon, pod, int(status.get("step") or 0) / DAY_STEPS))
            if life.looks and time.monotonic() - said > 30:
                said = time.monotonic()
                look = life.looks[-1]
                progress(
                    f"day {look.day:.1f} after {said - began:.0f} s: {look.rss / MIB:.1f} MiB, {look.fds} descriptors, "
                    f"{look.threads} threads, journal {look.journal / MIB:.1f} MiB"
                )
        life.exit_code = pod.daemon.poll()
        life.seconds = time.monotonic() - began
        life.days = life.looks[-1].day if life.looks else 0.0
        life.incidents = len(pod.sentences("incident-closed"))
        life.publishes, life.prunes = len(pod.sentences("published")), len(pod.sentences("pruned"))
        with contextlib.closing(sqlite3.connect(f"{(pod.state_dir / 'journal.db').as_uri()}?mode=ro", uri=True)) as db:
            life.facts = int(db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'observations'").fetchone()[0])
    finally:
        pod.close()
    return life


def _asked(client: Client) -> dict[str, Any]:
    with contextlib.suppress(Exception):
        status = dict(client.get("/v1/status"))
        client.get("/v1/events?after=-1&limit=20")
        return status
    return {}


def _look(daemon: psutil.Process, pod: Pod, day: float) -> Look:
    with daemon.oneshot():
        rss, fds, threads = daemon.memory_info().rss, daemon.num_fds(), daemon.num_threads()
        children = len(daemon.children())
    files = list(_files(pod.state_dir))
    # Without the ends of each attempt's logs, of which the store keeps the newest four hundred.
    stored = [one for one in _files(Path(pod.store.removeprefix("file://"))) if "/logs/" not in one[0]]
    journal = sum(size for path, size in files if Path(path).name.startswith("journal.db"))
    return Look(
        day,
        rss,
        fds,
        threads,
        children,
        journal,
        sum(size for _, size in files) - journal,
        len(files),
        sum(size for _, size in stored),
        len(stored),
    )


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Regular files below, and the bytes that they occupy."""
    pending = [str(folder)]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.path, entry.stat().st_blocks * 512


def table(life: Life) -> str:
    """What is printed."""
    head = (
        f"{life.days:.1f} simulated days in {life.seconds:.0f} s: {life.facts} facts, {life.incidents} incidents, "
        f"{life.publishes} publishes, {life.prunes} prunes, {len(life.looks)} looks; exit code {life.exit_code}."
    )
    try:
        return "\n".join([head, *map(str, life.growths())])
    except ValueError as error:
        return f"{head}\n{error}"


def missed(life: Life, days: float, incidents: int) -> list[str]:
    """Why this is no life of so many days in which nothing grew; empty where it is."""
    found = []
    if life.exit_code != 0:
        ended = "was cut off" if life.exit_code is None else f"ended with exit code {life.exit_code}"
        found.append(f"The daemon {ended}, where the job should have come to its end.")
    if life.days < WHOLE * days:
        found.append(f"It lived {life.days:.1f} of {days:g} days.")
    if life.incidents < incidents:
        found.append(f"It saw {life.incidents} of {incidents} incidents.")
    try:
        return found + [f"{growth.name} grows." for growth in life.growths() if growth.grows]
    except ValueError as error:
        return [*found, str(error)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Live, and tell; exit code 1 where something grows, or the life was shorter than asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.long_life", description=__doc__)
    parser.add_argument("--days", type=float, default=24, help="simulated days")
    parser.add_argument("--incidents", type=int, default=20, help="how many faults strike in them")
    parser.add_argument("--limit", type=float, default=1800, help="seconds after which it is ended")
    parser.add_argument("--leak", default="", help='to see it fail: "fds", "threads", "memory", or several of them')
    parser.add_argument("--keep", type=Path, help="a folder to work in, which stays")
    options = parser.parse_args(arguments)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="rl-life-"))
    try:
        life = live(
            folder,
            options.days,
            incidents=options.incidents,
            limit_s=options.limit,
            leak=options.leak,
            progress=lambda text: print(text, file=sys.stderr, flush=True),
        )
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(life))
    found = missed(life, options.days, options.incidents)
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
