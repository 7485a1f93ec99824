"""Stores under test. A further backend adds itself to ``BACKENDS`` and passes the same tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.storage import open_store
from supervisor.storage.base import Store
from supervisor.storage.retry import Retry
from tests.b2server import B2Server

BACKENDS = ("file", "b2", "b2-prefix")
QUICK = Retry(tries=6, base_s=0.01, cap_s=0.05)


@pytest.fixture
def b2() -> Iterator[B2Server]:
    with B2Server() as server:
        yield server


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "file":
        yield open_store((tmp_path / "store").as_uri(), None, {}, streams=4, part_size=20_000)
        return
    server: B2Server = request.getfixturevalue("b2")
    prefix = "/team/models" if request.param == "b2-prefix" else ""
    yield open_store(f"b2://the-bucket{prefix}", server.url, server.environ(), streams=4, part_size=20_000, retry=QUICK)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A file of several parts, the last one short."""
    path = tmp_path / "big.distcp"
    path.write_bytes(os.urandom(95_123))
    return path
