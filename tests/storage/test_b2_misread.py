"""Answers that are easily misread: a success that looks like a failure, and a hiccup that looks like an end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.retry import Retry
from supervisor.storage import open_store
from supervisor.storage.base import Part, Store, StoredFile, StoreError
from supervisor.storage.source import SourceRange
from tests.b2server import B2Server
from tests.b2server.http import Handler
from tests.storage.conftest import QUICK
from tests.storage.parts import hash_parts
from tests.storage.test_b2http import Scripted, read_request, transport


def opened(server: B2Server, retry: Retry = QUICK) -> Any:
    return open_store("b2://the-bucket/team", server.url, server.environ(), streams=4, part_size=20_000, retry=retry)


def send(store: Store, path: Path) -> StoredFile:
    size = path.stat().st_size
    return store.put_file("run/big", path, size, hash_parts(path, size, store.part_size()), lambda _: None)


def unfinished(server: B2Server) -> list[str]:
    return [version.name for version in server.state.versions.values() if version.action == "start"]


# ---------------------------------------------------------------- the last answer of a connection


def say_close(patch: pytest.MonkeyPatch) -> None:
    plain = Handler.end_headers

    def end_headers(self: Handler) -> None:
        self.send_header("Connection", "close")
        plain(self)

    patch.setattr(Handler, "end_headers", end_headers)


def speak_http_1_0(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Handler, "protocol_version", "HTTP/1.0")


@pytest.mark.parametrize("habit", [say_close, speak_http_1_0])
def test_an_upload_that_is_confirmed_on_a_connections_last_answer_is_sent_once(
    b2: B2Server, big: Path, monkeypatch: pytest.MonkeyPatch, habit: Callable[[pytest.MonkeyPatch], None]
) -> None:
    habit(monkeypatch)
    store = opened(b2)
    stored = send(store, big)
    store.put_bytes("run/small", b"x")
    assert b2.objects() == {"team/run/big": big.read_bytes(), "team/run/small": b"x"}
    assert store.get_range(stored, 0, stored.size) == big.read_bytes()
    assert len(b2.journal("b2_upload_.*")) == 5 + 1


def test_an_answer_without_a_length_that_ends_with_its_connection_may_have_been_cut(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(1000))

    def cut(link: socket.socket) -> None:
        read_request(link)
        link.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}")

    server = Scripted(cut)
    with SourceRange(path, Part(0, 1000, "")) as source, pytest.raises(ConnectionResetError, match="before the end"):
        transport().send(f"http://127.0.0.1:{server.port}/x", {}, source)
    server._thread.join(5)
    server.listener.close()


# ---------------------------------------------------------------- what is over already


def test_an_unfinished_upload_whose_cancelling_was_not_heard_of_is_gone_all_the_same(b2: B2Server) -> None:
    store = opened(b2)
    for name in ("a", "b"):
        store._client.session.start_large_file(store._client.bucket_id, f"team/run/{name}", "x/y", {})
    b2.fail("b2_cancel_large_file", lose_answer=True)
    store.sweep("run/")
    assert unfinished(b2) == []


def test_an_upload_that_was_finished_between_the_listing_and_the_sweep_is_left_alone(b2: B2Server, big: Path) -> None:
    store = opened(b2)
    file_id, _ = store._large._begin("run/big", "team/run/big", [(0, 20_000), (20_000, 20_000)])
    parts = [Part(0, 20_000, ""), Part(20_000, 20_000, "")]

    def another_finishes() -> None:
        sha1s = []
        for number, part in enumerate(parts, 1):
            with SourceRange(big, part) as stream:
                store._client.session.upload_part(file_id, number, part.size, "", stream)
                sha1s.append(stream.sha1)
        store._client.session.finish_large_file(file_id, sha1s)

    assert store.sweep("run/", fence=another_finishes) == 0
    assert b2.objects() == {"team/run/big": big.read_bytes()[:40_000]}


def test_a_cancel_that_is_refused_for_another_reason_is_an_error(b2: B2Server) -> None:
    store = opened(b2)
    store._client.session.start_large_file(store._client.bucket_id, "team/run/a", "x/y", {})
    b2.fail("b2_cancel_large_file", status=400, code="bad_request", times=1)
    with pytest.raises(StoreError, match="could not cancel"):
        store.sweep("run/")


@pytest.mark.parametrize("ended", ["cancelled", "finished"])
def test_an_upload_that_ended_after_it_was_listed_is_not_continued(b2: B2Server, big: Path, ended: str) -> None:
    store = opened(b2)
    b2.fail("b2_upload_part", status=403, code="storage_cap_exceeded", times=100)
    with pytest.raises(StoreError):
        send(store, big)
    b2.state.faults.clear()
    (version,) = [version for version in b2.state.versions.values() if version.action == "start"]

    def end(moment: str, entry: dict[str, Any]) -> bool:
        if entry["op"] == "b2_list_unfinished_large_files" and moment == "done":
            if ended == "cancelled":
                b2.state.versions.pop(version.file_id, None)
            else:
                version.action = "upload"
        return False

    b2.state.watch = end
    stored = send(store, big)
    assert stored.file_id != version.file_id and b2.objects() == {"team/run/big": big.read_bytes()}


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize("code", ["bad_auth_token", "expired_auth_token"])
def test_upload_urls_that_all_became_void_are_thrown_away_at_once(b2: B2Server, big: Path, code: str) -> None:
    store = opened(b2, Retry(tries=2, base_s=0.01, cap_s=0.05))
    info = store._client.api.account_info
    ranges = [(part.offset, part.size) for part in hash_parts(big, big.stat().st_size, 20_000)]
    file_id, _ = store._large._begin("run/big", "team/run/big", ranges)
    for _ in range(20):
        one = store._client.session.get_upload_url(store._client.bucket_id)
        info.put_bucket_upload_url(store._client.bucket_id, one["uploadUrl"], one["authorizationToken"])
        one = store._client.session.get_upload_part_url(file_id)
        info.put_large_file_upload_url(file_id, one["uploadUrl"], one["authorizationToken"])
    b2.state.upload_tokens.clear()  # as after a restart of the hosts that they name
    store.put_bytes("run/small", b"x")
    if code == "expired_auth_token":
        b2.fail("b2_upload_part", status=401, code=code, times=1)
    assert send(store, big).file_id == file_id
    assert b2.objects() == {"team/run/big": big.read_bytes(), "team/run/small": b"x"}


def test_a_refused_upload_url_is_never_a_question_of_the_key(b2: B2Server) -> None:
    b2.fail("b2_upload_file", status=401, code="bad_auth_token", times=100)
    with pytest.raises(StoreError, match="upload URL") as caught:
        opened(b2).put_bytes("run/x", b"x")
    assert caught.value.kind == "transient"


# ---------------------------------------------------------------- what b2sdk does not expect


@pytest.mark.parametrize("status", [404, 502])
def test_a_page_of_a_proxy_says_nothing_of_the_file(b2: B2Server, status: int) -> None:
    store = opened(b2)
    file = store.put_bytes("run/x", b"x" * 100)
    b2.fail("download", status=status, code="nginx", times=2)
    assert store.get_range(file, 0, 100) == b"x" * 100
    b2.fail("b2_list_file_names", status=404, code="nginx", times=1)
    with pytest.raises(StoreError, match="not B2's own") as caught:
        store.list("run/")
    assert caught.value.kind == "transient"


@pytest.mark.parametrize("code", ["auth_token_limit", "source_too_large"])
def test_an_answer_whose_text_b2sdk_does_not_know_is_asked_again(b2: B2Server, big: Path, code: str) -> None:
    store = opened(b2)
    b2.fail("b2_upload_part", status=400, code=code, times=2)
    b2.fail("download", status=400, code=code, times=2)
    stored = send(store, big)
    assert store.get_range(stored, 0, stored.size) == big.read_bytes()


@pytest.mark.parametrize("op", ["b2_list_file_versions", "b2_upload_file"])
def test_a_wait_that_nobody_can_wait_is_a_failed_request(b2: B2Server, op: str) -> None:
    store = opened(b2)
    b2.fail(op, status=429, code="too_many_requests", retry_after=-1, times=1)
    try:
        store.put_bytes("run/x", b"x")
        assert [file.size for file in store.list_versions("run/")] == [1]
    except StoreError as error:
        assert error.kind == "transient"
    assert [file.size for file in store.list_versions("run/")] == [1]
