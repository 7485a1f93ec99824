"""Is what the store holds still what was published? Looks, reads and compares; never writes and never deletes.

The cheap look compares the listing with the manifests: names, versions, sizes, and the SHA-1 of small files, which the
store tells. The deep one reads a random share of the parts again and hashes them.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from supervisor.checkpoints.manifest import (
    MANIFEST,
    MANIFEST_LIMIT,
    Manifest,
    ManifestFile,
    run_folder,
    sha256,
    step_folder,
)
from supervisor.checkpoints.progress import Meter, Report
from supervisor.checkpoints.records import SETTLE_S, by_step, get_listed, newest_manifest, read_latest
from supervisor.storage.base import Part, Store, StoredFile, StoreError

READS = 4
"""Times that a part is read before it is called damaged: B2 has served wrong bytes of healthy data (restic#3268)."""
MOST_PROBLEMS = 20  # of one step that are told one by one


@dataclass(frozen=True)
class Checked:
    """One step: ``problems`` are sentences, none when it is good. ``committed`` False: never published to its end."""

    step: int
    committed: bool
    problems: tuple[str, ...]
    files: int
    size_bytes: int
    read_bytes: int = 0


@dataclass(frozen=True)
class Findings:
    """What was looked at. ``problems`` are those of the run itself (its pointer)."""

    steps: tuple[Checked, ...]
    problems: tuple[str, ...]
    read_bytes: int
    seconds: float

    @property
    def is_damaged(self) -> bool:
        """Is anything that was published not as it was?"""
        return bool(self.problems) or any(step.committed and step.problems for step in self.steps)


Versions = Mapping[str, Sequence[StoredFile]]


def scrub(  # noqa: PLR0917
    store: Store, run_id: str, report: Report, step: int | None = None, deep: float = 0.0, seed: int = 0
) -> Findings:
    """Look at one step, or at all. ``deep``: percent of the parts to read again, at least one of each step.

    Raises StoreError when the store cannot be looked at, kind "missing" when there is no such step.
    """
    began = time.monotonic()
    steps = by_step(store.list_versions(run_folder(run_id)), run_id)
    if step is not None and step not in steps:
        there = ", ".join(map(str, sorted(steps))) or "none at all"
        raise StoreError("missing", f"there is no step {step} of {run_id} in {store.url}; there are {there}")
    wanted = sorted(steps) if step is None else [step]
    meter = Meter(report)
    checked = [_check_twice(store, run_id, number, steps[number], _Sample(deep, seed, meter)) for number in wanted]
    return Findings(
        tuple(checked),
        tuple(_pointer_twice(store, run_id, steps)),
        sum(one.read_bytes for one in checked),
        time.monotonic() - began,
    )


@dataclass(frozen=True)
class _Sample:
    percent: float
    seed: int
    meter: Meter

    def of(self, step: int, manifest: Manifest) -> list[tuple[ManifestFile, Part]]:
        parts = [(file, part) for file in manifest.files for part in file.parts() if part.size]
        if self.percent <= 0 or not parts:
            return []
        count = min(len(parts), max(1, math.ceil(len(parts) * self.percent / 100)))
        return random.Random(f"{self.seed}/{step}").sample(parts, count)  # noqa: S311 - which parts, no secret


def _check_twice(store: Store, run_id: str, step: int, versions: Versions, sample: _Sample) -> Checked:
    """A step that looks damaged may have been published anew, or deleted, while it was looked at: look again."""
    found = _check_step(store, run_id, step, versions, sample)
    if not found.committed or not found.problems:
        return found
    time.sleep(SETTLE_S)
    again = by_step(store.list_versions(step_folder(run_id, step)), run_id).get(step, {})
    return _check_step(store, run_id, step, again, sample)


def _check_step(store: Store, run_id: str, step: int, versions: Versions, sample: _Sample) -> Checked:
    size = sum(of_name[0].size for name, of_name in versions.items() if name != MANIFEST)
    if MANIFEST not in versions:
        return Checked(step, False, (f"it has no {MANIFEST}: it was never published to its end",), len(versions), size)
    try:
        _, manifest, _ = newest_manifest(store, run_id, step, versions[MANIFEST])
    except StoreError as error:
        if error.kind not in ("damaged", "missing"):
            raise
        return Checked(step, True, (str(error),), len(versions), size)
    listed = {file.path: _check_by_listing(file, versions.get(file.path, ())) for file in manifest.files}
    problems = [problem for problem in listed.values() if problem]
    todo = [(file, part) for file, part in sample.of(step, manifest) if not listed[file.path]]
    sample.meter.phase("checking", sum(part.size for _, part in todo))
    with ThreadPoolExecutor(max(1, min(store.streams, len(todo)))) as pool:
        wrong = pool.map(
            lambda one: reread(
                store, _version_of_manifest(one[0], versions[one[0].path]), one[0].path, one[1], sample.meter
            ),
            todo,
        )
        problems += sorted({problem for problem in wrong if problem})
    if len(problems) > MOST_PROBLEMS:
        problems = [*problems[:MOST_PROBLEMS], f"and {len(problems) - MOST_PROBLEMS} further problems"]
    read = sum(part.size for _, part in todo)
    return Checked(step, True, tuple(problems), len(manifest.files), manifest.total_bytes, read)


def _check_by_listing(file: ManifestFile, versions: Sequence[StoredFile]) -> str:
    """What is wrong with a file by the listing alone, or ""."""
    if not versions:
        return f"{file.path} is missing"
    there = _version_of_manifest(file, versions)
    if there.size != file.size:
        return f"{file.path} has {there.size} bytes, and {file.size} were published"
    if there.sha1 is not None and len(file.part_sha1) == 1 and there.sha1 != file.part_sha1[0]:
        return f"{file.path} has another SHA-1 than was published"
    return ""


def _version_of_manifest(file: ManifestFile, versions: Sequence[StoredFile]) -> StoredFile:
    """The version that the manifest names, else (in a store that was copied ids are others) the current one."""
    return next((there for there in versions if there.file_id == file.file_id), versions[0])


def reread(store: Store, there: StoredFile, path: str, part: Part, meter: Meter) -> str:
    """What is wrong with a part of an object, read again and hashed, or ""."""
    for _ in range(READS):
        digest = hashlib.sha1(usedforsecurity=False)
        read = 0

        def take(piece: bytes | memoryview, digest: Any = digest) -> None:
            nonlocal read
            digest.update(piece)
            read += len(piece)
            meter.add(len(piece))

        try:
            store.read_range(there, part.offset, part.size, take)
        except StoreError as error:
            if error.kind not in ("missing", "damaged"):
                raise
            return f"{path} cannot be read: {error}"
        if digest.hexdigest() == part.sha1:
            return ""
        meter.add(-read)
    end = part.offset + part.size
    return f"{path} came back {READS} times with other bytes than were published (bytes {part.offset} to {end})"


def _pointer_twice(store: Store, run_id: str, steps: Mapping[int, Versions]) -> list[str]:
    """A pointer that fits no step may have moved on since the steps were listed: list them again."""
    problems = _check_pointer(store, run_id, steps)
    if not problems:
        return []
    return _check_pointer(store, run_id, by_step(store.list_versions(run_folder(run_id)), run_id))


def _check_pointer(store: Store, run_id: str, steps: Mapping[int, Versions]) -> list[str]:
    """What is wrong with latest.json."""
    try:
        latest = read_latest(store, run_id)
    except StoreError as error:
        if error.kind != "damaged":
            raise
        return [str(error)]
    if latest is None:
        if any(MANIFEST in versions for versions in steps.values()):
            return ["there is no latest.json although steps are published: publish one more, and it is written"]
        return []
    versions = steps.get(latest.step, {})
    if not versions:
        return [f"latest.json names step {latest.step}, and there is no such step"]
    if latest.legacy:
        return []
    named = [file for file in versions.get(MANIFEST, ()) if file.file_id == latest.manifest_file_id]
    if not named:
        return [f"latest.json names step {latest.step} by a {MANIFEST} that is not there any more"]
    data = get_listed(store, named[0].name, MANIFEST_LIMIT, named[0].file_id)
    if sha256(data) != latest.manifest_sha256:
        return [f"latest.json vouches for another {MANIFEST} of step {latest.step} than there is"]
    return []
