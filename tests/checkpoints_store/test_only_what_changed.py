"""The second step of a run: what it shares with the first is copied on the server, and the result is as if sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints import sources
from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.manifest import parse_manifest
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import Published, publish
from supervisor.checkpoints.records import delete_versions, read_manifest
from supervisor.checkpoints.restore import restore
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import RUN, Served, Step, Transfers, b2_store, quiet, tree, until
from tests.checkpoints_store.lora import TINY, Order

LARGE = "trainer/__0_0.distcp"
TOKENIZER = bytes(range(256)) * 12


@pytest.fixture
def b2() -> Iterator[B2Server]:
    with B2Server(part_size=100_000, minimum_part_size=5_000) as server:
        yield server


def lora_step(folder: Path, number: int, order: Order = "by size") -> Step:
    step = Step(folder / f"pod-{number}", number)
    step.write("trainer/.metadata", f"metadata of {number}".encode() * 40)
    step.write(LARGE, TINY.file(order, number))
    step.write("weights/tokenizer.json", TOKENIZER)
    step.write("weights/empty", b"")
    step.write(f".run/weights/step_{number}/adapter_config.json", b"rank 16" * 200)
    return step


def two_steps(server: B2Server, folder: Path, order: Order = "by size", **more: Any) -> tuple[Published, Step, int]:
    """Publish steps 20 and 40; returns how the second went, the step, and where its requests begin in the journal."""
    store = b2_store(server)
    publish(store, lora_step(folder, 20, order).plan(folder / "state", **more), quiet)
    second, start = lora_step(folder, 40, order), len(server.state.journal)
    return publish(store, second.plan(folder / "state", **more), quiet), second, start


def since(server: B2Server, start: int, op: str, name: str = "") -> list[dict[str, Any]]:
    return [e for e in server.journal(op, name) if e["n"] >= start and e["status"] == 200]


def comes_back(server: B2Server, step: Step, folder: Path) -> None:
    restore(b2_store(server), RUN, step.number, Place(step.primary), folder / "pod-b", quiet)
    assert tree(folder / "pod-b") == step.content()


def test_the_second_step_of_a_lora_run_sends_what_was_trained_and_little_more(b2: B2Server, tmp_path: Path) -> None:
    done, step, start = two_steps(b2, tmp_path)
    large = step.files[LARGE].read_bytes()
    old = b2.objects()[f"team/{RUN}/step_20/{LARGE}"]
    sent = since(b2, start, "b2_upload_part", LARGE)
    assert sum(e["size"] for e in sent) <= 0.1 * len(large)
    assert sum(e["size"] for e in sent) >= TINY.trained_share() * len(large)
    for entry in sent:  # whatever was sent was needed: no part of it is in the step before at the same place
        part = next(p for p in range(len(large)) if large[p : p + 1] and _sha1_at(large, p, entry))
        assert old[part : part + entry["size"]] != large[part : part + entry["size"]]
    assert since(b2, start, "b2_copy_part", LARGE)
    assert done.sent_bytes < 0.1 * done.size_bytes
    comes_back(b2, step, tmp_path)


def _sha1_at(data: bytes, offset: int, entry: dict[str, Any]) -> bool:
    from supervisor.storage.hashing import sha1

    return offset % 1024 == 0 and sha1(data[offset : offset + entry["size"]]) == entry["sha1"]


def test_the_manifest_follows_all_files_and_the_pointer_is_last_when_files_are_composed(
    b2: B2Server, tmp_path: Path
) -> None:
    _, step, start = two_steps(b2, tmp_path)
    writes = [
        e["name"].removeprefix(f"team/{RUN}/")
        for e in since(b2, start, "b2_upload_file|b2_finish_large_file|b2_copy_file")
    ]
    assert writes[-3:] == ["step_40/manifest.blocks", "step_40/manifest.json", "latest.json"]
    assert sorted(writes[:-3]) == sorted(f"step_40/{name}" for name in step.files)


def test_a_composed_step_outlives_the_step_that_it_was_made_of(b2: B2Server, tmp_path: Path) -> None:
    _, step, _ = two_steps(b2, tmp_path)
    folder = f"{RUN}/step_20/"
    store = b2_store(b2)
    delete_versions(store, folder, {file.name for file in store.list(folder)})
    assert [info.committed for info in list_steps(store, RUN).steps.values()] == [True]
    comes_back(b2, step, tmp_path)


@pytest.mark.soak
def test_small_equal_files_are_sent_once(b2: B2Server, tmp_path: Path) -> None:
    _, _, start = two_steps(b2, tmp_path)
    names = {e["name"] for e in since(b2, start, "b2_upload_file")}
    assert not any(name.endswith("tokenizer.json") for name in names)
    assert since(b2, start, "b2_copy_file", "step_40/weights/tokenizer.json")
    assert b2.objects()[f"team/{RUN}/step_40/weights/tokenizer.json"] == TOKENIZER
    assert since(b2, start, "b2_copy_file", "step_40/.run/weights/step_40/adapter_config.json")


def test_a_step_of_which_nothing_changed_sends_its_records_only(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    publish(store, lora_step(tmp_path, 20).plan(tmp_path / "state"), quiet)
    same = Step(tmp_path / "same", 40)
    for name, path in lora_step(tmp_path, 20).files.items():
        same.write(name.replace("step_20", "step_40"), path.read_bytes())
    start = len(b2.state.journal)
    publish(store, same.plan(tmp_path / "state"), quiet)
    assert since(b2, start, "b2_upload_part") == []
    sent = {e["name"].rpartition("/")[2] for e in since(b2, start, "b2_upload_file")}
    assert sent == {"empty", "manifest.blocks", "manifest.json", "latest.json"}
    comes_back(b2, same, tmp_path)


@pytest.mark.soak
def test_a_composed_step_is_a_base_as_good_as_a_sent_one_on_a_pod_that_never_saw_it(
    b2: B2Server, tmp_path: Path
) -> None:
    two_steps(b2, tmp_path)
    third = lora_step(tmp_path, 60)
    done = publish(b2_store(b2), third.plan(tmp_path / "another-pod"), quiet)
    assert done.sent_bytes < 0.1 * done.size_bytes
    comes_back(b2, third, tmp_path)


@pytest.mark.parametrize("longer", [-70_001, 70_001])
def test_a_file_that_grew_or_shrank_still_shares_what_is_in_its_place(
    b2: B2Server, tmp_path: Path, longer: int
) -> None:
    store = b2_store(b2)
    publish(store, lora_step(tmp_path, 20).plan(tmp_path / "state"), quiet)
    step = lora_step(tmp_path, 40)
    data = TINY.file("by size", 40)
    step.write(LARGE, data[:longer] if longer < 0 else data + data[:longer])
    done = publish(store, step.plan(tmp_path / "state"), quiet)
    assert done.sent_bytes < 0.15 * done.size_bytes
    comes_back(b2, step, tmp_path)


# ---------------------------------------------------------------- what can go wrong


def test_where_the_source_is_gone_everything_is_sent(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    publish(store, lora_step(tmp_path, 20).plan(tmp_path / "state"), quiet)
    for file in store.list(f"{RUN}/step_20/"):
        if not file.name.endswith(("manifest.json", "manifest.blocks")):
            store.delete(file)
    step, start = lora_step(tmp_path, 40), len(b2.state.journal)
    done = publish(store, step.plan(tmp_path / "state"), quiet)
    assert done.sent_bytes > done.size_bytes
    assert len([e for e in b2.journal("b2_copy_part") if e["n"] >= start]) <= 2 * store.streams  # not one a part
    comes_back(b2, step, tmp_path)


def test_bytes_that_rotted_in_the_store_are_not_copied_on(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    publish(store, lora_step(tmp_path, 20).plan(tmp_path / "state"), quiet)
    for version in b2.state.versions.values():
        if version.name.endswith((LARGE, "tokenizer.json")):
            middle = len(version.data) // 2
            version.data = version.data[:middle] + bytes([version.data[middle] ^ 1]) + version.data[middle + 1 :]
            version.sha1 = version.sha1 and "0" * 40
    step = lora_step(tmp_path, 40)
    done = publish(store, step.plan(tmp_path / "state"), quiet)
    assert done.sent_bytes < 0.3 * done.size_bytes  # the rotten part, and what was trained
    comes_back(b2, step, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("fault", [{"status": 400, "code": "bad_request"}, {"status": 401, "code": "unauthorized"}])
def test_where_the_server_refuses_to_copy_everything_is_sent(
    b2: B2Server, tmp_path: Path, fault: dict[str, Any]
) -> None:
    b2.fail("b2_copy_part|b2_copy_file", times=10_000, **fault)
    done, step, _ = two_steps(b2, tmp_path)
    assert done.sent_bytes > done.size_bytes
    comes_back(b2, step, tmp_path)


@pytest.mark.soak
def test_a_copy_whose_answer_is_lost_is_asked_for_again(b2: B2Server, tmp_path: Path) -> None:
    b2.fail("b2_copy_part", lose_answer=True, times=1)
    done, step, _ = two_steps(b2, tmp_path)
    assert done.sent_bytes < 0.1 * done.size_bytes
    comes_back(b2, step, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("damage", ["gone", "rubbish", "short", "another's"])
def test_without_honest_block_hashes_the_step_is_sent_whole(b2: B2Server, tmp_path: Path, damage: str) -> None:
    store = b2_store(b2)
    publish(store, lora_step(tmp_path, 20).plan(tmp_path / "state"), quiet)
    (blocks,) = [version for version in b2.state.versions.values() if version.name.endswith("manifest.blocks")]
    if damage == "gone":
        del b2.state.versions[blocks.file_id]
    else:
        other = {"rubbish": b"\0" * len(blocks.data), "short": blocks.data[:32], "another's": blocks.data[::-1]}[damage]
        b2.state.versions[blocks.file_id].data, blocks.sha1 = other, None
    step = lora_step(tmp_path, 40)
    done = publish(store, step.plan(tmp_path / "state"), quiet)
    assert done.sent_bytes > 0.95 * done.size_bytes
    comes_back(b2, step, tmp_path)


def test_a_manifest_with_an_impossible_place_of_hashes_is_damaged_and_nothing_worse(
    b2: B2Server, tmp_path: Path
) -> None:
    publish(b2_store(b2), lora_step(tmp_path, 20).plan(tmp_path / "state"), quiet)
    data = json.loads(b2.objects()[f"team/{RUN}/step_20/manifest.json"])
    for name, value in (("blocks_at", -1), ("blocks_at", 1 << 60), ("xxh3", "x"), ("block_size", -1)):
        bad = json.loads(json.dumps(data))
        bad["files"][0][name] = value
        with pytest.raises(StoreError, match="is damaged"):
            parse_manifest(json.dumps(bad).encode(), RUN, 20)
    with pytest.raises(StoreError, match="is damaged"):
        parse_manifest(json.dumps(data | {"blocks": {"file_id": "x", "size": 1 << 60}}).encode(), RUN, 20)


def test_a_manifest_of_an_older_version_is_still_read(b2: B2Server, tmp_path: Path) -> None:
    step = lora_step(tmp_path, 20)
    publish(b2_store(b2), step.plan(tmp_path / "state"), quiet)
    data = json.loads(b2.objects()[f"team/{RUN}/step_20/manifest.json"])
    del data["blocks"]
    for file in data["files"]:
        for name in ("block_size", "xxh3", "blocks_at"):
            del file[name]
    read = parse_manifest(json.dumps(data).encode(), RUN, 20)
    assert read.blocks is None and {file.xxh3 for file in read.files} == {""}


# ---------------------------------------------------------------- full fine-tuning


def fresh_step(folder: Path, number: int) -> Step:
    return Step(folder / f"full-{number}", number).fill(seed=number, shard=300_000)


def asked_for_blocks(server: B2Server, start: int) -> bool:
    return bool(since(server, start, "download", "manifest.blocks"))


def test_a_run_that_changes_everything_is_compared_once_and_again_when_its_configuration_changes(
    b2: B2Server, tmp_path: Path
) -> None:
    store, state = b2_store(b2), tmp_path / "state"
    asked = []
    for number, config in ((20, "a"), (40, "a"), (60, "a"), (80, "b"), (100, "b")):
        start = len(b2.state.journal)
        step = fresh_step(tmp_path, number)
        done = publish(store, step.plan(state, config_sha256=config), quiet)
        asked.append(asked_for_blocks(b2, start))
        assert done.sent_bytes > done.size_bytes
    assert asked == [False, True, False, True, False]
    comes_back(b2, step, tmp_path)


def test_a_note_that_cannot_be_read_means_compare(b2: B2Server, tmp_path: Path) -> None:
    store, state = b2_store(b2), tmp_path / "state"
    for number in (20, 40):
        publish(store, fresh_step(tmp_path, number).plan(state), quiet)
    (state / f"shared-{RUN}.json").write_text("[1")
    start = len(b2.state.journal)
    publish(store, fresh_step(tmp_path, 60).plan(state), quiet)
    assert asked_for_blocks(b2, start)


# ---------------------------------------------------------------- kills, and calling again


@pytest.mark.parametrize("after", [3, *(pytest.param(parts, marks=pytest.mark.soak) for parts in (0, 11))])
def test_a_publish_killed_while_it_composes_goes_on_where_it_was(
    b2: B2Server, tmp_path: Path, transfers: Transfers, served: Served, after: int
) -> None:
    where = {"store": {"url": "b2://the-bucket/team", "realm": b2.url, "streams": 4, "part_size": None}}
    state = tmp_path / "state"
    served.ok(lora_step(tmp_path, 20, "plan").request(state) | where, b2.environ())
    start = len(b2.state.journal)
    step = lora_step(tmp_path, 40, "plan")
    b2.fail("b2_copy_part|b2_upload_part", after=after, times=10_000, delay_s=0.2)
    running = transfers.start(step.request(state) | where, b2.environ())
    until(lambda: len(since(b2, start, "b2_copy_part|b2_upload_part")) > after, "parts arrived")
    running.kill()
    b2.state.faults.clear()
    b2.wait_idle()
    served.ok(step.request(state) | where, b2.environ())
    made = [(e["file_id"], e["part"]) for e in since(b2, start, "b2_copy_part|b2_upload_part")]
    assert len(made) == len(set(made)) > after + 1
    assert len(since(b2, start, "b2_start_large_file")) == 1
    assert all(version.action == "upload" for version in b2.state.versions.values())
    comes_back(b2, step, tmp_path)


def test_publishing_again_what_is_published_reads_no_file_and_sends_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = lora_step(tmp_path, 20)
    publish(store, step.plan(tmp_path / "state"), quiet)

    def read_nothing(*_: object) -> None:
        raise AssertionError("a file was read again")

    monkeypatch.setattr(sources, "hash_part", read_nothing)
    done = publish(store, step.plan(tmp_path / "state"), quiet)
    assert (done.already, done.sent_bytes, done.pointer_moved) == (True, 0, False)
    step.write(LARGE, TINY.file("by size", 21))
    with pytest.raises(AssertionError, match="read again"):
        publish(store, step.plan(tmp_path / "state"), quiet)


def test_the_plans_of_old_steps_are_not_kept(store: Store, tmp_path: Path) -> None:
    for number in (20, 40, 60, 80):
        publish(store, Step(tmp_path / f"p{number}", number).fill().plan(tmp_path / "state"), quiet)
    kept = {path.name for path in (tmp_path / "state").glob("publish*")}
    assert kept == {f"published-{RUN}-step_{number}.json" for number in (40, 60, 80)}


def test_the_manifest_tells_a_hash_of_each_whole_file(store: Store, tmp_path: Path) -> None:
    import xxhash

    step = lora_step(tmp_path, 20)
    publish(store, step.plan(tmp_path / "state"), quiet)
    manifest, _ = read_manifest(store, RUN, 20)
    told = {file.path: file for file in manifest.files}
    assert told["weights/tokenizer.json"].xxh3 in {
        xxhash.xxh3_128_hexdigest(TOKENIZER),
        xxhash.xxh3_128_hexdigest(
            b"".join(xxhash.xxh3_128_digest(TOKENIZER[at : at + 1024]) for at in range(0, len(TOKENIZER), 1024))
        ),
    }
    assert all(len(file.xxh3) == 32 and file.block_size > 0 for file in told.values())
