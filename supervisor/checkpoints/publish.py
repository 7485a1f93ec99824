"""Publish one complete step: its files, then the manifest that commits it, then the pointer, each verified.

Every line may be repeated after a crash. The order is the promise: ``manifest.json`` is written after every file was
confirmed and listed, ``latest.json`` is the last thing written, and it does not go back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.checkpoints.blocks import BLOCKS, fitting_block_size, whole_hash
from supervisor.checkpoints.claims import Fence
from supervisor.checkpoints.local_plan import Hashed, Identity, LocalPlan
from supervisor.checkpoints.manifest import (
    LATEST,
    LATEST_LIMIT,
    MANIFEST,
    MANIFEST_LIMIT,
    BlocksObject,
    Latest,
    Manifest,
    ManifestFile,
    check_paths,
    run_folder,
    sha256,
    step_folder,
)
from supervisor.checkpoints.progress import Meter, Report
from supervisor.checkpoints.records import (
    SETTLE_S,
    SETTLE_TRIES,
    delete_versions,
    read_latest,
    read_manifest,
    settle_pointer,
)
from supervisor.checkpoints.reuse import Memory, Reuse, find_base, shape_of
from supervisor.checkpoints.sources import Sources
from supervisor.storage.base import Store, StoredFile, StoreError
from supervisor.storage.hashing import fitting_part_size, parts_digest, sha1


@dataclass(frozen=True)
class Source:
    """A local file and its name below the step's folder in the store."""

    source: Path
    name: str


@dataclass(frozen=True)
class PublishPlan:
    """What to publish. ``state_dir`` holds the local plan; ``allow_back`` lets the pointer go to a lower step."""

    run_id: str
    step: int
    files: Sequence[Source]
    state_dir: Path
    writer: str = ""
    wandb_run_id: str = ""
    dialect: str = ""
    revision: str = ""
    config_sha256: str = ""
    step_base: int | None = None
    reward: float | None = None
    allow_back: bool = False
    generation: int = 0
    lineage: int = 0
    fence: Fence | None = None  # looks whether the run is still ours; None where nobody else can have it


@dataclass(frozen=True)
class Published:
    """How it went. ``note`` is a sentence for a person when there is more to say than that it worked."""

    step: int
    size_bytes: int
    sent_bytes: int
    files: int
    already: bool  # the same content was committed before: nothing was sent
    pointer_moved: bool
    note: str
    seconds: float


def publish(store: Store, plan: PublishPlan, report: Report) -> Published:
    """Bring the step into the store, so that its local copy may be deleted afterwards.

    Raises StoreError: "changed" when a source vanished or changed (choose a step anew), "transient" to call again
    (nothing verified is sent twice), "permanent" and "quota" when a person has to act.
    """
    return _Publish(store, plan, report).run()


class _Publish:
    def __init__(self, store: Store, plan: PublishPlan, report: Report) -> None:
        self.store = store
        self.plan = plan
        self.folder = step_folder(plan.run_id, plan.step)
        self.meter = Meter(report)
        names = [file.name for file in plan.files]
        if not names:
            raise StoreError("changed", f"step {plan.step} of {plan.run_id} has no files to publish")
        for own in (MANIFEST, BLOCKS):
            if own in names:
                raise StoreError(
                    "permanent", f"step {plan.step} holds a file named {own}, which is the store's own name"
                )
        check_paths(names, f"step {plan.step} of {plan.run_id}")
        place = plan.state_dir / f"publish-{plan.run_id}-step_{plan.step}.json"
        try:
            plan.state_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError("permanent", f"the folder {plan.state_dir} cannot be made: {error.strerror}") from error
        self.local = LocalPlan(place, store.url)
        self.sources = Sources(plan.step, self.local, self.meter)
        self.composer = store.composer()
        self.reuse = Reuse(plan.step, self.composer, None)

    def run(self) -> Published:
        started = time.monotonic()
        sent_before = self.store.sent_bytes()
        listing = {file.name: file for file in self.store.list(self.folder)}
        before, data, file_id = self._committed(listing)
        hashed = self._hash({file.path: file for file in before.files} if before else {})
        already = before is not None and self._same(before, hashed, listing)
        if not already:
            self._compare(hashed)
            self._fence()
            self._uncommit(before, listing, hashed)
            stored = self._send(hashed, listing)
            self._check_listing(stored)
            self._fence()
            data, file_id = self._commit(hashed, stored, listing)
        moved, note = self._point(data, file_id)
        self._fence()
        if settle_pointer(self.store, self.plan.run_id):
            note = f"{note}; what a fenced pod wrote over latest.json was undone".removeprefix("; ")
        self.store.sweep(self.folder, fence=self._fence)
        self.local.retire()
        return Published(
            step=self.plan.step,
            size_bytes=sum(entry.identity.size for entry in hashed),
            sent_bytes=self.store.sent_bytes() - sent_before,
            files=len(hashed),
            already=already,
            pointer_moved=moved,
            note=note,
            seconds=time.monotonic() - started,
        )

    def _fence(self, *, lately: bool = False) -> None:
        """Raises FencedError when another pod holds the run: before whatever could hurt what that one publishes."""
        if self.plan.fence is not None:
            if lately:
                self.plan.fence.lately()
            else:
                self.plan.fence()

    # ------------------------------------------------------------ what is there, here and in the store

    def _committed(self, listing: dict[str, StoredFile]) -> tuple[Manifest | None, bytes, str]:
        """The manifest that commits this step now, None when there is none or when nobody could restore by it."""
        there = listing.get(f"{self.folder}{MANIFEST}")
        if there is None:
            return None, b"", ""
        try:
            manifest, data = read_manifest(self.store, self.plan.run_id, self.plan.step, there.file_id)
        except StoreError as error:
            if error.kind not in ("damaged", "missing"):
                raise
            return None, b"", ""
        return manifest, data, there.file_id

    def _hash(self, before: dict[str, ManifestFile]) -> list[Hashed]:
        """Part hashes of all sources, in parallel. A file is cut as the manifest before cut it, so they compare."""
        wanted = []
        for file in self.plan.files:
            identity = Identity.of(file.source)
            earlier = before.get(file.name)
            part_size = fitting_part_size(identity.size, self.store.part_size(), self.store.streams)
            if earlier is not None and earlier.size == identity.size:
                part_size = earlier.part_size
            block_size = fitting_block_size(identity.size, self.composer.least_bytes if self.composer else None)
            wanted.append(Hashed(file.name, file.source, identity, part_size, (), block_size))
        return self.sources.hashed(wanted)

    def _same(self, before: Manifest, hashed: Sequence[Hashed], listing: dict[str, StoredFile]) -> bool:
        """Is exactly this content committed, and every file of it still there?"""
        here = sorted(
            (entry.name, entry.identity.size, entry.part_size, tuple(part.sha1 for part in entry.parts))
            for entry in hashed
        )
        if here != sorted(file.content() for file in before.files):
            return False
        return all(
            (there := listing.get(self.folder + file.path)) is not None
            and there.size == file.size
            and there.file_id == file.file_id
            for file in before.files
        )

    # ------------------------------------------------------------ files

    def _compare(self, hashed: Sequence[Hashed]) -> None:
        """Find out what the step before has already, so that it need not be sent."""
        if self.composer is None:
            return
        plan = self.plan
        shape = shape_of(hashed, plan.step, plan.revision, plan.config_sha256, plan.dialect)
        memory = Memory(plan.state_dir / f"shared-{plan.run_id}.json", self.store.url, shape)
        base = find_base(self.store, plan.run_id, with_blocks=not memory.hopeless())
        self.reuse = Reuse(plan.step, self.composer, base)
        shared = self.reuse.compare(hashed)
        if shared is not None:
            memory.note(shared)

    def _uncommit(self, before: Manifest | None, listing: dict[str, StoredFile], hashed: Sequence[Hashed]) -> None:
        """Other bytes are committed under this step's name: first nobody may restore them, then they are replaced."""
        if f"{self.folder}{MANIFEST}" in listing:
            delete_versions(self.store, self.folder, {f"{self.folder}{MANIFEST}"}, self._fence)
        if before is not None:
            gone = {file.path for file in before.files} - {entry.name for entry in hashed}
            if gone:
                delete_versions(self.store, self.folder, {self.folder + path for path in gone}, self._fence)

    def _send(self, hashed: Sequence[Hashed], listing: dict[str, StoredFile]) -> dict[str, tuple[Hashed, StoredFile]]:
        self.meter.phase("sending", sum(entry.identity.size for entry in hashed))
        largest_first = sorted(hashed, key=lambda entry: -entry.identity.size)

        def send(entry: Hashed) -> tuple[Hashed, StoredFile]:
            there = listing.get(self.folder + entry.name)
            if there is not None and _holds(there, entry):
                self.meter.add(entry.identity.size, 1)
                stored = there
            else:
                self._fence(lately=True)
                name = self.folder + entry.name
                stored = self.reuse.put(name, entry, self.meter.add) or self.store.put_file(
                    name, entry.source, entry.identity.size, entry.parts, self.meter.add
                )
                self.meter.add(0, 1)
            self.sources.unchanged(entry)
            return self.local.confirm(entry, stored.file_id), stored

        done = self.sources.all(self.store.streams, send, largest_first)
        return {entry.name: (entry, stored) for entry, stored in done}

    def _check_listing(self, stored: dict[str, tuple[Hashed, StoredFile]]) -> None:
        """The remote listing is the truth: every file has to be in it, with its size, version and hash."""
        self.meter.phase("checking", 0)
        wrong = ""
        for number in range(1, SETTLE_TRIES + 1):
            listing = {file.name: file for file in self.store.list(self.folder)}
            wrong = next((problem for pair in stored.values() if (problem := self._problem(pair, listing))), "")
            if not wrong:
                return
            time.sleep(SETTLE_S * number)
        raise StoreError(
            "transient", f"step {self.plan.step} is sent, but {self.store.url} does not confirm it: {wrong}"
        )

    def _problem(self, pair: tuple[Hashed, StoredFile], listing: dict[str, StoredFile]) -> str:
        entry, stored = pair
        there = listing.get(stored.name)
        if there is None:
            return f"{stored.name} is not listed"
        if there.size != entry.identity.size or there.file_id != stored.file_id:
            return f"{stored.name} is listed with another size or version (does another pod write the same step?)"
        if there.sha1 is not None and len(entry.parts) == 1 and there.sha1 != entry.parts[0].sha1:
            return f"{stored.name} is listed with another SHA-1"
        return ""

    # ------------------------------------------------------------ the two records

    def _commit(
        self, hashed: Sequence[Hashed], stored: dict[str, tuple[Hashed, StoredFile]], listing: dict[str, StoredFile]
    ) -> tuple[bytes, str]:
        plan = self.plan
        blocks, places = self.reuse.blocks_object(hashed)
        manifest = Manifest(
            run_id=plan.run_id,
            step=plan.step,
            generation=plan.generation,
            lineage=plan.lineage,
            writer=plan.writer,
            dialect=plan.dialect,
            revision=plan.revision,
            config_sha256=plan.config_sha256,
            step_base=plan.step_base,
            reward=plan.reward,
            files=tuple(
                ManifestFile(
                    path=entry.name,
                    size=entry.identity.size,
                    file_id=stored[entry.name][1].file_id,
                    part_size=entry.part_size,
                    part_sha1=tuple(part.sha1 for part in entry.parts),
                    sha1=entry.parts[0].sha1 if len(entry.parts) == 1 else None,
                    block_size=entry.block_size,
                    xxh3=whole_hash(entry.blocks),
                    blocks_at=places.get(entry.name),
                )
                for entry in sorted(hashed, key=lambda entry: entry.name)
            ),
            blocks=self._put_blocks(blocks, listing),
        )
        data = manifest.to_bytes()
        return data, self._put_and_read_back(f"{self.folder}{MANIFEST}", data, MANIFEST_LIMIT)

    def _put_blocks(self, data: bytes, listing: dict[str, StoredFile]) -> BlocksObject | None:
        """Block hashes, for the next step; not again what an attempt before this one has brought."""
        if not data:
            return None
        name = f"{self.folder}{BLOCKS}"
        there = listing.get(name)
        if there is None or there.size != len(data) or there.sha1 != sha1(data):
            there = self.store.put_bytes(name, data)
        return BlocksObject(there.file_id, len(data))

    def _point(self, manifest: bytes, manifest_id: str) -> tuple[bool, str]:
        """Move ``latest.json`` to this step unless it names a higher one. Returns (moved, note)."""
        plan = self.plan
        note = ""
        try:
            current = read_latest(self.store, plan.run_id)
        except StoreError as error:
            if error.kind != "damaged":
                raise
            current, note = None, f"{error}; it was replaced"
        lineage = max(plan.lineage, current.lineage if current else 0)
        back = plan.allow_back or (current is not None and current.lineage < plan.lineage)
        if current is not None and current.step > plan.step and back:
            lineage = max(lineage, current.lineage + 1)  # or the step that is left would count for more
        if current is not None and current.step > plan.step and not back:
            return False, f"latest.json stays at step {current.step}, which is higher than step {plan.step}"
        wandb = plan.wandb_run_id or (current.wandb_run_id if current else "")
        latest = Latest(
            step=plan.step,
            run_id=plan.run_id,
            wandb_run_id=wandb,
            generation=plan.generation,
            lineage=lineage,
            writer=plan.writer,
            manifest_file_id=manifest_id,
            manifest_sha256=sha256(manifest),
        )
        if current is not None and (current.step, current.manifest_file_id, current.wandb_run_id) == (
            latest.step,
            latest.manifest_file_id,
            latest.wandb_run_id,
        ):
            return False, note
        self._fence()
        self._put_and_read_back(f"{run_folder(plan.run_id)}{LATEST}", latest.to_bytes(), LATEST_LIMIT)
        return True, note

    def _put_and_read_back(self, name: str, data: bytes, limit: int) -> str:
        stored = self.store.put_bytes(name, data)
        if self.store.get_bytes(name, stored.file_id, limit) != data:
            raise StoreError("transient", f"{self.store.url}/{name} does not read back as it was written")
        return stored.file_id


def _holds(there: StoredFile, entry: Hashed) -> bool:
    """Are exactly these bytes in the store? By its own hash, by what they were sent as, or by what we saw confirmed."""
    if there.size != entry.identity.size:
        return False
    if len(entry.parts) == 1 and there.sha1 is not None:
        return there.sha1 == entry.parts[0].sha1
    if there.parts_digest is not None:
        return there.parts_digest == parts_digest(entry.parts)
    return bool(entry.file_id) and there.file_id == entry.file_id
