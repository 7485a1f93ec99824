"""Where a user's own files go: as root, with XDG's folders, with a home that cannot be written, and with none."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from supervisor.api import client
from supervisor.base import homes, socket_paths, unix_socket
from supervisor.base.errors import ConfigError
from supervisor.cli import which
from supervisor.config.settings import RunFile, load
from supervisor.install import unit_files

RUN = '[run]\nid = "mine"\n{}[job]\nkind = "command"\n[job.plain]\nstart = ["true"]\nresume = ["true", "{{step}}"]\n'


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Another user than root, whose number no password file knows; /var/tmp and /tmp are folders of the test."""
    (tmp_path / "var").mkdir()
    monkeypatch.setattr(homes, "VAR_TMP", tmp_path / "var")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "RL_SUPERVISOR_SOCKET_DIR", "RL_SUPERVISOR_ETC"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run_file(folder: Path, more: str = "") -> RunFile:
    path = folder / "run.toml"
    path.write_text(RUN.format("") + more)
    return load(path)


def test_the_state_goes_where_xdg_says(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(nobody))
    assert run_file(nobody).state_dir == nobody / ".local/state/rl-supervisor/mine"
    monkeypatch.setenv("XDG_STATE_HOME", str(nobody / "state"))
    assert run_file(nobody).state_dir == nobody / "state/rl-supervisor/mine"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert run_file(nobody).state_dir == nobody / ".local/state/rl-supervisor/mine"


@pytest.mark.parametrize("home", ["", "/proc", "/nonexistent/home", "/dev/null"])
def test_without_a_home_that_can_be_written_it_goes_to_var_tmp(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    closed = ("/proc", "/nonexistent", "/dev")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/" and not str(path).startswith(closed))
    if home:
        monkeypatch.setenv("HOME", home)
    assert run_file(nobody).state_dir == nobody / "var/rl-supervisor-54321/rl-supervisor/mine"


def test_a_state_that_is_there_stays_the_place_on_a_disk_that_is_now_read_only(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(nobody))
    (nobody / ".local/state/rl-supervisor/mine").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert run_file(nobody).state_dir == nobody / ".local/state/rl-supervisor/mine"


def test_a_folder_that_somebody_else_has_made_there_is_refused(nobody: Path) -> None:
    (nobody / "var/rl-supervisor-54321").mkdir()  # root's, or whoever runs the tests
    with pytest.raises(ConfigError, match=r"belongs to another user: set run\.state_dir"):
        _ = run_file(nobody).state_dir


def test_the_password_file_knows_the_home_where_the_environment_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert homes.home({}) == Path(pwd.getpwuid(os.geteuid()).pw_dir)
    assert homes.home({"HOME": "/somewhere"}) == Path("/somewhere")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert homes.home({}) is None


def test_the_log_is_in_the_state_folder_where_no_systemd_keeps_one(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(f'state_dir = "{tmp_path / "state"}"\n'))
    expected = None if Path("/run/systemd/system").is_dir() else tmp_path / "state/daemon.jsonl"
    assert load(path).log_file == expected
    path.write_text(RUN.format("") + '[logging]\nfile = "/dev/null"\nfile_mb = 1.5\nkeep = 0\n')
    assert load(path).log_file == Path("/dev/null")


def test_a_runtime_folder_of_somebody_else_is_not_taken(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo -u` and old logins leave an XDG_RUNTIME_DIR that this user may not enter, or that is gone."""
    last = Path(f"/tmp/rl-supervisor-{os.getuid()}")
    assert socket_paths.socket_dir() == last
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(nobody / "gone"))
    assert socket_paths.socket_dir() == last
    (nobody / "gone").mkdir()
    assert socket_paths.socket_dir() == nobody / "gone/rl-supervisor"


def test_a_login_finds_the_daemon_that_had_no_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_SUPERVISOR_SOCKET_DIR", raising=False)
    monkeypatch.setattr(socket_paths, "_temporary_dir", lambda: tmp_path / "tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "tmp").mkdir()
    claim = unix_socket.Claim(tmp_path / "tmp" / "mine.sock", unix_socket.Door())
    try:
        assert client.sockets()["mine"] == tmp_path / "tmp" / "mine.sock"
    finally:
        claim.release()


def test_logs_are_found_without_a_daemon_for_a_user_who_has_no_home(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the daemon of that user keeps them, and not in a home that nobody has."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    state = run_file(nobody).state_dir
    (state / "attempts").mkdir(parents=True)
    if os.getuid() != 0:
        pytest.skip("needs root, to give that user his folder")
    os.chown(homes.VAR_TMP / "rl-supervisor-54321", 54321, 54321)
    assert which.look().runs["mine"].state_dir == state
    with pytest.raises(ConfigError, match="There is no home folder to install a user's unit in"):
        unit_files.place()


def test_a_users_own_run_files_say_where_a_run_keeps_its_state(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(nobody))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (nobody / "data/attempts").mkdir(parents=True)
    own = nobody / ".config/rl-supervisor"
    own.mkdir(parents=True)
    (own / "any.toml").write_text(f'[run]\nid = "far"\nstate_dir = "{nobody / "data"}"\n')
    assert which.look().runs["far"].state_dir == nobody / "data"
    assert unit_files.place().config == own
