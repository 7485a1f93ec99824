"""The socket of a daemon that was killed: the next look clears it away, and never anything else."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.api import client
from supervisor.api.protocol import Api
from supervisor.base.errors import ConfigError
from supervisor.base.socket_paths import remove_if_dead
from supervisor.base.unix_socket import Claim, Door
from supervisor.cli import ctl
from tests.people.desk import FakeDesk

STRANGER = 54321


def killed(path: Path) -> None:
    """Leave what a daemon leaves that is killed while it serves ``path``."""
    claim = Claim(path, Door())
    claim.socket.close()
    os.close(claim._lock)
    assert path.is_socket()


def test_a_look_at_the_machine_clears_the_socket_of_a_killed_daemon_away(
    sockets: Path, serve: Callable[..., Api], capsys: pytest.CaptureFixture[str]
) -> None:
    """With it there, a machine with one run would have two, and each command would ask which one is meant."""
    killed(sockets / "dead.sock")
    assert ctl.main(["status"]) == 3
    assert capsys.readouterr().out.startswith("No daemon runs on this machine.")
    assert not (sockets / "dead.sock").exists()
    killed(sockets / "dead.sock")
    serve(FakeDesk("bs4"))
    assert ctl.main(["stop"]) == 0, "the only run is meant"


def test_the_socket_that_a_run_file_names_is_cleared_away_too(
    sockets: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "s"
    (sockets / "etc").mkdir()
    (sockets / "etc/far.toml").write_text(f'[run]\nid = "far"\n[api]\nsocket = "{path}"\n')
    killed(path)
    assert ctl.main(["status"]) == 3
    capsys.readouterr()
    assert not path.exists()


def test_the_next_daemon_clears_what_another_runs_left_beside_its_own(sockets: Path, serve: Callable[..., Api]) -> None:
    killed(sockets / "dead.sock")
    serve(FakeDesk("bs4"))
    assert [path.name for path in sockets.glob("*.sock")] == ["bs4.sock"]
    assert client.Client(sockets / "bs4.sock").get("/v1/status")["run"] == "bs4"


def test_what_is_no_dead_daemons_socket_stays(sockets: Path, tmp_path: Path) -> None:
    """Each differs from one in a single way."""
    foreign, other, listening, file, linked = (
        sockets / f"{name}.sock" for name in ("foreign", "other", "listening", "file", "linked")
    )
    starting = Claim(sockets / "starting.sock", Door())
    starting.socket.close()  # it has its lock, and does not listen (any more, or not yet)
    living = Claim(listening, Door())
    os.close(living._lock)
    file.write_text("a person's")
    (sockets / ".file.sock.lock").touch()
    killed(foreign)
    (sockets / ".foreign.sock.lock").unlink()  # no daemon of ours made it
    killed(linked)
    (sockets / ".linked.sock.lock").rename(tmp_path / "elsewhere")
    (sockets / ".linked.sock.lock").symlink_to(tmp_path / "elsewhere")
    stays = [foreign, starting.path, listening, file, linked]
    if os.geteuid() == 0:
        killed(other)
        os.chown(sockets / ".other.sock.lock", STRANGER, STRANGER)
        stays.append(other)
    try:
        for path in stays:
            remove_if_dead(path)
        remove_if_dead(sockets / "none.sock")
        assert [path.name for path in stays if not os.path.lexists(path)] == []
    finally:
        living.socket.close()
        os.close(starting._lock)


def test_a_link_in_the_place_of_the_lock_leads_nowhere(sockets: Path, tmp_path: Path) -> None:
    """The folder may be one in /tmp, and the daemon is root."""
    victim = tmp_path / "authorized_keys"
    victim.write_text("a person's key")
    (sockets / ".bs4.sock.lock").symlink_to(victim)
    with pytest.raises(ConfigError, match=r"\.bs4\.sock\.lock cannot be made"):
        Claim(sockets / "bs4.sock", Door())
    assert victim.read_text() == "a person's key"


def test_a_daemon_that_starts_while_others_look_is_neither_refused_nor_robbed(sockets: Path) -> None:
    path, done = sockets / "bs4.sock", threading.Event()

    def look() -> None:
        while not done.is_set():
            remove_if_dead(path)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(100):
            claim = Claim(path, Door())  # TryAgainError: a look was taken for a daemon
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(path))  # FileNotFoundError: its socket was taken for a dead one's
            claim.socket.close()
            os.close(claim._lock)  # killed
    finally:
        done.set()
        for looker in lookers:
            looker.join()


def test_a_daemon_that_starts_waits_for_a_look_to_end(sockets: Path) -> None:
    """The look holds the lock while it asks whether anybody listens."""
    killed(sockets / "bs4.sock")
    looking = os.open(sockets / ".bs4.sock.lock", os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_EX)
    done = threading.Timer(0.05, os.close, [looking])
    done.start()
    Claim(sockets / "bs4.sock", Door()).release()
    done.join()


def test_a_daemon_that_hangs_keeps_its_socket(sockets: Path, serve: Callable[..., Api]) -> None:
    """Its queue is full and it answers nothing, but it lives: another daemon would train the run a second time."""
    claim = Claim(sockets / "hung.sock", Door())
    waiting = []
    try:
        for _ in range(40):
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            waiting.append(one)
            one.connect_ex(str(claim.path))
        assert list(client.sockets()) == ["hung"]
        assert claim.path.is_socket()
    finally:
        for one in waiting:
            one.close()
        claim.release()
