"""S3 over real HTTP when things go wrong, and where services differ: a real server behind a proxy that makes faults."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.storage import open_store
from supervisor.storage.base import Store, StoredFile, StoreError
from supervisor.storage.s3client import region_of
from tests.s3server import ACCESS_KEY, SECRET_KEY, Proxy, Seaweed
from tests.storage.conftest import QUICK, S3_ENVIRON
from tests.storage.parts import hash_parts

MakePlace = Callable[[bool], str]
PART = 5 << 20


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A file of three parts, the last one short."""
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(2 * PART + 15_123))
    return path


@pytest.fixture
def plain(s3_place: MakePlace) -> str:
    return s3_place(False)


def opened(server: Proxy, bucket: str, environ: dict[str, str] = S3_ENVIRON, streams: int = 4) -> Store:
    return open_store(f"s3://{bucket}/runs", server.url, environ, streams=streams, part_size=1, retry=QUICK)


def send(store: Store, path: Path, name: str = "run/shard") -> StoredFile:
    size = path.stat().st_size
    return store.put_file(name, path, size, hash_parts(path, size, store.part_size()), lambda _: None)


def accepted(server: Proxy) -> list[int]:
    """Numbers of the parts that the server took, ascending."""
    return sorted(e["part"] for e in server.journal.of("UploadPart") if e["status"] == 200)


def give_up(count: int) -> None:
    if count:
        raise StoreError("transient", "given up by the test")


# ---------------------------------------------------------------- faults that pass


@pytest.mark.soak
@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "code": "SlowDown", "times": 4},
        {"status": 429, "code": "TooManyRequests", "times": 2},
        {"status": 500, "times": 2},
        {"flip_sent": True, "times": 2},
    ],
    ids=["slow-down", "429", "500", "a-flipped-byte"],
)
def test_an_upload_survives_throttling_errors_and_flipped_bytes(
    s3: Proxy, plain: str, three: Path, fault: dict[str, object]
) -> None:
    s3.fail("UploadPart", **fault)
    store = opened(s3, plain)
    stored = send(store, three)
    assert accepted(s3) == [1, 2, 3]
    assert store.get_range(stored, 0, stored.size) == three.read_bytes()


@pytest.mark.parametrize("size", [100, 2 << 20, PART + 100], ids=["one request", "one part", "two parts"])
def test_without_versions_it_is_asked_before_each_last_request_whether_the_run_is_still_ours(
    s3: Proxy, plain: str, tmp_path: Path, size: int
) -> None:
    path, store = tmp_path / "shard", opened(s3, plain)
    path.write_bytes(b"a" * size)
    old = store.put_bytes("run/shard", b"the holder's")

    def fenced(file_id: str) -> None:
        raise StoreError("fenced", "another pod holds the run")

    with pytest.raises(StoreError, match="another pod holds the run"):
        store.put_file("run/shard", path, size, hash_parts(path, size, PART), lambda _: None, fenced)
    assert store.get_bytes("run/shard", old.file_id) == b"the holder's"
    looks: list[str] = []
    s3.fail("PutObject", status=503, code="SlowDown", times=2)
    store.put_file("run/shard", path, size, hash_parts(path, size, PART), lambda _: None, looks.append)
    assert looks == [""] * (3 if size == 100 else 1), "before each try of a small file, and before a large one is made"


def test_retry_after_is_honoured(s3: Proxy, plain: str) -> None:
    waited: list[float] = []
    retry = type(QUICK)(tries=3, base_s=0.001, cap_s=0.002, sleep=waited.append)
    store = open_store(f"s3://{plain}", s3.url, S3_ENVIRON, retry=retry)
    s3.fail("PutObject", status=503, code="SlowDown", retry_after=7)
    store.put_bytes("run/x", b"x")
    assert waited == [7.0]


def test_after_an_outage_only_what_is_missing_is_sent(s3: Proxy, plain: str, three: Path) -> None:
    store = opened(s3, plain, streams=1)
    s3.fail("UploadPart", after=2, status=503, code="SlowDown", times=10_000)
    with pytest.raises(
        StoreError, match=r"could not send s3://.*/runs/run/shard: the service asks for fewer"
    ) as caught:
        send(store, three)
    assert caught.value.kind == "transient"
    s3.faults.clear()
    stored = send(opened(s3, plain), three)
    assert accepted(s3) == [1, 2, 3]
    assert store.get_range(stored, 0, stored.size) == three.read_bytes()


SENDER = """
import sys
from pathlib import Path
from supervisor.storage import open_store
from tests.storage.parts import hash_parts
url, endpoint, path = sys.argv[1], sys.argv[2], Path(sys.argv[3])
import os
store = open_store(url, endpoint, os.environ, streams=1, part_size=1)
size = path.stat().st_size
store.put_file("run/shard", path, size, hash_parts(path, size, store.part_size()), lambda _: None)
"""


@pytest.mark.soak
def test_a_sender_that_is_killed_goes_on_where_it_was(s3: Proxy, plain: str, three: Path) -> None:
    held = threading.Event()
    s3.fail("UploadPart", after=2, hold=held, status=500)
    words = [sys.executable, "-c", SENDER, f"s3://{plain}/runs", s3.url, str(three)]
    child = subprocess.Popen(words, env={**os.environ, **S3_ENVIRON})
    deadline = time.monotonic() + 60
    while accepted(s3) != [1, 2] and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.02)
    child.kill()
    child.wait()
    held.set()
    assert accepted(s3) == [1, 2]
    store = opened(s3, plain)
    assert list(store.list("run/")) == [], "an object appears whole or not at all"
    stored = send(store, three)
    assert accepted(s3) == [1, 2, 3]
    assert store.sent_bytes() == 15_123
    assert store.get_range(stored, 0, stored.size) == three.read_bytes()
    assert store.sweep("run/") == 0


def test_a_lost_answer_to_the_last_request_is_success(s3: Proxy, plain: str, three: Path) -> None:
    s3.fail("CompleteMultipartUpload", lose_answer=True)
    store = opened(s3, plain)
    stored = send(store, three)
    assert [file.file_id for file in store.list("run/")] == [stored.file_id]
    assert store.sweep("run/") == 0


def test_an_unfinished_upload_of_other_bytes_does_not_leak_into_the_object(s3: Proxy, plain: str, three: Path) -> None:
    store = opened(s3, plain)
    size = three.stat().st_size
    with pytest.raises(StoreError, match="given up"):
        store.put_file("run/shard", three, size, hash_parts(three, size, PART), give_up)
    three.write_bytes(os.urandom(size))
    stored = send(store, three)
    assert store.get_range(stored, 0, size) == three.read_bytes()


def test_parts_of_other_bytes_that_a_killed_sender_left_are_sent_anew(s3: Proxy, plain: str, three: Path) -> None:
    """A step that was reached anew has files of the same names and sizes, and other bytes in them."""
    s3.fail("UploadPart", after=2, status=503, code="SlowDown", times=10_000)
    with pytest.raises(StoreError, match="asks for fewer"):
        send(opened(s3, plain, streams=1), three)
    s3.faults.clear()
    assert accepted(s3) == [1, 2]
    with three.open("r+b") as file:  # the first part alone
        file.seek(1000)
        file.write(b"another lineage")
    store = opened(s3, plain)
    stored = send(store, three)
    assert store.get_range(stored, 0, stored.size) == three.read_bytes()
    assert accepted(s3) == [1, 1, 2, 3], "what is the same is not sent again"


@pytest.mark.parametrize(
    "fault", [{"status": 400, "code": "InvalidPart"}, pytest.param({"status": 500}, marks=pytest.mark.soak)]
)
def test_a_last_request_that_failed_is_no_success_because_an_older_object_has_the_name(
    s3: Proxy, plain: str, three: Path, fault: dict[str, Any]
) -> None:
    store = opened(s3, plain)
    old = three.read_bytes()
    send(store, three)
    three.write_bytes(os.urandom(len(old)))
    s3.fail("CompleteMultipartUpload", times=10_000, **fault)
    with pytest.raises(StoreError, match="could not finish the upload"):
        send(store, three)
    assert store.get_bytes("run/shard") == old
    s3.faults.clear()
    stored = send(opened(s3, plain), three)
    assert store.get_range(stored, 0, stored.size) == three.read_bytes()


def test_a_small_object_with_a_flipped_byte_is_read_again_and_in_the_end_damaged(s3: Proxy, plain: str) -> None:
    store = opened(s3, plain)
    store.put_bytes("run/latest.json", b"{}")
    s3.fail("GetObject", flip_answer=True, times=2)
    assert store.get_bytes("run/latest.json") == b"{}"
    s3.fail("GetObject", flip_answer=True, times=100)
    with pytest.raises(StoreError, match="came back 5 times") as caught:
        store.get_bytes("run/latest.json")
    assert caught.value.kind == "damaged"


def test_a_download_that_breaks_off_goes_on_at_that_byte(s3: Proxy, plain: str) -> None:
    store = opened(s3, plain)
    data = os.urandom(3_000_000)
    stored = store.put_bytes("run/x", data)
    s3.fail("GetObject", cut_answer=1 << 20)
    assert store.get_range(stored, 1000, 2_500_000) == data[1000:2_501_000]
    first, second = (e["headers"]["range"] for e in s3.journal.of("GetObject"))
    assert first == "bytes=1000-2500999"
    assert int(second.removeprefix("bytes=").partition("-")[0]) > 1000


# ---------------------------------------------------------------- services that know less


@pytest.mark.soak
def test_a_service_that_refuses_sha1_gets_md5(s3: Proxy, plain: str, three: Path) -> None:
    """B2: 400 InvalidArgument, "Unsupported header 'x-amz-checksum-algorithm' received for this API call"."""
    refuses = {"status": 400, "code": "InvalidArgument", "message": "Unsupported header", "times": 99}
    s3.fail("CreateMultipartUpload", header="x-amz-checksum-algorithm", **refuses)
    s3.fail("UploadPart|PutObject", header="x-amz-checksum-sha1", **refuses)
    s3.fail("UploadPart", flip_sent=True, times=1)
    store = opened(s3, plain)
    stored = send(store, three)
    assert store.get_range(stored, 0, stored.size) == three.read_bytes()
    assert all("content-md5" in e["headers"] for e in s3.journal.of("UploadPart"))
    assert accepted(s3) == [1, 2, 3]
    with three.open("r+b") as file:
        file.seek(PART + 5)
        file.write(b"other")
    with pytest.raises(StoreError, match="shard changed after it was hashed") as caught:
        store.put_file("run/y", three, stored.size, _hashes_before(three, PART + 5), lambda _: None)
    assert caught.value.kind == "changed"


def _hashes_before(path: Path, offset: int) -> tuple[object, ...]:  # of the file as it was before the bytes at offset
    parts = list(hash_parts(path, path.stat().st_size, PART))
    number = offset // PART
    parts[number] = type(parts[number])(parts[number].offset, parts[number].size, "0" * 40)
    return tuple(parts)


def test_a_service_that_ignores_all_hashes_is_found_out_by_its_etag(s3: Proxy, plain: str, three: Path) -> None:
    ignored = {"without": ("x-amz-checksum-sha1", "content-md5"), "hidden": ("x-amz-checksum-sha1",)}
    s3.fail("CreateMultipartUpload", without=("x-amz-checksum-algorithm",), times=9)
    s3.fail("UploadPart|PutObject", flip_sent=True, times=2, **ignored)
    s3.fail("UploadPart|PutObject", times=99, **ignored)
    store = opened(s3, plain)
    small = store.put_bytes("run/x", b"small")
    assert store.get_range(small, 0, 5) == b"small"
    stored = send(store, three)
    assert store.get_range(stored, 0, stored.size) == three.read_bytes()


def test_a_service_that_does_not_know_of_versions_has_none(s3: Proxy, plain: str) -> None:
    s3.fail("GetBucketVersioning|ListObjectVersions", status=501, code="NotImplemented", times=99)
    store = opened(s3, plain)
    stored = store.put_bytes("run/x", b"x")
    assert stored.file_id.startswith("e:")
    assert [f.file_id for f in store.list("run/")] == [f.file_id for f in store.list_versions("run/x")]


def test_a_narrow_key_that_may_not_ask_still_finds_the_versions(s3: Proxy, s3_place: MakePlace) -> None:
    s3.fail("GetBucketVersioning", status=403, code="AccessDenied", times=9)
    store = opened(s3, s3_place(True))
    stored = store.put_bytes("run/x", b"x")
    assert stored.file_id.startswith("v:")
    assert [f.file_id for f in store.list("run/")] == [stored.file_id]


@pytest.mark.soak
def test_unfinished_uploads_of_one_name_are_swept_over_the_end_of_a_page(s3: Proxy, plain: str, three: Path) -> None:
    """Three senders of the same file were killed. What is left of them is billed and seen in no listing of objects."""
    store = opened(s3, plain)
    size = three.stat().st_size
    for name in ("run/a", "run/a", "run/a", "run/b"):
        with pytest.raises(StoreError, match="given up"):
            store.put_file(name, three, size, hash_parts(three, size, PART), give_up)
    s3.fail("ListMultipartUploads", page=2, times=99)
    assert store.sweep("run/") == 4
    s3.faults.clear()
    assert store.sweep("run/") == 0


def test_unfinished_uploads_are_swept_where_the_service_takes_a_prefix_for_a_name(
    s3: Proxy, plain: str, three: Path
) -> None:
    """MinIO lists none below a prefix, and all of them without one."""
    store = opened(s3, plain)
    size = three.stat().st_size
    for name in ("run/step_1/shard", "run/step_2/shard"):
        with pytest.raises(StoreError, match="given up"):
            store.put_file(name, three, size, hash_parts(three, size, PART), give_up)
    s3.fail("ListMultipartUploads", status=200, body=b"<ListMultipartUploadsResult/>")
    assert store.sweep("run/step_1/") == 1
    assert store.sweep("run/") == 1


# ---------------------------------------------------------------- exactly this object


def test_without_versions_a_replaced_object_is_missing_and_never_other_bytes(s3: Proxy, plain: str) -> None:
    store = opened(s3, plain)
    old = store.put_bytes("run/x", b"old bytes")
    new = store.put_bytes("run/x", b"new bytes")
    s3.fail("GetObject", without=("if-match",), times=1)  # a service that ignores the condition
    for _ in range(2):
        with pytest.raises(StoreError, match="no longer the version") as caught:
            store.get_range(old, 0, 9)
        assert caught.value.kind == "missing"
    store.delete(old)
    assert store.get_range(new, 0, 9) == b"new bytes"


def test_an_object_that_another_replaces_before_it_is_looked_at_is_no_success(
    s3: Proxy, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size and time would be the other's, and a manifest would name those as ours."""
    store, other = opened(s3, plain), opened(s3, plain)
    call = store._client.call  # type: ignore[attr-defined]

    def late(tried: str, operation: str, **asked: Any) -> Any:
        if operation == "head_object":
            other.put_bytes("run/x", b"theirs")
        return call(tried, operation, **asked)

    monkeypatch.setattr(store._client, "call", late)  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="was replaced just after it was sent"):
        store.put_bytes("run/x", b"ours")


def test_without_versions_an_old_id_does_not_delete_the_same_bytes_sent_later(s3: Proxy, plain: str) -> None:
    store = opened(s3, plain)
    old = new = store.put_bytes("run/x", b"same")
    deadline = time.monotonic() + 10
    while new.file_id == old.file_id and time.monotonic() < deadline:  # services tell whole seconds
        new = store.put_bytes("run/x", b"same")
    store.delete(old)
    assert store.get_range(new, 0, 4) == b"same"
    assert [file.file_id for file in store.list("run/")] == [new.file_id]


@pytest.mark.parametrize("status", [501, 400])
def test_a_service_without_conditional_deletes_deletes_all_the_same(s3: Proxy, plain: str, status: int) -> None:
    store = opened(s3, plain)
    stored = store.put_bytes("run/x", b"x")
    s3.fail("DeleteObject", header="if-match", status=status, code="NotImplemented", times=9)
    store.delete(stored)
    assert list(store.list("run/")) == []


def test_with_versions_the_old_one_stays_readable_and_a_delete_takes_one(s3: Proxy, s3_place: MakePlace) -> None:
    store = opened(s3, s3_place(True))
    old, new = store.put_bytes("run/x", b"old"), store.put_bytes("run/x", b"newer")
    assert store.get_range(old, 0, 3) == b"old"
    assert [f.file_id for f in store.list_versions("run/x")] == [new.file_id, old.file_id]
    store.delete(new)
    assert store.get_bytes("run/x") == b"old"
    with pytest.raises(StoreError) as caught:
        store.get_range(new, 0, 5)
    assert caught.value.kind == "missing"


def test_a_listing_of_several_pages_leaves_no_name_out(s3: Proxy, plain: str) -> None:
    store = opened(s3, plain)
    names = [f"run/{number}" for number in range(5)]
    for name in names:
        store.put_bytes(name, b"x")
    s3.fail("ListObjectsV2", page=2, times=99)
    assert [file.name for file in store.list("run/")] == names
    assert len(s3.journal.of("ListObjectsV2")) >= 3


def test_a_page_that_ends_among_the_versions_of_a_name_hides_none_of_them(s3: Proxy, s3_place: MakePlace) -> None:
    """Of two claims the oldest version counts: one that a listing leaves out would let a second pod in."""
    store = opened(s3, s3_place(True))
    sent = [store.put_bytes("run/gen_00001.json", bytes(str(number), "ascii")).file_id for number in range(5)]
    other = store.put_bytes("run/gen_00002.json", b"other").file_id
    s3.fail("ListObjectVersions", page=2, times=99)
    found = store.list_versions("run/")
    assert [file.file_id for file in found] == [*reversed(sent), other]
    assert len(s3.journal.of("ListObjectVersions")) >= 3


def test_ids_from_before_the_bucket_kept_versions_stay_good(s3: Proxy, seaweed: Seaweed) -> None:
    admin = seaweed.admin()
    admin.create_bucket(Bucket="grown-bucket")
    before = open_store("s3://grown-bucket", s3.url, S3_ENVIRON, retry=QUICK).put_bytes("run/x", b"before")
    admin.put_bucket_versioning(Bucket="grown-bucket", VersioningConfiguration={"Status": "Enabled"})
    store = open_store("s3://grown-bucket", s3.url, S3_ENVIRON, retry=QUICK)
    after = store.put_bytes("run/x", b"after")
    assert store.get_range(before, 0, 6) == b"before"
    assert {file.file_id for file in store.list_versions("run/x")} == {before.file_id, after.file_id}
    store.delete(before)
    assert [file.file_id for file in store.list_versions("run/x")] == [after.file_id]


def test_an_id_of_another_kind_of_store_is_missing(s3: Proxy, plain: str) -> None:
    store = opened(s3, plain)
    store.put_bytes("run/x", b"x")
    with pytest.raises(StoreError, match="another kind of store wrote it") as caught:
        store.get_bytes("run/x", "4_z27c88f1d182b150646ff0b16_f1004ba650fe24e6b")
    assert caught.value.kind == "missing"


# ---------------------------------------------------------------- claims


@pytest.mark.parametrize(
    "lacks",
    [{"without": ("if-none-match",)}, {"status": 501, "code": "NotImplemented"}],
    ids=["ignores-the-condition", "refuses-it"],
)
def test_where_conditions_do_not_work_a_claim_says_so_and_leaves_nothing(
    s3: Proxy, plain: str, lacks: dict[str, object]
) -> None:
    s3.fail("PutObject", header="if-none-match", times=99, **lacks)
    store = opened(s3, plain)
    assert store.claim("run/writers/gen_00001.json", b"me") is None
    assert list(store.list("run/")) == []


def test_a_conflict_of_two_claims_at_a_time_is_tried_again(s3: Proxy, plain: str) -> None:
    store = opened(s3, plain)
    assert store.claim("run/writers/gen_00001.json", b"me") is True
    s3.fail("PutObject", header="if-none-match", status=409, code="ConditionalRequestConflict")
    assert store.claim("run/writers/gen_00001.json", b"me") is False
    assert store.claim("run/writers/gen_00002.json", b"me") is True


# ---------------------------------------------------------------- faults that a person has to mend


def test_a_wrong_key_is_one_sentence_that_never_quotes_the_key(s3: Proxy, plain: str) -> None:
    with pytest.raises(StoreError) as caught:
        opened(s3, plain, {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": "wrong-secret-wrong"})
    assert caught.value.kind == "permanent"
    sentence = str(caught.value)
    tried = "could not open the bucket plain-bucket"
    assert sentence.startswith(f"{tried}: the service refuses the access key ...0001 (SignatureDoesNotMatch")
    assert "AWS_SECRET_ACCESS_KEY" in sentence and "aws_secret_access_key" in sentence
    assert "wrong-secret" not in sentence and ACCESS_KEY not in sentence
    with pytest.raises(StoreError, match=r"refuses the access key \.\.\.body \(InvalidAccessKeyId"):
        opened(s3, plain, {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "x"})


def test_a_missing_key_says_which_variable_and_which_credential(s3: Proxy, tmp_path: Path, plain: str) -> None:
    with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID is not set, and there is no systemd credential aws_acc"):
        opened(s3, plain, {})
    (tmp_path / "aws_access_key_id").write_text(f"{ACCESS_KEY}\n")
    (tmp_path / "aws_secret_access_key").write_text(f"{SECRET_KEY}\n")
    store = opened(s3, plain, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert store.put_bytes("run/x", b"x").size == 1


def test_a_session_token_is_sent(s3: Proxy, plain: str) -> None:
    s3.fail("GetBucketVersioning", header="x-amz-security-token", status=400, code="ExpiredToken")
    with pytest.raises(StoreError, match=r"the session token of the access key \.\.\.0001 has expired") as caught:
        opened(s3, plain, {**S3_ENVIRON, "AWS_SESSION_TOKEN": "temporary"})
    assert caught.value.kind == "permanent"


def test_a_missing_bucket_is_named(s3: Proxy) -> None:
    with pytest.raises(StoreError, match="the bucket no-such-bucket does not exist there") as caught:
        opened(s3, "no-such-bucket")
    assert caught.value.kind == "permanent"


@pytest.mark.parametrize(
    ("status", "code", "message", "kind", "sentence"),
    [
        (403, "RequestTimeTooSkewed", "too far", "permanent", "this machine's clock is wrong"),
        (403, "AccessDenied", "Access Denied", "permanent", r"the access key \.\.\.0001 may not do that"),
        (400, "AuthorizationHeaderMalformed", "expecting 'eu-west-1'", "permanent", r"expecting 'eu-west-1'.*region"),
        (403, "QuotaExceeded", "no", "quota", r"the store is full .*store\.keep_last"),
        (403, "AccessDenied", "Cannot upload files, storage cap exceeded", "quota", "the store is full"),
        (507, "XMinioStorageFull", "full", "quota", "the store is full"),
    ],
)
def test_what_a_person_has_to_mend_is_said_at_once(  # noqa: PLR0917
    s3: Proxy, plain: str, status: int, code: str, message: str, kind: str, sentence: str
) -> None:
    store = opened(s3, plain)
    s3.fail("PutObject", status=status, code=code, message=message, times=99)
    with pytest.raises(StoreError, match=sentence) as caught:
        store.put_bytes("run/x", b"x")
    assert caught.value.kind == kind
    assert len(s3.journal.of("PutObject")) == 1


def test_an_unreachable_service_is_transient_and_named() -> None:
    with Proxy(1, ACCESS_KEY, SECRET_KEY) as gone:
        url = gone.url
    with pytest.raises(
        StoreError, match=r"could not open the bucket b-b: no connection to 127\.0\.0\.1:\d+$"
    ) as caught:
        open_store("s3://b-b", url, S3_ENVIRON, retry=QUICK)
    assert caught.value.kind == "transient"


def test_without_the_library_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("botocore", "supervisor.storage.s3"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(StoreError, match=r"needs botocore.*pip install 'rl-supervisor\[s3\]'") as caught:
        open_store("s3://bucket", None, S3_ENVIRON)
    assert caught.value.kind == "permanent"


@pytest.mark.parametrize(
    ("endpoint", "region", "environ", "expected"),
    [
        (None, None, None, "us-east-1"),
        (None, None, "eu-north-1", "eu-north-1"),
        (None, "eu-west-1", "eu-north-1", "eu-west-1"),
        ("https://s3.us-west-004.backblazeb2.com", None, None, "us-west-004"),
        ("https://s3.dualstack.eu-central-1.amazonaws.com", None, None, "eu-central-1"),
        ("https://0123456789abcdef.r2.cloudflarestorage.com", None, None, "auto"),
        ("http://127.0.0.1:9000", None, None, "us-east-1"),
        ("https://s3.example.com", None, None, "us-east-1"),
    ],
)
def test_the_region_is_what_is_set_or_what_the_endpoint_says(
    endpoint: str | None, region: str | None, environ: str | None, expected: str
) -> None:
    assert region_of(endpoint, region, environ) == expected


@pytest.mark.parametrize("url", ["s3://", "s3://bucket/../x", "s3://bucket/x?y=1"])
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=r"cannot be used") as caught:
        open_store(url, None, S3_ENVIRON)
    assert caught.value.kind == "permanent"
