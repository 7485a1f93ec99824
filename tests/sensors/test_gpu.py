"""GPU memory through the real pynvml and a stand-in for the driver's library."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.jobs.base import GpuPlan
from tests.practice import gpus as practice
from tests.practice.nvml.build import NoCompilerError, build, compiler
from tests.practice.processes import start_ticks
from tests.sensors.support import until

MIB = 1 << 20
GIB = 1 << 30

try:
    compiler()
except NoCompilerError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture(scope="session")
def states_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml-states")
    target = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_states.c")
    subprocess.run([*compiler(), "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
    return folder


class Servers:
    """For each library that stands for the driver's, a process that makes probes which find it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, tuple[Path, subprocess.Popen[bytes]]] = {}

    def connect(self, library_path: str) -> socket.socket:
        if library_path not in self._running:
            path = self._folder / str(len(self._running))
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
                listener.listen()
                env = {"LD_LIBRARY_PATH": library_path, "PYTHONPATH": str(Path(__file__).parents[2])}
                words = [sys.executable, str(Path(__file__).with_name("gpu_probe.py"))]
                process = subprocess.Popen(words, stdin=listener, env={**os.environ, **env})
            self._running[library_path] = path, process
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(str(self._running[library_path][0]))
        return connection

    def close(self) -> None:
        for _, process in self._running.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="gpu") as folder:  # a short path: Linux allows a socket's 107 bytes
        made = Servers(Path(folder))
        yield made
        made.close()


class Probe:
    def __init__(self, plan: GpuPlan, connection: socket.socket, env: dict[str, str]) -> None:
        self._connection = connection
        self._lines = connection.makefile("rw")
        self._tell(json.dumps([[plan.inference, plan.trainer], env]))
        self.said: list[Any] = []
        self.heard: list[Any] = []

    def look(self, now: float) -> Any:
        """What one look at time ``now`` says of memory; None for nothing. What else it says is in ``heard``."""
        self._tell(f"look {now}")
        facts = json.loads(self._lines.readline())
        looks = [fact for fact in facts if fact.pop("kind") == "GpuLook"]
        self.heard += [fact for fact in facts if fact not in looks]
        assert len(looks) <= 1
        return looks[0] if looks else None

    def start(self) -> None:
        self._tell("start")
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was closed
            for line in self._lines:
                self.said += json.loads(line)

    def _tell(self, line: str) -> None:
        self._lines.write(line + "\n")
        self._lines.flush()

    def end(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


Start = Callable[..., Probe]


@pytest.fixture
def start(servers: Servers) -> Iterator[Start]:
    probes: list[Probe] = []

    def make(plan: GpuPlan, LD_LIBRARY_PATH: str = "", **env: str) -> Probe:
        probes.append(Probe(plan, servers.connect(LD_LIBRARY_PATH), env))
        return probes[-1]

    yield make
    for probe in probes:
        probe.end()


class Pod:
    """Practice GPUs whose memory a test sets."""

    def __init__(self, folder: Path, library: Path, count: int = 3, total_bytes: int = 80 * GIB) -> None:
        self.folder = folder
        self.total_bytes = total_bytes
        self.uuids = practice.make_gpus(folder, count, total_bytes)
        self.env = {"LD_LIBRARY_PATH": str(library), "PRACTICE_GPUS": str(folder)}

    def use(self, *used_bytes: int) -> None:
        """What each GPU holds, as the driver's own share, so that it needs no process."""
        lines = [f"{uuid} {self.total_bytes} {used} H100\n" for uuid, used in zip(self.uuids, used_bytes, strict=True)]
        (self.folder / "new").write_text("".join(lines))
        (self.folder / "new").replace(self.folder / "gpus")

    def error(self, code: int | None) -> None:
        if code is None:
            (self.folder / "error").unlink()
        else:
            (self.folder / "error").write_text(str(code))


@pytest.fixture
def pod(tmp_path: Path, library: Path) -> Pod:
    return Pod(tmp_path, library)


def used(fact: Any) -> list[tuple[int, str, int]]:
    assert fact["reason"] == ""
    return [(gpu["index"], gpu["role"], gpu["used_bytes"]) for gpu in fact["gpus"]]


def test_the_runs_gpus_by_number_and_by_uuid_with_their_roles_and_no_others(start: Start, pod: Pod) -> None:
    pod.use(600 * MIB, 70 * GIB, 60 * GIB)
    fact = start(GpuPlan(["1"], [pod.uuids[2]]), **pod.env).look(0)
    assert used(fact) == [(1, "inference", 70 * GIB), (2, "trainer", 60 * GIB)]
    assert [gpu["uuid"] for gpu in fact["gpus"]] == pod.uuids[1:]
    assert {gpu["total_bytes"] for gpu in fact["gpus"]} == {80 * GIB}


def test_one_gpu_that_engine_and_trainer_share(start: Start, pod: Pod) -> None:
    fact = start(GpuPlan(["0", "1"], [pod.uuids[0][:12]]), **pod.env).look(0)
    assert [(gpu["index"], gpu["role"]) for gpu in fact["gpus"]] == [(0, "shared"), (1, "inference")]


def test_without_a_plan_all_gpus_are_shown_as_others(start: Start, pod: Pod) -> None:
    fact = start(GpuPlan(), **pod.env).look(0)
    assert [(gpu["index"], gpu["role"]) for gpu in fact["gpus"]] == [(0, "other"), (1, "other"), (2, "other")]


def test_a_look_is_told_when_memory_moves_and_at_the_heartbeat(start: Start, pod: Pod) -> None:
    probe = start(GpuPlan(["0"], ["1"]), **pod.env)
    pod.use(600 * MIB, 600 * MIB, 0)
    assert used(probe.look(0)) == [(0, "inference", 600 * MIB), (1, "trainer", 600 * MIB)]
    pod.use(640 * MIB, 600 * MIB, 70 * GIB)
    assert probe.look(1) is None, "40 MiB are noise, and GPU 2 is not ours"
    pod.use(70 * GIB, 600 * MIB, 0)
    assert used(probe.look(2))[0] == (0, "inference", 70 * GIB)
    pod.use(70 * GIB + 60 * MIB, 600 * MIB, 0)
    assert probe.look(3) is None
    pod.use(70 * GIB + 65 * MIB, 600 * MIB, 0)
    assert used(probe.look(4))[0] == (0, "inference", 70 * GIB + 65 * MIB)
    assert probe.look(13.9) is None
    assert probe.look(14) is not None
    pod.use(0, 600 * MIB, 0)
    assert used(probe.look(15))[0] == (0, "inference", 0)


def test_a_gpu_that_becomes_empty_by_a_small_step_is_news(start: Start, pod: Pod) -> None:
    probe = start(GpuPlan(["0"]), **pod.env)
    pod.use(70 * GIB, 0, 0)
    probe.look(0)
    limit = 80 * GIB // 50
    pod.use(limit + 10 * MIB, 0, 0)
    assert probe.look(1) is not None
    pod.use(limit - 10 * MIB, 0, 0)
    assert used(probe.look(2)) == [(0, "inference", limit - 10 * MIB)]


def test_a_small_gpu_moves_in_small_steps(start: Start, tmp_path: Path, library: Path) -> None:
    pod = Pod(tmp_path, library, count=1, total_bytes=1000 * MIB)
    probe = start(GpuPlan(["0"]), **pod.env)
    pod.use(900 * MIB)
    probe.look(0)
    pod.use(904 * MIB)
    assert probe.look(1) is None
    pod.use(906 * MIB)
    assert probe.look(2) is not None


def test_processes_are_named_where_the_driver_shows_them_and_unknown_where_it_hides_them(
    start: Start, pod: Pod
) -> None:
    pod.use(0, 0, 70 * GIB)
    (pod.folder / f"pid.{os.getpid()}").write_text(f"{start_ticks('self')}\n0 {10 * GIB}\n")
    fact = start(GpuPlan(["0", "1", "2"]), **pod.env).look(0)
    assert [gpu["pids"] for gpu in fact["gpus"]] == [[os.getpid()], [], None]


def test_no_library_no_driver_no_permission_are_each_unknown_with_a_sentence(start: Start, pod: Pod) -> None:
    fact = start(GpuPlan(["0"])).look(0)
    assert fact["gpus"] == []
    assert fact["reason"].startswith("libnvidia-ml.so.1 was not found: no NVIDIA driver here")

    probe = start(GpuPlan(["0"]), LD_LIBRARY_PATH=pod.env["LD_LIBRARY_PATH"])
    assert probe.look(0)["reason"] == "the NVIDIA driver is not loaded"
    assert probe.look(1) is None, "said once"
    assert probe.look(10)["reason"] == "the NVIDIA driver is not loaded", "and at the heartbeat"

    pod.error(4)
    assert start(GpuPlan(["0"]), **pod.env).look(0)["reason"].startswith("no permission to talk to the driver")


def test_the_driver_fails_and_comes_back(start: Start, pod: Pod) -> None:
    probe = start(GpuPlan(["0"]), **pod.env)
    pod.use(GIB, 0, 0)
    assert used(probe.look(0)) == [(0, "inference", GIB)]
    pod.error(999)
    assert probe.look(1) == {"gpus": [], "reason": "NVML failed: Unknown Error", "lost": [], "host": ""}
    pod.error(None)
    assert probe.look(2) is None, "tried again every 5 s"
    assert used(probe.look(6)) == [(0, "inference", GIB)]
    assert probe.look(7) is None


def test_the_driver_hangs_and_comes_back(start: Start, pod: Pod) -> None:
    probe = start(GpuPlan(["0"]), **pod.env)
    pod.use(GIB, 0, 0)
    probe.start()
    until(lambda: probe.said, "a first look")
    (pod.folder / "hang").touch()
    until(lambda: probe.said[-1]["reason"], "unknown")
    assert probe.said[-1]["reason"].startswith("gpu did not answer for ")
    (pod.folder / "hang").unlink()
    until(lambda: not probe.said[-1]["reason"], "the driver is back")
    assert used(probe.said[-1]) == [(0, "inference", GIB)]


def test_a_gpu_that_is_not_there_is_a_sentence(start: Start, pod: Pod) -> None:
    reasons = [
        start(GpuPlan([name]), **pod.env).look(0)["reason"] for name in ("7", "GPU-0123", "GPU-", "MIG-1234-5678")
    ]
    assert reasons == [
        "there is no GPU 7: this machine has 3, counted from 0",
        "no GPU is named GPU-0123 on this machine",
        "more than one GPU is named GPU- on this machine",
        "MIG-1234-5678 is a MIG device, and memory of MIG devices is not looked at",
    ]


class States:
    def __init__(self, folder: Path, library: Path) -> None:
        self.file = folder / "states"
        self.xids, self.kmsg = folder / "xids", folder / "kmsg"
        self.kmsg.touch()
        self.env = {"LD_LIBRARY_PATH": str(library), "NVML_STATES": str(self.file), "KMSG": str(self.kmsg)}
        self.with_events = {**self.env, "NVML_XIDS": str(self.xids)}

    def xid(self, letter: str, number: int) -> None:
        with self.xids.open("a") as file:
            file.write(f"GPU-{letter} {number}\n")

    def log(self, *lines: str) -> None:
        """The kernel logs something; /dev/kmsg's form."""
        with self.kmsg.open("a") as file:
            file.writelines(f"4,1234,5678,-;{line}\n" for line in lines)

    def set(self, *states: str) -> None:
        self.file.write_text(
            "".join(f"GPU-{letter} {GIB} {state}\n" for letter, state in zip("abc", states, strict=True))
        )


@pytest.fixture
def states(tmp_path: Path, states_library: Path) -> States:
    return States(tmp_path, states_library)


def test_a_gpu_falls_off_the_bus_and_its_number_never_means_another_one(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    probe = start(GpuPlan(["1"]), **states.env)
    assert probe.look(0)["gpus"][0]["uuid"] == "GPU-b"
    states.set("ok", "lost", "ok")
    fact = probe.look(1)
    assert (fact["gpus"], fact["lost"], fact["reason"]) == ([], ["GPU 1: GPU is lost"], "")
    assert probe.look(2) is None, "said once"
    assert probe.look(6) is None, "NVML was opened anew, and nothing is new"
    states.set("ok", "gone", "ok")
    assert probe.look(11)["lost"] == ["GPU 1: GPU is lost"], "GPU-c is number 1 now, and none of ours"
    states.set("ok", "ok", "ok")
    fact = probe.look(20)
    assert (fact["gpus"][0]["uuid"], fact["lost"]) == ("GPU-b", [])


def test_one_lost_gpu_hides_no_other_one(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    probe = start(GpuPlan(["0", "1"], ["GPU-c"]), **states.env)
    probe.look(0)
    states.set("ok", "lost", "ok")
    fact = probe.look(1)
    assert used(fact) == [(0, "inference", GIB), (2, "trainer", GIB)]
    assert fact["lost"] == ["GPU 1: GPU is lost"]
    assert probe.look(2) is None
    assert probe.look(11)["lost"] == ["GPU 1: GPU is lost"], "at the heartbeat, too"
    states.set("ok", "ok", "ok")
    fact = probe.look(12)
    assert [gpu["index"] for gpu in fact["gpus"]] == [0, 1, 2] and fact["lost"] == []


def test_a_lost_gpu_that_was_reset_is_found_when_nvml_is_opened_anew(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    probe = start(GpuPlan(["0"], ["2"]), **states.env)
    probe.look(0)
    states.set("ok", "ok", "lost")
    assert probe.look(1)["lost"] == ["GPU 2: GPU is lost"]
    states.set("ok", "ok", "gone")
    assert probe.look(301)["lost"] == ["GPU 2: GPU is lost"], "NVML was opened anew, and it is not even listed now"
    states.set("ok", "ok", "ok")
    assert probe.look(400)["lost"] == ["GPU 2: GPU is lost"], "that takes NVML to be opened anew once more"
    fact = probe.look(601)
    assert (used(fact), fact["lost"]) == ([(0, "inference", GIB), (2, "trainer", GIB)], [])


def test_a_gpu_that_vanishes_while_the_driver_is_away_is_lost(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    probe = start(GpuPlan(["0"], ["GPU-c"]), **states.env)
    probe.look(0)
    states.set("999", "ok", "999")
    assert probe.look(1)["reason"] == "NVML failed: Unknown Error"
    states.set("ok", "ok", "gone")
    fact = probe.look(6)
    assert (used(fact), fact["lost"]) == ([(0, "inference", GIB)], ["GPU GPU-c: it is not on the bus any more"])


def test_without_a_plan_no_gpu_is_the_runs_and_none_is_called_lost(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    probe = start(GpuPlan(), **states.with_events)
    probe.look(0)
    states.set("ok", "lost", "ok")
    states.xid("b", 79)
    fact = probe.look(1)
    assert ([gpu["index"] for gpu in fact["gpus"]], fact["lost"]) == ([0, 2], [])
    assert [heard["sentence"] for heard in probe.heard] == [
        "GPU 1 cannot be read (NVML: GPU is lost); the others are looked at."
    ]


@pytest.mark.parametrize(("code", "text"), [("999", "Unknown Error"), ("6", "Not Found")])
def test_an_unknown_error_of_one_gpu_is_asked_again_before_it_is_called_lost(
    start: Start, states: States, code: str, text: str
) -> None:
    states.set("ok", "ok", "ok")
    probe = start(GpuPlan(["0", "1"]), **states.env)
    probe.look(0)
    states.set("ok", code, "ok")
    assert probe.look(1) is None
    states.set("ok", "ok", "ok")
    assert probe.look(2) is None, "it was a hiccup"
    states.set("ok", code, "ok")
    assert [probe.look(now) for now in (3, 4)] == [None, None]
    fact = probe.look(5)
    assert (used(fact), fact["lost"]) == ([(0, "inference", GIB)], [f"GPU 1: {text}"])
    assert probe.heard == []


def test_an_error_of_all_gpus_is_the_drivers_and_none_is_called_lost(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    probe = start(GpuPlan(["0", "1"]), **states.env)
    probe.look(0)
    states.set("999", "999", "ok")
    fact = probe.look(1)
    assert (fact["gpus"], fact["lost"], fact["reason"]) == ([], [], "NVML failed: Unknown Error")


def test_a_number_that_never_existed_is_said_once_and_hides_no_other_gpu(start: Start, pod: Pod) -> None:
    probe = start(GpuPlan(["0", "9"], ["1"]), **pod.env)
    fact = probe.look(0)
    assert [(gpu["index"], gpu["role"]) for gpu in fact["gpus"]] == [(0, "inference"), (1, "trainer")]
    assert (fact["lost"], fact["reason"]) == ([], "")
    remark = {
        "event": "gpu",
        "sentence": "[gpus]: there is no GPU 9: this machine has 3, counted from 0; the others are looked at.",
        "level": "info",
    }
    assert probe.heard == [remark]
    pod.error(999)
    probe.look(10)
    pod.error(None)
    assert probe.look(20)["reason"] == ""
    assert probe.heard == [remark], "not once more when NVML is opened anew"


def test_a_gpu_that_was_never_well_is_not_called_lost(start: Start, states: States) -> None:
    states.set("ok", "lost", "ok")
    probe = start(GpuPlan(["0", "1"]), **states.env)
    fact = probe.look(0)
    assert (used(fact), fact["lost"]) == ([(0, "inference", GIB)], [])
    (remark,) = probe.heard
    assert remark["sentence"] == "[gpus]: GPU 1 cannot be read (NVML: GPU is lost); the others are looked at."


# ---------------------------------------------------------------- faults


def test_an_xid_of_the_runs_gpu_is_told_and_another_runs_is_not(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    states.xid("b", 31)
    probe = start(GpuPlan(["1"], ["2"]), **states.with_events)
    probe.look(0)
    assert probe.heard == [], "what was before is not told"
    states.xid("b", 79)
    states.xid("a", 13)
    states.xid("c", 94)
    states.log("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.")
    assert probe.look(1) is None
    assert [(one["gpu"], one["xid"], one["text"]) for one in probe.heard] == [("GPU 1", 79, ""), ("GPU 2", 94, "")]
    probe.look(2)
    assert len(probe.heard) == 2, "once, though the kernel logs it too"


def test_an_xid_is_still_told_when_its_gpu_is_lost_with_it_and_after_nvml_was_opened_anew(
    start: Start, states: States
) -> None:
    states.set("ok", "ok", "ok")
    probe = start(GpuPlan(["0"], ["1"]), **states.with_events)
    probe.look(0)
    states.set("ok", "lost", "ok")
    states.xid("b", 79)
    assert probe.look(1)["lost"] == ["GPU 1: GPU is lost"]
    assert [fault["xid"] for fault in probe.heard] == [79]
    states.set("ok", "ok", "ok")
    probe.look(400)
    states.xid("b", 48)
    probe.look(401)
    assert [fault["xid"] for fault in probe.heard] == [79, 48]


def test_without_events_the_kernels_log_tells(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    states.log("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=old, an old fault")
    probe = start(GpuPlan(["1"]), **states.env)
    probe.look(0)
    states.log(
        "usb 1-1: new device",
        "NVRM: Xid (PCI:0000:3a:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "NVRM: Xid (PCI:00000000:3B:00.0): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)",
    )
    probe.look(1)
    assert [(one["gpu"], one["xid"], one["text"]) for one in probe.heard] == [
        ("GPU 1", 79, "pid=1234, name=python3, GPU has fallen off the bus."),
        ("GPU 1", 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)"),
    ]


def test_without_events_and_without_a_log_nothing_is_said_and_memory_is_looked_at(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    probe = start(GpuPlan(["1"]), **{**states.env, "KMSG": "/nonexistent"})
    assert used(probe.look(0)) == [(1, "inference", GIB)]
    assert probe.look(1) is None and probe.heard == []


def test_another_runs_lost_gpu_is_none_of_our_business(start: Start, states: States) -> None:
    states.set("lost", "ok", "ok")
    fact = start(GpuPlan(["1"], ["2"]), **states.env).look(0)
    assert used(fact) == [(1, "inference", GIB), (2, "trainer", GIB)]
    assert fact["gpus"][0]["pids"] is None, "this driver is too old to list processes"


@pytest.mark.parametrize("old_names", [False, True])
def test_a_gpu_whose_clocks_are_held_down_says_why_how_hot_it_is_and_how_fast(
    start: Start, states: States, tmp_path: Path, old_names: bool
) -> None:
    env = {**states.env, "NVML_CLOCKS": str(tmp_path / "clocks")}
    if old_names:  # a driver before 535
        target = tmp_path / "old" / "libnvidia-ml.so.1"
        target.parent.mkdir()
        source = Path(__file__).with_name("nvml_states.c")
        subprocess.run([*compiler(), "-DOLD_NAMES", "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
        env["LD_LIBRARY_PATH"] = str(target.parent)
    states.set("ok", "ok", "ok")
    (tmp_path / "clocks").write_text("GPU-a 4 70 1980 1980\nGPU-b 48 91 900 1980\n")
    probe = start(GpuPlan(["0"], ["1", "2"]), **env)
    read = [gpu["slowed"] for gpu in probe.look(0)["gpus"]]
    assert read == ["", "91 C, HW thermal slowdown, HW slowdown, 900 of 1980 MHz", None], (
        "a power cap is usual, and what is not supported is unknown"
    )
    (tmp_path / "clocks").write_text("GPU-a 80 0 0 1980\n")
    assert probe.look(5) is None, "it is looked at with the heartbeat only"
    assert [gpu["slowed"] for gpu in probe.look(11)["gpus"]] == ["HW power brake", None, None]


def test_what_a_gpu_draws_is_told_in_watts_and_unknown_where_it_is_not_measured(start: Start, states: States) -> None:
    states.set("ok", "ok", "ok")
    measured = start(GpuPlan(["1"]), **states.env, NVML_POWER="212345").look(0)
    assert [gpu["power_w"] for gpu in measured["gpus"]] == [212.0]
    unknown = start(GpuPlan(["1"]), **states.env).look(0)
    assert [gpu["power_w"] for gpu in unknown["gpus"]] == [None]


def test_mig_is_unknown_and_not_zero(start: Start, states: States) -> None:
    states.set("ok", "mig", "ok")
    assert start(GpuPlan(["1"]), **states.env).look(0)["reason"].startswith("GPU 1 is split by MIG")
    assert start(GpuPlan(["0"]), **states.env).look(0)["reason"] == ""
