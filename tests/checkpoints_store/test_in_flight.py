"""What was on its way when a pod lost the run: it lands by name, and the new holder's heartbeat clears it away."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.catalogue import list_steps, sweep_run
from supervisor.checkpoints.claims import Fence, claim
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.writers import FencedError, writer_name
from supervisor.storage.base import Store
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import RUN, Served, Step, Transfers, b2_store, quiet, transfers, until

__all__ = ["transfers"]
A, B = (writer_name(f"pod-{name}", name * 16, "0001") for name in "ab")
SMALL = "trainer/.metadata"


def take_over(store: Store, writer: str) -> int:
    held = claim(store, RUN, writer, 0.0, take_over=True, sleep=lambda _: None, clock=lambda: 0.0)
    generation = held.generation
    sweep_run(store, RUN, fence=Fence(store, RUN, generation, writer))
    return generation


def published(store: Store, step: Step, state: Path, generation: int, writer: str) -> None:
    fence = Fence(store, RUN, generation, writer)
    publish(store, step.plan(state, generation=generation, writer=writer, fence=fence), quiet)


def beat(transfers: Transfers | Served, b2: B2Server, **more: Any) -> None:
    where = {"store": {"url": "b2://the-bucket/team", "realm": b2.url, "streams": 4, "part_size": None}, "run_id": RUN}
    transfers.ok({"do": "beat", "generation": 2, "writer": B, "count": 1, **where, **more}, b2.environ())


def by_name(b2: B2Server, number: int) -> dict[str, bytes]:
    """What `b2 sync` fetches of a step."""
    folder = f"team/{RUN}/step_{number}/"
    return {name.removeprefix(folder): data for name, data in b2.objects().items() if name.startswith(folder)}


def contents(step: Step) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in step.files.items()}


@pytest.fixture
def landed(b2: B2Server, tmp_path: Path) -> Step:
    """Pod A's last request of step 20 came after B had taken the run over and published its own step 20."""
    ours, theirs = b2_store(b2), b2_store(b2)
    assert take_over(ours, A) == 1
    mine, others = Step(tmp_path / "a", 20).fill(seed=1), Step(tmp_path / "b", 20).fill(seed=2)
    go_on = threading.Event()
    fault = b2.fail("b2_upload_file", name=SMALL, hold=go_on)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(published, ours, mine, tmp_path / "sa", 1, A)
        assert fault.held.wait(60)
        # Only this one request is in flight: else both pods might send parts of one upload, which B then tries again.
        until(lambda: by_name(b2, 20).keys() >= contents(mine).keys() - {SMALL}, "the rest of A's step has arrived")
        assert take_over(theirs, B) == 2
        published(theirs, others, tmp_path / "sb", 2, B)
        assert by_name(b2, 20).items() >= contents(others).items()
        go_on.set()
        with pytest.raises(FencedError):
            lost.result(120)
    assert by_name(b2, 20)[SMALL] == contents(mine)[SMALL], "it landed by name"
    return others


def test_what_landed_late_is_gone_after_the_holders_next_heartbeat(
    b2: B2Server, landed: Step, tmp_path: Path, transfers: Transfers
) -> None:
    beat(transfers, b2, state_dir=str(tmp_path / "sb"))
    found = by_name(b2, 20)
    assert {name: found[name] for name in landed.files} == contents(landed)
    assert list_steps(b2_store(b2), RUN).steps[20].committed


@pytest.mark.soak
def test_the_documented_b2_sync_fetches_the_holders_step(
    b2: B2Server, landed: Step, tmp_path: Path, served: Served
) -> None:
    import os

    cli = Path(sys.executable).with_name("b2")
    if not cli.exists():
        pytest.skip("the b2 command line tool is not installed beside this Python")
    beat(served, b2)
    environ = {**os.environ, **b2.environ(), "B2_ENVIRONMENT": b2.url, "HOME": str(tmp_path)}
    environ["B2_ACCOUNT_INFO"] = str(tmp_path / "account.sqlite")
    words = [str(cli), "sync", f"b2://the-bucket/team/{RUN}/step_20", str(tmp_path / "to")]
    (tmp_path / "to").mkdir()
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for name, data in contents(landed).items():
        assert (tmp_path / "to" / name).read_bytes() == data, name


def test_a_file_in_the_folder_that_is_no_part_of_the_step_is_a_persons_and_stays(
    b2: B2Server, landed: Step, tmp_path: Path, served: Served
) -> None:
    b2.put(f"team/{RUN}/step_20/notes.txt", b"first")
    b2.put(f"team/{RUN}/step_20/notes.txt", b"second")
    [small] = [file for file in b2_store(b2).list(f"{RUN}/step_20/") if file.name.endswith("orchestrator/progress.pt")]
    same = b2.put(f"team/{small.name}", contents(landed)[small.name.removeprefix(f"{RUN}/step_20/")])
    beat(served, b2)
    versions = [(v.name, v.data) for v in b2.state.versions.values() if v.name.endswith("notes.txt")]
    assert [data for _, data in versions] == [b"first", b"second"]
    assert same in b2.state.versions, "the same bytes, sent once more by another tool"


def test_a_late_manifest_of_a_lower_generation_goes_too(
    b2: B2Server, landed: Step, tmp_path: Path, served: Served
) -> None:
    name = f"team/{RUN}/step_20/manifest.json"
    own = next(v.data for v in b2.state.versions.values() if v.name == name)
    b2.put(name, json.dumps(json.loads(own) | {"generation": 1, "writer": A}).encode())
    beat(served, b2)
    assert b2.objects()[name] == own


def test_while_this_pod_publishes_its_heartbeat_clears_nothing_away(
    b2: B2Server, landed: Step, tmp_path: Path, served: Served
) -> None:
    """A mend puts new versions beside the old manifest, and they are not in it yet."""
    state = tmp_path / "sb"
    with (state / f"publishing-{RUN}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        beat(served, b2, state_dir=str(state))
        assert by_name(b2, 20)[SMALL] != contents(landed)[SMALL]
    beat(served, b2, state_dir=str(state))
    assert by_name(b2, 20)[SMALL] == contents(landed)[SMALL]


def test_the_next_publish_clears_away_what_landed_in_older_steps(
    b2: B2Server, landed: Step, tmp_path: Path, served: Served
) -> None:
    where = {"store": {"url": "b2://the-bucket/team", "realm": b2.url, "streams": 4, "part_size": None}}
    step = Step(tmp_path / "c", 30).fill()
    served.ok(step.request(tmp_path / "sb") | where | {"generation": 2, "writer": B}, b2.environ())
    assert by_name(b2, 20)[SMALL] == contents(landed)[SMALL]


def test_a_heartbeat_over_a_step_in_order_asks_little(b2: B2Server, tmp_path: Path, served: Served) -> None:
    store = b2_store(b2)
    take_over(store, A), take_over(store, B)
    for number in (10, 20, 30):
        published(store, Step(tmp_path / str(number), number).fill(), tmp_path / "s", 2, B)
    before = len(b2.journal())
    beat(served, b2, state_dir=str(tmp_path / "s"))
    asked = [(entry["op"], entry["name"]) for entry in b2.journal()[before:]]
    assert sum(1 for op, name in asked if "step_" in str(name)) == 1, asked


def test_an_upload_that_the_new_holder_cancelled_is_told_as_what_it_is(b2: B2Server, tmp_path: Path) -> None:
    """B2 says "No active upload", which means nothing to a person, and eight tries change nothing."""
    ours, theirs = b2_store(b2), b2_store(b2)
    assert take_over(ours, A) == 1
    go_on = threading.Event()
    fault = b2.fail("b2_upload_part", hold=go_on)
    step = Step(tmp_path / "a", 20).fill()
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(published, ours, step, tmp_path / "sa", 1, A)
        assert fault.held.wait(60)
        assert take_over(theirs, B) == 2
        go_on.set()
        with pytest.raises(FencedError, match=r"pod pod-b holds run .* now"):
            lost.result(120)
    refused = [entry for entry in b2.journal("b2_upload_part") if entry.get("status") == 400]
    assert len(refused) <= 4, "each stream asks once"


def test_an_upload_that_a_person_cancelled_is_said_and_begun_anew(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    go_on = threading.Event()
    fault = b2.fail("b2_upload_part", hold=go_on)
    step = Step(tmp_path / "a", 20).fill()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(publish, store, step.plan(tmp_path / "s"), quiet)
        assert fault.held.wait(60)
        store.sweep(f"{RUN}/")
        go_on.set()
        error = first.exception(120)
    assert getattr(error, "kind", "") == "transient" and "was cancelled" in str(error), error
    publish(store, step.plan(tmp_path / "s"), quiet)
    assert list_steps(store, RUN).steps[20].committed
