"""The record of a job that a person started and we only watch: an identity in the attempt's folder, where a job of ours
has a shim's record.

``NAME.attached.json`` holds pid, kernel start time and boot id. There is no shim, so the process is not our child: its
exit status belongs to its parent, and we only ever learn that it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from supervisor.base import proc_stat
from supervisor.base.errors import SupervisorError
from supervisor.base.records import dataclass
from supervisor.process import away, launch, shim_records
from supervisor.process.launch import ShimState
from supervisor.process.survivors import Identity, alive

ENDING = ".attached.json"
HOW = "attached"


@dataclass(frozen=True)
class Attached:
    """One record. ``process`` is pid and start ticks, ``boot_id`` the boot to which they belong."""

    component: str
    process: Identity
    boot_id: str
    started_wall: float
    title: str = ""

    @property
    def alive(self) -> bool:
        """Is exactly this process there?"""
        return proc_stat.is_this_boot(self.boot_id) and alive(self.process)


def write_record(folder: Path, component: str, process: Identity, title: str, captured: Path | None = None) -> None:
    """Take ``process`` into the attempt's ``folder`` as ``component``. Raises SupervisorError when it has ended.

    ``captured``: the plain file that its output goes to, if any; it then stands where a shim would have captured it.
    """
    if not alive(process):
        raise SupervisorError(f"Process {process[0]} has ended: there is nothing to attach to.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    if captured is not None:
        link = folder / f"{component}.log"
        link.unlink(missing_ok=True)
        link.symlink_to(captured)
    data: dict[str, object] = {
        "pid": process[0],
        "start_ticks": process[1],
        "boot_id": proc_stat.boot_id(),
        "started_wall": started_wall(process[1]),
        "title": title,
    }
    shim_records.write_atomically(str(folder / f"{component}{ENDING}"), data)


def read_records(folder: Path) -> list[Attached]:
    """The records in an attempt's folder; one that is damaged is left out, for it names no process any more."""
    records = map(_read_record, sorted(folder.glob(f"*{ENDING}")))
    return [record for record in records if record is not None]


def _read_record(path: Path) -> Attached | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        data = json.loads(path.read_bytes())
        process = (int(data["pid"]), int(data["start_ticks"]))
        component = path.name.removesuffix(ENDING)
        wall = float(data["started_wall"])
        return Attached(component, process, str(data["boot_id"]), wall, str(data.get("title", "")))
    return None


def find_living(folder: Path) -> Attached | None:
    """The record in an attempt's folder of a living process; None when it was not attached, or is over."""
    return next((record for record in read_records(folder) if record.alive), None)


def component_names(folder: Path) -> list[str]:
    """Every component of the attempt, those with a shim and those that were attached."""
    names = {path.name.removesuffix(".shim.json") for path in folder.glob("*.shim.json")}
    return sorted(names | {record.component for record in read_records(folder)} | set(away.component_names(folder)))


def look_at_component(folder: Path, component: str) -> ShimState:
    """What became of a component: ``launch.look_at_component`` for one of ours, here for one that was attached, and
    what was last heard of it for one on another machine.

    An attached process that is gone is "lost": how it ended is unknown.
    """
    record = _read_record(folder / f"{component}{ENDING}")
    if record is None:
        return away.look_at_component(folder, component) or launch.look_at_component(folder, component)
    pid, ticks = record.process
    if record.alive:
        return ShimState("running", pid=pid, start_ticks=ticks, started_wall=record.started_wall, how=HOW)
    reason = f"{component} (pid {pid}) was started by a person: that it is gone is all that can be known"
    return ShimState("lost", started_wall=record.started_wall, how=HOW, reason=reason)


def started_wall(start_ticks: int) -> float:
    """Unix time of a process's start, from its clock ticks since boot (proc(5), field 22; suspends count)."""
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - max(0.0, age_s)
