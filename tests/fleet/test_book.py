"""The controller's memory on a real store: one controller at a time, and nothing guessed of a damaged record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base.errors import StoreError, TryAgainError
from supervisor.fleet import book as book_module
from supervisor.fleet.book import Orders, StoreBook
from supervisor.fleet.model import Intent, Pod, Rented, State
from supervisor.fleet.places.base import Instance
from supervisor.storage.file import FileStore

POD = Pod("vast", 3, Instance("77", "rls-swe-g00003-0a1b2c", "running", 2.5, spot=True, machine="m1"))
STATE = State(
    intent=Intent("rls-swe-g00004-0a1b2c", "spot", "vast", 4, 12.0, 2.5, "vast/m2"),
    rented=(Rented(POD, 1.0, 2.0, 2.5, held=True, step=7, unpublished=(5,), dollars=0.5),),
    faults={"vast/m1": (1.0, 2.0)},
)


@pytest.fixture(autouse=True)
def settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "settle_time", lambda patience_s: 0.0)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def test_what_is_written_is_read_by_the_next_controller_with_what_a_person_wants(store: FileStore) -> None:
    first = StoreBook(store, "fleet")
    first.begin()
    first.write_state("swe", STATE, "Pod 77 trains.")
    first.end()
    StoreBook(store, "fleet").write_orders("swe", Orders(wanted=False, agreed=("vast/77",)))
    second = StoreBook(store, "fleet")
    second.begin()
    found = second.read_state("swe")
    assert (found.rented, found.intent, found.faults) == (STATE.rented, STATE.intent, STATE.faults)
    assert (found.wanted, found.agreed) == (False, ("vast/77",))
    assert [one.sentence for one in second.read_page("swe").said] == ["Pod 77 trains."]


def test_two_controllers_one_tends_the_fleet_and_the_other_may_when_it_ends(store: FileStore) -> None:
    first, second = StoreBook(store, "fleet"), StoreBook(store, "fleet")
    first.begin()
    first.read_clock()
    with pytest.raises(TryAgainError, match=r"tends this fleet: it wrote .* ago"):
        second.begin()
    with pytest.raises(StoreError, match="does not tend the fleet"):
        second.write_state("swe", STATE, "x")
    first.end()
    second.begin()
    second.write_state("swe", STATE, "x")


def test_a_controller_that_is_silent_for_long_is_followed_and_writes_nothing_when_it_wakes(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep, second = StoreBook(store, "fleet"), StoreBook(store, "fleet")
    asleep.begin()
    monkeypatch.setattr(book_module, "PATIENCE_S", 0.0)
    second.begin()
    second.write_state("swe", STATE, "second")
    with pytest.raises(StoreError, match="holds run fleet now"):
        asleep.write_state("swe", State(), "asleep")
    assert second.read_page("swe").said[-1].sentence == "second"
    second.end()
    asleep.begin()  # and may tend the fleet again, once the other has ended
    asleep.write_state("swe", State(), "awake")


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"state": {"rented": 7}}', b'{"state": {"wanted": "perhaps"}}'])
def test_a_record_that_is_damaged_is_told_and_nothing_is_guessed(store: FileStore, text: bytes) -> None:
    store.put_bytes("fleet/state/swe.json", text)
    with pytest.raises(StoreError, match=r"state/swe\.json is no record of this controller .* nothing is guessed"):
        StoreBook(store, "fleet").read_state("swe")


def test_the_clock_is_the_stores_and_goes_on(store: FileStore) -> None:
    book = StoreBook(store, "fleet")
    first = book.read_clock()
    assert 0 < first <= book.read_clock()
    assert len(store.list_versions("fleet/")) == 1


def test_a_sentence_is_dated_by_the_stores_clock_which_is_read_again_after_a_while(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = StoreBook(store, "fleet")
    book.begin()
    began = book.read_clock()
    for number, sentence in enumerate(("Pod 77 trains.", "Pod 77 trains at step 8."), 1):
        book.write_state("swe", replace(STATE, generation=number), sentence)
    assert [one.at for one in book.read_page("swe").said] == [began, began]
    monkeypatch.setattr(book_module, "LATELY_S", 0.0)
    book.write_state("swe", STATE, "Pod 77 is gone.")
    assert book.read_page("swe").said[-1].at > began
