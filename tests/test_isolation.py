"""The tests see nothing of the machine that they run on, tried on one where rl-supervisor is in use."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pynvml
import pytest

from supervisor.cli import client, which
from supervisor.effects import transient
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
cp -a "$IN_USE/run" /run/rl-supervisor && cp -a "$IN_USE/run-files" /etc/rl-supervisor
cp -a "$IN_USE/lib" /var/lib/rl-supervisor
mkdir -p /run/systemd/system
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


def test_the_suite_passes_on_a_pod_that_has_two_runs_and_one_of_them_dead(tmp_path: Path) -> None:
    """The dead one's socket is left in the folder of sockets. None of it is touched, either."""
    for folder in ("run", "run-files", "lib/dead/attempts/1", "lib/living/attempts/1", "home/.config/rl-supervisor"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("dead", "living"):
        (tmp_path / f"run-files/{name}.toml").write_text(f'[run]\nid = "{name}"\n')
        (tmp_path / f"run/.{name}.sock.lock").write_text("4711\n")
    (tmp_path / "home/.netrc").write_text("machine api.wandb.ai login user password 0123456789abcdef\n")
    places = {"RL_SUPERVISOR_SOCKET_DIR": "run", "RL_SUPERVISOR_ETC": "run-files", "RL_SUPERVISOR_STATE": "lib"}
    environ = {**os.environ, **POISON, **{name: str(tmp_path / place) for name, place in places.items()}}
    environ |= {"HOME": str(tmp_path / "home"), "IN_USE": str(tmp_path), "LD_LIBRARY_PATH": _driver(tmp_path / "nvml")}
    here = tmp_path / "run/living.sock"
    words = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *SENSITIVE]
    private = ["unshare", "--mount", "sh", "-c", IN_USE, "sh"]
    if os.geteuid() == 0 and not subprocess.run([*private, "true"], env=environ, check=False).returncode:
        shutil.rmtree(tmp_path / "etc")
        for name in places:
            del environ[name]  # its places are the machine's own then
        words = [*private, *words]
    with socket.socket(socket.AF_UNIX) as living:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "run/dead.sock"))
        living.bind(str(here))
        living.listen()
        before = sorted(tmp_path.rglob("*"))
        done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200, check=False)
    shutil.rmtree(tmp_path / "etc", ignore_errors=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert sorted(tmp_path.rglob("*")) == before


def _driver(folder: Path) -> str:
    """A driver that answers, where there is something to make it with."""
    from supervisor.simulator.nvml.build import NoCompilerError, build

    try:
        build(folder)
    except NoCompilerError:
        folder.mkdir(exist_ok=True)
    return str(folder)
