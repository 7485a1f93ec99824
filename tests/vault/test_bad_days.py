"""Bad days: a store that fails in every way it can, keys that may not do what is needed, a disk that is full.

Each ends well, or in one sentence; and nothing that was published is lost by it.
"""

from __future__ import annotations

import errno
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.retry import Retry
from supervisor.checkpoints.catalogue import delete_step, list_steps, sweep_run
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.restore import restore
from supervisor.checkpoints.scrub import scrub
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from supervisor.storage.file import FileStore
from tests.b2server import B2Server, Key
from tests.checkpoints_store.conftest import quiet
from tests.vault.pod import PART, RUN, Pod, Saved, go_back, save

KINDS = {"transient", "permanent", "quota", "no-room", "missing", "damaged", "changed"}


@pytest.fixture
def b2_pod(quick_dir: Path) -> Any:
    home = quick_dir / "pod"
    home.mkdir()
    with B2Server(part_size=PART) as server:
        yield Pod(home, server)


def publish_all(pod: Pod, *steps: int) -> None:
    for step in steps:
        pod.expected[step] = pod.save(step)
        publish(pod.open(), pod.plan(step), quiet)


def storm(server: B2Server, seed: int) -> None:
    """Some dozens of faults of every kind, somewhere in what follows."""
    dice = random.Random(seed)
    for _ in range(14):
        after = dice.randint(0, 6)
        server.fail(
            dice.choice(["b2_.*", "b2_upload_.*", "b2_list_.*", "b2_finish_large_file", "b2_start_large_file"]),
            after=after,
            times=dice.randint(1, 3),
            **dice.choice(
                [
                    {"status": 503},
                    {"status": 429, "code": "too_many_requests", "retry_after": 0},
                    {"status": 500, "code": "internal_error"},
                    {"status": 408, "code": "request_timeout"},
                    {"lose_answer": True},
                ]
            ),
        )
        server.fail("b2_upload_part", after=after, cut_upload_after=dice.randint(0, PART))
        server.fail(
            "download",
            after=after,
            **dice.choice(
                [{"cut_download_after": dice.randint(0, 200)}, {"flip": dice.randint(0, 250)}, {"status": 503}]
            ),
        )
    seen = [0]

    def expire(which: str, entry: dict[str, Any]) -> bool:
        """Now and then all tokens are a day old."""
        seen[0] += which == "asked"
        if which == "asked" and seen[0] % 37 == 0:
            with server.state.lock:
                server.state.tokens.clear()
        return False

    server.state.watch = expire


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_in_a_storm_nothing_is_lost_and_all_ends_well_when_it_is_over(b2_pod: Pod, seed: int) -> None:
    pod = b2_pod
    publish_all(pod, 20)
    server = pod.server
    assert server is not None
    pod.expected[40] = pod.save(40)
    storm(server, seed)
    stale = random.Random(seed).choice([0.0, 0.0, 0.3])
    deadline = time.monotonic() + 60
    acts: list[Callable[[Store], object]] = [
        lambda store: publish(store, pod.plan(40), quiet),
        lambda store: restore(store, RUN, 40, Place("checkpoints/step_40"), pod.home / "other", quiet),
    ]
    for act in acts:
        while True:
            assert time.monotonic() < deadline
            try:
                environ = server.environ()
                server.state.stale_s = stale if act is acts[0] else 0.0  # who restores has seen the step listed
                act(open_store("b2://the-bucket/team", server.url, environ, streams=4, retry=Retry(3, 0.001, 0.01)))
                break
            except StoreError as error:
                assert error.kind == "transient", f"{error.kind}: {error}"
                assert "\n" not in str(error)
            assert pod.committed()[20] == "" and pod.pointer() in (20, 40)
            if pod.pointer() == 40:
                assert pod.committed()[40] == ""
    server.state.faults.clear()
    server.state.watch = None
    server.state.stale_s = 0.0
    assert pod.committed() == {20: "", 40: ""} and pod.pointer() == 40
    back = pod.home / "other" / "checkpoints/step_40/trainer/__0_0.distcp"
    assert back.read_bytes() == pod.expected[40]["trainer/__0_0.distcp"]


FULL = ("listBuckets", "listFiles", "readFiles", "writeFiles", "deleteFiles")


@pytest.fixture(scope="module")
def three_published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pod, Saved]]:
    """A pod with three steps in its bucket, to go back to."""
    home = tmp_path_factory.mktemp("three") / "pod"
    home.mkdir()
    with B2Server(part_size=PART) as server:
        pod = Pod(home, server)
        publish_all(pod, 20, 40, 60)
        pod.save(40, seed=1)  # so that publishing it has to un-commit something
        yield pod, save(pod)


@pytest.mark.soak
@pytest.mark.parametrize("lacking", ["listFiles", "readFiles", "writeFiles", "deleteFiles"])
@pytest.mark.parametrize("act", ["publish", "restore", "delete", "verify"])
def test_a_key_that_lacks_something_is_one_sentence_that_names_it(
    three_published: tuple[Pod, Saved], lacking: str, act: str
) -> None:
    pod, saved = three_published
    go_back(pod, saved)
    server = pod.server
    assert server is not None
    key = server.add_key(Key("0000narrow01", "K000n", tuple(set(FULL) - {lacking}), ("the-bucket",), "team/"))
    store = open_store("b2://the-bucket/team", server.url, server.environ(key), streams=2, retry=Retry(2, 0.001, 0.01))
    before = pod.objects()
    acts: dict[str, Callable[[], object]] = {
        "publish": lambda: publish(store, pod.plan(40, allow_back=True), quiet),
        "restore": lambda: restore(store, RUN, 20, Place("checkpoints/step_20"), pod.home / "other", quiet),
        "delete": lambda: delete_step(store, RUN, 20),
        "verify": lambda: scrub(store, RUN, quiet, deep=100),
    }
    needs = {
        "publish": set(FULL),
        "restore": {"listFiles", "readFiles"},
        "delete": {"listFiles", "readFiles", "deleteFiles", "writeFiles"},
        "verify": {"listFiles", "readFiles"},
    }
    if lacking in needs[act]:
        with pytest.raises(StoreError) as caught:
            acts[act]()
        assert caught.value.kind == "permanent" and lacking in str(caught.value)
        assert "K000n" not in str(caught.value)
        if not (act == "publish" and lacking == "writeFiles") and not (act == "delete" and lacking == "writeFiles"):
            assert pod.objects() == before
    else:
        acts[act]()
    assert pod.committed().get(60) == ""


def test_an_empty_bucket_holds_nothing_and_says_so(b2_pod: Pod) -> None:
    store = b2_pod.open()
    assert list_steps(store, RUN).steps == {} and list_steps(store, RUN).latest is None
    assert scrub(store, RUN, quiet).steps == ()
    with pytest.raises(StoreError, match=f"there is no step 20 of {RUN} in b2://the-bucket/team") as caught:
        restore(store, RUN, 20, Place("checkpoints/step_20"), b2_pod.output, quiet)
    assert caught.value.kind == "missing"
    assert not b2_pod.output.exists() or not list(b2_pod.output.rglob("*"))


def test_a_disk_that_fills_in_the_middle_of_a_restore_is_said_and_the_rest_is_fetched_later(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_all(pod, 20)
    real, calls = os.pwrite, [0]

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        calls[0] += 1
        if calls[0] > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, offset)

    target = pod.home / "other"
    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(StoreError, match="No space left on device") as caught:
        restore(pod.open(), RUN, 20, Place("checkpoints/step_20"), target, quiet)
    assert caught.value.kind == "no-room" and "delete something there" in str(caught.value)
    assert not (target / "checkpoints/step_20").exists()
    monkeypatch.undo()
    restore(pod.open(), RUN, 20, Place("checkpoints/step_20"), target, quiet)
    assert (target / "checkpoints/step_20/trainer/.metadata").read_bytes() == pod.expected[20]["trainer/.metadata"]


@pytest.mark.parametrize("pod", ["file", pytest.param("b2", marks=pytest.mark.soak)], indirect=True)
def test_a_manifest_of_a_billion_files_or_a_json_bomb_is_damaged_in_a_moment(pod: Pod) -> None:
    publish_all(pod, 20, 40)
    store = pod.open()
    manifest = json.loads(store.get_bytes(f"{RUN}/step_40/manifest.json"))
    bombs = [
        b'{"files": ' + b"[" * 500_000,
        json.dumps(manifest | {"files": [{}] * 200_001}).encode(),
        json.dumps(manifest | {"total_bytes": 10**400}).encode(),
        json.dumps(manifest | {"step": float("1e308")}).encode(),
        b'{"format": 1' + b"0" * 5000 + b"}",
    ]
    for bomb in bombs:
        store.put_bytes(f"{RUN}/step_40/manifest.json", bomb)
        began = time.monotonic()
        found = list_steps(store, RUN)
        assert not found.steps[40].committed and found.steps[20].committed
        with pytest.raises(StoreError) as caught:
            restore(store, RUN, 40, Place("checkpoints/step_40"), pod.home / "other", quiet)
        assert caught.value.kind == "damaged" and len(str(caught.value)) < 600
        assert time.monotonic() - began < 10


def test_a_pointer_to_nothing_hides_no_step(pod: Pod) -> None:
    publish_all(pod, 20, 40)
    store = pod.open()
    store.put_bytes(f"{RUN}/latest.json", json.dumps({"step": "step_99", "run_id": RUN}).encode())
    found = list_steps(store, RUN)
    assert [info.step for info in found.steps.values() if info.committed] == [20, 40]
    assert any("there is no such step" in problem for problem in scrub(store, RUN, quiet).problems)


def test_sweeping_leaves_alone_what_a_living_pod_is_writing_and_what_is_spared(quick_dir: Path) -> None:
    """Both look at one folder; the writer may be another process."""
    pod = Pod(quick_dir / "pod")
    pod.home.mkdir()
    publish_all(pod, 20)
    left = pod.vault / RUN / "step_40" / ".incoming-0123456789abcdef"
    left.parent.mkdir()
    left.write_bytes(b"of a dead pod")
    with FileStore(pod.vault)._open_for_writing(pod.vault / RUN / "step_60") as descriptor:
        assert sweep_run(pod.open(), RUN, spare=[40].__contains__) == 0 and left.exists()
        assert sweep_run(pod.open(), RUN) == 1 and not left.exists()
        os.write(descriptor, b"whole")
    assert pod.open().get_bytes(f"{RUN}/step_60") == b"whole"
