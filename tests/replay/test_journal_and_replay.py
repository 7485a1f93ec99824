"""A journal, replayed, gives the decisions that it holds, byte for byte: whatever came, and whatever was compressed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterator
from copy import copy
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from supervisor.cli.main import main
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.state import State
from supervisor.journal import archive, journal, trace, trace_lines
from supervisor.journal.journal import Journal, dump
from supervisor.journal.replay_trace import Turn, replay
from tests.core.test_model import Pod
from tests.core.world import World


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots and chunks come often, so that short runs have many of them."""
    monkeypatch.setattr(journal, "SNAPSHOT_EVERY", 20)
    monkeypatch.setattr(archive, "PIECE", 50)


def keep(world: World, kept: Journal, state: State | None = None) -> State:
    """Write a world's observations as the daemon's loop does; returns the last state."""
    state = state or kept.rebuild()[0]
    for observation in world.log:
        decision = decide(state, observation)
        kept.record(observation, state, decision.state, decision.actions)
        state = decision.state
    return state


@lru_cache
def _eventful() -> World:
    world = World()
    world.running_at(12)
    world.engine_process_dies()
    world.after(4)
    world.job_up()
    world.step(11)
    world.publish_works = False
    world.checkpoint(15)
    world.after(30)
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    world.after(10)
    world.job_up()
    world.step(16)
    return world


def eventful() -> World:
    """Two incidents and a publish that fails, an hour or so in all; each time one of its own."""
    world = copy(_eventful())
    for name, value in vars(world).items():
        if isinstance(value, (list, dict, set)):
            setattr(world, name, copy(value))
    return world


def turns_of(path: Path, incident: int | None = None) -> list[Turn]:
    return list(replay(trace.load(path, incident)))


def test_a_journal_replayed_gives_the_same_decisions(tmp_path: Path, small_pieces: None) -> None:
    kept = Journal(tmp_path)
    keep(eventful(), kept)
    turns = turns_of(tmp_path / "journal.db")  # the daemon still runs
    assert not [turn for turn in turns if turn.differs]
    assert all(turn.recorded is not None for turn in turns)
    chunks = kept._db.execute("SELECT COUNT(*) FROM chunks").fetchone()[0]
    assert chunks > 10
    said = [action.sentence for turn in turns for action in turn.actions if isinstance(action, a.Say)]
    assert any(sentence.startswith("vLLM died silently") for sentence in said)
    starts = [action for turn in turns for action in turn.actions if isinstance(action, a.Start)]
    assert [start.attempt for start in starts] == [1, 2, 3]


def test_the_order_of_sentences_and_actions_is_kept(tmp_path: Path, small_pieces: None) -> None:
    kept = Journal(tmp_path)
    keep(eventful(), kept)
    verdict = next(t for t in turns_of(kept.path) if any(isinstance(x, a.Stop) for x in t.actions))
    assert [json.loads(text)["@"] for text in verdict.recorded or ()] == [type(x).__name__ for x in verdict.actions]


def test_a_journal_of_the_version_before_is_replayed_too(tmp_path: Path) -> None:
    """It has no chunks, no numbers of sentences among its actions, and no list of incidents."""
    kept = Journal(tmp_path)
    keep(eventful(), kept)
    for table in ("chunks", "rebased", "incidents"):
        kept._db.execute(f"DROP TABLE {table}")
    kept._db.execute("""DELETE FROM actions WHERE action LIKE '{"said"%'""")
    turns = turns_of(kept.path)
    ordered = [t for t in turns if t.differs and sorted(t.recorded or ()) != sorted(map(dump, t.actions))]
    assert turns
    assert not ordered, "sentences stand before the actions there, and nothing else differs"
    with pytest.raises(trace_lines.TraceError, match="kept no list of incidents"):
        trace.load(kept.path, 1)
    kept.close()
    assert Journal(tmp_path).rebuild()[0].attempt.number == 3, "and taken over by a daemon of this one"


def test_another_decision_than_the_recorded_one_is_shown_and_fails(
    tmp_path: Path, small_pieces: None, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Journal(tmp_path)
    keep(eventful(), kept)
    assert main(["replay", str(kept.path)]) == 0
    assert "the same as recorded" in capsys.readouterr().out
    kept._db.execute("UPDATE events SET sentence = 'All is well.' WHERE event = 'incident-closed'")
    kept._db.execute("UPDATE chunks SET lines = lines WHERE 0")
    text = trace_lines.export(kept.path, None, None).replace("vLLM died silently", "vLLM fell asleep")
    file = tmp_path / "changed.jsonl"
    file.write_text(text)
    assert main(["replay", str(file)]) == 1
    out = capsys.readouterr().out
    assert "first difference" in out
    assert "vLLM fell asleep" in out
    assert "not as recorded" in out


def test_an_incident_is_exported_with_the_ten_minutes_before_it(tmp_path: Path, small_pieces: None) -> None:
    kept = Journal(tmp_path)
    state = keep(eventful(), kept)
    first, second = (incident.opened for incident in state.incidents.closed)
    for number, opened in ((1, first), (2, second)):
        file = tmp_path / f"incident-{number}.jsonl.gz"
        told = trace_lines.export(kept.path, number, file)
        assert "rl-supervisor replay" in told
        turns = turns_of(file)
        assert turns[0].observation.t <= opened - 590 or turns[0].observation.t == 1000.0
        assert turns[-1].observation.t >= opened
        assert not [turn for turn in turns if turn.differs]
        assert len(turns) < len(turns_of(kept.path))
    with pytest.raises(trace_lines.TraceError, match="keeps no incident 7; it knows 1, 2"):
        trace.load(kept.path, 7)


@pytest.mark.soak
def test_incidents_outlast_the_day(tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "KEEP_S", 3000.0)
    monkeypatch.setattr(archive, "KEEP_OBSERVATIONS", 200)
    kept = Journal(tmp_path)
    world = eventful()
    opened = world.state.incidents.closed[0].opened
    for number in range(17, 60):
        world.step(number)
    keep(world, kept)
    spans = kept._db.execute("SELECT from_t, to_t FROM chunks ORDER BY first").fetchall()
    assert not any(until < opened - archive.BEFORE_INCIDENT_S for _, until in spans), "the quiet beginning is forgotten"
    assert any(since <= opened <= until for since, until in spans)
    turns = turns_of(kept.path)
    assert not [turn for turn in turns if turn.differs], "the gap between incident and present is no difference"
    times = [turn.observation.t for turn in turns]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) > 1000


def test_bytes_are_bounded_and_the_oldest_goes_first(
    tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "KEEP_BYTES", 20_000)
    monkeypatch.setattr(archive, "INCIDENT_BYTES", 10_000)
    kept = Journal(tmp_path)
    world = eventful()
    for number in range(17, 40):
        world.step(number)
    keep(world, kept)
    total, first = kept._db.execute("SELECT SUM(bytes), MIN(first) FROM chunks").fetchone()
    assert total <= 30_000
    assert first > 1
    assert not [turn for turn in turns_of(kept.path) if turn.differs]


def test_what_a_full_disk_swallowed_is_a_gap_and_no_difference(tmp_path: Path, small_pieces: None) -> None:
    kept = Journal(tmp_path)
    state = kept.rebuild()[0]
    database = kept._db
    for number, observation in enumerate(eventful().log):
        if number == 300:
            kept._db = _Full(database)  # type: ignore[assignment]
        if number == 340:
            kept._db = database
        decision = decide(state, observation)
        kept.record(observation, state, decision.state, decision.actions)
        state = decision.state
        assert bool(kept.failure) == (300 <= number < 340)
    turns = turns_of(kept.path)
    assert not [turn for turn in turns if turn.differs]
    assert len(turns) < len(eventful().log) - 30
    kept.close()
    assert Journal(tmp_path).rebuild()[0] == state


class _Full:
    """A database on a disk without room: it can be read."""

    def __init__(self, database: object) -> None:
        self._database = database

    def execute(self, text: str, *values: object) -> object:
        if text.split()[0] in ("INSERT", "UPDATE", "DELETE", "COMMIT"):
            import sqlite3

            raise sqlite3.OperationalError("database or disk is full")
        return self._database.execute(text, *values)  # type: ignore[attr-defined]


def test_a_daemon_that_begins_with_another_attempt_number_is_replayed_from_there(tmp_path: Path) -> None:
    kept = Journal(tmp_path)
    begun, _ = kept.rebuild()
    counted_on = dataclasses.replace(begun.attempt, number=7)  # from the folders of a lost journal
    state = dataclasses.replace(begun, attempt=counted_on)
    kept.snapshot(state)
    world = World(state=state)
    world.running_at(3)
    keep(world, kept, state)
    turns = turns_of(kept.path)
    assert not [turn for turn in turns if turn.differs]
    assert next(x for t in turns for x in t.actions if isinstance(x, a.Start)).attempt == 8


def test_many_daemons_and_days_rebuild_from_the_last_snapshot(tmp_path: Path, small_pieces: None) -> None:
    world = eventful()
    state = State()
    for begin in range(0, len(world.log), 97):
        kept = Journal(tmp_path)
        rebuilt, tail = kept.rebuild()
        now = {"now": state.now, "wall": state.wall, "calm_until": state.calm_until}
        assert dataclasses.replace(rebuilt, **now) == state
        assert tail <= 20
        state = rebuilt
        for observation in world.log[begin : begin + 97]:
            decision = decide(state, observation)
            kept.record(observation, state, decision.state, decision.actions)
            state = decision.state
        kept.close()
    assert not [turn for turn in turns_of(tmp_path / "journal.db") if turn.differs]


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Path]:
    kept = Journal(tmp_path)
    keep(eventful(), kept)
    yield kept.path
    kept.close()


RUN = """
[run]
id = "bs4"
max_steps = 1000
[job]
dir = "/opt/prime-rl"
config = "rl.toml"
[deadlines]
engine_grace = {grace}
"""


def test_other_settings_make_what_follows_counterfactual(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(grace=300))
    assert main(["replay", str(recorded), "--config", str(file), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    turns = [line for line in lines if "actions" in line]
    first = next(line for line in turns if line["counterfactual"])
    assert all(line["counterfactual"] for line in turns[turns.index(first) :])
    died = next(t.observation.t for t in turns_of(recorded) if isinstance(t.observation.fact, f.ProcessGone))
    assert died <= first["t"] <= died + 10, "the engine is not held to be dead yet where it was then"
    assert first["instead"].startswith("Stop(1, ")
    assert "another action was taken" in lines[-1]["summary"]


def test_settings_that_matter_nowhere_change_nothing(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(grace=3) + "hang = 61\n[disk]\nstop_below_mb = 2048\n[recovery]\nbackoff = 6\n")
    assert main(["replay", str(recorded), "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert "would have been the same" in out
    assert "counterfactual" not in out


class Recorded(Pod):
    """The model's random pods, each with a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.kept = Journal(Path(self.folder.name))
        self.kept.rebuild()
        self.journals = 0

    def see(self, fact: f.Fact) -> None:
        if self.up:
            before, observation = self.state, f.Observation(self.t, 1.7e9 + self.t, fact)
            decision = decide(before, observation)
            self.kept.record(observation, before, decision.state, decision.actions)
        super().see(fact)

    def boot(self, step: int | None, *, fresh: bool = False, setup: bool = False) -> None:
        if self.state == State():
            self.journals += 1
            self.kept.close()
            self.kept = Journal(Path(self.folder.name) / str(self.journals))  # another pod
        super().boot(step, fresh=fresh, setup=setup)

    def teardown(self) -> None:
        turns = turns_of(self.kept.path) if self.kept.last_time() else []
        wrong = [turn for turn in turns if turn.differs]
        self.kept.close()
        self.folder.cleanup()
        assert not wrong, wrong[0]


@pytest.mark.usefixtures("small_pieces")
class TestRecorded(Recorded.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(
        max_examples=25,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
