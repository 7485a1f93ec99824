"""Fetch a published step, verify every byte, and put it in place by rename.

Fetched into folders beside the targets, by parts, in parallel, by object version. A part with another SHA-1 than
the manifest's is fetched again (B2 served corrupt bytes with status 200 once: restic/restic#3268); a journal of what
arrived lets a killed restore continue, after what is on disk was hashed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.base.durable import make_folders
from supervisor.checkpoints.blocks import BLOCKS
from supervisor.checkpoints.manifest import MANIFEST, Latest, Manifest, sha256, step_folder
from supervisor.checkpoints.placement import Place, Spot, Tree, place_files
from supervisor.checkpoints.progress import Meter, Report
from supervisor.checkpoints.records import read_manifest, readable_latest
from supervisor.checkpoints.staging import Staging, alone_in, begin_to_write, claim, local_disk, sync_files
from supervisor.storage.base import Part, Store, StoredFile, StoreError
from supervisor.storage.hashing import fitting_part_size, part_ranges
from supervisor.storage.parallel import all_of
from supervisor.storage.source import hash_range

REFETCHES = 5
MISSING_REASKED = 2  # one 404 is no proof that a good step has lost a file
WRITE_BACK_BYTES = 8 << 20
"""From this size on a part begins to be written to the disk when it has come, and a file is brought there when it is
complete: a step of such files would leave too much for the end. Smaller ones are brought there together."""
CLAIMED_BYTES = 1 << 20
"""A part above this size has its room promised before it is asked for; a smaller one is in memory at once."""
TELL_BYTES = 4 << 20  # sixteen threads that count every block would wait for each other
TELL_S = 1.0
FOLDER_PLACEHOLDER = ".bzEmpty"  # what B2's web page leaves in an empty folder


@dataclass(frozen=True)
class Restored:
    """How it went. ``verified`` is False where no manifest told the hashes (a step of the original scripts)."""

    step: int
    size_bytes: int
    fetched_bytes: int
    files: int
    verified: bool
    already: bool  # every byte was in place before
    moved_aside: tuple[str, ...]  # what stood in the way, renamed beside it; never deleted
    beside: tuple[str, ...]  # folders of the step besides its own one
    dialect: str
    revision: str
    seconds: float


@dataclass(frozen=True)
class Item:
    """One file to fetch. A part's ``sha1`` is empty where it is unknown; ``whole_sha1`` where a small object's is."""

    name: str
    spot: Spot
    size: int
    parts: tuple[Part, ...]
    versions: tuple[StoredFile, ...]  # the one that the manifest names, then the current one of that name
    whole_sha1: str | None = None


@dataclass
class _Progress:
    """What is known of the staged files; guarded by ``lock``."""

    done: dict[str, set[int]] = field(default_factory=dict)
    fetched: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def restore(  # noqa: PLR0917
    store: Store,
    run_id: str,
    step: int,
    place: Place,
    output_dir: Path,
    report: Report,
    *,
    in_part: bool = False,
) -> Restored:
    """Bring ``step`` below ``output_dir``; a folder of that step that is there already is moved aside, not merged
    (with ``in_part`` its files that have the right bytes are linked into the new one).

    A step without a manifest is restored when the original scripts' ``latest.json`` vouches for it. Raises StoreError:
    "damaged" names the file (take the step before), "missing" when no such step is listed or committed, "no-room" when
    the local disk is too small, "transient" to call again: verified bytes are kept.
    """
    return _Restore(store, run_id, step, place, output_dir, report, in_part).run()


@dataclass
class _Restore:
    store: Store
    run_id: str
    step: int
    place: Place
    output_dir: Path
    report: Report
    in_part: bool

    def __post_init__(self) -> None:
        self.meter = Meter(self.report)
        self.folder = step_folder(self.run_id, self.step)
        self.staging = Staging(self.output_dir / self.place.primary, self.step)
        self.state = _Progress()
        self.unsynced: list[Path] = []  # complete, and not yet known to be on the disk

    def run(self) -> Restored:
        started = time.monotonic()
        self.meter.phase("placing", 0)
        items, manifest, fingerprint = self._items_to_restore()
        of_tree: dict[Tree, list[Item]] = {}
        for item in items:
            of_tree.setdefault(item.spot.tree, []).append(item)
        trees = sorted(of_tree, key=lambda tree: (tree.primary, str(tree.target)))
        tried = f"restore step {self.step} to {self.output_dir}"
        with local_disk(tried), alone_in(self.output_dir, self.step), closing(self.staging):
            self.staging.clear_others()
            self.meter.phase("checking", 0)
            in_place = {tree for tree in trees if self._is_in_place(tree, of_tree[tree])}
            todo = [item for item in items if item.spot.tree not in in_place]
            self._continue_killed_restore(todo, fingerprint)
            self.meter.phase("placing", 0)
            if self.in_part:
                self._take_over_what_is_right(todo)
            self.staging.make_room([(item.spot, item.size) for item in todo], self._one_more)
            try:
                self._fetch_all(todo)
            except StoreError as error:
                if error.kind == "damaged":  # these bytes cannot become a step: give their space back
                    self.staging.discard(trees)
                raise
            self.meter.phase("renaming", 0)
            self.staging.sync(self.unsynced, self.store.streams, self._one_more)
            aside = self.staging.rename([tree for tree in trees if tree not in in_place], self._one_more)
            self.staging.delete_journal()
        return Restored(
            step=self.step,
            size_bytes=sum(item.size for item in items),
            fetched_bytes=self.state.fetched,
            files=len(items),
            verified=manifest is not None,
            already=not todo,
            moved_aside=tuple(str(path) for path in aside),
            beside=tuple(str(tree.target) for tree in trees if not tree.primary),
            dialect=manifest.dialect if manifest else "",
            revision=manifest.revision if manifest else "",
            seconds=time.monotonic() - started,
        )

    def _one_more(self) -> None:
        """One of many names is done with: no byte moves meanwhile, and who waits sees that something does."""
        self.meter.add(0, 1)

    # ------------------------------------------------------------ what to fetch

    def _items_to_restore(self) -> tuple[list[Item], Manifest | None, str]:
        """All files, the manifest if there is one, and a fingerprint that tells one content from another."""
        listing = {file.name.removeprefix(self.folder): file for file in self.store.list(self.folder)}
        there = listing.pop(MANIFEST, None)
        listing.pop(BLOCKS, None)
        latest = readable_latest(self.store, self.run_id)
        try:
            manifest, data = read_manifest(self.store, self.run_id, self.step)
        except StoreError as error:
            if there is not None or error.kind != "missing":
                raise
            return self._unverified_items(listing, latest)
        # A listing may be seconds old, and then it lacks what was just published: it is asked for by its name as well.
        if there and latest and latest.manifest_file_id == there.file_id and latest.manifest_sha256 != sha256(data):
            raise StoreError("damaged", f"{MANIFEST} of step {self.step} is not the one that latest.json vouches for")
        spots = self._spots_of_names([file.path for file in manifest.files])
        items = []
        for file in manifest.files:
            named = StoredFile(self.folder + file.path, file.size, file.file_id)
            current = listing.get(file.path)
            versions: tuple[StoredFile, ...] = (named,)
            if current is not None and current.file_id != named.file_id and current.size == file.size:
                versions = (named, current)  # a copied store has other ids; the hashes decide
            spot = spots[file.path]
            items.append(Item(file.path, spot, file.size, file.parts(), versions))
        return items, manifest, sha256(data)

    def _spots_of_names(self, names: Iterable[str]) -> Mapping[str, Spot]:
        return place_files(names, self.step, self.place, self.output_dir, self._one_more)

    def _unverified_items(
        self, listing: Mapping[str, StoredFile], latest: Latest | None
    ) -> tuple[list[Item], None, str]:
        """A step of the original scripts: plain files, and a pointer that was moved after they were all there."""
        files = {name: file for name, file in listing.items() if not name.endswith(FOLDER_PLACEHOLDER)}
        if not files:
            raise StoreError("missing", f"there is no step {self.step} of {self.run_id} in {self.store.url}")
        vouched = latest is not None and latest.legacy and self.step <= latest.step
        if not vouched:
            raise StoreError(
                "missing",
                f"step {self.step} of {self.run_id} in {self.store.url} has no {MANIFEST}: it was never published "
                f"to the end. Take another step",
            )
        spots = self._spots_of_names(files)
        items = []
        for name, file in files.items():
            ranges = part_ranges(file.size, fitting_part_size(file.size, self.store.part_size(), self.store.streams))
            known = file.sha1 if file.sha1 and len(ranges) == 1 else ""
            parts = tuple(Part(offset, size, known) for offset, size in ranges)
            items.append(Item(name, spots[name], file.size, parts, (file,), file.sha1 if len(ranges) > 1 else None))
        return items, None, sha256(json.dumps(sorted((f.name, f.size, f.file_id) for f in files.values())).encode())

    # ------------------------------------------------------------ what is here already

    def _is_in_place(self, tree: Tree, items: Sequence[Item]) -> bool:
        """Did an earlier restore end just before it could say so? Then every byte is where it belongs."""
        if tree.target.is_symlink() or not tree.target.exists():
            return False
        expected = {item.spot.target for item in items}
        there = (
            {path for path in tree.target.rglob("*") if not path.is_dir()} if tree.target.is_dir() else {tree.target}
        )
        if there != expected or any(not part.sha1 for item in items for part in item.parts):
            return False
        if any(item.spot.target.is_symlink() or item.spot.target.stat().st_size != item.size for item in items):
            return False
        self.meter.more(sum(item.size for item in items))
        for item in items:
            for part in item.parts:
                if hash_range(item.spot.target, part.offset, part.size) != part.sha1:
                    return False
                self.meter.add(part.size)
            self.meter.add(0, 1)
        return True

    def _continue_killed_restore(self, items: Sequence[Item], fingerprint: str) -> None:
        """Take over what a killed restore of the same content left; what it says it has is hashed, not believed."""
        self.state.done = {item.name: set() for item in items}
        noted = self.staging.read_journal(fingerprint)
        if noted is None:
            self.staging.discard({item.spot.tree for item in items})
            if items:
                self.staging.begin(fingerprint)
            return
        by_name = {item.name: item for item in items}
        self.meter.phase("checking", 0)
        for name, number, sha1 in noted:
            item = by_name.get(name)
            if item is None or not 0 <= number < len(item.parts):
                continue
            part = item.parts[number]
            staged = item.spot.staging_path
            if staged.is_symlink() or not staged.is_file() or staged.stat().st_size != item.size:
                continue
            if hash_range(staged, part.offset, part.size) == (part.sha1 or sha1):
                self.state.done[name].add(number)
            self.meter.add(part.size)

    def _take_over_what_is_right(self, items: Sequence[Item]) -> None:
        """Of a step that is here in part (its other files are other machines'), the files with the right bytes stay."""
        self.meter.phase("checking", 0)
        for item in items:
            old, new = item.spot.target, item.spot.staging_path
            if self.state.done[item.name] or os.path.lexists(new) or not all(part.sha1 for part in item.parts):
                continue
            with contextlib.suppress(OSError):  # what cannot be taken over is fetched
                if old.is_symlink() or not old.is_file() or old.stat().st_size != item.size:
                    continue
                if all(hash_range(old, part.offset, part.size) == part.sha1 for part in item.parts):
                    make_folders(item.spot.tree.target.parent)
                    new.parent.mkdir(parents=True, exist_ok=True)
                    os.link(old, new)
                    self.state.done[item.name].update(range(len(item.parts)))
                self.meter.add(item.size)

    # ------------------------------------------------------------ fetching

    def _fetch_all(self, items: Sequence[Item]) -> None:
        self.meter.phase("fetching", sum(item.size for item in items))
        todo: deque[tuple[Item, int | None]] = deque()  # a part, or None: only the end of the file is left
        for item in sorted(items, key=lambda item: -item.size):
            there = self.state.done[item.name]
            self.meter.add(sum(item.parts[number].size for number in there))
            missing = [number for number in range(len(item.parts)) if number not in there]
            todo.extend((item, number) for number in missing or (None,))

        def stream() -> None:
            while todo:
                try:
                    item, number = todo.popleft()
                except IndexError:  # another stream was faster
                    return
                self._fetch_part(item, number)

        def stop(failed: BaseException) -> None:
            todo.clear()
            self.meter.stop(failed)

        with ThreadPoolExecutor(self.store.streams, thread_name_prefix="restore") as pool:
            all_of([pool.submit(stream) for _ in range(min(self.store.streams, len(todo)))], stop)

    def _fetch_part(self, item: Item, number: int | None) -> None:
        self.meter.add(0)  # raises when another part failed
        if number is None:
            self._complete_item(item)
            return
        part = item.parts[number]
        sha1 = self._fetch_until_right(item, part)
        with self.state.lock:
            self.staging.note(item.name, number, sha1)
            self.state.done[item.name].add(number)
            complete = len(self.state.done[item.name]) == len(item.parts)
        if complete:
            self._complete_item(item)

    def _fetch_until_right(self, item: Item, part: Part) -> str:
        """Fetch a part into its place; again when its bytes are wrong. Returns its SHA-1."""
        versions = list(item.versions)
        reasked = 0
        for attempt in range(1 + REFETCHES):
            try:
                sha1 = self._fetch_once(item, versions[0], part)
            except StoreError as error:
                if error.kind not in ("missing", "damaged"):
                    raise
                if len(versions) > 1:
                    versions.pop(0)
                    continue
                if error.kind == "missing" and reasked < MISSING_REASKED:
                    time.sleep(random.uniform(0, 0.5 * 2**reasked))  # noqa: S311
                    reasked += 1
                    continue
                what = f"{item.name} is not in the store" if error.kind == "missing" else str(error)
                raise StoreError("damaged", f"step {self.step} is damaged: {what}") from error
            if not part.sha1 or sha1 == part.sha1:
                return sha1
            self.meter.add(-part.size)
            time.sleep(random.uniform(0, min(8.0, 0.1 * 2**attempt)))  # noqa: S311
        raise StoreError(
            "damaged",
            f"step {self.step} is damaged: {item.name} came back {1 + REFETCHES} times with wrong bytes "
            f"(bytes {part.offset} to {part.offset + part.size})",
        )

    def _fetch_once(self, item: Item, version: StoredFile, part: Part) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        position = told = part.offset
        told_at = time.monotonic()
        descriptor = os.open(item.spot.staging_path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

        def write(piece: bytes | memoryview) -> None:
            nonlocal position, told, told_at
            view = memoryview(piece)
            while view:
                written = os.pwrite(descriptor, view, position)
                position += written
                view = view[written:]
            digest.update(piece)
            if position - told >= TELL_BYTES or time.monotonic() - told_at >= TELL_S:
                self.meter.add(position - told)
                told, told_at = position, time.monotonic()

        try:
            if part.size > CLAIMED_BYTES:
                claim(descriptor, part.offset, part.size)
            self.store.read_range(version, part.offset, part.size, write)
            self.meter.add(position - told)
            told = position
            if part.size >= WRITE_BACK_BYTES:
                begin_to_write(descriptor, part.offset, part.size)
        except StoreError:
            self.meter.add(part.offset - told)
            raise
        finally:
            with self.state.lock:
                self.state.fetched += position - part.offset
            os.close(descriptor)
        return digest.hexdigest()

    def _complete_item(self, item: Item) -> None:
        """All parts are there: check the whole where only the whole's hash is known, and bring it to the disk.

        Else nothing is read back: each part's SHA-1 was taken from the very bytes that were written.
        """
        staged = item.spot.staging_path
        if item.whole_sha1 is not None:
            for _ in range(1 + REFETCHES):
                if hash_range(staged, 0, item.size) == item.whole_sha1:
                    break
                for part in item.parts:
                    self.meter.add(-part.size)
                    self._fetch_until_right(item, part)
            else:
                raise StoreError("damaged", f"step {self.step} is damaged: {item.name} has not the SHA-1 that B2 names")
        if item.size < WRITE_BACK_BYTES:
            self.unsynced.append(staged)
        else:
            sync_files([staged])
        self.meter.add(0, 1)
