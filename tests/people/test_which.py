"""Which run is meant: the ways of naming one, and users who have no home, somebody else's, or one they cannot write."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest

from supervisor.api.client import NotThereError, UnclearError
from supervisor.api.protocol import Api
from supervisor.base import homes, proc_stat
from supervisor.base.errors import UsageError
from supervisor.cli import ctl, live, main, state_folder, which
from supervisor.config import run_place
from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.state import State
from supervisor.journal.journal import Journal
from supervisor.process import attached
from supervisor.views import incidents
from tests.evidence.rig import journal_with_an_incident
from tests.people.desk import FakeDesk
from tests.people.in_process import read_here

Serve = Callable[..., Api]
STRANGER = 54321
PLAIN = '[run]\nid = "{id}"\n{run}\n[job]\nkind = "command"\n[job.plain]\nstart = ["true"]\nresume = ["true"]\n{more}'


def run_file(path: Path, name: str, run: str = "", more: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PLAIN.format(id=name, run=run, more=more))
    return path


def left_by(state_dir: Path, file: Path) -> None:
    """The journal of a daemon that was started with ``file``."""
    began = f.Observation(
        1.0, 1.0, f.DaemonStarted("0.1.0", f.Settings("gamma", run_file=shlex.quote(str(file)))), "daemon"
    )
    state_dir.mkdir(parents=True)
    journal = Journal(state_dir)
    journal.record(began, State(), decide(State(), began).state, ())
    journal.close()


def typed(capsys: pytest.CaptureFixture[str], *words: str, program: Callable[..., int] = ctl.main) -> tuple[int, str]:
    try:
        code = program(list(words))
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out + err


# ---------------------------------------------------------------- other users


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody may enter; /var/tmp and /var/lib are folders in it."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("var", "lib"):
            (folder / part).mkdir()
        (folder / "var").chmod(0o1777)
        monkeypatch.setattr(homes, "VAR_TMP", folder / "var")
        monkeypatch.setattr(homes, "SYSTEM_STATE", folder / "lib/rl-supervisor")
        yield folder


def as_stranger(folder: Path, env: dict[str, str], *words: str) -> tuple[int, str]:
    """``supervisorctl WORDS`` as a user whom no password file knows: (exit code, all that it said)."""
    for name in ("cli.old_logs", "config.settings", "views.incidents", "views.without_daemon"):
        import_module(f"supervisor.{name}")  # what read_state imports: a stranger may not enter this program's folder
    said = folder / "said"
    fd = os.open(said, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            os.environ.clear()
            os.environ.update({"RL_SUPERVISOR_SOCKET_DIR": str(folder / "sockets"), **env})
            os.chdir("/")
            sys.stdout = sys.stderr = os.fdopen(fd, "w", buffering=1)
            state_folder.ask_child = read_here  # a user who may not read this environment could not start a child
            try:
                code = ctl.main(list(words))
            except SystemExit as ended:
                code = int(ended.code or 0)
            sys.stdout.flush()
        except BaseException as error:  # a child must not go on with the parent's tests
            os.write(fd, repr(error).encode())
            code = 99
        os._exit(code)
    os.close(fd)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.read_text()


def left_a_run(folder: Path, owner: int) -> Path:
    """A state folder with an incident and a log."""
    journal_with_an_incident(folder)
    (folder / "attempts/0001").mkdir(parents=True, exist_ok=True)
    (folder / "attempts/0001/rl.log").write_text("the end\n")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner, owner)
    incidents.read_incidents(folder)  # loads late what a user who may not read this environment could not load
    return folder


def both_tell(folder: Path, env: dict[str, str], *name: str) -> None:
    code, said = as_stranger(folder, env, "incidents", *name)
    assert (code, "cuda-oom" in said) == (0, True), said
    assert as_stranger(folder, env, "tail", *name, "launcher") == (0, "the end\n")


def test_a_user_without_a_home_finds_what_his_run_left(ground: Path) -> None:
    state = left_a_run(ground / f"var/rl-supervisor-{STRANGER}/rl-supervisor/mine", STRANGER)
    for parent in (state.parent, state.parent.parent):
        os.chown(parent, STRANGER, STRANGER)
    both_tell(ground, {})
    code, said = as_stranger(ground, {}, "status", "mine")
    assert (code, "mine  NOT RUNNING  No daemon since " in said) == (3, True), said


def test_a_home_that_cannot_be_written_hides_nothing(ground: Path) -> None:
    (ground / "home").mkdir(mode=0o555)
    state = left_a_run(ground / f"var/rl-supervisor-{STRANGER}/rl-supervisor/mine", STRANGER)
    for parent in (state.parent, state.parent.parent):
        os.chown(parent, STRANGER, STRANGER)
    env = {"HOME": str(ground / "home")}
    both_tell(ground, env, "mine")
    assert as_stranger(ground, env, "status", "mine")[0] == 3


@pytest.mark.soak
def test_in_the_home_of_another_user_it_says_what_may_not_be_looked_at(ground: Path) -> None:
    """As `sudo -u` and a container's USER leave HOME."""
    left_a_run(ground / "home/.local/state/rl-supervisor/roots", 0)
    left_a_run(ground / "lib/rl-supervisor/machines", 0)
    (ground / "home/.local/state/rl-supervisor").chmod(0o700)
    (ground / "lib/rl-supervisor").chmod(0o700)
    env = {"HOME": str(ground / "home")}
    for words in (("tail", "mine", "launcher"), ("tail",), ("incidents",), ("incidents", "mine"), ("status",)):
        code, said = as_stranger(ground, env, *words)
        assert code in (1, 2, 3), said
        assert said.count("You may not look into") == 1, (words, said)
        assert f"{ground}/home/.local/state/rl-supervisor: try sudo." in said, (words, said)
        assert f"{ground}/lib/rl-supervisor" in said, (words, said)
    (ground / "home").chmod(0o700)
    code, said = as_stranger(ground, env, "tail", "mine", "launcher")
    assert (code, "PermissionError" in said) == (2, False), said
    shut = str(ground / "home/.local/state/rl-supervisor/roots")
    assert as_stranger(ground, env, "tail", "--state-dir", shut) == (
        1,
        f"{shut} says nothing: you may not read it. Try sudo.\n",
    )


@pytest.mark.soak
def test_a_run_file_in_the_users_own_folder_tells_where_its_state_is(ground: Path) -> None:
    state = left_a_run(ground / "data/far", STRANGER)
    file = run_file(ground / "config/rl-supervisor/any.toml", "far", f'state_dir = "{state}"')
    assert which.of_file(file).state_dir == state
    both_tell(ground, {"XDG_CONFIG_HOME": str(ground / "config")}, "far")
    both_tell(ground, {"RL_SUPERVISOR_ETC": str(ground / "config/rl-supervisor")}, "far")
    both_tell(ground, {}, str(file))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # as some editors save it
    assert getattr(run_place.read_place(file), "id", None) == "far"


# ---------------------------------------------------------------- by its id


def test_a_run_is_called_by_its_id_and_never_by_its_sockets_name(
    serve: Serve, sockets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = FakeDesk("practice")
    serve(desk)
    (sockets / "practice.sock").rename(sockets / "s")
    path = str(sockets / "s")
    assert typed(capsys, "--socket", path, "pause") == (0, "practice: The order to pause is taken.\n")
    assert json.loads(typed(capsys, "--socket", path, "pin", "400", "--json")[1])["run"] == "practice"
    assert typed(capsys, "--socket", path, "version")[1].splitlines()[1] == "practice 0.1.0"
    file = run_file(sockets / "any.toml", "practice", more=f'[api]\nsocket = "{path}"')
    assert typed(capsys, "stop", str(file)) == (0, "practice: The order to stop is taken.\n")
    desk.refuses = "This daemon cannot be upgraded now."
    for program, words in ((ctl.main, ("upgrade", str(file))), (main.main, ("upgrade", str(file)))):
        assert typed(capsys, *words, program=program) == (1, "practice: This daemon cannot be upgraded now.\n")
    (sockets / "s").rename(sockets / "mine.sock")
    assert typed(capsys, "resume", "practice") == (1, "practice: This daemon cannot be upgraded now.\n")
    assert "There is no run named mine on this machine; there are practice." in typed(capsys, "resume", "mine")[1]


def test_the_run_files_of_the_machine_name_sockets_that_lie_elsewhere(
    serve: Serve, sockets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(FakeDesk("far"))
    (sockets / "far.sock").rename(sockets / "elsewhere")
    run_file(sockets / "etc/odd-name.toml", "far", more=f'[api]\nsocket = "{sockets}/elsewhere"')
    assert typed(capsys, "status", "--json")[1].startswith('[\n  {\n    "run": "far"')
    assert typed(capsys, "pause", "far") == (0, "far: The order to pause is taken.\n")


def test_a_daemon_that_is_gone_is_started_as_its_run_file_is_called(
    sockets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The instance is the run file's name, which need not be run.id; one that lies elsewhere is no instance at all."""
    monkeypatch.setattr(homes, "SYSTEM_CONFIG", sockets / "etc")
    monkeypatch.setattr(which, "BOOTED", sockets)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(sockets / "s"))
    file = run_file(sockets / "etc/gpu-box.toml", "practice", more=f'[api]\nsocket = "{sockets}/s"')
    for words in (("status", "practice"), ("--socket", str(sockets / "s"), "stop"), ("explain", str(file))):
        code, said = typed(capsys, *words)
        assert code in (1, 3)
        assert (
            f"No daemon answers for practice ({sockets}/s). Start it with `systemctl start rl-supervisor@gpu-box`."
            in said
        )
    other = run_file(sockets / "home/w.toml", "w", f'state_dir = "{sockets}/w"')
    assert which.of_file(other).how_to_start() == f"Start it with `rl-supervisor run {other}`."
    monkeypatch.setenv("XDG_CONFIG_HOME", str(sockets / "config"))
    own = run_file(sockets / "config/rl-supervisor/mine.toml", "own")
    assert "`systemctl --user start rl-supervisor@mine`" in which.of_file(own).how_to_start()
    nobody = typed(capsys, "--socket", str(sockets / "none"), "stop")
    assert nobody[1].startswith(
        f"No daemon answers at {sockets}/none. Start it with `systemctl start rl-supervisor@NAME`"
    )
    monkeypatch.setattr(which, "BOOTED", sockets / "nothing")
    container = f"Start it with `bash {which.ONSTART} gpu-box`."
    assert which.ONSTART.is_file(), "a container without systemd has the script that came with the program"
    assert container in typed(capsys, "status", "practice")[1]
    assert which.of_file(other).how_to_start() == f"Start it with `rl-supervisor run {other}`."
    (sockets / "rl-supervisor-onstart").write_text("#!/bin/sh\n")
    (sockets / "rl-supervisor-onstart").chmod(0o755)
    monkeypatch.setenv("PATH", f"{sockets}:{os.environ['PATH']}")
    assert which.of_file(file).start_command() == f"{sockets}/rl-supervisor-onstart gpu-box", (
        "an image has it as a word"
    )


# ---------------------------------------------------------------- dead ends


def test_a_bare_machine_is_told_in_one_sentence(
    sockets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(homes, "SYSTEM_STATE", sockets / "lib")
    monkeypatch.setenv("HOME", str(sockets))
    for command in ("", "status", "tail", "tail trainer", "incidents", "stop", "stop all", "upgrade"):
        words = command.split()
        code, said = typed(capsys, *words)
        assert said == f"{which.NO_RUN}\n", words
        assert code == (3 if command in ("", "status") else 1), words


@pytest.mark.soak
def test_runs_that_nobody_watches_now_are_named_with_the_next_step(
    sockets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(homes, "SYSTEM_STATE", sockets / "lib")
    monkeypatch.setenv("HOME", str(sockets))
    left_a_run(sockets / "state/rl-supervisor/one", os.geteuid())
    code, said = typed(capsys)
    assert code == 3
    assert re.match(
        r"one  NOT RUNNING  No daemon since .*\d\d:\d\d: it was killed, or it crashed\. Start it: ", said
    ), said
    assert "  job           nothing of it runs\n" in said
    assert re.search(r"  last words    .*\d\d:\d\d Attempt 2 is launched, ", said), said
    assert re.search(r"  incident      #1 at .*CUDA error \(supervisorctl incidents 1 one\)\n", said), said
    with sqlite3.connect(sockets / "state/rl-supervisor/one/journal.db") as db:
        db.execute(
            "INSERT INTO events (wall, level, event, sentence, fields) VALUES (1, 'info', 'leave-marked', 'x', '{}')"
        )
    said = typed(capsys)[1]
    assert re.search(r"  last words    .*\d\d:\d\d Attempt 2 is launched, ", said), (
        "what the store was told is no reason"
    )
    with sqlite3.connect(sockets / "state/rl-supervisor/one/journal.db") as db:
        db.execute("DELETE FROM events WHERE event = 'leave-marked'")
        db.execute(
            "UPDATE events SET event = 'finished', sentence = 'The run is finished.' WHERE id IN "
            "(SELECT max(id) FROM events)"
        )
    code, said = typed(capsys, "status", "one")
    assert (code, "Start it" in said) == (3, False), said
    assert said.startswith("one  NOT RUNNING  The run is finished. That was at "), said
    left_a_run(sockets / "state/rl-supervisor/two", os.geteuid())
    assert [line.split()[0] for line in typed(capsys)[1].splitlines() if line[0] != " "] == ["one", "two"]
    with pytest.raises(UsageError, match="There are 2 runs on this machine, name one: one, two"):
        which.find_run(None)
    with pytest.raises(NotThereError, match="No daemon watches two now"):
        _ = which.find_run("two").client


def test_a_run_whose_daemon_was_killed_is_shown_beside_the_others_while_its_job_lives(
    serve: Serve, sockets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(homes, "SYSTEM_STATE", sockets / "lib")
    monkeypatch.setenv("HOME", str(sockets))
    monkeypatch.setattr(state_folder, "ask_child", read_here)
    for name in ("beta", "gamma"):
        folder = sockets / f"state/rl-supervisor/{name}"
        (folder / "attempts/0001").mkdir(parents=True)
        Journal(folder).close()
    desk = FakeDesk("alpha")
    serve(desk)
    assert [line.split()[0] for line in typed(capsys)[1].splitlines() if line[0] != " "] == ["alpha"]
    living = (os.getpid(), proc_stat.start_ticks(os.getpid()) or 0)
    attached.write_record(sockets / "state/rl-supervisor/beta/attempts/0001", "job", living, "the trainer")
    code, said = typed(capsys, "status")
    assert [line.split()[0] for line in said.splitlines() if line[0] != " "] == ["alpha", "beta"]
    assert (code, "The job lives on without it." in said) == (3, True)
    code, said = typed(capsys, "stop", "all")
    assert desk.orders == [("stop", [], mock.ANY)]
    assert (code, "No daemon watches beta now." in said, "gamma" in said) == (1, True, False)
    assert [run.id for run in live.find_runs(None, None)] == ["alpha", "beta"]


def test_a_run_file_that_lies_elsewhere_is_named_by_the_journal_of_its_dead_daemon(
    sockets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(state_folder, "ask_child", read_here)
    monkeypatch.setattr(which, "BOOTED", sockets / "nothing")
    file, state_dir = run_file(sockets / "my runs/g.toml", "gamma"), sockets / "state/rl-supervisor/gamma"
    left_by(state_dir, file)
    assert f"Start it: rl-supervisor run '{file}'\n" in typed(capsys, "status", "gamma")[1]
    code, said = typed(capsys, "stop", "gamma")
    assert (code, said) == (
        1,
        "gamma: No daemon watches gamma now. `supervisorctl status gamma` says how to start it.\n",
    )
    file.unlink()
    assert "Start it: bash " in typed(capsys, "status", "gamma")[1], "as it is called where it is written anew"


@pytest.mark.parametrize("broken", ["a folder of another user's", "the look itself"])
def test_what_cannot_be_looked_at_keeps_no_order_from_the_others(
    serve: Serve, sockets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    monkeypatch.setattr(homes, "SYSTEM_STATE", sockets / "lib")
    monkeypatch.setenv("HOME", str(sockets))
    monkeypatch.setattr(state_folder, "ask_child", read_here)
    (sockets / "state/rl-supervisor/bobs/attempts").mkdir(parents=True)

    def closed(folder: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(folder))

    def dies(*_: object, **__: object) -> object:
        raise UnclearError("rl-supervisor ended by signal 9.")

    if broken == "the look itself":
        monkeypatch.setattr(state_folder, "ask_child", dies)
    monkeypatch.setattr("supervisor.preflight.look.lives", closed)
    desk = FakeDesk("alpha")
    serve(desk)
    assert "alpha" in typed(capsys)[1]
    typed(capsys, "stop", "all")
    assert desk.orders == [("stop", [], mock.ANY)]


def test_an_upgrade_without_a_daemon_says_what_to_do_instead(
    sockets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_file(tmp_path / "w.toml", "w", f'state_dir = "{tmp_path}/state"')
    for program, word in ((main.main, str(file)), (ctl.main, str(file))):
        code, said = typed(capsys, "upgrade", word, program=program)
        assert code == 1
        assert said == (
            f"No daemon answers for w ({sockets}/w.sock). Start it with `rl-supervisor run {file}`. It will be what is "
            "installed then, so nothing is to be upgraded.\n"
        )


@pytest.mark.soak
def test_tail_takes_a_run_file_and_a_name_is_guessed_only_when_it_is_near(
    sockets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = left_a_run(tmp_path / "state", os.geteuid())
    file = run_file(tmp_path / "w.toml", "w", f'state_dir = "{state}"')
    code, said = typed(capsys, "tail", str(file))
    assert (code, said.split()[:2]) == (0, ["attempt", "role"]), said
    assert typed(capsys, "tail", str(file), "launcher") == (0, "the end\n")
    assert "did you mean" not in typed(capsys, "status", str(tmp_path / "nope.toml"))[1]
    run_file(tmp_path / "bs4-qwen3.toml", "b")
    assert "(did you mean bs4-qwen3.toml?)" in typed(capsys, "status", str(tmp_path / "bs4-qwen.toml"))[1]
