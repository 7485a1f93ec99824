"""Some of the kill points against a real S3 server: a thin sample, since each request of it takes its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.storage import open_store
from supervisor.storage.base import Store
from tests.s3server import Seaweed
from tests.storage.conftest import QUICK, S3_ENVIRON
from tests.storage.conftest import s3_buckets as s3_buckets
from tests.storage.conftest import s3_place as s3_place
from tests.storage.conftest import seaweed as seaweed
from tests.vault.machine import Machine, PowerCut
from tests.vault.pod import RUN, Content, Pod, content
from tests.vault.scenes import SCENES, Scene
from tests.vault.test_killed_anywhere import _nothing_is_lost

POINTS = 3  # of each scene, spread over all of it
FIVE_MIB = 5 << 20  # S3 has no smaller parts


@dataclass
class S3Pod(Pod):
    """A pod whose store is a place of its own in a bucket without versions."""

    url: str = ""
    place: str = ""

    def open(self, streams: int = 1) -> Store:
        return open_store(f"s3://{self.place}", self.url, S3_ENVIRON, streams=streams, retry=QUICK, part_size=1)

    def objects(self) -> dict[str, bytes]:
        store = self.open()
        return {f.name.removeprefix(f"{RUN}/"): store.get_bytes(f.name) for f in store.list(f"{RUN}/")}

    def garbage(self) -> list[str]:
        return [f"{swept} unfinished uploads" for swept in (self.open().sweep(f"{RUN}/"),) if swept]


def large(step: int, seed: int = 0) -> Content:
    """One file of two parts."""
    made = content(step, seed)
    return made | {"trainer/__0_0.distcp": made["trainer/__0_0.distcp"] * (FIVE_MIB // 12_001 + 1)}


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["further", "held"])
def test_killed_at_some_points_nothing_is_lost(
    name: str, quick_dir: Path, seaweed: Seaweed, s3_place: Callable[[bool], str]
) -> None:
    scene: Scene = SCENES[name]

    def pod(number: int) -> S3Pod:
        home = quick_dir / f"pod-{number}"
        home.mkdir()
        made = S3Pod(home, make=large if name == "further" else content, url=seaweed.url, place=s3_place(False))
        scene.before(made)
        return made

    first = pod(0)
    with Machine(first.home) as whole:
        scene.act(first)
    scene.afterwards(first)
    last = len(whole.labels)
    for number in sorted({1 + last * place // POINTS for place in range(POINTS)}):
        here = pod(number)
        with Machine(here.home, number) as machine:
            try:
                scene.act(here)
            except PowerCut:
                pass
        machine.lose("lost", number)
        where = f"{name}, cut {number} of {last} at {machine.labels[-1]}"
        try:
            _nothing_is_lost(here, scene)
            scene.act(here)
            scene.afterwards(here)
            _nothing_is_lost(here, scene)
            assert here.garbage() == []
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
