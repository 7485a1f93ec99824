"""A step of which two machines have a part each: sent by both, committed once, and then a step like any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints import parts
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import Published, PublishPlan, Source, publish
from supervisor.checkpoints.restore import restore
from supervisor.checkpoints.scrub import scrub
from supervisor.storage.base import Store, StoreError
from tests.checkpoints_store.conftest import RUN, Step, quiet, tree

OF_THE_SECOND = "trainer/__1_0.distcp"


def send(store: Store, step: Step, state: Path) -> list[dict[str, Any]]:
    """The first machine has all but one shard."""
    answers = []
    for number, own in enumerate([[name for name in step.files if name != OF_THE_SECOND], [OF_THE_SECOND]]):
        plan = step.plan(state / f"machine-{number}")
        plan = replace(plan, files=[Source(step.files[name], name) for name in own])
        answers.append(parts.send_part(store, plan, [], quiet))
    return json.loads(json.dumps(answers))  # type: ignore[no-any-return]


def head_plan(step: Step, state: Path) -> PublishPlan:
    return replace(step.plan(state / "head"), files=[Source(Path(), name) for name in step.files])


def commit(store: Store, step: Step, state: Path) -> Published:
    sent = [file for answer in send(store, step, state) for file in answer["files"]]
    return parts.commit_parts(store, head_plan(step, state), sent, quiet)


def test_what_two_machines_sent_is_committed_verified_restored_and_published_again_without_a_byte(
    store: Store, step: Step, tmp_path: Path
) -> None:
    done = commit(store, step, tmp_path)
    assert (done.files, done.pointer_moved) == (len(step.files), True)
    assert not scrub(store, RUN, quiet, 20, 100.0).is_damaged
    restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == step.content()
    assert commit(store, step, tmp_path).already
    assert publish(store, step.plan(tmp_path / "single"), quiet).sent_bytes == 0  # and by a machine that has all


def test_other_content_is_sent_only_when_the_committed_step_is_open(store: Store, step: Step, tmp_path: Path) -> None:
    commit(store, step, tmp_path)
    step.write(OF_THE_SECOND, b"another lineage" * 5000)
    first, second = send(store, step, tmp_path)
    assert (second, "files" in first) == ({"other": True}, True)
    parts.open_step(store, head_plan(step, tmp_path), quiet)
    with pytest.raises(StoreError, match="never published"):
        restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    commit(store, step, tmp_path)
    restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == step.content()


def test_a_file_that_no_machine_sent_or_that_the_store_does_not_list_commits_nothing(
    store: Store, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [file for answer in send(store, step, tmp_path) for file in answer["files"]]
    with pytest.raises(StoreError, match="no machine sent trainer/__0_0"):
        unsent = [{**file, "file_id": ""} if "__0_0" in file["path"] else file for file in sent]
        parts.commit_parts(store, head_plan(step, tmp_path), unsent, quiet)
    monkeypatch.setattr("supervisor.checkpoints.publish.until", lambda look, told: look() or _raise(told()))
    with pytest.raises(StoreError, match="does not confirm it"):
        wrong = [{**file, "file_id": f"{file['file_id']}x"} if "__1_0" in file["path"] else file for file in sent]
        parts.commit_parts(store, head_plan(step, tmp_path), wrong, quiet)
    assert not any("manifest" in file.name for file in store.list(f"{RUN}/"))


def _raise(sentence: str) -> bool:
    raise StoreError("transient", sentence)
