"""Steps on disks of the single machines: when one is whole, how it is published, and what a start brings where."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.base.errors import StoreError, TryAgainError
from supervisor.checkpoints import parts
from supervisor.checkpoints.manifest import parse_latest, parse_manifest
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.publish import PublishPlan, Source
from supervisor.checkpoints.restore import restore
from supervisor.config.settings import RunFile
from supervisor.nodes import disk as disk_module
from supervisor.nodes import steps as steps_module
from supervisor.nodes.disk import Disk
from supervisor.nodes.wire import Message, now
from supervisor.storage import open_store
from supervisor.storage.base import Store
from tests.nodes import disk_world
from tests.nodes.disk_rig import expected
from tests.nodes.disk_world import TransfersHere, World

THREE = ("n0", "n1", "n2")


@pytest.fixture
def apart(tmp_path: Path) -> World:
    """Each transfer is a process, as it is in a run."""
    return World(tmp_path, THREE, used=list(THREE))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for module in (disk_module, disk_world):
        monkeypatch.setattr(module, "Transfers", TransfersHere)
    return World(tmp_path, THREE, used=list(THREE))


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stored(world: World, step: int) -> dict[str, bytes]:
    folder = world.folder / "store" / "several" / f"step_{step}"
    manifest = parse_manifest((folder / "manifest.json").read_bytes(), "several", step)
    return {file.path: (folder / file.path).read_bytes() for file in manifest.files}


# ---------------------------------------------------------------- when a step is whole


def test_a_step_is_whole_when_every_machine_has_its_part_and_not_before(world: World) -> None:
    world.save(6, ranks=[0, 1])
    world.look()
    check = world.job.check_step(6, settled=True)
    assert (check.state, check.reason.rpartition(": ")[2]) == ("incomplete", "__2_0.distcp is missing")
    world.save(6, ranks=[2], metadata=False)
    world.look()
    assert world.job.steps() == [6]
    assert world.job.check_step(6, settled=True).state == "complete"
    shard = world.disk("n1") / "checkpoints/step_6/trainer/__1_0.distcp"
    os.truncate(shard, 1000)
    world.look()
    assert "__1_0.distcp has 1,000 bytes and .metadata needs" in world.job.check_step(6, settled=True).reason
    assert world.job.check_step(6, settled=True).state != "complete"


UNKNOWN = "which machine saves how much of a step is not known before one is saved"


def find_fullest(world: World) -> tuple[str, float]:
    """The machine of which is told, and what part of a step it saves."""
    world.look()
    world.disks.tick()
    world.disks.room._again_at = 0.0
    look = world.disks.room.measure()
    return look.host or look.reason, round(look.part, 2)


def test_of_the_machine_is_told_on_which_the_next_save_is_the_first_not_to_fit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_fullest(world) == (UNKNOWN, 1.0)
    whole = sum(map(len, expected(6, 3).values()))
    rooms = {name: SimpleNamespace(total_bytes=10 * whole, free_bytes=5 * whole) for name in THREE}
    for name, disk in world.machines.items():
        monkeypatch.setattr(disk, "_room", SimpleNamespace(measure=lambda name=name: rooms[name]))
    rooms["n1"].free_bytes = 4 * whole
    # n2 saves nothing: an engine alone runs there. What a rollout writes is no part of a step.
    world.save(6, ranks=[0, 1])
    assert find_fullest(world)[0] == UNKNOWN, "the step is not whole"
    world.save(6, ranks=[2], metadata=False)
    for path in (world.disk("n2") / "checkpoints/step_6").rglob("*"):
        if path.is_file():
            shutil.move(path, world.disk("n1") / path.relative_to(world.disk("n2")))
    for number in range(7, 12):
        other = world.disk("n2") / f"rollouts/step_{number}/traces.jsonl"
        other.parent.mkdir(parents=True)
        other.write_bytes(b"x" * whole)
    rooms["n2"].free_bytes = 1
    own = sum(map(len, content(world.disk("n1") / "checkpoints/step_6").values())) / whole
    known = ("n1", round(own, 2))
    assert find_fullest(world) == known, "n2 is fuller, and saves nothing"
    rooms["n0"].free_bytes = whole // 10
    assert find_fullest(world) == ("n0", round(1 - own, 2)), "the next save does not fit there"
    rooms["n0"].free_bytes = 5 * whole
    # A step that a start brought to each machine says nothing, nor does what one machine alone shows.
    world.publish(6)
    world.disks.look()
    world.used = [*THREE]
    world.disks.bring_step(world.ask_to_restore(6))
    world.disks.prepare(THREE)
    assert find_fullest(world) == known
    world.silent |= {"n0", "n2"}
    assert find_fullest(world) == known
    world.silent |= {"n1"}
    assert find_fullest(world)[0] == UNKNOWN


def test_a_quota_counts_on_the_disk_of_each_machine(tmp_path: Path) -> None:
    told: list[Message] = []
    step = tmp_path / "checkpoints/step_6"
    step.mkdir(parents=True)
    (step / "shard").write_bytes(b"x" * 700)
    Disk(tmp_path, tmp_path / "state", {}, told.append, capacity_bytes=1000).look()
    assert (told[0]["total"], told[0]["free"]) == (1000, 300)


def test_clocks_that_differ_by_an_hour_make_no_shard_newer_than_the_metadata(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.save(6)
    for path in (world.disk("n2") / "checkpoints/step_6").rglob("*"):
        look = path.stat()
        os.utime(path, (look.st_mtime + 3600, look.st_mtime + 3600))
    world.machines["n0"].look()
    world.machines["n1"].look()
    with monkeypatch.context() as patch:
        patch.setattr(disk_module, "time", SimpleNamespace(time=lambda: time.time() + 3600))
        world.machines["n2"].look()
    assert world.job.check_step(6, settled=True).state == "complete"


def test_what_only_a_silent_machine_has_is_unknown_and_not_missing(world: World) -> None:
    world.save(6)
    world.look()
    world.silent.add("n2")
    running, before_start = world.job.check_step(6), world.job.check_step(6, settled=True)
    assert (running.state, running.reason) == ("writing", "its parts are unknown: n2 is not heard")
    assert before_start.state == "incomplete"
    assert world.job.steps() == [6]
    world.disks.tick()
    assert world.told == ["Parts of steps are unknown: n2 is not heard."]
    world.silent.clear()
    assert world.job.check_step(6, settled=True).state == "complete"


def test_a_disk_that_hangs_on_one_machine_makes_its_parts_unknown_and_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.save(6)
    world.look()
    goes_on, real = threading.Event(), os.scandir

    def scandir(path: Any) -> Any:
        if str(world.disk("n1")) in str(path):
            goes_on.wait(30)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(steps_module, "DISK_SILENT_S", 0.3)
    hanging = threading.Thread(target=world.machines["n1"].look, daemon=True)
    hanging.start()
    try:
        deadline = now() + 10
        while not world.told and now() < deadline:
            for name in ("n0", "n2"):
                world.machines[name].look()
            world.disks.tick()
        assert world.told[0].startswith("Parts of steps are unknown: the disk of n1 does not answer for ")
        assert world.job.check_step(6).reason.startswith("its parts are unknown: the disk of n1 does not answer")
        assert not world.disks.is_there("n1")  # so no start takes it
        with pytest.raises(StoreError, match=r"no machine that answers has checkpoints/step_6/.*__1_0\.distcp"):
            world.publish(6)
    finally:
        goes_on.set()
        hanging.join()
    world.look()
    assert world.job.check_step(6, settled=True).state == "complete"


def test_a_stale_handle_is_unknown_until_the_next_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.save(6)
    world.look()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(world.disk("n1")) in str(path):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        world.look()
    check = world.job.check_step(6)
    assert (check.state, "on n1" in check.reason, "Stale file handle" in check.reason) == ("writing", True, True)
    world.look()
    assert world.job.check_step(6, settled=True).state == "complete"


def test_a_spare_that_still_has_an_older_part_of_that_number_does_not_count(world: World) -> None:
    world.save(6)
    stale = world.disk("n0") / "checkpoints/step_6/trainer/__2_0.distcp"
    stale.write_bytes(b"of a lineage that was left")
    world.used = ["n1", "n2"]
    world.look()
    assert sorted(path.name for path in world.job.step_trees(6)) == ["step_6"]
    names = {file.name for file in world.job.step_files(6)}
    assert names == {"config.json", "trainer/__1_0.distcp", "trainer/__2_0.distcp"}
    assert world.job.check_step(6, settled=True).state == "incomplete"  # and the .metadata was n0's


def test_disks_of_their_own_want_a_store_that_all_machines_reach(world: World) -> None:
    table = world.run_file.model_dump(exclude_unset=True)
    del table["store"]
    with pytest.raises(ValueError, match=r'disks = "local" wants a \[store\] url'):
        RunFile(**table)


# ---------------------------------------------------------------- publishing


def test_each_machine_sends_its_own_files_and_one_manifest_commits_them(world: World) -> None:
    world.save(6)
    world.look()
    orders: list[tuple[str, list[str], list[str]]] = []
    world.before = lambda host, order: orders.append(
        (host, sorted(file["name"] for file in order["asked"]["files"]), order["asked"]["known"])
    )
    done = world.publish(6)
    assert stored(world, 6) == expected(6, 3)
    assert done["sent_bytes"] >= done["size_bytes"] == sum(map(len, expected(6, 3).values()))
    # What all have is sent by the first machine, and compared by the others.
    assert sorted(orders) == [
        ("n0", ["config.json", "trainer/.metadata", "trainer/__0_0.distcp"], []),
        ("n1", ["config.json", "trainer/__1_0.distcp"], ["config.json"]),
        ("n2", ["config.json", "trainer/__2_0.distcp"], ["config.json"]),
    ]
    again = world.publish(6)
    assert again["already"] and again["sent_bytes"] == 0


@pytest.mark.soak
def test_machines_publish_and_fetch_through_processes_of_their_own(apart: World) -> None:
    apart.save(6)
    apart.look()
    apart.publish(6)
    assert stored(apart, 6) == expected(6, 3)
    shutil.rmtree(apart.disk("n1") / "checkpoints")
    apart.look()
    apart.restore(6)
    assert content(apart.disk("n1") / "checkpoints/step_6") == expected(6, 3)


def test_a_step_published_by_machines_is_restored_on_a_single_one(world: World, tmp_path: Path) -> None:
    world.save(6)
    world.look()
    world.publish(6)
    store = open_store((tmp_path / "store").as_uri(), None, {}, streams=4)
    done = restore(store, "several", 6, Place("checkpoints/step_6"), tmp_path / "pod", quiet)
    assert done.verified and content(tmp_path / "pod" / "checkpoints/step_6") == expected(6, 3)


def test_files_of_one_name_with_other_bytes_on_two_machines_publish_nothing(world: World) -> None:
    world.save(6)
    for name, text in (("n1", "one"), ("n2", "two")):
        (world.disk(name) / "checkpoints/step_6/hello.txt").write_text(text)
    world.look()
    sentence = r"n1 and n2 each have a file hello\.txt of step 6, and their bytes differ: the step is not published"
    with pytest.raises(StoreError, match=sentence) as caught:
        world.publish(6)
    assert caught.value.kind == "permanent"
    (world.disk("n2") / "checkpoints/step_6/hello.txt").write_text("longer than one")
    world.look()
    with pytest.raises(StoreError, match=sentence):
        world.publish(6)
    assert not (world.folder / "store/several/step_6/manifest.json").exists()
    assert not (world.folder / "store/several/latest.json").exists()


def test_a_machine_that_dies_while_it_sends_leaves_no_step_and_the_next_try_sends_what_is_left(world: World) -> None:
    world.save(6)
    world.look()

    def die(host: str, order: dict[str, Any]) -> None:
        sent = world.folder / "store/several/step_6/trainer"
        deadline = now() + 30
        while host == "n2" and len(list(sent.glob("__*"))) < 2 and now() < deadline:
            time.sleep(0.02)
        if host == "n2":
            world.silent.add("n2")

    world.before = die
    with pytest.raises(StoreError, match="n2 is not heard") as caught:
        world.publish(6)
    assert caught.value.kind == "transient"
    assert not (world.folder / "store/several/step_6/manifest.json").exists()
    world.silent.clear()
    world.before = lambda host, order: None
    done = world.publish(6)
    assert stored(world, 6) == expected(6, 3)
    assert done["sent_bytes"] < done["size_bytes"]  # n0 and n1 had sent theirs


@pytest.mark.soak
def test_another_step_of_that_number_is_committed_no_more_before_its_files_are_replaced(world: World) -> None:
    world.save(6)
    world.look()
    world.publish(6)
    for name in THREE:
        (world.disk(name) / "checkpoints/step_6/config.json").write_text("another lineage")
    world.look()
    seen: list[bool] = []
    manifest = world.folder / "store/several/step_6/manifest.json"
    world.before = lambda host, order: seen.append(manifest.exists())
    world.publish(6)
    assert seen == [True] * 3 + [False] * 3  # all say that it is another; then it is opened, and they send
    assert stored(world, 6) == {**expected(6, 3), "config.json": b"another lineage"}


class Killed(BaseException):
    """The process is gone."""


class Dying:
    """A store of which the process dies at the ``at``-th request, before or after it is carried out."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        self._store, self._left, self._after = store, at, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("list", "list_versions", "put_bytes", "put_file", "delete", "get_bytes", "hide", "sweep"):
            return found

        def call(*words: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            answer = found(*words, **more)
            if self._left == 0:
                raise Killed
            return answer

        return call


def quiet(moved: Moved) -> None:
    """A listener that wants to know nothing."""


def send_parts(world: World, store: Store, step: int, state: Path) -> tuple[PublishPlan, list[Any]]:
    """What each machine does, and what the head then has to commit."""
    every: list[Any] = []
    for number, name in enumerate(THREE):
        folder = world.disk(name) / f"checkpoints/step_{step}"
        own = [path for path in sorted(folder.rglob("*")) if path.is_file() and (number == 0 or path.suffix != ".json")]
        sources = [Source(path, path.relative_to(folder).as_posix()) for path in own]
        plan = PublishPlan("several", step, sources, state / name, writer="head")
        every += json.loads(json.dumps(parts.send_part(store, plan, [], quiet)["files"]))
    names = [Source(Path(), file["path"]) for file in every]
    return PublishPlan("several", step, names, state / "head", writer="head"), every


@pytest.mark.parametrize("after", [False, True])
def test_a_head_that_dies_anywhere_in_the_commit_has_a_whole_step_there_or_none(world: World, *, after: bool) -> None:
    world.save(6)
    world.save(12)
    there, before = [world.folder / name for name in ("store", "state")], world.folder / "before"
    for folder in there:
        shutil.rmtree(folder, ignore_errors=True)
    store = open_store(there[0].as_uri(), None, {}, streams=4)
    parts.commit_parts(store, *send_parts(world, store, 6, there[1]), quiet)  # said to be safe
    plan, sent = send_parts(world, store, 12, there[1])
    same_file = {"store": os.link, "state": shutil.copy2}  # an object that is written goes to another file
    for folder in there:
        shutil.copytree(folder, before / folder.name, copy_function=same_file[folder.name])
    died = 0
    for at in range(1, 100):
        for folder in there:
            shutil.rmtree(folder)
            shutil.copytree(before / folder.name, folder, copy_function=same_file[folder.name])
        dying: Any = Dying(store, at, after=after)
        try:
            parts.commit_parts(dying, plan, sent, quiet)
        except Killed:
            died += 1
            assert stored(world, 6) == expected(6, 3)
            latest = parse_latest((world.folder / "store/several/latest.json").read_bytes(), "several")
            assert stored(world, latest.step) == expected(latest.step, 3)
            parts.commit_parts(store, plan, sent, quiet)  # by the daemon after it
        assert stored(world, 12) == expected(12, 3)
        latest = parse_latest((world.folder / "store/several/latest.json").read_bytes(), "several")
        assert latest.step == 12
        if died < at:
            break
    assert died >= 5


# ---------------------------------------------------------------- restoring


@pytest.mark.soak
def test_a_start_brings_all_of_a_step_to_each_machine_and_fetches_only_what_lacks(world: World) -> None:
    world.save(6)
    world.look()
    world.publish(6)
    assert world.disks.lacks(world.ask_to_restore(6))
    done = world.restore(6)
    for name in THREE:
        assert content(world.disk(name) / "checkpoints/step_6") == expected(6, 3)
    size = done["size_bytes"]
    assert 0 < done["fetched_bytes"] < 2.1 * size  # of three times its size: each had its own shard
    assert not world.disks.lacks(world.ask_to_restore(6))
    assert world.job.check_step(6, settled=True).state == "complete"
    # A byte that rotted on a disk is another file, and is fetched anew.
    shard = world.disk("n1") / "checkpoints/step_6/trainer/__2_0.distcp"
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    world.look()
    assert world.disks.lacks(world.ask_to_restore(6))
    world.restore(6)
    assert content(world.disk("n1") / "checkpoints/step_6") == expected(6, 3)


@pytest.mark.soak
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_fresh_machines_in_any_number_get_every_byte(world: World, tmp_path: Path, number: int) -> None:
    world.save(6)
    world.look()
    world.publish(6)
    fresh = World(tmp_path / "later", [f"m{one}" for one in range(number)])
    shutil.copytree(tmp_path / "store", tmp_path / "later" / "store")
    fresh.look()
    fresh.restore(6)
    for name in fresh.names:
        assert content(fresh.disk(name) / "checkpoints/step_6") == expected(6, 3)
    assert fresh.job.check_step(6, settled=True).state == "complete"


def test_a_machine_that_joins_sets_aside_what_it_has_and_gets_the_step(world: World) -> None:
    world.save(6)
    world.look()
    world.publish(6)
    world.disks.look()
    world.used = ["n0", "n1"]
    world.look()
    world.disks.bring_step(world.ask_to_restore(6))
    stale = world.disk("n2") / "checkpoints/step_12/trainer"
    stale.mkdir(parents=True)
    (stale / "__2_0.distcp").write_bytes(b"of a lineage that was left")
    world.disks.prepare(["n0", "n2"])
    assert content(world.disk("n2") / "checkpoints") == {f"step_6/{k}": v for k, v in expected(6, 3).items()}
    assert (world.disk("n2") / ".set-aside/joined/checkpoints/step_12/trainer/__2_0.distcp").exists()
    assert content(world.disk("n0") / "checkpoints/step_6") == expected(6, 3)


def test_a_machine_that_is_not_taken_sets_its_steps_aside_as_soon_as_it_is_heard(world: World) -> None:
    world.save(6)
    world.look()
    world.disks.bring_step(None)
    world.disks.look()
    world.disks.prepare(["n0", "n1"])
    deadline = now() + 20
    while (world.disk("n2") / "checkpoints/step_6").exists() and now() < deadline:
        time.sleep(0.02)
    assert (world.disk("n2") / ".set-aside/left/checkpoints/step_6").is_dir()
    assert (world.disk("n0") / "checkpoints/step_6").is_dir()


def test_a_start_whose_machine_cannot_get_the_step_does_not_launch(world: World) -> None:
    world.save(6)
    world.look()
    world.publish(6)
    (world.folder / "store/several/step_6/trainer/__1_0.distcp").write_bytes(b"rotten")
    world.disks.bring_step(world.ask_to_restore(6))
    with pytest.raises(StoreError, match="n0: step 6 is damaged"):
        world.disks.prepare(["n0"])
    world.silent.add("n1")
    with pytest.raises(TryAgainError, match="n1 is not heard"):
        world.disks.prepare(["n1"])


# ---------------------------------------------------------------- moving and deleting


def test_steps_are_set_aside_and_deleted_on_every_machine(world: World) -> None:
    for step in (6, 12, 18):
        world.save(step)
    world.look()
    output = world.folder / "head"
    moved = world.disks.move_aside(world.job.above_trees(12), output, "attempt-0002")
    assert [path.relative_to(output).as_posix() for path in moved] == [".set-aside/attempt-0002/checkpoints/step_18"]
    assert world.disks.delete_trees(world.job.step_trees(6), output) > 0
    assert world.job.steps() == [12]
    assert [path.parts[-3] for path in (world.folder / "state/disks/content").rglob(".metadata")] == ["step_12"]
    for name in THREE:
        assert [path.name for path in (world.disk(name) / "checkpoints").iterdir()] == ["step_12"]
        assert (world.disk(name) / ".set-aside/attempt-0002/checkpoints/step_18").is_dir()
    assert world.disks.delete_set_aside(output, "-kept") > 0
    assert not any((world.disk("n2") / ".set-aside").iterdir())
