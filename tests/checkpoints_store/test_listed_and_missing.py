"""What a listing shows and a request does not find was replaced, or the server errs: it is never taken for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.checkpoints import claims, records
from supervisor.checkpoints import lineage as lineages
from supervisor.checkpoints.catalogue import keep_lineage, list_steps
from supervisor.checkpoints.keeping import read_pins, refuse_to_delete, set_pin
from supervisor.checkpoints.lineage import Entry
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.record_files import get_records, put_record
from supervisor.checkpoints.records import read_latest, read_manifest
from supervisor.checkpoints.writers import writer_name
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import RUN, Step, b2_store, quiet

JOURNAL = "0123456789abcdef"
POD = writer_name("pod-a", JOURNAL, "b" * 8)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SETTLE_S", 0.005)


def published(store: Store, tmp_path: Path, *steps: int) -> Store:
    for number in steps:
        publish(store, Step(tmp_path / f"step-{number}", number).fill(shard=300).plan(tmp_path / "state"), quiet)
    return store


def quarantine(store: Store, step: int) -> None:
    entry = Entry("quarantine", step, 1000.0 + step, "loss is nan")
    keep_lineage(store, RUN, [entry], generation=0, writer="a", fence=lambda: None)


def not_found(b2: B2Server, name: str, times: int = 1, after: int = 0) -> None:
    b2.fail("download", name=name, status=404, code="not_found", times=times, after=after)


def between_listing_and_reading(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]
) -> None:
    """Once, ``act`` happens after ``store`` listed an object and before it reads it."""
    get_bytes, todo = store.get_bytes, [act]

    def racing(asked: str, file_id: str | None = None, limit: int = 16 << 20) -> bytes:
        if asked.endswith(name) and todo:
            todo.pop()()
        return get_bytes(asked, file_id, limit)

    monkeypatch.setattr(store, "get_bytes", racing)


# ---------------------------------------------------------------- replaced while somebody reads


def test_a_reader_of_a_lineage_that_is_being_replaced_sees_every_quarantine(
    b2: B2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, holder = published(b2_store(b2), tmp_path, 10, 20, 30), b2_store(b2)
    quarantine(holder, 30)
    between_listing_and_reading(reader, monkeypatch, "lineage.json", lambda: quarantine(holder, 20))
    found = list_steps(reader, RUN)
    assert [step for step, info in found.steps.items() if info.left] == [20, 30]


def test_a_reader_of_a_pointer_that_is_being_moved_sees_where_it_went(
    b2: B2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, holder = published(b2_store(b2), tmp_path, 10), b2_store(b2)
    between_listing_and_reading(reader, monkeypatch, "latest.json", lambda: published(holder, tmp_path, 20))
    latest = read_latest(reader, RUN)
    assert latest is not None and latest.step == 20


def test_a_step_that_is_published_anew_while_it_is_looked_at_is_committed(
    b2: B2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, holder = published(b2_store(b2), tmp_path, 10, 20), b2_store(b2)
    other = Step(tmp_path / "other", 20).fill(seed=1, shard=500)
    other.write("trainer/__9_0.distcp", b"a file that was not there before")
    plan = other.plan(tmp_path / "other-state")
    between_listing_and_reading(reader, monkeypatch, "step_20/manifest.json", lambda: publish(holder, plan, quiet))
    info = list_steps(reader, RUN).steps[20]
    assert (info.committed, info.problem, info.files) == (True, "", len(other.files))


def test_a_record_that_is_replaced_while_it_is_read_is_read(b2: B2Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = b2_store(b2), b2_store(b2)
    put_record(writer, RUN, JOURNAL, b"old")
    between_listing_and_reading(reader, monkeypatch, ".json", lambda: put_record(writer, RUN, JOURNAL, b"new"))
    assert get_records(reader, RUN) == {JOURNAL: b"new"}


def test_a_claim_that_is_withdrawn_while_it_is_looked_at_is_nobodys(
    b2: B2Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, other = b2_store(b2), b2_store(b2)
    other.put_bytes(f"{RUN}/writers/gen_00001.json", b"{}")

    def withdraw() -> None:
        for file in other.list_versions(f"{RUN}/writers/"):
            other.delete(file)

    between_listing_and_reading(waiting, monkeypatch, "gen_00001.json", withdraw)
    assert claims.look(waiting, RUN).free


# ---------------------------------------------------------------- a server that errs once


def test_one_404_at_the_holder_forgets_no_quarantine(b2: B2Server, tmp_path: Path) -> None:
    store = published(b2_store(b2), tmp_path, 10, 20, 30)
    quarantine(store, 30)
    not_found(b2, "lineage.json", times=3)
    quarantine(store, 20)
    assert [entry.step for entry in lineages.read(store, RUN).entries] == [30, 20]


def test_one_404_of_the_pointer_lets_nobody_delete_what_it_names(b2: B2Server, tmp_path: Path) -> None:
    store = published(b2_store(b2), tmp_path, 10, 20, 30, 40)
    not_found(b2, "latest.json")
    with pytest.raises(StoreError, match=r"latest\.json names it"):
        refuse_to_delete(store, RUN, 40)


def test_one_404_of_the_pins_unpins_nothing(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    set_pin(store, RUN, 10, pinned=True)
    not_found(b2, "pins.json")
    assert read_pins(store, RUN).steps == (10,)
    not_found(b2, "pins.json")
    assert set_pin(store, RUN, 20, pinned=True) == (10, 20)


def test_one_404_of_the_newest_manifest_sends_nobody_to_the_step_before(b2: B2Server, tmp_path: Path) -> None:
    store = published(b2_store(b2), tmp_path, 10, 20)
    not_found(b2, "step_20/manifest.json")
    assert list_steps(store, RUN).steps[20].committed
    not_found(b2, "step_20/manifest.json")
    assert read_manifest(store, RUN, 20)[0].step == 20


def test_one_404_of_the_manifest_does_not_publish_a_step_again(b2: B2Server, tmp_path: Path) -> None:
    store = published(b2_store(b2), tmp_path, 20)
    not_found(b2, "step_20/manifest.json")
    again = publish(store, Step(tmp_path / "step-20", 20).fill(shard=300).plan(tmp_path / "state"), quiet)
    assert (again.already, again.sent_bytes) == (True, 0)


def test_one_404_of_its_own_claim_fences_no_healthy_pod(b2: B2Server) -> None:
    store = b2_store(b2)
    assert claims.claim(store, RUN, POD, 60.0, sleep=lambda _: None).writer == POD
    not_found(b2, "writers/")
    assert claims.check(store, RUN, 1, POD).writer == POD


# ---------------------------------------------------------------- one that errs on and on


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("latest.json", lambda store: read_latest(store, RUN)),
        ("lineage.json", lambda store: lineages.read(store, RUN)),
        ("lineage.json", lambda store: quarantine(store, 10)),
        ("pins.json", lambda store: read_pins(store, RUN).steps),
        ("step_20/manifest.json", lambda store: list_steps(store, RUN)),
        ("step_20/manifest.json", lambda store: read_manifest(store, RUN, 20)),
        ("writers/", lambda store: claims.check(store, RUN, 1, POD)),
        ("records/", lambda store: get_records(store, RUN)),
    ],
)
def test_what_is_listed_and_never_found_is_no_answer_and_is_asked_for_later(
    b2: B2Server, tmp_path: Path, name: str, ask: Callable[[Store], object]
) -> None:
    store = published(b2_store(b2), tmp_path, 10, 20)
    quarantine(store, 20)
    set_pin(store, RUN, 10, pinned=True)
    claims.claim(store, RUN, POD, 60.0, sleep=lambda _: None)
    put_record(store, RUN, JOURNAL, b"record")
    sent = len(b2.journal("b2_upload_.*"))
    not_found(b2, name, times=1000)
    with pytest.raises(StoreError, match=r"lists .* and does not find it") as caught:
        ask(store)
    assert caught.value.kind == "transient"
    assert len(b2.journal("b2_upload_.*")) == sent, "nothing is written by somebody who could not read"


def test_what_nobody_lists_is_missing_at_once(store: Store) -> None:
    with pytest.raises(StoreError) as caught:
        records.get_listed(store, f"{RUN}/pins.json", 100)
    assert caught.value.kind == "missing"
    assert (read_latest(store, RUN), read_pins(store, RUN).steps, get_records(store, RUN)) == (None, (), {})
