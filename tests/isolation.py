"""No test sees the machine that it runs on: neither its runs, sockets and units, nor its environment, nor its GPUs.

A pod where rl-supervisor is in use has two runs in /run, /etc and /var/lib, keys in its environment and a driver that
answers. Whatever a test starts inherits this process's environment, so that is where all of it is hidden, before any
test module is imported. What only this process would see (a test that unsets a variable) is hidden beside it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pynvml

from supervisor.base import homes, socket_paths
from supervisor.process import transient

KEPT = (
    # To find and run programs, and for pytest itself.
    *("PATH", "LD_LIBRARY_PATH", "TERM", "USER", "LOGNAME", "SHELL", "TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV"),
    *("PYTHONHOME", "PYTHONPYCACHEPREFIX", "PYTHONHASHSEED", "PYTHONWARNINGS"),
    *("PYTEST_*", "COVERAGE_*", "COV_*", "CI"),
    # By which a person chooses what is tested, and with what.
    *(
        "FUZZ",
        "FUZZ_SEED",
        "SWEEP",
        "POD_EXAMPLES",
        "PRIME_RL_GIT",
        "VERIFIERS_GIT",
        "TORCH_PYTHON",
        "PRACTICE_TORCH_PYTHON",
        "PIP_AUDIT",
    ),
    *("PRIME_RL_VENVS", "PRIME_RL_PYTHON", "RL_SUPERVISOR_TEST_PRIME_RL", "RL_SUPERVISOR_VLLM_PYTHON"),
    *("SYSTEMD_BOX", "SYSTEMD_BOX_DIR", "IMAGE_TRAINER"),
    *("PRIME_PYTHON", "RUNPOD_PYTHON", "SKY_PYTHON", "VAST_PYTHON", "JOBSET_CRD"),
)
"""Variables that tests may see, patterns as of a shell. A list of those to hide would never be whole."""
OUTSIDE: Mapping[str, str] = dict(os.environ)
"""The environment as pytest was given it, for tests by choice that have to leave the machine (a proxy)."""
SYSTEMD = transient.BOOTED
"""Where the machine's own systemd is seen, for tests by choice that ask it."""


def hide_the_machine() -> Path:
    """Redirect this process, and all that it starts, to an empty machine in a new folder; returns that folder."""
    # A short path: sockets are made below it, and Linux allows their names 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="rlm-"))
    # A container often sets PYTHONDONTWRITEBYTECODE. Then each Python that the tests start compiles all modules anew,
    # and each process of pytest all tests: to collect them takes 16 s of processor time in place of 7.
    sys.dont_write_bytecode = False
    for name in set(os.environ):
        if not any(fnmatchcase(name, kept) for kept in KEPT):
            del os.environ[name]
    os.environ |= {
        "HOME": _made(folder / "home"),
        "LANG": "C.UTF-8",
        "RL_SUPERVISOR_SOCKET_DIR": str(folder / "run"),
        "RL_SUPERVISOR_ETC": str(folder / "etc"),
        "RL_SUPERVISOR_STATE": str(folder / "lib"),
        "LD_LIBRARY_PATH": ":".join([_no_driver(folder / "no-driver"), *_library_path()]),
        # What compiles the driver's stand-in where no compiler is; its cache holds nothing of the machine's runs.
        "ZIG_GLOBAL_CACHE_DIR": str(Path(tempfile.gettempdir()) / f"rl-supervisor-zig-{os.geteuid()}"),
    }
    homes.SYSTEM_CONFIG, homes.SYSTEM_STATE = folder / "etc", folder / "lib"
    socket_paths.SYSTEM_DIR = folder / "run"
    transient.BOOTED = folder / "no-systemd"
    pynvml.CDLL = _no_library  # the variable counts only from a process's start on
    return folder


def _made(folder: Path) -> str:
    folder.mkdir()
    return str(folder)


def _no_driver(folder: Path) -> str:
    """An empty file ends the search for the driver's library: the linker takes the first of that name, or none."""
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").touch()
    return str(folder)


def _library_path() -> list[str]:
    return [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]


def _no_library(name: str, *rest: object) -> None:
    raise OSError(f"{name} is hidden from the tests")
