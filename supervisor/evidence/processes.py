"""The run's processes at the moment of the verdict: who waits where, who works, and who holds what open.

What the kernel tells without the process's own memory map comes first and by itself: reading a command line can hang
for ever where the process sits in a page fault on a dead mount (fs/proc/base.c takes the map's lock for it).
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.base import proc_stat
from supervisor.base.secrets import mask_command
from supervisor.evidence.collecting import Sink
from supervisor.evidence.scene import Scene, executable
from supervisor.process.strangers import open_links
from supervisor.process.survivors import Process

BETWEEN_S = 0.3  # two looks at CPU times tell who works at this moment
MOST_PROCESSES = 400
MOST_THREADS = 48  # of one process; those that do not sleep come first
MOST_STACKS = 32
MOST_FILES = 20_000  # open files of one process that are looked at
SHOWN_FILES = 12
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Stat:
    """Of a process or a thread. CPU time in seconds."""

    name: str
    state: str
    ppid: int
    cpu_s: float
    threads: int
    start_ticks: int
    resident_bytes: int


def read_stat(path: Path) -> Stat | None:
    """``/proc/PID/stat`` or ``/proc/PID/task/TID/stat``; None when it is gone. See proc(5)."""
    found = proc_stat.read_stat(str(path))
    if found is None or len(found[1]) < 22:
        return None
    name, f = found
    cpu_s = (int(f[11]) + int(f[12])) / TICKS
    return Stat(name, f[0], int(f[1]), cpu_s, int(f[17]), int(f[19]), int(f[21]) * PAGE)


def tree(scene: Scene, living: Sequence[Process], sink: Sink) -> None:
    """``processes.txt``: the tree, and each process's threads."""
    pids = [process.pid for process in living[:MOST_PROCESSES]]
    if not pids:
        sink.put("processes.txt", "No process of the run is alive.\n")
        return
    first = {pid: read_stat(Path(f"/proc/{pid}/stat")) for pid in pids}
    threads = {pid: _threads_of(pid) for pid in pids}
    began = time.monotonic()
    time.sleep(BETWEEN_S)
    second = {pid: read_stat(Path(f"/proc/{pid}/stat")) for pid in pids}
    between = max(time.monotonic() - began, 0.01)
    rows = [
        "    PID    PPID S THREADS    CPU s   NOW      RSS  AGE s ROLE         WAITS IN                 NAME AND TITLE"
    ]
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    for pid, depth in _in_order({pid: one for pid, one in second.items() if one is not None}):
        now, before = second[pid], first[pid]
        if now is None:
            continue
        working = 100 * (now.cpu_s - before.cpu_s) / between if before is not None else 0.0
        where = _waits_in(f"/proc/{pid}/wchan")[:24]
        rows.append(
            f"{pid:>7} {now.ppid:>7} {now.state} {now.threads:>7} {now.cpu_s:>8.1f} {working:>4.0f}% "
            f"{now.resident_bytes >> 20:>5} MB {up_s - now.start_ticks / TICKS:>6.0f} {scene.role(pid) or '-':<12} "
            f"{where:<24} {'  ' * depth}{now.name} {scene.title(pid)[:160]}".rstrip()
        )
    rows += [f"{pid:>7} ended while it was looked at" for pid in pids if second[pid] is None]
    rows.append(
        "\nS: R runs, S sleeps, D waits in the kernel and cannot be killed, T stopped, t traced, Z dead, uncollected. "
        f"NOW: of one core, over {between:.1f} s."
    )
    sink.put("processes.txt", "\n".join(rows) + "\n")
    # The threads by themselves: the tree is on its way whatever comes of them.
    sink.put("threads.txt", "\n".join(_of_threads(scene, pids, threads, between)) + "\n")


def _in_order(stats: dict[int, Stat]) -> Iterator[tuple[int, int]]:
    """(pid, depth), parents before their children."""
    children: dict[int, list[int]] = {}
    for pid, one in stats.items():
        children.setdefault(one.ppid if one.ppid in stats and one.ppid != pid else 0, []).append(pid)
    ahead = [(pid, 0) for pid in reversed(children.get(0, []))]
    while ahead:
        pid, depth = ahead.pop()
        yield pid, depth
        ahead += [(child, depth + 1) for child in reversed(children.get(pid, []))]


def _threads_of(pid: int) -> dict[int, Stat]:
    try:
        tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 (thousands of Path objects)
    except OSError:
        return {}
    found = {tid: read_stat(Path(f"/proc/{pid}/task/{tid}/stat")) for tid in tids}
    return {tid: one for tid, one in found.items() if one is not None}


def _of_threads(scene: Scene, pids: Sequence[int], before: dict[int, dict[int, Stat]], between: float) -> Iterator[str]:
    stacks = 0
    for pid in pids:
        now = _threads_of(pid)
        states = ", ".join(f"{count} {state}" for state, count in Counter(one.state for one in now.values()).items())
        yield f"{pid} {scene.role(pid) or '-'}: {len(now)} threads ({states})"

        def cpu_share(tid: int, now: dict[int, Stat] = now, was: dict[int, Stat] = before[pid]) -> float:
            return (now[tid].cpu_s - was[tid].cpu_s) / between if tid in was else 0.0

        ordered = sorted(now, key=lambda tid: (now[tid].state == "S", -cpu_share(tid), tid != pid, -now[tid].cpu_s))
        for tid in ordered[:MOST_THREADS]:
            one = now[tid]
            where = _waits_in(f"/proc/{pid}/task/{tid}/wchan")
            yield f"  {tid:>7} {one.state} {one.cpu_s:>8.1f} s {100 * cpu_share(tid):>4.0f}%  {where:<24} {one.name}"
            if (one.state == "D" or tid == pid) and stacks < MOST_STACKS:
                stacks += 1
                yield from (f"            {line}" for line in _kernel_stack(pid, tid))
        if len(ordered) > MOST_THREADS:
            yield f"  and {len(ordered) - MOST_THREADS} more"


def _waits_in(path: str) -> str:
    """The kernel function in which it waits, "-" when it does not, or is not told."""
    try:
        return Path(path).read_text().strip(" 0\n") or "-"
    except OSError:
        return "-"


def _kernel_stack(pid: int, tid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{tid}/stack").read_text().splitlines()[:24]  # for root alone
    except OSError:
        return []


def commands(scene: Scene, living: Sequence[Process], sink: Sink) -> None:
    """``commands.txt``: the whole command line of each process, its program and folder; no environment."""
    if not living:
        sink.put("commands.txt", "No process of the run is alive.\n")
    for process in living[:MOST_PROCESSES]:
        # Added one by one, should the next one hang.
        if process.state == "D":
            sink.add("commands.txt", f"{process.pid} is in state D: asking for its command line could hang\n")
            continue
        try:
            data = Path(f"/proc/{process.pid}/cmdline").read_bytes()[: 64 << 10]
        except OSError:
            continue
        words = [word.decode(errors="replace") for word in data.rstrip(b"\0").split(b"\0")]
        program = f"{executable(process.pid) or '-'}  in {_folder_of(process.pid)}"
        sink.add("commands.txt", f"{process.pid} {mask_command(words)}\n        {program}\n")


def _folder_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return "-"


def open_files(scene: Scene, living: Sequence[Process], sink: Sink) -> None:
    """``files.txt``: how many files each process holds open of how many it may, of which kind, and which most often."""
    told = ["    PID   OPEN    SOFT    HARD ROLE         KINDS"]
    for process in living[:MOST_PROCESSES]:
        links = links_of(process.pid)
        if links is None:
            told.append(f"{process.pid:>7} is gone, or its files may not be looked at")
            continue
        soft, hard = _limits_of(process.pid)
        kinds = Counter(_kind_of_link(link) for link in links)
        more = "+" if len(links) >= MOST_FILES else ""
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        role = scene.role(process.pid) or "-"
        told.append(f"{process.pid:>7} {len(links):>6}{more} {soft:>7} {hard:>7} {role:<12} {shown}")
        names = Counter(link for link in links if link.startswith("/"))
        told += [f"          {count:>5} {name}" for name, count in names.most_common(SHOWN_FILES)]
    sink.put("files.txt", "\n".join(told) + "\n")


def links_of(pid: int) -> list[str] | None:
    """What each open file of a process is, at most ``MOST_FILES``; None where we may not look."""
    try:
        return open_links(pid, MOST_FILES)
    except OSError:
        return None


def _kind_of_link(link: str) -> str:
    return "file" if link.startswith("/") else link.partition(":")[0] or "other"


def _limits_of(pid: int) -> tuple[int | str, int | str]:
    """Of open files, soft and hard."""
    try:
        return resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError:
        return "?", "?"
