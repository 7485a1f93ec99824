"""What the job's processes do: CPU time they use, and calls that no signal ends. It tells who is stuck."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from supervisor.base.proc_stat import read_stat
from supervisor.core.facts import Effort, EffortLook, Fact, Role
from supervisor.sensors.base import Clock

Watched = Callable[[], Iterable[tuple[Role, int, int]]]
"""The key processes of the attempt: (role, pid, start time in ticks)."""


class EffortSensor:
    """Posts ``EffortLook`` at each look but the first, which only begins to count. Look about once a minute."""

    name = "effort"

    def __init__(self, processes: Watched, *, proc: Path = Path("/proc"), clock: Clock = time.monotonic) -> None:
        self._processes = processes
        self._proc = proc
        self._clock = clock
        self._before: dict[tuple[int, int], float] = {}  # CPU seconds of each process at the last look
        self._before_at = 0.0

    def look(self) -> Sequence[Fact]:
        now = self._clock()
        found: dict[tuple[int, int], float] = {}
        cores: dict[Role, list[float]] = {}
        waits: dict[Role, str] = {}
        for role, pid, ticks in self._processes():
            used = self._read_cpu_use(pid, ticks)
            if used is None:
                continue
            seconds, state = used
            found[pid, ticks] = seconds
            if state == "D":
                waits.setdefault(role, f"pid {pid} in {self._channel(pid)}")
            if (pid, ticks) in self._before and now > self._before_at:
                cores.setdefault(role, []).append((seconds - self._before[pid, ticks]) / (now - self._before_at))
        self._before, self._before_at = found, now
        told = [
            Effort(role, round(sum(each), 1), round(min(each), 1), waits.get(role, "")) for role, each in cores.items()
        ]
        return [EffortLook(tuple(told))] if told else []

    def unknown(self, reason: str) -> Sequence[Fact]:
        self._before = {}
        return (EffortLook(reason=reason),)

    def _read_cpu_use(self, pid: int, ticks: int) -> tuple[float, str] | None:
        """CPU seconds so far of all its threads, and its state; None when it is gone."""
        found = read_stat(f"{self._proc}/{pid}/stat")
        if found is None or int(found[1][19]) != ticks:
            return None
        fields = found[1]
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0]

    def _channel(self, pid: int) -> str:
        """The kernel function that it waits in; it is hidden ("0") from those who may not trace the process."""
        try:
            channel = (self._proc / str(pid) / "wchan").read_text(errors="replace").strip()
        except OSError:
            channel = ""
        return channel if channel not in ("", "0") else "an uninterruptible call"
