"""Sub-step progress from real files: downloads, rollouts and checkpoints that grow, and files that only seem to."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.core.facts import Growing
from supervisor.jobs.base import Grows, GrowthKind
from supervisor.jobs.downloads import hub_cache
from supervisor.sensors.base import Looker
from supervisor.sensors.growing import GrowthSensor, occupied_bytes
from tests.jobs.test_plain import plain
from tests.primerl.eras import ERAS
from tests.primerl.helpers import job_of
from tests.sensors.support import Inbox, until

MIB = 1 << 20
HF_CACHE = Path(".cache/huggingface/hub/models--Qwen--Qwen3-0.6B/blobs")


def grow(path: Path, size: int = MIB) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"x" * size)


def said(sensor: GrowthSensor) -> list[tuple[str, int]]:
    facts = sensor.look()
    assert all(isinstance(fact, Growing) for fact in facts)
    return [(fact.what, fact.size_bytes) for fact in facts if isinstance(fact, Growing)]


def test_a_model_download_of_the_jobs_own_cache_is_seen_to_grow_and_to_end(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131", environ={"PATH": "/usr/bin", "HOME": str(tmp_path)})
    blobs = tmp_path / HF_CACHE
    grow(blobs / "0ld", 3 * MIB)
    sensor = GrowthSensor(job)
    assert said(sensor) == [], "what lay there before is no growth"
    grow(blobs / "aa.incomplete")
    assert said(sensor) == [("download", 4 * MIB)]
    assert said(sensor) == []
    grow(blobs / "aa.incomplete")
    assert said(sensor) == [("download", 5 * MIB)]
    (blobs / "aa.incomplete").rename(blobs / "aa")
    assert said(sensor) == [], "whole, and no byte more than before"
    grow(tmp_path / ".cache/huggingface/hub/datasets--a--b/blobs/bb.incomplete")
    assert said(sensor) == [("download", 6 * MIB)], "a data set counts like a model"
    shutil.rmtree(blobs)
    assert said(sensor) == [], "tidying up is no growth"


@pytest.mark.parametrize(
    ("env", "cache"),
    [
        ({"HOME": "/home/a"}, "/home/a/.cache/huggingface/hub"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "/big"}, "/big/huggingface/hub"),
        ({"HOME": "/home/a", "HF_HOME": "/workspace/hf"}, "/workspace/hf/hub"),
        ({"HOME": "/home/a", "HF_HOME": "~/hf"}, "/home/a/hf/hub"),
        ({"HF_HOME": "/x", "HF_HUB_CACHE": "/volume/$WHO/${WHO}hub", "WHO": "me"}, "/volume/me/mehub"),
        ({"HF_HOME": "/x", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HF_HOME": "cache"}, "/job/dir/cache/hub"),
    ],
)
def test_the_cache_is_where_the_jobs_environment_puts_it(env: dict[str, str], cache: str) -> None:
    assert hub_cache(env, Path("/job/dir")) == Path(cache)


def test_the_run_files_own_environment_decides_where_downloads_arrive(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        "be0e3d131",
        environ={"PATH": "/usr/bin", "HOME": str(tmp_path), "HF_HOME": "/nowhere"},
        job={"env": {"HF_HOME": str(tmp_path / "volume")}},
    )
    grow(tmp_path / "volume/hub/models--a--b/blobs/cc.incomplete")
    grows = job.growing_trees("download")
    assert grows is not None and list(grows.trees) == [tmp_path / "volume/hub/models--a--b/blobs"]


@pytest.mark.parametrize("commit", ERAS)
def test_rollouts_and_checkpoints_of_each_era(tmp_path: Path, commit: str) -> None:
    job = job_of(tmp_path, commit)
    layout = job.layout
    rollouts = layout.orchestrator_dir / "rollouts"
    sensor = GrowthSensor(job)
    assert said(sensor) == []

    grow(rollouts / "step_9/train/all/traces.jsonl")
    assert said(sensor) == [("rollouts", MIB)]
    grow(rollouts / "step_9/train/all/traces.jsonl")
    assert said(sensor) == [("rollouts", 2 * MIB)]
    grow(rollouts / "step_10/train/all/traces.jsonl", 100)
    assert said(sensor) == [("rollouts", 100)], "the next step begins small"
    shutil.rmtree(rollouts / "step_9")
    assert said(sensor) == []

    grow(layout.run_dir / "checkpoints/step_10/trainer/__0_0.distcp")
    assert said(sensor) == [("checkpoint", MIB)]
    grow(layout.orchestrator_dir / "checkpoints/step_10/orchestrator/progress.pt", 10)
    assert said(sensor) == [("checkpoint", MIB + 10)]


def test_an_attempt_that_resumes_does_not_take_what_lies_there_for_growth(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131")
    grow(job.layout.run_dir / "checkpoints/step_10/trainer/__0_0.distcp")
    sensor = GrowthSensor(job)
    assert said(sensor) == said(sensor) == []


def test_a_plain_commands_downloads_and_checkpoints(tmp_path: Path) -> None:
    job = plain(tmp_path, environ={"PATH": "/usr/bin", "HOME": str(tmp_path)})
    sensor = GrowthSensor(job)
    assert said(sensor) == []
    grow(tmp_path / HF_CACHE / "aa.incomplete")
    grow(job.folders.folder(3) / "model.bin", 10)
    assert said(sensor) == [("download", MIB), ("checkpoint", 10)]


class Wherever:
    """A job whose files a test names."""

    def __init__(self, *trees: Path) -> None:
        self.trees: Sequence[Path] = trees
        self.step = 0

    def growing_trees(self, what: GrowthKind) -> Grows | None:
        return Grows(self.trees, self.step) if what == "download" else None


def test_a_file_written_from_its_end_counts_what_is_there_and_not_its_length(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "aa.incomplete"
    path.parent.mkdir()
    sensor = GrowthSensor(Wherever(path.parent))
    sensor.look()
    with path.open("wb") as file:
        file.seek(1000 * MIB)
        file.write(b"x" * MIB)
        file.flush()
        os.fdatasync(file.fileno())
        if path.stat().st_blocks == 0:
            pytest.skip("this file system tells no blocks")
        ((_, size),) = said(sensor)
        assert MIB <= size < 20 * MIB
        file.seek(10 * MIB)
        file.write(b"x" * MIB)
        file.flush()
        os.fdatasync(file.fileno())
        ((_, later),) = said(sensor)
        assert later >= size + MIB


def test_what_is_of_no_interest_is_not_looked_at_and_is_measured_anew_later(tmp_path: Path) -> None:
    wanted = True
    sensor = GrowthSensor(Wherever(tmp_path), wanted=lambda what: wanted)
    sensor.look()
    wanted = False
    grow(tmp_path / "a")
    assert said(sensor) == []
    wanted = True
    assert said(sensor) == [], "what grew meanwhile says nothing about now"
    grow(tmp_path / "a")
    assert said(sensor) == [("download", 2 * MIB)]


def test_a_cache_of_countless_files_is_left_alone(tmp_path: Path) -> None:
    for number in range(30):
        grow(tmp_path / str(number), 1)
    assert occupied_bytes([tmp_path], most_files=20) is None
    assert occupied_bytes([tmp_path], most_files=30) == 30


def test_symlinks_are_not_followed(tmp_path: Path) -> None:
    grow(tmp_path / "far" / "large")
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far")
    assert occupied_bytes([tmp_path / "near"]) in range(200), "the link itself is a few bytes"


def test_a_folder_that_may_not_be_read_is_silence(tmp_path: Path) -> None:
    class Failing(Wherever):
        def growing_trees(self, what: GrowthKind) -> Grows | None:
            raise PermissionError(13, "Permission denied")

    assert said(GrowthSensor(Failing())) == []


def test_a_download_is_told_through_a_looker_while_it_goes_on(tmp_path: Path) -> None:
    inbox = Inbox()
    looker = Looker(GrowthSensor(Wherever(tmp_path)), inbox, interval_s=0.02)
    looker.start()

    def grown() -> bool:
        grow(tmp_path / "a", 1000)
        return len(inbox.of(Growing)) >= 3

    until(grown, "three facts")
    sizes = [fact.size_bytes for fact in inbox.of(Growing)]
    assert sizes == sorted(set(sizes))
    looker.stop()


def test_a_look_at_a_full_cache_and_a_large_checkpoint_is_cheap(tmp_path: Path) -> None:
    for number in range(500):
        grow(tmp_path / f"models--a--{number % 20}" / f"{number}", 1)
    sensor = GrowthSensor(Wherever(tmp_path))
    sensor.look()
    begun = time.thread_time()
    for _ in range(10):
        sensor.look()
    assert (time.thread_time() - begun) / 10 < 0.1, "every ten seconds: below one percent of a core"
