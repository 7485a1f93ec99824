"""What a publish leaves behind that did not come to its end: nothing of it is sent twice, or billed for ever.

Also where the listing is seconds old, and where the local disk takes no plan.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints import claims
from supervisor.checkpoints import publish as publishing
from supervisor.checkpoints.catalogue import list_steps, sweep_run
from supervisor.checkpoints.claims import Fence
from supervisor.checkpoints.manifest import Latest
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.writers import FencedError, writer_name
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import PART, QUICK, RUN, Step, b2_store, quiet

PARTS = 9
A = writer_name("pod-a", "a" * 16, "b" * 8)
B = writer_name("pod-b", "c" * 16, "d" * 8)


def large(folder: Path, number: int = 20, parts: int = PARTS) -> Step:
    """A step of one large file."""
    step = Step(folder / f"step-{number}", number)
    step.write("model.bin", random.Random(number).randbytes(parts * PART))
    return step


def parts_sent(b2: B2Server) -> int:
    return len([entry for entry in b2.journal("b2_upload_part") if entry.get("accepted")])


def unfinished(b2: B2Server) -> list[str]:
    with b2.state.lock:
        return sorted(
            version.name.removeprefix(f"team/{RUN}/")
            for version in b2.state.versions.values()
            if version.action == "start"
        )


def half_sent(b2: B2Server, folder: Path, number: int) -> None:
    """Begin to publish a step; it ends in the middle of its large file."""
    b2.fail("b2_upload_part", after=4, status=403, code="storage_cap_exceeded", times=99)
    with pytest.raises(StoreError) as caught:
        publish(b2_store(b2), large(folder, number).plan(folder / "state"), quiet)
    assert caught.value.kind == "quota"
    b2.state.faults.clear()
    assert f"step_{number}/model.bin" in unfinished(b2)


# ---------------------------------------------------------------- a listing that is old


def test_a_listing_that_is_older_than_four_seconds_fails_no_publish(
    b2: B2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred times as fast: the listing is 90 ms old, and looked at for 400 ms. The last look was after 40."""
    for module in ("supervisor.checkpoints.records", "supervisor.checkpoints.publish"):
        monkeypatch.setattr(f"{module}.SETTLE_S", 0.0025, raising=False)
    b2.state.stale_s = 0.09
    assert publish(b2_store(b2), large(tmp_path).plan(tmp_path / "state"), quiet).pointer_moved
    assert parts_sent(b2) == PARTS


def test_a_file_that_was_finished_just_before_a_kill_is_not_sent_again(b2: B2Server, tmp_path: Path) -> None:
    b2.state.stale_s = 0.6
    plan = large(tmp_path).plan(tmp_path / "state")
    b2.fail("b2_list_file_names", after=1, status=401, code="unauthorized", times=1)
    with pytest.raises(StoreError):
        publish(b2_store(b2), plan, quiet)
    assert publish(b2_store(b2), plan, quiet).pointer_moved
    assert parts_sent(b2) == PARTS


def test_a_finished_file_that_somebody_hid_is_sent_again(
    b2: B2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id still finds it, and no listing ever will."""
    monkeypatch.setattr("supervisor.checkpoints.records.SETTLE_S", 0.001)
    plan = large(tmp_path).plan(tmp_path / "state")
    b2.fail("b2_upload_file", name=r"manifest\.json", status=403, code="storage_cap_exceeded")
    with pytest.raises(StoreError):
        publish(b2_store(b2), plan, quiet)
    bucket = next(iter(b2.state.buckets.values()))
    b2.state.add(bucket, f"team/{RUN}/step_20/model.bin", "hide", "application/x-bz-hide-marker", {})
    with pytest.raises(StoreError, match=r"model\.bin is not listed"):
        publish(b2_store(b2), plan, quiet)
    assert publish(b2_store(b2), plan, quiet).pointer_moved
    assert list_steps(b2_store(b2), RUN).steps[20].committed


# ---------------------------------------------------------------- a part that B2 lists and lacks


def test_a_part_that_is_missing_for_a_moment_costs_nothing(b2: B2Server, tmp_path: Path) -> None:
    b2.fail("b2_finish_large_file", status=400, code="missing_part", times=3)
    assert publish(b2_store(b2), large(tmp_path).plan(tmp_path / "state"), quiet).pointer_moved
    assert parts_sent(b2) == PARTS


def test_a_large_file_that_b2_never_finishes_is_begun_anew(b2: B2Server, tmp_path: Path) -> None:
    """Else every next publish would find all of its parts listed, send nothing and be refused in the same way."""
    plan = large(tmp_path).plan(tmp_path / "state")
    b2.fail("b2_finish_large_file", status=400, code="missing_part", times=QUICK.tries)
    with pytest.raises(StoreError) as caught:
        publish(b2_store(b2), plan, quiet)
    assert caught.value.kind == "transient"
    assert unfinished(b2) == []
    assert publish(b2_store(b2), plan, quiet).pointer_moved
    assert parts_sent(b2) == 2 * PARTS


# ---------------------------------------------------------------- nobody's unfinished files


def test_a_step_that_was_given_up_half_sent_is_not_billed_for_ever(b2: B2Server, tmp_path: Path) -> None:
    half_sent(b2, tmp_path, 20)
    publish(b2_store(b2), large(tmp_path, 30, parts=2).plan(tmp_path / "state"), quiet)
    assert unfinished(b2) == []


def test_a_publish_spares_what_is_half_sent_of_a_later_step(b2: B2Server, tmp_path: Path) -> None:
    half_sent(b2, tmp_path, 40)
    publish(b2_store(b2), large(tmp_path, 30, parts=2).plan(tmp_path / "state"), quiet)
    assert unfinished(b2) == ["step_40/model.bin"]
    before = parts_sent(b2)
    assert publish(b2_store(b2), large(tmp_path, 40).plan(tmp_path / "state"), quiet).pointer_moved
    assert parts_sent(b2) - before < PARTS


def plan_of(store: Store, step: Step, folder: Path, writer: str, generation: int) -> Any:
    fence = Fence(store, RUN, generation, writer)
    return step.plan(folder / "state", writer=writer, generation=generation, fence=fence)


def test_the_holder_cancels_what_a_fenced_pod_began_after_the_take_over(b2: B2Server, tmp_path: Path) -> None:
    ours = open_store("b2://the-bucket/team", b2.url, b2.environ(), streams=1, retry=QUICK)
    theirs = b2_store(b2)
    claims.claim(ours, RUN, A, 60.0, sleep=lambda _: None)
    step = large(tmp_path)
    step.write("second.bin", random.Random(2).randbytes(3 * PART))
    taken: list[int] = []

    def take_over(moved: Any) -> None:
        if moved.phase == "sending" and b2.journal("b2_start_large_file") and not taken:
            taken.append(claims.claim(theirs, RUN, B, 60.0, sleep=lambda _: None, take_over=True).generation)
            sweep_run(theirs, RUN)

    with pytest.raises(StoreError):  # its upload is cancelled; meanwhile it may begin the next, which B never saw
        publish(ours, plan_of(ours, step, tmp_path / "a", A, 1), take_over)
    assert taken == [2]
    assert unfinished(b2), "the scene needs an upload that was begun after the take-over"
    publish(theirs, plan_of(theirs, large(tmp_path, 30, parts=2), tmp_path / "b", B, 2), quiet)
    assert unfinished(b2) == []


def test_a_pod_that_is_fenced_at_the_very_end_cancels_nothing_of_the_holder(
    b2: B2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, settle = b2_store(b2), publishing.settle_pointer
    claims.claim(ours, RUN, A, 60.0, sleep=lambda _: None)

    def lose(store: Store, run_id: str) -> tuple[Latest | None, bool]:
        claims.claim(b2_store(b2), RUN, B, 60.0, sleep=lambda _: None, take_over=True)
        half_sent(b2, tmp_path / "b", 10)
        return settle(store, run_id)

    monkeypatch.setattr(publishing, "settle_pointer", lose)
    with pytest.raises(FencedError):
        publish(ours, plan_of(ours, large(tmp_path, 20, parts=2), tmp_path / "a", A, 1), quiet)
    assert unfinished(b2) == ["step_10/model.bin"]


# ---------------------------------------------------------------- a disk that takes no plan


def test_a_full_disk_keeps_no_step_from_the_store(
    store: Store, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it is published makes its local copy superfluous, which is what frees the disk."""

    fsync = os.fsync

    def full(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path / "state"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        done = publish(store, step.plan(tmp_path / "state"), quiet)
    assert done.pointer_moved
    assert "could not be written (No space left on device)" in done.note
    assert list((tmp_path / "state").iterdir()) == []  # what was written of it takes no room, either
    assert publish(store, step.plan(tmp_path / "state"), quiet).note == ""


def test_a_state_folder_that_cannot_be_made_keeps_no_step_from_the_store(
    store: Store, step: Step, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("no folder")
    done = publish(store, step.plan(tmp_path / "state" / "publish"), quiet)
    assert done.pointer_moved
    assert "could not be written (Not a directory)" in done.note
