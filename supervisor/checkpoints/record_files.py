"""What pods leave in the store about a run, beside its steps: one small object a journal, so none is written over.

Bytes only: what is in them, and how little of it is believed, is in ``supervisor.effects.run_records``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from supervisor.checkpoints.manifest import run_folder
from supervisor.checkpoints.records import delete_old, get_listed
from supervisor.storage.base import Store, StoredFile, StoreError

FOLDER = "records/"
HEARTBEAT = "heartbeat.json"
JOURNAL = re.compile(r"[0-9a-f]{8,64}")
RECORD_LIMIT = 64 << 10  # bytes
MOST_RECORDS = 500  # the newest; a run on spot pods may have many
MOST_BYTES = 5 << 20  # of all of them: they come in one answer


def put_record(store: Store, run_id: str, journal: str, data: bytes) -> None:
    """Replace the journal's record; the version before is deleted, if the key may. Raises StoreError."""
    if not JOURNAL.fullmatch(journal):
        raise StoreError("permanent", f"{journal!r} is no journal's identity: 8 to 64 hexadecimal digits")
    if len(data) > RECORD_LIMIT:
        raise StoreError("permanent", f"a journal's record has {len(data)} bytes, and it may have {RECORD_LIMIT}")
    folder = run_folder(run_id) + FOLDER
    name = f"{folder}{journal}.json"
    earlier = [file for file in store.list(folder) if file.name == name]
    store.put_bytes(name, data)
    delete_old(store, earlier)


def put_heartbeat(store: Store, run_id: str, value: Mapping[str, object]) -> None:
    """Replace the sign of life that others may look at beside the run's steps. Raises StoreError."""
    name = run_folder(run_id) + HEARTBEAT
    earlier = [file for file in store.list(name) if file.name == name]
    store.put_bytes(name, json.dumps(value).encode() + b"\n")
    delete_old(store, earlier)


def get_records(store: Store, run_id: str) -> dict[str, bytes]:
    """The newest records by journal, unread. What is not one of ours is left out. Raises StoreError."""
    folder = run_folder(run_id) + FOLDER
    found: list[tuple[str, StoredFile]] = []
    for file in store.list(folder):
        journal = file.name.removeprefix(folder).removesuffix(".json")
        if JOURNAL.fullmatch(journal) and file.name == f"{folder}{journal}.json" and file.size <= RECORD_LIMIT:
            found.append((journal, file))
    found = sorted(found, key=lambda pair: pair[1].uploaded_at)[-MOST_RECORDS:]
    while sum(file.size for _, file in found) > MOST_BYTES:
        found.pop(0)

    def read(file: StoredFile) -> bytes | None:
        try:
            return get_listed(store, file.name, RECORD_LIMIT)  # by name: another pod may have replaced it just now
        except StoreError as error:
            if error.kind in ("missing", "damaged"):
                return None  # it was deleted, or it is not what the listing said
            raise

    with ThreadPoolExecutor(max(1, min(store.streams, len(found)))) as pool:
        read_all = pool.map(read, [file for _, file in found])
        return {journal: data for (journal, _), data in zip(found, read_all, strict=True) if data is not None}
