"""The ends of each attempt's logs and its evidence in the store, so that a dead pod can be read afterwards.

``{run}/logs/{journal}/{attempt}-{name}.gz``, one object a log: a pod never writes over another's. Bounded in size and
in number: the oldest go. Bytes only; the caller has masked what is secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.checkpoints.log_packing import LOG_LIMIT, SERIES, unpack
from supervisor.checkpoints.manifest import run_folder
from supervisor.checkpoints.records import delete_old
from supervisor.storage.base import Store, StoredFile, StoreError
from supervisor.storage.hashing import sha1

FOLDER = "logs/"
NAME = re.compile(r"([0-9a-f]{8,64})/([0-9]{4,9})-([A-Za-z0-9][A-Za-z0-9._-]{0,99})\.gz")
MOST_LOGS = 400


@dataclass(frozen=True)
class LogFile:
    """One log in the store."""

    journal: str
    attempt: int
    name: str
    size_bytes: int  # compressed
    uploaded_at: float  # Unix time


def put_logs(store: Store, run_id: str, journal: str, attempt: int, packed: Mapping[str, bytes]) -> int:
    """Replace the logs of an attempt by their newer state; returns how many were sent. Raises StoreError.

    What was replaced, and the oldest logs, are deleted after all were sent, if the key may. Series go last: they are
    the history of the run.
    """
    folder = run_folder(run_id) + FOLDER
    there = {file.name: file for file in store.list(folder)}
    sent = 0
    replaced: list[StoredFile] = []
    for name, data in packed.items():
        full = f"{folder}{journal}/{attempt:04d}-{name}.gz"
        if not NAME.fullmatch(full.removeprefix(folder)) or len(data) > LOG_LIMIT:
            raise StoreError("permanent", f"{name!r} with {len(data)} bytes is no log that the store takes")
        before = there.pop(full, None)
        if before is not None and before.size == len(data) and before.sha1 is not None and before.sha1 == sha1(data):
            continue
        stored = store.put_bytes(full, data)
        # Without versions, the same bytes within a second have the same id: that is the new one.
        if before is not None and before.file_id != stored.file_id:
            replaced.append(before)
        sent += 1
    oldest_first = sorted(there.values(), key=lambda file: (file.name.endswith(f"-{SERIES}.gz"), file.uploaded_at))
    delete_old(store, [*replaced, *oldest_first[: max(0, len(there) + sent - MOST_LOGS)]])
    return sent


def list_logs(store: Store, run_id: str) -> list[LogFile]:
    """All logs, oldest attempt first; what is not one of ours is left out."""
    return [log for log, _ in _own_log_files(store, run_id)]


def get_logs(store: Store, run_id: str, attempt: int, name: str = "") -> dict[str, str]:
    """The texts of an attempt by "JOURNAL/NAME": several pods may each have had an attempt of that number. ``name``:
    those with this name alone.
    """
    found = {}
    for log, file in _own_log_files(store, run_id):
        if log.attempt == attempt and name in ("", log.name):
            found[f"{log.journal[:8]}/{log.name}"] = unpack(store.get_bytes(file.name, file.file_id, LOG_LIMIT))
    return found


def _own_log_files(store: Store, run_id: str) -> list[tuple[LogFile, StoredFile]]:
    folder = run_folder(run_id) + FOLDER
    found = []
    for file in store.list(folder):
        match = NAME.fullmatch(file.name.removeprefix(folder))
        if match and file.size <= LOG_LIMIT:
            found.append((LogFile(match[1], int(match[2]), match[3], file.size, file.uploaded_at), file))
    return sorted(found, key=lambda pair: (pair[0].uploaded_at, pair[0].name))
