"""Hides the machine from all tests, before any of them is imported."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socketserver
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import engine

from tests.isolation import hide_the_machine

MACHINE = hide_the_machine()


def _leave_to_the_kernel(descriptor: int) -> None:
    """No machine stops here: what a test's process writes may come to the disk whenever it likes, and thousands of
    fsyncs take milliseconds each. What a power cut would lose is asked of a model of a disk, in ``tests/vault``."""


settings.register_profile("busy", deadline=None)  # six at a time, one example may take longer than a fifth of a second
settings.load_profile("busy")
# A failure is shown within half a minute and not after five: a shorter example is not worth the wait. The engine's own
# comment offers this constant for that. (Its warning then still speaks of "more than five minutes".)
engine.MAX_SHRINKING_SECONDS = 20
os.fsync = _leave_to_the_kernel  # type: ignore[assignment]
_SAY_ERROR = socketserver.BaseServer.handle_error


def _handle_error(server: Any, request: Any, client_address: Any) -> None:
    """A client that hung up is no error of a test's server. Its thread would write a traceback, perhaps much later,
    into what another test reads from its standard error."""
    if not isinstance(sys.exception(), ConnectionError):
        _SAY_ERROR(server, request, client_address)


socketserver.BaseServer.handle_error = _handle_error  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    """`rl-supervisor run` lets signals wait and has a umask of its own. What a later test starts would inherit both."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    umask = os.umask(0o077)
    os.umask(umask)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.umask(umask)


@pytest.fixture(autouse=True)
def empty_machine() -> Iterator[None]:
    """What a test leaves on the machine that it sees is no other test's."""
    yield
    for part in ("run", "etc", "lib"):
        shutil.rmtree(MACHINE / part, ignore_errors=True)
    home = MACHINE / "home"
    if any(home.iterdir()):
        shutil.rmtree(home)
        home.mkdir()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collection makes lives until the end. Python's search for cycles would go through all of it again and again,
    five times at the end alone: 12,000 tests took 6 s of processor time in each process of pytest."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        # A search each 700 new objects was a tenth of what the tests compute, and most of what it took to parse our
        # own source: 4.2 s in place of 0.8.
        gc.set_threshold(50_000)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``SWEEP=0/5``: the first, sixth, ... of all soaks; of one with five parameters or more, of those.

    CI runs one such part, by its commit; `make soak` runs all. What alone guards a promise is no soak.
    """
    if not (asked := os.environ.get("SWEEP")):
        return
    part, parts = map(int, asked.split("/"))
    alike: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("soak") is not None:
            alike.setdefault(item.nodeid.partition("[")[0], []).append(item)
    few = [item for some in alike.values() if len(some) < parts for item in some]
    many = [some for some in alike.values() if len(some) >= parts]
    left_out = {item for some in (few, *many) for place, item in enumerate(some) if place % parts != part}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last thing that each process of pytest does."""
    shutil.rmtree(MACHINE, ignore_errors=True)
