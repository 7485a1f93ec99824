"""Nothing of an earlier attempt is alive when the next one starts, also where the journal forgot to stop it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.process import survivors
from supervisor.process.attempts import attempt_dir
from supervisor.process.stop import stop_attempt
from tests.process.conftest import BLUNT, PlainHands, wait_for

TRAIN = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
time.sleep(60)
"""


class Driver(PlainHands):
    """One daemon's hands on a trainer, asked by hand."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name, TRAIN, "--from", "{step}")

    def start(self, attempt: int) -> None:
        self.effects.do(a.Start(attempt, None))
        wait_for(lambda: self.told(attempt), f"attempt {attempt} starts", limit_s=30)
        assert isinstance(self.told(attempt), f.AttemptStarted), self.facts

    def told(self, attempt: int) -> f.Fact | None:
        ends = (f.AttemptStarted, f.StartFailed)
        return next((one for one in self.facts if isinstance(one, ends) and one.attempt == attempt), None)

    def living(self, attempt: int) -> list[survivors.Process]:
        folder = attempt_dir(self.run_file.state_dir, attempt)
        return survivors.Belongings(folder, (), self.run_file.run.id).jobs()

    def close(self) -> None:
        self.effects.close()
        for folder in (self.run_file.state_dir / "attempts").glob("*"):
            stop_attempt(folder, [], self.run_file.run.id, BLUNT, 5.0, lambda: True, 0.0)


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[tuple[Driver, Driver]]:
    both = Driver(tmp_path / "mine", "run"), Driver(tmp_path / "neighbour", "run")
    yield both
    for one in both:
        one.close()


def test_a_start_ends_every_earlier_attempt_of_its_run_and_nothing_of_a_neighbour(
    drivers: tuple[Driver, Driver],
) -> None:
    mine, neighbour = drivers
    for driver in drivers:
        driver.start(1)
        wait_for(lambda driver=driver: len(driver.living(1)) == 2, "trainer and helper are up")
    theirs = {one.identity for one in neighbour.living(1)}
    mine.start(3)
    assert mine.living(1) == []
    wait_for(lambda: len(mine.living(3)) == 2, "the new one is up")
    assert {one.identity for one in neighbour.living(1)} == theirs
