"""The NVML stand-in through the real pynvml: memory follows the processes that hold it, and the driver can be sick."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.practice import gpus
from tests.practice.nvml.build import build

GIB = 1 << 30
HOLDER = """
import time
from tests.practice import gpus
gpus.hold_memory({1: 40 << 30})
print(flush=True)
time.sleep(600)
"""
WATCHER = """
import sys, pynvml as n
n.nvmlInit()
for line in sys.stdin:
    try:
        h = n.nvmlDeviceGetHandleByIndex(1)
        pids = [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)]
        with_reserved, held = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
        print(with_reserved.used, held.used, *pids, flush=True)
    except n.NVMLError as error:
        print("error", error.value, flush=True)
"""


class Watcher:
    """A process that reads the GPUs with pynvml, as a sensor does."""

    def __init__(self, folder: Path, library: Path) -> None:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "PRACTICE_GPUS": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WATCHER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> list[str]:
        assert self.process.stdout
        return self.process.stdout.readline().split()

    def look(self) -> list[str]:
        self.ask()
        return self.answer()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    gpus.make_gpus(tmp_path / "gpus", 2, 80 * GIB, reserved_bytes=GIB)
    monkeypatch.setenv("PRACTICE_GPUS", str(tmp_path / "gpus"))
    return tmp_path / "gpus"


@pytest.fixture
def watcher(folder: Path, tmp_path: Path) -> Iterator[Watcher]:
    one = Watcher(folder, build(tmp_path / "driver"))
    yield one
    one.process.kill()
    one.process.communicate()


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.soak
def test_memory_is_kept_by_a_stopped_process_and_freed_by_a_killed_one(
    watcher: Watcher, holder: subprocess.Popen[bytes]
) -> None:
    pid = str(holder.pid)
    assert watcher.look() == [str(41 * GIB), str(40 * GIB), pid]

    holder.send_signal(signal.SIGSTOP)
    assert watcher.look() == [str(41 * GIB), str(40 * GIB), pid]

    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert watcher.look() == [str(GIB), "0"], "a zombie holds nothing"


def test_a_file_of_an_earlier_process_with_the_same_pid_counts_nothing(watcher: Watcher, folder: Path) -> None:
    (folder / f"pid.{os.getpid()}").write_text(f"1\n1 {40 * GIB}\n")

    assert watcher.look() == [str(GIB), "0"]


def test_a_sick_driver_returns_its_error_and_a_hanging_one_does_not_return(watcher: Watcher, folder: Path) -> None:
    assert watcher.look() == [str(GIB), "0"]
    (folder / "error").write_text("15")
    assert watcher.look() == ["error", "15"]
    (folder / "error").unlink()

    (folder / "hang").touch()
    watcher.ask()
    with pytest.raises(subprocess.TimeoutExpired):
        watcher.process.wait(timeout=0.3)
    (folder / "hang").unlink()

    assert watcher.answer() == [str(GIB), "0"]


@pytest.mark.soak
def test_the_library_is_built_again_only_when_its_source_changed(tmp_path: Path) -> None:
    first = build(tmp_path).stat().st_mtime_ns

    assert build(tmp_path).stat().st_mtime_ns == first
    (tmp_path / "libnvidia-ml.so.1.source").write_text("older")
    assert build(tmp_path).stat().st_mtime_ns != first
