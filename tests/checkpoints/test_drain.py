"""A trainer's part comes whole from a faster file system to the volume, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.checkpoints import drain as module
from supervisor.checkpoints.completeness import check_dcp
from supervisor.checkpoints.drain import Drained, drain, list_files
from supervisor.checkpoints.progress import Moved
from supervisor.storage.base import StoreError

GOLDEN = Path(__file__).parent / "golden" / "dcp_2_ranks"


def whole(folder: Path) -> Path:
    """A real checkpoint of torch 2.13.0 with two ranks, its .metadata the newest file."""
    shutil.copytree(GOLDEN, folder)
    for path in folder.iterdir():
        os.utime(path, (1000, 1001 if path.name == ".metadata" else 1000))
    return folder


class Places:
    def __init__(self, folder: Path) -> None:
        self.source = whole(folder / "tier" / "step_4" / "trainer")
        (self.source / "dataloader").mkdir()
        (self.source / "dataloader" / "rank_0.pt").write_bytes(b"loader")
        os.utime(self.source / "dataloader" / "rank_0.pt", (999, 999))
        self.target = folder / "volume" / "checkpoints" / "step_4" / "trainer"
        self.staging = folder / "volume" / ".draining" / "step_4"
        self.size = sum(size for size, _ in list_files(self.source).values())

    def drain(self, report: object = None) -> Drained:
        return drain(self.source, self.target, self.staging, report or (lambda moved: None))  # type: ignore[arg-type]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_a_drained_part_is_whole_has_the_times_of_its_save_and_is_not_copied_twice(places: Places) -> None:
    seen: list[Moved] = []
    assert places.drain(seen.append) == Drained(places.size, places.size)
    assert check_dcp(places.target).ok and list_files(places.target) == list_files(places.source)
    for name in list_files(places.source):
        assert (places.target / name).read_bytes() == (places.source / name).read_bytes()
    assert seen[-1].bytes == seen[-1].total == places.size
    assert not places.staging.exists()
    assert places.drain() == Drained(places.size, 0)


def test_a_drain_that_was_cut_off_goes_on_with_the_files_it_had_finished(places: Places) -> None:
    shutil.copytree(places.source, places.staging)  # copy2 keeps the times
    with (places.staging / "__1_0.distcp").open("r+b") as file:
        file.truncate(100)  # its time is that of the cut
    (places.staging / "__7_0.distcp").write_bytes(b"of an earlier save with more ranks")
    short = (places.source / "__1_0.distcp").stat().st_size
    assert places.drain() == Drained(places.size, short)
    assert list_files(places.target) == list_files(places.source)


def test_a_step_that_is_saved_anew_while_it_is_copied_never_comes_into_its_place(places: Places) -> None:
    def save_again(moved: Moved) -> None:
        if moved.files == 1:
            (places.source / "__0_0.distcp").write_bytes(b"the next save cuts its shards in place")

    with pytest.raises(StoreError, match=r"not whole|saved anew") as caught:
        places.drain(save_again)
    assert caught.value.kind == "changed" and not places.target.exists()


def test_a_torn_source_is_refused_and_an_older_save_gives_way_to_a_whole_one(places: Places) -> None:
    places.target.mkdir(parents=True)
    (places.target / "__0_0.distcp").write_bytes(b"of a save before")
    metadata = places.source / ".metadata"
    kept = metadata.read_bytes()
    metadata.unlink()
    with pytest.raises(StoreError, match="is not whole"):
        places.drain()
    assert list_files(places.target)
    metadata.write_bytes(kept)
    places.drain()
    assert list_files(places.target) == list_files(places.source)
    assert not any(places.staging.parent.iterdir())


def test_a_volume_without_room_keeps_what_it_had_and_says_how_much_is_needed(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_blocks, f_bavail, f_frsize = 1000, 1, 512

    monkeypatch.setattr(module.os, "statvfs", lambda path: Full)
    with pytest.raises(StoreError, match=f"512 bytes free, and the step needs {places.size:,}") as caught:
        places.drain()
    assert caught.value.kind == "no-room" and not places.target.exists()
    Full.f_blocks = Full.f_bavail = 0  # a file system that tells no size is not full
    assert places.drain().copied_bytes == places.size


@pytest.mark.soak
def test_the_transfer_child_drains_without_a_store_and_may_be_killed_at_any_moment(places: Places) -> None:
    """Killed again and again: before each kill is over there is no part, and then a whole one."""
    big = 24 << 20
    with (places.source / "__0_0.distcp").open("ab") as file:
        file.write(os.urandom(big))
    os.utime(places.source / "__0_0.distcp", (1000, 1000))
    store = {"url": "b2://no-such-bucket/prefix"}
    asked = {"do": "drain", "run_id": "r", "store": store, "source": str(places.source), "target": str(places.target)}
    asked["staging"] = str(places.staging)
    said = ""
    for after_s in (0.0, 0.1, 0.2, None):
        child = subprocess.Popen(
            [sys.executable, "-m", "supervisor.checkpoints.transfer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        child.stdin.write(json.dumps(asked).encode())
        child.stdin.close()
        if after_s is not None:
            deadline = time.monotonic() + 20
            while not places.staging.exists() and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(after_s)
            child.send_signal(signal.SIGKILL)
        child.wait(30)
        assert child.stdout is not None
        said = child.stdout.read().decode()
        child.stdout.close()
        if places.target.exists():
            assert list_files(places.target) == list_files(places.source)
    assert json.loads(said.splitlines()[-1])["ok"]["size_bytes"] == places.size + big
    assert list_files(places.target) == list_files(places.source)


def test_a_part_in_place_is_swapped_for_the_new_save_so_that_one_of_the_two_is_always_there(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.drain()
    (places.source / "dataloader" / "rank_0.pt").write_bytes(b"another loader")
    os.utime(places.source / "dataloader" / "rank_0.pt", (999, 999))

    def cut_off(self: Path, target: Path) -> None:
        raise OSError(5, "the host is lost here")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", cut_off)
        with pytest.raises(StoreError, match="could not be copied"):
            places.drain()
    assert list_files(places.target) == list_files(places.source)
    assert places.drain().copied_bytes == 0


def test_a_later_save_of_the_step_that_the_volume_has_is_not_replaced(places: Places) -> None:
    """Another pod went on with the run, on the same volume; what waits on this one's tier is of the past."""
    whole(places.target)
    for path in places.target.iterdir():
        os.utime(path, (5000, 5000))
    before = list_files(places.target)
    assert places.drain().copied_bytes == 0
    assert list_files(places.target) == before and not places.staging.exists()
