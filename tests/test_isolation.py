"""The tests see nothing of the machine that they run on, tried on one where rl-supervisor is in use."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pynvml
import pytest

from supervisor.api import client
from supervisor.base.unix_socket import Claim, Door
from supervisor.cli import which
from supervisor.process import transient
from tests.conftest import MACHINE
from tests.isolation import KEPT

ROOT = Path(__file__).parents[1]
SENSITIVE = (
    "tests/test_isolation.py::test_a_test_sees_no_run_no_key_and_no_driver",
    "tests/test_isolation.py::test_what_a_test_starts_sees_none_either",
    "tests/diagnosis/test_command.py::test_what_is_closed_or_full_is_no_crash",
    "tests/people/test_which.py::test_a_bare_machine_is_told_in_one_sentence",
    "tests/units/test_homes.py",
    "tests/units/test_onstart.py::test_the_only_run_file_needs_no_name_and_two_do",
)
POISON = {
    "RL_SUPERVISOR_RUN": "dead",
    "RL_SUPERVISOR_TRUST_FILES": "1",
    "RL_SUPERVISOR_BACKOFF": "77",
    "B2_APPLICATION_KEY": "K004a-key-of-the-pods-own-bucket",
    "AWS_SECRET_ACCESS_KEY": "a-key-of-the-pods-own-bucket",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "HF_HUB_OFFLINE": "1",
    "RUNPOD_POD_ID": "pod",
    "CONTAINER_ID": "4711",
    "CUDA_VISIBLE_DEVICES": "3,1",
    "VLLM_PORT": "tcp://10.0.0.1:80",
    "NOTIFY_SOCKET": "/run/systemd/notify",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "COLUMNS": "40",
}
LOOK = """
import json, os, pynvml
from supervisor.cli import which
try:
    pynvml.nvmlInit(); driver = "there"
except pynvml.NVMLError as error:
    driver = str(error)
print(json.dumps([sorted(which.look().runs), sorted(os.environ), driver]))
"""
# A namespace of its own: what is mounted in it is seen by no other process of the machine.
IN_USE = """
set -e
mount --make-rprivate /
cp -a /etc "$IN_USE/etc" && mount --bind "$IN_USE/etc" /etc
mount -t tmpfs none /run && mount -t tmpfs none /var/lib
mkdir -p /run/rl-supervisor /etc/rl-supervisor /var/lib/rl-supervisor /run/systemd/system
mount --bind "$IN_USE/run" /run/rl-supervisor && mount --bind "$IN_USE/run-files" /etc/rl-supervisor
mount --bind "$IN_USE/lib" /var/lib/rl-supervisor
exec "$@"
"""


def allowed(names: list[str]) -> bool:
    ours = ("HOME", "LANG", "ZIG_GLOBAL_CACHE_DIR", "LC_CTYPE", "RL_SUPERVISOR_SOCKET_DIR", "RL_SUPERVISOR_ETC")
    patterns = (*KEPT, *ours, "RL_SUPERVISOR_STATE")
    return all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names)


def test_a_test_sees_no_run_no_key_and_no_driver() -> None:
    assert (which.look().runs, client.sockets()) == ({}, {})
    assert allowed(list(os.environ)), sorted(os.environ)
    assert transient.why_not() == "systemd is not this machine's init"
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlInit()
    assert Path.home() == MACHINE / "home"


def test_what_a_test_starts_sees_none_either(tmp_path: Path) -> None:
    words = [sys.executable, "-c", LOOK]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    runs, names, driver = json.loads(done.stdout)
    assert (runs, driver) == ([], "NVML Shared Library Not Found")
    assert allowed([name for name in names if name not in ("LINES", "COLUMNS")]), names  # readline sets them


@pytest.fixture
def in_use() -> Iterator[Path]:
    """The folders of a machine with two runs: one is watched, and the daemon of the other was killed."""
    with tempfile.TemporaryDirectory(prefix="rls") as name:
        folder = Path(name)
        for part in ("run", "run-files", "lib/dead/attempts/1", "lib/living/attempts/1", "home"):
            (folder / part).mkdir(parents=True)
        for run in ("dead", "living"):
            (folder / f"run-files/{run}.toml").write_text(f'[run]\nid = "{run}"\n')
        (folder / "home/.netrc").write_text("machine api.wandb.ai login user password 0123456789abcdef\n")
        living = Claim(folder / "run/living.sock", Door())
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "run/dead.sock"))
        (folder / "run/.dead.sock.lock").write_text("4711\n")
        yield folder
        living.release()


@pytest.mark.soak
def test_the_suite_passes_on_a_pod_that_has_two_runs_and_one_of_them_dead(in_use: Path) -> None:
    """None of it is touched, either: not even the dead one's socket is cleared away."""
    places = {"RL_SUPERVISOR_SOCKET_DIR": "run", "RL_SUPERVISOR_ETC": "run-files", "RL_SUPERVISOR_STATE": "lib"}
    environ = {**os.environ, **POISON, **{name: str(in_use / place) for name, place in places.items()}}
    environ |= {"HOME": str(in_use / "home"), "IN_USE": str(in_use), "LD_LIBRARY_PATH": _driver(in_use / "nvml")}
    words = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *SENSITIVE]
    private = ["unshare", "--mount", "sh", "-c", IN_USE, "sh"]
    if os.geteuid() == 0 and not subprocess.run([*private, "true"], env=environ, check=False).returncode:
        shutil.rmtree(in_use / "etc")
        for name in places:
            del environ[name]  # its places are the machine's own then
        words = [*private, *words]
    before = sorted(in_use.rglob("*"))
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200, check=False)
    shutil.rmtree(in_use / "etc", ignore_errors=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert sorted(in_use.rglob("*")) == before


def _driver(folder: Path) -> str:
    """A driver that answers, where there is something to make it with."""
    from tests.practice.nvml.build import NoCompilerError, build

    try:
        build(folder)
    except NoCompilerError:
        folder.mkdir(exist_ok=True)
    return str(folder)
