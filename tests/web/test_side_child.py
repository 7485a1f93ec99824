"""The page beside a daemon: it goes with its daemon, however that ends, and comes again by itself."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.config.settings import load
from supervisor.daemon import side_child
from supervisor.daemon.side_child import SideChild, side_children
from tests.web.served import until

RUN = """
[run]
id = "swe"
state_dir = "{folder}/state"
[job]
kind = "command"
[job.plain]
start = ["a"]
resume = ["b"]
[store]
url = "file://{folder}/store"
[web]
listen = "{listen}"
"""


@pytest.fixture
def listen() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def run_file(tmp_path: Path, listen: str) -> Path:
    (tmp_path / "state").mkdir()
    (tmp_path / "store").mkdir()
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(folder=tmp_path, listen=listen))
    path.chmod(0o600)
    return path


@pytest.fixture
def child(run_file: Path, listen: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SideChild]:
    monkeypatch.setattr(side_child, "AGAIN_S", 0.0)
    (found,) = side_children(run_file, load(run_file))
    yield found
    found.close()


def answers(listen: str, path: str = "/runs.json") -> int:
    connection = http.client.HTTPConnection(listen, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


@pytest.mark.soak
def test_it_is_started_again_when_it_was_killed_and_ends_with_close(child: SideChild, listen: str) -> None:
    child.tend()
    until(lambda: answers(listen, "/") == 200)
    assert answers(listen) == 200
    assert child._child is not None
    first = child._child.pid
    until(lambda: psutil.Process(first).nice() >= 10)
    os.kill(first, signal.SIGKILL)
    until(lambda: child.tend() or (child._child is not None and child._child.pid != first))  # type: ignore[func-returns-value]
    until(lambda: answers(listen, "/") == 200)
    child.close()
    assert answers(listen, "/") == 0


@pytest.mark.soak
def test_a_port_that_is_taken_is_told_once_with_the_reason(child: SideChild, listen: str) -> None:
    host, _, port = listen.rpartition(":")
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patched, socket.create_server((host, int(port))):
        patched.setattr(side_child, "say", lambda level, event, sentence: told.append(sentence))
        child.tend()
        for _ in range(2):
            assert child._child is not None
            child._child.wait(20)
            child.tend()
    assert len(told) == 1
    assert f"cannot listen at {listen}: Address already in use" in told[0]


@pytest.mark.soak
def test_it_ends_with_a_daemon_that_is_killed(run_file: Path, listen: str) -> None:
    program = f"""
import time
from pathlib import Path
from supervisor.config.settings import load
from supervisor.daemon.side_child import side_children
(child,) = side_children(Path({str(run_file)!r}), load(Path({str(run_file)!r})))
child.tend()
print(child._child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        page = psutil.Process(int(daemon.stdout.readline()))
        until(lambda: answers(listen, "/") == 200)
        daemon.kill()
    page.wait(20)
