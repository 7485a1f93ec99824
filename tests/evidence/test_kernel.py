"""What the kernel said: a GPU that failed and a process that was killed, however old, or why nothing can be read."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.evidence import machine
from supervisor.evidence.collecting import Sink

from .rig import scene

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
OOM = "Out of memory: Killed process 4712 (VLLM::EngineCor) total-vm:1048576kB, anon-rss:524288kB, file-rss:0kB"
RECORDS = (
    f"3,1201,60000000,-;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n",
    "6,1202,61000000,-;usb 1-1: new high-speed USB device\n",
    f"3,1203,62500000,-;{OOM}\n",
    "6,1204,63000000,-;docker0: port 1 entered forwarding state\n",
    "6,1205,64000000,-;the last words but one\n",
    "6,1206,65000000,-;the last words\n",
)


@contextlib.contextmanager
def kmsg(records: Sequence[str]) -> Iterator[Path]:
    """As /dev/kmsg is read: each read gives one record (a pipe in packet mode does that), and none is no end."""
    reading, writing = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    try:
        for record in records:
            os.write(writing, record.encode())
        yield Path(f"/proc/self/fd/{reading}")
    finally:
        os.close(reading)
        os.close(writing)


def told(folder: Path, source: Path) -> str:
    sink = Sink()
    machine.kernel(scene(folder), sink, kmsg=source)
    return sink.close()[0]["kernel.txt"].decode()


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """The only programs that are found."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(os, "defpath", str(folder))


def test_an_xid_and_an_oom_kill_are_there_however_much_was_said_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "LAST_RECORDS", 2)
    with kmsg(RECORDS) as source:
        lines = told(tmp_path, source).splitlines()
    assert lines[0].startswith("# from /proc/self/fd/")
    assert [line.partition("] ")[2] or line for line in lines[1:]] == [
        XID,
        OOM,
        "# the last ones",
        "the last words but one",
        "the last words",
    ]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[60\.000\] NVRM", lines[1]), "wall clock and seconds since boot"


def test_its_times_are_those_of_the_jobs_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for zone in ("UTC", "XST-3"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        with kmsg(RECORDS) as source:
            line = next(line for line in told(tmp_path, source).splitlines() if XID in line)
        found.append(datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC))
    monkeypatch.undo()
    time.tzset()
    assert round((found[1] - found[0]).total_seconds() / 60) == 180


def test_what_kmsg_refuses_the_commands_may_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, dmesg=f"echo '[60.0] {XID}'")
    assert told(tmp_path, tmp_path / "none") == f"# from dmesg\n# the last ones\n[60.0] {XID}\n"


def test_where_nothing_can_be_read_each_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, dmesg="echo 'dmesg: read kernel buffer failed: Operation not permitted'; exit 1")
    text = told(tmp_path, tmp_path / "none")
    assert text.startswith(f"The kernel's messages cannot be read here: {tmp_path}/none: No such file or directory; ")
    assert "; dmesg: dmesg: read kernel buffer failed: Operation not permitted; " in text
    assert text.endswith("journalctl: No such file or directory.\n")
    with kmsg(()) as source:
        assert f"cannot be read here: {source} is empty; " in told(tmp_path, source)
