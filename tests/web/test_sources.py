"""Where the page gets its words from when places are slow, gone, or lie; and that many viewers cost what one does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import StoreError, SupervisorError
from supervisor.config.settings import RunFile
from supervisor.journal.series import parse_series
from supervisor.web import sources
from supervisor.web.history import Piece, draw_history
from supervisor.web.page import page_of_run
from supervisor.web.sources import RunSource
from tests.web.served import until


class FakeStore:
    """What ``Transfers`` would tell; it may be slow, or give no answer."""

    def __init__(self) -> None:
        self.open, self.fails, self.asked = threading.Event(), False, 0
        self.open.set()

    def __call__(self, *_: object) -> FakeStore:
        return self

    def run(self, asked: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
        self.asked += 1
        assert self.open.wait(30)
        if self.fails:
            raise StoreError("transient", "the line is cut")
        if asked["do"] == "catalogue":
            step = {"step": 40, "committed": True, "size_bytes": 5e9}
            return {"steps": [step], "latest": {"step": 40}}
        if asked["do"] == "list-logs":
            one = {"journal": "a" * 32, "attempt": 1, "name": "trainer", "uploaded_at": 1.0}
            return {"logs": [one, {**one, "journal": "b" * 32}]}
        return {"logs": {"bbbbbbbb/trainer": "of b", "aaaaaaaa/trainer": "of a"}}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStore]:
    made = FakeStore()

    def gather(*_: object) -> None:
        raise SupervisorError("Nothing is known of run swe.")

    monkeypatch.setattr(sources, "Transfers", made)
    monkeypatch.setattr(sources.run_report, "gather", gather)
    monkeypatch.setattr(sources, "LOOK_FRESH_S", 0.0)
    yield made
    made.open.set()


@pytest.fixture
def source(tmp_path: Path, store: FakeStore) -> RunSource:
    value = {
        "run": {"id": "swe", "state_dir": str(tmp_path)},
        "job": {"kind": "command", "plain": {"start": ["a"], "resume": ["b"]}},
        "store": {"url": f"file://{tmp_path}/store"},
    }
    return RunSource(RunFile.model_validate(value), {}, here=False, price=None)


def test_nobody_waits_for_a_store_that_hangs_and_its_answer_is_there_later(source: RunSource, store: FakeStore) -> None:
    store.open.clear()
    began = time.monotonic()
    told = page_of_run(source.look(0.1), None)
    assert time.monotonic() - began < 5.0
    assert told["sentence"] == "The store is being asked for the first time."
    assert [source.look(0.0).steps for _ in range(5)] == [None] * 5
    assert store.asked == 1  # by all of these together
    store.open.set()
    until(lambda: source.look(0.0).steps)
    assert page_of_run(source.look(), None)["sentence"] == "Step 40 is the newest that is published."


def test_what_a_store_told_stays_when_it_is_asked_again_in_vain(
    source: RunSource, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source.look(20.0).newest == {"step": 40}
    monkeypatch.setattr(sources, "STORE_FRESH_S", 0.0)
    store.fails = True
    until(lambda: any("the line is cut" in note for note in source.look().notes))
    told = page_of_run(source.look(), None)
    assert told["sentence"] == "Step 40 is the newest that is published."
    assert told["steps"][0]["store"] == "published"
    assert any("this may be old" in note for note in told["notes"])


def test_two_pods_with_an_attempt_of_one_number_have_one_entry_and_both_logs(source: RunSource) -> None:
    assert source.look(20.0).logs == ["attempt 1: trainer"]
    assert source.read_log("attempt 1: trainer") == "--- aaaaaaaa/trainer ---\nof a\n--- bbbbbbbb/trainer ---\nof b"


def test_a_log_of_the_store_is_fetched_once_for_all_who_follow_it(source: RunSource, store: FakeStore) -> None:
    source.look(20.0)
    before = store.asked
    followers = [threading.Thread(target=source.read_log, args=("attempt 1: trainer",)) for _ in range(10)]
    for one in followers:
        one.start()
    for one in followers:
        one.join(20)
    assert store.asked == before + 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"t": 1e15, "disk": 1}',
        b'{"t": -5, "disk": 1}',
        b'{"t": 1, "disk": 1' + b"0" * 400 + b"}",
        b'{"t": 1, "role": "trainer", "step": 1' + b"0" * 400 + b"}",
        b"[" * 200_000,
        b'{"t": 2, "disk": 5',
    ],
)
def test_a_line_that_no_browser_can_draw_is_left_out_and_the_others_are_drawn(line: bytes) -> None:
    rows = parse_series(b'{"t": 1, "disk": 5000000000}\n' + line)
    told = draw_history([Piece("a", 1, rows)])
    json.dumps(told, allow_nan=False)
    assert [chart["lines"][0]["y"] for chart in told["charts"]] == [[5]]


def test_a_clock_that_was_set_back_draws_no_line_backwards() -> None:
    rows = [{"t": 1e9 + 30 * n - (5000 if n > 3000 else 0), "disk": 1e9 * n} for n in range(6000)]
    (line,) = (one for one in draw_history([Piece("a", 1, rows)])["charts"][0]["lines"] if one["name"] == "free")
    assert line["x"] == sorted(line["x"])
    assert len(line["x"]) < 2000


@pytest.mark.soak
def test_of_the_last_hour_each_sample_is_drawn_however_long_the_run() -> None:
    rows = [{"t": 1e9 + 30 * n, "waiting": n % 7} for n in range(100_000)]
    [chart] = draw_history([Piece("a", 1, rows)])["charts"]
    x = chart["lines"][0]["x"]
    assert len([t for t in x if t > x[-1] - 3600]) >= 100
    assert len(x) < 1500


def test_a_value_that_is_no_number_hides_no_other() -> None:
    rows = [{"t": 1e9 + n, "step": n, "role": "trainer", "loss": float("nan") if n % 2 else 1.0} for n in range(20_000)]
    rows[10_000]["loss"] = 99.0
    [chart] = draw_history([Piece("a", 1, rows)])["charts"]
    assert 99.0 in chart["lines"][0]["y"]
    assert None in chart["lines"][0]["y"]
