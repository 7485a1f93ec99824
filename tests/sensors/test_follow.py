"""Every complete line once, in order, whatever is done to the files; with real files, by example and by fuzzing."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.jobs.base import LogSource
from supervisor.sensors import follow
from supervisor.sensors.follow import Follower, Position, Tail, ends
from tests.fuzz.profiles import tries


def source(path: Path, role: str = "trainer", kind: str = "text") -> LogSource:
    return LogSource(role, str(path), kind)  # type: ignore[arg-type]


def look(follower: Follower) -> list[bytes]:
    follower.discover()
    return [line for _, line in follower.read()]


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_half_written_line_is_kept_until_it_is_complete(tmp_path: Path) -> None:
    follower = Follower([source(tmp_path / "*.log")])
    assert look(follower) == []
    append(tmp_path / "a.log", b"one\ntw")
    assert look(follower) == [b"one"]
    append(tmp_path / "a.log", b"o")
    assert look(follower) == []
    append(tmp_path / "a.log", b"\n\n\nthree\r\n")
    assert look(follower) == [b"two", b"three"]
    follower.close()


def test_a_file_that_is_rotated_by_rename_is_read_to_its_end_before_its_successor(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    follower = Follower([source(log)])
    append(log, b"1\n")
    assert look(follower) == [b"1"]
    append(log, b"2\n")
    writer = log.open("ab")
    log.rename(tmp_path / "a.log.1")
    append(log, b"4\n")
    with writer:
        writer.write(b"3\n")
    assert look(follower) == [b"2", b"3", b"4"]
    follower.close()


def test_a_file_that_is_copied_and_truncated_goes_on_at_its_new_beginning(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    follower = Follower([source(log)])
    append(log, b"old 1\nold 2\nhalf")
    assert look(follower) == [b"old 1", b"old 2"]
    shutil.copy(log, tmp_path / "a.log.1")
    os.truncate(log, 0)
    append(log, b"new 1\n")
    assert look(follower) == [b"new 1"]
    # Now it is longer again than it ever was before the next look.
    os.truncate(log, 0)
    append(log, b"newer 1\nnewer 2\nnewer 3\n")
    assert look(follower) == [b"newer 1", b"newer 2", b"newer 3"]
    follower.close()


def test_a_writer_that_goes_on_at_its_old_offset_after_a_truncation_leaves_a_hole_that_is_skipped(
    tmp_path: Path,
) -> None:
    log = tmp_path / "a.log"
    with log.open("wb", buffering=0) as writer:
        writer.seek(1 << 34)  # 16 GiB, which the disk need not hold for this test
        writer.write(b"old\n")
        follower = Follower([source(log)], ends([source(log)]))
        assert look(follower) == []
        os.truncate(log, 0)
        writer.write(b"new\n")
        lines = []
        for _ in range(3):
            lines += look(follower)
    assert lines == [b"new"]
    follower.close()


def test_the_folder_behind_a_symlink_is_swapped(tmp_path: Path) -> None:
    latest = tmp_path / "latest"
    for attempt in ("1", "2"):
        (tmp_path / attempt).mkdir()
    latest.symlink_to("1")
    follower = Follower([source(latest / "*.log")])
    append(tmp_path / "1" / "a.log", b"first\n")
    assert look(follower) == [b"first"]
    append(tmp_path / "1" / "a.log", b"first, last line\n")
    append(tmp_path / "2" / "a.log", b"second\n")
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").rename(latest)
    assert look(follower) == [b"first, last line", b"second"]
    assert str(tmp_path) in follower.folders(), "the folder in which the link is swapped is worth watching"
    follower.close()


def test_one_file_with_two_names_is_read_once_and_by_the_first_source(tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"x\n")
    (tmp_path / "b.log").hardlink_to(tmp_path / "a.log")
    (tmp_path / "c.log").symlink_to("a.log")
    follower = Follower([source(tmp_path / "b.log", "orchestrator"), source(tmp_path / "*.log", "trainer")])
    follower.discover()
    assert [(source.role, line) for source, line in follower.read()] == [("orchestrator", b"x")]
    follower.close()


def test_a_line_of_ten_megabytes_costs_little_and_the_next_line_is_whole(tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"x" * 10_000_000)
    follower = Follower([source(tmp_path / "a.log")])
    lines: list[bytes] = []
    for _ in range(40):
        lines += look(follower)
        (tail,) = follower._tails.values()
        assert len(tail._partial) <= 4096
    assert lines == []
    append(tmp_path / "a.log", b"\nnext\n")
    assert look(follower) == [b"x" * 4096, b"next"]
    follower.close()


def test_binary_noise_is_lines_too_and_a_progress_bar_does_not_swallow_what_follows_it(tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"\0\0\xff\xfe\x01\nloading: 10%\rloading: 90%\rStep 3 done\n")
    follower = Follower([source(tmp_path / "a.log")])
    assert look(follower) == [b"\xff\xfe\x01", b"loading: 10%", b"loading: 90%", b"Step 3 done"]
    follower.close()


def test_a_deleted_file_is_let_go_of_so_that_its_space_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "LINGER_S", 0.0)
    append(tmp_path / "a.log", b"1\n")
    follower = Follower([source(tmp_path / "a.log")])
    assert look(follower) == [b"1"]
    append(tmp_path / "a.log", b"2\n")
    (tmp_path / "a.log").unlink()
    assert look(follower) == [b"2"], "what was written before the deletion is read"
    assert look(follower) == []
    assert follower.positions() == [] and follower._tails == {}
    append(tmp_path / "a.log", b"3\n")
    assert look(follower) == [b"3"]
    follower.close()


@pytest.mark.parametrize("lost", ["renamed", "deleted"])
def test_a_file_that_lost_its_name_is_read_for_as_long_as_its_writer_holds_it(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """logrotate renames the log and makes an empty one, and a trainer that takes minutes for a step writes on."""
    monkeypatch.setattr(follow, "LINGER_S", 0.0)
    log = tmp_path / "a.log"
    follower = Follower([source(log)])
    with log.open("ab", buffering=0) as writer:
        writer.write(b"1\n")
        assert look(follower) == [b"1"]
        if lost == "renamed":
            log.rename(tmp_path / "a.log.1")
        else:
            log.unlink()
        log.touch()
        assert look(follower) == look(follower) == []
        writer.write(b"2\n")
        assert look(follower) == [b"2"]
    append(log, b"3\n")
    assert look(follower) == [b"3"]
    assert [tail.path for tail in follower._tails.values()] == [str(log)], "its writer let go of it, and so do we"
    follower.close()


def test_a_file_without_a_name_is_not_kept_for_ever_where_the_file_system_says_that_each_has_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tail, "has_writer", lambda tail: True)
    append(tmp_path / "a.log", b"1\n")
    follower = Follower([source(tmp_path / "a.log")])
    assert look(follower) == [b"1"]
    (tmp_path / "a.log").unlink()
    monkeypatch.setattr(follow, "LINGER_S", 0.0)
    assert look(follower) == [] and follower._tails
    monkeypatch.setattr(follow, "LONGEST_LINGER_S", 0.0)
    assert look(follower) == [] and not follower._tails
    follower.close()


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale handle of NFS: each look at it fails, and a start must not end of it."""
    for name in "ab":
        append(tmp_path / f"{name}.log", b"1\n")
    stale = (tmp_path / "a.log").stat().st_ino
    real = os.pread

    def read(fd: int, size: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == stale:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", read)
    assert [Path(position.path).name for position in follow.ends([source(tmp_path / "*.log")])] == ["b.log"]


def test_a_backlog_in_one_file_does_not_hide_the_news_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "FILE_BUDGET_BYTES", 1000)
    monkeypatch.setattr(follow, "BUDGET_BYTES", 1500)
    for name in "ab":
        append(tmp_path / f"{name}.log", b"".join(b"%s%d\n" % (name.encode(), n) for n in range(1000)))
    append(tmp_path / "c.log", b"c0\n")
    follower = Follower([source(tmp_path / "*.log")])
    lines: list[bytes] = []
    for round_ in range(30):
        lines += look(follower)
        assert round_ < 2 or b"c0" in lines
    for letter in (b"a", b"b"):
        assert [line for line in lines if line.startswith(letter)] == [b"%s%d" % (letter, n) for n in range(1000)]
    follower.close()


def test_things_that_are_no_files_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.log")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "dangling.log").symlink_to("nowhere")
    append(tmp_path / "a.log", b"1\n")
    follower = Follower([source(tmp_path / "*.log")])
    assert look(follower) == [b"1"]
    follower.close()


def test_the_last_attempts_lines_are_not_told_again_when_the_trainer_appends(tmp_path: Path) -> None:
    log, metrics = tmp_path / "trainer.log", tmp_path / "metrics.jsonl"
    append(log, b"Step 41 done\ncut off in the mid")
    append(metrics, b'{"step": 41}\n')
    sources = [source(log), source(metrics, kind="jsonl")]
    positions = ends(sources)
    append(log, b"Starting from step 40\n")
    append(metrics, b'{"step": 40}\n')
    follower = Follower(sources, positions)
    assert look(follower) == [b"Starting from step 40", b'{"step": 40}']
    follower.close()


def test_a_log_that_the_new_attempt_writes_over_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    append(log, b"Step 41 done\n")
    positions = ends([source(log)])
    log.write_bytes(b"Starting from step 40, with more words than before\n")
    follower = Follower([source(log)], positions)
    assert look(follower) == [b"Starting from step 40, with more words than before"]
    follower.close()


def test_files_from_before_the_start_are_passed_over_and_what_is_appended_to_them_is_read(tmp_path: Path) -> None:
    append(tmp_path / "old.log", b"Step 41 done\n")
    os.utime(tmp_path / "old.log", (1000, 1000))
    append(tmp_path / "new.log", b"Step 1 done\n")
    follower = Follower([source(tmp_path / "*.log")], since_wall=2000)
    assert look(follower) == [b"Step 1 done"]
    append(tmp_path / "old.log", b"Step 2 done\n")
    assert look(follower) == [b"Step 2 done"]
    follower.close()


def test_a_log_that_was_rotated_while_no_daemon_was_there_is_read_to_its_end(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"1\nha")
    first = Follower([source(log)])
    assert look(first) == [b"1"]
    positions = first.positions()
    first.close()
    append(log, b"lf\n2\n")
    log.rename(tmp_path / "a.log.1")
    append(log, b"3\n")
    second = Follower([source(log)], positions)
    assert look(second) == [b"half", b"2", b"3"]
    second.close()


def test_positions_survive_json_and_nonsense_is_passed_over() -> None:
    position = Position("/x/a.log", 12, 40, b"\xff\n")
    assert Position.from_json(position.as_json()) == position
    for nonsense in ({}, {"path": "x", "inode": "y", "offset": 0, "mark": ""}, {**position.as_json(), "offset": 1}):
        assert Position.from_json(nonsense) is None


def test_a_new_file_that_got_a_deleted_ones_inode_is_read_from_its_beginning(tmp_path: Path) -> None:
    append(tmp_path / "a.log", b"started\n")
    first = Follower([source(tmp_path / "*.log")])
    assert look(first) == [b"started"]
    (tmp_path / "a.log").unlink()
    assert look(first) == []
    positions = first.positions()
    first.close()
    assert positions == []

    # Deleted while no daemon was there: the folder says that it is gone before anything new can take its place.
    gone = Position(str(tmp_path / "a.log"), 123456789, 8, b"started\n")
    second = Follower([source(tmp_path / "*.log")], [gone])
    assert second.positions() == [gone]
    assert look(second) == []
    assert second.positions() == []
    second.close()


# ---------------------------------------------------------------- fuzzing

CHUNKS = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r", b"\r\n", b"\0", b"Step 1\n"]), max_size=12).map(b"".join),
    st.integers(4000, 9000).map(lambda size: b"x" * size),
)
FILE = st.integers(0, 2)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), FILE, CHUNKS),
        st.tuples(st.just("append"), FILE, CHUNKS),
        st.tuples(st.sampled_from(["rotate", "truncate", "delete", "replace"]), FILE, st.just(b"")),
        st.tuples(st.sampled_from(["look", "restart"]), FILE, st.just(b"")),
    ),
    max_size=40,
)


def complete_lines(data: bytes, cap: int) -> list[bytes]:
    lines = data.replace(b"\r", b"\n").split(b"\n")[:-1]
    return [line for raw in lines if (line := raw[:cap].lstrip(b"\0"))]


@pytest.mark.soak
@tries(300)
@given(OPERATIONS, st.sampled_from([7, 64 << 10]))
def test_every_complete_line_comes_exactly_once_and_in_order(
    operations: list[tuple[str, int, bytes]], chunk_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "CHUNK_BYTES", chunk_bytes)
        paths = [Path(folder) / f"{number}.log" for number in range(3)]
        sources = [source(path, role) for path, role in zip(paths, ("trainer", "inference", "env"), strict=True)]
        written = [[b""] for _ in paths]  # for each file the contents of its generations
        seen: list[list[bytes]] = [[] for _ in paths]
        follower = Follower(sources)

        def read() -> None:
            follower.discover()
            for found, line in follower.read():
                seen[sources.index(found)].append(line)

        for number, (verb, index, data) in enumerate(operations):
            path, generations = paths[index], written[index]
            if verb == "append":
                append(path, data)
                generations[-1] += data
            elif verb == "look":
                read()
            elif verb == "restart":
                # Two rotations while nobody looks lose the file between them: that is not promised.
                read()
                positions = follower.positions()
                follower.close()
                follower = Follower(sources, positions)
            elif path.exists():
                read()
                if verb == "rotate":
                    append(path, b"last\n")  # by a writer that has not been read yet
                    generations[-1] += b"last\n"
                    path.rename(path.with_suffix(f".{number}"))
                elif verb == "truncate":
                    os.truncate(path, 0)
                    read()
                elif verb == "delete":
                    path.unlink()
                else:
                    path.with_suffix(".new").write_bytes(b"")
                    path.with_suffix(".new").replace(path)
                generations.append(b"")
        read()
        follower.close()
        for generations, lines in zip(written, seen, strict=True):
            assert lines == [line for data in generations for line in complete_lines(data, 4096)]
