"""Deleting on the local disk always tells how it went: the core waits for that before it deletes anything again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.base.durable import lock_folder
from supervisor.base.errors import SupervisorError
from supervisor.config.settings import load
from supervisor.core import facts as f
from supervisor.effects.carry_out import Effects
from supervisor.effects.move_aside import forget_killed_restores
from tests.hands import effects_of


@pytest.fixture
def told() -> list[f.Fact]:
    return []


def effects(folder: Path, told: list[f.Fact], opened: Any) -> Effects:
    path = folder / "run.toml"
    path.write_text(
        f'[run]\nid = "r1"\nstate_dir = "{folder}/state"\n[job]\nkind = "rl"\ndir = "{folder}"\n'
        f'config = ["rl.toml"]\noutput_dir = "{folder}/out"\n'
    )
    return effects_of(load(path), told, opened)


def test_a_pruning_while_a_start_opens_the_job_anew_is_done_and_told(tmp_path: Path, told: list[f.Fact]) -> None:
    step = tmp_path / "out/checkpoints/step_3"
    torn = tmp_path / "out/.set-aside/attempt-0002/step_4"
    for tree in (step, torn):
        tree.mkdir(parents=True)
        (tree / "shard").write_bytes(bytes(9000))
    job: Any = SimpleNamespace(
        output_dir=tmp_path / "out",
        steps=lambda: [3, 5],
        step_trees=lambda number: [step],
        stale_trees=lambda kept, below: [],
    )
    here = effects(tmp_path, told, lambda: job)
    assert here.run.job is None, "as in the moment of a start"
    here._prune(-1, 0)
    here.run.job = None
    here._prune(3, 4)
    assert [(type(fact), getattr(fact, "step", None)) for fact in told] == [(f.Pruned, -1), (f.Pruned, 3)]
    assert not torn.exists() and not step.exists()


def test_what_a_killed_restore_fetched_is_deleted_once_a_job_starts_and_what_is_a_persons_stays(tmp_path: Path) -> None:
    steps = tmp_path / "out/checkpoints"
    for name in ("step_5", ".restoring-step_7", ".restoring-by-hand", ".replaced-step_3-1"):
        (steps / name).mkdir(parents=True)
        (steps / name / "shard").write_bytes(bytes(9000))
    (steps / ".restoring-step_7.journal").write_text("[]")
    with lock_folder(tmp_path / "out"):  # a restore is under way
        forget_killed_restores(tmp_path / "out", Path("checkpoints/step_0/x"))
    assert (steps / ".restoring-step_7/shard").exists()
    for _ in range(2):
        forget_killed_restores(tmp_path / "out", Path("checkpoints/step_0/x"))
    assert sorted(path.name for path in steps.iterdir()) == [".replaced-step_3-1", ".restoring-by-hand", "step_5"]
    forget_killed_restores(tmp_path / "none", Path("checkpoints/step_0/x"))


def test_a_pruning_without_a_trainer_to_ask_is_told_as_failed(tmp_path: Path, told: list[f.Fact]) -> None:
    def missing() -> Any:
        raise SupervisorError("the trainer is gone")

    here = effects(tmp_path, told, missing)
    here._prune(-1, 0)
    here._prune(3, 4)
    assert told == [
        f.PruneFailed(-1, "local", "the trainer is gone"),
        f.PruneFailed(3, "local", "the trainer is gone"),
    ]
