"""Collectors side by side, each with its own limit: what hangs is left behind, named, and not waited for."""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from supervisor.base.secrets import mask_secrets

FILE_BYTES = 512 << 10  # of one file of a bundle
COLLECTOR_BYTES = 2 << 20  # of all that one collector hands over
CUT = "\n[the rest is left out: it would be longer than {} bytes]\n"
PIPE_BYTES = 1 << 16

Word = Literal["collected", "failed", "late"]
T = TypeVar("T")


class Sink:
    """Where a collector puts its texts, without secrets from here on. Closed when its time is over.

    What was put before stays: a collector that hangs at the third process has told of two.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, bytes] = {}
        self._notes: list[str] = []
        self._bytes = 0
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Is it too late? A collector that works for long asks now and then."""
        return self._closed

    def put(self, name: str, text: str, *, limit_bytes: int = FILE_BYTES, end: bool = False) -> None:
        """Keep ``text`` as the file ``name``, masked; of what is too long the beginning, or with ``end`` the end."""
        # Cut before the work as well as after it: masking takes long. A little more, since masks are short.
        around = limit_bytes + (64 << 10)
        cut = len(text) > around
        if cut:
            text = text[-around:].partition("\n")[2] if end else text[:around].rpartition("\n")[0]
        data = mask_secrets(text).encode("utf-8", "replace")
        if cut or len(data) > limit_bytes:
            note = CUT.format(limit_bytes).encode()
            data = note + data[-limit_bytes:] if end else data[:limit_bytes] + note
        self.keep(name, data)

    def add(self, name: str, text: str) -> None:
        """Append ``text`` to the file ``name``, masked, while it is not too long."""
        data = mask_secrets(text[:FILE_BYTES]).encode("utf-8", "replace")
        with self._lock:
            before = self._files.get(name, b"")
        if len(before) + len(data) <= FILE_BYTES:
            self.keep(name, before + data)
        elif not before.endswith(b"]\n"):
            self.keep(name, before + CUT.format(FILE_BYTES).encode())

    def keep(self, name: str, data: bytes) -> None:
        """Keep bytes as they are: the caller has masked them."""
        with self._lock:
            if self._closed:
                return
            before = len(self._files.get(name, b""))
            if self._bytes - before + len(data) > COLLECTOR_BYTES:
                self._notes.append(f"{name} is left out: this part would be longer than {COLLECTOR_BYTES} bytes")
                return
            self._bytes += len(data) - before
            self._files[name] = data

    def note(self, sentence: str) -> None:
        """Say what could not be had, and why."""
        with self._lock:
            if not self._closed:
                self._notes.append(mask_secrets(sentence))

    def close(self) -> tuple[dict[str, bytes], list[str]]:
        """No more; what was put until now."""
        with self._lock:
            self._closed = True
            return dict(self._files), list(self._notes)


@dataclass(frozen=True)
class Collector:
    """One part of a bundle. ``collect`` may take long, may hang; what it raises becomes a sentence."""

    name: str
    collect: Callable[[Sink], None]
    limit_s: float


@dataclass(frozen=True)
class Part:
    """What came of one collector."""

    name: str
    word: Word
    seconds: float
    files: Mapping[str, bytes] = field(default_factory=dict)
    notes: Sequence[str] = ()


def gather(
    collectors: Sequence[Collector],
    *,
    until: float,
    cut: threading.Event,
    ready: Callable[[Part], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run all at once; hand each part to ``ready`` as it is done or its time is over, at the latest at ``until``.

    ``cut``: when set, everything that is not done yet is over at once.
    """
    done: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    begun = clock()
    sinks = [Sink() for _ in collectors]
    for number, one in enumerate(collectors):
        threading.Thread(
            target=_run_collector, args=(number, one, sinks[number], done), name=f"evidence-{one.name}", daemon=True
        ).start()
    pending = {number: min(until, begun + one.limit_s) for number, one in enumerate(collectors)}
    while pending:
        now = clock()
        for number in [n for n, limit in pending.items() if now >= limit or cut.is_set()]:
            one = collectors[number]
            del pending[number]
            files, notes = sinks[number].close()
            why = "the collecting was ended early" if cut.is_set() else f"not done after {now - begun:.1f} s"
            ready(Part(one.name, "late", now - begun, files, [*notes, f"{why}: it is left behind"]))
        if not pending:
            return
        try:
            number, error = done.get(timeout=max(0.0, min(min(pending.values()) - clock(), 0.05)))
        except queue.Empty:
            continue
        if pending.pop(number, None) is None:
            continue
        files, notes = sinks[number].close()
        word: Word = "failed" if error or not files else "collected"
        ready(Part(collectors[number].name, word, clock() - begun, files, [*notes, *([error] if error else [])]))


def _run_collector(number: int, one: Collector, sink: Sink, done: queue.SimpleQueue[tuple[int, str]]) -> None:
    error = ""
    try:
        one.collect(sink)
    except OSError as failure:
        name = f"{failure.filename}: " if failure.filename else ""
        error = mask_secrets(f"{name}{failure.strerror or failure}")
    except Exception as failure:  # an unforeseen failure of one part must not cost the others
        error = mask_secrets(f"{type(failure).__name__}: {failure}")
    done.put((number, error))


def within(limit_s: float, work: Callable[[], T], default: T) -> T:
    """What ``work`` returns, or ``default`` when that takes too long or fails; then it is left behind."""
    found: queue.SimpleQueue[T] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put(work())
        except OSError:
            found.put(default)

    threading.Thread(target=run, name="evidence-look", daemon=True).start()
    try:
        return found.get(timeout=max(0.0, limit_s))
    except queue.Empty:
        return default


def output_of(argv: Sequence[str], *, timeout_s: float, limit_bytes: int, env: Mapping[str, str]) -> tuple[str, str]:
    """What a program prints, and a sentence when it did not end well. Never longer than asked for, never more.

    It runs in a session of its own and is killed with its children when its time is over. Raises OSError when it
    cannot be started.
    """
    deadline = time.monotonic() + timeout_s
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        cwd="/",
        start_new_session=True,
    )
    assert child.stdout is not None  # noqa: S101 - for the type checker
    data, trouble = bytearray(), ""
    with child.stdout as stream:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                trouble = f"{argv[0]} did not end within {timeout_s:g} s and was killed"
                break
            piece = os.read(stream.fileno(), PIPE_BYTES)
            if not piece:
                break
            data += piece
            if len(data) > limit_bytes:
                trouble = f"{argv[0]} printed more than {limit_bytes} bytes and was ended"
                break
    if not trouble:
        try:
            child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            trouble = f"{argv[0]} did not end within {timeout_s:g} s and was killed"
    if trouble:
        try:
            os.killpg(child.pid, signal.SIGKILL)  # our own child, not reaped yet: the number is no other's
            child.wait(0.5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            trouble += "; it is left behind"
    elif child.returncode:
        trouble = f"{argv[0]} ended with exit code {child.returncode}"
    return bytes(data[:limit_bytes]).decode(errors="replace"), trouble
