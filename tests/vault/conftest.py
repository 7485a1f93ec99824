"""A pod whose disk is in memory where that can be had: thousands of small files are written and none is to last."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.b2server import B2Server
from tests.vault.pod import PART, Pod
from tests.vault.scenes import lora


@pytest.fixture
def quick_dir(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on a quick file system."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture(params=["file", "b2"])
def pod(request: pytest.FixtureRequest, quick_dir: Path) -> Iterator[Pod]:
    home = quick_dir / "pod"
    home.mkdir()
    if request.param == "file":
        yield Pod(home)
        return
    with B2Server(part_size=PART) as server:
        yield Pod(home, server)


@pytest.fixture
def lora_pod(quick_dir: Path) -> Iterator[Pod]:
    """At B2, and of its steps little changes."""
    home = quick_dir / "lora"
    home.mkdir()
    with B2Server(part_size=20_000, minimum_part_size=5_000) as server:
        yield Pod(home, server, make=lora)
