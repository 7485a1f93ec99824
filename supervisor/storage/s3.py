"""Any S3-compatible service as a store: Amazon, Cloudflare R2, MinIO, SeaweedFS, B2's S3 side.

An object's identity is its version where the bucket keeps versions. Elsewhere it is the ETag (which stands for the
bytes) and the time of the upload, and reading asks for that ETag: another object under the same name is "missing".
Which of the optional operations a service has (versions, SHA-1 of parts, conditional writes) is found out, not set.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from supervisor.storage import hashing, s3errors
from supervisor.storage.backends import keys_of
from supervisor.storage.base import Finishing, Part, Progress, StoredFile, StoreError, unheard
from supervisor.storage.common import Body, RemoteStore
from supervisor.storage.keys import MAKE_AN_S3_KEY
from supervisor.storage.names import name_problem
from supervisor.storage.opening import Opening
from supervisor.storage.s3_multipart import (
    CONTENT_TYPE,
    Multipart,
    base64_of,
    confirm_md5,
    explain_source,
    md5_of,
)
from supervisor.storage.s3client import S3Client, is_denied, is_unsupported, region_of
from supervisor.storage.source import SourceRange

PART_BYTES = 64 << 20
LEAST_PART_BYTES = 5 << 20  # of each part but the last: Amazon, and those who speak its language
LARGEST_REQUEST = 5 << 30
LARGEST_BLIND = 1 << 20
"""Where names keep no versions, a larger file is never one request, which may replace a name long after it began."""
SHA1_KEY = "rl-sha1"
"""Metadata of small objects: their SHA-1, since no listing tells one and an ETag need not be an MD5."""
VERSION, ETAG = "v:", "e:"
"""What a ``file_id`` starts with: "v:VERSION", or "e:ETAG@UNIX_SECONDS" where the bucket keeps no versions."""


def open_at(asked: Opening) -> S3Store:
    """s3://bucket[/prefix]."""
    bucket, prefix = asked.read_bucket()
    key_id, secret = (asked.read_key(name, MAKE_AN_S3_KEY) for name in keys_of(asked.url))
    environ_region = asked.environ.get("AWS_REGION") or asked.environ.get("AWS_DEFAULT_REGION")
    client = S3Client(
        bucket=bucket,
        endpoint=asked.service,
        region=region_of(asked.service, asked.region, environ_region),
        key_id=key_id,
        secret=secret,
        token=asked.find_key("AWS_SESSION_TOKEN") or None,  # of a temporary key
        streams=asked.streams,
        retry=asked.retry,
    )
    return S3Store(client=client, prefix=prefix, streams=asked.streams, part_size=asked.part_size)


class S3Store(RemoteStore):
    """The objects of one bucket below ``prefix`` (empty, or ending in '/'). The bucket is looked at at once."""

    scheme = "s3"  # another one's store, where its service speaks S3, is a subclass

    def __init__(self, *, client: S3Client, prefix: str, streams: int, part_size: int | None) -> None:
        part_size = min(max(part_size or PART_BYTES, LEAST_PART_BYTES), LARGEST_REQUEST)
        super().__init__(f"{self.scheme}://{client.bucket}/{prefix}".rstrip("/"), streams, part_size, client.retry)
        self._client = client
        self._prefix = prefix
        self._claiming = threading.Lock()
        self._claims: bool | None = None  # unknown yet
        self._deletes_by_etag = True  # until the service says otherwise
        self._multipart = Multipart(client, self.url, self._pool, self._count_sent)
        self._versions = self._keeps_versions()

    def composer(self) -> None:
        """Not yet: S3 could build objects of others' ranges (UploadPartCopy)."""

    # ------------------------------------------------------------ listing

    def list(self, prefix: str) -> Sequence[StoredFile]:
        if self._versions:
            return [file for file, kind in self._all_versions(prefix) if kind == "current"]
        return list(self._all_current(prefix))

    def list_versions(self, prefix: str) -> Sequence[StoredFile]:
        if not self._versions:
            return list(self._all_current(prefix))
        found = [file for file, kind in self._all_versions(prefix) if kind in ("current", "older")]
        return sorted(found, key=lambda file: file.name)  # stable: newest first within a name, as S3 lists them

    def list_hidden(self, prefix: str) -> tuple[Sequence[StoredFile], Sequence[StoredFile]]:
        found = list(self._all_versions(prefix)) if self._versions else []
        return [file for file, kind in found if kind == "hidden"], [file for file, kind in found if kind == "marker"]

    def _all_current(self, prefix: str) -> Iterator[StoredFile]:
        asked: dict[str, Any] = {"Prefix": self._key(prefix, folder=True)}
        while True:
            page = self._client.call(f"list {self.url}/{prefix}", "list_objects_v2", **asked)
            yield from (self._file_of_entry(entry) for entry in page.get("Contents", ()))
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def _all_versions(
        self, prefix: str
    ) -> Iterator[tuple[StoredFile, Literal["current", "older", "hidden", "marker"]]]:
        """Also those that a delete marker hides, and the markers: a person's `aws s3 rm` deletes a name by such a one.

        Within a name S3 lists the newest first, markers among versions, but botocore gives them apart: a version is
        older than a marker that is the newest of all, or by its time (of versions of one second, none is).
        """
        asked: dict[str, Any] = {"Prefix": self._key(prefix, folder=True)}
        hidden: dict[str, float] = {}  # key: versions from before this time are
        while True:
            page = self._client.call(f"list the versions of {self.url}/{prefix}", "list_object_versions", **asked)
            for marker in page.get("DeleteMarkers", ()):
                until = float("inf") if marker["IsLatest"] else _unix(marker["LastModified"])
                hidden[marker["Key"]] = max(until, hidden.get(marker["Key"], 0.0))
                name = marker["Key"].removeprefix(self._prefix)
                yield StoredFile(name, 0, f"{VERSION}{marker['VersionId']}"), "marker"
            for entry in page.get("Versions", ()):
                if _unix(entry["LastModified"]) < hidden.get(entry["Key"], 0.0):
                    yield self._file_of_entry(entry), "hidden"
                else:
                    yield self._file_of_entry(entry), "current" if entry["IsLatest"] else "older"
            if not page.get("IsTruncated"):
                return
            asked["KeyMarker"] = page["NextKeyMarker"]
            if page.get("NextVersionIdMarker"):
                asked["VersionIdMarker"] = page["NextVersionIdMarker"]

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
        key = self._key(name)
        if self._versions:
            finishing = unheard
        if len(parts) <= 1 and (self._versions or size <= LARGEST_BLIND):
            part = parts[0] if parts else Part(0, 0, hashing.EMPTY_SHA1)
            stored = self._pool.submit(self._send_small, name, key, path, part, progress, finishing).result()
        else:
            etag = self._multipart.send(name, key, path, parts, progress, finishing)
            stored = self._look(name, key, etag, None)
        if stored.size != size:
            raise StoreError("transient", f"{self.url} holds {stored.size} bytes of {name} after {size} were sent")
        return stored

    def claim(self, name: str, data: bytes) -> bool | None:
        """By If-None-Match, where the service does not only take the header but also acts on it."""
        self._key(name)
        if not self._can_claim(name):
            return None
        try:
            self.put_bytes(name, data, IfNoneMatch="*")
        except StoreError as error:
            if _precondition(error):
                return False
            raise
        return True

    def put_bytes(self, name: str, data: bytes, **conditions: str) -> StoredFile:
        """As ``Store.put_bytes``. ``conditions``: of the request, as botocore spells them."""
        md5 = hashlib.md5(data, usedforsecurity=False).digest()
        sha1 = hashing.sha1(data)
        return self._upload(name, self._key(name), io.BytesIO(data), len(data), md5, sha1, unheard, **conditions)

    def _send_small(  # noqa: PLR0917
        self, name: str, key: str, path: Path, part: Part, progress: Progress, finishing: Finishing
    ) -> StoredFile:
        md5 = md5_of(path, part)
        with SourceRange(path, part, progress=progress) as stream:
            stored = self._upload(name, key, stream, part.size, md5, part.sha1, finishing)
            stream.report_confirmed()
        return stored

    def _upload(  # noqa: PLR0917
        self,
        name: str,
        key: str,
        stream: Any,
        size: int,
        md5: bytes,
        sha1: str,
        finishing: Finishing,
        **conditions: str,
    ) -> StoredFile:
        def attempt() -> dict[str, Any]:
            finishing("")
            stream.seek(0)
            try:
                answer = self._client.once(
                    f"send {self.url}/{name}",
                    "put_object",
                    Key=key,
                    Body=stream if size else b"",
                    ContentLength=size,
                    ContentMD5=base64_of(md5),
                    ContentType=CONTENT_TYPE,
                    Metadata={SHA1_KEY: sha1},
                    **conditions,
                )
            except StoreError as error:
                if s3errors.code_of(error.__cause__) == "ConditionalRequestConflict":
                    raise StoreError("transient", str(error)) from error.__cause__
                explain_source(error, stream)
                raise
            confirm_md5(answer, md5, f"{self.url}/{name}")
            return answer

        answer = self._client.retry.call(attempt)
        self._count_sent(size)
        return self._look(name, key, answer["ETag"], answer.get("VersionId"))

    def _look(self, name: str, key: str, etag: str, version: str | None) -> StoredFile:
        """What was just stored, as the service sees it: an upload's answer tells neither time nor size."""
        chosen = {"VersionId": version} if self._versions and version and version != "null" else {}
        seen = self._client.call(f"look at {self.url}/{name}", "head_object", Key=key, **chosen)
        if seen["ETag"] != etag:
            raise StoreError(
                "transient",
                f"{self.url}/{name} was replaced just after it was sent (does another pod write the same step?)",
            )
        return self._file_of_entry({**seen, "Key": key, "Size": seen["ContentLength"]})

    # ------------------------------------------------------------ fetching

    @contextlib.contextmanager
    def _open_body(self, name: str, file_id: str | None, span: tuple[int, int] | None = None) -> Iterator[Body]:
        """With a ``file_id`` it is that version's, whatever the service makes of conditions."""
        chosen = self._chosen(name, file_id)
        asked = {"Range": f"bytes={span[0]}-{span[1]}"} if span else {}
        answer = self._client.once(f"read {self.url}/{name}", "get_object", Key=self._key(name), **chosen, **asked)
        with contextlib.closing(answer["Body"]):
            if chosen.get("IfMatch") not in (None, answer["ETag"]):
                raise StoreError("missing", f"{self.url}/{name} is no longer the version that is asked for")
            sha1 = answer.get("Metadata", {}).get(SHA1_KEY)
            yield Body(answer["ContentLength"], answer.get("ContentRange"), sha1, self._pieces(answer, name))

    def _chosen(self, name: str, file_id: str | None) -> dict[str, str]:
        """The words of a request that mean exactly this version."""
        if file_id is None:
            return {}
        if file_id.startswith(VERSION):
            return {"VersionId": file_id.removeprefix(VERSION)}
        etag, _, time = file_id.removeprefix(ETAG).rpartition("@")
        if not file_id.startswith(ETAG) or not etag or not time:
            raise StoreError(
                "missing", f"{file_id!r} is no version of {self.url}/{name}: another kind of store wrote it"
            )
        return {"IfMatch": f'"{etag}"', **({"VersionId": "null"} if self._versions else {})}

    def _pieces(self, answer: Mapping[str, Any], name: str) -> Iterator[bytes]:
        while True:
            with self._client.explain_errors(f"read {self.url}/{name}"):
                piece: bytes = answer["Body"].read(hashing.CHUNK_BYTES)
            if not piece:
                return
            yield piece

    # ------------------------------------------------------------ deleting

    def delete(self, file: StoredFile) -> None:
        key, chosen = self._key(file.name), self._chosen(file.name, file.file_id)
        tried = f"delete {self.url}/{file.name}"
        version = {name: value for name, value in chosen.items() if name == "VersionId"}
        try:
            if file.file_id.startswith(VERSION):
                self._client.call(tried, "delete_object", Key=key, **version)
                return
            there = self._client.call(f"look at {self.url}/{file.name}", "head_object", Key=key, **version)
            if _file_id(there, versions=False) != file.file_id:
                return  # this version is gone; another one has its name
            if self._deletes_by_etag:
                try:
                    self._client.call(tried, "delete_object", Key=key, **chosen)
                    return
                except StoreError as error:
                    if not is_unsupported(error):
                        raise
                    self._deletes_by_etag = False
            self._client.call(tried, "delete_object", Key=key, **version)
        except StoreError as error:
            if error.kind != "missing":
                raise

    def sweep(
        self, prefix: str, spare: Callable[[str], bool] = lambda name: False, fence: Callable[[], None] = lambda: None
    ) -> int:
        key_prefix = self._key(prefix, folder=True)
        return self._multipart.abort_below(prefix, key_prefix, lambda key: spare(key.removeprefix(self._prefix)), fence)

    # ------------------------------------------------------------ what a person is told before a run

    def cancels_unfinished(self, name: str) -> bool | None:
        tried = f"ask for the lifecycle rules of the bucket {self._client.bucket}"
        try:
            rules = self._client.call(tried, "get_bucket_lifecycle_configuration").get("Rules", ())
        except StoreError as error:
            return False if s3errors.code_of(error.__cause__) == "NoSuchLifecycleConfiguration" else None
        key = self._key(name, folder=True)
        return any(
            rule.get("Status") == "Enabled"
            and rule.get("AbortIncompleteMultipartUpload")
            and key.startswith(rule.get("Filter", {}).get("Prefix") or rule.get("Prefix") or "")
            for rule in rules
        )

    # ------------------------------------------------------------ what this service can do

    def _keeps_versions(self) -> bool:
        """Does the bucket keep versions, or did it? Also finds a wrong key, bucket, region or clock at once."""
        tried = f"open the bucket {self._client.bucket}"
        try:
            answer = self._client.call(tried, "get_bucket_versioning")
            return answer.get("Status") in ("Enabled", "Suspended")
        except StoreError as error:
            if not (is_unsupported(error) or is_denied(error)):
                raise
        try:  # a narrow key may not ask, and R2 does not know the question; listing versions tells as well
            self._client.call(tried, "list_object_versions", Prefix=self._prefix, MaxKeys=1)
            return True
        except StoreError as error:
            if not (is_unsupported(error) or is_denied(error)):
                raise
        self._client.call(tried, "list_objects_v2", Prefix=self._prefix, MaxKeys=1)
        return False

    def _can_claim(self, name: str) -> bool:
        """Some services take If-None-Match and overwrite anyway (rclone's), so it is tried on a name apart."""
        with self._claiming:
            if self._claims is None:
                probe = f"{name}.probe-{secrets.token_hex(8)}"
                made = [self.put_bytes(probe, b"?")]
                try:
                    made.append(self.put_bytes(probe, b"!", IfNoneMatch="*"))
                    self._claims = False
                except StoreError as error:
                    if not (_precondition(error) or is_unsupported(error)):
                        raise
                    self._claims = _precondition(error)
                finally:
                    for file in made:
                        self.delete(file)
            return self._claims

    # ------------------------------------------------------------ helpers

    def _key(self, name: str, *, folder: bool = False) -> str:
        plain = name.removesuffix("/") if folder else name
        problem = None if folder and not plain else name_problem(plain)
        if problem is None and len((self._prefix + name).encode()) > 1024:
            problem = "with the store's prefix it is longer than 1024 bytes"
        if problem:
            raise StoreError("permanent", f"{name!r} cannot be a name in {self.url}: {problem}")
        return self._prefix + name

    def _file_of_entry(self, entry: Mapping[str, Any]) -> StoredFile:
        sha1 = entry.get("Metadata", {}).get(SHA1_KEY)
        return StoredFile(
            name=str(entry["Key"]).removeprefix(self._prefix),
            size=int(entry["Size"]),
            file_id=_file_id(entry, versions=self._versions),
            sha1=sha1 if sha1 and len(sha1) == 40 else None,
            uploaded_at=_unix(entry["LastModified"]),
        )


def _file_id(entry: Mapping[str, Any], *, versions: bool) -> str:
    version = entry.get("VersionId")
    if versions and version and version != "null":
        return f"{VERSION}{version}"
    return f"{ETAG}{entry['ETag'].strip(chr(34))}@{int(_unix(entry['LastModified']))}"


def _unix(time: datetime) -> float:
    return time.timestamp()


def _precondition(error: StoreError) -> bool:
    return s3errors.code_of(error.__cause__) in ("PreconditionFailed", "412")
