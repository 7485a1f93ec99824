"""What a job wrote into its own log files is still there after the next start has written over them."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.effects import kept_logs
from supervisor.effects.carry_out import KEPT, Effects
from supervisor.effects.kept_logs import begin, keep_earlier
from supervisor.effects.log_round import do
from supervisor.effects.log_upkeep import Order, plan
from supervisor.effects.move_aside import ASIDE, delete_set_aside
from supervisor.jobs.base import LogSource
from supervisor.journal import attempt_logs
from supervisor.journal.attempt_folders import folder_of, read_index
from supervisor.journal.attempt_logs import last_lines, logs_of


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than ``tmp_path``."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        if Path(name).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is no second file system here")
        yield Path(name)


class Job:
    """Writes logs as prime-rl of an era does. ``fate`` as the job's own log_sources say it."""

    def __init__(self, output: Path, fate: str) -> None:
        self.output, self.fate = output, fate
        self.started = 0
        (output / "logs").mkdir(parents=True)

    def sources(self, attempt_dir: Path) -> list[LogSource]:
        logs = self.output / "logs" / ("latest" if self.fate == "stays" else "")
        return [
            LogSource("launcher", str(attempt_dir / "rl.log")),
            LogSource("trainer", str(logs / "trainer.log"), fate=self.fate),  # type: ignore[arg-type]
            LogSource("env", str(logs / "envs" / "*" / "*.log"), fate=self.fate),  # type: ignore[arg-type]
        ]

    def start(self, text: str) -> None:
        self.started += 1
        logs = self.output / "logs"
        if self.fate == "stays":
            logs = logs / f"attempt_{self.started}"
            link = self.output / "logs" / "latest"
            link.unlink(missing_ok=True)
            link.symlink_to(logs)
        (logs / "envs" / "train").mkdir(parents=True, exist_ok=True)
        with (logs / "trainer.log").open("a" if self.fate == "shared" else "w") as file:
            file.write(f"trainer {text}\n")
        (logs / "envs" / "train" / "maths.log").write_text(f"env {text}\n")


def said(state_dir: Path, attempt: int, role: str) -> list[list[str]]:
    return [last_lines(log.pieces, 9) for log in logs_of(state_dir, attempt) if log.role == role]


def start(state_dir: Path, job: Job, attempt: int, text: str, doomed: tuple[Path, ...] = ()) -> list[str]:
    """As the launch does it."""
    problems = keep_earlier(state_dir, attempt, doomed)
    folder = folder_of(state_dir, attempt)
    begin(folder, job.sources(folder))
    (folder / "rl.log").write_text(f"launcher {text}\n")
    job.start(text)
    return problems


@pytest.mark.parametrize("fate", ["overwritten", "stays", "shared"])
def test_each_attempt_has_its_own_lines_whatever_the_job_does_to_its_files(tmp_path: Path, fate: str) -> None:
    job = Job(tmp_path / "outputs", fate)
    for attempt, text in enumerate(("one", "two", "three"), start=1):
        assert start(tmp_path / "state", job, attempt, text) == []
    for attempt, text in enumerate(("one", "two", "three"), start=1):
        if fate == "shared" and attempt == 3:
            continue  # it is the whole file that is shown of the present one
        assert said(tmp_path / "state", attempt, "trainer") == [[f"trainer {text}"]]
        assert said(tmp_path / "state", attempt, "env") == [[f"env {text}"]]
        assert said(tmp_path / "state", attempt, "launcher") == [[f"launcher {text}"]]


def test_a_reader_that_holds_the_file_reads_on_and_the_job_finds_its_place_free(tmp_path: Path) -> None:
    job = Job(tmp_path / "outputs", "overwritten")
    start(tmp_path / "state", job, 1, "one")
    with (tmp_path / "outputs/logs/trainer.log").open() as reader:
        start(tmp_path / "state", job, 2, "two")
        assert reader.read() == "trainer one\n", "truncating would have taken it from under the reader"
    assert (tmp_path / "outputs/logs/trainer.log").read_text() == "trainer two\n"


def test_on_another_file_system_it_waits_beside_until_it_is_fetched(tmp_path: Path, elsewhere: Path) -> None:
    job = Job(elsewhere / "outputs", "overwritten")
    state = tmp_path / "state"
    start(state, job, 1, "one")
    began = time.monotonic()
    start(state, job, 2, "two")
    assert time.monotonic() - began < 1
    waiting = elsewhere / "outputs/logs/.attempt-0001-logs/trainer-trainer.log"
    assert waiting.read_text() == "trainer one\n"
    assert said(state, 1, "trainer") == [["trainer one"]], "it is found there meanwhile"
    order = Order(str(state), 2, quiet_s=0)
    for task in plan(order):
        do(task, order)
    assert not list((elsewhere / "outputs").rglob(".attempt*"))
    assert (folder_of(state, 1) / "kept" / "trainer-trainer.log.gz").exists()
    assert said(state, 1, "trainer") == [["trainer one"]]
    assert said(state, 1, "env") == [["env one"]]
    assert (elsewhere / "outputs/logs/trainer.log").read_text() == "trainer two\n"


@pytest.mark.parametrize("far", [False, True])
def test_a_run_folder_that_is_moved_aside_takes_no_log_of_an_earlier_attempt_along(
    tmp_path: Path, elsewhere: Path, far: bool
) -> None:
    output = (elsewhere if far else tmp_path) / "outputs"
    job = Job(output / "run", "stays")
    state = tmp_path / "state"
    start(state, job, 1, "one")
    start(state, job, 2, "two")
    assert keep_earlier(state, 3, [output / "run"]) == []
    (output / "run").rename(output / "aside")
    for attempt, text in ((1, "one"), (2, "two")):
        assert said(state, attempt, "trainer") == [[f"trainer {text}"]]
        assert said(state, attempt, "env") == [[f"env {text}"]]


def test_a_start_on_a_full_disk_sets_aside_what_may_fill_it_after_the_logs_in_there_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could be written, so nothing was set aside and deleted, and the run waited an hour for a person."""
    state, output = tmp_path / "state", tmp_path / "outputs"
    start(state, Job(output / "run", "stays"), 1, "one")
    job = SimpleNamespace(output_dir=output, problems=list, steps=list, above_trees=lambda step: [output / "run"])
    facts: list[f.Fact] = []
    run: Any = SimpleNamespace(state_dir=state, post=facts.append, need_job=lambda anew=False: job, disks=None)
    run.run_file = SimpleNamespace(
        run=SimpleNamespace(id="r"), recovery=SimpleNamespace(inference="job"), job=SimpleNamespace(dir=None)
    )
    run.machines, run.run_file.output_dir = None, output
    effects = Effects.__new__(Effects)
    effects.run, effects._unwanted = run, threading.Event()
    effects._start_check = effects.store = cast(Any, MagicMock())
    made = Path.mkdir

    def make(path: Path, *more: Any, **how: Any) -> None:
        if path == folder_of(state, 2):
            raise OSError(ENOSPC, "No space left on device", str(path))
        made(path, *more, **how)

    monkeypatch.setattr(Path, "mkdir", make)
    effects._start_attempt(a.Start(2, None))
    told, failed = facts
    assert isinstance(told, f.Remark) and told.sentence.startswith(
        f"Set aside under {output / ASIDE}: attempt-0002/run."
    )
    assert isinstance(failed, f.StartFailed) and failed.no_room
    assert not (output / "run").exists() and delete_set_aside(output, KEPT) > 0
    assert said(state, 1, "trainer") == [["trainer one"]]


def test_a_start_that_died_before_it_wrote_anything_gets_no_log_of_another_attempt(tmp_path: Path) -> None:
    for fate in ("overwritten", "stays"):
        state, job = tmp_path / fate, Job(tmp_path / f"outputs-{fate}", fate)
        start(state, job, 1, "one")
        keep_earlier(state, 2)
        begin(folder_of(state, 2), job.sources(folder_of(state, 2)))
        time.sleep(0.01)
        keep_earlier(state, 3)
        begin(folder_of(state, 3), job.sources(folder_of(state, 3)))
        assert said(state, 1, "trainer") == [["trainer one"]]
        assert said(state, 2, "trainer") == []


def test_a_log_from_before_our_time_is_nobodys(tmp_path: Path) -> None:
    job = Job(tmp_path / "outputs", "overwritten")
    job.start("by hand")
    old = tmp_path / "outputs/logs/trainer.log"
    os.utime(old, (time.time() - 3600,) * 2)
    state = tmp_path / "state"
    begin(folder_of(state, 1), job.sources(folder_of(state, 1)))
    assert said(state, 1, "trainer") == []
    assert keep_earlier(state, 2) == []
    assert old.read_text() == "trainer by hand\n"


def test_of_a_file_that_a_command_appends_to_only_the_attempts_own_end_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_logs, "COPY_BYTES", 1000)
    log = tmp_path / "out.log"
    log.write_text("before\n" * 10)
    state = tmp_path / "state"
    source = [LogSource("job", str(log), fate="shared")]
    begin(folder_of(state, 1), source)
    with log.open("a") as file:
        file.writelines(f"line {number:03d}\n" for number in range(500))
    assert keep_earlier(state, 2) == []
    begin(folder_of(state, 2), source)
    with log.open("a") as file:
        file.write("second\n")
    keep_earlier(state, 3)
    begin(folder_of(state, 3), source)
    (lines,) = [last_lines(one.pieces, 999) for one in logs_of(state, 1)]
    assert lines == [f"line {number:03d}" for number in range(389, 500)], "at most so much, from a whole line on"
    assert said(state, 2, "job") == [["second"]]
    keep_earlier(state, 3)
    assert len(list((folder_of(state, 2) / "kept").iterdir())) == 1, "asked twice, it is kept once"


def test_what_cannot_be_kept_is_told_and_stops_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path / "outputs", "overwritten")
    state = tmp_path / "state"
    start(state, job, 1, "one")
    (folder_of(state, 1) / "kept").write_text("in the way")
    problems = keep_earlier(state, 2)
    assert len(problems) == 2
    assert "could not be kept with attempt 1" in problems[0]
    assert job.output.joinpath("logs/trainer.log").exists()
    for damaged in (b"", b"[]", b'{"sources": 7, "left": [1], "waiting": {}}', b"\xff"):
        (folder_of(state, 1) / "logs.json").write_bytes(damaged)
        assert keep_earlier(state, 2) == []
        assert isinstance(read_index(folder_of(state, 1)), dict)
        assert said(state, 1, "launcher") == [["launcher one"]], "found by its name"


def test_links_and_pipes_are_not_taken(tmp_path: Path) -> None:
    job = Job(tmp_path / "outputs", "overwritten")
    state = tmp_path / "state"
    begin(folder_of(state, 1), job.sources(folder_of(state, 1)))
    target = tmp_path / "mine"
    target.write_text("a person's\n")
    (tmp_path / "outputs/logs/trainer.log").symlink_to(target)
    (tmp_path / "outputs/logs/envs/train").mkdir(parents=True)
    os.mkfifo(tmp_path / "outputs/logs/envs/train/pipe.log")
    assert keep_earlier(state, 2) == []
    assert target.read_text() == "a person's\n"
    assert (tmp_path / "outputs/logs/trainer.log").is_symlink()


# ---------------------------------------------------------------- the end of a log


def test_of_a_long_line_the_end_is_shown_and_a_stray_nul_is_no_hole(tmp_path: Path) -> None:
    """A progress bar of one line, in which the newest part says what happened."""
    log = tmp_path / "bar.log"
    nul = attempt_logs.BLOCK_BYTES
    log.write_bytes(b"first\n" * 90_000 + b"\0" + b"second\n" * (nul // 7) + b"x" * (nul - 1 - nul // 7 * 7))
    assert len(last_lines([log], 50_000)) == 50_000
    log.write_bytes(b"x" * 40_000_000 + b"\rrefused")
    assert last_lines([log], 5000)[0].endswith("x\rrefused")


def test_the_last_lines_with_their_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"".join(b"line %d\r\n" % n for n in range(20_000)) + b"\x1b[32mgreen\x1b[0m\nhalf")
    assert last_lines([log], 3) == ["line 19999", "\x1b[32mgreen\x1b[0m", "half"]
    assert len(last_lines([log], 15_000)) == 15_000
    assert last_lines([log], 0) == []
    for name in ("PLAIN_BYTES", "BLOCK_BYTES"):
        monkeypatch.setattr(attempt_logs, name, 20)
    assert last_lines([log], 5) == ["\x1b[32mgreen\x1b[0m", "half"]
    with log.open("ab") as file:
        file.write(b"x" * 3_000_000)
    for name in ("PLAIN_BYTES", "BLOCK_BYTES"):
        monkeypatch.setattr(attempt_logs, name, 1000)
    assert last_lines([log], 2) == ["x" * 1000]
    with pytest.raises(FileNotFoundError):
        last_lines([tmp_path / "none"], 100)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30).filter(lambda line: not set(line) & set(b"\0\r\n")), max_size=30), st.data())
def test_the_end_of_any_log_is_the_end_of_its_lines(lines: list[bytes], data: st.DataObject) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"rl-supervisor-tail-{os.getpid()}"
    count = data.draw(st.integers(1, 40))
    try:
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        assert last_lines([path], count) == [line.decode(errors="replace") for line in lines][-count:]
    finally:
        path.unlink()
