"""A served desk at a socket whose folder anybody may enter, and another user to try it with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.api.protocol import Api
from tests.people.desk import serving

STRANGER = 54321

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try it as another user")


# The interpreter may lie below /root, where nobody else may look: everything is imported before the user is changed.
BECOME = """
import encodings.idna, getpass, http.client, json, os, runpy, socket, sys, time
from supervisor.cli import ctl
uid, groups, code = int(sys.argv[1]), [int(word) for word in sys.argv[2].split(",") if word], sys.argv[3]
del sys.argv[1:4]
os.setgroups(groups); os.setgid(uid); os.setuid(uid)
exec(code)
"""
CTL = "sys.exit(ctl.main(sys.argv[1:]))"


def words_as(uid: int, code: str, *words: str, groups: tuple[int, ...] = ()) -> list[str]:
    """A command line that runs Python ``code`` as another user, who is in no group of ours."""
    return [sys.executable, "-c", BECOME, str(uid), ",".join(map(str, groups)), code, *words]


def run_as(
    uid: int, code: str, *words: str, groups: tuple[int, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """The same, run to its end."""
    command = words_as(uid, code, *words, groups=groups)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})


@pytest.fixture
def door() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rls"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def serve(door: Path) -> Iterator[Callable[..., Api]]:
    """``serve(desk)`` answers at DOOR/RUN.sock until the test ends."""
    with serving(door) as begin:
        yield begin
