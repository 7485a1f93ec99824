"""A journal that cannot be written is told once, then with a count, and once more when it can be written again. A start
that finds no room for its files is tried again."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.moves import DISK_PATIENCE_S
from supervisor.core.state import State
from supervisor.daemon import loop
from supervisor.daemon.loop import Daemon
from supervisor.effects.carry_out import Effects
from supervisor.journal.journal import Journal
from supervisor.process.attempts import attempt_dir, take_snapshot
from tests.core.world import NeverAgain, World


class House:
    """The part of the daemon that decides, writes and tells; its journal's disk can be filled."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder)
        self.witness = SimpleNamespace(note=lambda state, journal: None)
        self._series = SimpleNamespace(note=lambda observation, state, said: None)
        self.clock = SimpleNamespace(now=lambda: self.t)
        self.state = State()
        self.t = 100.0
        self._unwritten = 0
        self._repeats: dict[str, Any] = {}
        self.full = False
        begin = self.journal._open_transaction

        def transaction() -> Any:
            if self.full:
                raise sqlite3.OperationalError("database or disk is full")
            return begin()

        self.journal._open_transaction = transaction  # type: ignore[method-assign]

    def turns(self, count: int, seconds: float = 0.2) -> None:
        for number in range(count):
            self.t += seconds
            fact = f.Remark("note", f"turn {self.t} {number}")
            Daemon._decide(cast(Any, self), fact, "test")

    def _say_events(self, events: list[Any]) -> None:
        Daemon._say_events(cast(Any, self), events)

    def _tell_of_the_journal(self) -> None:
        Daemon._tell_of_the_journal(cast(Any, self))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    def say(level: str, event: str, sentence: str, **fields: object) -> None:
        if event == "journal":
            found.append((level, sentence))

    monkeypatch.setattr(loop.logs, "say", say)
    return found


def test_a_full_state_disk_is_said_once_in_two_minutes(tmp_path: Path, said: list[tuple[str, str]]) -> None:
    house = House(tmp_path)
    house.turns(3)
    assert not said
    house.full = True
    house.turns(600)
    assert len(said) == 1, said
    ((level, sentence),) = said
    assert level == "error"
    assert "cannot be written: database or disk is full. Make room on its disk." in sentence
    house.full = False
    house.turns(3)
    assert said[1:] == [("warning", "The journal can be written again. Of 600 turns of the loop it has no record.")], (
        "and once that it is over"
    )


def test_a_state_disk_that_is_full_for_hours_is_told_each_hour_with_a_count(
    tmp_path: Path, said: list[tuple[str, str]]
) -> None:
    house = House(tmp_path)
    house.full = True
    house.turns(3 * 360 + 1, seconds=10)
    assert len(said) == 4, said
    assert said[1][1].endswith("This came 361 times in 60 min."), said[1]


def test_a_state_disk_that_is_full_now_and_then_fills_no_log(tmp_path: Path, said: list[tuple[str, str]]) -> None:
    house = House(tmp_path)
    for _ in range(100):
        house.full = not house.full
        house.turns(2)
    assert len(said) == 2, said[:6]


def test_a_snapshot_for_which_there_is_no_room_is_not_a_mistake_in_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, attempt = tmp_path / "rl.toml", tmp_path / "0001"
    with pytest.raises(ConfigError, match="cannot be read"):
        take_snapshot(attempt, [config], None)
    config.touch()

    def write(path: Path, text: bytes) -> int:
        raise OSError(ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", write)
        with pytest.raises(SupervisorError, match=r"cannot be copied to .*0001/config: No space") as found:
            take_snapshot(attempt, [config], None)
        assert not isinstance(found.value, ConfigError), "which would end the run for good"
    assert take_snapshot(attempt, [config], None) == {config: attempt / "config" / "0-rl.toml"}


def test_a_start_that_finds_a_full_disk_waits_for_room_and_uses_up_no_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four tries within eight seconds used up the budget, and the daemon ended with 93 over a disk that was cleaned a
    minute later.
    """
    config, facts = tmp_path / "rl.toml", []
    config.touch()

    def start(attempt: int, *, room: bool) -> f.StartFailed:
        def launch(action: a.Start) -> f.Fact:
            with monkeypatch.context() as full:
                if not room:
                    full.setattr(Path, "write_bytes", lambda path, text: _raise(OSError(ENOSPC, "No space left")))
                take_snapshot(attempt_dir(tmp_path, attempt), [config], None)
            raise SupervisorError("Step 10 is no longer complete.")

        run = SimpleNamespace(state_dir=tmp_path, post=facts.append)
        Effects._start_attempt(cast(Any, SimpleNamespace(run=run, _launch_attempt=launch)), a.Start(attempt, 10))
        return cast(f.StartFailed, facts[-1])

    other, full = start(1, room=True), start(2, room=False)
    assert (other.no_room, full.no_room) == (False, True)
    assert f"The disk of {tmp_path} has " in full.reason and "outside that folder: du -xh -d 2 /" in full.reason
    assert [path.name for path in (tmp_path / "attempts").iterdir()] == ["0001"], "nothing is left of the one"

    world = NeverAgain()
    world.running_at(12)
    world.see(f.ComponentExited(1, "launcher", 1))
    until = world.t + DISK_PATIENCE_S + 600
    while world.state.mode != "gave-up" and world.t < until:
        if world.state.mode == "starting":
            tried = world.state.attempt.number
            world.see(replace(full, attempt=tried))
            assert world.state.recovery.barren == 1, "only the crash counts"
            if tried == 9:
                roomy = world.state
        world.after(1)
    assert world.state.mode == "gave-up" and world.state.ending.code == 93
    assert "Nothing became free in 60 min: a person has to make room." in world.said("gave-up")[0]
    assert "du -xh" in world.said("backing-off")[-1] and "tried again each minute" in world.said("backing-off")[-1]

    freed = World()
    freed.running_at(12)
    freed.state, freed.t = roomy, roomy.now  # the same, and now there is room
    freed.after(61)
    assert freed.state.attempt.number == 10 and freed.said("launched")[-1].startswith("Attempt 10 is launched")
    freed.step(13)
    assert freed.state.mode == "running"


def _raise(error: OSError) -> int:
    raise error


def test_a_first_start_that_finds_a_full_disk_is_told_once_as_an_incident() -> None:
    world = NeverAgain(first=False)
    world.boot()
    for _ in range(200):
        world.after(1)
        if world.state.mode == "starting":
            world.see(f.StartFailed(world.state.attempt.number, "No space left on device.", no_room=True))
    assert world.state.mode == "backing-off" and len(world.said("backing-off")) >= 3
    assert len(world.said("verdict")) == 1 and world.state.incidents.open is not None
    assert world.state.recovery.barren == 0
