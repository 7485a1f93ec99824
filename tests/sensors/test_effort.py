"""What processes do, read from a real process and from a /proc made by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from supervisor.core.facts import Effort, EffortLook
from supervisor.sensors.effort import EffortSensor
from supervisor.sensors.processes import identity_of


def stat(
    folder: Path, pid: int, ticks: int, user: int, *, system: int = 100, state: str = "S", wchan: str = "0"
) -> None:
    (folder / str(pid)).mkdir(exist_ok=True)
    middle = " ".join(["0"] * 10)
    (folder / str(pid) / "stat").write_text(f"{pid} (a) b) {state} {middle} {user} {system} 0 0 0 0 0 0 {ticks} 0\n")
    (folder / str(pid) / "wchan").write_text(wchan)


def test_cores_are_counted_from_look_to_look_and_a_call_that_no_signal_ends_is_named(tmp_path: Path) -> None:
    now = [100.0]
    watched = [("trainer", 11, 5), ("trainer", 12, 6), ("orchestrator", 13, 7)]
    sensor = EffortSensor(lambda: watched, proc=tmp_path, clock=lambda: now[0])  # type: ignore[arg-type, return-value]
    for pid, ticks in ((11, 5), (12, 6), (13, 7)):
        stat(tmp_path, pid, ticks, 100)
    assert sensor.look() == [], "there is nothing to compare it with"
    now[0] += 60
    stat(tmp_path, 11, 5, 6100)  # 60 s in a minute, at 100 ticks a second
    stat(tmp_path, 12, 6, 100, system=700)
    stat(tmp_path, 13, 7, 100, state="D", wchan="nfs4_wait_clnt_recover")
    assert sensor.look() == [
        EffortLook((Effort("trainer", 1.1, 0.1), Effort("orchestrator", 0.0, 0.0, "pid 13 in nfs4_wait_clnt_recover")))
    ]
    now[0] += 60
    stat(tmp_path, 11, 99, 100)  # the number belongs to another process by now
    stat(tmp_path, 13, 7, 100, state="D")
    assert sensor.look() == [
        EffortLook((Effort("trainer", 0.0, 0.0), Effort("orchestrator", 0.0, 0.0, "pid 13 in an uninterruptible call")))
    ]
    assert sensor.unknown("it took too long") == (EffortLook(reason="it took too long"),)
    assert sensor.look() == []


def test_a_real_process_that_computes_is_seen_to() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        known = identity_of(child.pid)
        assert known is not None
        sensor = EffortSensor(lambda: [("trainer", *known)])
        assert sensor.look() == []
        deadline, cores = time.monotonic() + 20, 0.0
        while time.monotonic() < deadline and cores < 0.2:
            time.sleep(0.3)
            (fact,) = sensor.look()
            assert isinstance(fact, EffortLook)
            cores = fact.efforts[0].cores
        assert cores >= 0.2
    finally:
        child.kill()
        child.wait()
