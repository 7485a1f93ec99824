"""Ten times as many names cost ten times as much: counted in what Python does, not in seconds."""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from supervisor.checkpoints import keeping
from supervisor.checkpoints.catalogue import delete_step, list_steps
from supervisor.checkpoints.local_plan import Identity, LocalPlan, Wanted
from supervisor.checkpoints.manifest import Manifest, ManifestFile, parse_manifest
from supervisor.checkpoints.placement import Place, place_files
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.publish import PublishPlan, Source, publish
from supervisor.checkpoints.restore import restore
from supervisor.checkpoints.scrub import scrub
from supervisor.effects.transfers import Moving
from supervisor.storage import open_store
from supervisor.storage.bucket import survey
from supervisor.storage.hashing import EMPTY_SHA1
from tests.checkpoints_store.conftest import RUN, quiet

PLACE = Place("checkpoints/step_20")
OURS = f"{os.sep}supervisor{os.sep}"
SLACK = 1.25
"""So much more than linear may be a rounding or a sort. What looks at all names for each name is far above."""


class TooMuchError(BaseException):
    """It does more than its size explains: ended at once, since it may go on for hours."""


def work_of(act: Callable[[], object], most: float = float("inf")) -> int:
    """Calls of Python functions, and lines of this program, that ``act`` takes in all its threads.

    Raises TooMuchError at ``most``.
    """
    number = itertools.count(1)
    count = 0

    def on_event(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count = next(number)
        if count > most:
            raise TooMuchError(f"more than {most:.0f} steps at {frame.f_code.co_qualname}")
        return on_event if OURS in frame.f_code.co_filename else None

    before = sys.gettrace()
    threading.settrace(on_event)
    sys.settrace(on_event)
    try:
        act()
    finally:
        sys.settrace(before)
        threading.settrace(before)  # type: ignore[arg-type]
    return count


def assert_linear(made: Callable[[int], Callable[[], object]], few: int, many: int) -> None:
    """``made(n)`` prepares, outside of the count, what is then done to ``n`` names."""
    small = work_of(made(few))
    work_of(made(many), most=small * many / few * SLACK)


# ---------------------------------------------------------------- names alone


LOOSE = ".run/notes/{}.json"
INSIDE = "trainer/{}.distcp"
LOWER_STEPS = ".run/broadcasts/{}/step_3/STABLE"


@pytest.mark.parametrize("name", [LOOSE, INSIDE, LOWER_STEPS])
def test_thousands_of_files_beside_the_steps_folder_are_placed_without_comparing_each_with_each(
    tmp_path: Path, name: str
) -> None:
    def made(count: int) -> Callable[[], object]:
        names = [name.format(number) for number in range(count)]
        return lambda: place_files(names, 20, PLACE, tmp_path)

    assert_linear(made, 100, 1000)


def test_a_manifest_of_thousands_of_files_is_written_and_read_in_one_pass() -> None:
    def made(count: int) -> Callable[[], object]:
        files = tuple(
            ManifestFile(f"a/{number // 100}/{number}", 0, f"id{number}", 1, (EMPTY_SHA1,)) for number in range(count)
        )
        data = Manifest(RUN, 20, "pod-a", files)
        return lambda: parse_manifest(data.to_bytes(), RUN, 20)

    assert_linear(made, 100, 1000)


def test_the_local_plan_of_a_thousand_large_files_writes_each_of_them_once(tmp_path: Path) -> None:
    def made(count: int) -> Callable[[], object]:
        def act() -> None:
            plan = LocalPlan(tmp_path / str(count) / "publish-r-step_1.json", "file:///store")
            for number in range(count):
                wanted = Wanted(f"{number}.distcp", Path(f"/{number}"), Identity(9, 1, number), 5, 1)
                plan.recall_hashes(wanted)
                plan.remember(wanted, 0, ("a" * 40, b"blocks"))
                plan.confirm(wanted, f"id{number}", now=True)

        return act

    assert_linear(made, 50, 1000)
    assert (tmp_path / "1000" / "publish-r-step_1.json").stat().st_size < 1000 * 600


# ---------------------------------------------------------------- a whole step


class Many:
    """A step of many small files in a folder store, and what is done with it."""

    def __init__(self, place: Path, name: str, count: int) -> None:
        self.place = place / f"{count}"
        self.store = open_store((self.place / "store").as_uri(), None, {}, streams=2)
        (self.place / "store").mkdir(parents=True)
        source = self.place / "source"
        source.mkdir()
        names = [name.format(number) for number in range(count)]
        for number in range(count):
            (source / str(number)).write_bytes(b"%d" % number)
        files = [Source(source / str(number), one) for number, one in enumerate(names)]
        self.plan = PublishPlan(RUN, 20, files, self.place / "state", writer="pod-a")

    def publish(self) -> None:
        assert not publish(self.store, self.plan, quiet).already

    def publish_again(self) -> None:
        assert publish(self.store, self.plan, quiet).already

    def restore(self) -> None:
        assert not restore(self.store, RUN, 20, PLACE, self.place / "pod", quiet).already

    def restore_again(self) -> None:
        assert restore(self.store, RUN, 20, PLACE, self.place / "pod", quiet).already

    def list_steps(self) -> None:
        assert list_steps(self.store, RUN).steps[20].committed

    def scrub(self) -> None:
        assert not scrub(self.store, RUN, quiet, deep=100.0).is_damaged

    def tidy(self) -> None:
        keeping.tidy(self.store, RUN, (20,))

    def survey(self) -> None:
        survey(self.store, RUN)

    def delete(self) -> None:
        self.store.delete(next(file for file in self.store.list(f"{RUN}/") if file.name.endswith("latest.json")))
        for number in (21, 22):
            source = self.plan.files[0]
            publish(self.store, PublishPlan(RUN, number, [source], self.place / "state", writer="pod-a"), quiet)
        assert delete_step(self.store, RUN, 20) > 0


@pytest.mark.parametrize("name", [LOOSE, pytest.param(INSIDE, marks=pytest.mark.soak)])
def test_what_is_done_with_a_step_of_many_files_looks_at_each_a_few_times(tmp_path: Path, name: str) -> None:
    few, many = (Many(tmp_path, name, count) for count in (20, 150))
    for act in (
        Many.publish,
        Many.publish_again,
        Many.restore,
        Many.restore_again,
        Many.list_steps,
        Many.scrub,
        Many.tidy,
        Many.survey,
        Many.delete,
    ):
        assert_linear({20: partial(act, few), 150: partial(act, many)}.__getitem__, 20, 150)


# ---------------------------------------------------------------- what the daemon sees of it


@pytest.mark.soak
def test_a_restore_of_many_names_is_seen_to_move_before_its_first_byte_and_after_its_last(tmp_path: Path) -> None:
    many = Many(tmp_path, LOOSE, 300)
    many.publish()
    told: list[Moved] = []
    restore(many.store, RUN, 20, PLACE, tmp_path / "pod", told.append)
    placing = [moved for moved in told if moved.phase == "placing"]
    into_place = [moved for moved in told if moved.phase == "renaming"]
    assert placing[-1].files >= 300 and len(placing) >= 300
    assert into_place[-1].files >= 300 and told[-1] == into_place[-1]


def test_files_without_bytes_are_progress_too() -> None:
    moving = Moving("restore")
    assert moving.saw({"phase": "placing", "bytes": 0, "total": 0, "files": 1}, 0.0)
    assert not moving.saw({"phase": "placing", "bytes": 0, "total": 0, "files": 1}, 1.0)
    assert moving.saw({"phase": "placing", "bytes": 0, "total": 0, "files": 2}, 2.0)


# ---------------------------------------------------------------- the local plan, line by line


def wanted(number: int, mtime_ns: int = 1) -> Wanted:
    return Wanted(f"{number}.distcp", Path(f"/{number}"), Identity(9, mtime_ns, number), 5, 1)


def a_plan(place: Path) -> LocalPlan:
    return LocalPlan(place / "publish-r-step_1.json", "file:///store")


def test_a_plan_whose_last_line_a_kill_cut_keeps_all_lines_before_and_takes_more(tmp_path: Path) -> None:
    first = a_plan(tmp_path)
    for number in range(3):
        first.recall_hashes(wanted(number))
        first.remember(wanted(number), 0, ("a" * 40, b"blocks"))
        first.confirm(wanted(number), f"id{number}", now=True)
    path = tmp_path / "publish-r-step_1.json"
    path.write_bytes(path.read_bytes()[:-7])

    second = a_plan(tmp_path)
    assert second.recall_hashes(wanted(1)) == ({0: ("a" * 40, b"blocks")}, "id1")
    assert second.recall_hashes(wanted(2)) == ({}, "")
    second.remember(wanted(2), 1, ("b" * 40, b""))
    second.confirm(wanted(2), "id2", now=True)
    third = a_plan(tmp_path)
    assert third.recall_hashes(wanted(1)) == ({0: ("a" * 40, b"blocks")}, "id1")
    assert third.recall_hashes(wanted(2)) == ({1: ("b" * 40, b"")}, "id2")
    assert third.recall_hashes(wanted(2, mtime_ns=2)) == ({}, ""), "it was rewritten"


def test_a_plan_that_a_full_disk_cut_is_whole_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = a_plan(tmp_path)
    plan.recall_hashes(wanted(0))
    plan.confirm(wanted(0), "id0", now=True)

    def full(descriptor: int) -> None:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - 5)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        plan.recall_hashes(wanted(1))
        plan.confirm(wanted(1), "id1", now=True)
        assert "could not be written" in plan.problem
    plan.recall_hashes(wanted(2))
    plan.confirm(wanted(2), "id2", now=True)
    assert plan.problem == ""
    again = a_plan(tmp_path)
    assert [again.recall_hashes(wanted(number))[1] for number in range(3)] == ["id0", "id1", "id2"]


def test_what_a_plan_forgot_stays_forgotten(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    plan.recall_hashes(wanted(0))
    plan.confirm(wanted(0), "id0", now=True)
    plan.forget("0.distcp")
    assert a_plan(tmp_path).recall_hashes(wanted(0)) == ({}, "")
