"""Sending a large file to S3 in parts: begun once, every part confirmed by its hash, and continued after a kill.

A part is confirmed when the service answers with the SHA-1 that it was sent with, or, where it knows no such checksums,
with an ETag that is the part's MD5. What an unfinished upload holds is found the same way: services that verify SHA-1
need not list it (SeaweedFS 4.48 does not), so a part is also known by size and MD5 of the local range.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.storage import s3errors
from supervisor.storage.base import Finishing, Part, Progress, StoreError, unheard
from supervisor.storage.parallel import all_of
from supervisor.storage.s3client import S3Client, is_unsupported
from supervisor.storage.source import SourceRange, read_range

CONTENT_TYPE = "application/octet-stream"


@dataclass
class Upload:
    """An upload that is not an object yet. ``etags`` by part number: what is confirmed there."""

    id: str
    sha1: bool
    """Was it begun with parts that carry SHA-1?"""
    etags: dict[int, str] = field(default_factory=dict)
    resumed: bool = False
    """Then ``sha1`` is a guess where the service does not tell."""


class Multipart:
    """Large objects of one bucket."""

    def __init__(self, client: S3Client, url: str, pool: Executor, count: Callable[[int], None]) -> None:
        self._client = client
        self._url = url
        self._pool = pool
        self._count = count
        self._takes_sha1 = True  # until the service says or shows otherwise

    def send(  # noqa: PLR0917
        self,
        name: str,
        key: str,
        path: Path,
        parts: Sequence[Part],
        progress: Progress,
        finishing: Finishing = unheard,
    ) -> str:
        """Send the file and make it an object; returns the object's ETag and leaves the version to the caller."""
        upload = self._find_unfinished(name, key, path, parts) or self._begin(name, key)
        progress(sum(parts[number - 1].size for number in upload.etags))
        stop = threading.Event()

        def send(number: int) -> None:
            if stop.is_set():
                return
            part = parts[number - 1]  # which reads it, unless its hash is known
            with SourceRange(path, part, progress=progress) as stream:
                self._send_part(name, key, stream, upload, number, part, stop)
                stream.report_confirmed()

        todo = [number for number in range(1, len(parts) + 1) if number not in upload.etags]
        all_of([self._pool.submit(send, number) for number in todo], lambda _: stop.set())
        finishing("")
        return self._finish(name, key, upload, parts)

    def abort_below(self, prefix: str, key_prefix: str, spare: Callable[[str], bool], fence: Callable[[], None]) -> int:
        """Cancel every unfinished upload with a key that starts with ``key_prefix``, unless ``spare`` takes it."""
        count = 0
        found = list(self._all_unfinished(prefix, key_prefix)) or list(self._beside_minio(prefix, key_prefix))
        found = [entry for entry in found if not spare(entry["Key"])]
        if found:
            fence()
        for entry in found:
            try:
                self._client.call(
                    f"cancel an unfinished upload below {self._url}/{prefix}",
                    "abort_multipart_upload",
                    Key=entry["Key"],
                    UploadId=entry["UploadId"],
                )
                count += 1
            except StoreError as error:
                if error.kind != "missing":
                    raise
        return count

    # ------------------------------------------------------------ one upload

    def _begin(self, name: str, key: str) -> Upload:
        tried = f"start the upload of {self._url}/{name}"
        asked = {"Key": key, "ContentType": CONTENT_TYPE}
        if self._takes_sha1:
            try:
                answer = self._client.call(tried, "create_multipart_upload", **asked, ChecksumAlgorithm="SHA1")
                return Upload(answer["UploadId"], answer.get("ChecksumAlgorithm") == "SHA1")
            except StoreError as error:
                if not is_unsupported(error):  # B2: 400, "Unsupported header 'x-amz-checksum-algorithm'"
                    raise
                self._takes_sha1 = False
        return Upload(self._client.call(tried, "create_multipart_upload", **asked)["UploadId"], sha1=False)

    def _send_part(  # noqa: PLR0917
        self, name: str, key: str, stream: SourceRange, upload: Upload, number: int, part: Part, stop: threading.Event
    ) -> None:
        tried = f"send {self._url}/{name}"
        wanted = base64_of_hex(part.sha1)
        md5 = b""

        def attempt() -> None:
            nonlocal md5
            if stop.is_set():  # the first failure is what counts
                raise StoreError("changed", f"the upload of {name} was given up")
            by_sha1 = upload.sha1
            if not md5 and not (by_sha1 and self._takes_sha1):
                md5 = md5_of(stream.path, part)
            hashes = {"ChecksumSHA1": wanted} if by_sha1 else {"ContentMD5": base64_of(md5)}
            stream.seek(0)
            try:
                answer = self._client.once(
                    tried,
                    "upload_part",
                    Key=key,
                    UploadId=upload.id,
                    PartNumber=number,
                    ContentLength=part.size,
                    Body=stream if part.size else b"",
                    **hashes,
                )
            except StoreError as error:
                explain_source(error, stream)
                if by_sha1 and upload.resumed and is_unsupported(error):  # it was begun as one without SHA-1
                    upload.sha1 = False
                    raise StoreError("transient", str(error)) from error
                raise
            told = answer.get("ChecksumSHA1")
            if told != wanted:
                if told is None and by_sha1:
                    self._takes_sha1 = False
                confirm_md5(answer, md5 or md5_of(stream.path, part), f"part {number} of {self._url}/{name}")
            upload.etags[number] = answer["ETag"]

        self._client.retry.call(attempt)
        self._count(part.size)

    def _finish(self, name: str, key: str, upload: Upload, parts: Sequence[Part]) -> str:
        """Make one object of the parts. An error may only mean that the answer was lost, so look before failing."""
        etags = [upload.etags[number] for number in range(1, len(parts) + 1)]
        listed: list[dict[str, Any]] = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        if upload.sha1:
            for entry, part in zip(listed, parts, strict=True):
                entry["ChecksumSHA1"] = base64_of_hex(part.sha1)
        try:
            answer = self._client.call(
                f"finish the upload of {self._url}/{name}",
                "complete_multipart_upload",
                Key=key,
                UploadId=upload.id,
                MultipartUpload={"Parts": listed},
            )
            return str(answer["ETag"])
        except StoreError as failure:
            expected = etag_of_parts(etags)
            try:
                there = self._client.call(f"look at {self._url}/{name}", "head_object", Key=key)
            except StoreError:
                there = {}
            if expected is None or there.get("ETag", "").strip('"') != expected:
                if failure.kind == "missing":  # another process of ours, or a lifecycle rule, cancelled it
                    raise StoreError("transient", f"{failure}: the unfinished upload is gone") from failure
                raise failure from None
            return str(there["ETag"])

    # ------------------------------------------------------------ what was left unfinished

    def _find_unfinished(self, name: str, key: str, path: Path, parts: Sequence[Part]) -> Upload | None:
        """The unfinished upload of this name that holds most of this file, or None when none holds any of it."""
        best: Upload | None = None
        for entry in self._all_unfinished(name, key):
            if entry["Key"] != key:
                continue
            try:
                upload = self._parts_there(entry["UploadId"], name, key, path, parts)
            except StoreError as error:
                if error.kind != "missing":
                    raise
                continue
            if upload.etags and (best is None or len(upload.etags) > len(best.etags)):
                best = upload
        return best

    def _parts_there(self, upload_id: str, name: str, key: str, path: Path, parts: Sequence[Part]) -> Upload:
        """What an unfinished upload holds of this file. A part that is another's is simply sent over."""
        upload = Upload(upload_id, sha1=self._takes_sha1, resumed=True)
        asked: dict[str, Any] = {}
        while True:
            page = self._client.call(
                f"list the parts of {self._url}/{name}", "list_parts", Key=key, UploadId=upload_id, **asked
            )
            if page.get("ChecksumAlgorithm"):
                upload.sha1 = page["ChecksumAlgorithm"] == "SHA1"
            listed = [entry for entry in page.get("Parts", ()) if entry["PartNumber"] <= len(parts)]
            same = self._pool.map(lambda entry: _is_there(entry, path, parts[entry["PartNumber"] - 1]), listed)
            upload.etags.update(
                (e["PartNumber"], e["ETag"]) for e, is_same in zip(listed, same, strict=True) if is_same
            )
            if not page.get("IsTruncated"):
                return upload
            asked = {"PartNumberMarker": page["NextPartNumberMarker"]}

    def _all_unfinished(self, what: str, key_prefix: str) -> Iterator[dict[str, Any]]:
        asked: dict[str, Any] = {"Prefix": key_prefix} if key_prefix else {}
        while True:
            page = self._client.call(
                f"list unfinished uploads of {self._url}/{what}", "list_multipart_uploads", **asked
            )
            yield from (entry for entry in page.get("Uploads", ()) if entry["Key"].startswith(key_prefix))
            # SeaweedFS 4.48 lists by the upload's id, and tells no key to go on from.
            markers = {name: page[f"Next{name}"] for name in ("KeyMarker", "UploadIdMarker") if page.get(f"Next{name}")}
            if not page.get("IsTruncated") or not markers:
                return
            asked |= markers

    def _beside_minio(self, what: str, key_prefix: str) -> Iterator[dict[str, Any]]:
        """MinIO takes the prefix for a whole key (minio/minio#20989, "working as intended"): look through them all."""
        try:
            for entry in self._all_unfinished(what, ""):
                if entry["Key"].startswith(key_prefix):
                    yield entry
        except StoreError as error:
            if error.kind != "permanent":  # a key that is limited to a prefix may not do that
                raise


# ---------------------------------------------------------------- hashes


def md5_of(path: Path, part: Part) -> bytes:
    """MD5 of bytes that have the SHA-1 that was announced. Raises kind "changed" when they have another one."""
    md5, sha1 = hashlib.md5(usedforsecurity=False), hashlib.sha1(usedforsecurity=False)
    for piece in read_range(path, part.offset, part.size):
        md5.update(piece)
        sha1.update(piece)
    if sha1.hexdigest() != part.sha1:
        raise StoreError("changed", f"{path} changed after it was hashed (byte {part.offset} on)")
    return md5.digest()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def base64_of_hex(text: str) -> str:
    return base64_of(bytes.fromhex(text))


def etag_of_parts(etags: Sequence[str]) -> str | None:
    """What S3 makes of parts with their MD5 as ETags: the MD5 of those, and how many. None where they are not."""
    digest = hashlib.md5(usedforsecurity=False)
    for etag in etags:
        if not is_md5(etag):
            return None
        digest.update(bytes.fromhex(etag.strip('"')))
    return f"{digest.hexdigest()}-{len(etags)}"


def is_md5(etag: str) -> bool:
    plain = etag.strip('"')
    return len(plain) == 32 and all(letter in "0123456789abcdef" for letter in plain)


def confirm_md5(answer: Mapping[str, Any], md5: bytes, what: str) -> None:
    """Does the service's answer to an upload confirm its bytes? Raises StoreError when it does not.

    With a key of its own for encryption, Amazon's ETag is no MD5; it has still compared Content-MD5.
    """
    etag = str(answer.get("ETag", "")).strip('"').lower()
    if etag == md5.hex():
        return
    if str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or answer.get("SSECustomerAlgorithm"):
        return
    if is_md5(etag):
        raise StoreError("transient", f"the service confirmed another hash for {what} than was sent")
    raise StoreError(
        "permanent",
        f"the service confirms no hash of {what} (it answers neither with a SHA-1 nor with an MD5), so nothing sent "
        f"there could count as published. Use another service",
    )


def explain_source(error: StoreError, stream: object) -> None:
    """When the local file is why an upload failed, say so instead. Raises kind "changed", or returns."""
    if not isinstance(stream, SourceRange):
        return
    if stream.failure is not None:
        raise stream.failure from None
    if s3errors.code_of(error.__cause__) in s3errors.BROKEN_ON_THE_WAY:
        stream.check()


def _is_there(entry: Mapping[str, Any], path: Path, part: Part) -> bool:
    if entry["Size"] != part.size:
        return False
    if entry.get("ChecksumSHA1"):
        return bool(entry["ChecksumSHA1"] == base64_of_hex(part.sha1))
    return is_md5(entry["ETag"]) and bytes.fromhex(entry["ETag"].strip('"')) == md5_of(path, part)
