"""What a run has in the store, and what is never deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.catalogue import delete_step, get_run_files, list_steps, put_run_files
from supervisor.checkpoints.publish import publish
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import RUN, Step, b2_store, quiet


def test_an_empty_run_has_no_steps(store: Store) -> None:
    found = list_steps(store, RUN)
    assert (dict(found.steps), found.latest, found.latest_problem) == ({}, None, "")


def test_a_store_that_cannot_be_listed_is_never_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Mount the volume"):
        list_steps(open_store((tmp_path / "gone" / "store").as_uri(), None, {}), RUN)


def test_steps_are_numbers_and_other_names_are_none_of_our_business(store: Store, tmp_path: Path) -> None:
    for number in (9, 100):
        publish(store, Step(tmp_path / str(number), number).fill(shard=900).plan(tmp_path / "state"), quiet)
    for name in ("step_x/a", "step_007/a", "notes.txt", "step_11", "run/run.toml"):
        store.put_bytes(f"{RUN}/{name}", b"x")
    found = list_steps(store, RUN)
    assert list(found.steps) == [9, 100]
    assert all(info.committed and not info.legacy for info in found.steps.values())
    assert found.steps[9].size_bytes == sum(
        p.stat().st_size for p in Step(tmp_path / "9", 9).fill(shard=900).files.values()
    )
    assert found.latest is not None and found.latest.step == 100


def test_steps_of_the_original_scripts_are_told_apart_from_unfinished_ones(store: Store) -> None:
    for number in (10, 20, 30):
        store.put_bytes(f"{RUN}/step_{number}/optimizer.pt", b"x" * number)
    store.put_bytes(f"{RUN}/latest.json", json.dumps({"step": "step_20", "run_id": RUN}).encode())
    found = list_steps(store, RUN).steps
    assert [(info.step, info.committed, info.legacy) for info in found.values()] == [
        (10, False, True),
        (20, True, True),
        (30, False, False),
    ]
    assert found[30].problem == "step 30 has no manifest.json: it was never published to the end"


def test_a_damaged_manifest_or_pointer_is_a_sentence_and_not_a_crash(store: Store, step: Step, tmp_path: Path) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    store.put_bytes(f"{RUN}/step_20/manifest.json", b'{"format": 1}')
    store.put_bytes(f"{RUN}/latest.json", b'{"step": "twenty"}')
    found = list_steps(store, RUN)
    assert found.steps[20].committed is False
    assert "run_id is missing" in found.steps[20].problem
    assert "not like 'step_20'" in found.latest_problem
    with pytest.raises(StoreError, match=r"while latest\.json cannot be read") as caught:
        delete_step(store, RUN, 20)
    assert caught.value.kind == "permanent"


def test_deleting_leaves_no_older_version_behind_and_no_unfinished_upload(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    for number in (10, 20, 30):
        publish(store, Step(tmp_path / str(number), number).fill(shard=900).plan(tmp_path / "state"), quiet)
    b2.put(f"team/{RUN}/step_10/trainer/.metadata", b"a newer version of the same name")
    assert delete_step(store, RUN, 10) > 0
    assert not [v.name for v in b2.state.versions.values() if "/step_10/" in v.name]
    assert list(list_steps(store, RUN).steps) == [20, 30]
    assert delete_step(store, RUN, 10) == 0


def test_run_files_have_plain_names_and_a_limit(store: Store) -> None:
    for name in ("../x", "a/b", ".hidden", ""):
        with pytest.raises(StoreError, match="no name for a run's file"):
            put_run_files(store, RUN, {name: b"x"})
    with pytest.raises(StoreError, match="may have 1048576"):
        put_run_files(store, RUN, {"big": bytes((1 << 20) + 1)})
    with pytest.raises(StoreError, match="at most 64"):
        put_run_files(store, RUN, {f"f{n}": b"" for n in range(65)})
    assert put_run_files(store, RUN, {"run.toml": b"1"}) == 1
    assert put_run_files(store, RUN, {"run.toml": b"2"}) == 1
    assert get_run_files(store, RUN) == {"run.toml": b"2"}
    store.put_bytes(f"{RUN}/run/deep/file", b"planted")
    with pytest.raises(StoreError, match="is no file of a run"):
        get_run_files(store, RUN)


def test_deleting_a_step_leaves_nothing_that_is_billed_also_where_somebody_hid_files(
    b2: B2Server, tmp_path: Path
) -> None:
    """rclone and the web page delete by hiding: the bytes stay behind a marker, and B2 bills them."""
    store = b2_store(b2)
    for number in (10, 20, 30):
        publish(store, Step(tmp_path / "pod-a", number).fill().plan(tmp_path / "state"), quiet)
    bucket, folder = next(iter(b2.state.buckets.values())), f"team/{RUN}/step_10/"
    names = [version.name for version in b2.state.sorted_versions(bucket, folder)]
    for name in names[1:]:
        b2.state.add(bucket, name, "hide", "application/x-bz-hide-marker", {})
    b2.state.store(bucket, names[-1], b"sent again after it was hidden", "application/octet-stream", {})
    assert len(b2.state.sorted_versions(bucket, folder)) == 2 * len(names)
    lit: list[str] = []

    def watch(op: str, request: dict[str, Any]) -> bool:
        with b2.state.lock:
            lit.extend(version.name for version in b2.state.current(bucket, folder) if version.name in names[1:-1])
        return False

    b2.state.watch = watch
    assert delete_step(store, RUN, 10) > 0
    assert b2.state.sorted_versions(bucket, folder) == []
    assert not lit, "nothing that was hidden came to light on the way"
