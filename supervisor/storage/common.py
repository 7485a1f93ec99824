"""What the stores have in common: the count of what was sent, and patient, verified reading over a network."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

from supervisor.base.retry import Retry
from supervisor.storage import hashing
from supervisor.storage.base import Sink, StoredFile, StoreError

REFETCHES = 5


class CountingStore:
    """A store that knows its parts' size and counts the bytes that it sent."""

    def __init__(self, url: str, streams: int, part_size: int) -> None:
        self.url = url
        self.streams = streams
        self._part_size = part_size
        self._sent = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        """It has nothing of its own."""

    def sent_bytes(self) -> int:
        return self._sent

    def part_size(self) -> int:
        return self._part_size

    @abstractmethod
    def list_versions(self, prefix: str) -> Sequence[StoredFile]:
        """As ``Store.list_versions``."""

    def version(self, name: str, file_id: str) -> StoredFile | None:
        return next((file for file in self.list_versions(name) if (file.name, file.file_id) == (name, file_id)), None)

    def get_range(self, file: StoredFile, offset: int, size: int) -> bytes:
        pieces: list[bytes] = []
        self.read_range(file, offset, size, lambda piece: pieces.append(bytes(piece)))
        return b"".join(pieces)

    @abstractmethod
    def read_range(self, file: StoredFile, offset: int, size: int, sink: Sink) -> None:
        """As ``Store.read_range``."""

    def _count_sent(self, size: int) -> None:
        with self._lock:
            self._sent += size


@dataclass(frozen=True)
class Body:
    """The bytes of an object as they come, once the answer's head is there."""

    size: int  # bytes that were announced, 0 where none were
    content_range: str | None  # "bytes 0-99/1234" where a range was asked for and given
    sha1: str | None  # of the whole object, where the store knows it
    pieces: Iterator[bytes | memoryview]  # each is good only until the next one is asked for

    @property
    def whole_size(self) -> int | None:
        """Bytes of the whole object, as the answer to a range tells them."""
        total = (self.content_range or "").rpartition("/")[2]
        return int(total) if total.isdecimal() else None


class RemoteStore(CountingStore):
    """A store behind a network, which breaks off, answers something else, and is asked again."""

    def __init__(self, url: str, streams: int, part_size: int, retry: Retry) -> None:
        super().__init__(url, streams, part_size)
        self._retry = retry
        self._pool = ThreadPoolExecutor(streams, "stream")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    @abstractmethod
    def _open_body(
        self, name: str, file_id: str | None, span: tuple[int, int] | None = None
    ) -> AbstractContextManager[Body]:
        """Ask once for an object, or for its bytes from the first to the last of ``span``. Raises StoreError."""

    def get_bytes(self, name: str, file_id: str | None = None, limit: int = 16 << 20) -> bytes:
        def attempt() -> tuple[bytes, str | None]:
            pieces: list[bytes] = []
            got = 0
            with self._open_body(name, file_id) as body:
                too_large = StoreError("damaged", f"{self.url}/{name} has more than the {limit} bytes it may have")
                if body.size > limit:
                    raise too_large
                for piece in body.pieces:
                    pieces.append(bytes(piece))
                    got += len(piece)
                    if got > limit:
                        raise too_large
            return b"".join(pieces), body.sha1

        for number in range(1, REFETCHES + 1):
            data, sha1 = self._retry.call(attempt)
            if not sha1 or hashing.sha1(data) == sha1:
                return data
            self._retry.sleep(self._retry.pause(number))
        raise StoreError("damaged", f"{self.url}/{name} came back {REFETCHES} times with bytes that its SHA-1 denies")

    def read_range(self, file: StoredFile, offset: int, size: int, sink: Sink) -> None:
        got = 0

        def attempt() -> None:
            nonlocal got
            if got == size:
                return
            with self._open_body(file.name, file.file_id, (offset + got, offset + size - 1)) as body:
                if body.content_range is None and (offset + got > 0 or size != file.size):
                    raise StoreError("transient", f"{self.url}/{file.name}: the server answered without a range")
                there = body.whole_size
                if there is not None and there < offset + size:
                    raise StoreError(
                        "damaged", f"{self.url}/{file.name} has {there} bytes, and {offset + size} were expected"
                    )
                for piece in body.pieces:
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


class _SinkError(Exception):
    """The reader of the pieces gave up: nothing that asking the store again could cure."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error
