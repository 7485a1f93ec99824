"""What a tick asks for, counted with the fakes of three places and of B2; `python -m bench fleet_tick` times it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from bench.fleet_tick import Fleet
from supervisor.base.errors import StoreError
from supervisor.checkpoints import claims
from supervisor.fleet.assemble import Assembly, assemble
from supervisor.fleet.controller import Told
from supervisor.fleet.side_by_side import ask_for_each


@pytest.fixture(autouse=True)
def one_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "claim", partial(claims.claim, sleep=lambda _: None))


def tick(assembly: Assembly) -> list[Told]:
    book = assembly.book()
    book.begin()
    try:
        return assembly.controller(book, time.sleep).tick()
    finally:
        book.end()


def count_second_tick(folder: Path, runs: int) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """What the places and the store are asked for once the first tick has filled the memory: all runs train."""
    folder.mkdir()
    with Fleet(folder, runs) as fleet:
        fleet.rent_all()
        assembly = assemble(folder / "fleet.toml", fleet.environ())
        tick(assembly)
        fleet.train()
        fleet.store.state.journal.clear()
        for place in fleet.places.values():
            place.came.clear()
        tolds = tick(assembly)
        assert [told.decision.sentence.endswith(f"trains at step {fleet.step}.") for told in tolds] == [True] * runs
        asked = {name: Counter(route for _, route in place.came) for name, place in fleet.places.items()}
        return asked, Counter(str(entry["op"]) for entry in fleet.store.journal())


@pytest.mark.soak
def test_a_tick_lists_each_place_once_however_many_runs_there_are(tmp_path: Path) -> None:
    few, store_of_few = count_second_tick(tmp_path / "few", 3)
    many, store_of_many = count_second_tick(tmp_path / "many", 12)
    assert few == many == {"vast": {"list": 1}, "runpod": {"list": 1, "pods": 1}, "prime": {"list": 1}}
    more = store_of_many - store_of_few
    del more["b2_get_upload_url"]  # one for each upload at once
    assert more.total() <= 9 * 15, more


def test_two_runs_are_asked_for_at_once_and_each_has_its_own_answer_or_error() -> None:
    together = threading.Barrier(2, timeout=10)

    def ask(name: str) -> str:
        together.wait()
        if name == "bad":
            raise StoreError("transient", "the store is away")
        return name.upper()

    answers = ask_for_each(["good", "bad"], ask)
    assert answers["good"]() == "GOOD"
    with pytest.raises(StoreError, match="the store is away"):
        answers["bad"]()


def test_one_run_is_asked_for_by_the_callers_thread() -> None:
    answers = ask_for_each(["only"], lambda name: threading.current_thread())
    assert answers["only"]() is threading.current_thread()
