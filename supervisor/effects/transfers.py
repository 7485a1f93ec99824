"""Run transfers in child processes and wait for their answers.

The child (``supervisor.checkpoints.transfer``) holds everything heavy: b2sdk, TLS, hashing. It may be killed at any
moment without loss, so a transfer without progress is killed here and reported as a passing failure. In the daemon it
waits for some seconds for the next request, since few come alone: a publish, what the store keeps of the run, a delete.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from supervisor.base.errors import StoreError
from supervisor.base.records import dataclass
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
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._window_s:
            self._seen.popleft()

    def bytes_per_s(self, now: float) -> float:
        """The rate at ``now``; it falls while nothing moves, also when ``saw`` is not called."""
        seen = list(self._seen)  # another thread may be adding
        old = [entry for entry in seen if entry[0] <= now - self._window_s]
        first = old[-1] if old else seen[0] if seen else (now, 0)
        seconds = now - first[0]
        return max(0.0, (seen[-1][1] - first[1]) / seconds) if seen and seconds > 0 else 0.0


@dataclass
class Moving:
    """How far a transfer is in its present phase (hashing, sending, fetching)."""

    what: str
    bytes: int = 0
    total: int = 0
    phase: str = ""
    files: int = 0
    recent: RecentRate = field(default_factory=RecentRate)
    moved_t: float = float("-inf")  # when anything last moved, on the monotonic clock
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
        self.moved_t = now if progressed else self.moved_t
        return progressed

    @property
    def rate(self) -> float:
        """Bytes a second over about the last half minute."""
        return self.recent.bytes_per_s(time.monotonic())

    @property
    def remaining_s(self) -> float | None:
        """Seconds to go at the present rate; None while that cannot be said."""
        return (self.total - self.bytes) / self.rate if self.rate > 0 and self.total else None


class _NotBegunError(Exception):
    """The child had ended before it began with the request: it had waited long enough."""


class _Child:
    """One transfer process. It carries out one request after another."""

    def __init__(self, environ: Mapping[str, str], ended: Callable[[_Child], None]) -> None:
        words, pipe = [sys.executable, "-m", "supervisor.checkpoints.transfer"], subprocess.PIPE
        try:
            self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environ, cwd="/")
        except OSError as error:
            raise StoreError("transient", f"No transfer process could be started: {error.strerror}") from error
        self._ended = ended
        self._requests = 0
        self._answered = threading.Event()  # or it has ended
        self._answer: dict[str, Any] = {}
        self._entries: dict[str, dict[str, Any]] = {}  # of the answer's fields that come line by line
        self._moving, self._heard_t = Moving(""), 0.0
        self._complaint = bytearray()
        self._complains = threading.Thread(target=self._complain, daemon=True)
        self._listens = threading.Thread(target=self._listen, daemon=True)
        try:
            self._complains.start()
            self._listens.start()
        except RuntimeError as error:  # this container may have no more threads
            self.process.kill()
            self.process.wait()
            raise StoreError("transient", f"The transfer process cannot be listened to: {error}") from error

    def ask(self, asked: Mapping[str, Any], moving: Moving, stall_s: float, *, is_last: bool) -> dict[str, Any]:
        """Carry out one request; it is told that there is no other one where ``is_last``. Raises StoreError."""
        self._requests += 1
        self._moving, self._heard_t = moving, time.monotonic()
        self._answer, self._entries = {}, {}
        self._send(asked, is_last=is_last)
        while not self._answered.wait(0.2):
            if time.monotonic() - self._heard_t > stall_s:
                self.end()
                sentence = f"The transfer moved no byte for {stall_s:.0f} s and was ended; it goes on where it was."
                raise StoreError("transient", sentence)
        self._answered.clear()
        if is_last or "ok" not in self._answer:
            self._listens.join(5)
            self.end()
        return self._read_answer()

    def _send(self, asked: Mapping[str, Any], *, is_last: bool) -> None:
        assert self.process.stdin is not None  # noqa: S101 - opened as a pipe above
        try:
            self.process.stdin.write(json.dumps(asked).encode() + b"\n")
            self.process.stdin.flush()
            if is_last:
                self.process.stdin.close()
        except (OSError, ValueError):
            return  # it has ended: its status and complaint tell why

    def _read_answer(self) -> dict[str, Any]:
        if "ok" in self._answer:
            return {**self._answer["ok"], **self._entries}
        if told := self._answer.get("error"):
            if told.get("kind") == "fenced":
                raise FencedError(str(told.get("sentence")), str(told.get("by")), int(told.get("generation", 0)))
            raise StoreError(told.get("kind", "transient"), told.get("sentence", "unknown error"))
        if self._moving.cancelled:
            raise StoreError("transient", self._moving.cancelled)
        code = self.process.returncode
        if code == 0 and self._requests > 1:
            raise _NotBegunError
        self._complains.join(5)
        tail = self._complaint.decode(errors="replace").strip().splitlines()[-1:] or ["no word of why"]
        kind = ChildCrashedError if code > 0 else StoreError
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        raise kind("transient", f"The transfer process {how} without an answer: {tail[0]}")

    def _listen(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - opened as a pipe above
        while line := self.process.stdout.readline(LINE_LIMIT):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            now = time.monotonic()
            if "progress" in said:
                if self._moving.saw(said["progress"], now):
                    self._heard_t = now
            elif "entry" in said:
                entry = said["entry"]
                self._entries.setdefault(entry["field"], {})[entry["name"]] = entry["value"]
                self._heard_t = now
            else:
                self._answer = said
                self._answered.set()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._ended(self)
        self._answered.set()

    def _complain(self) -> None:
        assert self.process.stderr is not None  # noqa: S101 - opened as a pipe above
        while block := os.read(self.process.stderr.fileno(), 4096):
            self._complaint.extend(block)
            del self._complaint[:-8192]

    def end(self) -> None:
        """Kill it, which costs nothing, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for thread in (self._listens, self._complains):
            thread.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                with contextlib.suppress(OSError):  # what was not sent cannot be
                    pipe.close()


class Transfers:
    """Starts transfer children, watches their progress, and can kill them all."""

    def __init__(self, environ: Mapping[str, str], stall_s: float, *, more_follow: bool = False) -> None:
        """``environ`` is the daemon's own environment (it holds the store's keys); ``stall_s`` the patience.

        ``more_follow``: requests come again and again, so a child that has answered is kept for the next one.
        """
        self._environ = dict(environ)
        self._stall_s = stall_s
        self._more_follow = more_follow
        self._lock = threading.Lock()
        self._at_work: dict[int, _Child] = {}
        self._waiting: list[_Child] = []
        self._closed = False
        self.moving: dict[str, Moving] = {}
        self.moved_t = float("-inf")  # when a transfer last moved a byte, on the monotonic clock

    def run(self, asked: Mapping[str, Any], what: str = "", stall_s: float | None = None) -> dict[str, Any]:
        """Carry out one request; returns the child's ``ok`` object. Raises StoreError."""
        while True:
            with contextlib.suppress(_NotBegunError):
                return self._run_once(asked, what, stall_s or self._stall_s)

    def _run_once(self, asked: Mapping[str, Any], what: str, stall_s: float) -> dict[str, Any]:
        # What is urgent has a child of its own: those that wait have stepped back for the training.
        alone = not self._more_follow or bool(asked.get("urgent"))
        moving, answered = Moving(what), False
        with self._lock:
            if self._closed:
                raise StoreError("transient", "The daemon is ending: no new transfer is begun.")
            child = self._waiting.pop() if self._waiting and not alone else _Child(self._environ, self._forget)
            self._at_work[child.process.pid] = child
            if what:
                moving.pid = child.process.pid
                self.moving[what] = moving
        try:
            answer, answered = child.ask(asked, moving, stall_s, is_last=alone), True
            return answer
        finally:
            with self._lock:
                self._at_work.pop(child.process.pid, None)
                self.moved_t = max(self.moved_t, moving.moved_t)
                if what:
                    self.moving.pop(what, None)
                ends = alone or self._closed or moving.cancelled or child.process.poll() is not None
                kept = answered and not ends
                if kept:
                    self._waiting.append(child)
            if not kept:
                child.end()

    def _forget(self, child: _Child) -> None:
        """It has ended."""
        with self._lock:
            if child in self._waiting:
                self._waiting.remove(child)

    def cancel(self, what: str, why: str) -> None:
        """Kill the transfer that is told as ``what``, if it is under way; its ``run`` raises kind "transient"."""
        with self._lock:
            moving = self.moving.get(what)
            if moving is not None:
                moving.cancelled = why
                self._at_work[moving.pid].process.kill()

    def close(self) -> None:
        """Kill what is under way (nothing is lost by that) and begin no more."""
        with self._lock:
            self._closed = True
            children = [*self._at_work.values(), *self._waiting]
        for child in children:
            child.process.kill()
