"""Backblaze B2 as a store: b2sdk for auth, listing and single requests; parts, patience and verification are ours.

b2sdk's own transfers are not used (b2sdk 2.13.1): uploads are retried without any pause, downloads of large files are
not verified, a full disk hangs them, and a lost answer to the last request fails a file that exists. Every part that
is sent carries its SHA-1, which B2 checks on arrival.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from supervisor.storage import hashing
from supervisor.storage.b2_composing import B2Composer
from supervisor.storage.b2_large import CONTENT_TYPE, LargeFiles, hasher_of
from supervisor.storage.b2client import B2Client, plain_sha1, renewing
from supervisor.storage.b2http import Download
from supervisor.storage.base import (
    Composer,
    Finishing,
    Part,
    Progress,
    Sink,
    StoredFile,
    StoreError,
    known_part,
    unheard,
)
from supervisor.storage.bucket import Bucket
from supervisor.storage.source import SourceRange

LARGEST_REQUEST = 5_000_000_000  # bytes, one part or one small file
REFETCHES = 5


class B2Store:
    """The objects of one bucket below the client's prefix."""

    def __init__(self, *, client: B2Client, streams: int, part_size: int | None) -> None:
        self.url = client.url
        self.streams = streams
        self._client = client
        self._part_size = min(max(part_size or client.recommended_part_bytes, client.least_part_bytes), LARGEST_REQUEST)
        self._sent = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=streams, thread_name_prefix="b2")
        self._large = LargeFiles(client, self._pool, self._count)
        self._composer = B2Composer(client, self._large, self)

    def sent_bytes(self) -> int:
        return self._sent

    def part_size(self) -> int:
        return self._part_size

    # ------------------------------------------------------------ listing

    def list(self, prefix: str) -> Sequence[StoredFile]:
        full = self._client.reach(prefix, "listFiles", "list", folder=True)
        found: list[StoredFile] = []
        start: str | None = None
        while True:
            with self._client.explained(f"list {self.url}/{prefix}"):
                page = self._client.session.list_file_names(
                    self._client.bucket_id, start_file_name=start, max_file_count=1000, prefix=full
                )
            found += [self._client.stored(entry) for entry in page["files"] if entry["action"] == "upload"]
            start = page["nextFileName"]
            if start is None:
                return found

    def list_versions(self, prefix: str) -> Sequence[StoredFile]:
        return [file for file, kind in self._all_versions(prefix) if kind == "seen"]

    def list_hidden(self, prefix: str) -> tuple[Sequence[StoredFile], Sequence[StoredFile]]:
        found = list(self._all_versions(prefix))
        return [file for file, kind in found if kind == "hidden"], [file for file, kind in found if kind == "marker"]

    def _all_versions(self, prefix: str) -> Iterator[tuple[StoredFile, Literal["seen", "hidden", "marker"]]]:
        full = self._client.reach(prefix, "listFiles", "list", folder=True)
        hidden: set[str] = set()
        name: str | None = None
        file_id: str | None = None
        while True:
            with self._client.explained(f"list the versions of {self.url}/{prefix}"):
                page = self._client.session.list_file_versions(
                    self._client.bucket_id,
                    start_file_name=name,
                    start_file_id=file_id,
                    max_file_count=1000,
                    prefix=full,
                )
            for entry in page["files"]:  # newest first: what is older than a hide marker was deleted
                if entry["action"] == "hide":
                    hidden.add(entry["fileName"])
                    yield self._client.stored({**entry, "contentLength": 0}), "marker"
                elif entry["action"] == "upload":
                    yield self._client.stored(entry), "hidden" if entry["fileName"] in hidden else "seen"
            name, file_id = page["nextFileName"], page["nextFileId"]
            if name is None:
                return

    def version(self, name: str, file_id: str) -> StoredFile | None:
        full = self._client.reach(name, "readFiles", "read")
        try:
            with self._client.explained(f"look at {self.url}/{name}"):
                entry = self._client.session.get_file_info_by_id(file_id)
        except StoreError as error:
            if error.kind != "missing":
                raise
            return None
        return self._client.stored(entry) if entry["action"] == "upload" and entry["fileName"] == full else None

    def claim(self, name: str, data: bytes) -> bool | None:
        """B2's native interface has no conditional write, and its S3 face refuses one (NotImplemented)."""
        return None

    # ------------------------------------------------------------ sending

    def put_file(  # noqa: PLR0917
        self,
        name: str,
        path: Path,
        size: int,
        parts: Sequence[Part],
        progress: Progress,
        finishing: Finishing = unheard,
    ) -> StoredFile:
        full = self._client.reach(name, "writeFiles", "write")
        if len(parts) <= 1:
            stored = self._pool.submit(self._send_small, name, full, path, parts, progress).result()
        else:
            stored = self._large.send(name, full, path, parts, progress, finishing)
        if stored.size != size:
            raise StoreError("transient", f"{self.url} holds {stored.size} bytes of {name} after {size} were sent")
        return stored

    def put_bytes(self, name: str, data: bytes) -> StoredFile:
        full = self._client.reach(name, "writeFiles", "write")
        return self._upload(name, full, io.BytesIO(data), len(data), hashing.sha1(data))

    def _send_small(self, name: str, full: str, path: Path, parts: Sequence[Part], progress: Progress) -> StoredFile:
        part = known_part(parts, 0) if parts else Part(0, 0, hashing.EMPTY_SHA1)
        with SourceRange(path, part, hasher_of(parts, 0), progress) as stream:
            stored = self._upload(name, full, stream, part.size, "" if part.size else hashing.EMPTY_SHA1)
            stream.arrived()
        return stored

    def _upload(self, name: str, full: str, stream: Any, size: int, sha1: str) -> StoredFile:
        """Send a body in one request. Of a ``SourceRange`` that is not empty the hash may be found on the way."""

        def attempt() -> StoredFile:
            with self._client.sending(name, stream):
                body = stream if size else b""  # requests would send an empty stream in chunks, which B2 refuses
                answer = self._client.session.upload_file(
                    self._client.bucket_id, full, size, CONTENT_TYPE, sha1, {}, body
                )
            return self._client.stored(answer)

        stored = self._client.retry.call(attempt)
        if stored.sha1 != (sha1 or stream.sha1):
            raise StoreError("transient", f"{self.url} confirmed another SHA-1 for {name} than was sent")
        self._count(size)
        return stored

    def composer(self) -> Composer | None:
        return self._composer

    # ------------------------------------------------------------ fetching

    def get_bytes(self, name: str, file_id: str | None = None, limit: int = 16 << 20) -> bytes:
        full = self._client.reach(name, "readFiles", "read")
        if file_id is None:
            url = self._client.api.get_download_url_for_file_name(self._client.bucket, full)
        else:
            url = self._client.api.get_download_url_for_fileid(file_id)

        def attempt() -> tuple[bytes, str]:
            pieces: list[bytes] = []
            with self._response(url, None, name) as response:
                if int(response.headers.get("Content-Length", 0)) > limit:
                    raise StoreError("damaged", f"{self.url}/{name} has more than the {limit} bytes it may have")
                for piece in self._pieces(response, name):
                    pieces.append(bytes(piece))
                    if sum(map(len, pieces)) > limit:
                        raise StoreError("damaged", f"{self.url}/{name} has more than the {limit} bytes it may have")
            return b"".join(pieces), plain_sha1(response.headers.get("X-Bz-Content-Sha1")) or ""

        for number in range(1, REFETCHES + 1):
            data, sha1 = self._client.retry.call(attempt)
            if not sha1 or hashing.sha1(data) == sha1:
                return data
            self._client.retry.sleep(self._client.retry.pause(number))
        raise StoreError("damaged", f"{self.url}/{name} came back {REFETCHES} times with bytes that its SHA-1 denies")

    def get_range(self, file: StoredFile, offset: int, size: int) -> bytes:
        pieces: list[bytes] = []
        self.read_range(file, offset, size, lambda piece: pieces.append(bytes(piece)))
        return b"".join(pieces)

    def read_range(self, file: StoredFile, offset: int, size: int, sink: Sink) -> None:
        self._client.reach(file.name, "readFiles", "read")
        url = self._client.api.get_download_url_for_fileid(file.file_id)
        got = 0

        def attempt() -> None:
            nonlocal got
            if got == size:
                return
            with self._response(url, (offset + got, offset + size - 1), file.name) as response:
                if response.status_code != 206 and (offset + got > 0 or size != file.size):
                    raise StoreError("transient", f"{self.url}/{file.name}: the server answered without a range")
                there = _whole_size(response.headers.get("Content-Range"))
                if there is not None and there < offset + size:
                    raise StoreError(
                        "damaged", f"{self.url}/{file.name} has {there} bytes, and {offset + size} were expected"
                    )
                for piece in self._pieces(response, file.name):
                    if len(piece) > size - got:
                        raise StoreError("transient", f"{self.url}/{file.name}: more bytes came than were asked for")
                    try:
                        sink(piece)
                    except StoreError as error:
                        raise _SinkError(error) from error
                    got += len(piece)
            if got < size:
                raise StoreError("transient", f"{self.url}/{file.name} broke off after {got} of {size} bytes")

        try:
            self._client.retry.call(attempt)
        except _SinkError as failed:
            raise failed.error from None

    @contextlib.contextmanager
    def _response(self, url: str, range_: tuple[int, int] | None, name: str) -> Iterator[Download]:
        with self._client.explained(f"read {self.url}/{name}"):
            answer = self._client.session.download_file_from_url(url, range_=range_)
        with answer:
            yield answer

    def _pieces(self, response: Download, name: str) -> Iterator[memoryview]:
        """The body; only the network's errors are translated here, not those of the pieces' reader.

        A piece is good only until the next one is asked for.
        """
        pieces = response.blocks()
        while True:
            with self._client.explained(f"read {self.url}/{name}"):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    # ------------------------------------------------------------ deleting

    def delete(self, file: StoredFile) -> None:
        full = self._client.reach(file.name, "deleteFiles", "delete")
        try:
            with self._client.explained(f"delete {self.url}/{file.name}"):
                self._client.session.delete_file_version(file.file_id, full)
        except StoreError as error:
            if error.kind != "missing":
                raise

    def sweep(
        self, prefix: str, spare: Callable[[str], bool] = lambda name: False, fence: Callable[[], None] = lambda: None
    ) -> int:
        full = self._client.reach(prefix, "writeFiles", "clean", folder=True)
        return self._large.cancel_below(prefix, full, spare, fence)

    # ------------------------------------------------------------ what a person is told before a run

    def bucket(self) -> Bucket:
        """What the key may, and what the bucket does by itself (unknown to a key without listBuckets)."""
        rules = None
        if "listBuckets" in self._client.capabilities:
            with self._client.explained(f"ask B2 for the rules of the bucket {self._client.bucket}"):
                found = renewing(self._client.retry, self._client.api.list_buckets)(bucket_name=self._client.bucket)
            rules = [dict(rule) for one in found for rule in one.lifecycle_rules or ()]
        return Bucket(self._client.key_id[-4:], self._client.capabilities, rules)

    def full_name(self, name: str) -> str:
        """A name as it is in the bucket."""
        return self._client.prefix + name

    def _count(self, size: int) -> None:
        with self._lock:
            self._sent += size


class _SinkError(Exception):
    """The reader of the pieces gave up: nothing that asking the store again could cure."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error


def _whole_size(content_range: str | None) -> int | None:
    """Bytes of the whole object, as the answer to a range tells them: "bytes 0-99/1234"."""
    total = (content_range or "").rpartition("/")[2]
    return int(total) if total.isdecimal() else None
