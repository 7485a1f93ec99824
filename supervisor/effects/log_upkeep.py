"""Keeps the logs in the state folder bounded: a long living one, those of ended attempts, and all of them together.

Looked after every ten seconds (``plan``: a few directory listings). What there is to do is done by a child process at
the lowest priority: compressing takes long, and a thread of that priority could hold Python's lock for as long.

What is written into is only ever captured output: files that the job opened itself are not touched while it lives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from supervisor.base.own_child import OwnChild
from supervisor.base.records import dataclass
from supervisor.effects.log_holes import MIB, data_bytes
from supervisor.journal.attempt_folders import KEPT, PIECE, attempts, folder_of, list_waiting_folders

LIVING_BYTES = 64 * MIB  # of a captured log that lives, uncompressed; with a small `max_mb` less
QUIET_S = 20.0  # so long an ended attempt's log must be untouched: something of it may still be dying
CHILD_LIMIT_S = 3600.0
CLOSE_S = 1.0
SHOWN = 500
MOST_TOLD = 200  # sentences of one daemon: each is told once

Work = Literal["rotate", "squeeze", "delete", "forget"]


@dataclass(frozen=True)
class Order:
    """What a round is to do. ``attempt`` is the present one; ``keep``: attempts that nothing is taken from, that of an
    open incident among them.
    """

    state_dir: str
    attempt: int
    keep: tuple[int, ...] = ()
    keep_attempts: int = 20
    max_bytes: int = 4096 * MIB
    quiet_s: float = QUIET_S

    @property
    def living_bytes(self) -> int:
        """From this size on a living log's older part is compressed; a quarter of it always stays plain."""
        return min(LIVING_BYTES, self.max_bytes // 16)


@dataclass(frozen=True)
class Task:
    """One piece of work. "squeeze" compresses ``path`` into ``target``; "forget" removes an attempt's folder."""

    work: Work
    path: Path
    target: Path | None = None


def plan(order: Order, now: float | None = None) -> list[Task]:
    """What has to be done now; empty most of the time. Only looks; what cannot be looked at is left alone."""
    now = time.time() if now is None else now
    folders = _folders_in_order(order)
    tasks: list[Task] = []
    living = [folder for folder, present in folders.items() if present]
    for folder in living:
        tasks += [Task("rotate", path) for path in _plain_output(folder) if data_bytes(path) > order.living_bytes]
    for folder, present in folders.items():
        tasks += _squeezes_folder(folder, order, now, captured=not present)
    return [*tasks, *_bounds_of_logs(order, folders)]


def _folders_in_order(order: Order) -> dict[Path, bool]:
    """The folders of attempts and engines, oldest first; True: something may still write there."""
    state_dir = Path(order.state_dir)
    found = {folder_of(state_dir, number): number >= order.attempt for number in attempts(state_dir)}
    engines = sorted(path for path in (state_dir / "engines").glob("[0-9]*") if path.name.isdigit())
    return {**found, **{path: path == engines[-1] for path in engines}}


def _plain_output(folder: Path) -> list[Path]:
    """Captured output as the shim opened it. A link is the file of a job that a person started: never touched."""
    return [path for path in _list_files(folder) if path.name.endswith(".log")]


def _list_files(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                Path(entry.path)
                for entry in entries
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError:
        return []


def _squeezes_folder(folder: Path, order: Order, now: float, *, captured: bool) -> Iterator[Task]:
    found = _plain_output(folder) if captured else []
    kept = folder / KEPT
    coming = [path for place in list_waiting_folders(folder) for path in _list_files(place)]
    for path in (*found, *_list_files(kept), *coming):
        if path.name.endswith(".gz"):
            continue
        look = _look_at_file(path)
        # What was moved or copied into `kept` has no writer; what was captured may have one that is still dying.
        if look is not None and (path not in found or now - look.st_mtime >= order.quiet_s):
            place = kept if path in coming else path.parent
            yield Task("squeeze", path, place / f"{path.name}.gz")


def _bounds_of_logs(order: Order, folders: dict[Path, bool]) -> Iterator[Task]:
    state_dir = Path(order.state_dir)
    safe = {folder_of(state_dir, number) for number in (*order.keep, order.attempt)}
    numbers = attempts(state_dir)
    forgotten = [folder_of(state_dir, number) for number in numbers[: -order.keep_attempts]]
    gone = {folder for folder in forgotten if folder not in safe and not folders[folder]}
    yield from (Task("forget", folder) for folder in sorted(gone))
    sizes = {
        folder: {path: _blocks_of_file(path) for path in _log_files(folder)} for folder in folders if folder not in gone
    }
    for folder, files in sizes.items():
        if folders[folder]:
            # Of one that lives the first piece tells how it began, the newest what it does; what is between goes.
            pieces = sorted(path for path in files if PIECE.fullmatch(path.name))
            held = sum(files[path] for path in pieces)
            for path in pieces[1:-1]:
                if held > order.max_bytes // 2:
                    held -= files.pop(path)
                    yield Task("delete", path)
    total = sum(sum(files.values()) for files in sizes.values())
    by_age = sorted(sizes, key=lambda folder: max((_change_time(path) for path in sizes[folder]), default=0.0))
    for folder in by_age:
        if total > order.max_bytes and folder not in safe and not folders[folder]:
            total -= sum(sizes[folder].values())
            yield from (Task("delete", path) for path in sizes[folder])


def _log_files(folder: Path) -> list[Path]:
    own = [
        path for path in _list_files(folder) if path.name.endswith((".log", ".log.gz")) or PIECE.fullmatch(path.name)
    ]
    return [*own, *(path for place in (folder / KEPT, *list_waiting_folders(folder)) for path in _list_files(place))]


def _look_at_file(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _blocks_of_file(path: Path) -> int:
    look = _look_at_file(path)
    return look.st_blocks * 512 if look else 0


def _change_time(path: Path) -> float:
    look = _look_at_file(path)
    return look.st_mtime if look else 0.0


# ---------------------------------------------------------------- asking for a round


class LogUpkeep:
    """Starts a round when there is something to do; never more than one, and never waits for it."""

    def __init__(
        self, state_dir: Path, keep_attempts: int, max_mb: int, quiet_s: float, tell: Callable[[str], None]
    ) -> None:
        """``quiet_s``: for so long an ended attempt's log must be unchanged. ``tell`` takes sentences on what
        is lost, in the thread that calls ``tend``.
        """
        self._order = Order(str(state_dir), 0, (), keep_attempts, max_mb * MIB, quiet_s)
        self._tell = tell
        self._lock = threading.Lock()
        self._child: OwnChild | None = None
        self._began = 0.0
        self._told: set[str] = set()
        self._closed = False

    def tend(self, attempt: int, keep: Sequence[int]) -> None:
        """Look whether there is something to do. Returns within milliseconds; call it every few seconds."""
        with self._lock:
            if self._closed or attempt == 0 or self._is_busy():
                return
            changes = {"attempt": attempt, "keep": sorted(number for number in set(keep) if number)}
            order = Order(**{**asdict(self._order), **changes})
            if not plan(order):
                return
            words = [sys.executable, "-m", "supervisor.effects.log_round", json.dumps(asdict(order))]
            environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LC_ALL") if name in os.environ}
            try:
                self._child = OwnChild(words, environ=environ, cwd=Path("/"))
            except OSError as error:
                self._say_once(f"Logs could not be compressed: no process could be started ({error.strerror}).")
            self._began = time.monotonic()

    def _is_busy(self) -> bool:
        child = self._child
        if child is None:
            return False
        if child.process.poll() is None:
            if time.monotonic() - self._began > CHILD_LIMIT_S:
                child.process.kill()  # each of its steps is whole or not done
            return True
        self._child = None
        with child:
            for line in child.answer().decode(errors="replace").splitlines():
                self._say_once(line[:SHOWN])
        return False

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(sentence)
            self._tell(sentence)

    def close(self) -> None:
        """End a round that is under way; the next daemon does the rest."""
        self._closed = True
        if not self._lock.acquire(timeout=CLOSE_S):
            return  # a look hangs on a dead mount, where the job's own logs wait to be fetched
        try:
            if self._child is not None:
                self._child.process.kill()
                self._child.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            pass  # it hangs there itself; it does nothing any more, and any process may reap it
        finally:
            self._lock.release()
