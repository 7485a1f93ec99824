"""A fresh pod: its commands, what runs beside them, and a step that is fetched before its place is known."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.base.errors import StoreError
from supervisor.config.settings import RunFile
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.state import State
from supervisor.effects import pod_setup
from supervisor.effects.pod_setup import PodSetup
from supervisor.jobs.base import StepCheck
from supervisor.process import survivors
from supervisor.views import status
from tests.core.world import World
from tests.hands import effects_of
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


@pytest.mark.soak
def test_commands_that_fail_wait_for_nothing_beside_them(tmp_path: Path) -> None:
    pod = Pod(tmp_path, ["exit 4"], ["sleep 5"])
    pod.run()
    done = next(fact for fact in pod.facts if isinstance(fact, f.SetupDone))
    assert "exit code 4" in done.reason
    wait_for(lambda: len(pod.ends()) == 2 or None, "the other part ends", 15)
    assert sum(isinstance(fact, f.SetupDone) for fact in pod.facts) == 1


def test_a_command_that_a_killed_daemon_left_is_ended_before_it_begins_anew(tmp_path: Path) -> None:
    log, inner = tmp_path / "setup.log", tmp_path / "inner"
    command = f"sleep 300 & echo $! > {inner}; wait"
    code = "from supervisor.effects.pod_setup import Path, run_shell; "
    code += f"run_shell({command!r}, 300, {{}}, Path({str(log)!r}))"
    daemon = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(lambda: (tmp_path / "setup.pid").exists() and inner.exists() and inner.read_text(), "it runs", 20)
    finally:
        daemon.kill()
        daemon.wait()
    left = survivors.look_at(int(inner.read_text()))
    assert left is not None and not left.dead, "it outlives its daemon"
    assert pod_setup.run_shell("true", 30, dict(os.environ), log) == ""
    wait_for(lambda: not survivors.alive(left.identity), "what was left is gone")
    assert pod_setup.run_shell("exit 3", 30, dict(os.environ), log).startswith("'exit 3' ended with exit code 3")


def test_a_daemon_that_ends_takes_a_download_along(tmp_path: Path) -> None:
    run_file, ended = a_run(tmp_path), list[str]()
    run_file.state_dir.mkdir()
    effects = effects_of(run_file, [])
    log = run_file.state_dir / "setup-1.log"
    child = threading.Thread(target=lambda: ended.append(pod_setup.run_shell("sleep 300", 300, dict(os.environ), log)))
    child.start()
    wait_for(lambda: log.with_suffix(".pid").exists() and log.with_suffix(".pid").read_text(), "it runs")
    effects.close()
    child.join(15)
    assert ended and "exit code -9" in ended[0]


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

    def check_step(self, step: int, *, settled: bool = False, on_tier: bool = False) -> StepCheck:
        return StepCheck("complete")


def a_run(folder: Path) -> RunFile:
    job = folder / "prime-rl"
    return RunFile.model_validate(
        {
            "run": {"id": "run", "state_dir": str(folder / "state")},
            "job": {"dir": str(job), "config": ["rl.toml"], "output_dir": str(job / "outputs")},
        }
    )


def test_a_step_that_was_fetched_ahead_is_moved_to_its_place_and_never_over_another(tmp_path: Path) -> None:
    run_file = a_run(tmp_path)
    job = tmp_path / "prime-rl"
    early: Any = pod_setup.early_folder(run_file, 4)
    assert early is not None and early.parent.parent == tmp_path and not job.exists(), "the commands may clone into it"
    for name in ("step_4/trainer/a", "run_default/checkpoints/step_4/orchestrator/b"):
        (early / name).parent.mkdir(parents=True)
        (early / name).write_text(name)
    mine = job / "outputs" / "run_default" / "checkpoints" / "step_4" / "orchestrator" / "b"
    mine.parent.mkdir(parents=True)
    mine.write_text("a person's")
    pod_setup.place_early(early, Job(job / "outputs"), 4)  # type: ignore[arg-type]
    assert (job / "outputs" / "checkpoints" / "step_4" / "trainer" / "a").read_text() == "step_4/trainer/a"
    assert mine.read_text() == "a person's"
    pod_setup.forget_early(run_file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prime-rl"]


@pytest.mark.parametrize("cut", ["in the fetch", "by the daemon's death"])
def test_half_of_a_step_that_was_fetched_ahead_reaches_no_folder_of_the_job(tmp_path: Path, cut: str) -> None:
    """Step 9 was there, whole, and step 4 is the one that is taken in the end; its fetch fails, on a full disk."""
    run_file, facts = a_run(tmp_path), list[f.Fact]()
    outputs = run_file.output_dir
    effects = effects_of(run_file, facts, lambda: Job(outputs))  # type: ignore[arg-type, return-value]
    before: Any = pod_setup.early_folder(run_file, 9)
    (before / "run_default" / "checkpoints" / "step_9").mkdir(parents=True)
    (before / "run_default" / "checkpoints" / "step_9" / "b").write_text("of step 9")
    asked: list[str] = []

    def fetch(request: Any, what: str = "", **more: Any) -> dict[str, Any]:
        asked.append(request["output_dir"])
        if Path(asked[-1]) == outputs:
            assert not list(tmp_path.glob(f"{pod_setup.EARLY}*")), "it has the room for itself"
            return {"size_bytes": 3}
        half = Path(asked[-1]) / ".restoring-step_4"
        half.mkdir()
        (half / "a").write_text("half")
        raise StoreError("no-room", "no room")

    effects.store.transfers.run = fetch  # type: ignore[method-assign]
    if cut == "in the fetch":
        effects.store.restore(a.Restore(4), effects.store.fetch_ahead(4))
        assert len(asked) == 2 and Path(asked[1]) == outputs
    else:
        effects.store.restore(a.Restore(4))
    assert isinstance(facts[-1], f.Restored), facts
    assert not [path for path in outputs.rglob("*") if path.is_file()], "nothing of either lies there"
    effects.close()


def test_another_users_folder_is_not_used(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "mine").touch()
    (tmp_path / f"{pod_setup.EARLY}run").symlink_to(target)
    assert pod_setup.early_folder(a_run(tmp_path), 4) is None
    pod_setup.forget_early(a_run(tmp_path))
    assert [path.name for path in target.iterdir()] == ["mine"]
