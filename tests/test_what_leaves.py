"""What a job prints goes a long way: each door on it holds secrets and orders to the terminal back."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.api import log_window
from supervisor.cli import main as program
from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.state import State
from supervisor.jobs.base import LogSource
from supervisor.journal.journal import Journal
from supervisor.primerl.logs import SHOWN, parse_line
from supervisor.sensors.logs import LogSensor
from supervisor.sensors.processes import read_title
from tests.canaries import CORE, ESCAPES, LINES, found_in, leaks

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def journal_of_an_older_version(folder: Path) -> Path:
    """It keeps what the job printed as it was: until now nothing was masked on its way into the core."""
    journal, state = Journal(folder), State()
    facts: list[f.Fact] = [
        f.DaemonStarted("2.0", f.Settings("canaries"), "boot", None),
        f.AttemptStarted(1, None, 4711, f"rl --api-key {CORE['option']}{ESCAPES}"),
        *(f.ErrorSeen("trainer", "cuda-oom", f"{OOM}: {text}{ESCAPES}", sentence=text) for text in LINES.values()),
        *(f.Remark("setup", f"{text}{ESCAPES}") for name, text in LINES.items() if name != "value"),
        f.ComponentExited(1, "rl", 1),
    ]
    for number, fact in enumerate(facts):
        seen = f.Observation(float(number), 1e9 + number, fact, "test")
        decision = decide(state, seen)
        journal.record(seen, state, decision.state, decision.actions)
        state = decision.state
    journal.close()
    return journal.path


@pytest.mark.soak
@pytest.mark.parametrize("words", [[], ["--json"], ["--all"], ["--all", "--json"]])
def test_replay_of_an_older_journal_prints_no_secret_and_no_escape(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_VENDOR_SECRET", CORE["value"])
    path = journal_of_an_older_version(tmp_path)
    assert leaks(tmp_path), "it does hold them"
    assert program.main(["replay", str(path), *words]) == 0
    told = capsys.readouterr()
    assert found_in(told.out + told.err) == set()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", told.out + told.err)
    assert "***" in told.out, "and says all the rest"


@pytest.mark.parametrize("name", ["", "t.jsonl", "t.jsonl.gz"])
def test_a_trace_of_an_older_journal_holds_no_secret(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_VENDOR_SECRET", CORE["value"])
    path = journal_of_an_older_version(tmp_path / "state")
    out = tmp_path / "out"
    out.mkdir()
    assert program.main(["trace", str(path), *(["-o", str(out / name)] if name else [])]) == 0
    told = capsys.readouterr().out
    assert found_in(told) == set()
    assert leaks(out) == {}
    if not name:
        (out / "printed.jsonl").write_text(told)
    for trace in out.iterdir():
        assert program.main(["replay", str(trace)]) == 0, "it is a trace still, and leads to the same decisions"


def test_a_secret_at_the_place_where_a_fact_cuts_its_line_leaves_no_half_of_itself(tmp_path: Path) -> None:
    class Job:
        parse_line = staticmethod(parse_line)

    log = tmp_path / "trainer.log"
    sensor = LogSensor([LogSource("trainer", str(log))], Job())  # type: ignore[arg-type]
    secret = CORE["address"]
    for before in range(SHOWN - len(secret) - 30, SHOWN):
        text = f"{OOM} {'x' * (before - len(OOM) - 2)} https://bob:{secret}@host/x"
        with log.open("a") as file:
            file.write(f"12:00:00   ERROR {text}\n")
    facts = [fact for _ in range(20) for fact in sensor.look()]
    found = [fact.text for fact in facts if isinstance(fact, f.ErrorSeen)]
    sensor.close()
    assert found, "the lines say something"
    assert not [text for text in found if secret[:4] in text]


def test_the_title_of_a_process_is_masked_before_it_is_cut() -> None:
    words = ["x" * 150, f"--url=https://bob:{CORE['argument']}@host", f"token={CORE['value']}", f"\x1b[2J{ESCAPES}"]
    with subprocess.Popen([sys.executable, "-c", "input()", *words], stdin=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 20
            while not (title := read_title(process.pid)).count("x" * 150):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()
    assert found_in(title) == set()
    assert title.isprintable()
    assert "--url=https://***@host" in title


def test_half_a_line_that_is_just_being_written_comes_whole_with_the_next_piece(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("Step 1\nhttps://bob:secr")
    first = log_window.last_lines(log, 10)
    assert first.text == "Step 1\n"
    with log.open("a") as file:
        file.write("et@host\n")
    assert log_window.next_piece(log, first.offset, first.inode).text == "https://bob:secret@host\n"


def test_the_last_words_of_somebody_who_is_gone_are_shown_without_an_end(tmp_path: Path) -> None:
    import os

    log = tmp_path / "a.log"
    log.write_text("Step 1\nKilled")
    os.utime(log, (time.time() - 60,) * 2)
    assert log_window.last_lines(log, 1).text == "Killed"


@pytest.mark.soak
@pytest.mark.parametrize(
    "text",
    [
        (
            '[run]\nid = "a"\n[job]\ndir = "\\u001b[2J\\u009b2J\\u202e"\nargs = ["--hub-token", "SECRET"]\n'
            '[store]\nurl = "SECRET"\n'
        ),
        '[run]\nid = "a"\n[job.env]\nHF_TOKEN = "SECRET"\n',
        '[run]\nid = "a"\n[store]\nurl = "https://bob:SECRET@host/\\u001b[2J"\n',
        '[run]\nid = "a"\npassword = "SECRET\n',
        '[run]\nid = "a"\n"\\u001b[2J" = "https://bob:SECRET@host/x"\n',
    ],
)
def test_a_run_file_that_cannot_be_used_is_told_without_its_secrets_and_escapes(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_SECRET", CORE["toml"])
    path = tmp_path / "run.toml"
    path.write_text(text.replace("SECRET", CORE["toml"]))
    for words in (["check"], ["check", "--json"], ["check", "--fix"], ["report"], ["trace"]):
        program.main([words[0], str(path), *words[1:]])
        told = capsys.readouterr()
        assert told.out + told.err
        assert found_in(told.out + told.err) == set()
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", told.out + told.err)
