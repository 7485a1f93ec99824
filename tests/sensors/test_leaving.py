"""What tells that a pod goes: real files, real pages, real commands, and what of them cannot be asked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from supervisor.base import http
from supervisor.core import facts as f
from supervisor.jobs.environment import environment_of_commands
from supervisor.sensors import leaving
from supervisor.sensors.leaving import FileSource, PublishSensor, Trigger, ask_command, ask_page, within


class Notices:
    """A small page of a provider: a test says what it answers."""

    def __init__(self) -> None:
        self.status, self.text, self.delay_s = 404, "", 0.0
        self.asked: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(dict(self.headers))
                body = outer.text.encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # who waits no longer has gone
                    for byte in body:
                        time.sleep(outer.delay_s)
                        self.wfile.write(bytes([byte]))
                        self.wfile.flush()

            def log_message(self, format: str, *args: object) -> None:
                """The tests look at what was asked."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/spot/instance-action?v=1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def notices() -> Iterator[Notices]:
    page = Notices()
    yield page
    page.close()


def looks(trigger: Trigger, times: int = 1) -> list[f.Fact]:
    return [fact for _ in range(times) for fact in trigger.look()]


def failures(facts: list[f.Fact]) -> list[str]:
    return [fact.sentence for fact in facts if isinstance(fact, f.Remark) and fact.event == "trigger-failed"]


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("", 120.0),
        ("30\n", 30.0),
        ("2.5", 2.5),
        ("-5", 120.0),
        ("soon", 120.0),
        ("1e3", 120.0),
        ('{"within_s": 25}', 25.0),
        ('{"within_s": true}', 120.0),
        ('{"within_s": NaN}', 120.0),
        ('{"within_s": 1e300}', 86_400.0),
        ('{"action": "terminate", "time": "2027-01-15T08:22:00Z"}', 90.0),
        ('{"action": "terminate", "time": "2027-01-15T08:22:00"}', 90.0),
        ('{"action": "terminate", "time": "2027-01-15T08:00:00Z"}', 0.0),
        ('{"time": "tomorrow"}', 120.0),
        ('{"time": 7}', 120.0),
        ("{" * 5000, 120.0),
        ("[30]", 120.0),
    ],
)
def test_the_triggers_own_words_say_how_soon_where_they_can(words: str, seconds: float) -> None:
    now = datetime(2027, 1, 15, 8, 20, 30, tzinfo=UTC).timestamp()
    assert within(words, 120.0, now) == seconds


def test_nobody_knows_how_soon_where_neither_words_nor_settings_say() -> None:
    assert within("TRUE", None, 0.0) is None


def test_a_number_too_large_for_a_float_is_a_long_time_and_the_trigger_is_heard(tmp_path: Path) -> None:
    path = tmp_path / "preempted"
    trigger = Trigger("file", FileSource(path), 30.0)
    path.write_text('{"within_s": 1' + "0" * 400 + "}")
    assert looks(trigger, 3) == [f.LeaveSoon(86_400.0, f"{path} appeared")]


# ---------------------------------------------------------------- a file


def test_a_file_that_appears_is_told_once_with_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "preempted"
    trigger = Trigger("file", FileSource(path), None)
    assert looks(trigger, 3) == []
    path.write_text("25\n")
    assert looks(trigger, 3) == [f.LeaveSoon(25.0, f"{path} appeared")]


def test_a_file_that_is_seen_before_its_words_are_written_is_read_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "preempted"
    path.touch()
    monkeypatch.setattr("supervisor.sensors.leaving.time.sleep", lambda seconds: path.write_text("30\n"))
    assert looks(Trigger("file", FileSource(path), None)) == [f.LeaveSoon(30.0, f"{path} appeared")]


def test_a_file_of_long_ago_counts_only_once_it_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "preempted"
    path.touch()
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    trigger = Trigger("file", FileSource(path), 30.0)
    assert looks(trigger, 2) == []
    path.touch()
    assert looks(trigger) == [f.LeaveSoon(30.0, f"{path} appeared")]


def test_a_file_that_lies_there_since_just_before_the_daemon_counts(tmp_path: Path) -> None:
    path = tmp_path / "preempted"
    path.touch()
    assert looks(Trigger("file", FileSource(path), None)) == [f.LeaveSoon(None, f"{path} appeared")]


def test_a_file_that_told_of_another_pod_counts_only_once_it_is_written_anew(tmp_path: Path) -> None:
    """On a volume it is there when the next pod begins, a minute later; a daemon that comes back here hears it."""
    path = tmp_path / "preempted"
    path.touch()
    began = time.time() + 30.0
    trigger = Trigger("file", FileSource(path, lambda: began), 30.0)
    assert looks(trigger, 2) == []
    os.utime(path, (began + 5.0, began + 5.0))
    assert looks(trigger) == [f.LeaveSoon(30.0, f"{path} appeared")]
    assert looks(Trigger("file", FileSource(path, lambda: began), 30.0)) == [f.LeaveSoon(30.0, f"{path} appeared")]


def test_when_this_machine_or_container_began_is_known() -> None:
    began, ours = leaving.process_one_began(), leaving.process_one_began()
    assert began is not None and ours is not None and abs(began - ours) < 0.1
    assert began < time.time() - 1.0


def test_a_pipe_is_not_waited_for_and_a_path_through_a_file_is_told_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert looks(Trigger("file", FileSource(tmp_path / "pipe"), None))
    (tmp_path / "a-file").touch()
    trigger = Trigger("file", FileSource(tmp_path / "a-file" / "preempted"), None)
    told = looks(trigger, 3)
    assert len(failures(told)) == len(told) == 1, told
    assert "Not a directory" in failures(told)[0]


# ---------------------------------------------------------------- a page


def test_a_page_that_answers_two_hundred_at_last(notices: Notices) -> None:
    trigger = Trigger("url", partial(ask_page, notices.url, None, {}), None)
    assert looks(trigger, 2) == [], "404 is Amazon's way to say that all is well"
    at = datetime.fromtimestamp(time.time() + 100, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    notices.status, notices.text = 200, json.dumps({"action": "terminate", "time": at})
    (told,) = looks(trigger, 2)
    assert isinstance(told, f.LeaveSoon) and told.within_s is not None
    assert 90 < told.within_s <= 100 and told.why == "the page of leaving.url says so"


def test_a_page_whose_text_has_to_match_and_that_wants_a_header(notices: Notices) -> None:
    notices.status, notices.text = 200, "FALSE"
    trigger = Trigger("url", partial(ask_page, notices.url, "TRUE", {"Metadata-Flavor": "Google"}), 30.0)
    assert looks(trigger) == []
    notices.text = "TRUE"
    assert looks(trigger) == [f.LeaveSoon(30.0, "the page of leaving.url says so")]
    assert notices.asked[0]["Metadata-Flavor"] == "Google"


def test_a_page_that_is_down_is_told_once_and_again_when_it_is_back(notices: Notices) -> None:
    trigger = Trigger("url", partial(ask_page, notices.url, None, {}), None)
    notices.status = 500
    (told,) = failures(looks(trigger, 3))
    assert told == ("Cannot read the preemption notice (leaving.url): leaving.url answers with status 500. Will retry.")
    notices.status = 404
    (back,) = looks(trigger, 2)
    assert isinstance(back, f.Remark) and "can be read again" in back.sentence


def test_nobody_listens_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    told = looks(Trigger("url", partial(ask_page, f"http://127.0.0.1:{port}/secret-key", None, {}), None), 2)
    assert len(told) == 1 and "nothing listens there" in failures(told)[0]
    assert "secret-key" not in failures(told)[0]


def test_a_page_that_drips_is_given_up_in_time(notices: Notices) -> None:
    notices.status, notices.text, notices.delay_s = 200, "x" * 200, 0.1
    began = time.monotonic()
    with pytest.raises(http.NoAnswerError, match=r"no whole answer within 0\.5 s"):
        http.ask(notices.url, timeout_s=0.5)
    assert time.monotonic() - began < 3.0


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://a/b", "http://", "http://a:b/", "http://me:pw@a/", "http://a/b c", "http://a/\r\nX: y"]
)
def test_what_is_no_page_is_told_without_its_address(url: str) -> None:
    assert http.problem_of(url)
    assert "pw" not in http.problem_of(url)


# ---------------------------------------------------------------- a command


def command(*words: str, environ: dict[str, str] | None = None) -> Trigger:
    return Trigger("command", partial(ask_command, words, environ or {"PATH": os.defpath}), None)


def test_a_command_that_ends_with_zero_says_that_the_pod_goes(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    trigger = command("sh", "-c", f"test -e {flag} && echo 20")
    assert looks(trigger, 2) == []
    flag.touch()
    assert looks(trigger, 2) == [f.LeaveSoon(20.0, "sh says so")]


def test_a_command_that_leaves_a_child_behind_counts_when_it_ends_itself(tmp_path: Path) -> None:
    trigger = command("/bin/sh", "-c", f"sleep 30 & echo $! > {tmp_path / 'child'}; echo 25")
    began = time.monotonic()
    assert looks(trigger) == [f.LeaveSoon(25.0, "/bin/sh says so")]
    assert time.monotonic() - began < 5.0, "the child holds its output for half a minute"
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_a_command_that_prints_without_end_is_heard_all_the_same() -> None:
    printing = command("/bin/sh", "-c", "echo 25; head -c 3000000 /dev/zero")
    assert looks(printing) == [f.LeaveSoon(None, "/bin/sh says so")]


def test_a_command_is_given_no_key_of_the_store_and_no_address_of_the_heartbeat() -> None:
    ours = {"B2_APPLICATION_KEY": "k", "AWS_SESSION_TOKEN": "t", "RL_HEARTBEAT_URL": "u", "NOTIFY_SOCKET": "@n"}
    assert environment_of_commands({**ours, "PATH": "/bin", "RUNPOD_API_KEY": "r"}) == {
        "PATH": "/bin",
        "RUNPOD_API_KEY": "r",
    }


def test_a_command_that_is_missing_or_cannot_be_run_is_told_once() -> None:
    told = looks(command("/nowhere/at-all"), 3)
    assert len(told) == 1 and "/nowhere/at-all cannot be run: No such file" in failures(told)[0]
    assert "exit code 127" in failures(looks(command("sh", "-c", "exit 127"), 3))[0]


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "COMMAND_TIMEOUT_S", 0.5)
    child = f"import os, subprocess, time; p = subprocess.Popen(['sleep', '60']); open({str(tmp_path / 'pid')!r}, 'w')"
    told = looks(command(sys.executable, "-c", f"{child}.write(str(p.pid)); time.sleep(60)"))
    if (tmp_path / "pid").exists() and (pid := (tmp_path / "pid").read_text()):
        deadline = time.monotonic() + 5
        while _alive(int(pid)):
            assert time.monotonic() < deadline, "its child lives on"
            time.sleep(0.02)
    assert "did not end within" in failures(told)[0]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------- how far the publish is


def test_how_far_the_publish_is_is_told_when_it_moved() -> None:
    at = [f.PublishMoves(10, "sending", 1, 100, 0.0)]
    sensor = PublishSensor(lambda: at[0])
    assert sensor.look() == at and not sensor.look()
    at[0] = f.PublishMoves(10, "sending", 50, 100, 7.0)
    assert sensor.look() == at
