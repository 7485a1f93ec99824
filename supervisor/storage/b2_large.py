"""Large files of B2: begun once, every part confirmed by its SHA-1, and continued after a kill.

What was sent before a kill is found again by its cut, and each part of it is compared by its SHA-1 before it counts.
The last request names the SHA-1 of every part again, which B2 compares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from b2sdk.v3 import exception as b2

from supervisor.storage import hashing
from supervisor.storage.b2client import B2Client
from supervisor.storage.base import (
    Cut,
    Finishing,
    Hasher,
    Part,
    Progress,
    StoredFile,
    StoreError,
    UploadEndedError,
    known_part,
    ranges_of,
)
from supervisor.storage.parallel import all_of
from supervisor.storage.source import SourceRange

CONTENT_TYPE = "application/octet-stream"
CUT_KEY = "rl_cut"
"""fileInfo key of ``hashing.cut_digest``: an unfinished upload is continued by a file that is cut as it was begun. What
its parts hold is not said by it (unknown before the file is read), so each is compared."""

Ranges = Sequence[tuple[int, int]]  # (offset, size)
Listed = dict[int, tuple[int, str]]  # by part number the size and SHA-1
Copy = Callable[[str], bool]
"""Makes one part of the large file of this id on the server; False: it has to be sent."""
NO_COPIES: Mapping[int, Copy] = MappingProxyType({})


class LargeFiles:
    """Files of two parts or more in one bucket."""

    def __init__(self, client: B2Client, pool: Executor, count: Callable[[int], None]) -> None:
        self._client = client
        self._url = client.url
        self._pool = pool
        self._count = count

    def send(  # noqa: PLR0917
        self,
        name: str,
        full: str,
        path: Path,
        parts: Sequence[Part],
        progress: Progress,
        finishing: Finishing,
        copies: Mapping[int, Copy] = NO_COPIES,
    ) -> StoredFile:
        """Send the parts of a local file and make it an object; a part in ``copies`` (by number) only if that fails."""
        file_id, there = self._begin(name, full, ranges_of(parts))
        stop = threading.Event()

        def make(number: int) -> None:
            if stop.is_set():
                return
            # A part that is there has to be read to be compared; any other is hashed while it is sent.
            part = parts[number - 1] if number in there else known_part(parts, number - 1)
            if there.get(number) == (part.size, part.sha1) or (number in copies and copies[number](file_id)):
                progress(part.size)
                return
            with SourceRange(path, part, hasher_of(parts, number - 1), progress) as stream:
                self._send_part(name, file_id, number, stream, stop)

        sent_first = sorted(range(1, len(parts) + 1), key=lambda number: number in copies)  # so the link never waits
        all_of([self._pool.submit(make, number) for number in sent_first], lambda _: stop.set())
        finishing(file_id)
        return self._finish(name, file_id, parts)

    def cancel_below(
        self, prefix: str, full_prefix: str, spare: Callable[[str], bool], fence: Callable[[], None]
    ) -> int:
        """Cancel every unfinished file named ``full_prefix...``, unless ``spare`` takes its name."""
        found = [
            entry
            for entry in self._all_unfinished(full_prefix, prefix)
            if not spare(str(entry["fileName"]).removeprefix(self._client.prefix))
        ]
        if found:
            fence()
        return sum(self._cancel(entry["fileId"], prefix) for entry in found)

    def _cancel(self, file_id: str, what: str) -> bool:
        """Cancel an unfinished file; False when it had ended already."""
        try:
            with self._client.explain_errors(f"cancel an unfinished upload of {self._url}/{what}"):
                self._client.session.cancel_large_file(file_id)
            return True
        except StoreError as error:
            if not self._is_over(file_id, what, error):
                raise
            return False

    # ------------------------------------------------------------ one file

    def _begin(self, name: str, full: str, ranges: Ranges) -> tuple[str, Listed]:
        """The id of an unfinished large file of this cut, begun before or now, and the parts that it holds."""
        info = {CUT_KEY: hashing.cut_digest(ranges)}
        file_id, there = self._find_unfinished(name, full, info, len(ranges))
        if file_id is None:
            with self._client.explain_errors(f"start the upload of {self._url}/{name}"):
                begun = self._client.session.start_large_file(self._client.bucket_id, full, CONTENT_TYPE, info)
                file_id = begun["fileId"]
        return str(file_id), there

    def _send_part(self, name: str, file_id: str, number: int, stream: SourceRange, stop: threading.Event) -> None:
        def attempt() -> UploadEndedError | None:
            if stop.is_set():  # the first failure is what counts
                raise StoreError("changed", f"the upload of {name} was given up")
            try:
                with self._client.explain_send_errors(name, stream, file_id):
                    answer = self._client.session.upload_part(file_id, number, len(stream), stream.sha1, stream)
            except StoreError as error:
                if isinstance(error.__cause__, b2.BadRequest) and self._is_over(file_id, name, error):
                    return self._cancelled_error(name)  # no further try changes that
                raise
            if answer["contentSha1"] != stream.sha1:
                raise StoreError("transient", f"{self._url} confirmed another SHA-1 for part {number} of {name}")
            return None

        ended = self._client.retry.call(attempt)
        if ended is not None:
            raise ended
        stream.report_confirmed()
        self._count(len(stream))

    def _cancelled_error(self, name: str) -> UploadEndedError:
        """B2 says of it "No active upload", or that it knows no such file."""
        return UploadEndedError(f"the upload of {self._url}/{name} was cancelled while it was under way, and not by us")

    def _finish(self, name: str, file_id: str, parts: Sequence[Part]) -> StoredFile:
        """Make one object of the parts. An error may only mean that the answer was lost, so look before failing.

        Where B2 keeps saying that it lacks a part, but confirmed it and lists it, it is unknown which one to send
        again: then the upload is cancelled, and the next call sends the file anew.
        """
        size = sum(part.size for part in parts)
        retry = self._client.retry
        for number in range(1, retry.tries + 1):
            try:
                with self._client.explain_errors(f"finish the upload of {self._url}/{name}"):
                    return self._client.file_of_entry(
                        self._client.session.finish_large_file(file_id, [part.sha1 for part in parts])
                    )
            except StoreError as error:
                failure = error
            if not isinstance(failure.__cause__, b2.MissingPart) or number == retry.tries:
                break
            retry.sleep(retry.pause(number))
        try:
            with self._client.explain_errors(f"look at {self._url}/{name}"):
                answer = self._client.session.get_file_info_by_id(file_id)
        except StoreError as error:
            raise self._cancelled_error(name) if error.kind == "missing" else failure from None
        if answer["action"] == "upload" and answer["contentLength"] == size:
            return self._client.file_of_entry(answer)
        if isinstance(failure.__cause__, b2.MissingPart):
            self._cancel(file_id, name)
        raise failure

    # ------------------------------------------------------------ what was left unfinished

    def _find_unfinished(self, name: str, full: str, info: Mapping[str, str], most: int) -> tuple[str | None, Listed]:
        """The unfinished upload of this name and cut that is furthest, and the parts that it holds."""
        best: tuple[str | None, Listed] = (None, {})
        if "listFiles" not in self._client.capabilities:
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
            with self._client.explain_errors(f"list unfinished uploads of {self._url}/{what}"):
                page = self._client.session.list_unfinished_large_files(
                    self._client.bucket_id, start_file_id=start, max_file_count=100, prefix=full_prefix
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
            with self._client.explain_errors(f"look at an unfinished upload of {self._url}/{what}"):
                return bool(self._client.session.get_file_info_by_id(file_id)["action"] != "start")
        except StoreError as error:
            return error.kind == "missing"

    def _parts_there(self, file_id: str, name: str) -> Listed:
        """The parts that arrived, as B2 knows them."""
        there: Listed = {}
        start: int | None = None
        while True:
            with self._client.explain_errors(f"list the parts of {self._url}/{name}"):
                page = self._client.session.list_parts(file_id, start, 1000)
            for entry in page["parts"]:
                there[int(entry["partNumber"])] = (int(entry["contentLength"]), str(entry["contentSha1"]))
            start = page["nextPartNumber"]
            if start is None:
                return there


def hasher_of(parts: Sequence[Part], index: int) -> Callable[[], Hasher] | None:
    """How the hash of a part is found while it is sent, so that it is known afterwards."""
    return (lambda: parts.hasher(index)) if isinstance(parts, Cut) else None
