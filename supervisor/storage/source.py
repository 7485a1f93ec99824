"""Reading a local file that is to be sent: by ranges, without links, and telling when it changed under us."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from supervisor.storage.base import Part, StoreError
from supervisor.storage.hashing import CHUNK_BYTES, part_ranges


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


def hash_range(path: Path, offset: int, size: int) -> str:
    """Hexadecimal SHA-1 of a range of a file. hashlib lets other threads run meanwhile."""
    descriptor = open_source(path)
    try:
        digest = hashlib.sha1(usedforsecurity=False)
        for piece in read_pieces(descriptor, path, offset, size):
            digest.update(piece)
        return digest.hexdigest()
    finally:
        os.close(descriptor)


def hash_parts(path: Path, size: int, part_size: int) -> tuple[Part, ...]:
    """All parts of a small file with their hashes, one after the other."""
    return tuple(
        Part(offset, length, hash_range(path, offset, length)) for offset, length in part_ranges(size, part_size)
    )


class SourceRange(io.RawIOBase):
    """A range of a file as a stream that requests can send, rewind and send again."""

    def __init__(self, path: Path, part: Part) -> None:
        self._path = path
        self._part = part
        self._descriptor = open_source(path)
        self._position = 0
        self.failure: StoreError | None = None
        """Why the file could not be read to the end."""

    def __len__(self) -> int:
        return self._part.size

    def read(self, size: int = -1) -> bytes:
        left = self._part.size - self._position
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted <= 0:
            return b""
        try:
            piece = next(read_pieces(self._descriptor, self._path, self._part.offset + self._position, wanted))
        except StoreError as error:
            self.failure = error
            raise
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._part.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def check(self) -> None:
        """Raises kind "changed" when the range no longer has the SHA-1 it was announced with."""
        if hash_range(self._path, self._part.offset, self._part.size) != self._part.sha1:
            raise StoreError("changed", f"{self._path} changed after it was hashed (byte {self._part.offset} on)")

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
