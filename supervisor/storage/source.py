"""Reading a local file that is to be sent: by ranges, without links, and telling when it changed under us."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from supervisor.storage.base import Hasher, Part, Progress, StoreError
from supervisor.storage.hashing import CHUNK_BYTES

HASH_BYTES = 256 << 10  # fits a core's cache: larger blocks are read from memory twice


def open_source(path: Path) -> int:
    """A local file that is to be sent, opened for reading. Links are refused: what they point at may be anything.

    Raises kind "changed" when it vanished or is no plain file, "permanent" when it may not be read.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError as error:
        raise StoreError("permanent", f"{path} may not be read by this user: {error.strerror}") from error
    except OSError as error:
        raise StoreError("changed", f"{path} vanished or is no plain file any more: {error.strerror}") from error


def read_pieces(descriptor: int, path: Path, offset: int, size: int) -> Iterator[bytes]:
    """The bytes of a range in order. Raises kind "changed" when the file is shorter than that."""
    end = offset + size
    while offset < end:
        try:
            piece = os.pread(descriptor, min(CHUNK_BYTES, end - offset), offset)
        except OSError as error:
            raise StoreError("transient", f"{path} could not be read at byte {offset}: {error.strerror}") from error
        if not piece:
            raise StoreError("changed", f"{path} became shorter while it was read (byte {offset} is missing)")
        offset += len(piece)
        yield piece


def read_range(path: Path, offset: int, size: int) -> Iterator[bytes]:
    """The same of a file that is opened for it. Raises as ``open_source`` and ``read_pieces``."""
    descriptor = open_source(path)
    try:
        yield from read_pieces(descriptor, path, offset, size)
    finally:
        os.close(descriptor)


def hash_range(path: Path, offset: int, size: int) -> str:
    """Hexadecimal SHA-1 of a range of a file. hashlib lets other threads run meanwhile."""
    digest = hashlib.sha1(usedforsecurity=False)
    buffer = memoryview(bytearray(min(HASH_BYTES, max(1, size))))
    with SourceRange(path, Part(offset, size, "")) as source:
        while count := source.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _new_sha1() -> Hasher:
    return hashlib.sha1(usedforsecurity=False)


class SourceRange(io.RawIOBase):
    """A range of a file as a stream that can be sent, rewound and sent again, or given to sendfile."""

    def __init__(
        self,
        path: Path,
        part: Part,
        hasher: Callable[[], Hasher] | None = None,
        progress: Progress = lambda size: None,
    ) -> None:
        """``progress`` is told of bytes as they leave: a part may take minutes, and that is no standstill."""
        self.path = path
        self._progress = progress
        self._told = 0
        self.hasher = hasher or _new_sha1
        """Makes what finds the SHA-1 out on the way, for each time that the range is read from its beginning."""
        self._part = part
        self._descriptor = open_source(path)
        self._position = 0
        self.sha1 = part.sha1
        """Empty until it is known: then the first sender of the range finds it out on the way."""
        self.failure: StoreError | None = None
        """Why the file could not be read to the end."""

    def __len__(self) -> int:
        return self._part.size

    @property
    def offset(self) -> int:
        """Where in the file the range begins."""
        return self._part.offset

    def fileno(self) -> int:
        return self._descriptor

    def on_its_way(self, size: int) -> None:
        """``size`` further bytes were handed to the network."""
        self._told += size
        self._progress(size)

    def from_the_beginning(self) -> None:
        """What left before has to leave again."""
        told, self._told = self._told, 0
        if told:
            self._progress(-told)

    def report_confirmed(self) -> None:
        """The store confirmed all of it."""
        told, self._told = self._told, len(self)
        self._progress(len(self) - told)

    def read(self, size: int = -1) -> bytes:
        """For HTTP libraries, which read what they are about to send."""
        left = self._part.size - self._position
        wanted = min(left, CHUNK_BYTES) if size is None or size < 0 else min(size, left)
        piece = bytearray(max(0, wanted))
        count = self.readinto(memoryview(piece))
        self.on_its_way(count)
        return bytes(piece[:count])

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the range goes; returns the bytes read, 0 at its end."""
        view = memoryview(buffer)[: self._part.size - self._position]
        if not view:
            return 0
        at = self._part.offset + self._position
        try:
            count = os.preadv(self._descriptor, [view], at)
        except OSError as error:
            self.failure = StoreError("transient", f"{self.path} could not be read at byte {at}: {error.strerror}")
            raise self.failure from error
        if count == 0:
            self.fail_short(self._position)
        self._position += count
        return count

    def fail_short(self, position: int) -> NoReturn:
        """The file has no byte at ``position`` of the range: it was cut since its size was taken."""
        self.failure = StoreError(
            "changed",
            f"{self.path} became shorter while it was read (byte {self._part.offset + position} is missing)",
        )
        raise self.failure

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._part.size}[whence]
        self._position = base + offset
        if self._position == 0:
            self.from_the_beginning()
        return self._position

    def tell(self) -> int:
        return self._position

    def check(self) -> None:
        """Raises kind "changed" when the range no longer has the SHA-1 it was announced with."""
        if self.sha1 and hash_range(self.path, self._part.offset, self._part.size) != self.sha1:
            raise StoreError("changed", f"{self.path} changed after it was hashed (byte {self._part.offset} on)")

    def find_sha1(self) -> str:
        """The SHA-1, read for its own sake where it is not known: some ways of sending need it before."""
        if not self.sha1:
            digest, buffer = self.hasher(), memoryview(bytearray(HASH_BYTES))
            self.seek(0)
            while count := self.readinto(buffer):
                digest.update(buffer[:count])
            self.sha1 = digest.hexdigest()
        return self.sha1

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
