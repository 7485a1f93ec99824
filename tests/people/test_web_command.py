"""``rl-supervisor web``: which runs it shows, and how it says what is in its way."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.api.protocol import Api
from supervisor.cli import main
from tests.people.desk import FakeDesk
from tests.people.test_which import left_by, run_file, typed

uvicorn = pytest.importorskip("uvicorn")
Serve = Callable[..., Api]
WEB = ("web", "--listen", "127.0.0.1:0")


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What would listen until Ctrl-C ends at once."""

    def run(_: Any, listeners: list[socket.socket]) -> None:
        for one in listeners:
            one.close()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    yield


def test_a_run_with_a_daemon_is_shown_wherever_its_run_file_is(
    serve: Serve, sockets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("alpha", "gamma"):
        left_by(sockets / f"state/rl-supervisor/{name}", run_file(tmp_path / f"{name}.toml", name))
        serve(FakeDesk(name, state_dir=str(sockets / f"state/rl-supervisor/{name}")))
    code, said = typed(capsys, *WEB, program=main.main)
    assert (code, said.splitlines()[0].partition(": ")[0]) == (0, "The page of alpha, gamma")
    (tmp_path / "gamma.toml").unlink()
    code, said = typed(capsys, *WEB, program=main.main)
    assert (code, said.startswith("The page of alpha: ")) == (0, True)
    left_out = "gamma is left out: its run file is not known here. Name it: rl-supervisor web RUN.toml\n"
    assert said.endswith(left_out)
    (tmp_path / "alpha.toml").unlink()
    code, said = typed(capsys, *WEB, program=main.main)
    assert (code, left_out in said) == (2, True)
    assert said.endswith("No run file is known of alpha, gamma. Name a RUN.toml, or --store and --run-id.\n"), said


def test_a_bare_machine_and_a_port_that_is_taken_are_told_once(
    sockets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(capsys, *WEB, program=main.main) == (
        2,
        "No run is known on this machine. Name a RUN.toml, or --store and --run-id.\n",
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        file = str(run_file(tmp_path / "alpha.toml", "alpha", f'state_dir = "{tmp_path}"'))
        assert typed(capsys, "web", file, "--listen", listen, program=main.main) == (
            2,
            f"The page cannot listen at {listen}: Address already in use. Take another --listen.\n",
        )
