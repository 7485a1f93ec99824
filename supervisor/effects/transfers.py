"""Run one transfer in a child process and wait for its answer.

The child (``supervisor.checkpoints.transfer``) holds everything heavy: b2sdk, TLS, hashing. It may be killed at any
moment without loss, so a transfer without progress is killed here and reported as a passing failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.base.errors import StoreError
from supervisor.checkpoints.verbs import VERBS, Request, StorePlace
from supervisor.checkpoints.writers import FencedError
from supervisor.config.settings import RunFile

RATE_WINDOW_S = 30.0
LINE_LIMIT = 32 << 20  # bytes; a log of 4 MiB has six times that, where JSON escapes each byte


def request(run_file: RunFile, do: str, **more: Any) -> dict[str, Any]:
    """A request for the child about this run and its store; ``supervisor.checkpoints.verbs`` has its fields."""
    store = run_file.store
    place = StorePlace(
        url=run_file.store_url,
        realm=store.service,
        region=store.region,
        streams=store.streams,
        part_size=store.part_size,
        limit_mbit=store.limit_mbit,
    )
    return Request(run_file.run.id, place, VERBS[do].as_dataclass()(**more)).as_json()


class ChildCrashedError(StoreError):
    """The child ended by itself and without an answer: that is our own mistake, or the installation's."""


class RecentRate:
    """Bytes a second over about the last half minute: an average of hours hides that a link has just become slow."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()

    def saw(self, moved: int, now: float) -> None:
        """``moved`` bytes in all at ``now`` seconds. They may be fewer than before."""
        self._seen.append((now, moved))
        self._drop_old_samples(now)

    def bytes_per_s(self, now: float) -> float:
        """The rate at ``now``; it falls while nothing moves, also when ``saw`` is not called."""
        seen = list(self._seen)  # another thread may be adding
        old = [entry for entry in seen if entry[0] <= now - self._window_s]
        first = old[-1] if old else seen[0] if seen else (now, 0)
        seconds = now - first[0]
        return max(0.0, (seen[-1][1] - first[1]) / seconds) if seen and seconds > 0 else 0.0

    def _drop_old_samples(self, now: float) -> None:
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._window_s:
            self._seen.popleft()


@dataclass
class Moving:
    """How far a transfer is in its present phase (hashing, sending, fetching)."""

    what: str
    bytes: int = 0
    total: int = 0
    phase: str = ""
    files: int = 0
    recent: RecentRate = field(default_factory=RecentRate)
    cancelled: str = ""  # why it was, a sentence
    pid: int = 0  # of the child

    def saw(self, said: Mapping[str, Any], now: float) -> bool:
        """Take in what the child said; True when anything moved: bytes, or files that have none."""
        phase, moved, files = str(said.get("phase", "")), int(said.get("bytes", 0)), int(said.get("files", 0))
        if phase != self.phase:
            self.recent = RecentRate()
        progressed = (phase, moved, files) != (self.phase, self.bytes, self.files)
        self.phase, self.bytes, self.files, self.total = phase, moved, files, int(said.get("total", 0))
        self.recent.saw(moved, now)
        return progressed

    @property
    def rate(self) -> float:
        """Bytes a second over about the last half minute."""
        return self.recent.bytes_per_s(time.monotonic())

    @property
    def remaining_s(self) -> float | None:
        """Seconds to go at the present rate; None while that cannot be said."""
        return (self.total - self.bytes) / self.rate if self.rate > 0 and self.total else None


class Transfers:
    """Starts transfer children, watches their progress, and can kill them all."""

    def __init__(self, environ: Mapping[str, str], stall_s: float) -> None:
        """``environ`` is the daemon's own environment (it holds the store's keys); ``stall_s`` the patience."""
        self._environ = dict(environ)
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._closed = False
        self.moving: dict[str, Moving] = {}
        self.moved_t = float("-inf")  # when a transfer last moved a byte, on the monotonic clock

    def run(self, asked: Mapping[str, Any], what: str = "", stall_s: float | None = None) -> dict[str, Any]:
        """Carry out one request; returns the child's ``ok`` object. Raises StoreError."""
        moving = Moving(what)
        with self._lock:
            if self._closed:
                raise StoreError("transient", "The daemon is ending: no new transfer is begun.")
            child = subprocess.Popen(
                [sys.executable, "-m", "supervisor.checkpoints.transfer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environ,
                cwd="/",
            )
            self._children[child.pid] = child
            if what:
                moving.pid = child.pid
                self.moving[what] = moving
        try:
            return self._talk_to_child(child, asked, moving, stall_s or self._stall_s)
        finally:
            with self._lock:
                self._children.pop(child.pid, None)
                if what:
                    self.moving.pop(what, None)
            if child.poll() is None:
                child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe:
                    pipe.close()

    def _talk_to_child(
        self, child: subprocess.Popen[bytes], asked: Mapping[str, Any], moving: Moving, stall_s: float
    ) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        entries: dict[str, dict[str, Any]] = {}  # of the answer's fields that come line by line
        complaint = bytearray()
        last = [time.monotonic()]

        def listen() -> None:
            assert child.stdout is not None  # noqa: S101 - opened as a pipe above
            while line := child.stdout.readline(LINE_LIMIT):
                try:
                    said = json.loads(line)
                except ValueError:
                    continue
                if "progress" in said:
                    now = time.monotonic()
                    if moving.saw(said["progress"], now):
                        last[0] = self.moved_t = now
                elif "entry" in said:
                    entry = said["entry"]
                    entries.setdefault(entry["field"], {})[entry["name"]] = entry["value"]
                    last[0] = time.monotonic()
                else:
                    answer.update(said)

        def complain() -> None:
            assert child.stderr is not None  # noqa: S101 - opened as a pipe above
            while block := os.read(child.stderr.fileno(), 4096):
                complaint.extend(block)
                del complaint[:-8192]

        threads = [threading.Thread(target=work, daemon=True) for work in (listen, complain)]
        for thread in threads:
            thread.start()
        self._ask_child(child, asked)
        while child.poll() is None:
            threads[0].join(0.2)
            if not threads[0].is_alive():
                try:
                    child.wait(5)
                except subprocess.TimeoutExpired:
                    child.kill()
                break
            if time.monotonic() - last[0] > stall_s:
                child.kill()
                child.wait()
                raise StoreError(
                    "transient",
                    f"The transfer moved no byte for {stall_s:.0f} s and was ended; it goes on where it was.",
                )
        for thread in threads:
            thread.join(5)
        if "ok" in answer:
            return {**answer["ok"], **entries}
        if "error" in answer and answer["error"].get("kind") == "fenced":
            told = answer["error"]
            raise FencedError(str(told.get("sentence")), str(told.get("by")), int(told.get("generation", 0)))
        if "error" in answer:
            raise StoreError(answer["error"].get("kind", "transient"), answer["error"].get("sentence", "unknown error"))
        if moving.cancelled:
            raise StoreError("transient", moving.cancelled)
        tail = complaint.decode(errors="replace").strip().splitlines()[-1:] or ["no word of why"]
        kind = ChildCrashedError if child.returncode > 0 else StoreError
        raise kind(
            "transient", f"The transfer process ended with status {child.returncode} without an answer: {tail[0]}"
        )

    @staticmethod
    def _ask_child(child: subprocess.Popen[bytes], asked: Mapping[str, Any]) -> None:
        assert child.stdin is not None  # noqa: S101 - opened as a pipe above
        try:
            child.stdin.write(json.dumps(asked).encode() + b"\n")
            child.stdin.close()
        except OSError:
            return  # it died at once: its status and complaint tell why

    def children(self) -> list[int]:
        """Pids of the transfers under way."""
        with self._lock:
            return list(self._children)

    def cancel(self, what: str, why: str) -> None:
        """Kill the transfer that is told as ``what``, if it is under way; its ``run`` raises kind "transient"."""
        with self._lock:
            moving = self.moving.get(what)
            if moving is not None:
                moving.cancelled = why
                self._children[moving.pid].kill()

    def close(self) -> None:
        """Kill what is under way (nothing is lost by that) and begin no more."""
        with self._lock:
            self._closed = True
            for child in self._children.values():
                child.kill()
