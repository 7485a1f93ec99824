"""The hashes of a step's local files: of parts for the store, of blocks for the next step; each taken once.

A part is hashed while it passes by on its way to the store, where the store can take the hash after the bytes. Else it
is read when the store asks for it, by the thread that is about to send it, and only as many at a time as there are
processors. Only a caller that has to know the whole file waits for all its hashes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from supervisor.checkpoints.blocks import PartHasher, hash_part, whole_hash
from supervisor.checkpoints.local_plan import Found, Identity, LocalPlan, Wanted
from supervisor.checkpoints.progress import Meter
from supervisor.storage.base import Cut, Hasher, Part, Progress, StoreError
from supervisor.storage.hashing import part_ranges
from supervisor.storage.parallel import all_of

T = TypeVar("T")
SMALL_BYTES = 1 << 20
"""A part up to this size is hashed at once: the first byte of a step does not wait behind 100 MB of another file."""


class LocalFile(Cut):
    """One file of the step, cut in parts. Safe to use from several threads."""

    def __init__(self, wanted: Wanted, sources: Sources, local: LocalPlan) -> None:
        self.wanted = wanted
        self.name, self.source, self.identity = wanted.name, wanted.source, wanted.identity
        self.size, self.part_size, self.block_size = wanted.identity.size, wanted.part_size, wanted.block_size
        self.ranges = part_ranges(self.size, self.part_size)
        known, self.file_id = local.recall_hashes(wanted)
        self._found: list[Found | None] = [known.get(index) for index in range(len(self.ranges))]
        self._locks = [threading.Lock() for _ in self.ranges]
        self._sources = sources
        self._local = local

    def part(self, index: int) -> Part:
        return Part(*self.ranges[index], self._take_hash_turns(index)[0])

    def known_sha1(self, index: int) -> str:
        found = self._found[index]
        return found[0] if found is not None else ""

    def hasher(self, index: int) -> Hasher:
        return _Passing(self, index)

    def saw(self, index: int, found: Found) -> None:
        """The hashes of a part that another reader read."""
        with self._locks[index]:
            self._found[index] = found
            self._local.remember(self.wanted, index, found)

    @property
    def blocks(self) -> bytes:
        """The hashes of all blocks, in order."""
        return b"".join(self._take_hash_turns(index)[1] for index in range(len(self)))

    @property
    def xxh3(self) -> str:
        """The hash of the whole file, see ``blocks.whole_hash``."""
        return whole_hash(self.blocks)

    @property
    def is_hashed(self) -> bool:
        """Are the hashes of all parts known?"""
        return None not in self._found

    def is_about_to_be_in_the_store(self, file_id: str) -> None:
        """All parts are confirmed, and the next request makes them an object of this id. The disk knows it first.

        Raises kind "changed" when the file is no longer the one that was sent.
        """
        self._sources.check_unchanged(self)
        self.file_id = file_id
        self._local.confirm(self.wanted, file_id, now=True)

    def is_in_the_store(self, file_id: str) -> None:
        """All of it is confirmed under this id. Raises kind "changed" when it is no longer the file that was sent."""
        self._sources.check_unchanged(self)
        self.file_id = file_id
        self._local.confirm(self.wanted, file_id)

    def read(self, index: int) -> int:
        """Hash a part for later; returns its size."""
        self._take_hash_turns(index, contextlib.nullcontext())
        return self.ranges[index][1]

    def _take_hash_turns(self, index: int, turn: AbstractContextManager[None] | None = None) -> Found:
        with self._locks[index]:
            found = self._found[index]
            if found is None:
                place = self.ranges[index]
                with turn or self._sources.turn(place[1]):
                    found = hash_part(self.source, place, self.size, self.block_size)
                self._found[index] = found
                self._local.remember(self.wanted, index, found)
        return found


class _Passing:
    """Hashes a part of a file while it passes by on its way to the store."""

    def __init__(self, file: LocalFile, index: int) -> None:
        self._file, self._index = file, index
        self._hasher = PartHasher(file.source, file.ranges[index], file.size, file.block_size)

    def update(self, data: memoryview) -> None:
        self._hasher.update(data)

    def hexdigest(self) -> str:
        found = self._hasher.finish_hashing()
        self._file.saw(self._index, found)
        return found[0]


class Sources:
    """The files of one step while it is being published. Use as a context manager: its threads end with it."""

    def __init__(self, step: int, local: LocalPlan, meter: Meter) -> None:
        self._step = step
        self._local = local
        self._meter = meter
        processors = len(os.sched_getaffinity(0))
        self._turns = threading.BoundedSemaphore(processors)
        self._readers = ThreadPoolExecutor(processors, thread_name_prefix="hash")

    def file(self, wanted: Wanted) -> LocalFile:
        """The file with what the local plan knows of it."""
        return LocalFile(wanted, self, self._local)

    @contextlib.contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Wait until ``size`` bytes that are about to be sent may be hashed. Raises when another file failed meanwhile.

        Not for what is read ahead: that would be back in the queue before the waiting thread has woken up.
        """
        if size <= SMALL_BYTES:
            yield
            return
        with self._turns:
            self._meter.add(0)
            yield

    def read(self, file: LocalFile, progress: Progress) -> list[Future[None]]:
        """Begin to hash all of it, beside what else is going on; ``progress`` is told of known parts, too."""

        def read_part(index: int) -> None:
            self._meter.add(0)
            progress(file.read(index))

        return [self._readers.submit(read_part, index) for index in range(len(file))]

    def read_all(self, files: Iterable[LocalFile]) -> None:
        """Hash them all before anything else is done."""
        files = list(files)
        self._meter.phase("hashing", sum(file.size for file in files))
        self._wait_for_jobs([job for file in files for job in self.read(file, self._meter.add)])
        for file in files:
            self.check_unchanged(file)
            self._meter.add(0, 1)
        self._local.save()

    def check_unchanged(self, file: LocalFile) -> None:
        """Raises kind "changed" when the file is no longer the one that was hashed."""
        try:
            if Identity.of(file.source) == file.identity:
                return
        except StoreError:
            self._local.forget(file.name)
            raise
        self._local.forget(file.name)
        raise StoreError("changed", f"{file.source} was rewritten while step {self._step} was being published")

    def all(self, workers: int, act: Callable[[LocalFile], T], files: Sequence[LocalFile]) -> list[T]:
        """``act`` on all files in parallel, begun in their order; the first failure stops the others and is raised."""
        with ThreadPoolExecutor(max(1, min(workers, len(files))), thread_name_prefix="publish") as pool:
            jobs = [pool.submit(act, file) for file in files]
            self._wait_for_jobs(jobs)
            return [job.result() for job in jobs]

    def _wait_for_jobs(self, jobs: Sequence[Future[Any]]) -> None:
        """Until all are done; what fails first stops whatever counts bytes, and is raised when nothing is under way."""
        try:
            all_of(jobs, self._meter.stop)
        except BaseException:
            self._local.save()
            raise

    def __enter__(self) -> Sources:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._readers.shutdown(cancel_futures=True)
