"""Where sentences go, and that nothing that happens there reaches the one who speaks."""

from __future__ import annotations

import gzip
import json
import logging
import os
import pty
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from supervisor.base import logs
from supervisor.base.log_outlets import RotatedFile, StreamOutlet, journal_datagram, json_line
from tests.people.desk import until

SPEAK = """
import os, sys
from pathlib import Path
from supervisor.base import logs
logs.configure(sys.argv[1], "info", Path(sys.argv[2]) if sys.argv[2] else None, "bs4", journal_socket=Path(sys.argv[3]))
logs.say("info", "step", "step 80 of 1000, 212 s, reward 0.41", step=80, attempt=2)
logs.say("error", "verdict", "vLLM is dead:\\nits process is gone.", incident=3)
logs.say("debug", "tick", "nobody wants to know")
print("done")
"""


def speak(form: str, file: str = "", journal: str = "/nowhere", **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", SPEAK, form, file, journal], text=True, timeout=30, check=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
    )  # fmt: skip


def test_json_lines_where_nobody_looks() -> None:
    lines = [json.loads(line) for line in speak("auto").stderr.splitlines()]
    assert [line["sentence"] for line in lines] == [
        "step 80 of 1000, 212 s, reward 0.41",
        "vLLM is dead:\nits process is gone.",
    ]
    assert {name: lines[0][name] for name in ("level", "run", "event", "step", "attempt")} == {
        "level": "info",
        "run": "bs4",
        "event": "step",
        "step": 80,
        "attempt": 2,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", lines[0]["time"])


def test_a_terminal_gets_text_with_colour_and_without_when_asked() -> None:
    for no_color in ("", "1"):
        master, slave = pty.openpty()
        speak("auto", stderr=slave, env={**os.environ, "NO_COLOR": no_color})
        os.close(slave)
        text = os.read(master, 10_000).decode().replace("\r\n", "\n")
        os.close(master)
        first, second = text.rstrip("\n").split("\n", 1)
        assert re.fullmatch(r"\d\d:\d\d:\d\d  step 80 of 1000, 212 s, reward 0\.41", first)
        assert "ERROR  vLLM is dead:" in second
        assert ("\x1b[31m" in second) is (no_color == "")


def test_journald_gets_its_own_protocol_when_stderr_is_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal, (tmp_path / "stderr").open("w+") as stderr:
        journal.bind(str(path))
        journal.settimeout(10)
        found = os.fstat(stderr.fileno())
        env = {**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        speak("auto", journal=str(path), stderr=stderr, env=env)
        first, second = journal.recv(65536), journal.recv(65536)
        stderr.seek(0)
        assert stderr.read() == ""
    lines = set(first.decode().splitlines())
    assert lines >= {
        "MESSAGE=step 80 of 1000, 212 s, reward 0.41",
        "PRIORITY=6",
        "SYSLOG_IDENTIFIER=rl-supervisor",
        "RL_RUN=bs4",
        "RL_EVENT=step",
        "RL_STEP=80",
        "RL_ATTEMPT=2",
    }
    # A value with a newline travels with its length in front (systemd's native journal protocol).
    text = b"vLLM is dead:\nits process is gone."
    assert b"MESSAGE\n" + len(text).to_bytes(8, "little") + text + b"\n" in second
    assert b"PRIORITY=3\n" in second
    assert b"RL_INCIDENT=3\n" in second


def test_without_journald_stderr_gets_the_sentence_with_its_priority() -> None:
    assert speak("journal").stderr == "<6>step 80 of 1000, 212 s, reward 0.41\n<3>vLLM is dead: its process is gone.\n"


def test_a_record_too_large_for_a_datagram_goes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(path))
        logs.configure("journal", journal_socket=path)
        text = "x" * 1_000_000
        thread = threading.Thread(target=logs.say, args=("info", "evidence", text))
        thread.start()
        thread.join(10)
    assert capfd.readouterr().err == f"<6>{text}\n"


def test_field_names_are_ones_that_journald_takes() -> None:
    data = journal_datagram({"event": "e", "sentence": "s", "level": "info", "grö-e in-byte": 3, "none": None})
    names = [line.split(b"=")[0].decode() for line in data.splitlines()]
    assert names == ["MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "RL_EVENT", "RL_GR__E_IN_BYTE"]
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", name) for name in names)


def test_secrets_are_masked_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse-battery")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "somewhere")
    file = tmp_path / "log.json"
    logs.configure("json", file=file)
    logs.say("info", "x", "it is correct-horse-battery, somewhere", deep={"list": ["correct-horse-battery!"]})
    logs.say("info", "x", "key K004abcdefghijklmnopqrstuvwxyz1 of 004a1b2c3d4e5f60000000001", path=tmp_path)
    text = file.read_text()
    assert '"it is ***, somewhere"' in text
    assert '"deep": {"list": ["***!"]}' in text
    assert '"key *** of ***"' in text


def test_a_closed_stderr_and_a_full_disk_are_nobodys_error() -> None:
    assert speak("json", file="/dev/full", preexec_fn=lambda: os.close(2)).stdout == "done\n"


def test_a_pipe_that_nobody_reads_costs_a_second_once_and_lines_that_are_counted(
    capfd: pytest.CaptureFixture[str],
) -> None:
    reader, writer = os.pipe()
    outlet = StreamOutlet(json_line, writer)
    record = {"level": "info", "event": "x", "sentence": "y" * 1000}
    began = time.monotonic()
    for _ in range(300):
        outlet.write(record)
    assert 0.5 < time.monotonic() - began < 5
    got: list[bytes] = []

    def drain() -> None:
        with os.fdopen(reader, "rb") as file:
            got.extend(file)

    thread = threading.Thread(target=drain)
    thread.start()
    until(lambda: len(got) > 20)
    until(lambda: outlet.write({**record, "sentence": "back"}) or not outlet._lost)
    outlet.write({**record, "sentence": "end"})
    os.close(writer)
    thread.join()
    sentences = []
    for line in got:
        try:
            sentences.append(str(json.loads(line)["sentence"]))
        except ValueError:
            pass  # the one line that was cut off in the middle
    assert len(got) - len(sentences) <= 1
    [lost] = [int(s.split()[0]) for s in sentences if s.endswith("log lines were lost: nothing could be written here.")]
    assert lost + sentences.count("y" * 1000) in (300, 299 + sentences.count("back"), 300 + sentences.count("back"))
    assert sentences[-1] == "end"


def lines(path: Path) -> list[int]:
    """The numbers that were written to a file of the log, compressed or not."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [int(json.loads(line)["sentence"]) for line in data.decode().splitlines()]


def number(value: int) -> dict[str, object]:
    return {"level": "info", "event": "x", "sentence": f"{value:050d}"}


def test_the_file_is_rotated_and_five_old_ones_are_kept_most_of_them_compressed(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    outlet = RotatedFile(folder / "log.json", limit_bytes=1000, keep=5)
    for value in range(100):
        outlet.write(number(value))
        until(lambda: outlet._packer is None or not outlet._packer.is_alive())
    outlet.close()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["log.json", "log.json.1", *(f"log.json.{number}.gz" for number in range(2, 6))]
    found = [value for name in [*reversed(names[1:]), names[0]] for value in lines(folder / name)]
    assert found == list(range(found[0], 100))
    assert all(path.stat().st_size <= 1000 for path in folder.iterdir())


def test_a_rotation_never_waits_for_the_compression_and_loses_no_line(tmp_path: Path) -> None:
    outlet = RotatedFile(tmp_path / "log.json", limit_bytes=2000, keep=50)
    for value in range(400):
        outlet.write(number(value))
    outlet.close()
    until(lambda: outlet._packer is None or not outlet._packer.is_alive())
    age = {path: int(re.sub(r"\D", "", path.name) or 0) for path in tmp_path.iterdir()}
    found = [value for path in sorted(age, key=lambda path: -age[path]) for value in lines(path)]
    assert found == list(range(400))


def test_no_old_one_is_kept_where_that_is_wanted(tmp_path: Path) -> None:
    outlet = RotatedFile(tmp_path / "log.json", limit_bytes=1000, keep=0)
    for value in range(100):
        outlet.write(number(value))
    outlet.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log.json"]
    assert lines(tmp_path / "log.json")[-1] == 99


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_file_that_somebody_deletes_or_moves_is_made_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log.json"
    outlet = RotatedFile(path)
    outlet.write(number(1))
    path.unlink() if how == "deleted" else path.rename(tmp_path / "aside")
    outlet.write(number(2))
    outlet.close()
    assert lines(path) == [2]


def test_what_is_no_plain_file_is_written_to_and_never_moved(tmp_path: Path) -> None:
    """/dev/null is how a person says that no file is wanted."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    outlet = RotatedFile(path, limit_bytes=100, keep=2)
    for value in range(10):
        outlet.write(number(value))
    outlet.close()
    assert len(os.read(reader, 65536).splitlines()) == 10
    os.close(reader)
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


FULL = """
import sys
from pathlib import Path
from supervisor.base.log_outlets import RotatedFile
disk = Path(sys.argv[1])
outlet = RotatedFile(disk / "log.json", limit_bytes=20_000, keep=3)
line = {"level": "info", "event": "x", "sentence": "y" * 100}
outlet.write(line)
filler = disk / "filler"
try:
    with filler.open("wb") as file:
        while True:
            file.write(b"x" * 4096); file.flush()
except OSError:
    pass
for _ in range(500):
    outlet.write(line)
filler.unlink()
for _ in range(450):
    outlet.write({**line, "sentence": "back"})
print((disk / "log.json.1").read_text() + (disk / "log.json").read_text())
"""


def test_a_disk_that_is_full_for_a_while_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(FULL)
    disk = tmp_path / "disk"
    disk.mkdir()
    command = f'mount -t tmpfs -o size=128k none {disk} || exit 77; exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", command, "sh", sys.executable, str(script), str(disk)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode in (1, 77) and "Traceback" not in done.stderr:
        pytest.skip(f"needs a small disk of its own: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    sentences = [json.loads(line)["sentence"] for line in done.stdout.splitlines() if line.endswith("}")]
    assert [
        text for text in sentences if re.fullmatch(r"\d+ log lines were lost: nothing could be written here\.", text)
    ]
    assert sentences.count("back") > 50


def test_a_file_that_can_be_written_again_says_how_much_is_missing(tmp_path: Path) -> None:
    blocked = tmp_path / "deep"
    blocked.write_text("in the way")
    outlet = RotatedFile(blocked / "log.json")
    outlet.write({"level": "info", "event": "x", "sentence": "one"})
    outlet.write({"level": "info", "event": "x", "sentence": "two"})
    blocked.unlink()
    outlet.write({"level": "info", "event": "x", "sentence": "three"})
    outlet.close()
    sentences = [json.loads(line)["sentence"] for line in (blocked / "log.json").read_text().splitlines()]
    assert sentences == ["2 log lines were lost: nothing could be written here.", "three"]


def test_libraries_speak_through_the_same_outlet_and_only_when_it_matters(tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    logs.configure("json", file=file)
    logging.getLogger("apscheduler.scheduler").info("Added job")
    logging.getLogger("apscheduler.scheduler").warning("Run time of job was missed by %s", 3)
    logging.getLogger("watchdog").error("bad %d", "text")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["level"], line["sentence"]) for line in lines] == [
        ("warning", "apscheduler.scheduler: Run time of job was missed by 3"),
        ("error", "watchdog: bad %d"),
    ]


def test_a_field_may_have_any_name_and_any_value(tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    logs.configure("json", file=file)
    logs.say("loud", "x", "100 % {done}", event="e", level="l", time=1, sentence="s", run="r", obj=object())
    record = json.loads(file.read_text())
    assert (record["sentence"], record["level"]) == ("100 % {done}", "info")
    assert (record["event_"], record["level_"], record["time_"], record["sentence_"]) == ("e", "l", 1, "s")


def test_rich_and_greenlet_are_not_loaded_where_the_environment_has_them_and_can_be_later(tmp_path: Path) -> None:
    for name in ("rich", "greenlet"):
        (tmp_path / f"{name}.py").write_text("def __getattr__(name): raise SystemExit('loaded')\n")
    code = "import supervisor.base.logs, sys; assert not {'rich', 'greenlet'} & set(sys.modules); import rich, greenlet"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    assert subprocess.run([sys.executable, "-c", code], env=environ).returncode == 0
