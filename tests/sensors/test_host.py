"""What the host has left for the run: against this machine's own /proc, and against trees as containers show them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core.facts import HostLook
from supervisor.sensors.base import Looker
from supervisor.sensors.host import HostSensor, Roots
from tests.sensors.support import FakeClock, Inbox, until

GIB = 1 << 30
HOST_BYTES = 512 * GIB


class World:
    """A /proc and a /sys/fs/cgroup that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroup, self.shm = folder / "proc", folder / "cgroup", folder / "shm"
        self.shm.mkdir()
        self.clock = FakeClock()
        self.processes: list[tuple[int, str]] = []
        self.host(HOST_BYTES, 400 * GIB)
        self.write("proc/self/cgroup", "0::/\n")
        self.folder = folder

    def write(self, name: str, text: object) -> None:
        path = self.shm.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def host(self, total: int, available: int) -> None:
        self.write("proc/meminfo", f"MemTotal: {total >> 10} kB\nMemFree: 1 kB\nMemAvailable: {available >> 10} kB")

    def limit(self, group: str, limit: object, used: int, cache: int = 0) -> None:
        self.write(f"cgroup/{group}/memory.max", limit)
        self.write(f"cgroup/{group}/memory.current", used)
        self.write(f"cgroup/{group}/memory.stat", f"anon 1\ninactive_file {cache}\nactive_file 7")

    def process(self, pid: int, role: str, files: int, limit: object, group: str = "/") -> None:
        self.write(f"proc/{pid}/cgroup", f"0::{group}")
        head = "Limit                     Soft Limit           Hard Limit           Units\n"
        self.write(f"proc/{pid}/limits", f"{head}Max open files            {limit}                1048576      files")
        for number in range(files):
            self.write(f"proc/{pid}/fd/{number}", "")
        self.processes.append((pid, role))

    def sensor(self) -> HostSensor:
        roots = Roots(self.proc, self.cgroup, self.shm)
        return HostSensor(lambda: self.processes, roots=roots, heartbeat_s=60, clock=self.clock)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def look(sensor: HostSensor) -> HostLook:
    (fact,) = sensor.look()
    assert isinstance(fact, HostLook)
    return fact


def test_this_machine_and_its_own_process() -> None:
    with Path(os.devnull).open() as _:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        fact = look(HostSensor(lambda: [(os.getpid(), "trainer")]))
    assert fact.reason == ""
    assert fact.memory_total_bytes and fact.memory_available_bytes
    assert 0 < fact.memory_available_bytes <= fact.memory_total_bytes
    assert fact.open_files is not None and abs(fact.open_files - before) <= 3
    assert fact.open_files_limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert fact.open_files_of == f"trainer (pid {os.getpid()})"
    shm = os.statvfs("/dev/shm")
    assert fact.shm_total_bytes == shm.f_blocks * shm.f_frsize
    assert fact.oom_kills is not None and fact.oom_kills >= 0


def test_a_look_costs_next_to_nothing() -> None:
    sensor = HostSensor(lambda: [(os.getpid(), "trainer")] * 20)
    sensor.look()
    begun = time.thread_time()
    for _ in range(20):
        sensor.look()
    # Every 5 s, so that 25 ms a look would be half a percent of a core; measured: 1.5 ms with twenty processes.
    assert (time.thread_time() - begun) / 20 < 0.025


def test_a_container_has_its_limit_and_not_the_hosts_memory(world: World) -> None:
    world.limit("", 64 * GIB, used=60 * GIB, cache=20 * GIB)
    fact = look(world.sensor())
    assert (fact.memory_total_bytes, fact.memory_available_bytes) == (64 * GIB, 24 * GIB)


def test_without_a_limit_the_host_is_what_counts(world: World) -> None:
    world.limit("", "max", used=60 * GIB)
    fact = look(world.sensor())
    assert (fact.memory_total_bytes, fact.memory_available_bytes) == (HOST_BYTES, 400 * GIB)


def test_a_machine_that_is_short_is_short_whatever_the_limit_leaves(world: World) -> None:
    world.limit("", 64 * GIB, used=GIB)
    world.host(HOST_BYTES, 2 * GIB)
    assert look(world.sensor()).memory_available_bytes == 2 * GIB


def test_a_limit_further_up_counts_too(world: World) -> None:
    world.process(41, "trainer", 1, 1024, "/rl.slice/run.service")
    world.limit("rl.slice", 32 * GIB, used=30 * GIB)
    world.limit("rl.slice/run.service", 100 * GIB, used=29 * GIB)
    fact = look(world.sensor())
    assert (fact.memory_total_bytes, fact.memory_available_bytes) == (32 * GIB, 2 * GIB)


def test_version_one_in_a_container_whose_path_only_the_host_sees(world: World) -> None:
    world.write("proc/self/cgroup", "9:name=systemd:/docker/abc\n4:cpu,memory:/docker/abc\n0::/")
    world.write("cgroup/memory/memory.limit_in_bytes", 16 * GIB)
    world.write("cgroup/memory/memory.usage_in_bytes", 10 * GIB)
    world.write("cgroup/memory/memory.stat", f"inactive_file 5\ntotal_inactive_file {3 * GIB}")
    world.write("cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2")
    world.write("proc/pressure/memory", "some avg10=1.25 avg60=0.00 avg300=0.00 total=9")
    fact = look(world.sensor())
    assert (fact.memory_total_bytes, fact.memory_available_bytes) == (16 * GIB, 9 * GIB)
    assert (fact.oom_kills, fact.memory_pressure) == (2, 1.25)
    world.write("cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    assert look(world.sensor()).memory_total_bytes == HOST_BYTES, "that number is how version 1 says: no limit"


def test_pressure_is_the_cgroups_then_the_machines_then_unknown(world: World) -> None:
    assert look(world.sensor()).memory_pressure is None
    world.write("proc/pressure/memory", "some avg10=12.50 avg60=3.00 avg300=0.10 total=9\nfull avg10=9.00")
    assert look(world.sensor()).memory_pressure == 12.5
    world.process(41, "trainer", 1, 1024, "/run.service")
    world.write("cgroup/run.service/memory.pressure", "some avg10=40.00 avg60=3.00 avg300=0.10 total=9")
    assert look(world.sensor()).memory_pressure == 40.0


def test_the_machines_oom_kills_where_no_cgroup_tells(world: World) -> None:
    assert look(world.sensor()).oom_kills is None
    world.write("proc/vmstat", "nr_free_pages 1\noom_kill 7")
    assert look(world.sensor()).oom_kills == 7


def test_oom_kills_grow_on_although_the_jobs_cgroup_comes_and_goes(world: World) -> None:
    world.write("cgroup/supervisor.service/memory.events", "oom 0\noom_kill 0")
    world.write("proc/self/cgroup", "0::/supervisor.service")
    sensor = world.sensor()
    assert look(sensor).oom_kills == 0

    world.process(41, "trainer", 1, 1024, "/run-1.service")
    world.write("cgroup/run-1.service/memory.events", "oom_kill 0")
    sensor.look()
    world.write("cgroup/run-1.service/memory.events", "low 0\noom_kill 1\noom_group_kill 0")
    assert look(sensor).oom_kills == 1

    world.processes.clear()
    (world.cgroup / "run-1.service" / "memory.events").unlink()
    world.clock.now += 60
    assert look(sensor).oom_kills == 1, "the cgroup went with the job, what it counted did not"

    world.process(51, "trainer", 1, 1024, "/run-2.service")
    world.write("cgroup/run-2.service/memory.events", "oom_kill 0")
    sensor.look()
    world.write("cgroup/run-2.service/memory.events", "oom_kill 2")
    world.clock.now += 5
    assert look(sensor).oom_kills == 3


def test_the_process_nearest_to_its_limit_of_open_files_is_named(world: World) -> None:
    world.process(41, "trainer", 30, 1024)
    world.process(42, "inference", 20, 64)
    world.process(43, "orchestrator", 40, "unlimited")
    fact = look(world.sensor())
    assert (fact.open_files, fact.open_files_limit, fact.open_files_of) == (20, 64, "inference (pid 42)")


@pytest.fixture
def hoarder() -> Iterator[subprocess.Popen[str]]:
    source = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
    source += "kept = [open('/dev/null') for _ in range(50)]\nprint('ready', flush=True)\ninput()"
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    yield process
    process.communicate("\n", timeout=20)


def test_a_real_process_that_opens_file_after_file(hoarder: subprocess.Popen[str]) -> None:
    pid = hoarder.pid
    fact = look(HostSensor(lambda: [(os.getpid(), "trainer"), (pid, "env")]))
    assert fact.open_files_of == f"env (pid {pid})"
    assert fact.open_files_limit == 64 and fact.open_files is not None and 50 <= fact.open_files <= 60


def test_a_process_that_is_gone_is_no_trouble() -> None:
    fact = look(HostSensor(lambda: [(2**22 + 1, "trainer")]))
    assert fact.open_files is None and fact.memory_total_bytes


def test_a_busy_host_speaks_when_something_moved_and_at_the_heartbeat(world: World) -> None:
    world.limit("", 100 * GIB, used=50 * GIB)
    world.process(41, "trainer", 10, 100)
    world.write("proc/pressure/memory", "some avg10=0.00 total=1")
    world.write("cgroup/memory.events", "oom_kill 0")
    sensor = world.sensor()
    assert look(sensor).memory_available_bytes == 50 * GIB

    def soon() -> tuple[HostLook, ...]:
        world.clock.now += 1
        return tuple(sensor.look())  # type: ignore[arg-type]

    world.limit("", 100 * GIB, used=51 * GIB)
    world.process(41, "trainer", 13, 100)
    world.write("proc/pressure/memory", "some avg10=4.00 total=1")
    assert soon() == (), "one percent of memory, three files and a little pressure are noise"
    world.limit("", 100 * GIB, used=53 * GIB)
    assert len(soon()) == 1
    world.process(41, "trainer", 20, 100)
    assert soon()[0].open_files == 20
    world.write("proc/pressure/memory", "some avg10=11.00 total=1")
    assert soon()[0].memory_pressure == 11
    world.write("cgroup/memory.events", "oom_kill 1")
    assert soon()[0].oom_kills == 1
    assert soon() == ()
    world.limit("", 100 * GIB, used=98 * GIB)
    assert len(soon()) == 1
    world.limit("", 100 * GIB, used=98 * GIB + GIB // 2)
    assert len(soon()) == 1, "of 2 GiB that are left, half a GiB is news"
    world.clock.now += 60
    assert len(soon()) == 1, "and so is the heartbeat"


def test_a_proc_that_cannot_be_read_is_unknown(world: World) -> None:
    (world.proc / "meminfo").unlink()
    fact = look(world.sensor())
    assert fact.memory_total_bytes is None and fact.reason == f"{world.proc}/meminfo could not be read"


def test_a_host_that_hangs_is_unknown(world: World) -> None:
    (world.proc / "meminfo").unlink()
    os.mkfifo(world.proc / "meminfo")  # opening it waits for a writer, as a dead mount waits for its server
    inbox = Inbox()
    looker = Looker(world.sensor(), inbox, interval_s=0.02, deadline_s=0.2)
    looker.start()
    until(lambda: inbox.of(HostLook), "unknown")
    assert inbox.of(HostLook)[0].reason.startswith("host did not answer for ")
    fifo = os.open(world.proc / "meminfo", os.O_WRONLY)
    looker.stop(0)
    os.close(fifo)
    until(lambda: looker.stop(1), "the look returns")
