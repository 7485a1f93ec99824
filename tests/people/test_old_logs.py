"""`supervisorctl tail` of earlier attempts, and where the daemon is gone: the real command on a state folder."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from supervisor.base.errors import UsageError
from supervisor.cli import ctl as supervisorctl
from supervisor.cli import state_folder, which
from supervisor.effects.kept_logs import begin, keep_earlier
from supervisor.jobs.base import LogSource
from supervisor.journal.attempt_folders import folder_of
from tests.people.in_process import call, read_here


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two attempts: of the first the captured log is compressed and the trainer's kept; the second is present."""
    state = tmp_path / "xdg" / "rl-supervisor" / "my-run"
    job = tmp_path / "job"
    job.mkdir()
    for attempt in (1, 2):
        keep_earlier(state, attempt)
        folder = folder_of(state, attempt)
        trainer = LogSource("trainer", str(job / "trainer.log"), fate="overwritten")
        begin(folder, [LogSource("launcher", str(folder / "rl.log")), trainer])
        (folder / "rl.log").write_text("".join(f"launcher {attempt} line {number}\n" for number in range(100)))
        (job / "trainer.log").write_text(f"trainer of {attempt}\n")
    plain = folder_of(state, 1) / "rl.log"
    plain.with_name("rl.log.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return state


def ctl(state: Path, *words: str, child: bool = False) -> subprocess.CompletedProcess[str]:
    """The command, in this process; also what it asks a child, unless that is the test."""
    environ = {
        "RL_SUPERVISOR_SOCKET_DIR": str(state.parents[2] / "no-sockets"),
        "RL_SUPERVISOR_ETC": str(state.parents[2] / "no-run-files"),
        "XDG_STATE_HOME": str(state.parents[1]),
    }
    with pytest.MonkeyPatch.context() as patch:
        if not child:
            patch.setattr(state_folder, "ask_child", read_here)
        return call(supervisorctl.main, words, environ)


def test_an_earlier_attempts_log_is_found_by_role_compressed_or_not(state: Path) -> None:
    real = ctl(state, "tail", "launcher", "--attempt", "1", "-n", "2", child=True)
    assert real.stdout == "launcher 1 line 98\nlauncher 1 line 99\n"
    assert len(ctl(state, "tail", "launcher", "--attempt", "1").stdout.splitlines()) == 20
    assert ctl(state, "tail", "trainer", "--attempt", "1").stdout == "trainer of 1\n"
    assert ctl(state, "tail", "my-run", "trainer", "--attempt", "2").stdout == "trainer of 2\n"
    assert ctl(state, "tail", "trainer", "--attempt", "1", "--state-dir", str(state)).stdout == "trainer of 1\n"
    told = json.loads(ctl(state, "tail", "trainer", "--attempt", "1", "--json").stdout)
    assert (told["role"], told["attempt"], told["text"]) == ("trainer", 1, "trainer of 1\n")


def test_without_a_daemon_a_role_is_that_of_the_newest_attempt(state: Path) -> None:
    assert ctl(state, "tail", "trainer").stdout == "trainer of 2\n"
    assert ctl(state, "tail", "my-run", "launcher", "-n", "1").stdout == "launcher 2 line 99\n"
    assert "No daemon" in ctl(state, "tail", "-f", "trainer").stderr, "there is nothing to wait for"


def test_without_a_role_it_lists_what_there_is(state: Path) -> None:
    for words in (("tail",), ("tail", "my-run"), ("tail", "--state-dir", str(state))):
        head, *rows = ctl(state, *words).stdout.splitlines()
        assert head.split()[:2] == ["attempt", "role"]
        assert [tuple(row.split()[:2]) for row in rows] == [
            *(("1", "launcher"), ("1", "trainer")),
            *(("2", "launcher"), ("2", "trainer")),
        ]
    one = ctl(state, "tail", "--attempt", "1").stdout
    assert "compressed" in one
    assert str(folder_of(state, 1) / "rl.log.gz") in one
    found = json.loads(ctl(state, "tail", "--json").stdout)
    assert {(log["attempt"], log["role"], log["state"]) for log in found} == {
        (1, "launcher", "compressed"),
        (1, "trainer", "plain"),
        (2, "launcher", "plain"),
        (2, "trainer", "in the job's folder"),
    }


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        (
            ("tail", "engine", "--attempt", "1"),
            "There is no log of 'engine' of attempt 1; there are launcher, trainer.",
            1,
        ),
        (("tail", "trainer", "--attempt", "9"), "There is no attempt 9 in ", 1),
        (("tail", "trainer", "--attempt", "1", "-f"), "does not grow", 2),
        (("tail", "trainer", "--attempt", "one"), "an attempt is a whole number", 2),
        (("tail", "trainer", "--state-dir", "/nowhere"), "/nowhere says nothing: it holds no attempts.", 1),
        (("tail", "other", "trainer", "--attempt", "1"), "There is no run named other on this machine; there are ", 2),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(state: Path, words: tuple[str, ...], sentence: str, code: int) -> None:
    done = ctl(state, *words)
    assert sentence in done.stderr, done
    assert (done.returncode, done.stdout) == (code, "")


def test_several_runs_have_to_be_named_and_run_files_say_where_a_run_keeps_its_state(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_SUPERVISOR_ETC", str(tmp_path / "etc"))
    monkeypatch.setenv("RL_SUPERVISOR_SOCKET_DIR", str(tmp_path / "no-sockets"))
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parents[1]))
    assert which.find_run(None).folder() == state
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "attempts").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "a.toml").write_text(f'[run]\nid = "second"\nstate_dir = "{elsewhere}"\n')
    (tmp_path / "etc" / "b.toml").write_text("[run\n")
    (tmp_path / "etc" / "c.toml").write_text("run = 7\n")
    assert which.find_run("second").folder() == elsewhere
    with pytest.raises(UsageError, match=r"There are 2 runs on this machine, name one: my-run, second\."):
        which.find_run(None)


def test_logs_that_were_deleted_are_said_to_be(state: Path) -> None:
    for path in folder_of(state, 1).rglob("*.gz"):
        path.unlink()
    for path in (folder_of(state, 1) / "kept").iterdir():
        path.unlink()
    told = ctl(state, "tail", "trainer", "--attempt", "1").stderr
    assert "it has none, or they were deleted (`logs.max_mb`)" in told


def test_a_damaged_compressed_log_is_read_up_to_the_damage(state: Path) -> None:
    packed = folder_of(state, 1) / "rl.log.gz"
    text = "".join(f"{os.urandom(20).hex()} {number}\n" for number in range(20_000))
    whole = gzip.compress(text.encode())
    packed.write_bytes(whole[: len(whole) // 2])
    done = ctl(state, "tail", "launcher", "--attempt", "1", "-n", "2")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] in text.splitlines()
    packed.write_bytes(b"no gzip at all")
    assert (ctl(state, "tail", "launcher", "--attempt", "1").returncode) == 0
