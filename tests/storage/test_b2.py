"""B2 over real HTTP when things go wrong: what is retried, what is not, and what a person is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.storage import open_store
from supervisor.storage.base import Store, StoredFile, StoreError
from tests.b2server import B2Server, Key
from tests.b2server.http import Handler
from tests.storage.conftest import QUICK
from tests.storage.parts import hash_parts

DAEMON = ("listFiles", "readFiles", "writeFiles", "deleteFiles")


def opened(server: B2Server, url: str = "b2://the-bucket", key: Key | None = None) -> Store:
    return open_store(url, server.url, server.environ(key), streams=4, part_size=20_000, retry=QUICK)


def send(store: Store, path: Path, name: str = "run/big") -> StoredFile:
    size = path.stat().st_size
    return store.put_file(name, path, size, hash_parts(path, size, store.part_size()), lambda _: None)


def accepted(server: B2Server) -> list[tuple[str, int]]:
    """(name, part) of everything that brought bytes, in order; part 0 is a whole small file."""
    return [(e["name"], e.get("part", 0)) for e in server.journal("b2_upload_.*") if e.get("accepted")]


# ---------------------------------------------------------------- faults that pass


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "times": 4},
        {"status": 429, "code": "too_many_requests", "times": 2},
        {"status": 408, "code": "request_timeout", "times": 2},
        {"cut_upload_after": 7_000, "times": 2},
        {"status": 500, "code": "internal_error", "times": 2},
    ],
    ids=lambda fault: "-".join(str(value) for value in fault.values()),
)
def test_an_upload_survives_what_b2sdk_would_not(b2: B2Server, big: Path, fault: dict[str, object]) -> None:
    b2.fail("b2_upload_part", **fault)
    stored = send(opened(b2), big)
    assert b2.objects() == {"run/big": big.read_bytes()}
    assert stored.size == big.stat().st_size
    assert sorted(accepted(b2)) == [("run/big", part) for part in range(1, 6)]


def test_an_entry_of_netrc_for_every_host_takes_nothing_from_the_key(
    b2: B2Server, big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaced the header, and the sign-in failed with "B2 refuses the application key"."""
    (tmp_path / "netrc").write_text("default login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    send(opened(b2), big)
    assert b2.objects() == {"run/big": big.read_bytes()}


def test_retry_after_is_honoured(b2: B2Server) -> None:
    waited: list[float] = []
    retry = type(QUICK)(tries=3, base_s=0.001, cap_s=0.002, sleep=waited.append)
    store = open_store("b2://the-bucket", b2.url, b2.environ(), retry=retry)
    b2.fail("b2_upload_file", status=429, code="too_many_requests", retry_after=7)
    store.put_bytes("run/x", b"x")
    assert waited == [7.0]


def test_after_an_outage_only_what_is_missing_is_sent(b2: B2Server, big: Path) -> None:
    store = opened(b2)
    b2.fail("b2_upload_part", after=2, status=503, times=10_000)
    with pytest.raises(StoreError, match=r"could not send b2://the-bucket/run/big: 503") as caught:
        send(store, big)
    assert caught.value.kind == "transient"
    assert len(accepted(b2)) == 2
    b2.state.faults.clear()
    send(store, big)
    assert sorted(accepted(b2)) == [("run/big", part) for part in range(1, 6)]


def test_a_lost_answer_to_the_last_request_is_success_and_makes_no_second_file(b2: B2Server, big: Path) -> None:
    b2.fail("b2_finish_large_file", lose_answer=True, times=1)
    stored = send(opened(b2), big)
    assert b2.objects() == {"run/big": big.read_bytes()}
    assert [v.file_id for v in b2.state.versions.values()] == [stored.file_id]


def test_a_lost_answer_to_a_part_sends_that_part_again_and_no_other(b2: B2Server, big: Path) -> None:
    b2.fail("b2_upload_part", lose_answer=True, times=1)
    send(opened(b2), big)
    assert b2.objects() == {"run/big": big.read_bytes()}
    assert len(accepted(b2)) == 6


def test_an_expired_token_is_renewed_without_a_word(b2: B2Server) -> None:
    store = opened(b2)
    store.put_bytes("run/x", b"x")
    b2.state.tokens.clear()
    assert [file.name for file in store.list("run/")] == ["run/x"]
    b2.state.tokens.clear()
    assert store.get_bytes("run/x") == b"x"


def test_a_small_object_with_a_flipped_byte_is_read_again_and_in_the_end_damaged(b2: B2Server) -> None:
    store = opened(b2)
    store.put_bytes("run/latest.json", b"{}")
    b2.fail("download", flip=1, times=2)
    assert store.get_bytes("run/latest.json") == b"{}"
    b2.fail("download", flip=1, times=100)
    with pytest.raises(StoreError, match="came back 5 times") as caught:
        store.get_bytes("run/latest.json")
    assert caught.value.kind == "damaged"


def test_a_page_that_ends_among_the_versions_of_a_name_hides_and_doubles_none(b2: B2Server) -> None:
    """Of two claims the oldest version counts: one that a listing leaves out would let a second pod in."""
    store = opened(b2)
    names = ["run/gen_00001.json"] * 2 + ["run/gen_00002.json"] * 2 + ["run/gen_00003.json"]
    ids = [store.put_bytes(name, name.encode()).file_id for name in names]
    b2.state.longest_page = 2
    newest_first = [ids[1], ids[0], ids[3], ids[2], ids[4]]
    assert [file.file_id for file in store.list_versions("run/")] == newest_first
    assert [file.file_id for file in store.list("run/")] == [ids[1], ids[3], ids[4]]


def test_what_an_outage_left_half_sent_is_found_over_many_pages(b2: B2Server, big: Path) -> None:
    b2.fail("b2_upload_part", after=3, status=503, times=10_000)
    with pytest.raises(StoreError):
        send(opened(b2), big)
    b2.state.faults.clear()
    b2.state.longest_page = 1
    send(opened(b2), big)
    assert sorted(accepted(b2)) == [("run/big", part) for part in range(1, 6)], "none is sent twice"


def test_an_unfinished_upload_of_another_name_is_not_continued_though_it_was_cut_the_same(
    b2: B2Server, big: Path
) -> None:
    """One name begins with the other, as "model.bin" and "model.bin.index" do, and a listing goes by beginnings."""
    b2.fail("b2_upload_part", after=2, status=503, times=10_000)
    with pytest.raises(StoreError):
        send(opened(b2), big, "run/big.index")
    b2.state.faults.clear()
    send(opened(b2), big, "run/big")
    assert b2.objects() == {"run/big": big.read_bytes()}


def test_an_unfinished_upload_of_other_bytes_is_not_continued(b2: B2Server, big: Path, tmp_path: Path) -> None:
    def give_up(count: int) -> None:
        if count:
            raise StoreError("transient", "given up by the test")

    store = opened(b2)
    size = big.stat().st_size
    with pytest.raises(StoreError, match="given up"):
        store.put_file("run/big", big, size, hash_parts(big, size, 20_000), give_up)
    data = bytearray(big.read_bytes())
    data[90_000] ^= 1
    big.write_bytes(data)
    send(store, big)
    assert b2.objects() == {"run/big": bytes(data)}


def test_a_part_that_is_there_with_other_bytes_is_replaced_under_its_number(
    b2: B2Server, big: Path, tmp_path: Path
) -> None:
    store, size = opened(b2), big.stat().st_size
    b2.fail("b2_upload_part", after=3, status=503, times=10_000)
    with pytest.raises(StoreError):
        send(store, big)
    b2.state.faults.clear()
    begun = {part for _, part in accepted(b2)}
    first = min(begun)
    with big.open("r+b") as file:
        file.seek((first - 1) * 20_000)
        file.write(b"other bytes")
    told: list[int] = []
    stored = store.put_file("run/big", big, size, hash_parts(big, size, 20_000), told.append)
    assert (b2.objects()["run/big"], sum(told)) == (big.read_bytes(), size)
    assert sorted(part for _, part in accepted(b2)) == sorted([*range(1, 6), first])
    assert len(b2.journal("b2_start_large_file")) == 1 and list(b2.state.versions) == [stored.file_id]


def test_the_id_is_told_when_all_parts_are_there_and_before_they_are_a_file(b2: B2Server, big: Path) -> None:
    size = big.stat().st_size
    told: list[tuple[str, int]] = []

    def finishing(file_id: str) -> None:
        told.append((file_id, len(accepted(b2))))
        assert not b2.objects()

    stored = opened(b2).put_file("run/big", big, size, hash_parts(big, size, 20_000), lambda _: None, finishing)
    assert told == [(stored.file_id, 5)]


def test_more_parts_than_streams_never_means_more_requests_at_a_time_than_streams(b2: B2Server, tmp_path: Path) -> None:
    path = tmp_path / "many"
    path.write_bytes(os.urandom(400_000))
    b2.fail("b2_upload_part", delay_s=0.02, times=1000)
    send(opened(b2), path)
    urls = [e for e in b2.journal("b2_get_upload_part_url") if e["status"] == 200]
    assert len(urls) <= 4


# ---------------------------------------------------------------- faults that a person has to mend


def test_a_wrong_key_is_one_sentence_that_never_quotes_the_key(b2: B2Server) -> None:
    with pytest.raises(StoreError) as caught:
        opened(b2, key=Key("0000master01", "K000wrongsecret"))
    assert caught.value.kind == "permanent"
    sentence = str(caught.value)
    assert sentence.startswith(
        "could not sign in to B2 for the bucket the-bucket: B2 refuses the application key ...er01"
    )
    assert "B2_APPLICATION_KEY_ID" in sentence and "b2_application_key" in sentence
    assert "K000wrongsecret" not in sentence


def test_a_missing_key_says_which_variable_and_which_credential(b2: B2Server) -> None:
    with pytest.raises(StoreError, match="B2_APPLICATION_KEY_ID is not set, and there is no systemd") as caught:
        open_store("b2://the-bucket", b2.url, {})
    assert caught.value.kind == "permanent"
    with pytest.raises(StoreError, match=r"B2_APPLICATION_KEY holds characters that no key has"):
        open_store("b2://the-bucket", b2.url, {"B2_APPLICATION_KEY_ID": "k", "B2_APPLICATION_KEY": "a b"})


def test_keys_come_from_systemd_credentials(b2: B2Server, tmp_path: Path) -> None:
    (tmp_path / "b2_application_key_id").write_text(B2Server.KEY.key_id + "\n")
    (tmp_path / "b2_application_key").write_text(B2Server.KEY.secret + "\n")
    store = open_store("b2://the-bucket", b2.url, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    store.put_bytes("run/x", b"x")
    assert b2.objects() == {"run/x": b"x"}


def test_a_missing_bucket_is_named(b2: B2Server) -> None:
    with pytest.raises(StoreError, match="the bucket other-bucket does not exist in the account") as caught:
        opened(b2, "b2://other-bucket")
    assert caught.value.kind == "permanent"


def test_a_key_of_another_bucket_is_told_apart_from_a_missing_bucket(b2: B2Server) -> None:
    key = b2.add_key(Key("0000bucketkey", "K000bucket", DAEMON, ("the-bucket",)))
    with pytest.raises(StoreError, match="limited to another bucket than other-bucket") as caught:
        opened(b2, "b2://other-bucket", key)
    assert caught.value.kind == "permanent"


def test_an_unreachable_server_is_transient_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # b2sdk tries again by itself
    with B2Server() as gone:
        pass
    with pytest.raises(StoreError, match=r"no connection to 127\.0\.0\.1:\d+ \(Connection refused\)") as caught:
        open_store("b2://the-bucket", gone.url, gone.environ())
    assert caught.value.kind == "transient"


def test_a_key_limited_to_one_bucket_and_one_run_does_everything_that_the_daemon_needs(b2: B2Server, big: Path) -> None:
    key = b2.add_key(Key("0000narrow01", "K000narrow", DAEMON, ("the-bucket",), "run-7/"))
    store = opened(b2, key=key)
    stored = send(store, big, "run-7/step_20/big")
    assert store.get_range(stored, 0, stored.size) == big.read_bytes()
    assert [file.name for file in store.list("run-7/")] == ["run-7/step_20/big"]
    assert store.get_bytes("run-7/step_20/big") == big.read_bytes()
    assert store.sweep("run-7/") == 0
    store.delete(stored)
    assert b2.objects() == {}
    assert not [e for e in b2.state.journal if e["status"] == 401]


def test_a_name_outside_the_key_is_refused_before_any_request_and_says_where_the_key_reaches(b2: B2Server) -> None:
    key = b2.add_key(Key("0000narrow01", "K000narrow", DAEMON, ("the-bucket",), "run-7/"))
    store = opened(b2, key=key)
    before = len(b2.state.journal)
    for act in (
        lambda: store.list("run-8/"),
        lambda: store.put_bytes("run-8/x", b"x"),
        lambda: store.get_bytes("run-8/latest.json"),
    ):
        with pytest.raises(StoreError, match=r"only reaches names that start with 'run-7/'") as caught:
            act()
        assert caught.value.kind == "permanent"
    assert len(b2.state.journal) == before


def test_a_key_that_may_only_read_says_which_capability_is_missing(b2: B2Server) -> None:
    key = b2.add_key(Key("0000reader01", "K000reader", ("listFiles", "readFiles"), ("the-bucket",)))
    store = opened(b2, key=key)
    assert list(store.list("run/")) == []
    with pytest.raises(StoreError, match=r"lacks the capability writeFiles\. Make an application key") as caught:
        store.put_bytes("run/x", b"x")
    assert caught.value.kind == "permanent"


@pytest.mark.parametrize("code", ["storage_cap_exceeded", "transaction_cap_exceeded", "download_cap_exceeded"])
def test_a_cap_is_a_question_of_quota_and_is_not_retried(b2: B2Server, code: str) -> None:
    b2.fail("b2_upload_file", status=403, code=code, times=10)
    with pytest.raises(StoreError, match="Caps & Alerts") as caught:
        opened(b2).put_bytes("run/x", b"x")
    assert caught.value.kind == "quota"
    assert len(b2.journal("b2_upload_file")) == 1


@pytest.mark.parametrize("skew_s", [3600, -3600])
def test_a_clock_that_is_wrong_stops_nothing(b2: B2Server, skew_s: int) -> None:
    b2.state.skew_s = skew_s
    store = opened(b2)
    store.put_bytes("run/x", b"x")
    assert store.get_bytes("run/x") == b"x" and [file.name for file in store.list("run/")] == ["run/x"]


def test_an_answer_with_a_date_that_nobody_can_read_is_an_answer(b2: B2Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "date_time_string", lambda *_: "today")
    assert opened(b2).list("run/") == []


def test_the_part_size_is_never_below_what_the_server_takes(b2: B2Server) -> None:
    assert open_store("b2://the-bucket", b2.url, b2.environ(), part_size=200).part_size() == 5_000
    assert open_store("b2://the-bucket", b2.url, b2.environ()).part_size() == 100_000
