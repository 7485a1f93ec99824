"""Programs with a mistake in them: each has to be found, or the tests beside this one would prove nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints import catalogue, lineage, publish, records
from supervisor.checkpoints.claims import Fence
from supervisor.storage import file as file_store
from supervisor.storage.base import Store
from tests.b2server import B2Server
from tests.vault.machine import Machine
from tests.vault.pod import PART, Pod
from tests.vault.scenes import SCENES
from tests.vault.test_killed_anywhere import kill_at_every_point
from tests.vault.test_two_writers import take_over_everywhere

pytestmark = pytest.mark.soak

FOUND = (AssertionError, ValueError, pytest.fail.Exception)
"""By the judge, who may also trip over what is no JSON any more, or misses an error that should have come."""


@pytest.fixture
def folder(quick_dir: Path) -> Pod:
    home = quick_dir / "pod"
    home.mkdir()
    return Pod(home)


def found_by_killing(pod: Pod, name: str, match: str) -> None:
    with pytest.raises(FOUND, match=match):
        kill_at_every_point(pod, name, SCENES[name], "lost")


def found_by_taking_over(quick_dir: Path, act: str, winner: str, match: str) -> None:
    home = quick_dir / "first"
    home.mkdir()
    with B2Server(part_size=PART) as server, pytest.raises(FOUND, match=match):
        take_over_everywhere(Pod(home, server), Pod(quick_dir / "second", server), act, winner)


def test_files_are_not_fsynced(folder: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def folders_only(machine: Machine, real: Callable[[int], None]) -> Callable[[int], None]:
        counted = real_syncing(machine, real)
        return lambda descriptor: counted(descriptor) if os.path.isdir(f"/proc/self/fd/{descriptor}") else None  # noqa: PTH112

    real_syncing = Machine._syncing
    monkeypatch.setattr(Machine, "_syncing", folders_only)
    found_by_killing(folder, "further", "")


def test_folders_are_not_fsynced(folder: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_store, "sync_folder", lambda folder: None)
    found_by_killing(folder, "further", "")


def test_the_pointer_is_moved_before_the_manifest_is_written(folder: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    real = publish.StepPublish._commit_manifest

    def commit(self: Any, *more: Any, **options: Any) -> Any:
        publish.point(self.store, self.latest, "soon", b"soon", False, self.check_fence)
        return real(self, *more, **options)

    monkeypatch.setattr(publish.StepPublish, "_commit_manifest", commit)
    found_by_killing(folder, "further", "promise 2: the pointer names step 40")


def test_a_step_is_deleted_with_its_manifest_last(folder: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete_all(store: Store, folder: str, names: set[str] | None, fence: Callable[[], None]) -> int:
        for one in sorted(store.list_versions(folder), key=lambda one: one.name.endswith("manifest.json")):
            store.delete(one)
        return 0

    monkeypatch.setattr(catalogue, "delete_versions", delete_all)
    found_by_killing(folder, "prune", "promise 1")


def test_a_step_is_replaced_without_being_uncommitted(folder: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish.StepPublish, "_uncommit_step", lambda *more: None)
    found_by_killing(folder, "again", "promise 1")


def test_the_pointer_stays_at_a_step_that_is_uncommitted(folder: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "point_away", lambda store, latest, fence: latest)
    found_by_killing(folder, "again", "promise 2")


def test_a_rollback_moves_the_pointer_before_it_is_written_down(folder: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    real = catalogue.keep

    def keep(store: Store, run_id: str, *more: Any, **options: Any) -> Any:
        here = store.get_bytes(f"{run_id}/latest.json")
        store.put_bytes(f"{run_id}/latest.json", here.replace(b"60", b"20"))
        return real(store, run_id, *more, **options)

    monkeypatch.setattr(catalogue, "keep", keep)
    found_by_killing(folder, "rollback", "")


def test_nobody_looks_at_the_claims(quick_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fence, "__call__", lambda self: None)
    found_by_taking_over(quick_dir, "prune", "reaches 20 again", "promise 9|not told|DID NOT RAISE")


def test_what_is_deleted_is_listed_after_the_look_at_the_claims(
    quick_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = records.delete_versions

    def late(store: Store, folder: str, names: set[str] | None, fence: Callable[[], None]) -> int:
        fence()
        return real(store, folder, names)

    monkeypatch.setattr(catalogue, "delete_versions", late)
    found_by_taking_over(quick_dir, "prune", "reaches 20 again", "promise 9: step 20")


def test_a_late_quarantine_of_a_fenced_pod_counts(quick_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = lineage.Lineage.reason_against_step
    monkeypatch.setattr(
        lineage.Lineage,
        "reason_against_step",
        lambda self, step, published_in, generation=0: real(self, step, published_in),
    )
    found_by_taking_over(quick_dir, "quarantine", "same step", "promise 9")


def test_what_a_sleeping_pod_is_about_to_delete_is_taken_for_sent(
    quick_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fence, "nobody_elses", lambda self, file: True)
    found_by_taking_over(quick_dir, "prune", "reaches 20 again", "promise 9: step 20: trainer/empty is missing")
