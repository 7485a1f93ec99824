"""What the end-to-end tests share: pods that are closed after the test, and the small B2 server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.b2server import B2Server

from .rig import Pod


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    """Each pod that a test puts in here is closed when the test is over."""
    made: list[Pod] = []
    yield made
    for pod in made:
        pod.close()


@pytest.fixture
def b2() -> Iterator[B2Server]:
    with B2Server() as server:
        yield server
