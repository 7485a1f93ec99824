"""Which living processes belong to an attempt, and signalling them without ever hitting a recycled pid.

A process is identified by its pid and its kernel start time (``/proc/PID/stat`` field 22). It belongs to the attempt
when at least one of these holds, each of which survives what the others do not:

- it descends from the shim, or from a process already known to belong (double forks and ``setsid`` do not escape
  this while the shim lives, because the shim is a subreaper);
- it is in the session of the shim or of the component's own process (survives the death of the shim, and counts
  after the leader's death only while that number cannot have been given away since);
- it is in the control group that the attempt has to itself: its transient systemd unit's, or the one that the launch
  made (survives everything);
- its environment holds the attempt's marker (survives the shim and a new session, not a cleared environment).

The daemon itself and its ancestors are never among them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from supervisor.base import proc_stat
from supervisor.base.records import dataclass
from supervisor.process import own_cgroup

RUN_MARKER = "RL_SUPERVISOR_RUN"
ATTEMPT_MARKER = "RL_SUPERVISOR_ATTEMPT"

TABLE_ROUNDS = 4

Identity = tuple[int, int]
"""pid and start ticks."""


@dataclass(frozen=True)
class Process:
    """One process in one look at /proc."""

    pid: int
    start_ticks: int
    ppid: int
    session: int
    state: str  # R, S, D, T, Z ... as in proc(5)
    threads: int
    name: str
    group: int = 0  # process group

    @property
    def identity(self) -> Identity:
        """What tells this process from a later one with the same pid."""
        return (self.pid, self.start_ticks)

    @property
    def dead(self) -> bool:
        """A zombie without living threads. One with a thread that hangs in the driver still holds its GPU memory."""
        return self.state in "ZX" and self.threads <= 1


@dataclass(frozen=True)
class Record:
    """A component's ``NAME.shim.json``."""

    component: str
    shim: Identity
    child: Identity
    boot_id: str
    started_wall: float
    how: str
    unit: str | None
    notes: tuple[str, ...] = ()
    cgroup: str | None = None
    forks: int | None = None  # of the machine, when it was written
    init: int | None = None  # start ticks of process 1

    @property
    def of_these_pids(self) -> bool:
        """Do its numbers mean anything here? Not after a reboot, nor in a container that was started again."""
        return proc_stat.is_this_boot(self.boot_id) and self.init in (None, proc_stat.start_ticks(1))


def look_at(pid: int) -> Process | None:
    """The process ``pid``, None when there is none."""
    found = proc_stat.stat_fields(pid)
    if found is None:
        return None
    name, f = found
    return Process(pid, int(f[19]), int(f[1]), int(f[3]), f[0], int(f[17]), name, int(f[2]))


def alive(identity: Identity) -> bool:
    """Is this very process still running (not a zombie, not another with its pid)?"""
    process = look_at(identity[0])
    return process is not None and process.start_ticks == identity[1] and not process.dead


def process_table() -> dict[int, Process]:
    """All processes that this pid namespace shows.

    What was forked while the others were read is read as well, a few times over: a process that forks and ends within
    milliseconds is otherwise gone before it is read, and its child is not listed yet.
    """
    found: dict[int, Process] = {}
    read: set[int] = set()
    for _ in range(TABLE_ROUNDS):
        fresh = {int(name) for name in os.listdir("/proc") if name.isdigit()} - read  # noqa: PTH208 (thousands of them)
        if not fresh:
            break
        read |= fresh
        found.update((pid, process) for pid in sorted(fresh) if (process := look_at(pid)) is not None)
    return found


def read_record(attempt_dir: Path, component: str) -> Record | None:
    """The record of a component, None when there is none. ValueError when the file holds something else."""
    try:
        text = (attempt_dir / f"{component}.shim.json").read_bytes()
    except FileNotFoundError:
        return None
    try:
        data = json.loads(text)
        return Record(
            component=component,
            shim=(int(data["shim_pid"]), int(data["shim_start_ticks"])),
            child=(int(data["child_pid"]), int(data["child_start_ticks"])),
            boot_id=str(data["boot_id"]),
            started_wall=float(data["started_wall"]),
            how=str(data["how"]),
            unit=str(data["unit"]) if data["unit"] else None,
            notes=tuple(map(str, data.get("notes", ()))),
            cgroup=str(data["cgroup"]) if data.get("cgroup") else None,
            forks=int(data["forks"]) if data.get("forks") else None,
            init=int(data["init_start_ticks"]) if data.get("init_start_ticks") else None,
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{attempt_dir / component}.shim.json is not a record of a shim ({error!r})") from error


def read_records(attempt_dir: Path, components: Sequence[str] = ()) -> list[Record]:
    """Readable records of ``components``, or of every component that has one. Damaged ones are left out."""
    names = components or sorted(path.name.removesuffix(".shim.json") for path in attempt_dir.glob("*.shim.json"))
    found = []
    for name in names:
        with contextlib.suppress(ValueError, OSError):  # the marker and the unit's name still find its processes
            record = read_record(attempt_dir, name)
            if record is not None:
                found.append(record)
    return found


class Belongings:
    """The processes of one attempt, over many looks: what once belonged belongs until it is gone.

    ``known``: identities that a sensor saw belong to this attempt earlier; they are taken without further proof.
    ``also``: folders of other attempts of the run; their processes count as well (all of their components).
    """

    def __init__(
        self,
        attempt_dir: Path,
        components: Sequence[str],
        run_id: str,
        known: Iterable[Identity] = (),
        also: Iterable[Path] = (),
    ):
        self.attempt_dir = attempt_dir.absolute()
        folders = {self.attempt_dir: components, **{folder.absolute(): () for folder in also}}
        found = [(folder, one) for folder, names in folders.items() for one in read_records(folder, names)]
        self.records = [record for _, record in found]
        self.own = [record for folder, record in found if folder == self.attempt_dir]
        # After a reboot every pid in the records is someone else's; the marker alone then finds nothing, as it should.
        self.of_this_boot = [record for record in self.records if record.of_these_pids]
        self.shims = frozenset(record.shim for record in self.of_this_boot)
        self.mains = frozenset(record.child for record in self.of_this_boot)
        self.units = frozenset(record.unit for record in self.records if record.unit)
        # Whatever the record says, a group is ours only under the name that we would have given it.
        self.cgroups = frozenset(
            Path(record.cgroup)
            for folder, record in found
            if record.cgroup and Path(record.cgroup).name == own_cgroup.name_of(run_id, folder, record.component)
        )
        self.groups = self.units | {folder.name for folder in self.cgroups}
        self.run_marker = f"{RUN_MARKER}={run_id}".encode()
        self.attempt_markers = frozenset(f"{ATTEMPT_MARKER}={folder}".encode() for folder in folders)
        self.forks = {one: record.forks for record in self.of_this_boot for one in (record.shim, record.child)}
        self.known: set[Identity] = set(known) | self.shims | self.mains
        self.foreign: set[Identity] = set()

    def list_living(self) -> list[Process]:
        """Everything of the attempt that is alive now, the shims included, oldest first."""
        found = self.among(process_table())
        return sorted((p for p in found if not p.dead), key=lambda p: (p.start_ticks, p.pid))

    def among(self, processes: dict[int, Process]) -> list[Process]:
        """Those of ``processes`` that belong to the attempt, dead ones included."""
        spared = ancestors(os.getpid(), processes)
        sessions = self.sessions(processes)
        never = float("inf")
        mine = {
            process.pid
            for process in processes.values()
            if process.identity in self.known
            or process.start_ticks >= sessions.get(process.session, never)
            or self.is_marked(process)
        }
        children: dict[int, list[int]] = {}
        for process in processes.values():
            children.setdefault(process.ppid, []).append(process.pid)
        queue = list(mine - spared)
        while queue:
            for child in children.get(queue.pop(), ()):
                if child not in mine and child not in spared:
                    mine.add(child)
                    queue.append(child)
        found = [processes[pid] for pid in mine - spared]
        self.known.update(process.identity for process in found)
        return found

    def whole_groups(self) -> set[int]:
        """Process groups of which all members belong to the attempt, the shims' own left out."""
        processes = process_table()
        mine = {process.pid: process for process in self.among(processes) if process.identity not in self.shims}
        others = {process.group for process in processes.values() if process.pid not in mine and not process.dead}
        return {process.group for process in mine.values() if process.group > 1} - others

    def jobs(self) -> list[Process]:
        """Everything that is alive but the shims, which end by themselves."""
        return [process for process in self.list_living() if process.identity not in self.shims]

    def sessions(self, processes: dict[int, Process]) -> dict[int, int]:
        """Sessions of the shims and children that can only be theirs, and when each began (start ticks).

        A session's number is its leader's pid and is not given away while any member lives. Where a process with that
        pid but another start time exists, the old session is therefore empty, and its number someone else's. Where
        there is none, the number may have gone to a stranger's session that has lost its leader, as daemons' do:
        it is ours only if the machine has not forked often enough since to have come round to it.
        """
        found = {}
        for pid, ticks in self.shims | self.mains:
            leader = processes.get(pid)
            ours = leader.start_ticks == ticks if leader else not may_be_recycled(self.forks.get((pid, ticks)))
            if ours:
                found[pid] = ticks
        return found

    def is_marked(self, process: Process) -> bool:
        """Does its cgroup or its environment name this attempt? Looked at once for each process."""
        if process.identity in self.foreign or process.dead:
            return False
        if self.groups and not self.groups.isdisjoint(cgroup_parts(process.pid)):
            return True
        if process.state == "D":
            return False  # reading the environment of a process in D state can hang the reader with it: ask again later
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            environment = []  # another user's, or gone
        if self.run_marker in environment and not self.attempt_markers.isdisjoint(environment):
            return True
        self.foreign.add(process.identity)
        return False


def may_be_recycled(forks_then: int | None) -> bool:
    """May a number that was given away when the machine had forked so often belong to another process by now?

    Numbers are given in a circle of ``pid_max``. Half of it is left out of account, for numbers in use are skipped.
    """
    now = proc_stat.forks()
    if forks_then is None or now is None:
        return True
    try:
        numbers = int(Path("/proc/sys/kernel/pid_max").read_text())
    except (OSError, ValueError):
        return True
    return not 0 <= now - forks_then < numbers // 2


def cgroup_parts(pid: int) -> list[str]:
    """Names on the path of the process's cgroups, [] when it is gone."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return []
    return [part for line in text.splitlines() for part in line.split("/")[1:]]


def ancestors(pid: int, processes: dict[int, Process]) -> set[int]:
    """``pid``, its parent, and so on up to init."""
    found: set[int] = set()
    while pid not in found and pid in processes:
        found.add(pid)
        pid = processes[pid].ppid
    return found


def send_signal(identity: Identity, signum: int) -> bool:
    """Signal this very process; False when it is gone (or its pid is another's now).

    The pidfd pins the process before its start time is compared, so no recycled pid can slip in between. Kernels and
    sandboxes without pidfd get the comparison alone.
    """
    fd = None
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(identity[0])
    try:
        if not alive(identity):
            return False
        os.kill(identity[0], signum) if fd is None else signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True


def describe_survivor(process: Process) -> str:
    """A survivor for people: name, pid, state, and in D state what in the kernel it waits for."""
    hanging = [process.pid] if process.state == "D" else hanging_threads(process.pid)
    if not hanging:
        return f"{process.name} (pid {process.pid}, state {process.state}) did not end after SIGKILL"
    channel = ""
    with contextlib.suppress(OSError):
        channel = Path(f"/proc/{process.pid}/task/{hanging[0]}/wchan").read_text().strip(" 0")
    where = f", waiting in the kernel in {channel}" if channel else ""
    return (
        f"{process.name} (pid {process.pid}, state D{where}) cannot be killed: a process that hangs in a driver "
        f"goes away only with a restart of the machine"
    )


def hanging_threads(pid: int) -> list[int]:
    """Threads of ``pid`` in D state."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            fields = proc_stat.stat_fields(int(name))
            if fields and fields[1][0] == "D":
                found.append(int(name))
    return found
