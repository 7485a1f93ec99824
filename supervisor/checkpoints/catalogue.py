"""What a run has in the store: its steps, its pointer, its own small files; and deleting a step again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace

from supervisor.base.records import dataclass
from supervisor.checkpoints.keeping import refuse_to_delete
from supervisor.checkpoints.lineage import LINEAGE, Entry, Lineage, keep
from supervisor.checkpoints.lineage import read as read_lineage
from supervisor.checkpoints.manifest import LATEST, MANIFEST, STEP, Latest, now, run_folder, sha256, step_folder
from supervisor.checkpoints.records import (
    by_step,
    delete_hidden,
    delete_versions,
    last_pointer,
    newest_manifest,
    read_latest,
    settle_pointer,
    until_listed,
)
from supervisor.storage.base import Store, StoredFile, StoreError
from supervisor.storage.hashing import sha1

RUN_FILES = "run/"
RUN_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
RUN_FILE_LIMIT = 1 << 20  # bytes
MOST_RUN_FILES = 64


@dataclass(frozen=True)
class StepInfo:
    """One step in the store.

    ``committed``: it has a manifest and every file of it is listed with its size, or the original scripts' pointer
    names it. ``legacy``: it has no manifest, and the pointer is theirs. ``problem`` says why it is not committed, and
    ``left`` why no pod resumes at it although it may be.
    """

    step: int
    committed: bool
    size_bytes: int
    files: int
    legacy: bool = False
    problem: str = ""
    left: str = ""
    reward: float | None = None
    manifest: str = ""  # the store's id of what commits it


@dataclass(frozen=True)
class Catalogue:
    """All steps by number, and the pointer; ``latest_problem`` when there is one that cannot be read."""

    steps: Mapping[int, StepInfo]
    latest: Latest | None
    latest_problem: str = ""
    happened: Lineage = field(default_factory=Lineage)

    def newest_good(self, but: int | None = None) -> int | None:
        """The newest step other than ``but`` that is committed, neither left nor quarantined."""
        found = [one.step for one in self.steps.values() if one.committed and not one.left and not one.legacy]
        return max((step for step in found if step != but), default=None)


def list_steps(store: Store, run_id: str, known: Lineage | None = None) -> Catalogue:
    """Look at everything below the run's folder. Raises StoreError when the store cannot be listed: never "empty".

    ``known``: what happened to the run, for who has just written it down; else the store is asked.
    """
    folder = run_folder(run_id)
    listed = store.list_versions(folder)
    steps = by_step(listed, run_id)
    happened = known or Lineage()
    if known is None and any(file.name == folder + LINEAGE for file in listed):
        happened = read_lineage(store, run_id)
    latest, latest_problem = None, ""
    try:
        latest = read_latest(store, run_id)
    except StoreError as error:
        if error.kind != "damaged":
            raise
        latest_problem = str(error)
    with ThreadPoolExecutor(max(1, min(store.streams, len(steps)))) as pool:
        infos = pool.map(lambda step: _look_at_run(store, run_id, step, steps[step], latest, happened), sorted(steps))
        return Catalogue({info.step: info for info in infos}, latest, latest_problem, happened)


def _look_at_run(  # noqa: PLR0917
    store: Store,
    run_id: str,
    step: int,
    versions: Mapping[str, Sequence[StoredFile]],
    latest: Latest | None,
    happened: Lineage,
) -> StepInfo:
    files = {name: of_name[0] for name, of_name in versions.items()}
    size = sum(file.size for name, file in files.items() if name != MANIFEST)
    if MANIFEST not in files:
        legacy = latest is not None and latest.legacy and step <= latest.step
        named = legacy and latest is not None and step == latest.step
        problem = "" if named else f"step {step} has no {MANIFEST}: it was never published to the end"
        return StepInfo(step, named, size, len(files), legacy, problem, happened.reason_against_step(step, 0))
    try:
        manifest_file, manifest, _ = newest_manifest(store, run_id, step, versions[MANIFEST])
    except StoreError as error:
        if error.kind not in ("damaged", "missing"):
            raise
        gone = error.kind == "missing"  # deleted while we looked: then it is no damaged step, but none
        return StepInfo(
            step, False, size, len(files), problem=str(error), manifest="" if gone else files[MANIFEST].file_id
        )
    if all(file.file_id != manifest_file.file_id for file in versions[MANIFEST]):  # published anew since the listing
        anew = by_step(store.list_versions(step_folder(run_id, step)), run_id).get(step, {})
        return _look_at_run(store, run_id, step, anew, latest, happened)
    left = happened.reason_against_step(step, manifest.lineage, manifest.generation)
    newest = manifest_file.file_id == files[MANIFEST].file_id
    for file in manifest.files:
        of_name = versions.get(file.path, ())
        there = next((one for one in of_name if one.file_id == file.file_id), None)  # a fenced pod's may hide it
        if there is None and of_name and newest:
            # A store that was copied, or mended from a backup, has other ids. Restoring compares every byte.
            there = of_name[0]
        if there is None:
            problem = f"step {step} lacks {file.path}"
        elif there.size != file.size:
            problem = f"{file.path} of step {step} has another size"
        elif len(file.part_sha1) == 1 and there.sha1 not in (None, file.part_sha1[0]):
            problem = f"{file.path} of step {step} was replaced after the step was published: publish it again"
        else:
            continue
        return StepInfo(step, False, size, len(files), problem=problem, left=left, manifest=manifest_file.file_id)
    committed = StepInfo(step, True, manifest.total_bytes, len(manifest.files), left=left, reward=manifest.reward)
    return replace(committed, manifest=manifest_file.file_id)


def delete_step(store: Store, run_id: str, step: int, fence: Callable[[], None] = lambda: None) -> int:
    """Delete a step: first what commits it, then its files. Returns freed bytes. ``fence``: is the run still ours?

    Every version goes, by its id, also hidden ones: they are billed. Refuses (kind "permanent") what
    ``keeping.refuse_to_delete`` has a reason to keep.
    """
    refuse_to_delete(store, run_id, step)
    folder = step_folder(run_id, step)
    freed = delete_versions(store, folder, {f"{folder}{MANIFEST}"}, fence)
    freed += delete_hidden(store, folder, fence)  # before the files: a step that has none is not asked for again
    freed += delete_versions(store, folder, None, fence)
    store.sweep(folder, fence=fence)
    return freed


def keep_lineage(
    store: Store, run_id: str, happened: Sequence[Entry], *, generation: int, writer: str, fence: Callable[[], None]
) -> tuple[Lineage, int | None]:
    """Write down which steps are left, then move the pointer back to the newest good one.

    Where no step is good there is no pointer until one is, as in ``pointer.point_away``: the original scripts and other
    readers by name would resume at what was left. Their own pointer stays.

    Returns all that happened, and the step to which the pointer was moved. ``fence``: is the run still ours?
    """
    latest = last_pointer(store, run_id)
    least = latest.lineage if latest else 0
    known = keep(store, run_id, happened, generation=generation, writer=writer, least=least, fence=fence)
    found = list_steps(store, run_id, known)
    latest = found.latest or last_pointer(store, run_id)  # the newest may be junk
    good = found.newest_good()
    named = found.steps.get(latest.step) if latest else None
    name = f"{run_folder(run_id)}{LATEST}"
    if latest is None or named is None or not named.left or (good is None and latest.legacy):
        fence()
        settle_pointer(store, run_id)  # a try that was killed had not come to it
        return known, None
    if good is None:
        delete_versions(store, name, {name}, fence)
        return known, None
    file, _, data = newest_manifest(store, run_id, good)
    back = replace(
        latest,
        step=good,
        timestamp=now(),
        generation=generation,
        lineage=known.number,
        writer=writer,
        manifest_file_id=file.file_id,
        manifest_sha256=sha256(data),
    )
    fence()
    until_listed(store, store.put_bytes(name, back.to_bytes()), fence)
    if read_latest(store, run_id) != back:
        raise StoreError("transient", f"{store.url} does not show that the pointer went back to step {back.step}")
    fence()
    settle_pointer(store, run_id)
    return known, back.step


def sweep_run(
    store: Store,
    run_id: str,
    spare: Callable[[int], bool] = lambda step: False,
    fence: Callable[[], None] = lambda: None,
) -> int:
    """Cancel every unfinished upload of the run, whatever it was for. Returns how many there were.

    ``spare``: is it a step that this pod is publishing, or goes on to publish? What is there of it is not sent again.
    ``fence``: is the run still ours? Without it no other pod may be publishing.
    """
    folder = run_folder(run_id)

    def is_spared(name: str) -> bool:
        match = STEP.fullmatch(name.removeprefix(folder).partition("/")[0])
        return match is not None and spare(int(match[1]))

    return store.sweep(folder, is_spared, fence)


def put_run_files(store: Store, run_id: str, files: Mapping[str, bytes]) -> int:
    """Keep the run's settings and the trainer's configuration for the next pod. Returns how many were sent."""
    if len(files) > MOST_RUN_FILES:
        raise StoreError("permanent", f"a run keeps at most {MOST_RUN_FILES} small files, not {len(files)}")
    for name, data in files.items():
        if not RUN_FILE_NAME.fullmatch(name):
            raise StoreError("permanent", f"{name!r} is no name for a run's file: letters, digits, '.', '_' and '-'")
        if len(data) > RUN_FILE_LIMIT:
            raise StoreError("permanent", f"{name} has {len(data)} bytes, and a run's file may have {RUN_FILE_LIMIT}")
    folder = run_folder(run_id) + RUN_FILES
    there = {file.name: file for file in store.list(folder)}
    sent = 0
    for name, data in files.items():
        current = there.get(folder + name)
        if current is not None and current.size == len(data) and _reads_manifest(store, current) == sha1(data):
            continue
        store.put_bytes(folder + name, data)
        sent += 1
    return sent


def get_run_files(store: Store, run_id: str) -> dict[str, bytes]:
    """What ``put_run_files`` kept, by name. Raises kind "damaged" for names and sizes it would not have written."""
    folder = run_folder(run_id) + RUN_FILES
    files: dict[str, bytes] = {}
    for file in store.list(folder):
        name = file.name.removeprefix(folder)
        if not RUN_FILE_NAME.fullmatch(name) or file.size > RUN_FILE_LIMIT or len(files) >= MOST_RUN_FILES:
            raise StoreError("damaged", f"{file.name!r} in {store.url} is no file of a run: delete it there")
        files[name] = store.get_bytes(file.name, file.file_id, RUN_FILE_LIMIT)
    return files


def _reads_manifest(store: Store, file: StoredFile) -> str:
    return file.sha1 or sha1(store.get_bytes(file.name, file.file_id, RUN_FILE_LIMIT))
