"""The journal's clock: boot time (suspends count), plus an epoch that carries it across boots; wall time is a label."""

from __future__ import annotations

import math
import time

from supervisor.base import proc_stat
from supervisor.journal.journal import Journal


class Clock:
    """Seconds that never run backwards in one journal, whatever happens to the wall clock or the machine."""

    def __init__(self, journal: Journal) -> None:
        """Take up the journal's epoch, or make a new one after a reboot."""
        self.boot_id = proc_stat.boot_id() or "unknown"
        last = journal.last_time()
        kept = journal.get("epoch") if journal.get("boot_id") == self.boot_id else None
        epoch = _parse_finite(kept)
        if epoch is not None:
            self._epoch = epoch
        elif last is not None:
            away = max(0.0, time.time() - last[1])  # wall time is the only witness across a reboot
            self._epoch = last[0] + away - _read_boottime()
        else:
            self._epoch = 0.0
        if last is not None:
            self._epoch = max(self._epoch, last[0] - _read_boottime())
        journal.put("boot_id", self.boot_id)
        journal.put("epoch", repr(self._epoch))

    def now(self) -> float:
        """Seconds of the journal's clock."""
        return _read_boottime() + self._epoch


def _parse_finite(text: str | None) -> float | None:
    """The number that was kept; None when a person made it something else."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _read_boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
