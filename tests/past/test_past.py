"""What an earlier version left is read by this one: its journal, its traces, its reports and its store.

``of-0.1.0.tar.xz`` was written by the code before the move into packages: a practice run (40 steps, a checkpoint every
two) whose vLLM died in step 5 and that went on from step 4. Its daemon was killed in step 12, its job with it; steps 4,
6, 8 and 10 were in the store. Its paths begin with ``/tmp/pod-before``.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode
from supervisor.core.decide import decide
from supervisor.core.state import State
from supervisor.journal import trace
from supervisor.journal.journal import Journal
from supervisor.journal.replay_trace import replay
from tests.checkpoints_store.conftest import tree
from tests.core.test_flat_state import learned_then
from tests.e2e.rig import Pod
from tests.people.test_report import Answer

PAST = Path(__file__).with_name("of-0.1.0.tar.xz")
STEPS = [4, 6, 8, 10]
DIED = "vLLM died silently: its process 29777 has been gone for 0.5 s"


def unpack(folder: Path) -> Path:
    """The run of before in this folder; returns its run file."""
    with tarfile.open(PAST) as archive:
        archive.extractall(folder, filter="data")
    run_file = folder / "run.toml"
    run_file.write_text(run_file.read_text().replace("/tmp/pod-before", str(folder)))
    return run_file


@pytest.fixture
def past(tmp_path: Path) -> Path:
    return unpack(tmp_path / "past")


def told(state: State) -> dict[str, object]:
    """What a daemon has to know to go on, by words of today."""
    return {
        "attempt": state.attempt.number,
        "step": state.progress.step,
        "orders": (state.orders.wanted, state.orders.paused),
        "incidents": state.incidents.closed,
        "local": [step.step for step in state.local.steps],
        "published": [step.step for step in state.store.steps],
    }


def deeds(actions: Iterable[a.Action]) -> list[a.Action]:
    """What is done; how it is told in words may have changed since, and that a failed job is stopped at once is new.

    The time of an update of weights was not learned then, and was a part of its step.
    """
    done = []
    for one in actions:
        if isinstance(one, a.Stop):
            one = replace(one, at_once=False)
        if isinstance(one, a.KeepRecords):
            one = replace(one, learned=learned_then(one.learned))
        if not isinstance(one, a.Say):
            done.append(one)
    return done


def test_its_journal_is_opened_whole_and_written_on(past: Path) -> None:
    journal = Journal(past.parent / "state")
    state, count = journal.rebuild()
    assert (journal.unread, count > 0) == (0, True)
    assert len(list(journal.observations())) == 273, "every fact of before is still known"
    before = told(state)
    seen = f.Observation(state.now + 1, state.wall + 1, f.StepDone("trainer", 12))
    decision = decide(state, seen)
    journal.record(seen, state, decision.state, decision.actions)
    journal.close()
    again = Journal(past.parent / "state")
    assert told(again.rebuild()[0]) == before | {"step": 12}
    assert len(list(again.observations())) == 274
    again.close()


def test_its_last_state_alone_tells_the_same_as_all_that_was_seen(past: Path) -> None:
    """Of a long run only the newest facts are kept: what was before them is told by a stored state alone."""
    folder = past.parent / "state"
    whole = Journal(folder)
    expected = told(whole.rebuild()[0])
    whole.close()
    with sqlite3.connect(folder / "journal.db") as db:
        db.execute("DELETE FROM snapshots WHERE observation < (SELECT MAX(observation) FROM snapshots)")
        db.execute("DELETE FROM observations WHERE id <= (SELECT MAX(observation) FROM snapshots)")
    db.close()
    short = Journal(folder)
    assert told(short.rebuild()[0]) == expected
    short.close()


def test_its_journal_and_its_trace_are_replayed_to_the_same_decisions(past: Path) -> None:
    state = past.parent / "state"
    for file in (state / "journal.db", next(state.glob("incidents/*/trace.jsonl.gz"))):
        answer = Answer(["replay", str(file)])
        assert answer.stderr == ""
        assert DIED in answer.stdout
        for turn in replay(trace.load(file)):
            assert deeds(turn.actions) == deeds(decode(json.loads(text)) for text in turn.recorded or ()), turn


def test_its_run_is_reported_with_and_without_its_journal(past: Path, tmp_path: Path) -> None:
    here = Answer(["report", str(past), "--json"])
    assert here.returncode == 0, here.stderr
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(past.read_text().replace(str(past.parent / "state"), str(tmp_path / "none")))
    there = Answer(["report", str(elsewhere), "--json"])
    assert there.returncode == 0, there.stderr
    for text in (here.stdout, there.stdout):
        report = json.loads(text)
        assert (report["run"], len(report["incidents"])) == ("practice", 1)
        assert "vLLM" in json.dumps(report["incidents"][0]), report["incidents"]


@pytest.mark.soak
def test_each_step_of_its_store_is_restored(past: Path, tmp_path: Path) -> None:
    for step in STEPS:
        to = tmp_path / f"restored-{step}"
        answer = Answer(["restore", str(past), "--step", str(step), "--to", str(to)])
        assert answer.returncode == 0, answer.stderr
        kept = tree(past.parent / "store/practice" / f"step_{step}")
        back = tree(to)
        del kept["manifest.json"]
        named = {name.removeprefix(".run/") if name.startswith(".run/") else f"step_{step}/{name}" for name in kept}
        assert set(back) == named
        assert sorted(back.values()) == sorted(kept.values())
    verified = Answer(["verify", str(past), "--deep", "100"])
    assert [line.split(":")[0] for line in verified.stdout.splitlines() if line.startswith("Step")] == [
        f"Step {step} is good" for step in STEPS
    ]


@pytest.mark.soak
def test_a_daemon_of_today_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    pod = Pod(folder, max_steps=12)
    try:
        run_file = pod.run_file.read_text()
        unpack(folder)
        pod.run_file.write_text(run_file)
        pod.start("run", "--take-over")  # its claim names the pod of before
        assert pod.wait_exit() == 0, pod.story()
    finally:
        pod.close()
    assert pod.resume_steps() == [10], pod.story()
    assert pod.stored()[-2:] == [10, 12]
    attempts = sorted(path.name for path in (folder / "state/attempts").iterdir())
    assert attempts == ["0001", "0002", "0003"], "it counts on"
