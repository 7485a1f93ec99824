"""What a step shares with the one that the run's pointer names, so that only the rest has to be sent.

The comparison costs one small object (16 bytes a MiB) and no reading: the hashes are taken anyway. A run of which
nearly everything changes from step to step (full fine-tuning) is noted on the local disk, and then not compared again
until its files, its configuration or the trainer's revision are others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from supervisor.checkpoints import delta
from supervisor.checkpoints.blocks import BLOCKS, HASH_BYTES, count_blocks, whole_hash
from supervisor.checkpoints.local_plan import Hashed
from supervisor.checkpoints.manifest import (
    BLOCKS_LIMIT,
    STEP,
    BlocksObject,
    Manifest,
    ManifestFile,
    sha256,
    step_folder,
)
from supervisor.checkpoints.records import read_latest, read_manifest
from supervisor.storage.base import Composer, Part, Piece, Progress, Store, StoredFile, StoreError
from supervisor.storage.source import hash_range

FORMAT = 1
LARGEST_PIECE = 1_000_000_000  # bytes: a fifth of what one copy may have, so that it is answered in good time
SHARED_AT_LEAST = 0.05
"""A step that shares less of its large files with the one before makes the run one that is not compared again."""
HASHERS = 4


@dataclass(frozen=True)
class Base:
    """The step that is compared with: its files by their ``role``, and for large ones the hashes of their blocks."""

    folder: str
    files: Mapping[str, ManifestFile]
    blocks: Mapping[str, bytes]

    def stored(self, role: str) -> StoredFile:
        """The object of a file, by its id."""
        file = self.files[role]
        return StoredFile(self.folder + file.path, file.size, file.file_id)


def role(name: str, step: int) -> str:
    """What a file is, in whichever step: trainers number folders inside of a step, too."""
    return "/".join(
        f"step{int(match[1]) - step:+d}" if (match := STEP.fullmatch(segment)) else segment
        for segment in name.split("/")
    )


class Reuse:
    """For one publish: which files are made of the base's, and how. Without a composer or a base: none."""

    def __init__(self, step: int, composer: Composer | None, base: Base | None) -> None:
        self._step = step
        self._composer = composer
        self._base = base
        self._spans: dict[str, list[delta.Span]] = {}

    def compare(self, hashed: Sequence[Hashed]) -> float | None:
        """Decide for all files; returns the share of large files' bytes that need not be sent, None if unknown."""
        compared = shared = 0
        for entry in hashed:
            what = role(entry.name, self._step)
            if not self._large(entry) or self._base is None or what not in self._base.blocks:
                continue
            spans = self._plan(entry, self._base.files[what], self._base.blocks[what])
            compared += entry.identity.size
            if spans is not None:
                self._spans[entry.name] = spans
                shared += sum(span.size for span in spans if span.copied)
        return shared / compared if compared else None

    def put(self, name: str, entry: Hashed, progress: Progress) -> StoredFile | None:
        """Make the object ``name`` of the base's, as far as that goes; None when the file is better sent whole."""
        composer, base = self._composer, self._base
        if composer is None or base is None:
            return None
        what = role(entry.name, self._step)
        earlier = base.files.get(what)
        if earlier is None or entry.identity.size == 0:
            return None
        spans = self._spans.get(entry.name)
        if spans is not None:
            pieces = _pieces(entry, spans)
            return composer.compose(name, entry.source, entry.parts, pieces, base.stored(what), progress)
        if len(entry.parts) == 1 and _same(entry, earlier):
            return composer.copy(name, entry.source, entry.parts[0], base.stored(what), progress)
        return None

    def blocks_object(self, hashed: Sequence[Hashed]) -> tuple[bytes, dict[str, int]]:
        """The content of ``manifest.blocks``, and where in it each file's hashes begin."""
        data, places = bytearray(), {}
        for entry in sorted(hashed, key=lambda entry: entry.name):
            if self._large(entry) and len(data) + len(entry.blocks) <= BLOCKS_LIMIT:
                places[entry.name] = len(data)
                data += entry.blocks
        return bytes(data), places

    def _large(self, entry: Hashed) -> bool:
        """Can it be made of two parts at all?"""
        return self._composer is not None and entry.identity.size >= 2 * self._composer.least_bytes

    def _plan(self, entry: Hashed, earlier: ManifestFile, old: bytes) -> list[delta.Span] | None:
        if self._composer is None or entry.block_size != earlier.block_size:
            return None
        size, block = entry.identity.size, entry.block_size
        equal = delta.equal_blocks(entry.blocks, size, old, earlier.size, block)
        limits = delta.Limits(
            self._composer.least_bytes, min(entry.part_size, LARGEST_PIECE), self._composer.most_pieces
        )
        spans = delta.plan(size, block, equal, limits)
        if spans is not None and len(spans) == 1:  # no large file has one part only; this one is long enough for two
            half = size // 2
            return [delta.Span(0, half, True), delta.Span(half, size - half, True)]
        return spans


def _same(entry: Hashed, earlier: ManifestFile) -> bool:
    return earlier.size == entry.identity.size and earlier.part_sha1 == tuple(part.sha1 for part in entry.parts)


def _pieces(entry: Hashed, spans: Sequence[delta.Span]) -> list[Piece]:
    """The spans with their SHA-1. Most are plain parts, whose hashes are known; the others are read again."""
    known = {(part.offset, part.size): part.sha1 for part in entry.parts}

    def piece(span: delta.Span) -> Piece:
        place = (span.offset, span.size)
        return Piece(Part(*place, known.get(place) or hash_range(entry.source, *place)), span.copied)

    with ThreadPoolExecutor(HASHERS, thread_name_prefix="pieces") as hashers:
        return list(hashers.map(piece, spans))


def find_base(store: Store, run_id: str, *, with_blocks: bool) -> Base | None:
    """The step that the pointer names, or None when there is none that can be read: then everything is sent.

    Raises StoreError "transient" and the like: an upload of hours is no answer to a request that failed.
    """
    try:
        latest = read_latest(store, run_id)
        if latest is None or latest.legacy:
            return None
        manifest, data = read_manifest(store, run_id, latest.step, latest.manifest_file_id or None)
        if sha256(data) != latest.manifest_sha256:
            return None
        blocks = _read_blocks(store, run_id, manifest) if with_blocks else {}
    except StoreError as error:
        if error.kind in ("missing", "damaged"):
            return None
        raise
    files = {role(file.path, latest.step): file for file in manifest.files}
    return Base(step_folder(run_id, latest.step), files, blocks)


def _read_blocks(store: Store, run_id: str, manifest: Manifest) -> dict[str, bytes]:
    """Block hashes by role; each file's are checked against the hash that the manifest has of the whole."""
    there: BlocksObject | None = manifest.blocks
    if there is None:
        return {}
    try:
        data = store.get_bytes(f"{step_folder(run_id, manifest.step)}{BLOCKS}", there.file_id, BLOCKS_LIMIT)
    except StoreError as error:
        if error.kind in ("missing", "damaged"):
            return {}
        raise
    found = {}
    for file in manifest.files:
        if file.blocks_at is None or file.block_size == 0:
            continue
        hashes = data[file.blocks_at : file.blocks_at + HASH_BYTES * count_blocks(file.size, file.block_size)]
        if whole_hash(hashes) == file.xxh3:
            found[role(file.path, manifest.step)] = hashes
    return found


class Memory:
    """On the local disk: was comparing this run worth it the last time? Any doubt means: compare."""

    def __init__(self, path: Path, store_url: str, shape: Sequence[object]) -> None:
        self._path = path
        text = json.dumps([store_url, *shape], sort_keys=True, default=str)
        self._shape = hashlib.sha256(text.encode()).hexdigest()

    def hopeless(self) -> bool:
        """Did a step of the same shape share next to nothing with the one before?"""
        try:
            noted = json.loads(self._path.read_text())
            return bool(
                noted["format"] == FORMAT and noted["shape"] == self._shape and noted["shared"] < SHARED_AT_LEAST
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def note(self, shared: float) -> None:
        """Keep what the comparison found. That it cannot be kept costs a comparison, and nothing else."""
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        try:
            temporary.write_text(json.dumps({"format": FORMAT, "shape": self._shape, "shared": shared}))
            temporary.replace(self._path)
        except OSError:
            return


def shape_of(hashed: Sequence[Hashed], step: int, *more: object) -> list[object]:
    """What has to stay the same for a verdict on a run to hold: its files and their sizes (MiB), and ``more``."""
    return [sorted((role(entry.name, step), entry.identity.size >> 20) for entry in hashed), *more]
