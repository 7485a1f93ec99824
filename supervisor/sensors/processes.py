"""The processes of one attempt: who they are (a scan every few seconds) and that they live (every second).

Two sensors over one table, each with a ``Looker`` of its own, because reading a command line can hang: the kernel takes
the process's memory map for it, and a process that sits in a page fault on a dead mount never gives that back. Such a
process must not hide the end of another one.

/proc is read here and not by psutil: to scan a process costs 20 µs this way and 91 µs that way (116 processes, one
core), and psutil's create_time() is of the wall clock, which is no identity once the clock is set.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from supervisor.base.proc_stat import stat_fields
from supervisor.base.records import dataclass
from supervisor.base.secrets import mask_command, printable, remember_processes
from supervisor.core.facts import ComponentExited, Fact, ProcessGone, ProcessSeen, Remark, Role
from supervisor.sensors.base import Clock

Classify = Callable[[str, str], tuple[Role, bool] | None]
"""``Job.classify_process``: (command line, comm) -> role and whether its end is proof, None for a helper."""
Exits = Callable[[], Sequence[ComponentExited | Remark | None]]

TITLE_LENGTH = 200
SOON_S = 0.3  # what its neighbours write within this time is read before its end is told
SETTLED_S = 300.0  # titles are set while a process loads its libraries; after this they are read less often
RECHECK_S = 30.0  # how often settled titles, and processes that are not ours, are read again
SCAN_SHARE = 0.003  # of one core: on a machine with thousands of processes scans come less often
YOUNG_S, YOUNG_SHARE = 120.0, 0.05  # while an attempt comes up its processes must be known soon: many die early


class Identity(NamedTuple):
    """A process for good: its number and its kernel start time (/proc/PID/stat field 22, clock ticks since boot)."""

    pid: int
    start_ticks: int


class Stat(NamedTuple):
    """What is used of /proc/PID/stat."""

    comm: str
    state: str
    parent: int
    start_ticks: int


def read_stat(pid: int) -> Stat | None:
    """The process's stat, None when there is none. Zombies have one: see ``state`` ("Z", "X")."""
    found = stat_fields(pid)
    if found is None:
        return None
    comm, fields = found
    return Stat(comm, fields[0], int(fields[1]), int(fields[19]))


def identity_of(pid: int) -> Identity | None:
    """The identity of a living process, None when it is gone or a zombie."""
    stat = read_stat(pid)
    return Identity(pid, stat.start_ticks) if stat and stat.state not in "ZX" else None


def is_alive(process: Identity) -> bool:
    """Is exactly this process there and no zombie?"""
    try:
        return identity_of(process.pid) == process
    except OSError:
        return True  # unknown is not dead: it is looked at again


def read_title(pid: int) -> str:
    """Command line, or what the process wrote over it; "" when it has none. May hang, see the module's text."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb", buffering=0) as file:
            data = file.read(4096)
    except OSError:
        return ""
    # Masked before anything cuts it: half a secret has no shape.
    words = data.decode(errors="replace").rstrip("\0").split("\0")
    return " ".join(printable(mask_command(words)).split())


@dataclass
class _Known:
    """One descendant of the attempt's roots."""

    id: Identity
    parent: int
    comm: str = ""
    titles: list[str] = field(default_factory=list)  # every title it was seen with, the present one last
    role: Role | None = None
    key: bool = False
    pidfd: int | None = None

    @property
    def title(self) -> str:
        return self.titles[-1] if self.titles else ""

    def rename(self, title: str, comm: str) -> bool:
        """Take over what the process is called now; True when that is another name than before."""
        # A process that is ending has an empty command line: that is no new title.
        title = title or self.title or comm
        # Compared as far as facts hold it: that is all that is known of one that the daemon before had reported.
        same = title[:TITLE_LENGTH] == self.title[:TITLE_LENGTH]
        same_comm = comm == (self.comm or comm)
        self.comm = comm
        self.titles = [*self.titles[:-1], title] if same else [*self.titles[-7:], title]
        return not (same and same_comm)


class _Table:
    """The attempt's processes, shared by the two sensors under ``lock``; no command line is read while it is held."""

    def __init__(self, attempt: int, known: Sequence[ProcessSeen]) -> None:
        self.attempt = attempt
        self.lock = threading.Lock()
        self.known: dict[int, _Known] = {}
        self.poll = select.poll()
        self.by_fd: dict[int, int] = {}
        self.closed = False
        for seen in known:
            # What was reported has a title of its own, and is no copy of a parent.
            entry = self.known[seen.pid] = _Known(Identity(seen.pid, seen.start_ticks), 0, titles=[seen.title])
            self.watch_end(entry, seen.role, key=seen.key)

    def watch_end(self, entry: _Known, role: Role, *, key: bool) -> None:
        """From now on the end of ``entry`` is watched for."""
        entry.role, entry.key = role, key
        if entry.pidfd is not None:
            return
        try:
            entry.pidfd = os.pidfd_open(entry.id.pid)
        except OSError:
            return  # gone already, no descriptor left, or a kernel (or sandbox) without pidfd: its stat is read instead
        if not is_alive(entry.id):
            # The number belongs to another process by now, and so does the descriptor.
            os.close(entry.pidfd)
            entry.pidfd = None
            return
        self.by_fd[entry.pidfd] = entry.id.pid
        self.poll.register(entry.pidfd, select.POLLIN)

    def unwatch(self, entry: _Known) -> None:
        """``entry`` lives on as a helper of no interest."""
        entry.role, entry.key = None, False
        if entry.pidfd is not None:
            self.poll.unregister(entry.pidfd)
            self.by_fd.pop(entry.pidfd, None)
            os.close(entry.pidfd)
            entry.pidfd = None

    def remove(self, entry: _Known) -> None:
        self.unwatch(entry)
        self.known.pop(entry.id.pid, None)

    def list_ended(self) -> list[_Known]:
        """Reported processes that have ended: a pidfd is readable when the last thread is gone, zombie or not."""
        ended = {self.by_fd[fd] for fd, _ in self.poll.poll(0)}
        return [
            entry
            for entry in self.known.values()
            if entry.id.pid in ended or (entry.role is not None and entry.pidfd is None and not is_alive(entry.id))
        ]

    def close(self) -> None:
        with self.lock:
            for entry in list(self.known.values()):
                self.remove(entry)
            self.closed = True


class ProcessWatcher:
    """Posts ``ProcessGone`` for known processes that have ended, and ``ComponentExited`` from the shims' files.

    ``exits`` is asked each second and returns the exits, and remarks on them, so far; each is posted once. While
    one of them is None, what ended has lines that are not read yet, and it is asked again soon.
    """

    name = "processes"

    def __init__(self, table: _Table, exits: Exits) -> None:
        self._table = table
        self._exits = exits
        self._told: set[str | Remark | None] = set()
        self._waits = False

    def look(self) -> Sequence[Fact]:
        facts: list[Fact] = []
        table = self._table
        with table.lock:
            if table.closed:
                return ()
            for entry in table.list_ended():
                facts += _gone_facts(table.attempt, entry, proof=True)
                table.remove(entry)
        self._waits = False
        self._waits = None in (exits := self._exits())
        for told in exits:
            key = told.component if isinstance(told, ComponentExited) else told
            if told is not None and key not in self._told:
                self._told.add(key)
                facts.append(told)
        return facts

    def again_s(self, took_s: float) -> float | None:
        """Seconds to the next look."""
        return SOON_S if self._waits else None

    def unknown(self, reason: str) -> Sequence[Fact]:
        return ()  # there is no fact for it, and none is needed: only what was seen to end is ever reported

    def close(self) -> None:
        """Let go of the processes (the attempt is over). Looks after this see nothing."""
        self._table.close()


class ProcessScanner:
    """Finds the descendants of ``roots`` and posts ``ProcessSeen`` for those that the job knows a role for.

    ``roots`` are the shims (or whatever else the attempt hangs under); they themselves are not classified. Orphans
    stay descendants, because shims are subreapers; should a shim die, what was known of its tree is followed on.

    A process that is the copy of its parent (forked, and neither exec'd nor renamed: a data-loader worker, or any
    program between fork and exec) has its parent's title and is no second engine or trainer. It is not reported until
    it has a title of its own, or each worker that ends would prove that the trainer died.
    """

    name = "process-scan"

    def __init__(
        self, table: _Table, roots: Collection[Identity], classify: Classify, *, clock: Clock = time.monotonic
    ) -> None:
        self._table = table
        self._roots = list(roots)
        self._classify = classify
        self._clock = clock
        self._foreign: set[int] = set()
        self._read_all_at = float("-inf")
        self._not_before = float("-inf")
        self._born = clock()

    def add_root(self, root: Identity) -> None:
        """Follow one more tree."""
        with self._table.lock:
            self._roots.append(root)

    def identities(self) -> list[Identity]:
        """What is known of the trees now, processes of no interest included."""
        with self._table.lock:
            return [entry.id for entry in self._table.known.values()]

    def look(self) -> Sequence[Fact]:
        begun = self._clock()
        if begun < self._not_before:
            return ()
        facts = self._scan(begun)
        share = YOUNG_SHARE if begun - self._born < YOUNG_S else SCAN_SHARE
        self._not_before = begun + (self._clock() - begun) / share
        return facts

    def unknown(self, reason: str) -> Sequence[Fact]:
        return ()

    def _scan(self, now: float) -> list[Fact]:
        read_all = now - self._read_all_at >= RECHECK_S
        if read_all:
            self._read_all_at = now
            self._foreign.clear()
        with self._table.lock:
            known = {pid: entry.id for pid, entry in self._table.known.items()}
            roots = list(self._roots)
        present = {int(name) for name in os.listdir("/proc") if name.isdecimal()}  # noqa: PTH208  (10 times faster)
        # A process never becomes our descendant later, so those of others are read once in a while only, in case
        # that one of their numbers now belongs to one of ours.
        self._foreign &= present
        stats = {pid: stat for pid in present - self._foreign - known.keys() if (stat := read_stat(pid))}
        with self._table.lock:
            for pid in known.keys() - present:
                entry = self._table.known.get(pid)
                if entry is not None and entry.role is None:
                    self._table.remove(entry)
        ours = _descendants(stats, {root.pid for root in roots if is_alive(root)} | known.keys())
        # A child of one that ended between the two reads may be an orphan of ours: it is read again.
        settled = self._foreign | stats.keys() | {0}
        self._foreign |= {pid for pid in stats.keys() - ours if stats[pid].parent in settled}
        fresh = [
            (Identity(pid, stats[pid].start_ticks), stats[pid])
            for pid in sorted(ours & stats.keys(), key=lambda pid: stats[pid].start_ticks)
            if stats[pid].state not in "ZX" and pid not in {root.pid for root in roots}
        ]
        return self._name(known, fresh, read_all)

    def _name(
        self, known: Mapping[int, Identity], fresh: Sequence[tuple[Identity, Stat]], read_all: bool
    ) -> list[Fact]:
        """Read titles, outside the lock, and fold what they say into the table."""
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        settled_ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - SETTLED_S) * ticks_per_s
        again = [id for id in known.values() if read_all or id.start_ticks > settled_ticks]
        looks = [(id, read_stat(id.pid)) for id in again] + list(fresh)
        remember_processes(id.pid for id, _ in fresh)  # what the job is given, it may print
        titles = {id: read_title(id.pid) for id, _ in looks}
        table = self._table
        with table.lock:
            if table.closed:
                return []
            renamed: list[_Known] = []
            for id, stat in sorted(looks, key=lambda look: (look[0].start_ticks, look[0].pid)):
                entry = table.known.get(id.pid)
                if stat is None or stat.start_ticks != id.start_ticks or stat.state in "ZX":
                    if entry is not None and entry.role is None:
                        table.remove(entry)  # the end of a reported one is for the watcher to tell
                    continue
                if entry is None:
                    entry = table.known[id.pid] = _Known(id, stat.parent)
                if entry.id == id and entry.rename(titles[id], stat.comm):
                    renamed.append(entry)
            # Only now that all titles are known: a child is compared with its parent.
            return [fact for entry in renamed for fact in self._judge(entry)]

    def _judge(self, entry: _Known) -> list[Fact]:
        table = self._table
        parent = table.known.get(entry.parent)
        copy = parent is not None and entry.title in parent.titles
        found = None if copy else self._classify(entry.title, entry.comm)
        if found == (entry.role, entry.key):
            return []
        if found is None:
            facts = _gone_facts(table.attempt, entry, proof=False)
            table.unwatch(entry)
            return facts
        table.watch_end(entry, found[0], key=found[1])
        return [ProcessSeen(table.attempt, found[0], *entry.id, title=entry.title[:TITLE_LENGTH], key=found[1])]


def process_sensors(
    attempt: int,
    roots: Collection[Identity],
    classify: Classify,
    exits: Exits,
    *,
    known: Sequence[ProcessSeen] = (),
    clock: Clock = time.monotonic,
) -> tuple[ProcessWatcher, ProcessScanner]:
    """The two sensors of one attempt: look with the first each second, with the second every three.

    ``known``: processes that the daemon before had reported; those that ended meanwhile are reported as gone at the
    first look. Call ``watcher.close()`` when the attempt is over.
    """
    table = _Table(attempt, known)
    return ProcessWatcher(table, exits), ProcessScanner(table, roots, classify, clock=clock)


def _gone_facts(attempt: int, entry: _Known, *, proof: bool) -> list[Fact]:
    if entry.role is None:
        return []
    return [ProcessGone(attempt, entry.role, *entry.id, key=entry.key and proof)]


def _descendants(stats: Mapping[int, Stat], seeds: Collection[int]) -> set[int]:
    """Those of ``stats`` that hang under ``seeds``."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found: set[int] = set()
    ahead = list(seeds)
    while ahead:
        for child in children.get(ahead.pop(), ()):
            if child not in found:
                found.add(child)
                ahead.append(child)
    return found


def connections_to(port: int, own_ports: Collection[int] = (), *, limit_bytes: int = 8 << 20) -> int | None:
    """Established TCP connections that the listener on ``port`` of this machine holds, None when it can't be said.

    ``own_ports``: local ports of connections that are our own and do not count. Counts rows of /proc/net/tcp and tcp6
    with ``port`` as *local* port: a connection within the machine has two rows, and only one of them is the server's.
    """
    local = f":{port:04X} ".encode()
    own = {f"{own_port:04X}".encode() for own_port in own_ports}
    count = 0
    read = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with Path(table).open("rb") as file:
                for line in file:
                    read += len(line)
                    if read > limit_bytes:
                        return None  # more than 50,000 sockets: not worth the time at each look
                    if local not in line:
                        continue
                    # sl local_address rem_address st ...: 01 is ESTABLISHED (linux/tcp_states.h)
                    fields = line.split(None, 4)
                    if fields[1].endswith(local[:-1]) and fields[3] == b"01" and fields[2][-4:] not in own:
                        count += 1
        except OSError as error:
            if error.errno == errno.ENOENT and table.endswith("6"):
                continue  # a kernel without IPv6
            return None
    return count
