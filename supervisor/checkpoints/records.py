"""Reading a run's records from a store, and deleting so that nothing older comes to light."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from supervisor.checkpoints.manifest import (
    LATEST,
    LATEST_LIMIT,
    MANIFEST,
    MANIFEST_LIMIT,
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


def read_latest(store: Store, run_id: str) -> Latest | None:
    """The pointer of a run, None when there is none. Raises kind "damaged" when it cannot be read."""
    try:
        data = store.get_bytes(f"{run_folder(run_id)}{LATEST}", limit=LATEST_LIMIT)
    except StoreError as error:
        if error.kind == "missing":
            return None
        raise
    return parse_latest(data, run_id)


def read_manifest(store: Store, run_id: str, step: int, file_id: str | None = None) -> tuple[Manifest, bytes]:
    """A step's manifest and its bytes. Raises kind "missing" when the step is not committed, or "damaged"."""
    data = store.get_bytes(f"{step_folder(run_id, step)}{MANIFEST}", file_id, limit=MANIFEST_LIMIT)
    return parse_manifest(data, run_id, step), data


def delete_versions(store: Store, folder: str, names: set[str]) -> int:
    """Delete objects and what their deletion uncovers, until no listing shows them. Returns freed bytes."""

    def delete(file: StoredFile) -> int:
        store.delete(file)
        return file.size

    freed = 0
    gone: set[str] = set()
    for number in range(SETTLE_TRIES * 4):
        left = [file for file in store.list(folder) if file.name in names]
        if not left:
            return freed
        fresh = [file for file in left if file.file_id not in gone]
        if not fresh:  # deleted already, and the listing is not up to date
            time.sleep(SETTLE_S * min(number + 1, 8))
        with ThreadPoolExecutor(store.streams) as pool:
            freed += sum(pool.map(delete, fresh))
        gone.update(file.file_id for file in fresh)
    raise StoreError("transient", f"{store.url}/{folder} still lists files that were deleted; try again")
