"""Whom the socket answers: tried with processes of another user, through the file's mode and past it."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.api.client import Client
from supervisor.api.protocol import Api
from tests.people.desk import FakeDesk
from tests.shell.conftest import CTL, STRANGER, as_root, run_as, words_as

Serve = Callable[..., Api]
RAW = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.settimeout(10)
one.connect(sys.argv[1])
body = b'{"verb": "shutdown"}'
one.sendall(b"POST /v1/command HTTP/1.1\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
answer = b""
while piece := one.recv(65536):
    answer += piece
print(answer.decode())
"""
HOLD = """
import socket, sys, time
held = []
for _ in range(60):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    held.append(one)
print("held", flush=True)
time.sleep(60)
"""


def ctl_as(uid: int, door: Path, *words: str, groups: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    return run_as(uid, CTL, *words, groups=groups, RL_SUPERVISOR_SOCKET_DIR=str(door))


@as_root
def test_another_user_is_kept_out_by_the_mode_and_told_who_may(serve: Serve, door: Path) -> None:
    desk = FakeDesk()
    serve(desk)
    assert stat.S_IMODE((door / "bs4-qwen3.sock").stat().st_mode) == 0o600
    told = ctl_as(STRANGER, door, "status")
    assert told.returncode == 4
    assert told.stdout.strip() == (
        f"bs4-qwen3  UNKNOWN  user {STRANGER} may not talk to bs4-qwen3: {door}/bs4-qwen3.sock is open to root. Try "
        'sudo, or ask for a group of yours to be let in: [api] group = "NAME" in the run file.'
    )
    told = ctl_as(STRANGER, door, "stop", "bs4-qwen3")
    assert told.returncode == 1
    assert "may not talk to bs4-qwen3" in told.stderr
    assert desk.orders == []


@pytest.mark.soak
@as_root
def test_a_mode_that_somebody_widened_lets_nobody_in_the_server_asks_the_kernel(serve: Serve, door: Path) -> None:
    desk = FakeDesk()
    serve(desk)
    path = door / "bs4-qwen3.sock"
    path.chmod(0o666)
    answer = run_as(STRANGER, RAW, str(path)).stdout
    head, _, body = answer.partition("\n\n")
    assert head.startswith("HTTP/1.1 403 Forbidden")
    sentence = json.loads(body)["error"]
    assert sentence.startswith(f"user {STRANGER} (pid ")
    assert sentence.endswith(
        ") is not let in: this run answers root. Use sudo, or ask root to let a group of yours in: "
        '[api] group = "NAME" in the run file, and a new start of the daemon.'
    )
    told = ctl_as(STRANGER, door, "shutdown", "bs4-qwen3")
    assert (told.returncode, told.stdout) == (1, "")
    assert f"user {STRANGER} (pid " in told.stderr
    assert "is not let in" in ctl_as(STRANGER, door, "status").stdout
    assert desk.orders == []
    assert Client(path).command("stop", [])[0]
    [(_, _, who)] = desk.orders
    assert who == f"root (pid {os.getpid()})"


@pytest.mark.soak
@as_root
def test_the_members_of_a_group_are_let_in_by_their_first_group_and_by_a_further_one(serve: Serve, door: Path) -> None:
    desk = FakeDesk()
    serve(desk, group="54399")
    path = door / "bs4-qwen3.sock"
    assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (54399, 0o660)
    assert "RUNNING" in ctl_as(STRANGER, door, "status", groups=(54399,)).stdout
    assert "RUNNING" in ctl_as(54399, door, "status").stdout
    assert "may not talk to" in ctl_as(STRANGER, door, "status", groups=(54398,)).stdout
    path.chmod(0o666)
    told = ctl_as(STRANGER, door, "status", groups=(54398,)).stdout
    assert "this run answers root, and the members of group 54399." in told


@as_root
def test_everybody_is_let_in_only_where_the_run_file_says_so(serve: Serve, door: Path) -> None:
    serve(FakeDesk(), mode=0o666)
    assert "RUNNING" in ctl_as(STRANGER, door, "status").stdout


@as_root
def test_strangers_who_hold_connections_keep_nobody_out(serve: Serve, door: Path) -> None:
    serve(FakeDesk())
    path = door / "bs4-qwen3.sock"
    path.chmod(0o666)
    stranger = subprocess.Popen(words_as(STRANGER, HOLD, str(path)), stdout=subprocess.PIPE, text=True)
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "held\n"
        for _ in range(20):
            assert Client(path).get("/v1/status")["step"] == 412
    finally:
        stranger.kill()
        stranger.communicate()


@as_root
def test_a_directory_service_that_hangs_on_a_strangers_name_keeps_nobody_waiting(
    serve: Serve, door: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers, names = threading.Event(), threading.Event(), pwd.getpwuid

    def hangs(uid: int) -> pwd.struct_passwd:
        if uid == STRANGER:
            asked.set()
            answers.wait(60)
        return names(uid)

    serve(FakeDesk())
    path = door / "bs4-qwen3.sock"
    path.chmod(0o666)
    monkeypatch.setattr(pwd, "getpwuid", hangs)
    stranger = subprocess.Popen(words_as(STRANGER, RAW, str(path)), stdout=subprocess.PIPE, text=True)
    try:
        assert asked.wait(30), "who it is was never asked"
        began = time.monotonic()
        assert Client(path).get("/v1/status")["step"] == 412
        assert time.monotonic() - began < 5
    finally:
        answers.set()
        told, _ = stranger.communicate(timeout=30)
    assert f"user {STRANGER} (pid {stranger.pid}) is not let in" in told, "and the stranger hears it after all"


def test_a_group_that_nobody_knows_lets_nobody_in_and_costs_no_daemon(
    serve: Serve, door: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from supervisor.base import logs

    logs.configure("json")
    serve(FakeDesk(), group="nobody-calls-a-group-so")
    path = door / "bs4-qwen3.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "there is no group nobody-calls-a-group-so on this machine" in capfd.readouterr().err
    assert Client(path).get("/v1/status")["step"] == 412
