"""What processes do, read from a real process and from a /proc made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.core.facts import Effort, EffortLook
from supervisor.sensors import effort
from supervisor.sensors.effort import EffortSensor
from supervisor.sensors.processes import identity_of

PAGE = os.sysconf("SC_PAGE_SIZE")


def stat(
    folder: Path, pid: int, ticks: int, user: int, *, system: int = 100, state: str = "S", wchan: str = "0"
) -> None:
    (folder / str(pid)).mkdir(exist_ok=True)
    middle = " ".join(["0"] * 10)
    (folder / str(pid) / "stat").write_text(f"{pid} (a) b) {state} {middle} {user} {system} 0 0 0 0 0 0 {ticks} 0\n")
    (folder / str(pid) / "wchan").write_text(wchan)


def net(folder: Path, received: int, sent: int) -> Path:
    path = folder / "net"
    path.write_text(f"a\nb\n    lo: 99999999 1 0 0 0 0 0 0 9 1\n  eth0: {received} 1 0 0 0 0 0 0 {sent} 1\n")
    return path


def moved(folder: Path, pid: int, read: int, written: int = 0) -> None:
    (folder / str(pid) / "io").write_text(
        f"rchar: {read}\nwchar: {written}\nsyscr: 9\nsyscw: 9\nread_bytes: 0\nwrite_bytes: 0\n"
    )


def test_cores_and_bytes_are_counted_from_look_to_look_and_a_call_that_no_signal_ends_is_named(tmp_path: Path) -> None:
    now = [100.0]
    watched = [
        *(("trainer", 11, 5, True), ("trainer", 12, 6, True), ("orchestrator", 13, 7, True)),
        *(("inference", 14, 8, False), (None, 15, 9, False)),
    ]
    port = tmp_path / "ib/mlx5_0/ports/1/counters/port_rcv_data"
    port.parent.mkdir(parents=True)
    port.write_text("0\n")
    sensor = EffortSensor(
        lambda: watched,  # type: ignore[arg-type, return-value]
        proc=tmp_path,
        net=net(tmp_path, 0, 0),
        infiniband=tmp_path / "ib",
        vmstat=tmp_path / "vmstat",
        clock=lambda: now[0],  # type: ignore[arg-type]
    )
    (tmp_path / "vmstat").write_text("nr_dirty 7\nnr_written 1000\n")
    for pid, ticks in ((11, 5), (12, 6), (13, 7), (14, 8), (15, 9)):
        stat(tmp_path, pid, ticks, 100)
        moved(tmp_path, pid, 1000)
    assert sensor.look() == [], "there is nothing to compare it with"
    now[0] += 60
    stat(tmp_path, 11, 5, 6100)  # 60 s in a minute, at 100 ticks a second
    stat(tmp_path, 12, 6, 100, system=700)
    stat(tmp_path, 13, 7, 100, state="D", wchan="nfs4_wait_clnt_recover")
    stat(tmp_path, 14, 8, 99999)  # a worker of the engine waits in a loop, and what it reads are its tokens
    moved(tmp_path, 14, 10**12)
    stat(tmp_path, 15, 9, 3100)
    moved(tmp_path, 12, 1000 + 600_000_000)
    net(tmp_path, 60_000_000, 1_000_000_000)  # 40 MB of it acknowledge what is sent
    port.write_text("15000000\n")
    (tmp_path / "vmstat").write_text(f"nr_dirty 7\nnr_written {1000 + 3 * 10**8 * 60 // PAGE}\n")
    efforts = (Effort("trainer", 1.1, 0.1), Effort("orchestrator", 0.0, 0.0, "pid 13 in nfs4_wait_clnt_recover"))
    assert sensor.look() == [EffortLook(efforts, "", 0.5, 1e7, 1.3e6, flushed_bytes_s=3.2e8)]
    now[0] += 60
    stat(tmp_path, 11, 99, 100)  # the number belongs to another process by now
    stat(tmp_path, 13, 7, 100, state="D")
    (tmp_path / "12/io").unlink()  # another user's
    (tmp_path / "net").unlink(), (tmp_path / "vmstat").unlink()
    efforts = (Effort("trainer", 0.0, 0.0), Effort("orchestrator", 0.0, 0.0, "pid 13 in an uninterruptible call"))
    assert sensor.look() == [EffortLook(efforts, "", 0.0, None, None)]
    now[0] += 10
    assert sensor.look() == [], "the same is told every 30 s"
    now[0] += 25
    assert sensor.look() == [EffortLook(efforts, "", 0.0, None, None)]
    assert sensor.unknown("it took too long") == (EffortLook(reason="it took too long"),)
    assert sensor.look() == []


def test_a_real_process_that_computes_is_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "HEARTBEAT_S", 0.0)
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        known = identity_of(child.pid)
        assert known is not None
        sensor = EffortSensor(lambda: [("trainer", *known, True)])
        assert sensor.look() == []
        deadline, cores = time.monotonic() + 20, 0.0
        while time.monotonic() < deadline and not cores:
            time.sleep(0.3)
            for fact in sensor.look():
                assert isinstance(fact, EffortLook)
                cores = fact.efforts[0].cores
        assert cores > 0
    finally:
        child.kill()
        child.wait()
