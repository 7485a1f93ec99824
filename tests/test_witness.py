"""The second witness: what is lost of a journal is told, and what persons ordered is not lost with it."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base.errors import TryAgainError
from supervisor.core.codec import encode
from supervisor.core.decide import decide
from supervisor.core.facts import Command
from supervisor.core.journal_lost import OldOrders
from supervisor.core.state import Attempt, Orders, State
from supervisor.daemon import witness
from supervisor.daemon.witness import Witness
from supervisor.journal.journal import Journal
from supervisor.views.incidents import read_incidents
from tests.core.world import World

Damage = Callable[[Path], None]


def lived(folder: Path, *, stopped: bool = False) -> State:
    """A state folder as kill -9 leaves it: part of the journal is in the database, the rest in its log."""
    world = World()
    world.running_at(12)
    journal = Journal(folder / "living")
    kept = Witness(folder / "living", journal)
    state = State()
    if stopped:
        world.see(Command("stop", "ubuntu"))
    for number, observation in enumerate(world.log):
        decision = decide(state, observation)
        journal.record(observation, state, decision.state, decision.actions)
        state = decision.state
        kept.note(state, journal)
        if number == len(world.log) // 2:
            journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    kept.keep()
    shutil.copytree(folder / "living", folder / "dead")
    journal.close()
    return state


def again(folder: Path) -> tuple[Journal, State, Witness]:
    journal = Journal(folder)
    state, _ = journal.rebuild()
    return journal, state, Witness(folder, journal)


def noise(name: str, seed: int) -> Damage:
    def damage(folder: Path) -> None:
        dice, path = random.Random(seed), folder / name
        data = bytearray(path.read_bytes())
        begin = dice.randrange(len(data))
        length = min(len(data) - begin, dice.choice((1, 100, 5000, 1 << 20)))
        data[begin : begin + length] = dice.randbytes(length)
        path.write_bytes(data)

    return damage


def cut(name: str, seed: int) -> Damage:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: random.Random(seed).randrange(len(data))])

    return damage


def without(*endings: str) -> Damage:
    def damage(folder: Path) -> None:
        for ending in endings:
            (folder / f"journal.db{ending}").unlink()

    return damage


def test_a_first_start_is_no_loss_and_a_second_one_neither(tmp_path: Path) -> None:
    journal, _, kept = again(tmp_path / "s")
    assert journal.born and not kept.lost
    kept.note(State(), journal)
    journal.close()
    journal, _, kept = again(tmp_path / "s")
    assert not journal.born and not kept.lost
    journal.close()


def test_a_journal_that_was_killed_has_lost_nothing(tmp_path: Path) -> None:
    state = lived(tmp_path)
    journal, rebuilt, kept = again(tmp_path / "dead")
    assert rebuilt == state and not kept.lost
    journal.close()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without("", "-wal", "-shm"), "is missing"),
        (without(""), "is missing"),
        (without("", "-wal"), "is missing"),
        (without("", "-shm"), "is missing"),
        (without("-wal"), "lacks its newest"),
        (without("-wal", "-shm"), "lacks its newest"),
        (lambda folder: (folder / "journal.db").write_bytes(b""), "is missing"),
        (lambda folder: (folder / "journal.db").write_bytes(b"no database" * 900), "was damaged, and is kept as"),
        (lambda folder: (folder / "journal.db-wal").write_bytes(b"\x55" * 90_000), "lacks its newest"),
    ],
)
def test_what_is_lost_is_told_and_a_persons_stop_is_not_lost_with_it(
    tmp_path: Path, damage: Damage, words: str
) -> None:
    lived(tmp_path, stopped=True)
    before = witness.read(tmp_path / "dead")
    damage(tmp_path / "dead")
    journal, _, kept = again(tmp_path / "dead")
    assert words in kept.lost
    assert kept.before == before and before is not None and not before.orders.wanted
    assert kept.claimant == before.claimant, "the pod does not wait for its own heartbeat"
    said = witness.sentence(kept.lost, kept.before, None, 1)
    assert "The run stays stopped, as a person ordered. It goes on from attempt 1" in said
    journal.close()


def test_a_journal_that_is_whole_but_for_its_shared_memory_has_lost_nothing(tmp_path: Path) -> None:
    state = lived(tmp_path)
    without("-shm")(tmp_path / "dead")
    journal, rebuilt, kept = again(tmp_path / "dead")
    assert rebuilt == state and not kept.lost
    journal.close()


def test_the_log_of_a_database_that_is_gone_is_kept_as_evidence(tmp_path: Path) -> None:
    lived(tmp_path)
    log = (tmp_path / "dead" / "journal.db-wal").read_bytes()
    without("")(tmp_path / "dead")
    journal, _, _ = again(tmp_path / "dead")
    (aside,) = (tmp_path / "dead").glob("journal.db.damaged-*-wal")
    assert aside.read_bytes() == log
    journal.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_damaged_is_told_or_has_cost_nothing(tmp_path: Path, seed: int) -> None:
    """Noise and truncation at any place, of the database or its log: told, or the very state of before."""
    state = lived(tmp_path, stopped=True)
    name = "journal.db" if seed % 2 else "journal.db-wal"
    (noise if seed % 4 < 2 else cut)(name, seed)(tmp_path / "dead")
    journal, rebuilt, kept = again(tmp_path / "dead")
    assert kept.lost or rebuilt == state, "silent"
    assert kept.before is not None and not kept.before.orders.wanted
    journal.close()


@pytest.mark.soak
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff" * 99, b'{"claimant": 7}', b"[" * 5000])
def test_a_witness_that_is_damaged_is_none_and_is_written_anew(tmp_path: Path, data: bytes) -> None:
    state = lived(tmp_path)
    path = tmp_path / "dead" / witness.NAME
    path.write_bytes(data)
    journal, rebuilt, kept = again(tmp_path / "dead")
    assert rebuilt == state and not kept.lost and kept.before is None
    kept.note(rebuilt, journal)
    assert witness.read(tmp_path / "dead") is not None
    journal.close()


def test_without_either_witness_it_is_said_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "dead" / "attempts" / "0007").mkdir(parents=True)
    journal, _, kept = again(tmp_path / "dead")
    assert kept.lost and kept.last_attempt == 7
    said = witness.sentence(kept.lost, kept.before, None, 7)
    assert "Whether a person had stopped or paused the run is not known." in said
    journal.close()


def test_orders_are_written_before_the_next_turn_and_the_rest_beside_the_loop(tmp_path: Path) -> None:
    journal, _, kept = again(tmp_path)
    kept.note(State(), journal)
    kept.note(State(attempt=Attempt(number=5)), journal)
    known = witness.read(tmp_path)
    assert known is not None and known.attempt == 0
    kept.note(State(attempt=Attempt(number=5), orders=Orders(paused=True)), journal)
    known = witness.read(tmp_path)
    assert known is not None and (known.attempt, known.orders) == (5, OldOrders(paused=True))
    kept.note(State(attempt=Attempt(number=6), orders=Orders(paused=True)), journal)
    kept.keep()
    assert (witness.read(tmp_path) or known).attempt == 6
    journal.close()


def test_a_full_disk_costs_one_warning_and_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    journal, _, kept = again(tmp_path)

    def full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(witness, "write_atomically", full)
        for number in range(3):
            kept.note(State(attempt=Attempt(number=number)), journal)
    assert witness.read(tmp_path) is None
    kept.keep()
    assert (witness.read(tmp_path) or kept.before) is not None, "once there is room"
    journal.close()


def test_a_damaged_journal_on_a_full_disk_is_told_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(tmp_path, stopped=True)
    folder = tmp_path / "dead"
    (folder / "journal.db").write_bytes(b"no database" * 900)
    opened = Journal._open_database
    full = True

    def maybe(self: Journal) -> object:
        if full and not self.path.exists():
            raise_full()
        return opened(self)

    def raise_full() -> None:
        import sqlite3

        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(Journal, "_open_database", maybe)
    with pytest.raises(TryAgainError):
        Journal(folder)
    full = False
    journal, _, kept = again(folder)
    assert "is missing" in kept.lost and kept.before is not None and not kept.before.orders.wanted
    assert list(folder.glob("journal.db.damaged-*")), "the evidence is kept"
    journal.close()


def test_a_lost_journal_on_a_full_disk_is_one_journal_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(tmp_path, stopped=True)
    folder = tmp_path / "dead"
    without("", "-wal")(folder)
    opened = Journal._open_database

    def full(self: Journal) -> sqlite3.Connection:
        database = opened(self)
        database.execute("PRAGMA query_only = on")
        return database

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_open_database", full)
        journal, _, kept = again(folder)
    assert "is missing" in kept.lost and journal.failure
    kept.note(State(), journal)
    identity = journal.identity()
    assert (journal.identity(), journal.get("identity")) == (identity, None)
    journal._db.execute("PRAGMA query_only = off")
    journal.put("wandb_id", "x")
    assert (journal.identity(), journal.get("identity"), journal.failure) == (identity, identity, "")
    journal.close()
    journal, _, kept = again(folder)
    assert kept.lost == "", "told once"
    journal.close()


def test_the_loss_stands_among_the_incidents(tmp_path: Path) -> None:
    journal, state, _ = again(tmp_path)
    world = World()
    world.boot()
    first = world.log[0]
    observation = replace(first, fact=replace(first.fact, lost="The journal was lost."))
    decision = decide(state, observation)
    journal.record(observation, state, decision.state, decision.actions)
    (incident,) = read_incidents(tmp_path)
    assert (incident["sentence"], incident["open"]) == ("The journal was lost.", False)
    assert encode(decision.state.incidents.closed[0])
    journal.close()
