"""Logs of attempts in the store: bounded, compressed, and readable when the pod is gone."""

from __future__ import annotations

import zlib

import pytest

from supervisor.checkpoints import log_files, log_packing
from supervisor.checkpoints.log_files import get_logs, list_logs, put_logs
from supervisor.checkpoints.log_packing import pack, unpack
from supervisor.checkpoints.record_files import get_records, put_record
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.b2server.state import ALL_CAPABILITIES, Key
from tests.checkpoints_store.conftest import QUICK, RUN

POD_A, POD_B = "a" * 16, "b" * 16


def test_the_logs_of_two_pods_with_the_same_attempt_are_both_read(store: Store) -> None:
    put_logs(store, RUN, POD_A, 1, {"trainer.log": pack("step 1\n"), "incident-1-reason.txt": pack("vLLM is gone")})
    put_logs(store, RUN, POD_B, 1, {"trainer.log": pack("of another pod")})
    assert get_logs(store, RUN, 1) == {
        "aaaaaaaa/trainer.log": "step 1\n",
        "aaaaaaaa/incident-1-reason.txt": "vLLM is gone",
        "bbbbbbbb/trainer.log": "of another pod",
    }
    assert get_logs(store, RUN, 2) == {}


def test_a_log_that_grew_replaces_the_one_before_and_the_oldest_attempts_go(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MOST_LOGS", 5)
    for attempt in range(1, 9):
        for text in ("one", "one two"):
            put_logs(store, RUN, POD_A, attempt, {"trainer.log": pack(text)})
    left = list_logs(store, RUN)
    assert [log.attempt for log in left] == [4, 5, 6, 7, 8]
    assert len(store.list_versions(f"{RUN}/logs/")) == 5
    assert get_logs(store, RUN, 8) == {"aaaaaaaa/trainer.log": "one two"}


def test_names_and_sizes_have_limits_and_what_others_planted_is_left_out(store: Store) -> None:
    for name in ("../x", "a/b", ""):
        with pytest.raises(StoreError, match="no log that the store takes"):
            put_logs(store, RUN, POD_A, 1, {name: b""})
    with pytest.raises(StoreError, match="no log that the store takes"):
        put_logs(store, RUN, POD_A, 1, {"x": bytes(log_packing.LOG_LIMIT + 1)})
    store.put_bytes(f"{RUN}/logs/planted", b"x")
    assert list_logs(store, RUN) == []


def test_a_bomb_is_cut() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = bomb.compress(bytes(5 * log_packing.UNPACKED_LIMIT)) + bomb.flush()
    assert len(unpack(data)) == log_packing.UNPACKED_LIMIT


def test_noise_is_a_sentence(store: Store) -> None:
    store.put_bytes(f"{RUN}/logs/{POD_A}/0001-x.gz", b"noise")
    with pytest.raises(StoreError, match="cannot be unpacked"):
        get_logs(store, RUN, 1)


def test_a_key_that_may_not_delete_keeps_the_ends_of_all_logs_and_the_record(b2: B2Server) -> None:
    capabilities = tuple(one for one in ALL_CAPABILITIES if one != "deleteFiles")
    key = b2.add_key(Key("0000nodel", "Knodel", capabilities))
    store = open_store("b2://the-bucket/team", b2.url, b2.environ(key), streams=4, retry=QUICK)
    for text in ("begin", "begin and end"):
        assert put_logs(store, RUN, POD_A, 1, {name: pack(text) for name in ("trainer", "engine", "daemon")}) == 3
        put_record(store, RUN, POD_A, text.encode())
    assert get_logs(store, RUN, 1) == {f"aaaaaaaa/{name}": "begin and end" for name in ("trainer", "engine", "daemon")}
    assert get_records(store, RUN) == {POD_A: b"begin and end"}
