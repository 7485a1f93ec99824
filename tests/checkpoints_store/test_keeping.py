"""Pins, readers, the last two good steps, and old versions: what stays in the store and what goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.checkpoints import keeping
from supervisor.checkpoints.catalogue import delete_step, list_steps
from supervisor.checkpoints.keeping import Hold, announce_restore, read_kept_steps, read_pins, set_holds, set_pin, tidy
from supervisor.checkpoints.publish import publish
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server, Key
from tests.checkpoints_store.conftest import IN_A_FOLDER, RUN, Lasting, Served, Step, b2_store, quiet
from tests.checkpoints_store.test_transfer import restore_request, where


def publish_all(store: Store, folder: Path, *numbers: int) -> None:
    for number in numbers:
        publish(store, Step(folder / str(number), number).fill(shard=900).plan(folder / "state"), quiet)


def refused(store: Store, step: int) -> str:
    with pytest.raises(StoreError) as caught:
        delete_step(store, RUN, step)
    assert caught.value.kind == "permanent"
    return str(caught.value)


def test_a_pinned_step_is_not_deleted_until_it_is_unpinned(store: Store, tmp_path: Path) -> None:
    publish_all(store, tmp_path, 10, 20, 30)
    assert read_pins(store, RUN).steps == ()
    assert set_pin(store, RUN, 10, pinned=True) == (10,)
    assert set_pin(store, RUN, 10, pinned=True) == (10,)
    assert refused(store, 10) == f"step 10 of {RUN} is not deleted: it is pinned (supervisorctl unpin 10)"
    assert set_pin(store, RUN, 10, pinned=False) == ()
    assert delete_step(store, RUN, 10) > 0
    assert list(list_steps(store, RUN).steps) == [20, 30]


NAN = Hold("loss-nan", 21, "The loss is nan for 2 steps, up to step 22: the weights are most likely lost.")


def test_a_step_from_before_training_became_worthless_is_not_deleted_by_anybody(store: Store, tmp_path: Path) -> None:
    publish_all(store, tmp_path, 10, 20, 30, 40)
    set_holds(store, RUN, [20], [NAN])
    assert read_kept_steps(store, RUN).held == (20,)
    assert read_kept_steps(store, RUN).holds == (NAN,)
    assert refused(store, 20) == (
        f"step 20 of {RUN} is not deleted: it is from before training became worthless (The loss is nan for 2 steps, "
        "up to step 22: the weights are most likely lost)"
    )
    assert delete_step(store, RUN, 10) > 0
    set_holds(store, RUN, [], [])
    assert delete_step(store, RUN, 20) > 0


def test_a_pin_and_a_hold_know_nothing_of_each_other(store: Store) -> None:
    set_pin(store, RUN, 10, pinned=True)
    set_holds(store, RUN, [10, 20], [NAN])
    set_pin(store, RUN, 20, pinned=True)
    assert read_pins(store, RUN).steps == (10, 20)
    set_pin(store, RUN, 20, pinned=False)
    assert read_kept_steps(store, RUN).held == (10, 20)
    set_holds(store, RUN, [], [])
    assert read_pins(store, RUN).steps == (10,)
    assert len(store.list_versions(f"{RUN}/pins.json")) == 1


def test_what_is_held_as_it_is_already_is_not_written_again(store: Store) -> None:
    set_holds(store, RUN, [], [])
    assert store.list_versions(f"{RUN}/pins.json") == []
    set_holds(store, RUN, [20], [NAN])
    (first,) = store.list_versions(f"{RUN}/pins.json")
    set_holds(store, RUN, [20], [NAN])
    assert store.list_versions(f"{RUN}/pins.json") == [first]


def test_two_good_steps_stay_whatever_is_asked_for(store: Store, tmp_path: Path) -> None:
    publish_all(store, tmp_path, 10, 20)
    assert "one of the last 2 good steps" in refused(store, 10)
    assert sorted(list_steps(store, RUN).steps) == [10, 20]


@pytest.mark.soak
@IN_A_FOLDER
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"format": 2, "steps": []}',
        b'{"format": 1, "steps": ["../x"]}',
        b'{"format": 1, "steps": [true]}',
        b'{"format": 1, "steps": [-1]}',
        b"[" * 50_000,
        json.dumps({"format": 1, "steps": list(range(1001))}).encode(),
        b" " * 70_000,
        b'{"format": 1, "steps": [], "held": 20}',
        b'{"format": 1, "steps": [], "held": [-1]}',
        b'{"format": 1, "steps": [], "holds": [20]}',
        b'{"format": 1, "steps": [], "holds": [{"finding": "../x", "bad": 1, "why": "", "lifted": null}]}',
        b'{"format": 1, "steps": [], "holds": [{"finding": "x", "bad": "1", "why": "", "lifted": null}]}',
        b'{"format": 1, "steps": [], "holds": [{"finding": "x", "bad": 1, "why": "\\u001b[2J", "lifted": null}]}',
        b'{"format": 1, "steps": [], "holds": [{"finding": "x", "bad": 1, "why": "", "lifted": true}]}',
    ],
)
def test_while_the_pins_cannot_be_read_nothing_is_deleted(store: Store, tmp_path: Path, data: bytes) -> None:
    publish_all(store, tmp_path, 10, 20, 30)
    store.put_bytes(f"{RUN}/pins.json", data)
    assert "the pins are unknown" in refused(store, 10)
    assert read_kept_steps(store, RUN).problem
    with pytest.raises(StoreError):
        set_pin(store, RUN, 10, pinned=False)
    assert set_pin(store, RUN, 20, pinned=True) == (20,)
    assert delete_step(store, RUN, 10) > 0


def test_a_step_that_somebody_restores_stays_and_a_dead_reader_is_forgotten(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_all(store, tmp_path, 10, 20, 30)
    with announce_restore(store, RUN, 10):
        assert read_kept_steps(store, RUN).reading == (10,)
        assert "it is being restored" in refused(store, 10)
    assert read_kept_steps(store, RUN).reading == ()
    store.put_bytes(f"{RUN}/readers/step_10.{'0' * 16}.json", b"{}")  # its pod died
    assert "it is being restored" in refused(store, 10)
    monkeypatch.setattr(keeping, "READING_S", -60.0)
    assert delete_step(store, RUN, 10) > 0
    tidy(store, RUN)
    assert not store.list(f"{RUN}/readers/")


def test_a_key_that_may_only_read_restores_all_the_same(b2: B2Server, tmp_path: Path, served: Served) -> None:
    publish_all(b2_store(b2), tmp_path, 20)
    key = b2.add_key(Key("0000reader01", "K000r", ("listFiles", "readFiles", "listBuckets"), ("the-bucket",)))
    done = served.ok(restore_request(tmp_path / "pod-b") | {"store": where(b2)}, b2.environ(key))
    assert done["verified"] is True


def test_a_restore_under_way_is_seen_by_the_pod_that_prunes(b2: B2Server, tmp_path: Path, served: Served) -> None:
    publish_all(b2_store(b2), tmp_path, 20, 30, 40)
    served.ok(restore_request(tmp_path / "pod-b") | {"store": where(b2)}, b2.environ())
    names = [(entry["op"], entry["name"].rpartition("/")[2]) for entry in b2.journal(".*", "readers/step_20")]
    assert names[0][0] == "b2_upload_file" and names[-1][0] == "b2_delete_file_version"
    first_read = next(entry["n"] for entry in b2.journal("download", "step_20/trainer"))
    assert b2.journal("b2_upload_file", "readers/step_20")[0]["n"] < first_read


def test_old_versions_go_and_what_a_manifest_names_stays(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    publish_all(store, tmp_path, 10)
    for number in range(3):
        store.put_bytes(f"{RUN}/records/{number % 1:08d}.json", b"%d" % number)
        set_pin(store, RUN, number, pinned=True)
    before = {file.file_id for file in store.list(f"{RUN}/step_10/")}
    b2.put(f"team/{RUN}/step_10/trainer/.metadata", b"written late by a pod that was fenced")
    tidy(store, RUN, (10,))
    left = {version.file_id for version in b2.state.versions.values() if "/step_10/" in version.name}
    assert before <= left
    counts = [version.name for version in b2.state.versions.values()]
    assert counts.count(f"team/{RUN}/pins.json") == 1 and counts.count(f"team/{RUN}/records/00000000.json") == 1
    assert read_pins(store, RUN).steps == (0, 1, 2)


def test_a_step_that_is_reached_again_leaves_no_byte_of_the_old_one(
    b2: B2Server, tmp_path: Path, served: Served
) -> None:
    for seed in (1, 2):
        step = Step(tmp_path / f"pod-{seed}").fill(seed)
        served.ok(step.request(tmp_path / "state") | {"store": where(b2)}, b2.environ())
    names = [version.name for version in b2.state.versions.values() if "/step_20/" in version.name]
    assert len(names) == len(set(names))


@pytest.mark.soak
def test_pins_through_the_process(b2: B2Server, tmp_path: Path, lasting: Lasting) -> None:
    publish_all(b2_store(b2), tmp_path, 10, 20, 30)
    ask = {"do": "pin", "run_id": RUN, "step": 10, "store": where(b2)}
    assert lasting.ok(ask | {"pinned": True}, b2.environ()) == {"pinned": [10]}
    found = lasting.ok({"do": "catalogue", "run_id": RUN, "store": where(b2)}, b2.environ())
    assert (found["pinned"], found["reading"], found["pins_problem"]) == ([10], [], "")
