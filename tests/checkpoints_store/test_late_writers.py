"""A pod that was fenced in the middle of a file, in a store whose names keep one version; and pointers nobody can use.

``tests/vault/test_two_writers.py`` lets it sleep at every operation; here are the stories with files of real size.
``tests/storage/test_s3_steps.py`` tells the same of S3.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.checkpoints.catalogue import keep_lineage, list_steps, sweep_run
from supervisor.checkpoints.claims import Fence, claim
from supervisor.checkpoints.lineage import Entry
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.restore import restore
from supervisor.checkpoints.writers import FencedError, writer_name
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import PART, RUN, Step, b2_store, quiet

A, B = (writer_name(f"pod-{name}", name * 16, "0001") for name in "ab")
LARGE = 2_500_000


def folder(path: Path) -> Store:
    return open_store(path.as_uri(), None, {}, streams=4, part_size=PART)


def one_file(path: Path, letter: bytes, size: int = LARGE) -> Step:
    step = Step(path)
    step.write("model.bin", letter * size)
    return step


def overtaken(opened: Callable[[], Store], here: Path) -> tuple[StoreError, bytes]:
    """Pod A is in the middle of step 20 when B takes the run over and publishes its own: A's end, what a third gets."""
    ours, theirs = opened(), opened()
    if claim(ours, RUN, A, 0.0).writer != A:
        raise AssertionError
    mine, others = one_file(here / "a", b"A"), one_file(here / "b", b"B")
    taken: list[int] = []

    def meanwhile(moved: Moved) -> None:
        if moved.phase != "sending" or not moved.bytes or taken:
            return
        taken.append(claim(theirs, RUN, B, 0.0, take_over=True).generation)
        fence = Fence(theirs, RUN, taken[0], B)
        sweep_run(theirs, RUN, fence=fence)
        publish(theirs, others.plan(here / "sb", generation=taken[0], writer=B, fence=fence), quiet)

    with pytest.raises(StoreError) as caught:
        publish(ours, mine.plan(here / "sa", generation=1, writer=A, fence=Fence(ours, RUN, 1, A)), meanwhile)
    assert taken == [2] and list_steps(theirs, RUN).steps[20].committed
    restore(opened(), RUN, 20, Place("step_20"), here / "to", quiet)
    return caught.value, (here / "to/step_20/model.bin").read_bytes()[:1]


@pytest.mark.parametrize("there", [False, True], ids=["a new name", "a name that is there"])
def test_in_a_folder_the_file_of_a_fenced_pod_replaces_none_of_the_holders(tmp_path: Path, there: bool) -> None:
    store = folder(tmp_path / "store")
    if there:  # an attempt before this one brought it, and died before it was published
        store.put_bytes(f"{RUN}/step_20/model.bin", b"old")
    error, letter = overtaken(lambda: folder(tmp_path / "store"), tmp_path)
    assert letter == b"B"
    assert isinstance(error, FencedError), error


# ---------------------------------------------------------------- another object under a file's name


def test_a_step_whose_file_was_replaced_by_other_bytes_is_not_committed_where_the_listing_tells_hashes(
    b2: B2Server, tmp_path: Path, step: Step
) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    publish(
        store, Step(tmp_path / "30", 30).fill(shard=900).plan(tmp_path / "state"), quiet
    )  # the pointer vouches for that
    name = "trainer/.metadata"
    [there] = [file for file in store.list(f"{RUN}/step_20/") if file.name.endswith(name)]
    store.put_bytes(there.name, b"x" * there.size)
    store.delete(there)
    info = list_steps(store, RUN).steps[20]
    assert not info.committed and f"{name} of step 20 was replaced" in info.problem
    publish(store, step.plan(tmp_path / "state"), quiet)
    assert list_steps(store, RUN).steps[20].committed


def test_a_file_that_was_brought_back_from_a_backup_is_good_and_other_bytes_in_its_place_are_found_by_restoring(
    tmp_path: Path, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder tells no hashes, and each copy has another id."""
    monkeypatch.setattr(random, "uniform", lambda low, high: low)  # the pauses before it is fetched again
    store = folder(tmp_path / "store")
    publish(store, step.plan(tmp_path / "state"), quiet)
    stored = f"{RUN}/step_20/trainer/__0_0.distcp"
    good = store.get_bytes(stored)
    store.put_bytes(stored, good)
    assert list_steps(store, RUN).steps[20].committed
    assert restore(store, RUN, 20, Place("step_20"), tmp_path / "to", quiet).verified
    store.put_bytes(stored, good[::-1])
    with pytest.raises(StoreError) as caught:
        restore(store, RUN, 20, Place("step_20"), tmp_path / "again", quiet)
    assert caught.value.kind == "damaged"


def test_the_same_bytes_sent_once_more_by_another_tool_are_the_same_step(
    b2: B2Server, tmp_path: Path, step: Step
) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    small = [file for file in store.list(f"{RUN}/step_20/") if file.name.endswith((".metadata", "progress.pt"))]
    for file in small:
        data = store.get_bytes(file.name)
        store.delete(file)
        b2.put(f"team/{file.name}", data)
    assert len(small) == 2 and list_steps(store, RUN).steps[20].committed


def test_every_step_of_a_store_that_was_copied_is_committed(tmp_path: Path, step: Step) -> None:
    store, copied = folder(tmp_path / "store"), folder(tmp_path / "copied")
    publish(store, step.plan(tmp_path / "state"), quiet)
    for file in store.list(f"{RUN}/"):
        copied.put_bytes(file.name, store.get_bytes(file.name))
    assert list_steps(copied, RUN).steps[20].committed


# ---------------------------------------------------------------- pointers that nobody can or may follow


def left(store: Store, *steps: int) -> int | None:
    entries = [Entry("quarantine", step, 1.7e9 + step, "NaN") for step in steps]
    return keep_lineage(store, RUN, entries, generation=0, writer=A, fence=lambda: None)[1]


def published(store: Store, here: Path, *steps: int) -> None:
    for number in steps:
        publish(store, Step(here / str(number), number).fill(shard=900).plan(here / "state"), quiet)


def named(b2: B2Server) -> str | None:
    data = b2.objects().get(f"team/{RUN}/latest.json")
    return None if data is None else str(json.loads(data)["step"])


def test_junk_over_the_pointer_keeps_no_step_from_being_left_and_none_from_being_published(
    b2: B2Server, tmp_path: Path
) -> None:
    store = b2_store(b2)
    published(store, tmp_path, 10, 20, 30)
    b2.put(f"team/{RUN}/latest.json", b'{"step": "step_')
    assert left(store, 10) is None, "the pointer names a good step, and the next publish replaces the junk"
    assert left(store, 30) == 20 and named(b2) == "step_20"
    b2.put(f"team/{RUN}/latest.json", b'{"step": "step_')
    published(store, tmp_path, 40)
    assert named(b2) == "step_40"


def test_what_stands_under_junk_over_the_pointer_counts_for_no_more_than_what_replaces_it(
    b2: B2Server, tmp_path: Path
) -> None:
    """Publishing 20 anew raised the pointer's lineage, which nothing but the pointer tells."""
    store = b2_store(b2)
    published(store, tmp_path, 10, 20)
    publish(store, Step(tmp_path / "anew", 20).fill(seed=1, shard=900).plan(tmp_path / "state"), quiet)
    b2.put(f"team/{RUN}/latest.json", b"junk")
    published(store, tmp_path, 30)
    assert named(b2) == "step_30"


def test_no_pointer_names_the_only_step_once_it_is_quarantined(store: Store, tmp_path: Path) -> None:
    published(store, tmp_path, 20)
    assert left(store, 20) is None
    assert list_steps(store, RUN).latest is None
    assert left(store, 20) is None, "nothing is left to do"
    published(store, tmp_path, 30)
    pointer = list_steps(store, RUN).latest
    assert pointer is not None and (pointer.step, pointer.wandb_run_id) == (30, "w7")
