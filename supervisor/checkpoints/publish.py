"""Publish one complete step: its files, then the manifest that commits it, then the pointer, each verified.

Every line may be repeated after a crash. The order is the promise: ``manifest.json`` is written after every file was
confirmed and listed, ``latest.json`` is the last thing written, and it does not go back.

Nothing waits for hashes that it does not need: small files are sent at once, a large one part by part as its parts are
hashed, and only one that may share most of its bytes with the step before is hashed whole before it is cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from supervisor.checkpoints.blocks import BLOCKS, fitting_block_size
from supervisor.checkpoints.catalogue import sweep_run
from supervisor.checkpoints.claims import Fence
from supervisor.checkpoints.lineage import Lineage
from supervisor.checkpoints.local_plan import Identity, LocalPlan, Wanted
from supervisor.checkpoints.manifest import (
    MANIFEST,
    MANIFEST_LIMIT,
    BlocksObject,
    Latest,
    Manifest,
    ManifestFile,
    check_paths,
    sha256,
    step_folder,
)
from supervisor.checkpoints.pointer import point, point_away
from supervisor.checkpoints.progress import Meter, Report
from supervisor.checkpoints.records import (
    delete_old,
    delete_versions,
    put_and_read_back,
    read_manifest,
    readable_latest,
    settle_pointer,
    until,
)
from supervisor.checkpoints.reuse import Memory, Reuse, find_base, shape_of
from supervisor.checkpoints.scrub import reread
from supervisor.checkpoints.sources import LocalFile, Sources
from supervisor.storage.base import Store, StoredFile, StoreError, UploadEndedError
from supervisor.storage.hashing import fitting_part_size, sha1

T = TypeVar("T")
SMALL_BYTES = 1 << 20
MOST_NAMED = 5
LOOKED_JUST_NOW_S = 3.0
"""So old may be the look before a small file replaces another one, where names keep no versions: a step has hundreds,
and a look is two requests. Before a larger one it is looked each time."""


@dataclass(frozen=True)
class Source:
    """A local file and its name below the step's folder in the store."""

    source: Path
    name: str


@dataclass(frozen=True)
class PublishPlan:
    """What to publish. ``state_dir`` holds the local plan; ``allow_back`` lets the pointer go to a lower step.

    ``reread``: where the step is published already, read all that the store has of it, and send anew what rotted there.
    """

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
    reread: bool = False
    generation: int = 0
    happened: Lineage = field(default_factory=Lineage)  # to the run so far
    fence: Fence | None = None  # looks whether the run is still ours; None where no other pod can have it


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
    left: str = ""  # why no pod resumes at it, though the same bytes are there: it is not published


def publish(store: Store, plan: PublishPlan, report: Report) -> Published:
    """Bring the step into the store, so that its local copy may be deleted afterwards.

    Raises StoreError: "changed" when a source vanished or changed (choose a step anew), "transient" to call again
    (nothing verified is sent twice), "permanent" and "quota" when a person has to act.
    """
    return StepPublish(store, plan, report).run()


class StepPublish:
    """One publish of one step; ``parts`` has what is other where several machines have files of it."""

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
        self.local = LocalPlan(plan.state_dir / f"publish-{plan.run_id}-step_{plan.step}.json", store.url)
        self.check_fence = plan.fence or Fence(store, plan.run_id, None, "")
        self.composer = store.composer()
        self.reuse = Reuse(plan.step, self.composer, None)
        self.unlisted: set[str] = set()  # names of files that were found by their id alone
        self.rotten: dict[str, StoredFile] = {}  # by name, files in the store with other bytes than listed
        self.latest = Latest(
            plan.step,
            plan.run_id,
            plan.wandb_run_id,
            generation=plan.generation,
            lineage=plan.happened.number,
            writer=plan.writer,
        )

    def run(self) -> Published:
        """All of it."""
        return self.attempt(self._run_publish)

    def attempt(self, work: Callable[[], T]) -> T:
        """Do ``work`` with the step's local files open. Raises StoreError."""
        try:
            with Sources(self.plan.step, self.local, self.meter) as self.sources:
                return work()
        except StoreError as error:
            if isinstance(error, UploadEndedError) or error.kind in ("missing", "damaged"):
                self._was_it_another_pod()
            raise

    def _was_it_another_pod(self) -> None:
        """Raises FencedError when another pod holds the run: it ends and cleans away what this one had under way."""
        try:
            self.check_fence()
        except StoreError as error:
            if error.kind == "fenced":
                raise

    def _run_publish(self) -> Published:
        started = time.monotonic()
        sent_before = self.store.sent_bytes()
        listing = {file.name: file for file in self.store.list(self.folder)}
        before, data, file_id = self._committed_manifest(listing)
        committed = {file.path: file for file in before.files} if before else {}
        files = self._files_to_send(committed)
        same = before is not None and not self._passed_over(before) and self._is_same_content(before, files)
        untouched = same and before is not None and self._is_untouched(before, listing)
        if f"{self.folder}{MANIFEST}" in listing and (self.plan.reread or not untouched):
            listing = self._without_rotten(files, listing, committed)
        already = untouched and not self.rotten
        stored: dict[str, StoredFile] = {}
        left = ""
        if same and before is not None:
            left = self.plan.happened.reason_against_step(self.plan.step, before.lineage, before.generation)
        if not already:
            self.check_fence()
            if not same:
                self._uncommit_step(before, listing, files)
            self._look_at_the_base(files)
            stored = self._send_files(files, listing, committed)
            self._check_listing(files, stored)
            self.check_fence()
            data, file_id = self._commit_manifest(files, stored, listing, before, keep=bool(left))
        if left:
            moved, note = False, f"step {self.plan.step} has the same bytes as before: {left}"
        else:
            moved, note = point(self.store, self.latest, file_id, data, self.plan.allow_back, self.check_fence)
        note = "; ".join(filter(None, (self._told_of_rot(), note)))
        if same and (self.plan.reread or not already):
            self._drop_replaced(file_id, stored)
        self.check_fence()
        if settle_pointer(self.store, self.plan.run_id)[1]:
            note = f"{note}; what a fenced pod wrote over latest.json was undone".removeprefix("; ")
        # What was half-sent of a step below belongs to no pod any more. Steps above are those that are published next.
        sweep_run(self.store, self.plan.run_id, lambda step: step > self.plan.step, self.check_fence)
        self.local.retire()
        if self.local.problem:
            note = f"{note}; {self.local.problem}".removeprefix("; ")
        return Published(
            step=self.plan.step,
            size_bytes=sum(file.size for file in files),
            sent_bytes=self.store.sent_bytes() - sent_before,
            files=len(files),
            already=already,
            pointer_moved=moved,
            note=note,
            seconds=time.monotonic() - started,
            left=left,
        )

    # ------------------------------------------------------------ what is there, here and in the store

    def _committed_manifest(self, listing: dict[str, StoredFile]) -> tuple[Manifest | None, bytes, str]:
        """The manifest that commits this step now, None when there is none or when it is no good for a restore."""
        there = listing.get(f"{self.folder}{MANIFEST}")
        if there is None:
            return None, b"", ""
        try:
            manifest, data = read_manifest(self.store, self.plan.run_id, self.plan.step, there.file_id)
        except StoreError as error:
            if error.kind not in ("damaged", "missing"):
                raise
            return None, b"", ""
        if self.plan.reread and not self._vouched_for(there, data):
            return None, b"", ""
        return manifest, data, there.file_id

    def _vouched_for(self, there: StoredFile, data: bytes) -> bool:
        """Does the pointer, where it names this manifest, know it by these bytes? Not every store keeps a hash."""
        latest = readable_latest(self.store, self.plan.run_id)
        if latest is None or latest.legacy or latest.manifest_file_id != there.file_id:
            return True
        return latest.manifest_sha256 == sha256(data)

    def _passed_over(self, before: Manifest) -> bool:
        """Is it a step that the run went back behind? It was reached anew, and its old commit says nothing of that."""
        return self.plan.happened.passed_over(self.plan.step, before.lineage, before.generation)

    def _files_to_send(self, committed: Mapping[str, ManifestFile]) -> list[LocalFile]:
        """All sources, unread. A file is cut as the manifest before cut it, so they compare."""
        files = []
        for file in self.plan.files:
            identity = Identity.of(file.source)
            earlier = committed.get(file.name)
            part_size = fitting_part_size(identity.size, self.store.part_size(), self.store.streams)
            if earlier is not None and earlier.size == identity.size:
                part_size = earlier.part_size
            block_size = fitting_block_size(identity.size, self.composer.least_bytes if self.composer else None)
            files.append(self.sources.file(Wanted(file.name, file.source, identity, part_size, block_size)))
        return files

    def _is_same_content(self, before: Manifest, files: Sequence[LocalFile]) -> bool:
        """Is exactly this content committed? Then nothing has to be un-committed: what is sent is what was there."""
        if {file.name: file.size for file in files} != {file.path: file.size for file in before.files}:
            return False
        self.sources.read_all(files)
        return {content_of(file) for file in files} == {file.content() for file in before.files}

    def _is_untouched(self, before: Manifest, listing: dict[str, StoredFile]) -> bool:
        """Does the store list every file of the manifest as the manifest names it?"""
        return all(
            (there := listing.get(self.folder + file.path)) is not None
            and (there.size, there.file_id) == (file.size, file.file_id)
            for file in before.files
        )

    def _without_rotten(
        self, files: Sequence[LocalFile], listing: dict[str, StoredFile], committed: Mapping[str, ManifestFile]
    ) -> dict[str, StoredFile]:
        """The listing without the files that would stay but have other bytes now: those are sent anew.

        An id proves no bytes, nor does the SHA-1 that the store tells: both are from the day on which the file came.
        What an interrupted publish left is not read again, since it came a moment ago.
        """

        def stays(file: LocalFile) -> StoredFile | None:
            there = listing.get(self.folder + file.name)
            return there if there is not None and _store_holds(there, file, committed.get(file.name)) else None

        kept = zip(files, self.sources.all(self.store.streams, stays, files), strict=True)
        todo = [(file, there, part) for file, there in kept if there is not None for part in file if part.size]
        self.meter.phase("checking", sum(part.size for _, _, part in todo))
        with ThreadPoolExecutor(max(1, min(self.store.streams, len(todo)))) as pool:
            wrong = list(pool.map(lambda one: reread(self.store, one[1], one[0].name, one[2], self.meter), todo))
        for (file, there, _), problem in zip(todo, wrong, strict=True):
            if problem and file.name not in self.rotten:
                self.rotten[file.name] = there
                file.file_id = ""
                self.local.confirm(file.wanted, "", now=True)  # or the next publish would take that id for its bytes
        return {name: there for name, there in listing.items() if name.removeprefix(self.folder) not in self.rotten}

    def _told_of_rot(self) -> str:
        if not self.rotten:
            return ""
        names = sorted(self.rotten)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        told = f"the store's bytes of {', '.join(names[:MOST_NAMED])}{more} were no longer those that were published"
        return f"{told}: sent anew"

    # ------------------------------------------------------------ files

    def _look_at_the_base(self, files: Sequence[LocalFile]) -> None:
        """The step before may have some of it already, which then need not be sent."""
        if self.composer is None:
            return
        plan = self.plan
        shape = shape_of(files, plan.step, plan.revision, plan.config_sha256, plan.dialect)
        memory = Memory(plan.state_dir / f"shared-{plan.run_id}.json", self.store.url, shape)
        self.reuse = Reuse(plan.step, self.composer, find_base(self.store, plan.run_id), memory)

    def _uncommit_step(
        self, before: Manifest | None, listing: dict[str, StoredFile], files: Sequence[LocalFile | Source]
    ) -> None:
        """Other bytes are committed under this step's name: first no reader may find them, then they are replaced."""
        if listing:
            self.latest = point_away(self.store, self.latest, self.check_fence)
        if self.rotten:  # first: once nothing commits the step, what is left of it is taken for what it was
            delete_versions(self.store, self.folder, {self.folder + name for name in self.rotten}, self.check_fence)
        if f"{self.folder}{MANIFEST}" in listing:
            delete_versions(self.store, self.folder, {f"{self.folder}{MANIFEST}"}, self.check_fence)
        if before is not None:
            gone = {file.path for file in before.files} - {file.name for file in files}
            if gone:
                delete_versions(self.store, self.folder, {self.folder + path for path in gone}, self.check_fence)

    def _send_files(
        self, files: Sequence[LocalFile], listing: dict[str, StoredFile], committed: Mapping[str, ManifestFile]
    ) -> dict[str, StoredFile]:
        """Small files first, then large ones; those that are compared are hashed meanwhile, and come last."""
        listing = self._with_unlisted(files, listing)
        # A copy of what rotted may be as rotten.
        comparable = self.reuse.comparable([file for file in files if file.name not in self.rotten])
        compared = {
            file.name: file
            for file in comparable
            if not _is_finished_object(listing.get(self.folder + file.name), file)
        }
        self.reuse.compare(list(compared.values()), all_of_them=len(compared) == len(comparable))
        # Hashing these counts as progress: it may take minutes, and nothing else may be left to do.
        self.meter.phase("sending", sum(file.size for file in (*files, *compared.values())))
        reading = {name: self.sources.read(file, self.meter.add) for name, file in compared.items()}

        def send(file: LocalFile) -> StoredFile:
            for part in reading.get(file.name, ()):
                part.result()
            name, progress = self.folder + file.name, self.meter.add
            there = listing.get(name)
            if (
                there is not None
                and self._may_stay(there, file)
                and _store_holds(there, file, committed.get(file.name))
            ):
                progress(file.size)
                stored = there
            else:
                self.check_fence.lately()
                copied = None if file.name in self.rotten else self.reuse.put(name, file, self.meter)
                stored = copied or self.store.put_file(
                    name, file.source, file.size, file, progress, lambda file_id: self._finishing_of(file, file_id)
                )
            self.meter.add(0, 1)
            file.is_in_the_store(stored.file_id)
            return stored

        small_first = sorted(files, key=lambda file: (file.name in compared, len(file) > 1, -file.size))
        done = self.sources.all(self.store.streams, send, small_first)
        return {file.name: stored for file, stored in zip(small_first, done, strict=True)}

    def _finishing_of(self, file: LocalFile, file_id: str) -> None:
        """As ``Finishing``. Without an id what is there is replaced: it could be the step of who holds the run now."""
        if file_id:
            file.is_about_to_be_in_the_store(file_id)
        else:
            self.check_fence.lately(LOOKED_JUST_NOW_S if file.size <= SMALL_BYTES else 0.0)

    def _with_unlisted(self, files: Sequence[LocalFile], listing: dict[str, StoredFile]) -> dict[str, StoredFile]:
        """With files that became objects just before a kill: the plan knows their ids, a listing may not show them."""

        def look(file: LocalFile) -> StoredFile | None:
            return self.store.version(self.folder + file.name, file.file_id)

        missed = [
            file
            for file in files
            if file.is_hashed and file.file_id and not _is_finished_object(listing.get(self.folder + file.name), file)
        ]
        found = [there for there in self.sources.all(self.store.streams, look, missed) if there is not None]
        self.unlisted = {there.name.removeprefix(self.folder) for there in found}
        return listing | {there.name: there for there in found}

    def _may_stay(self, there: StoredFile, file: LocalFile) -> bool:
        """Is what is there nothing that a fenced pod may be deleting?"""
        return _is_finished_object(there, file) or self.check_fence.nobody_elses(there)

    def _check_listing(self, files: Sequence[LocalFile], stored: dict[str, StoredFile]) -> None:
        """The remote listing is the truth: every file has to be in it, with its size, version and hash.

        A version that is there but not the current one is hidden by one that came late from a fenced pod, or by an
        older one if the store's clock went back since. Those are deleted: who reads by name would get them.
        """
        self.meter.phase("checking", 0)
        ids = {one.name: one.file_id for one in stored.values()}
        wrong = ""

        def confirm_listing() -> bool:
            nonlocal wrong
            listing = {file.name: file for file in self.store.list(self.folder)}
            wrong = next((found for file in files if (found := _find_problem(file, stored[file.name], listing))), "")
            if not wrong:
                return True
            versions = self.store.list_versions(self.folder)
            ours = {file.name: file for file in versions if file.file_id == ids.get(file.name)}
            wrong = next((found for file in files if (found := _find_problem(file, stored[file.name], ours))), "")
            self.check_fence()  # what is not listed may be what another pod cleaned away as too late
            if wrong:
                return False
            delete_old(self.store, [file for file in versions if file.name in ours and file != ours[file.name]])
            return True

        try:
            until(
                confirm_listing,
                lambda: f"step {self.plan.step} is sent, but {self.store.url} does not confirm it: {wrong}",
            )
        except StoreError as error:
            if error.kind == "transient":  # a person may have hidden what only its id still finds: next time it is sent
                for file in files:
                    if file.name in self.unlisted:
                        self.local.confirm(file.wanted, "", now=True)
            raise

    # ------------------------------------------------------------ the two records

    def _commit_manifest(
        self,
        files: Sequence[LocalFile],
        stored: dict[str, StoredFile],
        listing: dict[str, StoredFile],
        before: Manifest | None,
        *,
        keep: bool,
    ) -> tuple[bytes, str]:
        """Write the manifest. ``keep``: no pod resumes at this step, and that its files were mended changes nothing."""
        plan = self.plan
        # A person who mends a damaged step has its bytes, and not what the daemon knew of it when it was made.
        same = before is not None and {file.content() for file in before.files} == {content_of(file) for file in files}
        told = before if same else None
        blocks, places = self.reuse.blocks_object(files)
        manifest = Manifest(
            run_id=plan.run_id,
            step=plan.step,
            generation=before.generation if keep and before else plan.generation,
            lineage=before.lineage if keep and before else plan.happened.number,
            writer=plan.writer,
            dialect=plan.dialect,
            revision=plan.revision,
            config_sha256=plan.config_sha256 or (told.config_sha256 if told else ""),
            step_base=plan.step_base,
            reward=told.reward if told and plan.reward is None else plan.reward,
            files=tuple(
                entry_of(file, stored[file.name].file_id, places.get(file.name))
                for file in sorted(files, key=lambda file: file.name)
            ),
            blocks=self._put_blocks(blocks, listing),
        )
        data = manifest.to_bytes()
        return data, put_and_read_back(self.store, f"{self.folder}{MANIFEST}", data, MANIFEST_LIMIT).file_id

    def _drop_replaced(self, manifest_id: str, stored: Mapping[str, StoredFile]) -> None:
        """Delete the versions that a mend replaced: the rotten files, and the manifests that name them.

        Done again after a kill, when nothing is rotten any more, by ``keeping.tidy`` and for the manifests here.
        """
        # Without versions, an id is the bytes' hash and a second: what was sent in the rotten one's second has its id.
        now = {file.file_id for file in stored.values()}
        names = {f"{self.folder}{name}": file.file_id for name, file in self.rotten.items() if file.file_id not in now}
        name = f"{self.folder}{MANIFEST}"
        versions = self.store.list_versions(self.folder if names else name)
        replaced = [
            file
            for file in versions
            if names.get(file.name) == file.file_id or (file.name == name and file.file_id != manifest_id)
        ]
        if any(file.name == name and file.file_id == manifest_id for file in versions) and replaced:
            self.check_fence()
            delete_old(self.store, replaced)

    def _put_blocks(self, data: bytes, listing: dict[str, StoredFile]) -> BlocksObject | None:
        """Block hashes, for the next step; not again what an attempt before this one has brought."""
        if not data:
            return None
        name = f"{self.folder}{BLOCKS}"
        there = listing.get(name)
        if there is None or there.size != len(data) or there.sha1 != sha1(data):
            there = self.store.put_bytes(name, data)
        return BlocksObject(there.file_id, len(data))


def entry_of(file: LocalFile, file_id: str, blocks_at: int | None = None) -> ManifestFile:
    """The file as a manifest names it; hashes what is not hashed yet."""
    return ManifestFile(
        path=file.name,
        size=file.size,
        file_id=file_id,
        part_size=file.part_size,
        part_sha1=tuple(part.sha1 for part in file),
        sha1=file[0].sha1 if len(file) == 1 else None,
        block_size=file.block_size,
        xxh3=file.xxh3,
        blocks_at=blocks_at,
    )


def content_of(file: LocalFile) -> tuple[object, ...]:
    """As ``ManifestFile.content``."""
    return (file.name, file.size, file.part_size, tuple(part.sha1 for part in file))


def _store_holds(there: StoredFile, file: LocalFile, committed: ManifestFile | None) -> bool:
    """Are exactly these bytes in the store? By its own hash, by the id they were about to have, or by the manifest."""
    if there.size != file.size:
        return False
    if len(file) == 1 and there.sha1 is not None:
        return there.sha1 == file[0].sha1
    if _is_finished_object(there, file):
        return True
    if committed is None or there.file_id != committed.file_id or file.part_size != committed.part_size:
        return False
    return all(part.sha1 == sha1 for part, sha1 in zip(file, committed.part_sha1, strict=True))


def _is_finished_object(there: StoredFile | None, file: LocalFile) -> bool:
    """Is it the object that the local plan says was about to be made of all of the file?"""
    return there is not None and file.is_hashed and there.size == file.size and there.file_id == file.file_id


def _find_problem(file: LocalFile, stored: StoredFile, listing: dict[str, StoredFile]) -> str:
    there = listing.get(stored.name)
    if there is None:
        return f"{stored.name} is not listed"
    if there.size != file.size or there.file_id != stored.file_id:
        return f"{stored.name} is listed with another size or version (does another pod write the same step?)"
    if there.sha1 is not None and len(file) == 1 and there.sha1 != file[0].sha1:
        return f"{stored.name} is listed with another SHA-1"
    return ""
