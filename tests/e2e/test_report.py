"""The ledger travels: a pod is lost, another goes on, and a third machine that has only the store tells all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.core import time_kinds as k
from tests.e2e.rig import Pod
from tests.people.test_report import Answer

STEPS = 24
IMPATIENT = {"store": {"take_over_after": 4}}  # the first pod vanishes without giving the run back


def records(store: Path) -> list[Path]:
    return sorted((store / "practice" / "records").glob("*.json"))


@pytest.mark.soak
def test_two_pods_of_a_run_are_one_report_and_its_parts_are_all_the_time(tmp_path: Path, pods: list[Pod]) -> None:
    store = tmp_path / "store"
    one = Pod(tmp_path / "one", store=store.as_uri(), max_steps=STEPS, step_s=0.5, settings=IMPATIENT)
    pods.append(one)
    one.start()
    one.wait_for(lambda: one.sentences("published") and records(store), "a step is published")
    kept = one.wait_for(
        lambda: (told := one.status().get("goodput")) and told["steps_kept"] >= 2 and told, "the ledger in the status"
    )
    assert kept["pods"] == 1
    one.wait_for(lambda: json.loads(records(store)[0].read_text())["ledger"]["uploads"], "a record after a publish")
    one.close()

    two = Pod(tmp_path / "two", store=store.as_uri(), max_steps=STEPS, step_s=0.5, settings=IMPATIENT)
    pods.append(two)
    two.start("onstart")
    two.wait_for(lambda: (two.status().get("goodput") or {}).get("pods") == 2, "the new pod knows of the lost one")
    assert two.wait_exit() == 0, two.story()
    assert len(records(store)) == 2

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run_file = elsewhere / "run.toml"
    run_file.write_text(two.run_file.read_text().replace(str(two.state_dir), str(elsewhere / "state")))
    answer = Answer(["report", str(run_file), "--json"])
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert [len(report["pods"]), report["run"]] == [2, "practice"]
    assert sum(report["categories"].values()) == pytest.approx(report["seconds"])
    assert report["seconds"] == pytest.approx(report["until"] - report["began"], abs=0.5)
    assert report["categories"][k.INFRASTRUCTURE] > 0
    assert report["categories"][k.PRODUCTIVE] > 0
    assert report["steps_kept"] == STEPS, "each step is kept once, whichever pod did it"
    assert not (elsewhere / "state").exists()
