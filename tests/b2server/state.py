"""What the server holds: buckets, file versions, unfinished large files, keys, faults, and a journal of requests.

Written from Backblaze's API documentation, not from b2sdk's simulator, so that the two can disagree.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

ALL_CAPABILITIES = (
    "listKeys", "writeKeys", "deleteKeys", "listBuckets", "readBuckets", "writeBuckets", "deleteBuckets",
    "listFiles", "readFiles", "shareFiles", "writeFiles", "deleteFiles",
)  # fmt: skip


class Refusal(Exception):
    """An error answer in B2's shape."""

    def __init__(self, status: int, code: str, message: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})


@dataclass
class Key:
    """An application key; ``buckets`` None and ``prefix`` None mean no restriction. ``expires_at``: unix time."""

    key_id: str
    secret: str
    capabilities: tuple[str, ...] = ALL_CAPABILITIES
    buckets: tuple[str, ...] | None = None
    prefix: str | None = None
    name: str = "made-by-hand"
    expires_at: float | None = None

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and time.time() >= self.expires_at


@dataclass
class Fault:
    """What goes wrong, for ``times`` requests whose operation and object name match, ``after`` so many that went well.

    ``status`` answers that error (with ``code`` and ``retry_after``) instead of doing anything; ``cut_upload_after``
    closes the connection after so many bytes of the request's body, ``cut_download_after`` of the answer's;
    ``hold`` waits for that event before anything is done, so that a request is in flight meanwhile;
    ``flip`` inverts the bits of that byte of a download; ``lose_answer`` does the work and closes the connection;
    ``delay_s`` waits first; ``drip`` moves a body at no more than so many bytes a second.
    """

    op: str
    name: str = ""
    after: int = 0
    times: int = 1
    status: int = 0
    code: str = "service_unavailable"
    retry_after: int | None = None
    cut_upload_after: int | None = None
    cut_download_after: int | None = None
    flip: int | None = None
    lose_answer: bool = False
    delay_s: float = 0.0
    hold: threading.Event | None = None
    held: threading.Event = field(default_factory=threading.Event)  # set as soon as a request waits
    drip: float = 0.0

    def matches(self, op: str, name: str) -> bool:
        return self.times > 0 and re.fullmatch(self.op, op) is not None and re.search(self.name, name) is not None


@dataclass
class Bucket:
    bucket_id: str
    name: str
    lifecycle_rules: list[Json] = field(default_factory=list)


@dataclass
class Version:
    """One version of a name: "upload", "hide", or "start" while a large file is unfinished."""

    file_id: str
    bucket: Bucket
    name: str
    action: str
    timestamp: int
    content_type: str
    info: dict[str, str]
    data: bytes = b""
    sha1: str | None = None
    parts: dict[int, bytes] = field(default_factory=dict)
    visible_at: float = 0.0

    def as_json(self) -> Json:
        return {
            "accountId": "account0",
            "action": self.action,
            "bucketId": self.bucket.bucket_id,
            "contentLength": len(self.data),
            "contentSha1": None if self.action in ("hide", "start") else (self.sha1 or "none"),
            "contentType": None if self.action == "hide" else self.content_type,
            "fileId": self.file_id,
            "fileInfo": self.info,
            "fileName": self.name,
            "fileRetention": {"isClientAuthorizedToRead": False, "value": None},
            "legalHold": {"isClientAuthorizedToRead": False, "value": None},
            "replicationStatus": None,
            "serverSideEncryption": {"algorithm": None, "mode": None},
            "uploadTimestamp": self.timestamp,
        }


def sha1_hex(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


class State:
    """Everything behind the HTTP face. ``lock`` guards it all; bodies are read and sent without it."""

    def __init__(self, part_size: int, minimum_part_size: int) -> None:
        self.lock = threading.RLock()
        self.part_size = part_size
        self.minimum_part_size = minimum_part_size
        self.stale_s = 0.0  # listings and reads by name see the bucket as it was so long ago
        self.bytes_per_s = 0.0  # each connection's speed, 0: no limit
        self.skew_s = 0.0  # of the server's Date header
        self.longest_page = 10_000  # entries, whatever is asked for
        self.buckets: dict[str, Bucket] = {}
        self.versions: dict[str, Version] = {}
        self.keys: dict[str, Key] = {}
        self.tokens: dict[str, Key] = {}
        self.upload_tokens: dict[str, tuple[Key, str]] = {}  # token -> key, bucket id or file id
        self.faults: list[Fault] = []
        self.watch: Callable[[str, Json], bool] | None = None  # see ``Handler._moment``
        self.journal: list[Json] = []
        self._numbers = itertools.count(1)
        self._timestamp = 0
        self._passed_s = 0

    # ------------------------------------------------------------ faults and journal

    def fault(self, op: str, name: str, wanted: Callable[[Fault], bool]) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if wanted(fault) and fault.matches(op, name):
                    if fault.after > 0:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def write_journal(self, entry: Json) -> None:
        """Once a request; before its answer goes out, so that a client that has its answer finds the entry."""
        with self.lock:
            if "n" not in entry:
                entry.update(n=len(self.journal), t=time.time())
                self.journal.append(entry)

    # ------------------------------------------------------------ auth

    def number(self) -> int:
        return next(self._numbers)

    def authorize(self, key_id: str, secret: str) -> tuple[str, Key]:
        key = self.keys.get(key_id)
        if key is None or key.secret != secret or key.is_expired:
            raise Refusal(401, "unauthorized", "The applicationKeyId and/or the applicationKey are wrong.")
        token = f"token_{self.number()}"
        self.tokens[token] = key
        return token, key

    def key_of(self, token: str) -> Key:
        key = self.tokens.get(token)  # it outlives a key that is deleted, for up to 24 h
        if key is None or key.is_expired:
            raise Refusal(
                401, "expired_auth_token" if token.startswith("token_") else "bad_auth_token", "no such token"
            )
        return key

    def need(self, key: Key, capability: str, bucket: Bucket | None = None, name: str | None = None) -> None:
        """401 unauthorized, as B2 answers it, for a capability, a bucket or a name outside the key's reach."""
        if capability not in key.capabilities:
            raise Refusal(401, "unauthorized", f"the key lacks {capability}")
        if key.buckets is not None and bucket is not None and bucket.name not in key.buckets:
            raise Refusal(401, "unauthorized", "the key is for another bucket")
        if key.prefix and name is not None and not name.startswith(key.prefix):
            raise Refusal(401, "unauthorized", "the key is for another prefix")

    # ------------------------------------------------------------ lookups

    def bucket_by_id(self, bucket_id: object) -> Bucket:
        for bucket in self.buckets.values():
            if bucket.bucket_id == bucket_id:
                return bucket
        raise Refusal(400, "bad_bucket_id", f"bad bucketId {bucket_id}")

    def version(self, file_id: object) -> Version:
        found = self.versions.get(str(file_id))
        if found is None:
            raise Refusal(404, "not_found", f"no file {file_id}")
        return found

    def unfinished(self, file_id: object) -> Version:
        found = self.versions.get(str(file_id))
        if found is None or found.action != "start":
            raise Refusal(400, "bad_request", f"No active upload for: {file_id}")
        return found

    def sorted_versions(self, bucket: Bucket, prefix: str, *, stale: bool = True) -> list[Version]:
        """By name, newest first."""
        now = time.monotonic()
        found = [
            version
            for version in self.versions.values()
            if version.bucket is bucket
            and version.name.startswith(prefix)
            and (not stale or version.visible_at + self.stale_s <= now)
        ]
        return sorted(found, key=lambda version: (version.name.encode(), -version.timestamp))

    def current(self, bucket: Bucket, prefix: str) -> list[Version]:
        """The newest finished version of each name, hidden names left out."""
        found: dict[str, Version] = {}
        for version in self.sorted_versions(bucket, prefix):
            if version.action != "start":
                found.setdefault(version.name, version)
        return [version for version in found.values() if version.action == "upload"]

    def named(self, bucket: Bucket, name: str) -> Version:
        for version in self.current(bucket, name):
            if version.name == name:
                return version
        raise Refusal(404, "not_found", f"no file {name}")

    # ------------------------------------------------------------ changes

    def let_pass(self, seconds: int) -> None:
        """Its clock goes on by so much at once: what is stored from now on is so much younger."""
        with self.lock:
            self._passed_s += seconds

    def add(self, bucket: Bucket, name: str, action: str, content_type: str, info: dict[str, str]) -> Version:
        with self.lock:
            self._timestamp = max(self._timestamp + 1, int((time.time() + self._passed_s) * 1000))
            file_id = f"4_z{bucket.bucket_id}_f{self.number():08d}"
            version = Version(file_id, bucket, name, action, self._timestamp, content_type, info)
            version.visible_at = time.monotonic()
            self.versions[file_id] = version
            return version

    def store(self, bucket: Bucket, name: str, data: bytes, content_type: str, info: dict[str, str]) -> Version:
        with self.lock:
            version = self.add(bucket, name, "upload", content_type, info)
            version.data, version.sha1 = data, sha1_hex(data)
            return version

    def add_part(self, file_id: str, number: int, data: bytes) -> None:
        with self.lock:
            self.unfinished(file_id).parts[number] = data

    def finish(self, file_id: str, sha1s: list[str]) -> Version:
        with self.lock:
            version = self.unfinished(file_id)
            if sorted(version.parts) != list(range(1, len(sha1s) + 1)):
                raise Refusal(400, "missing_part", "parts are missing")
            parts = [version.parts[number] for number in sorted(version.parts)]
            if [sha1_hex(part) for part in parts] != sha1s:
                raise Refusal(400, "part_sha1_mismatch", "parts differ")
            if len(parts) < 2:
                raise Refusal(400, "bad_request", "large files need at least two parts")
            if any(len(part) < self.minimum_part_size for part in parts[:-1]):
                raise Refusal(400, "bad_request", "a part is too small")
            version.data, version.parts, version.action = b"".join(parts), {}, "upload"
            version.visible_at = time.monotonic()
            return version
