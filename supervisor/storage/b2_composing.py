"""New B2 files from the bytes of older ones: ``b2_copy_file`` for small ones, ``b2_copy_part`` for ranges of large.

A copied range is verified like a sent one: B2 answers a copy with the SHA-1 of the bytes that it stored, and the last
request of a large file names the SHA-1 of every part again, which B2 compares. What cannot be copied is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.storage import hashing
from supervisor.storage.b2_large import LargeFiles
from supervisor.storage.b2client import B2Client
from supervisor.storage.base import Finishing, Part, Piece, Progress, Store, StoredFile, StoreError, unheard

REFUSALS = 3
"""Copies that may fail before the rest is sent without asking."""


class B2Composer:
    """Makes objects of others. What cannot be copied, ``large`` or (when small) ``store`` sends."""

    most_pieces = hashing.MOST_PARTS

    def __init__(self, client: B2Client, large: LargeFiles, store: Store) -> None:
        self.least_bytes = client.least_part_bytes
        self._client = client
        self._large = large
        self._store = store

    def copy(self, name: str, path: Path, part: Part, base: StoredFile, progress: Progress) -> StoredFile:
        client, store = self._client, self._store
        full = client.reach(name, "writeFiles", "write")
        try:
            with client.explain_errors(f"copy {client.url}/{base.name} to {name}"):
                answer = client.session.copy_file(base.file_id, full)
        except StoreError:
            return store.put_file(name, path, part.size, [part], progress)
        stored = client.file_of_entry(answer)
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
        full = self._client.reach(name, "writeFiles", "write")
        source = _Source(base)
        copies = {
            number: partial(self._copy_part, source, number, piece.part)
            for number, piece in enumerate(pieces, 1)
            if piece.copied
        }
        return self._large.send(name, full, path, [piece.part for piece in pieces], progress, finishing, copies)

    def _copy_part(self, source: _Source, number: int, part: Part, file_id: str) -> bool:
        """Did the server take this part from the source, byte for byte? Otherwise it has to be sent."""
        if source.given_up():
            return False
        client, file = self._client, source.file
        try:
            with client.explain_errors(f"copy a part of {client.url}/{file.name}"):
                answer: Mapping[str, Any] = client.session.copy_part(
                    file.file_id, file_id, number, bytes_range=(part.offset, part.offset + part.size - 1)
                )
        except StoreError as error:
            source.count_refusal(for_good=error.kind == "missing")
            return False
        if answer.get("contentLength") == part.size and answer.get("contentSha1") == part.sha1:
            return True
        source.count_refusal(for_good=False)
        return False


class _Source:
    """The file that is copied from, and whether it is still worth asking for."""

    def __init__(self, file: StoredFile) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._refusals = 0

    def given_up(self) -> bool:
        with self._lock:
            return self._refusals >= REFUSALS

    def count_refusal(self, *, for_good: bool) -> None:
        with self._lock:
            self._refusals += REFUSALS if for_good else 1
