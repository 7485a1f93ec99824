"""What `rl-supervisor check --online` says of a store before a run depends on it: its key, bucket and old versions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from supervisor.storage.base import Store, StoredFile
from supervisor.storage.keys import MAKE_A_KEY, NEEDED

MANY_VERSIONS = 100
"""Old versions from which on they are told: a few are there at any time, between a write and its clean-up."""


@dataclass(frozen=True)
class Bucket:
    """What a key may do, and what the bucket does to its files by itself.

    ``rules``: B2's lifecycle rules (``fileNamePrefix``, ``daysFromUploadingToHiding``, ``daysFromHidingToDeleting``,
    ``daysFromStartingToCancelingUnfinishedLargeFiles``), None where the key may not ask. Source: Backblaze's
    documentation of b2_update_bucket.
    """

    key_end: str  # the last characters of the key's id
    capabilities: frozenset[str]
    rules: Sequence[Mapping[str, Any]] | None = None


@runtime_checkable
class HasBucket(Protocol):
    """A store that can tell what its key may."""

    def bucket(self) -> Bucket:
        """Ask the service. Raises StoreError."""

    def full_name(self, name: str) -> str:
        """A name as it is in the bucket."""


@runtime_checkable
class TellsRules(Protocol):
    """A store that has no ``Bucket`` to tell, and can be asked for its lifecycle rules anyway."""

    def cancels_unfinished(self, name: str) -> bool | None:
        """Does a rule cancel uploads below ``name`` that are never finished? None: the key or service cannot tell."""


@dataclass(frozen=True)
class Survey:
    """``problems`` keep the run from being published; ``notes`` do not.

    ``ids``: those of the notes that a person may want to act on, by the name of their rule in pre-flight.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    ids: Mapping[str, str] = field(default_factory=dict)


def survey(store: Store, run_id: str) -> Survey:
    """Look at a store, without writing to it. Raises StoreError when it cannot be listed."""
    problems, notes, backstop = [], [], None
    ids: dict[str, str] = {}
    if isinstance(store, HasBucket):
        bucket = store.bucket()
        problems += _too_narrow(bucket)
        notes += _no_delete(bucket)
        ids |= dict.fromkeys(notes, "store-no-delete")
        if "listFiles" not in bucket.capabilities:
            return Survey(tuple(problems), tuple(notes), ids)
        folder = store.full_name(f"{run_id}/")
        hiding = [rule for one in bucket.rules or () if (rule := _hides_checkpoints(one, folder))]
        notes += hiding
        ids |= dict.fromkeys(hiding, "store-hides-steps")
        backstop = None if bucket.rules is None else any(_cancels_unfinished(one, folder) for one in bucket.rules)
    elif isinstance(store, TellsRules):
        backstop = store.cancels_unfinished(f"{run_id}/")
    if backstop is False:
        notes.append(_no_backstop(store.url))
        ids[notes[-1]] = "store-no-backstop"
    problems += _read_only_folder(store.url)
    files = store.list(f"{run_id}/")
    notes.insert(0, _holds_run(files, run_id))
    current = {file.file_id for file in files}
    hidden = [file for file in store.list_versions(f"{run_id}/") if file.file_id not in current]
    hidden += store.list_hidden(f"{run_id}/")[0]
    if len(hidden) >= MANY_VERSIONS:
        amount = f"{sum(file.size for file in hidden) / 1e9:.1f} GB"
        notes.append(
            f"{len(hidden)} old versions of names, {amount}, are kept behind the present files and billed. The run "
            "deletes its own after each publish, if its key may (deleteFiles); what others left is yours to delete."
        )
        ids[notes[-1]] = "store-old-versions"
    return Survey(tuple(problems), tuple(notes), ids)


def _too_narrow(bucket: Bucket) -> list[str]:
    lacking = [name for name in NEEDED if name not in bucket.capabilities and name != "deleteFiles"]
    if not lacking:
        return []
    return [f"The application key ...{bucket.key_end} lacks {', '.join(lacking)}. {MAKE_A_KEY}."]


def _no_delete(bucket: Bucket) -> list[str]:
    if "deleteFiles" in bucket.capabilities:
        return []
    told = (
        f"The application key ...{bucket.key_end} may delete nothing (it lacks deleteFiles): steps are published and "
        "restored, but store.keep_last has no effect and the bucket grows with every step and heartbeat. A step that "
        "is reached anew with other bytes, after a rollback, cannot be published."
    )
    return [told]


def _hides_checkpoints(rule: Mapping[str, Any], folder: str) -> str:
    """A rule that takes checkpoints away, in words; "" when it does not."""
    days, prefix = rule.get("daysFromUploadingToHiding"), str(rule.get("fileNamePrefix") or "")
    if not days or not (folder.startswith(prefix) or prefix.startswith(folder)):
        return ""
    below = f"below {prefix}" if prefix else "in it"
    return (
        f"A lifecycle rule of the bucket hides every file {below} {days} days after its upload, pinned steps too: no "
        "pod finds a step that is older. Remove that rule; store.keep_last is what deletes old steps."
    )


def _cancels_unfinished(rule: Mapping[str, Any], folder: str) -> bool:
    """Does it cancel what is begun in the folder and never finished?"""
    days = rule.get("daysFromStartingToCancelingUnfinishedLargeFiles")
    return bool(days) and folder.startswith(str(rule.get("fileNamePrefix") or ""))


def _no_backstop(url: str) -> str:
    rule = (
        "daysFromStartingToCancelingUnfinishedLargeFiles: 7"
        if url.startswith("b2:")
        else "AbortIncompleteMultipartUpload: DaysAfterInitiation 7"
    )
    return (
        "No lifecycle rule of the bucket cancels uploads that are never finished. The run cancels its own after each "
        "publish, but what a last pod leaves half-sent stays and is billed, unless the service cancels it by itself. "
        f"As a backstop give the bucket such a rule ({rule})."
    )


def _read_only_folder(url: str) -> list[str]:
    parts = urlsplit(url)
    if parts.scheme != "file":
        return []
    folder = Path(unquote(parts.path))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if os.access(folder, os.W_OK | os.X_OK):
        return []
    return [f"Nothing may be written to {folder} by user id {os.geteuid()}: `chown` it, or name another store."]


def _holds_run(files: Sequence[StoredFile], run_id: str) -> str:
    steps = sorted(
        int(number)
        for file in files
        if (parts := file.name.split("/"))[0] == run_id
        and len(parts) == 3
        and parts[2] == "manifest.json"
        and (number := parts[1].removeprefix("step_")).isdigit()
    )
    count = f"{len(files)} file{'' if len(files) == 1 else 's'}"
    newest = f", {len(steps)} published step{'' if len(steps) == 1 else 's'} up to {steps[-1]}" if steps else ""
    return f"The store answers; it holds {count} of this run{newest}."
