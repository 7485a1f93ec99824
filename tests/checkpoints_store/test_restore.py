"""Restoring a step: every byte verified, damage named, nothing merged, nothing outside the run's folder."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from supervisor.checkpoints.manifest import Manifest, ManifestFile
from supervisor.checkpoints.placement import Place, place_files
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.restore import Restored, restore
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from supervisor.storage.hashing import sha1
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import PART, RUN, Step, b2_store, quiet, tree
from tests.storage.parts import hash_parts

PLACE = Place("checkpoints/step_20")


def fetch(store: Store, output: Path, **more: bool) -> Restored:
    return restore(store, RUN, 20, PLACE, output, quiet, **more)


def shard(server: B2Server) -> str:
    return f"team/{RUN}/step_20/trainer/__0_0.distcp"


def test_a_byte_flipped_on_the_wire_is_fetched_again(b2: B2Server, step: Step, tmp_path: Path) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    b2.fail("download", name="__0_0", flip=45_000, times=2)
    done = fetch(store, tmp_path / "pod-b")
    assert tree(tmp_path / "pod-b") == step.content()
    ranges = [e["range"] for e in b2.journal("download", "__0_0")]
    assert sorted(ranges) == [
        (0, 20000),
        (20000, 20000),
        (40000, 20000),
        (40000, 20000),
        (40000, 20000),
        (60000, 20000),
        (80000, 10001),
    ]
    assert done.fetched_bytes == done.size_bytes + 40_000


def test_a_byte_that_stays_wrong_makes_the_step_damaged_and_leaves_nothing_in_its_place(
    b2: B2Server, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)  # the pauses before it is fetched again
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    b2.fail("download", name="__0_0", flip=45_000, times=1000)
    with pytest.raises(StoreError, match=r"step 20 is damaged: trainer/__0_0\.distcp came back 6 times") as caught:
        fetch(store, tmp_path / "pod-b")
    assert caught.value.kind == "damaged"
    assert tree(tmp_path / "pod-b") == {}


def test_a_file_that_is_gone_from_the_store_makes_the_step_damaged(store: Store, step: Step, tmp_path: Path) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    (lost,) = [file for file in store.list(f"{RUN}/step_20/") if file.name.endswith("__1_0.distcp")]
    store.delete(lost)
    with pytest.raises(StoreError, match=r"trainer/__1_0\.distcp is not in the store") as caught:
        fetch(store, tmp_path / "pod-b")
    assert caught.value.kind == "damaged"


@pytest.mark.parametrize("code", ["not_found", "nginx"])
def test_a_file_that_is_not_found_for_a_moment_damages_nothing(
    b2: B2Server, step: Step, tmp_path: Path, code: str
) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    b2.fail("download", name="metadata", status=404, code=code, times=2)
    assert fetch(store, tmp_path / "pod-b").verified
    assert tree(tmp_path / "pod-b") == step.content()


@pytest.mark.soak
def test_a_truncated_file_in_the_store_makes_the_step_damaged(store: Store, step: Step, tmp_path: Path) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    (whole,) = [file for file in store.list(f"{RUN}/step_20/") if file.name.endswith("__0_0.distcp")]
    data = store.get_range(whole, 0, 50_000)
    store.delete(whole)
    store.put_bytes(whole.name, data)
    with pytest.raises(StoreError, match=r"__0_0\.distcp") as caught:
        fetch(store, tmp_path / "pod-b")
    assert caught.value.kind == "damaged"


def test_a_store_that_was_copied_has_other_ids_and_the_hashes_decide(
    b2: B2Server, store: Store, step: Step, tmp_path: Path
) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    for file in store.list(f"{RUN}/step_20/"):
        if not file.name.endswith("manifest.json"):
            data = store.get_range(file, 0, file.size)
            store.delete(file)
            store.put_bytes(file.name, data)
    assert fetch(store, tmp_path / "pod-b").verified
    assert tree(tmp_path / "pod-b") == step.content()


def test_a_torn_or_cut_download_is_continued(b2: B2Server, step: Step, tmp_path: Path) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    b2.fail("download", name="__0_0", cut_download_after=7_000, times=3)
    assert fetch(store, tmp_path / "pod-b").verified
    assert tree(tmp_path / "pod-b") == step.content()


def test_what_stands_in_the_way_is_moved_aside_and_not_merged(store: Store, step: Step, tmp_path: Path) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    torn = Step(tmp_path / "pod-b")
    torn.write("trainer/__0_0.distcp", b"torn")
    torn.write("trainer/left_over", b"old")
    done = fetch(store, torn.output)
    aside = torn.output / "checkpoints/.replaced-step_20-1"
    assert done.moved_aside == (str(aside),)
    assert tree(aside) == {"trainer/__0_0.distcp": b"torn", "trainer/left_over": b"old"}
    assert tree(torn.output / "checkpoints/step_20") == tree(step.output / "checkpoints/step_20")


def test_a_step_that_is_already_there_byte_for_byte_is_not_fetched(b2: B2Server, step: Step, tmp_path: Path) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    fetch(store, tmp_path / "pod-b")
    before = len(b2.journal("download", "distcp"))
    done = fetch(store, tmp_path / "pod-b")
    assert (done.already, done.fetched_bytes, done.moved_aside) == (True, 0, ())
    assert len(b2.journal("download", "distcp")) == before


def test_a_step_in_its_place_that_rotted_is_moved_aside_and_fetched(store: Store, step: Step, tmp_path: Path) -> None:
    """Names and sizes are right. A disk that flips a bit changes neither."""
    publish(store, step.plan(tmp_path / "state"), quiet)
    fetch(store, tmp_path / "pod-b")
    shard = tmp_path / "pod-b/checkpoints/step_20/trainer/__1_0.distcp"
    rotten = bytearray(shard.read_bytes())
    rotten[-1] ^= 1
    shard.write_bytes(rotten)
    done = fetch(store, tmp_path / "pod-b")
    assert (done.already, len(done.moved_aside)) == (False, 1)
    assert shard.read_bytes() == step.files["trainer/__1_0.distcp"].read_bytes()


def test_a_restore_that_failed_goes_on_and_fetches_no_verified_part_again(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)

    def pull_the_plug(moved: Moved) -> None:
        if moved.phase == "fetching" and moved.bytes > 80_000:
            raise StoreError("transient", "the plug was pulled")

    with pytest.raises(StoreError, match="plug"):
        restore(store, RUN, 20, PLACE, tmp_path / "pod-b", pull_the_plug)
    assert not (tmp_path / "pod-b/checkpoints/step_20").exists()
    noted = (tmp_path / "pod-b/checkpoints/.restoring-step_20.journal").read_text().splitlines()[1:]
    verified = {tuple(json.loads(line)[:2]) for line in noted}
    assert verified
    b2.wait_idle()
    start = len(b2.state.journal)
    fetch(store, tmp_path / "pod-b")
    again = {
        (e["name"].removeprefix(f"team/{RUN}/step_20/"), e["range"][0] // 20_000)
        for e in b2.journal("download")
        if e["n"] >= start and "range" in e
    }
    assert not again & verified
    assert tree(tmp_path / "pod-b") == step.content()


def test_a_staged_part_that_rotted_meanwhile_is_not_believed(b2: B2Server, step: Step, tmp_path: Path) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)

    def pull_the_plug(moved: Moved) -> None:
        if moved.phase == "fetching" and moved.bytes > 120_000:
            raise StoreError("transient", "the plug was pulled")

    with pytest.raises(StoreError, match="plug"):
        restore(store, RUN, 20, PLACE, tmp_path / "pod-b", pull_the_plug)
    staged = tmp_path / "pod-b/checkpoints/.restoring-step_20/trainer/__0_0.distcp"
    staged.write_bytes(bytes(staged.stat().st_size))
    journal = tmp_path / "pod-b/checkpoints/.restoring-step_20.journal"
    journal.write_text(journal.read_text() + '["trainer/__0_0.dis')  # torn by a kill
    fetch(store, tmp_path / "pod-b")
    assert tree(tmp_path / "pod-b") == step.content()


def test_half_a_fetch_of_another_step_is_cleared_away_and_a_persons_folder_is_not(store: Store, tmp_path: Path) -> None:
    for number in (10, 20):
        publish(store, Step(tmp_path / f"pod-{number}", number).fill().plan(tmp_path / "state"), quiet)

    def pull_the_plug(moved: Moved) -> None:
        if moved.phase == "fetching" and moved.bytes > 50_000:
            raise StoreError("transient", "the plug was pulled")

    place = Place("checkpoints/step_10")
    with pytest.raises(StoreError, match="plug"):
        restore(store, RUN, 10, place, tmp_path / "pod-b", pull_the_plug)
    beside = tmp_path / "pod-b/checkpoints"
    assert {path.name for path in beside.iterdir()} == {".restoring-step_10", ".restoring-step_10.journal"}
    (beside / ".restoring-the-old-way").mkdir()
    (beside / ".restoring-the-old-way/mine").write_bytes(b"a person's")
    fetch(store, tmp_path / "pod-b")
    assert {path.name for path in beside.iterdir()} == {".restoring-the-old-way", "step_20"}
    assert (beside / ".restoring-the-old-way/mine").read_bytes() == b"a person's"


def test_a_second_restore_into_a_folder_does_not_touch_what_the_first_one_fetches(store: Store, tmp_path: Path) -> None:
    for number in (10, 20):
        publish(store, Step(tmp_path / f"pod-{number}", number).fill().plan(tmp_path / "state"), quiet)
    told: list[StoreError] = []

    def another_comes(moved: Moved) -> None:
        if moved.phase == "fetching" and moved.bytes > 50_000 and not told:
            with pytest.raises(StoreError, match="another restore to that folder is under way") as caught:
                restore(store, RUN, 10, Place("checkpoints/step_10"), tmp_path / "pod-b", quiet)
            told.append(caught.value)

    done = restore(store, RUN, 20, PLACE, tmp_path / "pod-b", another_comes)
    assert done.verified
    assert [error.kind for error in told] == ["transient"]
    restore(store, RUN, 10, Place("checkpoints/step_10"), tmp_path / "pod-b", quiet)
    assert {path.name for path in (tmp_path / "pod-b/checkpoints").iterdir()} == {"step_10", "step_20"}


# ---------------------------------------------------------------- the original scripts


def write_legacy(store: Store, step: Step, latest: int = 20) -> None:
    for name, path in step.files.items():
        if not name.startswith(".run/"):
            size = path.stat().st_size
            store.put_file(
                f"{RUN}/step_{step.number}/{name}", path, size, hash_parts(path, size, 20_000), lambda _: None
            )
    pointer = {"step": f"step_{latest}", "run_id": RUN, "wandb_run_id": "w", "timestamp": "2026-01-06T03:14:15+00:00"}
    store.put_bytes(f"{RUN}/latest.json", json.dumps(pointer).encode())


def test_a_step_of_the_original_scripts_is_restored_and_called_unverified(
    store: Store, step: Step, tmp_path: Path
) -> None:
    write_legacy(store, step)
    done = fetch(store, tmp_path / "pod-b")
    assert done.verified is False
    assert tree(tmp_path / "pod-b/checkpoints/step_20") == tree(step.output / "checkpoints/step_20")


def test_a_single_request_upload_of_many_parts_is_checked_by_its_own_sha1(b2: B2Server, tmp_path: Path) -> None:
    data = os.urandom(70_000)
    b2.put(f"team/{RUN}/step_20/optimizer.pt", data)
    b2.put(f"team/{RUN}/step_20/.bzEmpty", b"")
    b2.put(f"team/{RUN}/latest.json", json.dumps({"step": "step_20", "run_id": RUN}).encode())
    b2.fail("download", name="optimizer", flip=33_000, times=1)
    done = fetch(b2_store(b2), tmp_path / "pod-b")
    assert done.verified is False
    assert tree(tmp_path / "pod-b") == {"checkpoints/step_20/optimizer.pt": data}


def test_a_step_that_was_never_committed_is_not_taken_for_one_of_the_original_scripts(
    store: Store, step: Step, tmp_path: Path
) -> None:
    write_legacy(store, step, latest=10)
    with pytest.raises(StoreError, match="never published to the end") as caught:
        fetch(store, tmp_path / "pod-b")
    assert caught.value.kind == "missing"


def test_what_an_old_listing_lacks_is_missing_and_not_damaged(b2: B2Server, step: Step, tmp_path: Path) -> None:
    """Who asks for it has seen it listed: it looks again, instead of giving the step up for good."""
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    b2.state.stale_s = 30
    with pytest.raises(StoreError) as caught:
        fetch(store, tmp_path / "pod-b")
    assert caught.value.kind == "missing"
    assert tree(tmp_path / "pod-b") == {}


def test_no_such_step_is_missing(store: Store, step: Step, tmp_path: Path) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    with pytest.raises(StoreError, match="no step 30") as caught:
        restore(store, RUN, 30, Place("checkpoints/step_30"), tmp_path / "pod-b", quiet)
    assert caught.value.kind == "missing"


# ---------------------------------------------------------------- a store that is not to be trusted


def plant(store: Store, files: dict[str, bytes], *, sizes: dict[str, int] | None = None) -> None:
    """A committed step as somebody with a key to the store could write it."""
    entries = []
    for number, (name, data) in enumerate(files.items()):
        stored = store.put_bytes(f"{RUN}/step_20/planted-{number}", data)
        size = (sizes or {}).get(name, len(data))
        hashes = (sha1(data),)
        entries.append(ManifestFile(name, size, stored.file_id, max(size, 1), hashes))
    store.put_bytes(f"{RUN}/step_20/manifest.json", Manifest(RUN, 20, "evil", tuple(entries)).to_bytes())


@pytest.mark.parametrize(
    "name",
    [
        "../../outside",
        ".run/../outside",
        ".run//etc/passwd",
        "a/../../../outside",
        ".run/checkpoints/step_30/x",
        ".run/",
    ],
)
def test_a_manifest_cannot_write_outside_or_above(store: Store, tmp_path: Path, name: str) -> None:
    plant(store, {name: b"evil"})
    (tmp_path / "pod-b/checkpoints/step_30").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"refused|cannot be used") as caught:
        fetch(store, tmp_path / "pod-b")
    assert caught.value.kind == "damaged"
    assert tree(tmp_path / "pod-b") == {}
    assert not (tmp_path / "outside").exists()


def test_a_link_out_of_the_output_folder_is_not_followed(store: Store, step: Step, tmp_path: Path) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "pod-b").mkdir()
    (tmp_path / "pod-b/run_default").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"symbolic link leads from it to .*elsewhere") as caught:
        fetch(store, tmp_path / "pod-b")
    assert caught.value.kind == "permanent"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_checkpoint_folder_that_a_person_linked_to_a_larger_disk_is_used(
    store: Store, step: Step, tmp_path: Path
) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    (tmp_path / "big-disk").mkdir()
    (tmp_path / "pod-b").mkdir()
    (tmp_path / "pod-b/checkpoints").symlink_to(tmp_path / "big-disk")
    assert fetch(store, tmp_path / "pod-b").verified
    assert tree(tmp_path / "big-disk/step_20") == tree(step.output / "checkpoints/step_20")


def test_a_step_larger_than_the_disk_says_so_before_anything_is_fetched(store: Store, tmp_path: Path) -> None:
    plant(store, {"shard": b"x"}, sizes={"shard": 1 << 49})
    with pytest.raises(StoreError, match=r"step 20 needs 56\d{4}\.\d GB more at .* free") as caught:
        fetch(store, tmp_path / "pod-b")
    assert caught.value.kind == "no-room"


def test_a_file_system_that_tells_no_size_is_not_full(
    store: Store, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    silent = os.statvfs_result([4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255])
    monkeypatch.setattr(os, "statvfs", lambda path: silent)
    assert fetch(store, tmp_path / "pod-b").verified


def test_trees_are_replaced_as_a_whole_and_single_files_as_files(tmp_path: Path) -> None:
    spots = place_files(
        [
            "trainer/x",
            ".run/run_default/checkpoints/step_20/orchestrator/p",
            ".run/weights/step_18/w",
            ".run/state.json",
        ],
        20,
        PLACE,
        tmp_path,
    )
    assert {name: str(spot.tree.target.relative_to(tmp_path)) for name, spot in spots.items()} == {
        "trainer/x": "checkpoints/step_20",
        ".run/run_default/checkpoints/step_20/orchestrator/p": "run_default/checkpoints/step_20",
        ".run/weights/step_18/w": "weights/step_18",
        ".run/state.json": "state.json",
    }


def test_every_file_is_on_the_disk_before_a_folder_takes_its_place(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(150):  # more than are brought to the disk together
        step.write(f"trainer/small/{number}", b"%d" % number)
        step.write(f".run/notes/{number}.json", b"%d" % number)
    store = open_store((tmp_path / "store").as_uri(), None, {}, part_size=PART)
    publish(store, step.plan(tmp_path / "state"), quiet)
    synced: set[int] = set()
    fsync, rename = os.fsync, Path.rename

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def checked(path: Path, target: Path) -> Path:
        files = [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
        assert {file.stat().st_ino for file in files} <= synced
        if path.is_dir():
            assert {place.stat().st_ino for place in [path, *path.rglob("*")]} <= synced
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", checked)
    fetch(store, tmp_path / "pod-b")
    assert tree(tmp_path / "pod-b") == step.content()
    assert (tmp_path / "pod-b" / "notes").stat().st_ino in synced
    assert (tmp_path / "pod-b" / "checkpoints").stat().st_ino in synced


def test_the_steps_own_folder_takes_its_place_when_all_others_are_there_for_good(
    b2: B2Server, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step.write(".run/notes/one.json", b"1")
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    happened: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        happened.append(f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    def renamed(path: Path, target: Path) -> Path:
        happened.append(f"rename {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    fetch(store, tmp_path / "pod-b")
    last = len(happened) - happened[::-1].index("rename step_20") - 1
    assert "rename one.json" in happened[:last]
    assert "fsync notes" in happened[happened.index("rename one.json") : last]
    assert "fsync checkpoints" in happened[last:]


def test_a_file_is_fetched_once_and_not_read_back(b2: B2Server, step: Step, tmp_path: Path) -> None:
    """What is written is what was hashed: the disk is not asked for it again."""
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    read: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", lambda *asked: read.append(asked[2]))
        patch.setattr(os, "preadv", lambda *asked: read.append(asked[2]))
        assert fetch(store, tmp_path / "pod-b").verified
    assert read == []
    assert tree(tmp_path / "pod-b") == step.content()
