"""Hides the machine from all tests, before any of them is imported."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.isolation import hide_the_machine

MACHINE = hide_the_machine()


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


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last thing that each process of pytest does."""
    shutil.rmtree(MACHINE, ignore_errors=True)
