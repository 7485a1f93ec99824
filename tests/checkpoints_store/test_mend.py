"""Bytes that rotted in the store: `verify --deep` names them, `publish --step N` sends them anew, then all is good."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.keeping import tidy
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import Published, publish
from supervisor.checkpoints.restore import restore
from supervisor.checkpoints.scrub import Findings, scrub
from supervisor.storage.base import Store
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import PART, RUN, Step, Transfers, b2_store, quiet, transfers, tree
from tests.vault.machine import Machine, PowerCut
from tests.vault.pod import Pod, go_back, save

__all__ = ["transfers"]
SHARD, SMALL = "trainer/__0_0.distcp", "trainer/.metadata"


def rot(server: B2Server | None, vault: Path, name: str, at: int = 7) -> None:
    """Flip a bit of an object where it lies: its id, size, time and told SHA-1 stay."""
    if server is not None:
        found = next(v for v in server.state.versions.values() if v.name == f"team/{name}" and v.action == "upload")
        found.data = found.data[:at] + bytes([found.data[at] ^ 1]) + found.data[at + 1 :]
        return
    path, status = vault / name, (vault / name).stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def rotten(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Any:
    """``rotten(name)`` flips a bit of an object of the store under test."""
    server = request.getfixturevalue("b2") if store.url.startswith("b2") else None
    return lambda name: rot(server, tmp_path / "store", f"{RUN}/{name}")


def deep(store: Store, step: int | None = None) -> Findings:
    return scrub(store, RUN, quiet, step, deep=100)


def mended(store: Store, step: Step, state: Path) -> Published:
    return publish(store, replace(step.plan(state), reread=True), quiet)


def damaged(found: Findings) -> dict[int, str]:
    return {one.step: " ".join(one.problems) for one in found.steps if one.problems}


@pytest.fixture
def steps(store: Store, tmp_path: Path) -> list[Step]:
    made = [Step(tmp_path / str(number), number).fill() for number in (10, 20, 30)]
    for step in made:
        publish(store, step.plan(tmp_path / "state"), quiet)
    return made


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "name"),
    [(20, SHARD), (30, SMALL)],
    ids=["a shard of an older step", "a file of the step of latest.json"],
)
def test_a_rotten_file_is_sent_anew_and_the_deep_check_is_clean_afterwards(  # noqa: PLR0917
    store: Store, rotten: Any, steps: list[Step], tmp_path: Path, name: str, number: int
) -> None:
    rotten(f"step_{number}/{name}")
    assert list(damaged(deep(store))) == [number]
    step = steps[number // 10 - 1]
    done = mended(store, step, tmp_path / "state")
    assert done.sent_bytes > 0 and not done.already and name in done.note
    assert done.sent_bytes < step.files[name].stat().st_size + 20_000, "what is good is not sent again"
    assert damaged(deep(store)) == {} and not deep(store).problems
    latest = list_steps(store, RUN).latest
    assert latest is not None and latest.step == 30
    restore(store, RUN, number, Place(step.primary), tmp_path / "to", quiet)
    assert tree(tmp_path / "to") == step.content()
    again = mended(store, step, tmp_path / "state")
    assert (again.already, again.sent_bytes) == (True, 0)


def test_a_mend_without_the_local_plan_is_no_other(
    store: Store, rotten: Any, steps: list[Step], tmp_path: Path
) -> None:
    """Another pod has the step, and never published it."""
    rotten(f"step_20/{SHARD}")
    assert mended(store, steps[1], tmp_path / "another").sent_bytes > 0
    assert damaged(deep(store)) == {}


def test_a_good_step_is_read_again_only_when_a_person_asks_for_it(b2: B2Server, tmp_path: Path, step: Step) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    before = len(b2.journal("download", SHARD))
    assert publish(store, step.plan(tmp_path / "state"), quiet).already
    assert len(b2.journal("download", SHARD)) == before, "a daemon that starts anew reads no 50 GB"
    done = mended(store, step, tmp_path / "state")
    assert done.already and done.sent_bytes == 0
    assert len(b2.journal("download", SHARD)) > before


def test_the_mend_leaves_nothing_behind_that_is_billed(b2: B2Server, tmp_path: Path, step: Step) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    for name in (SHARD, SMALL):
        rot(b2, tmp_path, f"{RUN}/step_20/{name}")
    mended(store, step, tmp_path / "state")
    names = [version.name for version in b2.state.versions.values()]
    assert len(names) == len(set(names)), "rotten versions and the manifest that names them are gone"


@pytest.mark.soak
def test_a_mend_takes_nothing_from_the_step_before_and_each_step_with_the_same_bytes_is_named(
    b2: B2Server, tmp_path: Path
) -> None:
    """A copy on the server may copy the rot, with the SHA-1 of the healthy file beside it."""
    store = b2_store(b2)
    steps = [Step(tmp_path / str(number), number).fill(seed=1) for number in (10, 20)]
    for step in steps:
        step.write("tokenizer.json", b"words" * 500)
        publish(store, step.plan(tmp_path / "state"), quiet)
    assert b2.journal("b2_copy_file", "tokenizer.json")
    for number in (10, 20):  # as if the server had copied it rotten
        rot(b2, tmp_path, f"{RUN}/step_{number}/tokenizer.json")
    assert list(damaged(deep(store))) == [10, 20]
    copies = len(b2.journal("b2_copy_.*"))
    for step in reversed(steps):
        mended(store, step, tmp_path / "state")
    assert len(b2.journal("b2_copy_.*")) == copies
    assert damaged(deep(store)) == {}


def test_a_step_that_is_reached_again_keeps_no_rotten_file_of_the_old_one(
    store: Store, rotten: Any, tmp_path: Path
) -> None:
    """By the daemon, which reads nothing of a good step: but what stays of an old commit has to be what it was."""
    first = Step(tmp_path / "a", 20).fill()
    first.write("tokenizer.json", b"words" * 500)
    publish(store, first.plan(tmp_path / "state"), quiet)
    rotten("step_20/tokenizer.json")
    anew = Step(tmp_path / "b", 20).fill(seed=5)
    anew.write("tokenizer.json", b"words" * 500)
    publish(store, anew.plan(tmp_path / "state"), quiet)
    assert damaged(deep(store)) == {}


@pytest.mark.soak
def test_a_missing_file_and_a_manifest_that_nobody_can_read_are_mended_too(
    store: Store, rotten: Any, steps: list[Step], tmp_path: Path
) -> None:
    [there] = [file for file in store.list(f"{RUN}/step_30/") if file.name.endswith(SHARD)]
    store.delete(there)
    [there] = [file for file in store.list(f"{RUN}/step_20/") if file.name.endswith("manifest.json")]
    store.put_bytes(there.name, b"{")
    rotten(f"step_20/{SMALL}")
    assert set(damaged(deep(store))) == {20, 30}
    mended(store, steps[2], tmp_path / "state")
    mended(store, steps[1], tmp_path / "state")
    assert damaged(deep(store)) == {} and not deep(store).problems


def test_a_manifest_that_rotted_and_can_still_be_read_is_written_anew(tmp_path: Path, step: Step) -> None:
    from supervisor.storage import open_store

    store = open_store((tmp_path / "store").as_uri(), None, {}, part_size=PART)
    publish(store, step.plan(tmp_path / "state"), quiet)
    manifest = f"{RUN}/step_20/manifest.json"
    rot(None, tmp_path / "store", manifest, store.get_bytes(manifest).index(b"pod-a") + 4)
    assert "vouches for another manifest.json" in deep(store).problems[0]
    mended(store, step, tmp_path / "state")
    assert not deep(store).is_damaged


def test_a_pointer_that_nobody_can_read_is_replaced_by_one_to_the_newest_good_step(
    store: Store, steps: list[Step], tmp_path: Path
) -> None:
    """Not to the step that happens to be published next: a lower one was mended."""
    store.put_bytes(f"{RUN}/latest.json", b"junk")
    mended(store, steps[0], tmp_path / "state")
    latest = list_steps(store, RUN).latest
    assert latest is not None and latest.step == 30
    assert not deep(store).is_damaged


def test_a_pointer_to_a_step_that_a_person_deleted_goes_back_with_the_next_publish(
    store: Store, steps: list[Step], tmp_path: Path
) -> None:
    """It is higher than any step that is there, and higher than the one that is published."""
    for file in store.list_versions(f"{RUN}/step_30/"):
        store.delete(file)
    assert deep(store).is_damaged
    assert mended(store, steps[0], tmp_path / "state").pointer_moved
    latest = list_steps(store, RUN).latest
    assert latest is not None and latest.step == 20
    assert not deep(store).is_damaged


@pytest.mark.parametrize(
    ("where", "every"),
    [
        pytest.param("file", 4, id="some-file"),
        pytest.param("file", 1, id="file", marks=pytest.mark.soak),
        pytest.param("b2", 1, id="b2", marks=pytest.mark.soak),
    ],
)
def test_killed_at_any_point_of_the_mend_nothing_is_worse_than_before_and_the_next_one_ends_it(
    where: str, every: int, tmp_path: Path
) -> None:
    with B2Server(part_size=5_000) as server:
        (tmp_path / "home").mkdir()
        pod = Pod(tmp_path / "home", server if where == "b2" else None)
        for step in (20, 40):
            pod.expected[step] = pod.save(step)
            publish(pod.open(), pod.plan(step), quiet)
        for name in (SHARD, SMALL):
            rot(pod.server, pod.vault, f"{RUN}/step_40/{name}")
        saved = save(pod)

        def mend() -> None:
            publish(pod.open(), pod.plan(40, reread=True), quiet)
            tidy(pod.open(), RUN, (40,))

        go_back(pod, saved)  # in a folder every file is another one then
        with Machine(pod.home) as whole:
            mend()
        assert pod.holds(40, pod.expected[40]) and len(whole.labels) > 10
        for number in range(1, len(whole.labels) + 1, every):
            go_back(pod, saved)
            machine = Machine(pod.home, number)
            with machine, suppress(PowerCut):
                mend()
            assert machine.off or number > len(machine.labels) > 10, "threads may need a point less than they did"
            machine.lose("kept", number)
            if pod.server is not None:
                pod.server.wait_idle()
            told = f"cut {number} of {len(whole.labels)} at {machine.labels[-1]}"
            assert pod.pointer() == 40 and pod.listed() == {20: True, 40: True}, told
            assert pod.committed()[20] == "", told
            with Machine(pod.home):
                mend()
            assert pod.committed() == {20: "", 40: ""} and pod.pointer() == 40, told
            assert pod.holds(40, pod.expected[40]) and not deep(pod.open()).is_damaged, told
            assert pod.garbage() == [], told


@pytest.mark.soak
def test_the_transfer_process_mends_when_it_is_asked_to(
    b2: B2Server, transfers: Transfers, step: Step, tmp_path: Path
) -> None:
    there = {"store": {"url": "b2://the-bucket/team", "realm": b2.url, "streams": 4, "part_size": None}}
    asked = step.request(tmp_path / "state") | there
    transfers.ok(asked, b2.environ())
    rot(b2, tmp_path, f"{RUN}/step_20/{SHARD}")
    assert transfers.ok(asked, b2.environ())["already"]
    done = transfers.ok(asked | {"reread": True}, b2.environ())
    assert not done["already"] and SHARD in done["note"], json.dumps(done)
    assert damaged(deep(b2_store(b2))) == {}
