"""What the sensor tests share: a place where facts arrive, and waiting with a deadline."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from supervisor.core.facts import Fact

F = TypeVar("F", bound=Fact)
PATIENCE_S = 15.0


class Inbox:
    """The daemon's end of ``post``: keeps every fact in order of arrival."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: list[Fact] = []

    def __call__(self, fact: Fact) -> None:
        with self._lock:
            self._facts.append(fact)

    def all(self) -> list[Fact]:
        with self._lock:
            return list(self._facts)

    def of(self, kind: type[F]) -> list[F]:
        return [fact for fact in self.all() if isinstance(fact, kind)]


def until(true: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Poll until ``true()`` holds; fail with ``what`` when it does not in time."""
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, f"not in {patience_s:.0f} s: {what}"
        time.sleep(0.01)


class FakeClock:
    """Time that a test moves by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextmanager
def no_descriptor_left(but: int = 0) -> Iterator[None]:
    """This process cannot open any more files than ``but``."""
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + but, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
