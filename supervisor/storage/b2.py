"""Backblaze B2 as a store: b2sdk for auth, listing and single requests; parts, patience and verification are ours.

b2sdk's own transfers are not used (b2sdk 2.13.1): uploads are retried without any pause, downloads of large files are
not verified, a full disk hangs them, and a lost answer to the last request fails a file that exists. Every part that
is sent carries its SHA-1, which B2 checks on arrival.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from supervisor.storage import hashing
from supervisor.storage.b2_composing import B2Composer
from supervisor.storage.b2_large import CONTENT_TYPE, LargeFiles, hasher_of
from supervisor.storage.b2client import B2Client, plain_sha1, retry_when_expired
from supervisor.storage.b2errors import NOT_ITS_OWN
from supervisor.storage.b2http import Download
from supervisor.storage.backends import keys_of
from supervisor.storage.base import (
    Composer,
    Finishing,
    Part,
    Progress,
    StoredFile,
    StoreError,
    known_part,
    unheard,
)
from supervisor.storage.bucket import Bucket
from supervisor.storage.common import Body, RemoteStore
from supervisor.storage.keys import MAKE_A_KEY
from supervisor.storage.opening import Opening
from supervisor.storage.source import SourceRange

LARGEST_REQUEST = 5_000_000_000  # bytes, one part or one small file


def open_at(asked: Opening) -> B2Store:
    """b2://bucket[/prefix]."""
    bucket, prefix = asked.read_bucket()
    key_id, key = (asked.read_key(name, MAKE_A_KEY) for name in keys_of(asked.url))
    client = B2Client(
        bucket=bucket,
        prefix=prefix,
        key_id=key_id,
        key=key,
        realm=asked.service,
        streams=asked.streams,
        retry=asked.retry,
        limit_bytes_per_s=asked.limit_mbit * 1e6 / 8 if asked.limit_mbit else None,
    )
    return B2Store(client=client, streams=asked.streams, part_size=asked.part_size)


class B2Store(RemoteStore):
    """The objects of one bucket below the client's prefix."""

    def __init__(self, *, client: B2Client, streams: int, part_size: int | None) -> None:
        part_size = min(max(part_size or client.recommended_part_bytes, client.least_part_bytes), LARGEST_REQUEST)
        super().__init__(client.url, streams, part_size, client.retry)
        self._client = client
        self._large = LargeFiles(client, self._pool, self._count_sent)
        self._composer = B2Composer(client, self._large, self)

    @property
    def client(self) -> B2Client:
        """The signed-in client, for requests about the bucket and its keys."""
        return self._client

    # ------------------------------------------------------------ listing

    def list(self, prefix: str) -> Sequence[StoredFile]:
        full = self._client.reach(prefix, "listFiles", "list", folder=True)
        found: list[StoredFile] = []
        start: str | None = None
        while True:
            with self._client.explain_errors(f"list {self.url}/{prefix}"):
                page = self._client.session.list_file_names(
                    self._client.bucket_id, start_file_name=start, max_file_count=1000, prefix=full
                )
            found += [self._client.file_of_entry(entry) for entry in page["files"] if entry["action"] == "upload"]
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
            with self._client.explain_errors(f"list the versions of {self.url}/{prefix}"):
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
                    yield self._client.file_of_entry({**entry, "contentLength": 0}), "marker"
                elif entry["action"] == "upload":
                    yield self._client.file_of_entry(entry), "hidden" if entry["fileName"] in hidden else "seen"
            name, file_id = page["nextFileName"], page["nextFileId"]
            if name is None:
                return

    def version(self, name: str, file_id: str) -> StoredFile | None:
        full = self._client.reach(name, "readFiles", "read")
        try:
            with self._client.explain_errors(f"look at {self.url}/{name}"):
                entry = self._client.session.get_file_info_by_id(file_id)
        except StoreError as error:
            if error.kind != "missing":
                raise
            return None
        return self._client.file_of_entry(entry) if entry["action"] == "upload" and entry["fileName"] == full else None

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
            stream.report_confirmed()
        return stored

    def _upload(self, name: str, full: str, stream: Any, size: int, sha1: str) -> StoredFile:
        """Send a body in one request. Of a ``SourceRange`` that is not empty the hash may be found on the way."""

        def attempt() -> StoredFile:
            with self._client.explain_send_errors(name, stream):
                body = stream if size else b""  # requests would send an empty stream in chunks, which B2 refuses
                answer = self._client.session.upload_file(
                    self._client.bucket_id, full, size, CONTENT_TYPE, sha1, {}, body
                )
            return self._client.file_of_entry(answer)

        stored = self._client.retry.call(attempt)
        if stored.sha1 != (sha1 or stream.sha1):
            raise StoreError("transient", f"{self.url} confirmed another SHA-1 for {name} than was sent")
        self._count_sent(size)
        return stored

    def composer(self) -> Composer | None:
        return self._composer

    # ------------------------------------------------------------ fetching

    @contextlib.contextmanager
    def _open_body(self, name: str, file_id: str | None, span: tuple[int, int] | None = None) -> Iterator[Body]:
        full = self._client.reach(name, "readFiles", "read")
        if file_id is None:
            url = self._client.api.get_download_url_for_file_name(self._client.bucket, full)
        else:
            url = self._client.api.get_download_url_for_fileid(file_id)
        with self._client.explain_errors(f"read {self.url}/{name}"):
            answer: Download = self._client.session.download_file_from_url(url, range_=span)
        with answer:
            head = answer.headers
            if "X-Bz-File-Id" not in head:  # the page of a proxy would be taken for the object's bytes
                raise StoreError("transient", f"could not read {self.url}/{name}: {NOT_ITS_OWN}")
            content_range = head.get("Content-Range") or "" if answer.status_code == 206 else None
            size = int(head.get("Content-Length", 0))
            yield Body(size, content_range, plain_sha1(head.get("X-Bz-Content-Sha1")), self._pieces(answer, name))

    def _pieces(self, response: Download, name: str) -> Iterator[memoryview]:
        """The body; only the network's errors are translated here, not those of the pieces' reader.

        A piece is good only until the next one is asked for.
        """
        pieces = response.blocks()
        while True:
            with self._client.explain_errors(f"read {self.url}/{name}"):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    # ------------------------------------------------------------ deleting

    def delete(self, file: StoredFile) -> None:
        full = self._client.reach(file.name, "deleteFiles", "delete")
        try:
            with self._client.explain_errors(f"delete {self.url}/{file.name}"):
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
            with self._client.explain_errors(f"ask B2 for the rules of the bucket {self._client.bucket}"):
                found = retry_when_expired(self._client.retry, self._client.api.list_buckets)(
                    bucket_name=self._client.bucket
                )
            rules = [dict(rule) for one in found for rule in one.lifecycle_rules or ()]
        return Bucket(self._client.key_id[-4:], self._client.capabilities, rules)

    def full_name(self, name: str) -> str:
        """A name as it is in the bucket."""
        return self._client.prefix + name
