"""Collectors side by side, each with its own limit: what hangs is left behind, named, and not waited for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from supervisor.base.beside import Beside
from supervisor.base.own_child import OwnChild
from supervisor.base.secrets import mask_secrets

FILE_BYTES = 512 << 10  # of one file of a bundle
COLLECTOR_BYTES = 2 << 20  # of all that one collector hands over
CUT = f"\n[the rest is left out: it would be longer than {FILE_BYTES} bytes]\n".encode()

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

    def put(self, name: str, text: str, *, end: bool = False) -> None:
        """Keep ``text`` as the file ``name``, masked; of what is too long the beginning, or with ``end`` the end."""
        # Cut before the work as well as after it: masking takes long. A little more, since masks are short.
        around = FILE_BYTES + (64 << 10)
        cut = len(text) > around
        if cut:
            text = text[-around:].partition("\n")[2] if end else text[:around].rpartition("\n")[0]
        data = mask_secrets(text).encode("utf-8", "replace")
        if cut or len(data) > FILE_BYTES:
            data = CUT + data[-FILE_BYTES:] if end else data[:FILE_BYTES] + CUT
        self.keep(name, data)

    def add(self, name: str, text: str) -> None:
        """Append ``text`` to the file ``name``, masked, while it is not too long."""
        data = mask_secrets(text[:FILE_BYTES]).encode("utf-8", "replace")
        with self._lock:
            before = self._files.get(name, b"")
        if len(before) + len(data) <= FILE_BYTES:
            self.keep(name, before + data)
        elif not before.endswith(b"]\n"):
            self.keep(name, before + CUT)

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
) -> None:
    """Run all at once; hand each part to ``ready`` as it is done or its time is over, at the latest at ``until``.

    ``cut``: when set, everything that is not done yet is over at once.
    """
    done: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    begun = time.monotonic()
    sinks = [Sink() for _ in collectors]
    for number, one in enumerate(collectors):
        threading.Thread(
            target=_run_collector, args=(number, one, sinks[number], done), name=f"evidence-{one.name}", daemon=True
        ).start()
    pending = {number: min(until, begun + one.limit_s) for number, one in enumerate(collectors)}
    while pending:
        now = time.monotonic()
        for number in [n for n, limit in pending.items() if now >= limit or cut.is_set()]:
            one = collectors[number]
            del pending[number]
            files, notes = sinks[number].close()
            why = "the collecting was ended early" if cut.is_set() else f"not done after {now - begun:.1f} s"
            ready(Part(one.name, "late", now - begun, files, [*notes, f"{why}: it is left behind"]))
        if not pending:
            return
        try:
            number, error = done.get(timeout=max(0.0, min(min(pending.values()) - time.monotonic(), 0.05)))
        except queue.Empty:
            continue
        if pending.pop(number, None) is None:
            continue
        files, notes = sinks[number].close()
        word: Word = "failed" if error or not files else "collected"
        ready(
            Part(collectors[number].name, word, time.monotonic() - begun, files, [*notes, *([error] if error else [])])
        )


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
    found = Beside(work).result_or_none(time.monotonic() + limit_s)
    return default if found is None else found


def output_of(argv: Sequence[str], *, timeout_s: float, limit_bytes: int, env: Mapping[str, str]) -> tuple[str, str]:
    """What a program prints, and a sentence when it did not end well. Never longer than asked for, never more.

    It is killed with its children when its time is over. Raises OSError when it cannot be started.
    """
    with OwnChild(argv, environ=env, cwd=Path("/"), together=True, most_bytes=limit_bytes) as child:
        code = child.wait(time.monotonic() + timeout_s)
        child.kill()
        text = child.answer(limit_bytes).decode(errors="replace")
    if child.is_cut:
        return text, f"{argv[0]} printed more than {limit_bytes} bytes and was ended"
    if code is None:
        return text, f"{argv[0]} did not end within {timeout_s:g} s and was killed"
    return text, f"{argv[0]} ended with exit code {code}" if code else ""
