"""What a run learned and what it cost travels in the store; what comes back from there is not believed unread."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.record_files import MOST_BYTES, RECORD_LIMIT, get_records, put_record
from supervisor.core import goodput as g
from supervisor.core import time_kinds as k
from supervisor.core.goodput import Ledger, Outage
from supervisor.core.records import Learned, PhaseTimes
from supervisor.effects.run_records import Record, of_others, parse, to_bytes
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import RUN, Lasting, b2_store
from tests.fuzz.profiles import tries

NOW = 1.79e9
ONE, TWO = "0123456789abcdef", "fedcba9876543210"


def record(journal: str = ONE, wall: float = NOW - 500) -> Record:
    ledger = Ledger(
        {k.PRODUCTIVE: 4000.0, k.STARTUP: 300.0, k.SAVE: 30.0, k.WASTED: 200.0},
        began_wall=wall - 4530,
        wall=wall,
        last=k.PRODUCTIVE,
        mark=9999.0,
        spans=((1, 10, 2000.0), (11, 11, 200.0), (12, 11, 90.5)),
        floor=g.FROM_SCRATCH,
        starts=((wall - 4530, g.FROM_SCRATCH), (wall - 200, 10)),
        steps=12,
        steps_lost=1,
        timed=11,
        timed_s=2200.0,
        saves=1,
        uploads=2,
        upload_s=77.5,
        upload_bytes=3 << 30,
        incidents=1,
        restarts=1,
        outages=(Outage(1, "engine-gone", wall - 100, 11, 3.0, 4.0, 0.5, 200.0, 1),),
    )
    return Record(journal, Learned({"step": PhaseTimes((200.0, 210.5), 210.5, 2, 205.0, 400.0)}), ledger)


def changed(**more: Any) -> bytes:
    """A record with other values, by path: ``ledger__steps=-1``."""
    value = json.loads(to_bytes(record()))
    for path, put in more.items():
        *folders, last = path.split("__")
        table = value
        for folder in folders:
            table = table[folder]
        table[last] = put
    return json.dumps(value).encode()


# ---------------------------------------------------------------- in the store


def test_each_journal_has_its_own_record_and_the_newest_of_it_is_read(store: Store) -> None:
    assert get_records(store, RUN) == {}
    put_record(store, RUN, ONE, b"old")
    put_record(store, RUN, TWO, b"other")
    put_record(store, RUN, ONE, b"new")
    assert get_records(store, RUN) == {ONE: b"new", TWO: b"other"}
    assert not list_steps(store, RUN).steps, "they are no steps"


def test_a_record_that_is_replaced_leaves_no_version_behind(b2: B2Server) -> None:
    store = b2_store(b2)
    for number in range(5):
        put_record(store, RUN, ONE, b"%d" % number)
    sent = [e for e in b2.journal("b2_upload_.*") if e.get("accepted")]
    gone = b2.journal("b2_delete_file_version")
    assert (len(sent), len(gone)) == (5, 4)
    assert get_records(store, RUN) == {ONE: b"4"}


def test_what_is_no_record_of_ours_is_left_out_and_is_no_error(store: Store) -> None:
    for name in ("notes.txt", "../up.json".replace("/", "_"), "XYZ.json", "0123456789abcdef.txt", f"deep/{ONE}.json"):
        store.put_bytes(f"{RUN}/records/{name}", b"x")
    store.put_bytes(f"{RUN}/records/{TWO}.json", b"x" * (RECORD_LIMIT + 1))
    put_record(store, RUN, ONE, b"mine")
    assert get_records(store, RUN) == {ONE: b"mine"}


def test_a_store_full_of_records_gives_the_newest_that_fit_in_an_answer(tmp_path: Path, store: Store) -> None:
    many = MOST_BYTES // RECORD_LIMIT + 3
    if store.url.startswith("b2"):
        pytest.skip("the same code, and eighty uploads")
    for number in range(many):
        put_record(store, RUN, f"{number:08x}", b"x" * RECORD_LIMIT)
    found = get_records(store, RUN)
    assert sum(map(len, found.values())) <= MOST_BYTES
    assert f"{many - 1:08x}" in found and "00000000" not in found


def test_a_journal_without_a_proper_name_or_with_too_much_to_say_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="no journal's identity"):
        put_record(store, RUN, "../other", b"")
    with pytest.raises(StoreError, match="may have 65536"):
        put_record(store, RUN, ONE, b"x" * (RECORD_LIMIT + 1))


@pytest.mark.soak
def test_records_go_and_come_through_the_transfer_process(b2: B2Server, lasting: Lasting) -> None:
    place = {"store": {"url": "b2://the-bucket/team", "realm": b2.url, "streams": 4, "part_size": None}, "run_id": RUN}
    data = to_bytes(record())
    asked = {"do": "put-record", "journal": ONE, "record": base64.b64encode(data).decode(), **place}
    assert lasting.ok(asked, b2.environ()) == {}
    found = lasting.ok({"do": "get-records", **place}, b2.environ())["records"]
    assert base64.b64decode(found[ONE]) == data
    kind, sentence = lasting.error({**asked, "record": "%"}, b2.environ())
    assert (kind, sentence.split(":")[0]) == ("permanent", "the request's record is not base64")


# ---------------------------------------------------------------- what is in them


def test_a_record_comes_back_as_it_went_without_what_only_its_own_daemon_needs() -> None:
    mine = record()
    found = parse(ONE, to_bytes(mine), NOW)
    assert found is not None
    assert found.learned == mine.learned
    assert found.ledger.mark is None
    assert {**vars(found.ledger), "mark": 9999.0} == vars(mine.ledger)


def test_the_longest_record_that_a_run_can_have_fits() -> None:
    phases = {
        f"orchestrator/weight-update-{n}": PhaseTimes((1234.567,) * 50, 1e5 / 3, 10**6, 1e5 / 3, 1e5 / 3)
        for n in range(40)
    }
    outage = Outage(
        10**6, "orchestrator-unreachable", 1789999999.123456, 10**6, 1e5 / 3, 1e5 / 3, 1e5 / 3, 1e5 / 3, 10**4
    )
    ledger = Ledger(
        dict.fromkeys(k.CATEGORIES, 1e7 / 3),
        began_wall=NOW,
        wall=NOW,
        last=k.OTHER,
        spans=tuple((10**6 + n, 10**6 + n, 1e5 / 3) for n in range(g.MOST_SPANS)),
        starts=tuple((1789999999.123456 + n, 10**6 + n) for n in range(g.MOST_STARTS)),
        outages=(outage,) * g.MOST_OUTAGES,
    )
    assert len(to_bytes(Record(ONE, Learned(phases), ledger))) < RECORD_LIMIT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": 1}',
        changed(format=2),
        changed(journal=TWO),
        changed(ledger=None),
        changed(ledger__steps=-1),
        changed(ledger__steps=True),
        changed(ledger__steps=10**400),
        changed(ledger__steps_lost=13),
        changed(ledger__wall=10**400),
        changed(ledger__wall=NOW + 10 * 86400),
        changed(ledger__began_wall=0),
        changed(ledger__last="../../etc/passwd"),
        changed(ledger__seconds={"GOODPUT": float("nan")}),
        changed(ledger__seconds={"GOODPUT": float("inf")}),
        changed(ledger__seconds={"GOODPUT": -60}),
        changed(ledger__seconds={"GOODPUT": "4000"}),
        changed(ledger__seconds={"GOODPUT": 1e12}),
        changed(ledger__seconds={"<script>": 1}),
        changed(ledger__seconds={"GOODPUT": 10}),  # less than its steps took
        changed(ledger__spans=[[5, 1, 1.0]]),
        changed(ledger__spans=[[5, 6]]),
        changed(ledger__spans=[[9, 9, 1.0], [1, 1, 1.0]]),
        changed(ledger__spans=[[1, 1, 0.1]] * 1000),
        changed(ledger__outages=[{"cause": "\x1b[2J"}]),
        changed(ledger__floor=-7),
        changed(ledger__starts=[[NOW, 9], [NOW, 1]]),
        changed(ledger__starts=[[NOW, 1], [NOW - 5, 9]]),
        changed(ledger__starts=[[NOW + n, n] for n in range(100)]),
        changed(learned__phases={"a b": {}}),
        changed(learned__phases={"step": {"seconds": [1] * 1000, "count": 1}}),
        changed(learned__phases={"step": {"seconds": [0.0], "count": 1}}),
        changed(learned__phases={"step": {"seconds": [], "count": 1, "longest_s": 1e18}}),
        changed(learned__phases={f"p{n}": {"seconds": [], "count": 0} for n in range(1000)}),
    ],
)
def test_a_record_that_no_daemon_of_ours_wrote_is_left_out(data: bytes) -> None:
    assert parse(ONE, to_bytes(record()), NOW) is not None
    assert parse(ONE, data, NOW) is None
    assert of_others({ONE: data}, TWO, NOW) == (None, {})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.soak
@given(st.sampled_from(sorted(json.loads(to_bytes(record()))["ledger"])), json_values)
@tries(400, derandomize=True, database=None)
def test_whatever_stands_in_a_record_what_is_taken_from_it_is_bounded(field: str, value: Any) -> None:
    found = parse(ONE, changed(**{f"ledger__{field}": value}), NOW)
    if found is not None:
        run = g.sum_ledgers({ONE: found.ledger, TWO: record(TWO, NOW).ledger})
        assert 0 <= run.total_s < 1e11
        assert 0 <= run.share(k.PRODUCTIVE) <= 1
        assert len(to_bytes(found)) < RECORD_LIMIT


def test_a_record_of_before_starts_were_kept_is_still_read() -> None:
    old = json.loads(to_bytes(record()))
    del old["ledger"]["starts"], old["ledger"]["held"]
    found = parse(ONE, json.dumps(old).encode(), NOW)
    assert found is not None
    assert g.all_starts(found.ledger) == ((found.ledger.began_wall, g.FROM_SCRATCH),)


def test_the_newest_of_the_others_is_learned_from_and_ones_own_comes_from_ones_own_journal() -> None:
    old, new = record(ONE, NOW - 9000), record(TWO, NOW - 10)
    new = Record(TWO, Learned({"step": PhaseTimes((1.0,), 1.0, 1)}), new.ledger)
    found = {ONE: to_bytes(old), TWO: to_bytes(new), "00000000": b"nonsense"}
    learned, ledgers = of_others(found, "aaaaaaaa", NOW)
    assert learned == new.learned
    assert set(ledgers) == {ONE, TWO}
    learned, ledgers = of_others(found, TWO, NOW)
    assert learned == old.learned
    assert set(ledgers) == {ONE}
