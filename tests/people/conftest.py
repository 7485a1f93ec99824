"""A folder for sockets that is short enough for AF_UNIX, and a served desk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.api.protocol import Api
from supervisor.cli import pod
from tests.people.desk import serving


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rls"))
    monkeypatch.setenv("RL_SUPERVISOR_SOCKET_DIR", str(folder))
    monkeypatch.setenv("RL_SUPERVISOR_ETC", str(folder / "etc"))  # runs of this very machine are none of the tests'
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _no_process_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is the pod's: names of a provider and of keys."""
    monkeypatch.setattr(pod, "environment_of_process_one", lambda root: {})


@pytest.fixture
def serve(sockets: Path) -> Iterator[Callable[..., Api]]:
    """``serve(desk)`` answers at SOCKETS/RUN.sock until the test ends."""
    with serving(sockets) as begin:
        yield begin
