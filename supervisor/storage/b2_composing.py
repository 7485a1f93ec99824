"""New B2 files from the bytes of older ones: ``b2_copy_file`` for small ones, ``b2_copy_part`` for ranges of large.

A copied range is verified like a sent one: B2 answers a copy with the SHA-1 of the bytes that it stored, and the last
request of a large file names the SHA-1 of every part again, which B2 compares. What cannot be copied is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.storage import hashing
from supervisor.storage.base import Finishing, Part, Piece, Progress, StoredFile, StoreError, ranges_of, unheard
from supervisor.storage.source import SourceRange

if TYPE_CHECKING:
    from supervisor.storage.b2 import B2Store

REFUSALS = 3
"""Copies that may fail before the rest is sent without asking."""


class B2Composer:
    """Part of ``B2Store`` that makes objects of others, with its requests, its pool and its patience."""

    most_pieces = hashing.MOST_PARTS

    def __init__(self, store: B2Store, least_bytes: int) -> None:
        self._store = store
        self.least_bytes = least_bytes

    def copy(self, name: str, path: Path, part: Part, base: StoredFile, progress: Progress) -> StoredFile:
        store = self._store
        full = store._reach(name, "writeFiles", "write")
        try:
            with store._explain(f"copy {store.url}/{base.name} to {name}"):
                answer = store._session.copy_file(base.file_id, full)
        except StoreError:
            return store.put_file(name, path, part.size, [part], progress)
        stored = store._stored(answer)
        if stored.size != part.size or stored.sha1 != part.sha1:
            return store.put_file(name, path, part.size, [part], progress)  # newer than the copy, so it is the current
        progress(part.size)
        return stored

    def compose(  # noqa: PLR0917
        self,
        name: str,
        path: Path,
        pieces: Sequence[Piece],
        base: StoredFile,
        progress: Progress,
        finishing: Finishing = unheard,
    ) -> StoredFile:
        store = self._store
        full = store._reach(name, "writeFiles", "write")
        cut = [piece.part for piece in pieces]
        file_id, there = store._begin(name, full, ranges_of(cut))
        stop, source = threading.Event(), _Source(base)

        def make(number: int, piece: Piece) -> None:
            part = piece.part
            is_there = there.get(number) == (part.size, part.sha1)
            if not is_there and not (piece.copied and self._copied(name, file_id, number, part, source, stop)):
                with SourceRange(path, part, progress=progress) as stream:
                    store._send_part(name, file_id, number, stream, stop)
            else:
                progress(part.size)

        sent_first = sorted(enumerate(pieces, 1), key=lambda entry: entry[1].copied)  # so the link never waits
        wait_for([store._pool.submit(make, number, piece) for number, piece in sent_first], stop)
        finishing(file_id)
        return store._finish(name, file_id, cut)

    def _copied(  # noqa: PLR0917
        self, name: str, file_id: str, number: int, part: Part, source: _Source, stop: threading.Event
    ) -> bool:
        """Did the server take this part from the source, byte for byte? Otherwise it has to be sent."""
        if stop.is_set() or source.given_up():
            return False
        store, file = self._store, source.file
        try:
            with store._explain(f"copy a part of {store.url}/{file.name}"):
                answer: Mapping[str, Any] = store._session.copy_part(
                    file.file_id, file_id, number, bytes_range=(part.offset, part.offset + part.size - 1)
                )
        except StoreError as error:
            source.refused(for_good=error.kind == "missing")
            return False
        if answer.get("contentLength") == part.size and answer.get("contentSha1") == part.sha1:
            return True
        source.refused(for_good=False)
        return False


def wait_for(jobs: Sequence[Future[None]], stop: threading.Event) -> None:
    """Wait for all. After the first failure nothing further is begun, and it is raised when nothing is under way."""
    done, waiting = wait(jobs, return_when=FIRST_EXCEPTION)
    stop.set()
    for job in waiting:
        job.cancel()
    wait(jobs)
    for job in done:
        job.result()


class _Source:
    """The file that is copied from, and whether it is still worth asking for."""

    def __init__(self, file: StoredFile) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._refusals = 0

    def given_up(self) -> bool:
        with self._lock:
            return self._refusals >= REFUSALS

    def refused(self, *, for_good: bool) -> None:
        with self._lock:
            self._refusals += REFUSALS if for_good else 1
