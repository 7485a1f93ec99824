"""B2 on its worst days, one fault at a time: what passes, what is sent again, and what stays behind (nothing)."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.restore import restore
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import PART, QUICK, RUN, Served, Step, Transfers, b2_store, quiet, tree
from tests.checkpoints_store.conftest import served as served
from tests.checkpoints_store.conftest import transfers as transfers

FOLDER = f"team/{RUN}/step_20/"


@pytest.fixture
def b2() -> Iterator[B2Server]:
    with B2Server(part_size=PART) as server:
        yield server


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path / "pod-a").fill()


def sent(server: B2Server) -> Counter[tuple[str, int]]:
    """How often each part and each small file arrived."""
    return Counter((e["name"], e.get("part", 0)) for e in server.journal("b2_upload_.*") if e.get("accepted"))


def impatient(server: B2Server, stall_s: float = 0.5) -> Store:
    """A store that gives a stream up after half a second instead of a minute."""
    store: Any = b2_store(server)
    store._client.session.raw_api.transport.stall_s = stall_s
    return store  # type: ignore[no-any-return]


# ---------------------------------------------------------------- authorization


@pytest.mark.soak
@pytest.mark.parametrize("times", [1, 3])  # b2sdk signs in anew once for each request
@pytest.mark.parametrize("op", ["b2_upload_part", "b2_upload_file", "download"])
def test_an_authorization_that_expires_again_and_again_passes(
    b2: B2Server, step: Step, tmp_path: Path, op: str, times: int
) -> None:
    store = b2_store(b2)
    b2.fail(op, status=401, code="expired_auth_token", times=times)
    publish(store, step.plan(tmp_path / "state"), quiet)
    restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == step.content()
    assert max(sent(b2).values()) == 1


@pytest.mark.parametrize(
    "op", ["b2_list_file_versions", "b2_start_large_file", "b2_get_upload_url", "b2_finish_large_file"]
)
def test_an_authorization_that_expires_twice_in_one_call_is_never_a_question_of_the_key(
    b2: B2Server, step: Step, tmp_path: Path, op: str
) -> None:
    store = b2_store(b2)
    b2.fail(op, status=401, code="expired_auth_token", times=2)
    try:
        publish(store, step.plan(tmp_path / "state"), quiet)
    except StoreError as error:
        assert error.kind == "transient" and "has expired" in str(error)
        publish(store, step.plan(tmp_path / "state"), quiet)
    assert max(sent(b2).values()) == 1
    assert list_steps(store, RUN).steps[20].committed


def test_a_token_that_the_server_never_gave_is_a_question_of_the_key(b2: B2Server) -> None:
    store = b2_store(b2)
    b2.fail("b2_list_file_names", status=401, code="bad_auth_token", times=2)
    with pytest.raises(StoreError, match="refuses the application key") as caught:
        store.list(f"{RUN}/")
    assert caught.value.kind == "permanent"


# ---------------------------------------------------------------- patience


def test_a_download_waits_as_long_as_it_is_asked_to(b2: B2Server) -> None:
    waited: list[float] = []
    retry = type(QUICK)(tries=3, base_s=0.001, cap_s=0.002, sleep=waited.append)
    store = open_store("b2://the-bucket/team", b2.url, b2.environ(), retry=retry)
    file = store.put_bytes("run/x", b"x" * 900)
    b2.fail("download", status=429, code="too_many_requests", retry_after=7)
    b2.fail("download", status=503, retry_after=3)
    assert store.get_range(file, 0, 900) == b"x" * 900
    assert waited == [7.0, 3.0]


def test_a_burst_of_503_on_everything_that_carries_bytes_costs_no_byte_twice(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    store = b2_store(b2)
    for op in ("b2_upload_part", "b2_upload_file", "download"):
        b2.fail(op, status=503, times=5)
    publish(store, step.plan(tmp_path / "state"), quiet)
    b2.fail("download", status=503, times=5)
    restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == step.content()
    assert max(sent(b2).values()) == 1


# ---------------------------------------------------------------- lost answers


def test_a_lost_answer_to_the_start_of_a_large_file_leaves_nothing_that_is_billed(
    b2: B2Server, step: Step, tmp_path: Path, served: Served
) -> None:
    b2.fail("b2_start_large_file", lose_answer=True, times=2)
    where = {"url": "b2://the-bucket/team", "realm": b2.url, "streams": 4, "part_size": None}
    served.ok(step.request(tmp_path / "state") | {"store": where}, b2.environ())
    assert [v.name for v in b2.state.versions.values() if v.action == "start"] == []
    assert max(Counter(v.name for v in b2.state.versions.values()).values()) == 1


@pytest.mark.soak
def test_a_lost_answer_to_a_small_file_leaves_one_version_of_it(
    b2: B2Server, step: Step, tmp_path: Path, transfers: Transfers
) -> None:
    b2.fail("b2_upload_file", name="metadata", lose_answer=True, times=1)
    b2.fail("b2_upload_file", name=r"manifest\.json", lose_answer=True, times=1)
    b2.fail("b2_upload_file", name=r"latest\.json", lose_answer=True, times=1)
    where = {"url": "b2://the-bucket/team", "realm": b2.url, "streams": 4, "part_size": None}
    request = step.request(tmp_path / "state") | {"store": where}
    transfers.ok(request, b2.environ())
    assert Counter(v.name for v in b2.state.versions.values() if v.name.startswith(FOLDER)).most_common(1)[0][1] == 1
    assert transfers.ok(request, b2.environ())["sent_bytes"] == 0
    assert list_steps(b2_store(b2), RUN).steps[20].committed


# ---------------------------------------------------------------- streams that stand still


def test_a_download_that_drips_is_cancelled_and_fetched_again(b2: B2Server, step: Step, tmp_path: Path) -> None:
    publish(b2_store(b2), step.plan(tmp_path / "state"), quiet)
    b2.fail("download", name="__0_0", drip=2_000, times=1)  # ten seconds for a part
    began = time.monotonic()
    restore(impatient(b2), RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == step.content()
    assert time.monotonic() - began < 8
    b2.wait_idle()


@pytest.mark.soak
def test_a_server_that_takes_a_part_and_never_answers_is_given_up_and_the_part_is_sent_again(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    b2.fail("b2_upload_part", delay_s=4, times=1)
    began = time.monotonic()
    publish(impatient(b2), step.plan(tmp_path / "state"), quiet)
    took = time.monotonic() - began
    assert list_steps(b2_store(b2), RUN).steps[20].committed and took < 4
    b2.wait_idle()


@pytest.mark.soak
def test_a_download_whose_answer_never_comes_is_given_up_and_asked_for_again(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    publish(b2_store(b2), step.plan(tmp_path / "state"), quiet)
    b2.fail("download", name="__0_0", delay_s=5, times=1)
    began = time.monotonic()
    restore(impatient(b2), RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == step.content() and time.monotonic() - began < 5
    b2.wait_idle()


@pytest.mark.soak
def test_a_call_whose_answer_never_comes_is_asked_again(b2: B2Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.storage.b2client.ANSWER_S", 0.5)
    store = b2_store(b2)
    store.put_bytes(f"{RUN}/x", b"x")
    b2.fail("b2_list_file_names", delay_s=6, times=1)
    began = time.monotonic()
    assert [file.name for file in store.list(f"{RUN}/")] == [f"{RUN}/x"]
    assert time.monotonic() - began < 6
    b2.wait_idle()


# ---------------------------------------------------------------- caps, and what is rotten


def test_a_full_account_stops_a_publish_with_a_sentence_and_what_was_sent_is_not_sent_again(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    store = b2_store(b2)
    b2.fail("b2_upload_part", status=403, code="storage_cap_exceeded", after=3, times=1000)
    with pytest.raises(StoreError, match="Caps & Alerts") as caught:
        publish(store, step.plan(tmp_path / "state"), quiet)
    assert caught.value.kind == "quota" and sent(b2)
    assert not list_steps(store, RUN).steps.get(20) or not list_steps(store, RUN).steps[20].committed
    b2.state.faults.clear()
    publish(store, step.plan(tmp_path / "state"), quiet)
    assert max(sent(b2).values()) == 1
    restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == step.content()


@pytest.mark.soak
def test_a_step_that_is_rotten_in_the_store_is_damaged_and_the_one_before_it_is_whole(
    b2: B2Server, tmp_path: Path
) -> None:
    store = b2_store(b2)
    before, newest = (Step(tmp_path / "pod-a", number).fill(seed=number) for number in (10, 20))
    publish(store, before.plan(tmp_path / "state"), quiet)
    expected = tree(before.output / "checkpoints/step_10")
    publish(store, newest.plan(tmp_path / "state"), quiet)
    (version,) = [v for v in b2.state.versions.values() if v.name == f"{FOLDER}trainer/__0_0.distcp"]
    version.data = version.data[:50_000] + bytes([version.data[50_000] ^ 1]) + version.data[50_001:]
    objects = b2.objects()
    with pytest.raises(StoreError, match=r"step 20 is damaged: trainer/__0_0\.distcp came back 6 times") as caught:
        restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "pod-b", quiet)
    assert caught.value.kind == "damaged"
    restore(store, RUN, 10, Place("checkpoints/step_10"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b/checkpoints/step_10") == expected
    assert not (tmp_path / "pod-b/checkpoints/step_20").exists()
    assert b2.objects() == objects  # a damaged step is told, and never deleted for it


# ---------------------------------------------------------------- the order of requests


@pytest.mark.soak
def test_files_then_manifest_then_pointer_and_nothing_is_deleted_before_both_were_read_back(
    b2: B2Server, tmp_path: Path, transfers: Transfers
) -> None:
    where = {"url": "b2://the-bucket/team", "realm": b2.url, "streams": 4, "part_size": None}
    for number in (10, 20):
        step = Step(tmp_path / "pod-a", number).fill()
        start = len(b2.state.journal)
        transfers.ok(step.request(tmp_path / "state") | {"store": where}, b2.environ())
    entries = b2.state.journal[start:]

    def places(matches: Callable[[dict[str, Any]], object]) -> list[int]:
        return [entry["n"] for entry in entries if matches(entry)]

    manifest = places(lambda e: e.get("accepted") and e["name"] == f"{FOLDER}manifest.json")
    pointer = places(lambda e: e.get("accepted") and e["name"] == f"team/{RUN}/latest.json")
    files = places(
        lambda e: (
            (e.get("accepted") and e["name"].startswith(FOLDER) and not e["name"].endswith("manifest.json"))
            or (e["op"] == "b2_finish_large_file" and e["status"] == 200)
        )
    )
    assert len(manifest) == len(pointer) == 1 and files
    assert max(files) < manifest[0] < pointer[0]
    read_back = places(lambda e: e["op"] == "download" and e["name"].endswith(("20/manifest.json", "latest.json")))
    deletes = places(lambda e: e["op"] in ("b2_delete_file_version", "b2_hide_file") and e["status"] == 200)
    assert [n for n in read_back if manifest[0] < n < pointer[0]] and [n for n in read_back if n > pointer[0]]
    assert all(n > min(r for r in read_back if r > pointer[0]) for n in deletes)
    assert max(sent(b2).values()) <= 2  # latest.json was sent once for each step, and nothing else again
    assert {name for (name, _), times in sent(b2).items() if times == 2} <= {f"team/{RUN}/latest.json"}


def test_what_is_published_again_after_every_single_lost_answer_is_never_doubled(b2: B2Server, tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(3 * PART))
    step = Step(tmp_path / "pod-a").fill()
    store = b2_store(b2)
    for op in ("b2_list_file_versions", "b2_list_parts", "b2_finish_large_file", "b2_get_upload_part_url"):
        b2.fail(op, lose_answer=True, times=1)
    publish(store, step.plan(tmp_path / "state"), quiet)
    assert max(Counter(v.name for v in b2.state.versions.values()).values()) == 1
    assert max(sent(b2).values()) == 1
