"""One box for all tests of this folder; each run in it is ended after its test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.practice.nvml.build import build
from tests.systemd.box import FORGET, TOOL, Box, Run


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    kept = os.environ.get("SYSTEMD_BOX_DIR")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("box")
    nvml = tmp_path_factory.mktemp("nvml")
    build(nvml)
    subprocess.run([TOOL, "create", str(folder)], check=True)
    box = Box(folder, nvml)
    box.boot()
    try:
        box.do("sh", "-c", FORGET)
        box.install()
        yield box
    finally:
        box.halt()
        if not kept:
            shutil.rmtree(folder)


@pytest.fixture
def run(box: Box, request: pytest.FixtureRequest) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(name: str, **knobs: Any) -> Run:
        made.append(Run(box, name, **knobs))
        return made[-1]

    yield make
    for one in made:
        one.end()
