"""Room on the checkpoint volume, and configuration files that were changed under a running attempt."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.config.settings import RunFile
from supervisor.core.facts import ConfigChanged, DiskLook, Settings
from supervisor.core.state import State
from supervisor.daemon.active_sensors import ActiveSensors
from supervisor.jobs.plain import PlainJob
from supervisor.sensors.base import Sensor
from supervisor.sensors.config_watch import ConfigWatch
from supervisor.sensors.disk import DiskSensor
from tests.sensors.support import FakeClock


def look(sensor: DiskSensor) -> DiskLook:
    (fact,) = sensor.look()
    assert isinstance(fact, DiskLook)
    return fact


def test_a_folder_that_does_not_exist_yet_is_on_the_volume_of_its_parent(tmp_path: Path) -> None:
    here = os.statvfs(tmp_path)
    fact = look(DiskSensor(tmp_path / "outputs" / "run"))
    assert fact.path == str(tmp_path / "outputs" / "run") and fact.reason == ""
    assert fact.total_bytes is not None and fact.free_bytes is not None
    assert fact.total_bytes <= here.f_blocks * here.f_frsize
    assert abs(fact.free_bytes - here.f_bavail * here.f_frsize) < 1 << 30


def test_a_quota_counts_instead_of_the_clusters_space(tmp_path: Path) -> None:
    assert look(DiskSensor(tmp_path, capacity_bytes=1000, used_bytes=lambda: 400)) == DiskLook(str(tmp_path), 1000, 600)
    assert look(DiskSensor(tmp_path, capacity_bytes=1000, used_bytes=lambda: 1400)).free_bytes == 0
    assert look(DiskSensor(tmp_path, capacity_bytes=1000)).free_bytes == 1000
    real = look(DiskSensor(tmp_path)).free_bytes
    limited = look(DiskSensor(tmp_path, capacity_bytes=1 << 62, used_bytes=lambda: 0)).free_bytes
    assert real is not None and limited is not None and abs(limited - real) < 1 << 30, "real space still ends somewhere"


def test_a_volume_that_cannot_be_asked_is_unknown_and_not_full(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    fact = look(DiskSensor(tmp_path / "loop" / "run"))
    assert (fact.total_bytes, fact.free_bytes) == (None, None)
    assert fact.reason.startswith(f"statvfs of {tmp_path / 'loop' / 'run'} failed: Too many levels of symbolic links")


def test_a_volume_without_inodes_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = list(os.statvfs(tmp_path))
    values[5:8] = [100, 0, 0]  # f_files, f_ffree, f_favail
    full = os.statvfs_result(values)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert look(DiskSensor(tmp_path)).free_bytes == 0


def test_a_volume_that_tells_no_size_is_unknown_and_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = os.statvfs_result([4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255])
    monkeypatch.setattr(os, "statvfs", lambda path: silent)
    assert look(DiskSensor(tmp_path)) == DiskLook(
        str(tmp_path), reason=f"the file system of {tmp_path} does not tell its size"
    )
    known = DiskSensor(tmp_path, capacity_bytes=1000, used_bytes=lambda: 400)
    assert look(known) == DiskLook(str(tmp_path), 1000, 600), "what a person says counts"


def test_the_volume_of_the_steps_is_watched_where_it_is_mounted_below_the_output_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"start": ["x"], "resume": ["x", "{step}"], "checkpoint": "ckpt/{step}"}
    job = {"kind": "command", "dir": str(tmp_path), "output_dir": "out", "plain": plain}
    run = RunFile.model_validate({"run": {"id": "r", "state_dir": str(tmp_path / "state")}, "job": job})
    (tmp_path / "out" / "ckpt").mkdir(parents=True)
    room = os.statvfs(tmp_path)
    full = os.statvfs_result([4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255])
    monkeypatch.setattr(os, "statvfs", lambda path: full if Path(path) == tmp_path / "out" / "ckpt" else room)
    watched: list[Sensor] = []
    sensors = ActiveSensors(run, lambda fact, source: None, Path, lambda: State(Settings("r")), lambda: None)
    monkeypatch.setattr(sensors, "start_sensor", lambda sensor, *rest, **more: watched.append(sensor))
    sensors.watch_pod(PlainJob(run, {}))
    (disk,) = (one for one in watched if isinstance(one, DiskSensor))
    assert disk.measure() == DiskLook(str(tmp_path / "out" / "ckpt"), 4096 * 1000, 0)


def test_the_disk_is_told_of_when_it_changes_and_at_a_slow_heartbeat(tmp_path: Path) -> None:
    clock, used = FakeClock(), [0]
    sensor = DiskSensor(tmp_path, capacity_bytes=1_000_000, used_bytes=lambda: used[0], heartbeat_s=60, clock=clock)
    assert look(sensor).free_bytes == 1_000_000
    used[0] = 1_000
    assert sensor.look() == ()
    used[0] = 10_000
    assert look(sensor).free_bytes == 990_000
    clock.now += 59
    assert sensor.look() == ()
    clock.now += 1
    assert look(sensor).free_bytes == 990_000
    assert sensor.unknown("disk did not answer for 10 s") == (
        DiskLook(str(tmp_path), reason="disk did not answer for 10 s"),
    )
    assert look(sensor).free_bytes == 990_000, "after unknown, everything is said anew"


def test_a_configuration_that_was_changed_is_reported_once(tmp_path: Path) -> None:
    original, snapshot, other = tmp_path / "rl.toml", tmp_path / "snapshot.toml", tmp_path / "other.toml"
    for path in (original, snapshot, other):
        path.write_text("lr = 1e-5\n")
    watch = ConfigWatch({original: snapshot, other: snapshot})
    assert watch.look() == []
    os.utime(original, (1, 1))
    assert watch.look() == [], "touched, not changed"
    original.rename(tmp_path / "rl.toml~")
    assert watch.look() == [], "an editor is at work"
    original.write_text("lr = 2e-5\n")
    assert watch.look() == [ConfigChanged(str(original))]
    original.write_text("lr = 3e-5\n")
    assert watch.look() == []
    other.write_text("lr = 3e-5\n")
    assert watch.look() == [ConfigChanged(str(other))]
    other.unlink()
    assert watch.look() == []
    other.write_text("lr = 1e-5\n")
    assert watch.look() == [ConfigChanged(str(other), same=True)], "the edit was taken back"
    assert watch.look() == []


def test_the_next_watch_takes_back_what_is_true_no_longer(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text("new" if name == "c" else "old")
    snapshots = {tmp_path / "a": tmp_path / "b", tmp_path / "c": tmp_path / "b"}
    watch = ConfigWatch(snapshots, [str(tmp_path / "a"), str(tmp_path / "c")])
    assert watch.look() == [ConfigChanged(str(tmp_path / "a"), same=True)]


def test_a_configuration_that_had_changed_before_anybody_looked_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    assert ConfigWatch({tmp_path / "a": tmp_path / "b"}).look() == [ConfigChanged(str(tmp_path / "a"))]
    assert ConfigWatch({tmp_path / "a": tmp_path / "missing"}).look() == []
