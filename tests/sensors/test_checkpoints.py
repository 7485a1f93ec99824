"""Step folders on the local disk: complete only when the job says so and nothing moves any more."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.core.facts import LocalStep, LocalSteps
from supervisor.jobs.base import StepCheck
from supervisor.sensors.checkpoints import CheckpointSensor
from tests.sensors.support import FakeClock

NOW = 1_700_000_000.0


class PlainJob:
    """Steps in ``checkpoints/step_N``, complete when they hold ``optimizer.pt``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checked: list[int] = []

    def steps(self) -> Sequence[int]:
        return sorted(int(path.name.removeprefix("step_")) for path in self.folder.iterdir())

    def check_step(self, step: int) -> StepCheck:
        self.checked.append(step)
        marker = self.folder / f"step_{step}" / "optimizer.pt"
        return StepCheck("complete") if marker.exists() else StepCheck("incomplete", "optimizer.pt is missing")

    def step_trees(self, step: int) -> Sequence[Path]:
        return [self.folder / f"step_{step}", self.folder.parent / "broadcasts" / f"step_{step}"]


@pytest.fixture
def job(tmp_path: Path) -> PlainJob:
    (tmp_path / "checkpoints").mkdir()
    return PlainJob(tmp_path / "checkpoints")


def write(job: PlainJob, step: int, name: str, data: bytes = b"12345", age_s: float = 3600) -> Path:
    path = job.folder / f"step_{step}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (NOW - age_s, NOW - age_s))
    return path


class World:
    def __init__(self, job: PlainJob, **settings: float) -> None:
        self.clock = FakeClock()
        self.sensor = CheckpointSensor(job, clock=self.clock, wall=lambda: NOW + self.clock.now - 1000, **settings)

    def look(self) -> LocalSteps | None:
        facts = self.sensor.look()
        assert len(facts) <= 1
        return next((fact for fact in facts if isinstance(fact, LocalSteps)), None)

    def steps(self) -> tuple[LocalStep, ...]:
        found = self.look()
        assert found is not None
        return found.steps


def test_complete_and_incomplete_steps_with_their_sizes(job: PlainJob) -> None:
    write(job, 10, "optimizer.pt")
    write(job, 10, "deep/er/model.pt", b"x" * 100)
    write(job, 20, "model.pt", age_s=10)
    world = World(job)
    assert world.steps() == (
        LocalStep(10, "complete", "", 105, NOW - 3600),
        LocalStep(20, "incomplete", "optimizer.pt is missing", 5, NOW - 10),
    )


def test_a_step_is_being_written_until_it_has_been_quiet(job: PlainJob) -> None:
    write(job, 10, "optimizer.pt", age_s=0)
    world = World(job)
    (step,) = world.steps()
    assert (step.state, step.reason) == ("writing", "complete, but changed less than 20 s ago")
    world.clock.now += 15
    write(job, 10, "metadata.json", age_s=-15)  # one more file, written now
    assert world.steps()[0].state == "writing"
    world.clock.now += 15
    assert world.look() is None
    world.clock.now += 5
    assert world.steps()[0].state == "complete"


def test_files_from_the_future_are_quiet_when_they_were_seen_to_be(job: PlainJob) -> None:
    write(job, 10, "optimizer.pt", age_s=-86400)
    world = World(job)
    assert world.steps()[0].state == "writing"
    world.clock.now += 20
    assert world.steps()[0].state == "complete"


def test_checks_of_unchanged_steps_are_not_repeated(job: PlainJob) -> None:
    for step in range(10, 60, 10):
        write(job, step, "optimizer.pt")
    world = World(job)
    world.look()
    for _ in range(20):
        world.clock.now += 15
        world.look()
    assert job.checked == [10, 20, 30, 40, 50]
    write(job, 30, "optimizer.pt", b"54321")  # same size, same time: written over and made to look old
    world.clock.now += 15
    world.look()
    assert job.checked == [10, 20, 30, 40, 50, 30]


def test_an_incomplete_step_is_checked_again_now_and_then(job: PlainJob) -> None:
    write(job, 10, "model.pt")
    world = World(job)
    for _ in range(9):
        world.look()
        world.clock.now += 15
    assert len(job.checked) == 3


def test_a_change_in_a_second_tree_of_the_step_is_a_change(job: PlainJob) -> None:
    write(job, 10, "optimizer.pt")
    world = World(job)
    world.look()
    write(job, 10, "../../broadcasts/step_10/model.safetensors", age_s=0)
    assert world.steps()[0].state == "writing"
    assert job.checked == [10, 10]


def test_a_step_that_changes_while_it_is_checked_is_not_complete(job: PlainJob) -> None:
    class Racing(PlainJob):
        def check_step(self, step: int) -> StepCheck:
            check = super().check_step(step)
            if len(self.checked) == 1:
                write(self, step, "late.pt")
            return check

    write(job, 10, "optimizer.pt")
    world = World(Racing(job.folder))
    assert world.steps()[0].state == "writing"
    assert world.steps()[0].state == "complete"


def test_steps_are_told_of_on_change_and_on_a_heartbeat(job: PlainJob) -> None:
    write(job, 10, "optimizer.pt")
    world = World(job, heartbeat_s=60)
    assert world.look() is not None
    world.clock.now += 30
    assert world.look() is None
    world.clock.now += 30
    assert world.look() is not None
    shutil.rmtree(job.folder / "step_10")
    assert world.steps() == ()


def test_folders_that_cannot_be_listed_are_unknown_and_not_empty(job: PlainJob) -> None:
    world = World(job)
    assert world.steps() == ()
    job.folder.rmdir()
    fact = world.look()
    assert fact is not None and fact.steps == ()
    assert fact.reason.startswith("the checkpoint folders could not be listed: ")
    assert "No such file or directory" in fact.reason


def test_a_stale_handle_makes_the_steps_unknown_until_the_next_look(
    job: PlainJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(job, 20, "optimizer.pt")
    world = World(job)

    def check_stale(step: int) -> StepCheck:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(job, "check_step", check_stale)
        fact = world.look()
    assert fact is not None and "Stale file handle" in fact.reason and fact.steps == ()
    fact = world.look()
    assert fact is not None and [step.state for step in fact.steps] == ["complete"]


def test_a_symlink_in_a_step_is_not_followed(job: PlainJob, tmp_path: Path) -> None:
    write(job, 10, "optimizer.pt")
    (tmp_path / "big").write_bytes(b"x" * 1000)
    link = job.folder / "step_10" / "model.pt"
    link.symlink_to(tmp_path / "big")
    world = World(job, quiet_s=0)
    assert world.steps()[0].size_bytes == 5 + len(str(tmp_path / "big"))
