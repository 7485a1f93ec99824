"""A journal that cannot be written is told once, then with a count, and once more when it can be written again. A start
that finds no room for its files is tried again."""

from __future__ import annotations

import sqlite3
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.core import facts as f
from supervisor.core.state import State
from supervisor.daemon import loop
from supervisor.daemon.loop import Daemon
from supervisor.journal.journal import Journal
from supervisor.process.attempts import take_snapshot


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
