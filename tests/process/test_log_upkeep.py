"""Logs in the state folder stay bounded, and nobody who reads or writes them notices: real files, a real writer."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.api.log_window import last_lines as window
from supervisor.api.log_window import next_piece
from supervisor.effects import log_pieces
from supervisor.effects.log_holes import MIB, data_bytes
from supervisor.effects.log_pieces import rotate, squeeze
from supervisor.effects.log_round import do
from supervisor.effects.log_upkeep import LogUpkeep, Order, plan
from supervisor.jobs.base import LogSource
from supervisor.journal.attempt_folders import folder_of
from supervisor.journal.attempt_logs import last_lines, logs_of
from supervisor.sensors.follow import Follower

LINE = 64  # bytes
BATCH = 2048  # lines, 128 KiB
WRITER = f"""
import sys
number = 0
while sys.stdin.readline():
    for _ in range({BATCH}):
        sys.stdout.write(f"{{number:010d}} " + "x" * {LINE - 12} + "\\n")
        number += 1
    sys.stdout.flush()
"""


class Writer:
    """A process that appends to a log itself, as a job under its shim does; a batch at each word."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=output, text=True
            )
        self.path = path
        self.lines = 0

    def write(self, batches: int = 1) -> None:
        assert self.process.stdin is not None
        self.lines += batches * BATCH
        self.process.stdin.write("go\n" * batches)
        self.process.stdin.flush()

    def written(self) -> None:
        until(lambda: self.path.stat().st_size >= self.lines * LINE, "the writer has written")

    def end(self) -> None:
        self.process.communicate(timeout=20)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Callable[[Path], Writer]]:
    made: list[Writer] = []

    def make(path: Path) -> Writer:
        made.append(Writer(path))
        return made[-1]

    yield make
    for one in made:
        one.end()


def until(what: Callable[[], object], about: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not in {seconds} s: {about}"
        time.sleep(0.005)


def numbers(lines: list[bytes]) -> list[int]:
    return [int(line[:10]) for line in lines]


def log_of(state_dir: Path, attempt: int, text: bytes, name: str = "rl.log", age_s: float = 3600) -> Path:
    path = folder_of(state_dir, attempt) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def noise(size: int) -> bytes:
    """Lines that hardly compress."""
    return b"".join(os.urandom(30).hex().encode() + b"\n" for _ in range(size // 61 + 1))[:size]


@pytest.mark.soak
def test_a_log_that_grows_without_end_stays_small_and_no_reader_misses_or_repeats_a_line(
    tmp_path: Path, writer: Callable[[Path], Writer]
) -> None:
    order = Order(str(tmp_path), 1, max_bytes=16 * MIB)  # a living log from 1 MiB on
    log = folder_of(tmp_path, 1) / "rl.log"
    upkeep = LogUpkeep(tmp_path, 20, 16, 0, lambda told: pytest.fail(told))
    job = writer(log)
    sensor = Follower([LogSource("launcher", str(log))])
    read: list[int] = []
    shown = window(log, 0)
    followed = ""
    for _ in range(60):
        job.write()
        job.written()
        sensor.discover()
        read += numbers([line for _, line in sensor.read()])
        while (shown := next_piece(log, shown.offset, shown.inode)).text:
            assert not shown.anew, "for a person's `tail -f` it is the same file"
            followed += shown.text
        upkeep.tend(1, ())
    until(lambda: upkeep.tend(1, ()) or not plan(order), "the last round is over")
    upkeep.close()
    inode = log.stat().st_ino
    look = log.stat()
    assert look.st_size == job.lines * LINE, "to whoever writes it is as long as what was written"
    assert look.st_blocks * 512 < 3 * MIB, "on disk it is not"
    assert sorted(log.parent.glob("rl.log.*.gz")), "the older part is compressed"
    read += numbers([line for _, line in sensor.read()])
    assert read == list(range(job.lines))
    shown = next_piece(log, shown.offset, shown.inode)
    assert shown.inode == inode
    assert numbers((followed + shown.text).encode().splitlines()) == list(range(job.lines))
    (kept,) = logs_of(tmp_path, 1)
    assert [int(line[:10]) for line in last_lines(kept.pieces, job.lines)] == list(range(job.lines))
    assert [int(line[:10]) for line in last_lines(kept.pieces, 5)] == list(range(job.lines))[-5:]


def test_a_daemon_that_was_away_for_long_begins_behind_the_hole_and_with_a_whole_line(
    tmp_path: Path, writer: Callable[[Path], Writer]
) -> None:
    log = folder_of(tmp_path, 1) / "rl.log"
    job = writer(log)
    job.write(2)
    job.written()
    source = LogSource("launcher", str(log))
    sensor = Follower([source])
    sensor.discover()
    assert len(sensor.read()) == job.lines
    places = sensor.positions()
    sensor.close()
    job.write(30)
    job.written()
    assert rotate(log, MIB) == ""
    for known in (places, []):
        late = Follower([source], known)
        late.discover()
        found = [line for _, line in late.read()]
        assert all(len(line) == LINE - 1 for line in found), "no half line, and nothing of the hole"
        assert numbers(found) == list(range(job.lines))[-len(found) :]
        assert 3000 < len(found) < job.lines / 4
        late.close()


def test_a_round_that_was_killed_between_its_piece_and_its_hole_keeps_no_line_twice(tmp_path: Path) -> None:
    text = b"".join(b"%010d\n" % number for number in range(300_000))
    log = log_of(tmp_path, 1, text)
    killed = log.with_name("killed.log")
    killed.write_bytes(text)
    end = 1_100_000
    with killed.open("r+b") as file:
        log_pieces._compress(file, 0, end, log.with_name(f"rl.log.0001-{end:012d}.gz"))
    killed.unlink()
    rotate(log, MIB)
    (kept,) = logs_of(tmp_path, 1)
    assert [int(line) for line in last_lines(kept.pieces, 300_000)] == list(range(300_000))
    assert len(kept.pieces) == 3


def test_where_no_hole_can_be_punched_the_log_is_begun_anew_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Callable[[Path], Writer]
) -> None:
    monkeypatch.setattr(log_pieces, "punch", lambda file, until: False)
    log = folder_of(tmp_path, 1) / "rl.log"
    job = writer(log)
    job.write(20)
    job.written()
    assert rotate(log, MIB) == ""
    assert log.stat().st_size == job.lines * LINE, "not yet: each time costs lines"
    assert not list(log.parent.glob("*.gz"))
    job.write(20)
    job.written()
    told = rotate(log, MIB)
    assert "what was written in that very moment is lost" in told
    assert log.stat().st_size == 0
    before, job.lines = job.lines, 0
    job.write()
    job.written()
    (kept,) = logs_of(tmp_path, 1)
    lines = last_lines(kept.pieces, before + job.lines)
    assert [int(line[:10]) for line in lines] == list(range(before + BATCH)), "here nobody wrote meanwhile"


def test_what_comes_faster_than_it_can_be_compressed_is_given_up_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pieces, "PIECE_BYTES", MIB // 4)
    log = log_of(tmp_path, 1, b"".join(b"%010d\n" % number for number in range(500_000)))
    told = rotate(log, MIB)
    assert "grows faster than it can be compressed" in told
    (kept,) = logs_of(tmp_path, 1)
    found = [int(line) for line in last_lines(kept.pieces, 500_000)]
    assert found == list(range(500_000))[-len(found) :]
    assert 2 * MIB / 11 < len(found) < 2.5 * MIB / 11
    assert log.stat().st_blocks * 512 < MIB


def test_a_full_disk_is_no_reason_to_let_a_log_fill_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = log_of(tmp_path, 1, noise(3 * MIB))
    monkeypatch.setattr(log_pieces, "_compress", full)
    assert "was given up, for the disk is full" in rotate(log, MIB)
    assert data_bytes(log) <= MIB


def test_logs_of_ended_attempts_are_compressed_once_nobody_writes_them_any_more(tmp_path: Path) -> None:
    old = log_of(tmp_path, 1, b"one\ntwo\n")
    dying = log_of(tmp_path, 2, b"still\n", age_s=0)
    present = log_of(tmp_path, 3, b"now\n")
    role = log_of(tmp_path, 1, b"loss\n", "kept/trainer-trainer.log", age_s=0)
    away = tmp_path / "job" / ".attempt-0001-logs"
    away.mkdir(parents=True)
    (away / "inference-inference.log").write_text("engine\n")
    (folder_of(tmp_path, 1) / "logs.json").write_text(json.dumps({"at": 0, "waiting": [str(away)]}))
    link = folder_of(tmp_path, 1) / "sft.log"
    link.symlink_to(tmp_path / "of-a-person")
    (tmp_path / "of-a-person").write_text("mine\n")
    mtime = old.stat().st_mtime
    order = Order(str(tmp_path), 3)
    assert {log.role: last_lines(log.pieces, 9) for log in logs_of(tmp_path, 1)}["inference"] == ["engine"]
    for task in plan(order):
        do(task, order)
    assert plan(order) == []
    assert not old.exists()
    assert not role.exists()
    assert not away.exists(), "its folder in the job's place is gone, too"
    with gzip.open(f"{old}.gz") as packed:
        assert packed.read() == b"one\ntwo\n", "any tool reads it"
    assert abs(Path(f"{old}.gz").stat().st_mtime - mtime) < 1, "it is as old as its last line"
    assert (dying.read_bytes(), present.read_bytes()) == (b"still\n", b"now\n")
    assert (tmp_path / "of-a-person").read_text() == "mine\n"
    found = {log.role: (log.state, last_lines(log.pieces, 1)) for log in logs_of(tmp_path, 1) if log.name != "sft.log"}
    assert found == {
        "launcher": ("compressed", ["two"]),
        "trainer": ("compressed", ["loss"]),
        "inference": ("compressed", ["engine"]),
    }


def test_an_ended_log_with_pieces_is_read_in_order_and_squeezing_it_twice_changes_nothing(tmp_path: Path) -> None:
    text = b"".join(b"%010d\n" % number for number in range(300_000))
    log = log_of(tmp_path, 1, text)
    rotate(log, MIB)
    target = log.with_name("rl.log.gz")
    rest = log.read_bytes()[-data_bytes(log) :]
    squeeze(log, target)
    log.write_bytes(b"\0" * (len(text) - len(rest)) + rest)  # as if it had been killed before it removed the plain one
    squeeze(log, target)
    (kept,) = logs_of(tmp_path, 1)
    assert [int(line) for line in last_lines(kept.pieces, 300_000)] == list(range(300_000))


@pytest.mark.soak
def test_the_oldest_logs_go_first_and_never_those_of_the_present_or_of_an_open_incident(tmp_path: Path) -> None:
    for attempt in range(1, 8):
        log_of(tmp_path, attempt, noise(2 * MIB), age_s=3600 * (10 - attempt))
        (folder_of(tmp_path, attempt) / "config.json").write_text("{}")
    engine = tmp_path / "engines" / "0001" / "inference.log"
    engine.parent.mkdir(parents=True)
    engine.write_bytes(noise(2 * MIB))
    order = Order(str(tmp_path), 7, keep=(2,), keep_attempts=5, max_bytes=9 * MIB)
    tasks = plan(order)
    assert [task.path for task in tasks if task.work == "forget"] == [folder_of(tmp_path, 1)], "2 has an open incident"
    gone = sorted({task.path.parent.name for task in tasks if task.work == "delete"})
    assert gone == ["0003", "0004", "0005"], "6 x 2 MiB and an engine's 2 are 14, of which 9 may stay"
    for task in tasks:
        if task.work != "squeeze":
            do(task, order)
    assert logs_of(tmp_path, 3) == []
    assert (folder_of(tmp_path, 3) / "config.json").exists(), "its snapshot stays"
    assert not folder_of(tmp_path, 1).exists()
    assert [task for task in plan(order) if task.work != "squeeze"] == []


def test_of_a_present_attempt_that_says_too_much_the_beginning_and_the_end_stay(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1, b"now\n")
    for number in range(1, 9):
        log.with_name(f"rl.log.{number:04d}-{number:012d}.gz").write_bytes(noise(MIB))
    order = Order(str(tmp_path), 1, max_bytes=6 * MIB)
    for task in plan(order):
        do(task, order)
    assert [path.name.split(".")[2][:4] for path in sorted(log.parent.glob("*.gz"))] == ["0001", "0007", "0008"]


def test_two_children_never_work_at_once_and_one_that_fails_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    log = log_of(tmp_path, 1, b"old\n")
    log_of(tmp_path, 2, b"now\n")
    (log.parent / "rl.log.gz").mkdir()  # nothing can be put there
    upkeep = LogUpkeep(tmp_path, 20, 64, 0, said.append)
    until(lambda: upkeep.tend(2, ()) or said, "the failure is told")
    for _ in range(3):
        child = upkeep._child
        if child is not None:
            child.process.wait(20)
        upkeep.tend(2, ())
    assert len(said) == 1
    assert "could not be compressed" in said[0]
    assert log.read_bytes() == b"old\n"
    upkeep.close()
    upkeep.tend(2, ())
    assert upkeep._child is None or upkeep._child.process.returncode is not None
