"""From lines in files to facts in the inbox, with the real threads, and the end of a log for people."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.core.facts import ErrorSeen, Fact, FinishSeen, LinesMissed, PhaseSeen, Remark, Role, StepDone
from supervisor.jobs.base import LogSource
from supervisor.sensors.base import Looker
from supervisor.sensors.folder_events import FolderEvents
from supervisor.sensors.logs import LastLines, LogSensor, end_positions
from tests.sensors.support import Inbox, until


class Parser:
    """A job that says "Step N"."""

    def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
        found = re.match(r"Step (\d+)", line)
        return [StepDone(role, int(found[1]))] if found else [PhaseSeen(role, "startup", text=line)]

    def parse_metrics(self, role: Role, record: Mapping[str, object]) -> Sequence[Fact]:
        return [StepDone(role, int(str(record["step"])), reward=0.5)]


def append(path: Path, data: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def steps(inbox: Inbox) -> list[int]:
    return [fact.step for fact in inbox.of(StepDone)]


def test_lines_and_metrics_of_files_that_come_and_go_arrive_as_facts(tmp_path: Path) -> None:
    inbox = Inbox()
    sources = [
        LogSource("trainer", str(tmp_path / "logs" / "*.log")),
        LogSource("orchestrator", str(tmp_path / "metrics.jsonl"), "jsonl"),
    ]
    sensor = LogSensor(sources, Parser(), discover_s=0.1)
    looker = Looker(sensor, inbox, interval_s=0.02)
    looker.start()
    (tmp_path / "logs").mkdir()
    append(tmp_path / "logs" / "rank_0.log", b"Step 1\n\xffnoise\xfe\nSt")
    until(lambda: steps(inbox) == [1], "the first step")
    append(tmp_path / "logs" / "rank_0.log", "ep 2\n")
    append(tmp_path / "metrics.jsonl", '{"step": 3}\nno json\n[1]\n"x"\n' + "[" * 100_000 + "\n" + '{"step": 4}\n')
    until(lambda: sorted(steps(inbox)) == [1, 2, 3, 4], "the metrics")
    assert StepDone("orchestrator", 3, reward=0.5) in inbox.all()
    assert PhaseSeen("trainer", "startup", text="�noise�") in inbox.all()
    (tmp_path / "logs" / "rank_0.log").rename(tmp_path / "logs" / "old")
    append(tmp_path / "logs" / "rank_0.log", "Step 5\n")
    until(lambda: 5 in steps(inbox), "the step in the new file")
    assert looker.stop()
    sensor.close()


def test_a_new_daemon_goes_on_where_the_facts_of_the_last_one_end(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    sources = [LogSource("trainer", str(log))]
    inbox = Inbox()
    append(log, "Step 1\nStep 2\nSte")
    first = LogSensor(sources, Parser())
    looker = Looker(first, inbox, interval_s=0.01)
    looker.start()
    until(lambda: steps(inbox) == [1, 2] and first.positions(), "two steps")
    assert looker.stop()
    kept = json.loads(json.dumps(first.positions()))
    first.close()
    assert first.look() == ()

    append(log, "p 3\nStep 4\n")
    second = LogSensor(sources, Parser(), positions=kept)
    assert second.positions() == kept
    assert second.look() == [StepDone("trainer", 3), StepDone("trainer", 4)]
    second.close()


def test_positions_never_run_ahead_of_what_was_posted(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, "Step 1\n")
    sensor = LogSensor([LogSource("trainer", str(log))], Parser())
    before = sensor.positions()
    assert sensor.look() == [StepDone("trainer", 1)]
    assert sensor.positions() == before == [], "the daemon could die here: the line would be lost"
    sensor.note_posted()
    (position,) = sensor.positions()
    assert position["offset"] == 7
    sensor.close()


def test_positions_of_a_file_that_cannot_be_read_at_present_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "volume" / "a.log"
    log.parent.mkdir()
    append(log, "Step 1\n")
    sources = [LogSource("trainer", str(log))]
    kept = end_positions(sources)
    log.parent.rename(tmp_path / "unmounted")
    sensor = LogSensor(sources, Parser(), positions=kept, discover_s=0)
    assert sensor.look() == []
    sensor.note_posted()
    assert sensor.positions() == kept
    (tmp_path / "unmounted").rename(log.parent)
    append(log, "Step 2\n")
    assert sensor.look() == [StepDone("trainer", 2)]
    sensor.close()


def test_a_metrics_record_longer_than_a_log_line_is_read(tmp_path: Path) -> None:
    record = {"step": 7, **{f"metric_{n}": 0.123 for n in range(2000)}}
    append(tmp_path / "metrics.jsonl", json.dumps(record) + "\n")
    sensor = LogSensor([LogSource("trainer", str(tmp_path / "metrics.jsonl"), "jsonl")], Parser())
    assert sensor.look() == [StepDone("trainer", 7, reward=0.5)]
    sensor.close()


def test_an_error_with_model_output_of_any_kind_in_it_reaches_the_parser_whole(tmp_path: Path) -> None:
    class Echo(Parser):
        def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
            return [ErrorSeen(role, "engine-dead", line)]

    text = "\x1b[31mERROR\x1b[0m EngineDeadError  π \x85 end"
    append(tmp_path / "a.log", text + "\n")
    sensor = LogSensor([LogSource("inference", str(tmp_path / "a.log"))], Echo())
    assert sensor.look() == [ErrorSeen("inference", "engine-dead", text)]
    sensor.close()


# ---------------------------------------------------------------- news from the file system


def test_creations_moves_and_deletions_are_news_and_writes_are_not(tmp_path: Path) -> None:
    events = FolderEvents()
    events.watch([str(tmp_path)])
    (tmp_path / "a").write_text("1")
    until(events.news, "the creation")
    until(lambda: not events.news(), "quiet")
    for _ in range(20):
        append(tmp_path / "a", "x")
    (tmp_path / "a").rename(tmp_path / "b")
    until(events.news, "the rename")
    until(lambda: not events.news(), "quiet")
    (tmp_path / "b").unlink()
    until(events.news, "the deletion")
    events.close()


def test_writing_to_a_file_is_no_news(tmp_path: Path) -> None:
    seen: list[float] = []
    events = FolderEvents(on_news=lambda: seen.append(time.monotonic()))
    (tmp_path / "a").write_text("1")
    events.watch([str(tmp_path)])
    for _ in range(50):
        append(tmp_path / "a", "x")
    (tmp_path / "b").touch()
    until(lambda: seen, "the creation, which comes after the writes")
    assert len(seen) == 1
    events.close()


def test_a_folder_that_was_deleted_and_made_again_is_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    events = FolderEvents()
    events.watch([str(folder)])
    folder.rmdir()
    events.watch([str(folder)])
    folder.mkdir()
    keep = tmp_path / "other"  # takes the freed inode if the file system gives it out at once
    keep.mkdir()
    events.watch([str(folder)])
    until(lambda: not events.news(), "quiet")
    (folder / "a").touch()
    until(events.news, "the creation in the new folder")
    events.close()
    events.watch([])


def test_without_inotify_the_files_are_found_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import watchdog.observers

    class NoWatchLeft(threading.Thread):
        def schedule(self, *args: object, **kwargs: object) -> None:
            raise OSError(28, "inotify watch limit reached")

        def stop(self) -> None:
            pass

    monkeypatch.setattr(watchdog.observers, "Observer", NoWatchLeft)
    sensor = LogSensor([LogSource("trainer", str(tmp_path / "*.log"))], Parser(), discover_s=0)
    assert sensor.look() == []
    append(tmp_path / "a.log", "Step 1\n")
    assert sensor.look() == [StepDone("trainer", 1)]
    sensor.close()


class Errors(Parser):
    """A job in which each line but a step is an error with the line's first word for a name."""

    def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
        if line.startswith("Step"):
            return super().parse_line(role, line)
        return [ErrorSeen(role, line.split(maxsplit=1)[0], line)]


def test_of_a_storm_of_errors_each_kind_is_told_by_its_first_and_its_last_few_and_nothing_else_is_lost(
    tmp_path: Path,
) -> None:
    log = tmp_path / "trainer.log"
    append(log, "".join(f"refused {number}\n" for number in range(5000)) + "Step 7\noom once\n")
    append(log, "".join(f"refused {number}\n" for number in range(5000, 6000)))
    sensor = LogSensor([LogSource("trainer", str(log))], Errors())
    told = sensor.look()
    sensor.close()
    assert len(told) <= 12
    texts = [fact.text for fact in told if isinstance(fact, ErrorSeen)]
    assert texts[0] == "refused 0"
    assert texts[-1] == "refused 5999"
    assert "oom once" in texts
    assert [fact.step for fact in told if isinstance(fact, StepDone)] == [7]


def test_of_the_steps_in_a_backlog_every_one_is_told(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    append(log, "".join(f"Step {number}\nrefused again\n" for number in range(500)))
    sensor = LogSensor([LogSource("trainer", str(log))], Errors())
    told = sensor.look()
    sensor.close()
    assert [fact.step for fact in told if isinstance(fact, StepDone)] == [*range(500)]
    assert len(told) <= 500 + 8, "of the errors between them, a few"


# ---------------------------------------------------------------- a daemon that comes late, a job that has ended


class Ends(Errors):
    """It says that it finishes, too."""

    def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
        return [FinishSeen(role, line)] if line.startswith("finished") else super().parse_line(role, line)


def test_of_a_job_whose_positions_are_lost_only_what_still_is_so_is_told(tmp_path: Path) -> None:
    """Two attempts wrote into each file; the first came further than the second, which lives, has come."""
    log, metrics, small = (tmp_path / name for name in ("trainer.log", "metrics.jsonl", "launcher.log"))
    append(log, "Step 1\n" + "old news\n" * 40_000)
    for first, last in ((480, 500), (401, 420)):
        append(log, "".join(f"refused {number}\nStep {number}\n" for number in range(first, last + 1)))
        append(metrics, "".join(f'{{"step": {number}}}\n' for number in range(first, last + 1)))
        append(log, "finished\n" if first == 480 else "oom now\n")
    append(small, "refused a port\n")
    sources = [LogSource("launcher", str(small)), LogSource("trainer", str(log))]
    sources.append(LogSource("trainer", str(metrics), "jsonl"))
    sensor = LogSensor(sources, Ends(), late=True)
    told = sensor.look()
    steps_told = [fact.step for fact in told if isinstance(fact, StepDone)]
    assert steps_told == [*range(401, 421)] * 2, "what the first did would make the steps to come old news"
    assert [fact.text for fact in told if isinstance(fact, ErrorSeen)] == ["refused a port", "oom now"]
    assert not [fact for fact in told if isinstance(fact, FinishSeen)]
    assert LinesMissed() in told, "what was done before that end is not known"
    append(log, "refused 421\nStep 421\n")
    assert [type(fact) for fact in sensor.look()] == [ErrorSeen, StepDone], "from now on all is news"
    sensor.close()


def test_the_last_lines_are_waited_for_while_they_are_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("supervisor.sensors.logs.time", SimpleNamespace(monotonic=lambda: now, sleep=lambda _: None))
    log = tmp_path / "trainer.log"
    append(log, (b"x" * 4000 + b"\n") * 800 + b"Step 9\n")
    sensor = LogSensor([LogSource("trainer", str(log))], Parser())
    last, told = LastLines(sensor, Looker(sensor, Inbox(), interval_s=600)), list[Fact]()
    for _ in range(7):  # of half a megabyte, on a pod that has little time for it
        now += 4.0
        told += sensor.look()
        assert not last.are_read(), "a finished run would be restarted for want of its last line"
        sensor.note_posted()
    assert [fact.step for fact in told if isinstance(fact, StepDone)] == [9]
    sensor.look()
    sensor.note_posted()
    assert last.are_read()
    sensor.close()


def test_last_lines_that_nobody_can_read_or_that_do_not_end_hide_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("supervisor.sensors.logs.time", SimpleNamespace(monotonic=lambda: now, sleep=lambda _: None))
    log = tmp_path / "trainer.log"
    append(log, (b"x" * 4000 + b"\n") * 3000)
    sensor = LogSensor([LogSource("trainer", str(log))], Parser())
    last = LastLines(sensor, Looker(sensor, Inbox(), interval_s=600))
    now = 11.0
    assert last.are_read(), "no look comes back"
    last = LastLines(sensor, Looker(sensor, Inbox(), interval_s=600))
    passed = [fact for fact in sensor.look() if isinstance(fact, Remark)]
    assert passed, "nobody waits for twelve megabytes of somebody who has ended: the newest eight are read"
    while not last.are_read():
        sensor.note_posted()
        now += 5.0
        assert now < 80.0
    assert now > 60.0
    sensor.close()


def test_a_log_that_grows_faster_than_one_look_a_second_reads_is_kept_up_with(tmp_path: Path) -> None:
    inbox = Inbox()
    log = tmp_path / "trainer.log"
    append(log, b"Step 1\n")
    looker = Looker(LogSensor([LogSource("trainer", str(log))], Parser()), inbox, interval_s=600)
    append(log, (b"x" * 4000 + b"\n") * 1000 + b"Step 2\n")  # 4 MB, where one look reads half a megabyte of a file
    looker.start()
    until(lambda: steps(inbox) == [1, 2], "the step behind four megabytes, long before the next look of the rhythm")
    looker.stop()


def test_of_more_than_can_be_news_only_the_end_is_read_and_a_person_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.sensors.follow.BACKLOG_BYTES", 2 << 20)
    monkeypatch.setattr("supervisor.sensors.follow.RECENT_BYTES", 64 << 10)
    log = tmp_path / "trainer.log"
    append(log, "Step 1\n" + "old news\n" * 400_000 + "Step 2\n")
    sensor = LogSensor([LogSource("trainer", str(log))], Parser())
    told = [*sensor.look(), *sensor.look()]
    assert [fact.step for fact in told if isinstance(fact, StepDone)] == [2]
    (said,) = [fact.sentence for fact in told if isinstance(fact, Remark)]
    assert said.startswith(f"4 MB of {log} were passed over")
    assert told.count(LinesMissed()) == 1
    append(log, "Step 3\n")
    kept = json.loads(json.dumps([position.as_json() for position in sensor._follower.positions()]))
    sensor.close()
    after = LogSensor([LogSource("trainer", str(log))], Parser(), positions=kept)
    assert [type(fact) for fact in after.look()] == [StepDone], "nothing is missed"
    assert after.unknown("logs did not answer for 15 s") == (LinesMissed(),)
    after.close()


def test_a_look_that_left_lines_unread_does_not_count_as_having_seen_the_last_ones(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    append(log, (b"x" * 4000 + b"\n") * 200 + b"Step 1\n")
    sensor = LogSensor([LogSource("trainer", str(log))], Parser())
    sensor.look()
    sensor.note_posted()
    assert sensor.looks == 0
    assert any(isinstance(fact, StepDone) for fact in sensor.look())
    sensor.note_posted()
    assert sensor.looks == 1
    sensor.close()
