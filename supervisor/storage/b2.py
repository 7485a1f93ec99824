"""Backblaze B2 as a store: b2sdk for auth, listing and single requests; parts, patience and verification are ours.

b2sdk's own transfers are not used (b2sdk 2.13.1): uploads are retried without any pause, downloads of large files are
not verified, a full disk hangs them, and a lost answer to the last request fails a file that exists. Every part that
is sent carries its SHA-1, which B2 checks on arrival. What was sent before a kill is found again by its cut, and each
part of it is compared by its SHA-1 before it counts.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import requests
from b2sdk.v3 import B2Api, B2HttpApiConfig, InMemoryAccountInfo
from b2sdk.v3 import exception as b2
from requests.adapters import HTTPAdapter

from supervisor import __version__
from supervisor.storage import b2errors, hashing
from supervisor.storage.b2_composing import B2Composer, wait_for
from supervisor.storage.b2http import ANSWER_S, CONNECT_S, Download, PartApi, Transport
from supervisor.storage.base import (
    Composer,
    Cut,
    Finishing,
    Hasher,
    Part,
    Progress,
    Sink,
    StoredFile,
    StoreError,
    known_part,
    ranges_of,
    unheard,
)
from supervisor.storage.bucket import Bucket
from supervisor.storage.keys import MAKE_A_KEY
from supervisor.storage.limit import Throttle
from supervisor.storage.names import name_problem
from supervisor.storage.retry import Retry
from supervisor.storage.source import SourceRange

T = TypeVar("T")
Ranges = Sequence[tuple[int, int]]  # (offset, size)
Listed = dict[int, tuple[int, str]]  # by part number the size and SHA-1
CONTENT_TYPE = "application/octet-stream"
CUT_KEY = "rl_cut"
"""fileInfo key of ``hashing.cut_digest``: an unfinished upload is continued by a file that is cut as it was begun. What
its parts hold is not said by it (nobody knows that before the file is read), so each is compared."""
LARGEST_REQUEST = 5_000_000_000  # bytes, one part or one small file
REFETCHES = 5


class B2Store:
    """The objects of one bucket below ``prefix`` (empty, or ending in '/'). Authorises at once."""

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str,
        key_id: str,
        key: str,
        realm: str | None,
        streams: int,
        part_size: int | None,
        retry: Retry,
        limit_bytes_per_s: float | None = None,
    ) -> None:
        self.url = f"b2://{bucket}/{prefix}".rstrip("/")
        self.streams = streams
        self._bucket = bucket
        self._prefix = prefix
        self._key_id = key_id
        self._retry = retry
        self._sent = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=streams, thread_name_prefix="b2")
        info = InMemoryAccountInfo()
        config = B2HttpApiConfig(
            http_session_factory=lambda: _session(streams),
            user_agent_append=f"rl-supervisor/{__version__}",
            decode_content=True,  # keeps the factory's adapter; nothing is ever compressed (Accept-Encoding)
            install_clock_skew_hook=False,  # B2 does not mind, we compare no clocks, and a container cannot set its own
            _raw_api_class=PartApi,
        )
        self._api = B2Api(info, api_config=config)
        raw_api: PartApi = self._session.raw_api
        raw_api.transport = Transport(raw_api.b2_http.user_agent, Throttle(limit_bytes_per_s))
        with self._explain(f"sign in to B2 for the bucket {bucket}"):
            self._api.authorize_account(key_id, key, realm=realm or "production")
            self._bucket_id: str = self._api.get_bucket_by_name(bucket).id_
        allowed = info.get_allowed()
        self._capabilities = frozenset(allowed["capabilities"])
        self._key_prefix: str = allowed["namePrefix"] or ""
        least = int(info.get_absolute_minimum_part_size())
        wanted = part_size or int(info.get_recommended_part_size())
        self._part_size = min(max(wanted, least), LARGEST_REQUEST)
        self._composer = B2Composer(self, least)

    def sent_bytes(self) -> int:
        return self._sent

    def part_size(self) -> int:
        return self._part_size

    # ------------------------------------------------------------ listing

    def list(self, prefix: str) -> Sequence[StoredFile]:
        full = self._reach(prefix, "listFiles", "list", folder=True)
        found: list[StoredFile] = []
        start: str | None = None
        while True:
            with self._explain(f"list {self.url}/{prefix}"):
                page = self._session.list_file_names(
                    self._bucket_id, start_file_name=start, max_file_count=1000, prefix=full
                )
            found += [self._stored(entry) for entry in page["files"] if entry["action"] == "upload"]
            start = page["nextFileName"]
            if start is None:
                return found

    def list_versions(self, prefix: str) -> Sequence[StoredFile]:
        full = self._reach(prefix, "listFiles", "list", folder=True)
        found: list[StoredFile] = []
        hidden: set[str] = set()
        name: str | None = None
        file_id: str | None = None
        while True:
            with self._explain(f"list the versions of {self.url}/{prefix}"):
                page = self._session.list_file_versions(
                    self._bucket_id, start_file_name=name, start_file_id=file_id, max_file_count=1000, prefix=full
                )
            for entry in page["files"]:  # newest first: what is older than a hide marker was deleted by somebody
                if entry["action"] == "hide":
                    hidden.add(entry["fileName"])
                elif entry["action"] == "upload" and entry["fileName"] not in hidden:
                    found.append(self._stored(entry))
            name, file_id = page["nextFileName"], page["nextFileId"]
            if name is None:
                return found

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
        full = self._reach(name, "writeFiles", "write")
        if len(parts) <= 1:
            stored = self._pool.submit(self._send_small, name, full, path, parts, progress).result()
        else:
            stored = self._send_large(name, full, path, parts, progress, finishing)
        if stored.size != size:
            raise StoreError("transient", f"{self.url} holds {stored.size} bytes of {name} after {size} were sent")
        return stored

    def put_bytes(self, name: str, data: bytes) -> StoredFile:
        full = self._reach(name, "writeFiles", "write")
        return self._upload(name, full, io.BytesIO(data), len(data), hashing.sha1(data))

    def _send_small(self, name: str, full: str, path: Path, parts: Sequence[Part], progress: Progress) -> StoredFile:
        part = known_part(parts, 0) if parts else Part(0, 0, hashing.EMPTY_SHA1)
        with SourceRange(path, part, _hasher(parts, 0), progress) as stream:
            stored = self._upload(name, full, stream, part.size, "" if part.size else hashing.EMPTY_SHA1)
            stream.arrived()
        return stored

    def _upload(self, name: str, full: str, stream: Any, size: int, sha1: str) -> StoredFile:
        """Send a body in one request. Of a ``SourceRange`` that is not empty the hash may be found on the way."""

        def attempt() -> StoredFile:
            with self._sending(name, stream):
                body = stream if size else b""  # requests would send an empty stream in chunks, which B2 refuses
                answer = self._session.upload_file(self._bucket_id, full, size, CONTENT_TYPE, sha1, {}, body)
            return self._stored(answer)

        stored = self._retry.call(attempt)
        if stored.sha1 != (sha1 or stream.sha1):
            raise StoreError("transient", f"{self.url} confirmed another SHA-1 for {name} than was sent")
        self._count(size)
        return stored

    def _send_large(  # noqa: PLR0917
        self, name: str, full: str, path: Path, parts: Sequence[Part], progress: Progress, finishing: Finishing
    ) -> StoredFile:
        file_id, there = self._begin(name, full, ranges_of(parts))
        stop = threading.Event()

        def send(number: int) -> None:
            if stop.is_set():
                return
            # A part that is there has to be read to be compared; any other is hashed while it is sent.
            part = parts[number - 1] if number in there else known_part(parts, number - 1)
            if there.get(number) != (part.size, part.sha1):
                with SourceRange(path, part, _hasher(parts, number - 1), progress) as stream:
                    self._send_part(name, file_id, number, stream, stop)
            else:
                progress(part.size)

        wait_for([self._pool.submit(send, number) for number in range(1, len(parts) + 1)], stop)
        finishing(file_id)
        return self._finish(name, file_id, parts)

    def _begin(self, name: str, full: str, ranges: Ranges) -> tuple[str, Listed]:
        """The id of an unfinished large file of this cut, begun before or now, and the parts that it holds."""
        info = {CUT_KEY: hashing.cut_digest(ranges)}
        file_id, there = self._unfinished(name, full, info, len(ranges))
        if file_id is None:
            with self._explain(f"start the upload of {self.url}/{name}"):
                file_id = self._session.start_large_file(self._bucket_id, full, CONTENT_TYPE, info)["fileId"]
        return str(file_id), there

    def _send_part(self, name: str, file_id: str, number: int, stream: SourceRange, stop: threading.Event) -> None:
        def attempt() -> None:
            if stop.is_set():  # the first failure is what counts
                raise StoreError("changed", f"the upload of {name} was given up")
            with self._sending(name, stream, file_id):
                answer = self._session.upload_part(file_id, number, len(stream), stream.sha1, stream)
            if answer["contentSha1"] != stream.sha1:
                raise StoreError("transient", f"{self.url} confirmed another SHA-1 for part {number} of {name}")

        self._retry.call(attempt)
        stream.arrived()
        self._count(len(stream))

    def _finish(self, name: str, file_id: str, parts: Sequence[Part]) -> StoredFile:
        """Make one object of the parts. An error may only mean that the answer was lost, so look before failing."""
        size = sum(part.size for part in parts)
        try:
            with self._explain(f"finish the upload of {self.url}/{name}"):
                return self._stored(self._session.finish_large_file(file_id, [part.sha1 for part in parts]))
        except StoreError as failure:
            try:
                with self._explain(f"look at {self.url}/{name}"):
                    answer = self._session.get_file_info_by_id(file_id)
            except StoreError:
                raise failure from None
            if answer["action"] == "upload" and answer["contentLength"] == size:
                return self._stored(answer)
            raise

    def _unfinished(self, name: str, full: str, info: Mapping[str, str], most: int) -> tuple[str | None, Listed]:
        """The unfinished upload of this name and cut that is furthest, and the parts that it holds."""
        best: tuple[str | None, Listed] = (None, {})
        if "listFiles" not in self._capabilities:
            return best
        for entry in self._all_unfinished(full, name):
            if entry["fileName"] != full or entry["fileInfo"] != info:
                continue
            try:
                there = self._parts_there(entry["fileId"], name)
            except StoreError as error:
                if not self._is_over(entry["fileId"], name, error):
                    raise
                continue
            if all(number <= most for number in there) and (best[0] is None or len(there) > len(best[1])):
                best = (entry["fileId"], there)
        return best

    def _all_unfinished(self, full_prefix: str, what: str) -> Iterator[dict[str, Any]]:
        start: str | None = None
        while True:
            with self._explain(f"list unfinished uploads of {self.url}/{what}"):
                page = self._session.list_unfinished_large_files(
                    self._bucket_id, start_file_id=start, max_file_count=100, prefix=full_prefix
                )
            yield from page["files"]
            start = page["nextFileId"]
            if start is None:
                return

    def _is_over(self, file_id: str, what: str, refused: StoreError) -> bool:
        """Was a request refused because that upload had ended meanwhile? Listings are old, and answers get lost."""
        if not isinstance(refused.__cause__, b2.BadRequest):
            return refused.kind == "missing"
        try:
            with self._explain(f"look at an unfinished upload of {self.url}/{what}"):
                return bool(self._session.get_file_info_by_id(file_id)["action"] != "start")
        except StoreError as error:
            return error.kind == "missing"

    def _parts_there(self, file_id: str, name: str) -> Listed:
        """The parts that arrived, as B2 knows them."""
        there: Listed = {}
        start: int | None = None
        while True:
            with self._explain(f"list the parts of {self.url}/{name}"):
                page = self._session.list_parts(file_id, start, 1000)
            for entry in page["parts"]:
                there[int(entry["partNumber"])] = (int(entry["contentLength"]), str(entry["contentSha1"]))
            start = page["nextPartNumber"]
            if start is None:
                return there

    def composer(self) -> Composer | None:
        return self._composer

    # ------------------------------------------------------------ fetching

    def get_bytes(self, name: str, file_id: str | None = None, limit: int = 16 << 20) -> bytes:
        full = self._reach(name, "readFiles", "read")
        if file_id is None:
            url = self._api.get_download_url_for_file_name(self._bucket, full)
        else:
            url = self._api.get_download_url_for_fileid(file_id)

        def attempt() -> tuple[bytes, str]:
            pieces: list[bytes] = []
            with self._response(url, None, name) as response:
                if int(response.headers.get("Content-Length", 0)) > limit:
                    raise StoreError("damaged", f"{self.url}/{name} has more than the {limit} bytes it may have")
                for piece in self._pieces(response, name):
                    pieces.append(bytes(piece))
                    if sum(map(len, pieces)) > limit:
                        raise StoreError("damaged", f"{self.url}/{name} has more than the {limit} bytes it may have")
            return b"".join(pieces), _plain_sha1(response.headers.get("X-Bz-Content-Sha1")) or ""

        for number in range(1, REFETCHES + 1):
            data, sha1 = self._retry.call(attempt)
            if not sha1 or hashing.sha1(data) == sha1:
                return data
            self._retry.sleep(self._retry.pause(number))
        raise StoreError("damaged", f"{self.url}/{name} came back {REFETCHES} times with bytes that its SHA-1 denies")

    def get_range(self, file: StoredFile, offset: int, size: int) -> bytes:
        pieces: list[bytes] = []
        self.read_range(file, offset, size, lambda piece: pieces.append(bytes(piece)))
        return b"".join(pieces)

    def read_range(self, file: StoredFile, offset: int, size: int, sink: Sink) -> None:
        self._reach(file.name, "readFiles", "read")
        url = self._api.get_download_url_for_fileid(file.file_id)
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
            self._retry.call(attempt)
        except _SinkError as failed:
            raise failed.error from None

    @contextlib.contextmanager
    def _response(self, url: str, range_: tuple[int, int] | None, name: str) -> Iterator[Download]:
        with self._explain(f"read {self.url}/{name}"):
            answer = self._session.download_file_from_url(url, range_=range_)
        with answer:
            yield answer

    def _pieces(self, response: Download, name: str) -> Iterator[memoryview]:
        """The body; only the network's errors are translated here, not those of whoever takes the pieces.

        A piece is good only until the next one is asked for.
        """
        pieces = response.blocks()
        while True:
            with self._explain(f"read {self.url}/{name}"):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    # ------------------------------------------------------------ deleting

    def delete(self, file: StoredFile) -> None:
        full = self._reach(file.name, "deleteFiles", "delete")
        try:
            with self._explain(f"delete {self.url}/{file.name}"):
                self._session.delete_file_version(file.file_id, full)
        except StoreError as error:
            if error.kind != "missing":
                raise

    def sweep(self, prefix: str, spare: Sequence[str] = (), fence: Callable[[], None] = lambda: None) -> int:
        full = self._reach(prefix, "writeFiles", "clean", folder=True)
        spared = tuple(self._prefix + name for name in spare)
        count = 0
        found = [entry for entry in self._all_unfinished(full, prefix) if not entry["fileName"].startswith(spared)]
        if found:
            fence()
        for entry in found:
            try:
                with self._explain(f"cancel an unfinished upload below {self.url}/{prefix}"):
                    self._session.cancel_large_file(entry["fileId"])
                count += 1
            except StoreError as error:
                if not self._is_over(entry["fileId"], prefix, error):
                    raise
        return count

    # ------------------------------------------------------------ what a person is told before a run

    def bucket(self) -> Bucket:
        """What the key may, and what the bucket does by itself (unknown to a key without listBuckets)."""
        rules = None
        if "listBuckets" in self._capabilities:
            with self._explain(f"ask B2 for the rules of the bucket {self._bucket}"):
                found = self._api.list_buckets(bucket_name=self._bucket)
            rules = [dict(rule) for one in found for rule in one.lifecycle_rules or ()]
        return Bucket(self._key_id[-4:], self._capabilities, rules)

    def full_name(self, name: str) -> str:
        """A name as it is in the bucket."""
        return self._prefix + name

    # ------------------------------------------------------------ helpers

    @property
    def _session(self) -> Any:
        return self._api.session

    def _reach(self, name: str, capability: str, verb: str, *, folder: bool = False) -> str:
        """The name in the bucket, when the key may ``verb`` it; else one sentence, before any request is made."""
        plain = name.removesuffix("/") if folder else name
        problem = None if folder and not plain else name_problem(plain)
        if problem:
            raise StoreError("permanent", f"{name!r} cannot be a name in {self.url}: {problem}")
        if capability not in self._capabilities:
            raise StoreError(
                "permanent",
                f"could not {verb} {self.url}/{name}: the application key ...{self._key_id[-4:]} lacks the capability "
                f"{capability}. {MAKE_A_KEY}",
            )
        full = self._prefix + name
        if not full.startswith(self._key_prefix):
            raise StoreError(
                "permanent",
                f"could not {verb} {self.url}/{name}: the application key ...{self._key_id[-4:]} only reaches names "
                f"that start with {self._key_prefix!r}. Correct store.url or run.id, or: {MAKE_A_KEY}",
            )
        return full

    @contextlib.contextmanager
    def _explain(self, tried: str) -> Iterator[None]:
        try:
            yield
        except b2errors.CATCH as error:
            raise b2errors.explain(error, tried, self._bucket, self._key_id) from error

    @contextlib.contextmanager
    def _sending(self, name: str, stream: Any, file_id: str | None = None) -> Iterator[None]:
        """As ``_explain``; when B2 denies a part's SHA-1, tells a changed file from bytes that broke on the way.

        A refused token is an upload URL's, since the key itself was accepted at sign-in: all that wait are thrown away.
        """
        try:
            with self._explain(f"send {self.url}/{name}"):
                yield
        except StoreError as error:
            if isinstance(stream, SourceRange) and stream.failure is not None:
                raise stream.failure from None  # b2sdk makes an unknown error of what the stream raised
            if isinstance(stream, SourceRange) and isinstance(error.__cause__, b2.BadRequest):
                stream.check()
            if isinstance(error.__cause__, b2.InvalidAuthToken):
                if file_id is None:
                    self._api.account_info.clear_bucket_upload_data(self._bucket_id)
                else:
                    self._api.account_info.clear_large_file_upload_urls(file_id)
                void = f"could not send {self.url}/{name}: B2 does not know its own upload URL any more"
                raise StoreError("transient", void) from error.__cause__
            raise

    def _stored(self, entry: Mapping[str, Any]) -> StoredFile:
        name = str(entry["fileName"])
        return StoredFile(
            name=name.removeprefix(self._prefix),
            size=int(entry["contentLength"]),
            file_id=str(entry["fileId"]),
            sha1=_plain_sha1(entry.get("contentSha1")),
            uploaded_at=float(entry.get("uploadTimestamp") or 0) / 1000,
        )

    def _count(self, size: int) -> None:
        with self._lock:
            self._sent += size


def _hasher(parts: Sequence[Part], index: int) -> Callable[[], Hasher] | None:
    """How the hash of a part is found while it is sent, so that it is known afterwards."""
    return (lambda: parts.hasher(index)) if isinstance(parts, Cut) else None


class _SinkError(Exception):
    """Whoever takes the pieces gave up: nothing that asking the store again could cure."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error


def _whole_size(content_range: str | None) -> int | None:
    """Bytes of the whole object, as the answer to a range tells them: "bytes 0-99/1234"."""
    total = (content_range or "").rpartition("/")[2]
    return int(total) if total.isdecimal() else None


def _plain_sha1(value: object) -> str | None:
    """B2 says "none" for a large file, and "unverified:HASH" where the sender did not want the check."""
    text = str(value or "").removeprefix("unverified:")
    return text if len(text) == 40 else None


def _session(streams: int) -> requests.Session:
    """A connection for each stream, and reads of 1 MiB: requests' own ten connections would be dropped and remade."""
    session = requests.Session()
    adapter = _WideAdapter(pool_connections=4, pool_maxsize=streams + 4)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    session.headers["Accept-Encoding"] = "identity"
    return session


class _WideAdapter(HTTPAdapter):
    def send(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> requests.Response:
        """b2sdk waits twenty minutes for any answer, since a copy may take that long: nothing else may."""
        if "/b2_copy_" not in (request.url or ""):
            more["timeout"] = (CONNECT_S, ANSWER_S)
        return super().send(request, *args, **more)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, blocksize=hashing.CHUNK_BYTES, **kwargs)
