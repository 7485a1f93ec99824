"""The first request that the store answers after an outage is told to the core, so that nothing waits any longer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.config.run_file import load
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.records import Happened
from supervisor.effects import store_work
from supervisor.effects.lanes import Lanes
from supervisor.effects.store_work import StoreWork
from supervisor.storage.base import StoreError
from tests.hands import Seen, context

ABOUT = """
run = {{ id = "r", state_dir = "{0}/state" }}
job = {{ kind = "command", output_dir = "{0}/out", plain = {{ start = ["true"], resume = ["true"] }} }}
"""


class Store:
    """Answers requests, or fails them with an error of some kind."""

    def __init__(self) -> None:
        self.fails = ""

    def run(self, asked: Mapping[str, Any], what: str = "", stall_s: float | None = None) -> dict[str, Any]:
        if self.fails:
            raise StoreError(self.fails, f"{asked['do']} failed.")  # type: ignore[arg-type]
        return {"steps": [], "records": {}, "problems": []}


@pytest.fixture
def told() -> list[f.Fact]:
    return []


@pytest.fixture
def work(tmp_path: Path, told: list[f.Fact]) -> StoreWork:
    file = tmp_path / "run.toml"
    file.write_text(ABOUT.format(tmp_path))
    run_file = load(file)
    made = StoreWork(context(run_file, told), Seen(), Lanes(lambda lane, reason: None))
    made.transfers = Store()  # type: ignore[assignment]
    return made


def listed(work: StoreWork) -> None:
    """List it, and wait until that is done."""
    done = threading.Event()
    work.catalogue(force=True)
    work._lanes.put("catalogue", done.set)
    assert done.wait(20)


def back(told: list[f.Fact]) -> int:
    return sum(isinstance(fact, f.StoreBack) for fact in told)


@pytest.mark.parametrize("kind", ["transient", "permanent", "quota"])
def test_after_an_outage_the_first_answer_is_told_once(work: StoreWork, told: list[f.Fact], kind: str) -> None:
    work.put_heartbeat({})
    assert not back(told), "nothing was away"
    work.transfers.fails = kind  # type: ignore[attr-defined]
    for _ in range(3):
        with pytest.raises(StoreError):
            work.put_heartbeat({})
    work.transfers.fails = ""  # type: ignore[attr-defined]
    work.put_heartbeat({})
    work.put_heartbeat({})
    assert back(told) == 1


def test_what_is_only_missing_or_fenced_is_no_outage(work: StoreWork, told: list[f.Fact]) -> None:
    for kind in ("missing", "damaged", "changed"):
        work.transfers.fails = kind  # type: ignore[attr-defined]
        with pytest.raises(StoreError):
            work.put_heartbeat({})
    work.transfers.fails = ""  # type: ignore[attr-defined]
    work.put_heartbeat({})
    assert not back(told)


def test_a_store_that_could_not_be_listed_is_listed_as_soon_as_it_answers(work: StoreWork, told: list[f.Fact]) -> None:
    work.transfers.fails = "transient"  # type: ignore[attr-defined]
    listed(work)
    assert [fact.reason for fact in told if isinstance(fact, f.StoreSteps)] == ["catalogue failed."]
    work.transfers.fails = ""  # type: ignore[attr-defined]
    work.put_heartbeat({})
    done = threading.Event()
    work._lanes.put("catalogue", done.set)
    assert done.wait(20)
    assert [fact.reason for fact in told if isinstance(fact, f.StoreSteps)] == ["catalogue failed.", ""]
    assert back(told) == 1


def test_an_end_that_waits_for_the_store_says_so_and_why(work: StoreWork, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(store_work, "TOLD_S", 0.05)
    monkeypatch.setattr(store_work, "say", lambda level, event, sentence: said.append(sentence))
    work.transfers.close = lambda: None  # type: ignore[attr-defined]
    work.close(within_s=0.0)
    assert said == [], "nothing is to be given back"
    work._given_back = threading.Event()
    work.claiming.unreturned = "The run could not be given back in the store: the folder is gone."
    work.close(release_s=0.1)
    assert said == [f"{work.claiming.unreturned} It is tried for 0.1 s more."]


def test_what_the_run_leaves_is_published_no_further(
    work: StoreWork, told: list[f.Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written down of it waits behind that publish, perhaps for an hour, and the pod may go meanwhile."""
    ended: list[int] = []
    monkeypatch.setattr(work.transfers, "cancel", lambda what, why: ended.append(step), raising=False)
    leaves = {
        Happened("rollback", 20, 1.7e9): [60],
        Happened("rollback", 60, 1.7e9): [],
        Happened("quarantine", 60, 1.7e9): [60],
        Happened("quarantine", 40, 1.7e9): [],
        Happened("take", 20, 1.7e9): [],
    }
    step, busy = 60, threading.Event()
    work._lanes.put("publish", busy.wait)  # a sweep, say: the publish waits for its turn
    for happened, expected in leaves.items():
        ended.clear()
        work.ask_to_publish(a.Publish(step))
        work.end_left_publish(a.KeepLineage((happened,)))
        assert ended == expected, happened
    job = SimpleNamespace(
        check_step=lambda step, settled: SimpleNamespace(state="complete"), step_files=lambda step: []
    )
    job.facts = lambda: SimpleNamespace(name="plain", revision="", first_step=0)
    monkeypatch.setattr(work._run, "job", job)
    monkeypatch.setattr(work, "_describe_run", lambda job: None)
    work._unswept = False
    work.ask_to_publish(a.Publish(step))
    work.end_left_publish(a.KeepLineage((Happened("quarantine", 60, 1.7e9),)))
    told.clear()
    assert not work.publish(a.Publish(step))
    busy.set()
    failed = next(fact for fact in told if isinstance(fact, f.PublishFailed))
    assert (failed.reason, failed.step_changed) == ("The run has left that step.", True)
