"""A fresh pod: its commands, what runs beside them, and a step that is fetched before its place is known."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.state import State
from supervisor.effects import pod_setup
from supervisor.effects.pod_setup import PodSetup
from supervisor.views import status
from tests.core.world import World
from tests.process.conftest import wait_for


class Pod:
    """A run with a [setup]; its parts run on threads, as on lanes."""

    def __init__(self, folder: Path, commands: list[str], beside: list[str], timeout: float = 30) -> None:
        self.facts: list[f.Fact] = []
        setup = SimpleNamespace(commands=commands, beside=beside, timeout=timeout)
        run = SimpleNamespace(
            run_file=SimpleNamespace(setup=setup), state_dir=folder, environ=dict(os.environ), need_job=lambda: None
        )
        run.post = lambda fact, source="": self.facts.append(fact)
        self.setup = PodSetup(run)  # type: ignore[arg-type]

    def run(self) -> None:
        from supervisor.effects.lanes import Lanes

        lanes = Lanes(lambda lane, error: pytest.fail(f"{lane}: {error!r}"))
        for number, part in enumerate(self.setup.begin()):
            lanes.put(f"setup-{number}", part)
        wait_for(lambda: any(isinstance(fact, f.SetupDone) for fact in self.facts) or None, "[setup] is done", 30)
        lanes.close(5)

    def ends(self) -> dict[str, str]:
        return {fact.name: fact.reason for fact in self.facts if isinstance(fact, f.SetupPart) and fact.ended}


def test_the_model_comes_while_the_commands_run_and_both_are_waited_for(tmp_path: Path) -> None:
    """Each waits for the other: one after another, neither would end."""
    meet = "touch {0}; until [ -e {1} ]; do sleep 0.05; done"
    one, two = tmp_path / "one", tmp_path / "two"
    pod = Pod(tmp_path, [meet.format(one, two)], [meet.format(two, one)])
    pod.run()
    assert set(pod.ends().values()) == {""} and len(pod.ends()) == 2
    assert pod.facts[-1] == f.SetupDone(), "the last word, once all has ended"


def test_each_has_a_time_limit_and_what_fails_beside_stops_nothing(tmp_path: Path) -> None:
    pod = Pod(tmp_path, ["sleep 0.3"], ["sleep 60", "exit 3"], timeout=0.6)
    begun = time.monotonic()
    pod.run()
    assert time.monotonic() - begun < 20
    ends = pod.ends()
    assert "took longer than" in ends["sleep 60"] and "exit code 3" in ends["exit 3"] and ends["commands"] == ""
    assert pod.facts[-1] == f.SetupDone(), "the job fetches itself what it lacks"


def test_commands_that_fail_wait_for_nothing_beside_them(tmp_path: Path) -> None:
    pod = Pod(tmp_path, ["exit 4"], ["sleep 5"])
    pod.run()
    done = next(fact for fact in pod.facts if isinstance(fact, f.SetupDone))
    assert "exit code 4" in done.reason
    wait_for(lambda: len(pod.ends()) == 2 or None, "the other part ends", 15)
    assert sum(isinstance(fact, f.SetupDone) for fact in pod.facts) == 1


def test_status_has_a_line_for_each_part(tmp_path: Path) -> None:
    from supervisor.cli import render

    state = State()
    settings = World().settings
    facts = [f.DaemonStarted("test", settings, "boot", None, True), f.SetupPart("commands"), f.SetupPart("get model")]
    for number, fact in enumerate([*facts, f.SetupPart("get model", ended=True)]):
        state = decide(state, f.Observation(100.0 + 10 * number, 1e9 + number, fact)).state
    lines = [line for line in render.status_block({**status.status(state)}) if "setup" in line or "get model" in line]
    assert any("commands: running for 20 s" in line for line in lines), lines
    assert any("get model: done after 10 s" in line for line in lines), lines


class Job:
    def __init__(self, output_dir: Path) -> None:
        self.output_dir = output_dir

    def place(self, step: int, name: str) -> Path:
        return Path("checkpoints") / f"step_{step}" / name


def test_a_step_that_was_fetched_ahead_is_moved_to_its_place_and_never_over_another(tmp_path: Path) -> None:
    job = tmp_path / "prime-rl"
    early: Any = pod_setup.early_folder(job / "outputs", job, "run")
    assert early is not None and early.parent == tmp_path and not job.exists(), "the commands may clone into it"
    for name in ("step_4/trainer/a", "run_default/checkpoints/step_4/orchestrator/b"):
        (early / name).parent.mkdir(parents=True)
        (early / name).write_text(name)
    mine = job / "outputs" / "run_default" / "checkpoints" / "step_4" / "orchestrator" / "b"
    mine.parent.mkdir(parents=True)
    mine.write_text("a person's")
    pod_setup.place_early(early, Job(job / "outputs"), 4)  # type: ignore[arg-type]
    assert (job / "outputs" / "checkpoints" / "step_4" / "trainer" / "a").read_text() == "step_4/trainer/a"
    assert mine.read_text() == "a person's" and not early.exists()


def test_another_users_folder_is_not_used(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / f"{pod_setup.EARLY}run").symlink_to(target)
    assert pod_setup.early_folder(tmp_path / "p" / "outputs", tmp_path / "p", "run") is None
    assert not any(target.iterdir())
