"""A pod with several runs: ``rl-supervisor web`` without a name shows all of them, each with its own daemon's words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.people.desk import FakeDesk, serving

RUN = """
[run]
id = "{run}"
state_dir = "{folder}/state-{run}"
[job]
kind = "command"
[job.plain]
start = ["a"]
resume = ["b"]
[store]
url = "file://{folder}/store"
"""


@pytest.fixture
def pod() -> Iterator[Path]:
    """Run files of two runs that have daemons, and of one with a mistake."""
    with tempfile.TemporaryDirectory(prefix="rls") as name:  # short enough for a socket's path
        folder = Path(name)
        for part in ("etc", "sock", "store"):
            (folder / part).mkdir()
        for run in ("first", "second"):
            (folder / f"etc/{run}.toml").write_text(RUN.format(run=run, folder=folder))
        (folder / "etc/third.toml").write_text(RUN.format(run="third", folder=folder).replace("start", "begin"))
        for one in (folder, *folder.rglob("*")):
            one.chmod(0o700)
        with serving(folder / "sock") as begin:
            begin(FakeDesk("first", sentence="the first one trains", state_dir=f"{folder}/state-first"))
            begin(FakeDesk("second", sentence="the second one waits", state_dir=f"{folder}/state-second"))
            yield folder


def read(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.soak
def test_all_runs_of_a_pod_are_shown_and_one_with_a_mistake_hides_no_other(pod: Path) -> None:
    more = {"RL_SUPERVISOR_ETC": str(pod / "etc"), "RL_SUPERVISOR_SOCKET_DIR": str(pod / "sock")}
    environ = {**os.environ, **more, "XDG_STATE_HOME": str(pod / "home"), "XDG_CONFIG_HOME": str(pod / "home")}
    words = [sys.executable, "-m", "supervisor.cli.main", "web", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stderr is not None
        line = server.stdout.readline()
        assert line.startswith("The page of first, second: http://127.0.0.1:"), line + server.stderr.read()
        address = line.split()[-1]
        told = {one["run"]: one["sentence"] for one in read(f"{address}runs.json")["runs"]}
        assert told == {"first": "the first one trains", "second": "the second one waits"}
        assert read(f"{address}run.json?run=second")["sentence"] == "the second one waits"
        server.send_signal(signal.SIGTERM)
        assert "A run is left out." in server.stderr.readline()
