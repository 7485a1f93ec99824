"""Publish a step of which each machine has a part: each sends its own files, then one commits them all together.

The promise is that of ``publish``, in its order: what the step's name commits now is committed no more before a file of
other content is sent (``open_step``); the manifest is written when every file that the machines say they sent is listed
(``commit_parts``); the pointer comes last. Hashes of blocks are not kept: no step is compared with one made so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from supervisor.checkpoints.local_plan import Identity, Wanted
from supervisor.checkpoints.manifest import MANIFEST, Manifest, ManifestFile, parse_file
from supervisor.checkpoints.progress import Report
from supervisor.checkpoints.publish import Published, PublishPlan, StepPublish, content_of, entry_of
from supervisor.checkpoints.reuse import Reuse
from supervisor.checkpoints.sources import LocalFile
from supervisor.storage.base import Part, Store, StoredFile, StoreError
from supervisor.storage.hashing import part_ranges

Answer = dict[str, Any]


def send_part(store: Store, plan: PublishPlan, known: Sequence[str], report: Report) -> Answer:
    """Send this machine's files of a step, and hash those that another machine sends."""
    part = _Part(store, plan, report)
    return part.attempt(lambda: part.send(known))


def open_step(store: Store, plan: PublishPlan, report: Report) -> None:
    """Have no reader find, under this step's name, what is about to be replaced."""
    opened = _Part(store, plan, report)
    opened.attempt(opened.uncommit)


def commit_parts(store: Store, plan: PublishPlan, sent: Sequence[object], report: Report) -> Published:
    """Commit what the machines sent."""
    files = [_parse_sent(entry) for entry in sent]
    return _Commit(store, plan, [SentFile(file) for file in files], report).run()


class _Part(StepPublish):
    def send(self, known: Sequence[str]) -> Answer:
        sent_before = self.store.sent_bytes()
        listing = {file.name: file for file in self.store.list(self.folder)}
        before, _, _ = self._committed_manifest(listing)
        committed = {file.path: file for file in before.files} if before else {}
        files = self._files_to_send(committed)
        if f"{self.folder}{MANIFEST}" in listing:
            if before is None or self._passed_over(before) or {file.name for file in files} - committed.keys():
                return {"other": True}
            self.sources.read_all(files)
            if any(content_of(file) != committed[file.name].content() for file in files):
                return {"other": True}
        own = [file for file in files if file.name not in known]
        self.sources.read_all([file for file in files if file.name in known])
        self.check_fence()
        self._look_at_the_base(own)
        stored = self._send_files(own, listing, committed)
        self.local.retire()
        entries = [entry_of(file, stored[file.name].file_id if file.name in stored else "") for file in files]
        return {"files": [asdict(entry) for entry in entries], "sent_bytes": self.store.sent_bytes() - sent_before}

    def uncommit(self) -> None:
        listing = {file.name: file for file in self.store.list(self.folder)}
        before, _, _ = self._committed_manifest(listing)
        if f"{self.folder}{MANIFEST}" in listing:
            self.check_fence()
            self._uncommit_step(before, listing, self.plan.files)


class SentFile(LocalFile):
    """A file that a machine sent: its hashes are known, its bytes are not here."""

    def __init__(self, entry: ManifestFile) -> None:
        self.name, self.size, self.file_id = entry.path, entry.size, entry.file_id
        self.part_size, self.block_size = entry.part_size, entry.block_size
        self.ranges = part_ranges(entry.size, entry.part_size)
        self.wanted = Wanted(self.name, Path(), Identity(self.size, 0, 0), self.part_size, self.block_size)
        self._sha1, self._xxh3 = entry.part_sha1, entry.xxh3

    def part(self, index: int) -> Part:
        return Part(*self.ranges[index], self._sha1[index])

    @property
    def xxh3(self) -> str:
        return self._xxh3


class _Commit(StepPublish):
    def __init__(self, store: Store, plan: PublishPlan, sent: Sequence[SentFile], report: Report) -> None:
        super().__init__(store, plan, report)
        self.sent = sent

    def _files_to_send(self, committed: Mapping[str, ManifestFile]) -> list[LocalFile]:
        return list(self.sent)

    def _is_same_content(self, before: Manifest, files: Sequence[LocalFile]) -> bool:
        return {content_of(file) for file in files} == {file.content() for file in before.files}

    def _without_rotten(
        self, files: Sequence[LocalFile], listing: dict[str, StoredFile], committed: Mapping[str, ManifestFile]
    ) -> dict[str, StoredFile]:
        return listing

    def _look_at_the_base(self, files: Sequence[LocalFile]) -> None:
        self.reuse = Reuse(self.plan.step, None, None)  # the bytes to compare are not here

    def _send_files(
        self, files: Sequence[LocalFile], listing: dict[str, StoredFile], committed: Mapping[str, ManifestFile]
    ) -> dict[str, StoredFile]:
        return {file.name: StoredFile(self.folder + file.name, file.size, file.file_id) for file in files}


def _parse_sent(entry: object) -> ManifestFile:
    """What a machine said of a file, as strictly as of a manifest. Raises StoreError."""
    file = parse_file(entry, "what a machine sent")
    if not file.file_id:
        raise StoreError("permanent", f"no machine sent {file.path}")
    return file
