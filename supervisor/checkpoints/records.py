"""Reading a run's records from a store, and deleting so that nothing older comes to light."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from supervisor.checkpoints.manifest import (
    LATEST,
    LATEST_LIMIT,
    MANIFEST,
    MANIFEST_LIMIT,
    STEP,
    Latest,
    Manifest,
    parse_latest,
    parse_manifest,
    run_folder,
    step_folder,
)
from supervisor.storage.base import Store, StoredFile, StoreError

SETTLE_TRIES = 6  # a listing may be some seconds old
SETTLE_S = 0.25
LISTED_TRIES = 8  # about 7 s for what is listed and not found
MOST_POINTERS = 20  # versions of the pointer that are looked at, newest first
T = TypeVar("T")


def versions_of(store: Store, name: str) -> list[StoredFile]:
    """Every version of this object, newest first; a listing goes by the beginning of names."""
    return [file for file in store.list_versions(name) if file.name == name]


def by_step(files: Iterable[StoredFile], run_id: str) -> dict[int, dict[str, list[StoredFile]]]:
    """What was listed of a run's steps, by step and by the path in it; of each path in the order of the listing."""
    folder = run_folder(run_id)
    steps: dict[int, dict[str, list[StoredFile]]] = {}
    for file in files:
        first, slash, path = file.name.removeprefix(folder).partition("/")
        match = STEP.fullmatch(first)
        if match and slash and str(int(match[1])) == match[1]:
            steps.setdefault(int(match[1]), {}).setdefault(path, []).append(file)
    return steps


def get_listed(store: Store, name: str, limit: int, file_id: str | None = None) -> bytes:
    """A record's bytes. Raises kind "missing" only when no listing shows it (or this version of it) either.

    What is listed and not found was replaced a moment ago, or is no longer there and the listing is old, or the server
    errs. Taken for nothing it would forget a quarantine or un-commit a step. So it is listed and read again for some
    seconds; then kind "transient".
    """
    for number in range(LISTED_TRIES):
        time.sleep(SETTLE_S * number)
        try:
            return store.get_bytes(name, file_id, limit)
        except StoreError as error:
            if error.kind != "missing":
                raise
            if not any(file_id in (None, file.file_id) for file in versions_of(store, name)):
                raise
    raise _listed_and_missing(store, name)


def read_versions(
    store: Store, name: str, limit: int, parse: Callable[[bytes], T], versions: Sequence[StoredFile] | None = None
) -> list[tuple[StoredFile, T | StoreError]]:
    """The newest versions of a record, newest first, as ``parse`` understands them; for one that it does not, why.

    ``versions``: as they were listed a moment ago. When one of them was replaced since, all are listed anew, so that
    the answer holds every version that there was at one time. Raises as ``get_listed``, but for "missing".
    """

    def read(file: StoredFile) -> T | StoreError:
        try:
            return parse(get_listed(store, name, limit, file.file_id))
        except StoreError as error:
            if error.kind != "damaged":
                raise
            return error

    for number in range(LISTED_TRIES):
        time.sleep(SETTLE_S * number)
        if versions is None:
            versions = versions_of(store, name)
        try:
            return [(file, read(file)) for file in versions[:MOST_POINTERS]]
        except StoreError as error:
            if error.kind != "missing":
                raise
        versions = None
    raise _listed_and_missing(store, name)


def _listed_and_missing(store: Store, name: str) -> StoreError:
    return StoreError("transient", f"{store.url} lists {name} and does not find it when it is asked for it; try again")


def read_latest(store: Store, run_id: str) -> Latest | None:
    """The pointer of a run, None when there is none. Raises kind "damaged" when its newest version cannot be read.

    Of its versions the one of the highest generation, lineage and step counts, whichever was written last: a pod that
    was fenced may have written late.
    """
    versions = pointer_versions(store, run_id)
    if not versions:
        return None
    return _best_record(versions)[1]


def readable_latest(store: Store, run_id: str) -> Latest | None:
    """As ``read_latest``; None also when its newest version cannot be read."""
    try:
        return read_latest(store, run_id)
    except StoreError as error:
        if error.kind != "damaged":
            raise
        return None


def last_pointer(store: Store, run_id: str) -> Latest | None:
    """As ``read_latest``, of the versions that can be read: None when none can. The holder builds on it."""
    read = [version for version in pointer_versions(store, run_id) if isinstance(version[1], Latest)]
    return _best_record(read)[1] if read else None


def pointer_versions(store: Store, run_id: str) -> list[tuple[StoredFile, Latest | StoreError]]:
    """The newest versions of the pointer, newest first; for one that cannot be understood, why."""
    name = f"{run_folder(run_id)}{LATEST}"
    return read_versions(store, name, LATEST_LIMIT, lambda data: parse_latest(data, run_id))


def _best_record(versions: Sequence[tuple[StoredFile, Latest | StoreError]]) -> tuple[StoredFile, Latest]:
    newest_file, newest = versions[0]
    if isinstance(newest, StoreError):
        raise newest
    if newest.legacy:
        return newest_file, newest  # the original scripts know no generations: what they wrote last is what they mean
    read = [(file, latest) for file, latest in versions if isinstance(latest, Latest)]
    return max(read, key=lambda pair: pair[1].order)  # of equal ones the newest, which comes first


def settle_pointer(store: Store, run_id: str) -> tuple[Latest | None, bool]:
    """Delete what fenced pods wrote over the pointer, and its old versions. Returns the pointer, None when there is
    none or its newest version cannot be read; and: was there something of a fenced pod?

    Only for the holder of the run, and after a look whether it still is. Where the newest cannot be read all stay:
    the next publish replaces it.
    """
    versions = pointer_versions(store, run_id)
    if not versions or isinstance(versions[0][1], StoreError):
        return None, False
    best, latest = _best_record(versions)
    delete_old(store, [file for file, _ in versions if file.file_id != best.file_id])
    return latest, versions[0][0].file_id != best.file_id


def settle_files(store: Store, run_id: str, fence: Callable[[], None], step: int | None = None) -> int:
    """Delete what a pod without the run brought under the names of committed steps; returns how many versions.

    It was on its way when that pod lost the run. Restoring goes by the manifest's ids; who reads by name would get it.
    Only for the holder, and while it publishes nothing itself: a mend has newer versions than its manifest, too.
    ``step``: look at that one alone. One listing, and a manifest only where a name of a step has several versions.

    Deleted is what lies over a version that the manifest names by its id, unless it has the same bytes, and manifests
    that count for less. Everything else in a step's folder is a person's own.
    """
    listed = store.list_versions(run_folder(run_id) if step is None else step_folder(run_id, step))
    late: list[StoredFile] = []
    for number, versions in by_step(listed, run_id).items():
        if MANIFEST in versions and any(len(of_name) > 1 for of_name in versions.values()):
            late += _delete_late_records(store, run_id, number, versions)
    if late:
        fence()  # then what was listed before is no newer holder's
    delete_old(store, late)
    return len(late)


def _delete_late_records(
    store: Store, run_id: str, step: int, versions: Mapping[str, Sequence[StoredFile]]
) -> list[StoredFile]:
    try:
        # Read by its id after the listing: were it gone by now, what was listed would be of a step in the making.
        commit, manifest, _ = newest_manifest(store, run_id, step, versions[MANIFEST])
    except StoreError as error:
        if error.kind not in ("damaged", "missing"):
            raise
        return []
    late = _newer_versions(versions[MANIFEST], commit.file_id)
    if late is None:
        return []
    for file in manifest.files:
        hash_ = file.part_sha1[0] if len(file.part_sha1) == 1 else None
        over = _newer_versions(versions.get(file.path, ()), file.file_id) or []
        late += [one for one in over if one.size != file.size or one.sha1 is None or one.sha1 != hash_]
    return late


def _newer_versions(versions: Sequence[StoredFile], file_id: str) -> list[StoredFile] | None:
    """The versions that are newer than this one; None where it is not listed."""
    ids = [file.file_id for file in versions]
    return list(versions[: ids.index(file_id)]) if file_id in ids else None


def put_and_read_back(store: Store, name: str, data: bytes, limit: int) -> StoredFile:
    """Write a record, and look at it."""
    stored = store.put_bytes(name, data)
    if store.get_bytes(name, stored.file_id, limit) != data:
        raise StoreError("transient", f"{store.url}/{name} does not read back as it was written")
    return stored


def delete_old(store: Store, files: Sequence[StoredFile]) -> int:
    """Delete versions that count for nothing any more. Returns freed bytes; less where the key may delete nothing.

    A key without that right still publishes: its old versions stay behind and are billed. Where the right is
    refused once, the rest is not tried.
    """
    freed = 0
    for file in files:
        try:
            store.delete(file)
        except StoreError as error:
            if error.kind != "permanent":
                raise
            return freed
        freed += file.size
    return freed


def until_listed(store: Store, stored: StoredFile, fence: Callable[[], None]) -> None:
    """Wait until the listing shows a version that was just written: who reads next would build on the one before.

    ``fence``: is the run still ours? What is not listed may also be what another pod cleaned away as too late.
    Raises what ``fence`` raises, and kind "transient" when the version does not show within about 40 seconds.
    """

    def is_listed() -> bool:
        if any(file.file_id == stored.file_id for file in store.list_versions(stored.name)):
            return True
        fence()
        return False

    until(is_listed, f"{store.url} does not list {stored.name}, which it confirmed; try again")


def until(condition: Callable[[], bool], otherwise: str | Callable[[], str]) -> None:
    """Look again for about 40 seconds: what a store lists may be some seconds old. Else kind "transient"."""
    for number in range(1, SETTLE_TRIES * 4 + 1):
        if condition():
            return
        time.sleep(SETTLE_S * min(number, 8))
    raise StoreError("transient", otherwise if isinstance(otherwise, str) else otherwise())


def read_manifest(store: Store, run_id: str, step: int, file_id: str | None = None) -> tuple[Manifest, bytes]:
    """A step's manifest and its bytes. Raises kind "missing" when the step is not committed, or "damaged"."""
    name = f"{step_folder(run_id, step)}{MANIFEST}"
    if file_id is None:
        versions = versions_of(store, name)
        if len(versions) > 1:
            _, manifest, data = newest_manifest(store, run_id, step, versions)
            return manifest, data
    data = get_listed(store, name, MANIFEST_LIMIT, file_id)
    return parse_manifest(data, run_id, step), data


def newest_manifest(
    store: Store, run_id: str, step: int, versions: Sequence[StoredFile] | None = None
) -> tuple[StoredFile, Manifest, bytes]:
    """Of several manifests of a step (newest first) the one of the highest generation and lineage counts.

    A pod that was fenced while it wrote one may have come last. Raises as ``read_manifest``, for the newest. It may be
    none of ``versions`` when the step was published anew since they were listed.
    """
    name = f"{step_folder(run_id, step)}{MANIFEST}"
    found: list[tuple[StoredFile, Manifest, bytes]] = []
    for file, read in read_versions(
        store, name, MANIFEST_LIMIT, lambda data: (parse_manifest(data, run_id, step), data), versions
    ):
        if not isinstance(read, StoreError):
            found.append((file, *read))
        elif not found:
            raise read
    if not found:
        raise StoreError("missing", f"{store.url}/{name} was deleted a moment ago: the step is not published any more")
    return max(found, key=lambda one: (one[1].generation, one[1].lineage))


def delete_versions(store: Store, folder: str, names: set[str] | None, fence: Callable[[], None] = lambda: None) -> int:
    """Delete all versions of objects (``names`` None: of all in the folder) until no listing shows them.

    Returns freed bytes. ``fence`` is called between each look and its deletes: what was listed while the run was still
    ours is no other pod's.
    """

    def delete(file: StoredFile) -> int:
        store.delete(file)
        return file.size

    freed = 0
    gone: set[str] = set()
    for number in range(SETTLE_TRIES * 4):
        left = [file for file in store.list_versions(folder) if names is None or file.name in names]
        if not left:
            return freed
        fresh = [file for file in left if file.file_id not in gone]
        if not fresh:  # deleted already, and the listing is not up to date
            time.sleep(SETTLE_S * min(number + 1, 8))
            continue
        fence()
        with ThreadPoolExecutor(store.streams) as pool:
            freed += sum(pool.map(delete, fresh))
        gone.update(file.file_id for file in fresh)
    raise StoreError("transient", f"{store.url}/{folder} still lists files that were deleted; try again")


def delete_hidden(store: Store, folder: str, fence: Callable[[], None]) -> int:
    """Delete what lies behind a person's own deletions, and then their markers, so that nothing comes to light again.

    Returns freed bytes. ``fence`` as in ``delete_versions``.
    """
    versions, markers = store.list_hidden(folder)
    if versions or markers:
        fence()
        with ThreadPoolExecutor(store.streams) as pool:
            list(pool.map(store.delete, versions))
            list(pool.map(store.delete, markers))
    return sum(file.size for file in versions)
