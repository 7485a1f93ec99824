"""What the job's processes do: CPU time, files, network, and calls that no signal ends. It shows who stands still."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from supervisor.base.proc_stat import read_stat
from supervisor.core.facts import Effort, EffortLook, Fact, Role
from supervisor.core.pictures import MOVING_BYTES_S
from supervisor.sensors.base import Clock

Watched = Callable[[], Iterable[tuple[Role | None, int, int, bool]]]
"""The attempt's processes: (role, pid, start time in ticks, is it a key process). No role: a helper."""

HEARTBEAT_S = 30.0
NEWS_CORES, NEWS_TIMES = 0.3, 4.0  # by which cores, or a rate, must differ to be another fact
LITTLE_BYTES_S = 64 << 10  # rates below are told as 0: logs and heartbeats
ACKNOWLEDGED = 0.04  # of what is sent comes back as acknowledgements (66 bytes for two segments of 1514), at most
IB_WORD = 4  # port_rcv_data counts words of four bytes (InfiniBand Architecture, PortCounters)


class EffortSensor:
    """Posts ``EffortLook`` when what the processes do has changed, and every 30 s; the first look begins to count.

    Look every ten seconds. Files are counted of all processes but the engine's, by calls and by page faults; where the
    kernel hides that of one (/proc/PID/io is for the same user), ``file_bytes_s`` is None.
    """

    name = "effort"

    def __init__(
        self,
        processes: Watched,
        *,
        proc: Path = Path("/proc"),
        net: Path = Path("/proc/net/dev"),
        infiniband: Path = Path("/sys/class/infiniband"),
        vmstat: Path = Path("/proc/vmstat"),
        clock: Clock = time.monotonic,
        over_machines: bool = False,
    ) -> None:
        """``over_machines``: the job has more than this one, so a device that does not tell what it carries counts."""
        self._processes = processes
        self._proc = proc
        self._net = net
        self._ports = [*infiniband.glob("*/ports/*/counters/port_rcv_data")]
        # EFA, for one, has none. What one machine does alone, no such device carries.
        seen = {port.parents[3] for port in self._ports}
        self._is_hidden = over_machines and any(device not in seen for device in infiniband.glob("*"))
        self._clock = clock
        self._before: dict[tuple[int, int], tuple[float, int | None]] = {}  # CPU seconds, bytes at the last look
        self._before_at = 0.0
        self._vmstat = vmstat
        self._received: int | None = None
        self._flushed: int | None = None
        self._said: EffortLook | None = None
        self._said_at = 0.0

    def look(self) -> Sequence[Fact]:
        now = self._clock()
        found: dict[tuple[int, int], tuple[float, int | None]] = {}
        cores: dict[Role, list[float]] = {}
        waits: dict[Role, str] = {}
        helpers, moved, hidden = 0.0, 0, False
        past_s = now - self._before_at
        for role, pid, ticks, is_key in self._processes():
            used = self._read_cpu_use(pid, ticks)
            if used is None:
                continue
            seconds, state = used
            moved_bytes = self._read_bytes(pid) if role != "inference" else 0
            found[pid, ticks] = seconds, moved_bytes
            if state == "D" and role is not None and is_key:
                waits.setdefault(role, f"pid {pid} in {self._channel(pid)}")
            before = self._before.get((pid, ticks))
            if before is None or past_s <= 0:
                continue
            share = (seconds - before[0]) / past_s
            if role is not None and is_key:
                cores.setdefault(role, []).append(share)
            elif role not in ("inference", "trainer"):  # their workers wait in loops as well
                helpers += share
            if moved_bytes is None or before[1] is None:
                hidden = True
            else:
                moved += max(0, moved_bytes - before[1])
        (received, flushed), received_before, flushed_before = self._count_bytes(), self._received, self._flushed
        self._before, self._before_at, self._received, self._flushed = found, now, received, flushed
        if not cores:
            return []
        net = None if received is None or received_before is None else max(0, received - received_before) / past_s
        written = None if flushed is None or flushed_before is None else max(0, flushed - flushed_before) / past_s
        told = EffortLook(
            tuple(
                Effort(role, round(sum(each), 1), round(min(each), 1), waits.get(role, ""))
                for role, each in cores.items()
            ),
            helper_cores=round(helpers, 1),
            file_bytes_s=None if hidden else _round_rate(moved / past_s),
            net_bytes_s=None if net is None else _round_rate(net),
            flushed_bytes_s=None if written is None else _round_rate(written),
        )
        if self._said is not None and now - self._said_at < HEARTBEAT_S and not is_news(self._said, told):
            return []
        self._said, self._said_at = told, now
        return [told]

    def unknown(self, reason: str) -> Sequence[Fact]:
        self._before, self._said = {}, None
        return (EffortLook(reason=reason),)

    def _read_cpu_use(self, pid: int, ticks: int) -> tuple[float, str] | None:
        """CPU seconds so far of all its threads, and its state; None when it is gone."""
        found = read_stat(f"{self._proc}/{pid}/stat")
        if found is None or int(found[1][19]) != ticks:
            return None
        fields = found[1]
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0]

    def _read_bytes(self, pid: int) -> int | None:
        """What it has read and written so far, by calls (rchar, wchar) and of disks: proc(5)."""
        try:
            with open(f"{self._proc}/{pid}/io", "rb", buffering=0) as file:  # noqa: PTH123 - of each process, often
                counts = dict(line.split(b": ") for line in file.read(512).splitlines())
            return sum(int(counts[name]) for name in (b"rchar", b"wchar", b"read_bytes", b"write_bytes"))
        except (OSError, KeyError, ValueError):
            return None

    def _count_bytes(self) -> tuple[int | None, int | None]:
        """Bytes that this machine has received, without acknowledgements of what it sends, and flushed; None: unknown.

        Flushed is what the kernel has written back or sent, for all programs: a mount of an object store is one, and
        what it uploads is neither the job's nor written back.
        """
        received = flushed = None
        with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
            rows = [line.partition(":") for line in self._net.read_text().splitlines()[2:]]
            counts = [rest.split() for name, _, rest in rows if name.strip() != "lo"]
            links = [(int(each[0]), int(each[8])) for each in counts]
            total = sum(max(0.0, came - ACKNOWLEDGED * sent) for came, sent in links)
            of_ports = sum(IB_WORD * int(port.read_text()) for port in self._ports)
            received = None if self._is_hidden else int(total + of_ports)
            kernel = dict(line.split() for line in self._vmstat.read_bytes().splitlines())
            flushed = sum(sent for _, sent in links) + int(kernel[b"nr_written"]) * os.sysconf("SC_PAGE_SIZE")
        return received, flushed

    def _channel(self, pid: int) -> str:
        """The kernel function that it waits in; it is hidden ("0") from those who may not trace the process."""
        try:
            channel = (self._proc / str(pid) / "wchan").read_text(errors="replace").strip()
        except OSError:
            channel = ""
        return channel if channel not in ("", "0") else "an uninterruptible call"


def _round_rate(rate: float) -> float:
    return 0.0 if rate < LITTLE_BYTES_S else float(f"{rate:.1e}")


def is_news(said: EffortLook, look: EffortLook) -> bool:
    """Does a look show something else than the one that was told last?"""
    flush = [(one.flushed_bytes_s or 0.0) >= MOVING_BYTES_S for one in (said, look)]
    if flush[0] != flush[1]:
        return True
    if [(one.role, one.waits) for one in said.efforts] != [(one.role, one.waits) for one in look.efforts]:
        return True
    cores = [(said.helper_cores, look.helper_cores)]
    cores += [(a.cores, b.cores) for a, b in zip(said.efforts, look.efforts, strict=True)]
    cores += [(a.least_cores, b.least_cores) for a, b in zip(said.efforts, look.efforts, strict=True)]
    rates = [(said.file_bytes_s, look.file_bytes_s), (said.net_bytes_s, look.net_bytes_s)]
    return any(abs((a or 0.0) - (b or 0.0)) >= NEWS_CORES for a, b in cores) or any(
        (a is None) != (b is None) or max(a or 0.0, b or 0.0) > NEWS_TIMES * min(a or 0.0, b or 0.0) for a, b in rates
    )
