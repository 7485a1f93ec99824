"""What a step shares with the one that the run's pointer names, so that only the rest has to be sent.

The comparison costs one small object (16 bytes a MiB) and no further reading: the hashes are taken anyway, but those of
a file that is compared before its first byte is sent. A run of which
nearly everything changes from step to step (full fine-tuning) is noted on the local disk, and then not compared again
until its files, its configuration or the trainer's revision are others.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from supervisor.checkpoints import delta
from supervisor.checkpoints.blocks import BLOCKS, HASH_BYTES, count_blocks, whole_hash
from supervisor.checkpoints.manifest import (
    BLOCKS_LIMIT,
    STEP,
    BlocksObject,
    Manifest,
    ManifestFile,
    sha256,
    step_folder,
)
from supervisor.checkpoints.progress import Meter
from supervisor.checkpoints.records import read_latest, read_manifest
from supervisor.checkpoints.sources import LocalFile
from supervisor.storage.base import Composer, Part, Piece, Progress, Store, StoredFile, StoreError
from supervisor.storage.source import read_range

FORMAT = 1
LARGEST_PIECE = 1_000_000_000  # bytes: a fifth of what one copy may have, so that it is answered in good time
SHARED_AT_LEAST = 0.05
"""A step that shares less of its large files with the one before makes the run one that is not compared again."""
HASHERS = 4


class Base:
    """The step that is compared with: its files by their ``role``, and for large ones the hashes of their blocks."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self._manifest = manifest
        self._folder = step_folder(manifest.run_id, manifest.step)
        self._lock = threading.Lock()
        self._blocks: dict[str, bytes] | None = None
        self.files = {role(file.path, manifest.step): file for file in manifest.files}

    def stored_file(self, role: str) -> StoredFile:
        """The object of a file, by its id."""
        file = self.files[role]
        return StoredFile(self._folder + file.path, file.size, file.file_id)

    def has_blocks(self, role: str) -> bool:
        """Does the manifest say that the hashes of this file's blocks are kept?"""
        file = self.files.get(role)
        return file is not None and file.blocks_at is not None and self._manifest.blocks is not None

    def blocks(self, role: str) -> bytes | None:
        """The hashes of a file's blocks, fetched with those of all others when they are first asked for."""
        with self._lock:
            if self._blocks is None:
                self._blocks = _read_blocks(self._store, self._manifest)
            return self._blocks.get(role)


def role(name: str, step: int) -> str:
    """What a file is, in whichever step: trainers number folders inside of a step, too."""
    return "/".join(
        f"step{int(match[1]) - step:+d}" if (match := STEP.fullmatch(segment)) else segment
        for segment in name.split("/")
    )


class Reuse:
    """For one publish: which files are made of the base's, and how. Without a composer or a base: none."""

    def __init__(self, step: int, composer: Composer | None, base: Base | None, memory: Memory | None = None) -> None:
        self._step = step
        self._composer = composer
        self._base = base
        self._memory = memory
        self._compared = self._shared = 0  # bytes
        self._lock = threading.Lock()
        self._undecided: set[str] = set()

    def comparable(self, files: Sequence[LocalFile]) -> list[LocalFile]:
        """The large files that are worth comparing with the base, for which all of them has to be hashed."""
        if self._base is None or self._memory is None or self._memory.hopeless():
            return []
        return [file for file in files if self._is_large(file) and self._base.has_blocks(role(file.name, self._step))]

    def compare(self, files: Sequence[LocalFile], *, all_of_them: bool) -> None:
        """These will be compared when they are put. ``all_of_them``: what they share speaks for the whole run."""
        self._undecided = {file.name for file in files}
        if not all_of_them:
            self._memory = None

    def put(self, name: str, file: LocalFile, meter: Meter) -> StoredFile | None:
        """Make the object ``name`` of the base's, as far as that goes; None when the file is better sent whole."""
        composer, base = self._composer, self._base
        if composer is None or base is None:
            return None
        what = role(file.name, self._step)
        earlier = base.files.get(what)
        if earlier is None or file.size == 0:
            return None
        if file.name in self._undecided:
            spans = self._plan_reuse(composer, file, earlier, base.blocks(what))
            self._is_decided(file, spans)
            if spans is not None:
                finishing = file.is_about_to_be_in_the_store
                pieces = _hash_pieces(file, spans, meter)
                return composer.compose(name, file.source, pieces, base.stored_file(what), meter.add, finishing)
        if len(file) == 1 and file.size == earlier.size and earlier.part_sha1 == (file[0].sha1,):
            return composer.copy(name, file.source, file[0], base.stored_file(what), meter.add)
        return None

    def blocks_object(self, files: Sequence[LocalFile]) -> tuple[bytes, dict[str, int]]:
        """The content of ``manifest.blocks``, and where in it each file's hashes begin."""
        data, places = bytearray(), {}
        for file in sorted(files, key=lambda file: file.name):
            if self._is_large(file) and len(data) + len(file.blocks) <= BLOCKS_LIMIT:
                places[file.name] = len(data)
                data += file.blocks
        return bytes(data), places

    def _is_large(self, file: LocalFile) -> bool:
        """Can it be made of two parts at all?"""
        return self._composer is not None and file.size >= 2 * self._composer.least_bytes

    def _plan_reuse(
        self, composer: Composer, file: LocalFile, earlier: ManifestFile, old: bytes | None
    ) -> list[delta.Span] | None:
        if old is None or file.block_size != earlier.block_size:
            return None
        size, block = file.size, file.block_size
        equal = delta.equal_blocks(file.blocks, size, old, earlier.size, block)
        limits = delta.Limits(composer.least_bytes, min(file.part_size, LARGEST_PIECE), composer.most_pieces)
        spans = delta.plan(size, block, equal, limits)
        if spans is not None and len(spans) == 1:  # no large file has one part only; this one is long enough for two
            half = size // 2
            return [delta.Span(0, half, True), delta.Span(half, size - half, True)]
        return spans

    def _is_decided(self, file: LocalFile, spans: Sequence[delta.Span] | None) -> None:
        """After the last one it is known whether comparing this run is worth it."""
        with self._lock:
            self._undecided.discard(file.name)
            self._compared += file.size
            self._shared += sum(span.size for span in spans or () if span.copied)
            if not self._undecided and self._memory is not None:
                self._memory.note(self._shared / self._compared)


def _hash_pieces(file: LocalFile, spans: Sequence[delta.Span], meter: Meter) -> list[Piece]:
    """The spans with their SHA-1. Most are plain parts with known hashes; the others are read again.

    That counts as progress: on a slow disk a reader that shows no progress would be given up.
    """
    known = {(part.offset, part.size): part.sha1 for part in file}
    meter.more(sum(span.size for span in spans if (span.offset, span.size) not in known))

    def piece(span: delta.Span) -> Piece:
        place = (span.offset, span.size)
        return Piece(Part(*place, known.get(place) or _hash_span(file.source, *place, meter.add)), span.copied)

    with ThreadPoolExecutor(HASHERS, thread_name_prefix="pieces") as hashers:
        return list(hashers.map(piece, spans))


def _hash_span(path: Path, offset: int, size: int, progress: Progress) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for read in read_range(path, offset, size):
        digest.update(read)
        progress(len(read))
    return digest.hexdigest()


def find_base(store: Store, run_id: str) -> Base | None:
    """The step that the pointer names, or None when there is none that can be read: then everything is sent.

    Raises StoreError "transient" and the like: an upload of hours is no answer to a request that failed.
    """
    try:
        latest = read_latest(store, run_id)
        if latest is None or latest.legacy:
            return None
        manifest, data = read_manifest(store, run_id, latest.step, latest.manifest_file_id or None)
    except StoreError as error:
        if error.kind in ("missing", "damaged"):
            return None
        raise
    return Base(store, manifest) if sha256(data) == latest.manifest_sha256 else None


def _read_blocks(store: Store, manifest: Manifest) -> dict[str, bytes]:
    """Block hashes by role; each file's are checked against the hash that the manifest has of the whole."""
    there: BlocksObject | None = manifest.blocks
    if there is None:
        return {}
    try:
        data = store.get_bytes(f"{step_folder(manifest.run_id, manifest.step)}{BLOCKS}", there.file_id, BLOCKS_LIMIT)
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


def shape_of(files: Sequence[LocalFile], step: int, *more: object) -> list[object]:
    """What has to stay the same for a verdict on a run to hold: its files and their sizes (MiB), and ``more``."""
    return [sorted((role(file.name, step), file.size >> 20) for file in files), *more]
