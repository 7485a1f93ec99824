"""Answers of something between us and the store: the page of a proxy, a balancer or a login says nothing of objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.b2server.http import Handler
from tests.b2server.state import Refusal
from tests.s3server import Proxy
from tests.s3server.proxy import _Handler
from tests.storage.conftest import QUICK, S3_ENVIRON
from tests.storage.parts import hash_parts

PAGE = b"<html><head><title>Sign in</title></head><body><h1>Sign in</h1></body></html>"
"""Well-formed, so that a reader of XML takes it."""
MANY = 1000


@pytest.fixture
def pages(b2: B2Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have B2's place taken by a page: ``pages(op, status)``, or ``pages(op, status, page=b"...")``."""
    plain, sent = Handler._refuse, [PAGE]

    def refuse(self: Handler, refusal: Refusal) -> None:
        if refusal.code != "page":
            plain(self, refusal)
            return
        for _ in self._body():
            pass
        self.send_response(refusal.status)
        self.send_header("Content-Length", str(len(sent[0])))
        self.end_headers()
        self.wfile.write(sent[0])
        self.wfile.flush()

    def fail(op: str, status: int, times: int = 1, page: bytes = PAGE) -> None:
        sent[0] = page
        b2.fail(op, status=status, code="page", times=times)

    monkeypatch.setattr(Handler, "_refuse", refuse)
    return fail


def opened_b2(server: B2Server) -> Store:
    return open_store("b2://the-bucket/team", server.url, server.environ(), streams=4, part_size=20_000, retry=QUICK)


def opened_s3(server: Proxy, place: str) -> Store:
    return open_store(f"s3://{place}", server.url, S3_ENVIRON, streams=4, part_size=1, retry=QUICK)


# ---------------------------------------------------------------- B2


def test_a_page_with_a_200_is_never_an_objects_bytes(b2: B2Server, pages: Callable[..., None]) -> None:
    store = opened_b2(b2)
    file = store.put_bytes("run/latest.json", b"{}")
    pages("download", 200, times=3)
    assert store.get_bytes("run/latest.json", file.file_id, limit=10) == b"{}"
    pages("download", 200, times=3)
    assert store.get_range(file, 0, 2) == b"{}"
    pages("download", 200, times=MANY)
    with pytest.raises(StoreError, match="not B2's own") as caught:
        store.get_bytes("run/latest.json", file.file_id)
    assert caught.value.kind == "transient"


@pytest.mark.parametrize("status", [200, 401, 403, 407])
def test_a_page_is_no_refusal_of_the_key_and_is_not_quoted(
    b2: B2Server, pages: Callable[..., None], status: int
) -> None:
    store = opened_b2(b2)
    file = store.put_bytes("run/x", b"x")
    for ask in (lambda: store.list("run/"), lambda: store.list_versions("run/"), lambda: opened_b2(b2)):
        pages("b2_.*", status, times=MANY)
        with pytest.raises(
            StoreError, match=r"^could not .*: an answer came that is not B2's own \(is there"
        ) as caught:
            ask()
        assert caught.value.kind == "transient" and "<" not in str(caught.value)
        b2.state.faults.clear()
    pages("download|b2_upload_file", status)
    store.put_bytes("run/y", b"y")
    pages("download", status)
    assert store.get_range(file, 0, 1) == b"x"


@pytest.mark.parametrize("page", [b"", b'{"error": "unauthorized"}', b"null"])
def test_a_401_without_a_code_of_b2_is_no_refusal_of_the_key(
    b2: B2Server, pages: Callable[..., None], page: bytes
) -> None:
    store = opened_b2(b2)
    file = store.put_bytes("run/x", b"x")
    asked: dict[str, Callable[[], Any]] = {
        "b2_list_.*": lambda: list(store.list("run/")),
        "b2_authorize_account": lambda: opened_b2(b2),
        "b2_get_upload_url|b2_upload_file": lambda: store.put_bytes("run/y", b"y"),
        "download": lambda: store.get_range(file, 0, 1),
    }
    for op, ask in asked.items():
        pages(op, 401, times=MANY, page=page)
        with pytest.raises(StoreError, match="not B2's own") as caught:
            ask()
        assert caught.value.kind == "transient", op
        b2.state.faults.clear()


# ---------------------------------------------------------------- S3


@pytest.mark.soak
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, PAGE),
        (200, b""),
        (301, PAGE),
        (401, PAGE),
        (403, b""),
        (404, b"default backend"),
        (507, PAGE),
    ],
)
def test_a_page_is_no_answer_of_s3(s3: Proxy, s3_place: Callable[[bool], str], status: int, body: bytes) -> None:
    """As an empty listing it would be a fresh start, as a missing pins.json it would lose a pinned step."""
    place = s3_place(False)
    store = opened_s3(s3, place)
    file = store.put_bytes("run/x", b"x")
    found = [(one.name, one.file_id) for one in store.list("run/")]
    asked: dict[str, Callable[[], Any]] = {
        "ListObjectsV2": lambda: [(one.name, one.file_id) for one in store.list_versions("run/")] == found,
        "GetObject": lambda: store.get_bytes("run/x") == store.get_range(file, 0, 1) == b"x",
        "PutObject": lambda: store.put_bytes("run/y", b"y").size == 1,
        "GetBucketVersioning": lambda: opened_s3(s3, place).list("run/"),
    }
    if status == 200:  # of an error to a HEAD only the status is known
        asked["HeadObject"] = lambda: store.put_bytes("run/z", b"z").size == 1
    for operation, ask in asked.items():
        s3.fail(operation, status=status, body=body, times=2)
        assert ask(), operation
        s3.fail(operation, status=status, body=body, times=MANY)
        with pytest.raises(StoreError, match=rf"a {status} came that is not the service's own \(is there") as caught:
            ask()
        assert caught.value.kind == "transient" and "<" not in str(caught.value)
        s3.faults.clear()


def test_a_service_may_say_without_a_word_that_it_keeps_no_versions(s3: Proxy, s3_place: Callable[[bool], str]) -> None:
    s3.fail("GetBucketVersioning", status=501, body=b"", times=MANY)
    s3.fail("ListObjectVersions", status=501, body=b"", times=MANY)
    store = opened_s3(s3, s3_place(False))
    assert list(store.list("run/")) == []


def test_a_page_is_no_listing_of_versions_and_no_bucket_without_them(
    s3: Proxy, s3_place: Callable[[bool], str]
) -> None:
    place = s3_place(True)
    s3.fail("GetBucketVersioning", status=200, body=PAGE)
    store = opened_s3(s3, place)
    file = store.put_bytes("run/x", b"x")
    assert file.file_id.startswith("v:")
    s3.fail("ListObjectVersions", status=200, body=PAGE)
    assert [one.file_id for one in store.list_versions("run/")] == [file.file_id]


def test_a_page_deletes_nothing_and_is_no_word_that_an_object_is_gone(
    s3: Proxy, s3_place: Callable[[bool], str]
) -> None:
    store = opened_s3(s3, s3_place(False))
    file = store.put_bytes("run/x", b"x")
    s3.fail("DeleteObject", status=404, body=b"default backend - 404")
    store.delete(file)
    assert list(store.list("run/")) == []


@pytest.mark.parametrize(
    ("operation", "root"),
    [
        ("ListObjectVersions", b'<?xml version="1.0"?>\n<ListBucketVersionsResult xmlns="http://s3.amazonaws.com/x"/>'),
        ("ListObjectVersions", b"<ListBucketResult></ListBucketResult>"),  # Google's
        ("ListObjectVersions", b'<ns2:ListVersionsResult xmlns:ns2="http://s3.amazonaws.com/x"/>'),
    ],
)
def test_services_name_the_root_of_an_answer_in_their_own_ways(
    s3: Proxy, s3_place: Callable[[bool], str], operation: str, root: bytes
) -> None:
    store = opened_s3(s3, s3_place(True))
    s3.fail(operation, status=200, body=root)
    assert list(store.list_versions("run/")) == []


def test_an_upload_that_begins_as_rclones_server_says_it_is_taken(
    s3: Proxy, s3_place: Callable[[bool], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, path, size = _Handler._ask, tmp_path / "shard", 6 << 20
    path.write_bytes(bytes(size))

    def ask(self: _Handler, *what: Any) -> tuple[int, list[tuple[str, str]], bytes]:
        status, headers, body = plain(self, *what)
        if b"InitiateMultipartUploadResult" in body:
            body = body.replace(b"InitiateMultipartUploadResult", b"InitiateMultipartUpload")
            headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
        return status, headers, body

    monkeypatch.setattr(_Handler, "_ask", ask)
    store = opened_s3(s3, s3_place(False))
    file = store.put_file("run/shard", path, size, hash_parts(path, size, store.part_size()), lambda _: None)
    assert s3.journal.of("CreateMultipartUpload") and store.get_range(file, size - 1, 1) == bytes(1)
