"""The flight recorder: what was decided can be rebuilt after a kill, a damaged file or a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from supervisor.base.errors import TryAgainError
from supervisor.core import facts as f
from supervisor.core.decide import Decision, decide
from supervisor.core.state import State
from supervisor.journal.journal import BALLAST_BYTES, SNAPSHOT_EVERY, WAL_BYTES, Journal
from tests.core.world import World


def _replayed(world: World, journal: Journal) -> State:
    """Write a world's observations as the daemon's loop does; returns the last state."""
    state = State()
    for observation in world.log:
        decision = decide(state, observation)
        journal.record(observation, state, decision.state, decision.actions)
        state = decision.state
    return state


def _long_run() -> World:
    world = World()
    world.running_at(12)
    world.gpus(inference=0)
    world.engine_process_dies()
    world.after(4)
    world.step(11)
    return world


def test_a_new_daemon_rebuilds_the_same_state(tmp_path: Path) -> None:
    world = _long_run()
    journal = Journal(tmp_path)
    state = _replayed(world, journal)
    journal.close()
    rebuilt, _ = Journal(tmp_path).rebuild()
    assert rebuilt == state
    assert rebuilt.incidents.closed[-1].sentence.startswith("vLLM died silently")


def test_rebuilding_starts_from_the_last_snapshot(tmp_path: Path) -> None:
    world = _long_run()
    journal = Journal(tmp_path)
    state = _replayed(world, journal)
    assert len(world.log) > SNAPSHOT_EVERY
    rebuilt, tail = journal.rebuild()
    assert rebuilt == state
    assert tail < SNAPSHOT_EVERY


def test_a_snapshot_of_another_version_is_passed_over(tmp_path: Path) -> None:
    world = _long_run()
    journal = Journal(tmp_path)
    state = _replayed(world, journal)
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute('UPDATE snapshots SET state = replace(state, \'"@":"Progress"\', \'"@":"Advance"\')')
    database.close()
    rebuilt, tail = journal.rebuild()
    assert rebuilt == state
    assert tail > SNAPSHOT_EVERY


def test_a_damaged_journal_is_set_aside_and_never_deleted(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    _replayed(_long_run(), journal)
    journal.close()
    database = tmp_path / "journal.db"
    database.write_bytes(b"not a database" * 1000)
    again = Journal(tmp_path)
    assert again.set_aside is not None
    assert again.set_aside.read_bytes().startswith(b"not a database")
    assert again.rebuild()[0] == State()


def test_what_the_log_of_a_damaged_journal_still_holds_is_set_aside_with_it(tmp_path: Path) -> None:
    world = _long_run()
    living = Journal(tmp_path / "living")
    _replayed(world, living)
    dead = tmp_path / "dead"
    shutil.copytree(living.path.parent, dead)  # as kill -9 leaves it: all rows are in the write-ahead log
    living.close()
    log = (dead / "journal.db-wal").read_bytes()
    assert log
    log = bytes(4096) + log[4096:]  # damaged as well: from a whole one SQLite makes the database again
    (dead / "journal.db-wal").write_bytes(log)
    (dead / "journal.db").write_bytes(b"not a database" * 100)
    again = Journal(dead)
    assert again.set_aside is not None
    assert Path(f"{again.set_aside}-wal").read_bytes() == log
    again.close()


def test_a_journal_that_cannot_be_opened_for_a_moment_is_not_set_aside(tmp_path: Path) -> None:
    world = _long_run()
    journal = Journal(tmp_path)
    expected = _replayed(world, journal)
    journal.close()
    before = journal.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.open("/dev/null", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(TryAgainError, match="It is left as it is"):
            Journal(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert journal.path.read_bytes() == before
    again = Journal(tmp_path)
    assert again.set_aside is None
    assert again.rebuild()[0] == expected
    again.close()


def test_an_observation_that_this_version_cannot_take_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _long_run()
    journal = Journal(tmp_path)
    expected = _replayed(world, journal)
    journal.close()
    asked = 0

    def mistaken(state: State, observation: f.Observation) -> Decision:
        nonlocal asked
        asked += 1
        if asked == 5:
            raise KeyError("a mistake of this version")
        return decide(state, observation)

    monkeypatch.setattr("supervisor.journal.journal.decide", mistaken)
    again = Journal(tmp_path)
    state, count = again.rebuild()
    assert again.set_aside is None
    assert (state.attempt.number, state.mode) == (expected.attempt.number, expected.mode)
    assert count > 5, "what came after it was followed"
    again.close()


def test_events_keep_their_numbers_across_daemons(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    _replayed(_long_run(), journal)
    last = journal.events(-1, 1)[0]
    journal.close()
    again = Journal(tmp_path)
    world = World()
    world.boot()
    state = _replayed(world, again)
    assert state.settings.run_id == "bs4"
    numbers = [event.id for event in again.events(0, 5000)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] > last.id


def test_ticks_that_change_nothing_are_not_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    world = World()
    world.boot()
    state = _replayed(world, journal)
    for second in range(100):
        observation = f.Observation(world.t + 5 + second / 100, 1.7e9 + world.t + second, f.Tick())
        decision = decide(state, observation)
        journal.record(observation, state, decision.state, decision.actions)
        state = decision.state
    assert len(list(journal.observations())) == len(world.log)
    seen = f.Observation(world.t + 20, 1.7e9 + world.t + 20, f.DiskLook("/ckpt", 100, 50))
    journal.record(seen, state, decide(state, seen).state, ())
    kept = list(journal.observations())[len(world.log) :]
    assert [observation.fact for observation in kept] == [f.Tick(), seen.fact], "how long nothing happened is known"
    assert kept[0].t == world.t + 5.99


def test_kill_9_in_the_middle_of_writing_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from supervisor.core.decide import decide
        from supervisor.core.facts import Observation, StepDone
        from supervisor.core.state import State
        from supervisor.journal.journal import Journal
        journal, state = Journal(Path(sys.argv[1])), State()
        for number in range(100000):
            observation = Observation(float(number), 0.0, StepDone("orchestrator", number, reward=0.5))
            decision = decide(state, observation)
            journal.record(observation, state, decision.state, decision.actions)
            state = decision.state
            print(number, flush=True)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    seen = -1
    for line in child.stdout:
        seen = int(line)
        if seen >= 700:
            os.kill(child.pid, signal.SIGKILL)
            break
    rest = [int(line) for line in child.stdout if line.strip().isdigit()]
    child.wait()
    child.stdout.close()
    acknowledged = max([seen, *rest])
    state, _ = Journal(tmp_path).rebuild()
    assert state.progress.reward_step is not None
    assert state.progress.reward_step >= acknowledged


@pytest.mark.soak
def test_kill_9_while_old_rows_are_compressed_loses_nothing(tmp_path: Path) -> None:
    """Compressing goes on all the time here, so most kills come in the middle of it."""
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from supervisor.journal import archive, journal
        from supervisor.core.decide import decide
        from supervisor.core.facts import Observation, StepDone
        journal.SNAPSHOT_EVERY, archive.PIECE = 3, 2
        kept = journal.Journal(Path(sys.argv[1]))
        state = kept.rebuild()[0]
        begin = (state.progress.reward_step or 0) + 1
        for number in range(begin, begin + 100000):
            observation = Observation(float(number), 0.0, StepDone("orchestrator", number, reward=0.5))
            decision = decide(state, observation)
            kept.record(observation, state, decision.state, decision.actions)
            state = decision.state
            print(number, flush=True)
        """
    )
    for kill in range(5):
        child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        numbers = [int(child.stdout.readline()) for _ in range(40 + kill)]
        os.kill(child.pid, signal.SIGKILL)
        numbers += [int(line) for line in child.stdout if line.strip().isdigit()]
        child.wait()
        child.stdout.close()
        journal = Journal(tmp_path)
        state, _ = journal.rebuild()
        assert (state.progress.reward_step or 0) >= numbers[-1]
        kept = [observation.t for observation in journal.observations()]
        assert kept == [float(number) for number in range(1, len(kept) + 1)], "each one once and in order"
        journal.close()


def test_a_full_disk_releases_the_ballast_and_never_raises(tmp_path: Path) -> None:
    """The kernel refuses to let any file grow: what a full disk does to SQLite, without filling a disk."""
    script = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from supervisor.core.decide import decide
        from supervisor.core.facts import Observation, StepDone, WorkSeen
        from supervisor.core.state import State
        from supervisor.journal.journal import Journal
        journal, state = Journal(Path(sys.argv[1])), State()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        def write(number):
            global state
            observation = Observation(float(number), 0.0, StepDone("orchestrator", number, reward=0.5))
            decision = decide(state, observation)
            journal.record(observation, state, decision.state, decision.actions)
            state = decision.state
        write(1)
        assert not journal.failure
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        for number in range(2, 50):
            write(number)
        observation = Observation(49.5, 0.0, WorkSeen(inflight=7))
        journal.record(observation, state, state := decide(state, observation).state, ())
        print(journal.failure)
        print((Path(sys.argv[1]) / "journal.ballast").exists())
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        write(50)
        print(repr(journal.failure))
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    failure, ballast, after = done.stdout.strip().splitlines()
    assert "cannot be written" in failure
    assert "Make room on its disk" in failure
    assert ballast == "False", "the ballast was released"
    assert after == "''", "it writes again once there is room"
    assert (tmp_path / "journal.ballast").stat().st_size == BALLAST_BYTES
    state = Journal(tmp_path).rebuild()[0]
    assert state.progress.reward_step == 50
    assert state.job.work is not None, "what could not be written is in the snapshot that follows"


def test_a_disk_that_turns_read_only_ends_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    journal, world = Journal(tmp_path), _long_run()
    journal._db.execute("PRAGMA query_only = ON")
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", refuse)
        last = _replayed(world, journal)
        assert "cannot be written: attempt to write a readonly database" in journal.failure
    journal._db.execute("PRAGMA query_only = OFF")
    journal.snapshot(last)
    assert journal.failure == ""
    assert journal.rebuild()[0] == last
    journal.close()


def test_the_write_ahead_log_is_emptied_beside_the_loop_and_never_by_its_writes(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    wal = tmp_path / "journal.db-wal"
    for number in range(1500):
        journal.put(f"key {number}", "x" * 4000)
    written = wal.stat().st_size
    assert written > 5_000_000  # beyond SQLite's own thousand pages: no write has waited for the disk
    journal.checkpoint()
    journal.put("one more", "y")
    assert wal.stat().st_size <= WAL_BYTES  # it begins anew, and its size tells of what is in it again
    (tmp_path / "alone.db").write_bytes((tmp_path / "journal.db").read_bytes())
    with contextlib.closing(sqlite3.connect(tmp_path / "alone.db")) as alone:
        assert alone.execute("SELECT COUNT(*) FROM meta WHERE key LIKE 'key %'").fetchone()[0] == 1500
    journal.close()
    journal.checkpoint()  # one that comes late opens nothing any more
