"""Whom a process waits for, by the connections of real processes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.sensors.outside import is_outside_reached

CONNECTS = """
import socket, sys
family, place = sys.argv[1:]
link = socket.socket(getattr(socket, family))
link.connect(place if family == "AF_UNIX" else ("127.0.0.1", int(place)))
pair = socket.socketpair()
print("connected", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def client(*words: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", CONNECTS, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
        yield process.pid
    finally:
        process.communicate()


def test_who_waits_for_a_service_that_is_not_of_the_job_is_told_from_who_waits_for_its_own(tmp_path: Path) -> None:
    """A judge by TCP, a container's daemon by a unix socket: this process, which is of the job or not."""
    path = str(tmp_path / "docker.sock")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path), unix.listen()
        for words, server in ((("AF_INET", str(tcp.getsockname()[1])), tcp), (("AF_UNIX", path), unix)):
            with client(*words) as env:
                link = server.accept()[0]
                assert is_outside_reached([env], [env]) is True, words
                assert is_outside_reached([env], [env, os.getpid()]) is False, words
                link.close()  # as a server does with a connection on which nothing is asked
                assert is_outside_reached([env], [env]) is False, words


def test_a_connection_that_is_not_accepted_yet_may_be_to_anything() -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, client("AF_INET", str(tcp.getsockname()[1])) as env:
        assert is_outside_reached([env], [env, os.getpid()]) is True


def test_what_cannot_be_seen_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tcp").write_text("sl local_address rem_address st\n 0: odd\n")
    assert is_outside_reached([os.getpid()], [], net=tmp_path) is None
    assert is_outside_reached([1 << 22], []) is False, "who has ended waits for nothing"

    def refuse(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert is_outside_reached([os.getpid()], []) is None
