"""Moving ``latest.json``: up to a step that has just been committed, or away from one that is about to be replaced.

Other programs read the pointer by its name, and then the files of the step that it names. So it never names a step
while its files are being replaced: half of them would be another lineage's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.manifest import LATEST, LATEST_LIMIT, MANIFEST, Latest, now, run_folder, sha256, step_folder
from supervisor.checkpoints.records import (
    delete_versions,
    last_pointer,
    newest_manifest,
    put_and_read_back,
    read_latest,
    readable_latest,
)
from supervisor.storage.base import Store, StoreError


def point(  # noqa: PLR0917
    store: Store, wanted: Latest, manifest_id: str, manifest: bytes, allow_back: bool, fence: Callable[[], None]
) -> tuple[bool, str]:
    """Let ``latest.json`` name the step that ``wanted`` tells, unless it names a higher one. Returns (moved, note).

    ``allow_back``: lower is meant, too. ``fence``: is the run still ours?
    """
    note = ""
    try:
        current = last = read_latest(store, wanted.run_id)
    except StoreError as error:
        if error.kind != "damaged":
            raise
        current, note = None, f"{error}; it was replaced"
        last = last_pointer(store, wanted.run_id)
    if current is not None and current.step > wanted.step and _names_nothing(store, current):
        note = f"latest.json named step {current.step}, which is not there"
        current = None
    if current is None and not allow_back:
        # There is none, or none that can be read: a step that is mended meanwhile need not be the newest good one.
        newest = list_steps(store, wanted.run_id).newest_good(but=wanted.step)
        if newest is not None and newest > wanted.step:
            file, _, manifest = newest_manifest(store, wanted.run_id, newest)
            manifest_id = file.file_id
            note = f"{note}; latest.json names step {newest}, the newest good one".removeprefix("; ")
            wanted = replace(wanted, step=newest)
    lineage = max(wanted.lineage, last.lineage if last else 0)
    back = allow_back or (current is not None and current.lineage < wanted.lineage)
    if last is not None and last.step > wanted.step and (back or current is None):
        lineage = max(lineage, last.lineage + 1)  # or the step that is left would count for more
    if current is not None and current.step > wanted.step and not back:
        return False, f"latest.json stays at step {current.step}, which is higher than step {wanted.step}"
    latest = replace(
        wanted,
        wandb_run_id=wanted.wandb_run_id or (last.wandb_run_id if last else ""),
        lineage=lineage,
        manifest_file_id=manifest_id,
        manifest_sha256=sha256(manifest),
    )
    if current is not None and (current.step, current.manifest_file_id, current.wandb_run_id) == (
        latest.step,
        latest.manifest_file_id,
        latest.wandb_run_id,
    ):
        return False, note
    fence()
    put_and_read_back(store, f"{run_folder(wanted.run_id)}{LATEST}", latest.to_bytes(), LATEST_LIMIT)
    return True, note


def _names_nothing(store: Store, latest: Latest) -> bool:
    """Was the step deleted by hand? A listing may lag behind, and in a store that was copied ids are others."""
    name = f"{step_folder(latest.run_id, latest.step)}{MANIFEST}"
    if latest.legacy or store.list_versions(name):
        return False
    return store.version(name, latest.manifest_file_id) is None


def point_away(store: Store, wanted: Latest, fence: Callable[[], None]) -> Latest:
    """Before the step that ``wanted`` tells is un-committed: let ``latest.json`` name the newest other good step.

    A step that was left or is quarantined is none. Where no other is good, there is no ``latest.json`` until the step
    is committed again: who reads by name then finds nothing, which he notices, instead of a mixture, which he does not.
    Returns ``wanted`` with the W&B run that the pointer told. A pointer of the original scripts stays as it is: a step
    without a manifest is found by nothing else.
    """
    current = readable_latest(store, wanted.run_id)  # one that cannot be read leads nowhere
    if current is None or current.legacy or current.step != wanted.step:
        return wanted
    known = replace(wanted, wandb_run_id=wanted.wandb_run_id or current.wandb_run_id)
    good = list_steps(store, wanted.run_id).newest_good(but=wanted.step)
    name = f"{run_folder(wanted.run_id)}{LATEST}"
    if good is None:
        delete_versions(store, name, {name}, fence)
        return known
    file, _, data = newest_manifest(store, wanted.run_id, good)
    back = replace(
        known,
        step=good,
        timestamp=now(),
        lineage=max(wanted.lineage, current.lineage + 1),  # or the step that is left would count for more
        manifest_file_id=file.file_id,
        manifest_sha256=sha256(data),
    )
    fence()
    put_and_read_back(store, name, back.to_bytes(), LATEST_LIMIT)
    return known
