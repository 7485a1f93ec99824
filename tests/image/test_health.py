"""The image's health check for real, in a pid namespace of its own: a daemon's desk, or only a shim, or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.api.protocol import Api
from supervisor.process import nanny
from tests.people.desk import FakeDesk

SCRIPT = Path(__file__).parents[2] / "image" / "health.sh"
CONTAINER = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child=KILL"]
SHIM = "import ctypes, os; ctypes.CDLL(None).prctl(15, b'rl-exit 1', 0, 0, 0); print(flush=True); os.read(0, 1)"
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """``ask(before)``: what the check ends with and says, after ``before`` was done in its container."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare with a pid namespace, to be without this machine's other runs")
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "RL_SUPERVISOR_SOCKET_DIR": str(tmp_path / "sockets"),
    }

    def asked(before: str = "") -> tuple[int, str, str]:
        words = [*CONTAINER, "sh", "-c", f"{before}\nsh {SCRIPT}"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout.strip(), done.stderr

    return asked


@pytest.mark.soak
def test_a_daemon_without_a_job_is_well_wherever_its_run_file_puts_its_socket(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    file = tmp_path / "volume" / "mine.toml"
    file.write_text(f'[run]\nid = "mine"\n[api]\nsocket = "{tmp_path}/door"\n')
    program = f"{sys.executable} -I -S {nanny.__file__} -- /bin/sh -c 'sleep 60; :' {file}"
    under_its_nanny = f"{program} 2>/dev/null & until pgrep -x rl-nanny >/dev/null; do sleep 0.05; done"
    api = Api(FakeDesk(run="mine", state="stopped"), tmp_path / "door")
    api.start()
    try:
        assert ask(under_its_nanny) == (0, "The daemon answers.", "")
    finally:
        api.close()
    assert ask(under_its_nanny) == (1, "No daemon answers, and no job lives.", "")


def test_each_of_several_daemons_makes_it_well(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "sockets").mkdir()
    served = [Api(FakeDesk(run=name), tmp_path / "sockets" / f"{name}.sock") for name in ("one", "two")]
    for api in served:
        api.start()
    try:
        assert ask() == (0, "The daemon answers.", "")
    finally:
        for api in served:
            api.close()


def test_a_job_without_a_daemon_is_well_also_when_it_has_just_ended(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "shim.py").write_text(SHIM)
    shim, up = f"{sys.executable} -I -S {tmp_path}/shim.py", tmp_path / "up"
    begun = f"mkfifo {up}; sleep 60 | {shim} >{up} & read _ <{up}"
    assert ask(begun) == (0, "No daemon answers. The job lives, and the next daemon takes it over.", "")
