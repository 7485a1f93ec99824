"""Publishing a step: what is written, in which order, and what is never written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from supervisor.checkpoints import blocks
from supervisor.checkpoints.catalogue import keep_lineage, list_steps
from supervisor.checkpoints.lineage import Entry
from supervisor.checkpoints.manifest import Latest, parse_manifest
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.pointer import point_away
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.publish import PublishPlan, Source, publish
from supervisor.checkpoints.records import read_latest
from supervisor.checkpoints.restore import restore
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import QUICK, RUN, Step, b2_store, quiet, tree


def test_a_step_comes_back_byte_for_byte_on_another_pod(store: Store, step: Step, tmp_path: Path) -> None:
    done = publish(store, step.plan(tmp_path / "state", dialect="prime-rl v0.6", step_base=1), quiet)
    size = sum(path.stat().st_size for path in step.files.values())
    assert (done.step, done.size_bytes, done.files, done.already, done.pointer_moved) == (20, size, 6, False, True)
    assert done.sent_bytes > size
    other = tmp_path / "pod-b"
    back = restore(store, RUN, 20, Place("checkpoints/step_20"), other, quiet)
    assert tree(other) == step.content()
    assert (back.verified, back.size_bytes, back.fetched_bytes, back.dialect) == (True, size, size, "prime-rl v0.6")
    assert [path.name for path in (tmp_path / "state").iterdir()] == [f"published-{RUN}-step_20.json"]


def test_step_files_stay_plain_files_so_that_a_sync_by_hand_still_works(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    publish(b2_store(b2), step.plan(tmp_path / "state"), quiet)
    objects = b2.objects()
    folder = f"team/{RUN}/step_20/"
    for name, path in step.files.items():
        assert objects[folder + name] == path.read_bytes()
    latest = json.loads(objects[f"team/{RUN}/latest.json"])
    assert list(latest)[:4] == ["step", "run_id", "wandb_run_id", "timestamp"]
    assert (latest["step"], latest["run_id"], latest["wandb_run_id"], latest["step_number"]) == (
        "step_20",
        RUN,
        "w7",
        20,
    )
    manifest = parse_manifest(objects[f"{folder}manifest.json"], RUN, 20)
    assert [file.path for file in manifest.files] == sorted(step.files)
    assert max(len(file.part_sha1) for file in manifest.files) == 5


def test_the_manifest_follows_all_files_and_the_pointer_is_the_last_thing_written(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    publish(b2_store(b2), step.plan(tmp_path / "state"), quiet)
    writes = [e["name"] for e in b2.journal("b2_upload_file|b2_finish_large_file") if e["status"] == 200]
    records = ["step_20/manifest.blocks", "step_20/manifest.json", "latest.json"]
    assert writes[-3:] == [f"team/{RUN}/{name}" for name in records]
    assert sorted(writes[:-3]) == sorted(f"team/{RUN}/step_20/{name}" for name in step.files)


def test_publishing_again_sends_nothing_even_when_the_local_plan_is_lost(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    before = len(b2.journal("b2_upload_.*"))
    done = publish(store, step.plan(tmp_path / "another-state"), quiet)
    assert (done.already, done.sent_bytes, done.pointer_moved) == (True, 0, False)
    assert len(b2.journal("b2_upload_.*")) == before


def test_other_bytes_under_the_same_step_are_uncommitted_before_any_file_is_replaced(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    store = b2_store(b2)
    step.write("trainer/only_before", b"x" * 100)
    publish(store, step.plan(tmp_path / "state"), quiet)
    again = Step(tmp_path / "rollback").fill(seed=1)
    start = len(b2.state.journal)
    done = publish(store, again.plan(tmp_path / "state"), quiet)
    assert (done.already, done.pointer_moved) == (False, True)
    acts = [
        (e["op"], e["name"].rpartition("/")[2])
        for e in b2.journal("b2_upload_.*|b2_delete_file_version|b2_start_large_file")
        if e["n"] >= start
    ]
    first = ["latest.json", "manifest.json", "only_before"]
    assert acts[:3] == [("b2_delete_file_version", name) for name in first]
    restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == again.content()


def test_a_file_that_changes_while_it_is_sent_is_not_committed(store: Store, step: Step, tmp_path: Path) -> None:
    victim = step.files["trainer/__1_0.distcp"]

    def rewrite(moved: Moved) -> None:
        if moved.phase == "sending" and moved.bytes > 40_000:
            data = victim.read_bytes()
            victim.write_bytes(b"torn" + data[4:])
            os.utime(victim, ns=(1, 1))

    with pytest.raises(StoreError, match=r"__1_0\.distcp") as caught:
        publish(store, step.plan(tmp_path / "state"), rewrite)
    assert caught.value.kind == "changed"
    assert read_latest(store, RUN) is None
    assert list_steps(store, RUN).steps[20].committed is False
    done = publish(store, step.plan(tmp_path / "state"), quiet)
    assert done.already is False
    restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == step.content()


def test_a_source_that_is_a_link_or_gone_is_refused_before_anything_is_sent(
    store: Store, step: Step, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    step.files["trainer/link"] = tmp_path / "link"
    step.files["trainer/link"].symlink_to(secret)
    with pytest.raises(StoreError, match="no plain file") as caught:
        publish(store, step.plan(tmp_path / "state"), quiet)
    assert caught.value.kind == "changed"
    step.files["trainer/link"] = tmp_path / "gone"
    with pytest.raises(StoreError, match="vanished"):
        publish(store, step.plan(tmp_path / "state"), quiet)
    assert list(store.list(f"{RUN}/")) == []


def test_the_pointer_goes_up_and_not_down_unless_that_is_meant(store: Store, tmp_path: Path) -> None:
    for number in (20, 100):
        publish(store, Step(tmp_path / f"pod-{number}", number).fill().plan(tmp_path / "state"), quiet)
    late = Step(tmp_path / "pod-30", 30).fill()
    done = publish(store, late.plan(tmp_path / "state"), quiet)
    assert (done.pointer_moved, done.note) == (False, "latest.json stays at step 100, which is higher than step 30")
    latest = read_latest(store, RUN)
    assert latest is not None and latest.step == 100
    done = publish(store, late.plan(tmp_path / "state", allow_back=True), quiet)
    assert (done.already, done.pointer_moved) == (True, True)
    latest = read_latest(store, RUN)
    assert latest is not None and latest.step == 30


def test_a_kill_between_manifest_and_pointer_is_healed_by_the_next_publish(
    store: Store, step: Step, tmp_path: Path
) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    (pointer,) = [file for file in store.list(f"{RUN}/") if file.name.endswith("latest.json")]
    store.delete(pointer)
    done = publish(store, step.plan(tmp_path / "state"), quiet)
    assert (done.already, done.pointer_moved) == (True, True)
    assert read_latest(store, RUN) is not None


def test_the_pointer_of_the_original_scripts_is_taken_over_with_its_wandb_run(
    store: Store, step: Step, tmp_path: Path
) -> None:
    old = {"step": "step_10", "run_id": RUN, "wandb_run_id": "abc123", "timestamp": "2026-01-06T10:00:00"}
    store.put_bytes(f"{RUN}/latest.json", json.dumps(old).encode())
    publish(store, step.plan(tmp_path / "state", wandb_run_id=""), quiet)
    latest = read_latest(store, RUN)
    assert latest is not None
    assert (latest.step, latest.wandb_run_id, latest.legacy) == (20, "abc123", False)


def test_a_pointer_that_nobody_can_read_is_replaced_and_the_note_says_so(
    store: Store, step: Step, tmp_path: Path
) -> None:
    store.put_bytes(f"{RUN}/latest.json", b"{ not json")
    done = publish(store, step.plan(tmp_path / "state"), quiet)
    assert done.pointer_moved
    assert "it is no JSON" in done.note and done.note.endswith("it was replaced")


def test_a_listing_that_is_a_second_old_is_waited_for(b2: B2Server, step: Step, tmp_path: Path) -> None:
    b2.state.stale_s = 0.4
    done = publish(b2_store(b2), step.plan(tmp_path / "state"), quiet)
    assert done.pointer_moved
    assert json.loads(b2.objects()[f"team/{RUN}/latest.json"])["step_number"] == 20


def test_a_lost_file_of_a_committed_step_is_sent_again(store: Store, step: Step, tmp_path: Path) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    (lost,) = [file for file in store.list(f"{RUN}/step_20/") if file.name.endswith("__0_0.distcp")]
    store.delete(lost)
    assert "step 20 lacks trainer/__0_0.distcp" in list_steps(store, RUN).steps[20].problem
    assert publish(store, step.plan(tmp_path / "state"), quiet).already is False
    assert list_steps(store, RUN).steps[20].committed is True


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "no files"),
        (["manifest.json"], "the store's own name"),
        (["a", "a"], "twice"),
        (["../a"], "'..' part"),
        (["a", "a/b"], "a file and a folder at once"),
    ],
)
def test_plans_that_make_no_step_are_refused(tmp_path: Path, store: Store, names: list[str], sentence: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with pytest.raises(StoreError, match=sentence):
        publish(store, PublishPlan(RUN, 1, [Source(source, name) for name in names], tmp_path / "state"), quiet)
    assert list(store.list(f"{RUN}/")) == []


def test_a_run_id_cannot_lead_out_of_the_store(store: Store, step: Step, tmp_path: Path) -> None:
    for run_id in ("..", "a/b", "", "-x"):
        with pytest.raises(StoreError, match="no run id"):
            publish(store, PublishPlan(run_id, 1, step.plan(tmp_path).files, tmp_path / "state"), quiet)


def test_latest_says_what_a_person_needs() -> None:
    assert Latest(20, RUN).legacy
    assert not Latest(20, RUN, manifest_sha256="0" * 64).legacy


# ---------------------------------------------------------------- the first byte, and hashing beside sending


def test_the_first_part_is_on_its_way_before_the_rest_of_the_file_was_read(
    b2: B2Server, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived_at_read: list[int] = []
    real = blocks.PartHasher.finish_hashing

    def found(hasher: blocks.PartHasher) -> tuple[str, bytes]:
        arrived_at_read.append(len([e for e in b2.journal("b2_upload_part") if e.get("accepted")]))
        return real(hasher)

    monkeypatch.setattr(blocks.PartHasher, "finish_hashing", found)
    store = open_store("b2://the-bucket/team", b2.url, b2.environ(), streams=1, retry=QUICK)
    publish(store, step.plan(tmp_path / "state"), quiet)
    assert arrived_at_read[-1] >= 5  # when the last part is read, those before it are there
    assert len(arrived_at_read) == 5 + 3 + 4  # each part of the two large files and of four small ones, once


def test_small_files_arrive_before_large_ones_are_begun(b2: B2Server, step: Step, tmp_path: Path) -> None:
    publish(
        open_store("b2://the-bucket/team", b2.url, b2.environ(), streams=1, retry=QUICK),
        step.plan(tmp_path / "state"),
        quiet,
    )
    begun = [e["name"].rpartition("/")[2] for e in b2.journal("b2_upload_file|b2_start_large_file")]
    assert sorted(begun[:4]) == [".metadata", "STABLE", "empty", "progress.pt"]
    assert sorted(begun[4:6]) == ["__0_0.distcp", "__1_0.distcp"]


def killed_at(b2: B2Server, step: Step, state: Path, op: str) -> None:
    """Publish until ``op``, which is carried out over there and answered with silence; then the pod is gone."""
    b2.fail(op, lose_answer=True, times=10_000)
    b2.fail("b2_get_file_info", status=503, times=10_000)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(StoreError):
        patched.setattr("time.sleep", lambda _: None)  # b2sdk tries again by itself
        publish(b2_store(b2), step.plan(state), quiet)
    b2.state.faults.clear()
    b2.wait_idle()


def test_what_was_finished_in_the_moment_of_a_kill_is_known_again_by_its_id(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    killed_at(b2, step, tmp_path / "state", "b2_finish_large_file")
    finished = [v for v in b2.state.versions.values() if v.name.endswith(".distcp") and v.action == "upload"]
    assert finished
    start = len(b2.state.journal)
    publish(b2_store(b2), step.plan(tmp_path / "state"), quiet)
    again = {e["name"] for e in b2.journal("b2_upload_part|b2_start_large_file") if e["n"] >= start}
    assert not again & {version.name for version in finished}


def test_a_lost_local_plan_costs_sending_again_and_nothing_worse(b2: B2Server, step: Step, tmp_path: Path) -> None:
    killed_at(b2, step, tmp_path / "state", "b2_finish_large_file")
    publish(b2_store(b2), step.plan(tmp_path / "another-state"), quiet)
    restore(b2_store(b2), RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == step.content()


def test_a_source_that_changes_while_it_is_sent_leaves_no_finished_file(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    victim = step.files["trainer/__1_0.distcp"]

    def touch(moved: Moved) -> None:
        if moved.phase == "sending" and moved.bytes > 20_000:
            os.utime(victim, ns=(1, 1))

    with pytest.raises(StoreError, match=r"__1_0\.distcp was rewritten") as caught:
        publish(b2_store(b2), step.plan(tmp_path / "state"), touch)
    assert caught.value.kind == "changed"
    assert not [name for name in b2.objects() if name.endswith(("__1_0.distcp", "manifest.json", "latest.json"))]


# ---------------------------------------------------------------- a step that is reached again


def test_the_pointer_leaves_a_step_before_its_files_are_replaced(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    for number in (20, 40):
        publish(store, Step(tmp_path / f"pod-{number}", number).fill().plan(tmp_path / "state"), quiet)
    again, start = Step(tmp_path / "again", 40).fill(seed=1), len(b2.state.journal)
    done = publish(store, again.plan(tmp_path / "state"), quiet)
    acts = [
        e["name"].removeprefix(f"team/{RUN}/")
        for e in b2.journal("b2_upload_file|b2_delete_file_version|b2_finish_large_file")
        if e["n"] >= start
    ]
    assert acts[:2] == ["latest.json", "step_40/manifest.json"]
    assert done.pointer_moved
    latest = read_latest(store, RUN)
    assert latest is not None and latest.step == 40


def test_a_kill_after_the_pointer_left_its_step_is_healed(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    for number in (20, 40):
        publish(store, Step(tmp_path / f"pod-{number}", number).fill().plan(tmp_path / "state"), quiet)
    again = Step(tmp_path / "again", 40).fill(seed=1)
    b2.fail("b2_delete_file_version", status=403, code="access_denied", times=10_000)
    with pytest.raises(StoreError):
        publish(store, again.plan(tmp_path / "state"), quiet)
    b2.state.faults.clear()
    latest = read_latest(store, RUN)
    assert latest is not None and (latest.step, latest.wandb_run_id) == (20, "w7")
    assert list_steps(store, RUN).steps[40].committed  # the old one, whole
    assert publish(store, again.plan(tmp_path / "state"), quiet).pointer_moved
    latest = read_latest(store, RUN)
    assert latest is not None and latest.step == 40


def test_the_pointer_goes_back_to_no_step_that_was_left(store: Store, tmp_path: Path) -> None:
    for number in (20, 40, 60):
        publish(store, Step(tmp_path / f"pod-{number}", number).fill().plan(tmp_path / "state"), quiet)
    keep_lineage(store, RUN, [Entry("quarantine", 40, 1.0)], generation=0, writer="pod-a", fence=lambda: None)
    wanted = point_away(store, Latest(60, RUN), lambda: None)
    latest = read_latest(store, RUN)
    assert latest is not None and latest.step == 20
    assert (wanted.step, wanted.wandb_run_id) == (60, "w7")


def test_without_another_good_step_there_is_no_pointer_until_the_step_is_committed_again(
    store: Store, step: Step, tmp_path: Path
) -> None:
    publish(store, step.plan(tmp_path / "state"), quiet)
    point_away(store, Latest(20, RUN), lambda: None)
    assert read_latest(store, RUN) is None
    again = Step(tmp_path / "again").fill(seed=1)
    assert publish(store, again.plan(tmp_path / "state"), quiet).pointer_moved
    restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == again.content()
