"""One cluster for all tests of this folder that want a real one; each run in it is ended after its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.box import Cluster, why_not
from tests.slurm.run import SlurmRun


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := why_not():
        pytest.skip(why)
    made = Cluster(tmp_path_factory.mktemp("slurm") / "box")
    yield made
    made.close()


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., SlurmRun]]:
    made: list[SlurmRun] = []

    def make(**options: Any) -> SlurmRun:
        made.append(SlurmRun(cluster, tmp_path / f"r{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
