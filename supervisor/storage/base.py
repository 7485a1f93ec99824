"""The store protocol: what publishing and restoring need of an object store, and nothing more.

One file a backend beside this one; ``tests/storage`` runs the same conformance test over all of them.
Names are POSIX paths below the store's root (its prefix is the backend's business). The remote listing is the truth.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, overload

from supervisor.base.errors import Kind as Kind  # noqa: PLC0414 - with StoreError a part of this protocol
from supervisor.base.errors import StoreError as StoreError  # noqa: PLC0414
from supervisor.base.records import dataclass


class UploadEndedError(StoreError):
    """An upload under way was ended from outside: by the pod that holds the run now, or by a person or a rule."""

    def __init__(self, sentence: str) -> None:
        super().__init__("transient", sentence)


@dataclass(frozen=True)
class StoredFile:
    """One current object. ``file_id`` addresses exactly this version."""

    name: str
    size: int
    file_id: str
    sha1: str | None = None  # whole-object SHA-1 where the store knows it (small objects)
    uploaded_at: float = 0.0  # Unix time


@dataclass(frozen=True)
class Part:
    """A range of a local file and its SHA-1, hexadecimal."""

    offset: int
    size: int
    sha1: str


class Hasher(Protocol):
    """As hashlib's objects: bytes in order, then one hash of them."""

    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


class Cut(Sequence[Part]):
    """The parts of a local file. The thread that asks for a hash computes it, one part at a time.

    So the first part is on its way while the last one has not been read. Asking again costs nothing.
    """

    ranges: Sequence[tuple[int, int]]
    """(offset, size) of each part: what is known without reading the file."""

    @abstractmethod
    def part(self, index: int) -> Part:
        """The part with its SHA-1. Raises kind "changed" when the file vanished or became shorter."""

    @abstractmethod
    def known_sha1(self, index: int) -> str:
        """The SHA-1 of a part if it is known already, else nothing: then a reader of it can find it out."""

    @abstractmethod
    def hasher(self, index: int) -> Hasher:
        """For a reader of the whole part: its ``hexdigest`` is the SHA-1, which is known from then on."""

    def __len__(self) -> int:
        return len(self.ranges)

    @overload
    def __getitem__(self, index: int) -> Part: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Part]: ...

    def __getitem__(self, index: int | slice) -> Part | Sequence[Part]:
        if isinstance(index, slice):
            return [self.part(number) for number in range(*index.indices(len(self)))]
        return self.part(range(len(self))[index])


def ranges_of(parts: Sequence[Part]) -> Sequence[tuple[int, int]]:
    """(offset, size) of each part, without asking a ``Cut`` for any hash."""
    return parts.ranges if isinstance(parts, Cut) else [(part.offset, part.size) for part in parts]


def known_part(parts: Sequence[Part], index: int) -> Part:
    """A part with its SHA-1 if that is known already, else with none ("")."""
    return Part(*parts.ranges[index], parts.known_sha1(index)) if isinstance(parts, Cut) else parts[index]


@dataclass(frozen=True)
class Piece:
    """A range of a new object: bytes to send, or (``copied``) bytes that another object has at the same offset."""

    part: Part
    copied: bool


Sink = Callable[[bytes | memoryview], None]
"""Takes the next bytes of what is read. They are good only until it returns: the buffer is used again."""

Progress = Callable[[int], None]
"""Called with the number of further bytes that the store confirmed (or that were verified on disk).

Raising in it abandons the transfer.
"""

Finishing = Callable[[str], None]
"""Called before an object comes to be, with the id that it is about to have; raising in it leaves no object.

A large file of B2 has its id beforehand, and all of it is confirmed then. Where a name keeps no versions, so that what
is there is lost, it is called with "", as late as the store can: before a rename, the last request of a large upload,
each try of a small one.
"""


def unheard(file_id: str) -> None:
    """A ``Finishing`` for callers that need not know."""


class Composer(Protocol):
    """What some stores can do besides: make a new object of another one's bytes without their travelling again.

    Where the other object is gone, its bytes are others, or the store refuses, the local file is sent instead: a
    caller need not care. The result is an object of its own, which the other one's deletion does not touch.
    """

    least_bytes: int
    """Of each piece but the last one of an object."""
    most_pieces: int

    def copy(self, name: str, path: Path, part: Part, base: StoredFile, progress: Progress) -> StoredFile:
        """``name`` as a copy of the whole small object ``base``, which should have the bytes of ``part``."""

    def compose(  # noqa: PLR0917
        self,
        name: str,
        path: Path,
        pieces: Sequence[Piece],
        base: StoredFile,
        progress: Progress,
        finishing: Finishing = unheard,
    ) -> StoredFile:
        """``name`` from two or more ``pieces``, which are the whole of the file at ``path``.

        Resumes what a kill left of the same cut; every piece is verified, the copied ones too.
        """


class Store(Protocol):
    """An object store, opened. All methods raise StoreError and are safe to call from several threads."""

    url: str
    streams: int
    """Requests that may be in flight at a time."""

    def close(self) -> None:
        """Nothing more is asked of it: its idle threads end. What another thread has under way is not waited for."""

    def sent_bytes(self) -> int:
        """Bytes of objects that were sent since the store was opened; bytes found there already do not count."""

    def part_size(self) -> int:
        """Bytes of a part that this store likes best."""

    def list(self, prefix: str) -> Sequence[StoredFile]:
        """All current objects with names that start with ``prefix`` (which ends in '/'), names relative to the root."""

    def list_versions(self, prefix: str) -> Sequence[StoredFile]:
        """Every version of all objects named ``prefix...``: a whole name, or a folder that ends in '/'.

        In the order of names, and of one name the newest first, as the store itself orders them (by its own clock);
        none that are older than a deletion of the name. A store without versions tells the one that there is.
        A name that merely begins like ``prefix`` may be among them.
        """

    def list_hidden(self, prefix: str) -> tuple[Sequence[StoredFile], Sequence[StoredFile]]:
        """What ``list_versions`` leaves out and is billed: versions that are older than a deletion of their name, and
        the markers of such deletions. While such a marker is the newest, deleting it brings the name back.
        """

    def version(self, name: str, file_id: str) -> StoredFile | None:
        """Exactly this version, also while no listing shows it yet; None when there is none."""

    def claim(self, name: str, data: bytes) -> bool | None:
        """Make the small object ``name`` unless there is one already, atomically: of any number of callers, one wins.

        True: it is ours. False: there was one already; also after a lost answer: look at its writer. None: this store
        has no such operation, and nothing was written; ``checkpoints.claims`` then settles it by versions and time.
        """

    def put_file(  # noqa: PLR0917
        self,
        name: str,
        path: Path,
        size: int,
        parts: Sequence[Part],
        progress: Progress,
        finishing: Finishing = unheard,
    ) -> StoredFile:
        """Send a local file in the given parts; resumes an unfinished upload of the same cut; verifies hashes.

        A ``Cut`` is asked for the hash of a part when that part's turn has come. A part that is there already is not
        sent again when it has that hash, and is replaced when it has another.
        """

    def put_bytes(self, name: str, data: bytes) -> StoredFile:
        """Send a small object; the newest becomes the current one."""

    def get_bytes(self, name: str, file_id: str | None = None, limit: int = 16 << 20) -> bytes:
        """A small object whole. Raises kind "missing" when there is none, "damaged" when larger than ``limit``."""

    def get_range(self, file: StoredFile, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes of one object version, by its id."""

    def read_range(self, file: StoredFile, offset: int, size: int, sink: Sink) -> None:
        """The same in pieces, in order, each handed to ``sink`` once: memory stays small however large the part is."""

    def delete(self, file: StoredFile) -> None:
        """Delete exactly this version; deleting what is gone already is success."""

    def composer(self) -> Composer | None:
        """How to make objects of others on the server; None where the store cannot, or where it would save nothing."""

    def sweep(
        self, prefix: str, spare: Callable[[str], bool] = lambda name: False, fence: Callable[[], None] = lambda: None
    ) -> int:
        """Cancel unfinished uploads below ``prefix``, except for names that ``spare`` takes; returns how many.

        ``fence`` is called between the look and the first cancel and raises when they may be another's: what was seen
        before we still held the run is no other pod's. A folder's writer is also known to live by its lock.
        """
