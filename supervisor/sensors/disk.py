"""Room on the checkpoint volume."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from supervisor.core.facts import DiskLook, Fact
from supervisor.sensors.base import Clock

WORTH_SAYING = 0.002  # of the total
HEARTBEAT_S = 60.0


class DiskSensor:
    """Posts ``DiskLook`` for the volume of ``folder``, on change and every minute.

    ``capacity_bytes`` ([disk] capacity_gb) counts as the volume's size instead of what ``statvfs`` says: a quota, or
    a shared volume that reports the whole cluster's space. What ``folder`` holds is then summed up file by file, which
    is why it is only done when asked for.
    """

    name = "disk"

    def __init__(self, folder: Path, capacity_bytes: int | None = None, *, clock: Clock = time.monotonic) -> None:
        self._folder = folder
        self._capacity = capacity_bytes
        self._clock = clock
        self._said: DiskLook | None = None
        self._said_at = float("-inf")

    def look(self) -> Sequence[Fact]:
        try:
            fact = self._measure()
        except OSError as error:
            return self.unknown(f"{error.filename or self._folder}: {error.strerror}")
        now = self._clock()
        if not self._moved(fact) and now - self._said_at < HEARTBEAT_S:
            return ()
        self._said, self._said_at = fact, now
        return (fact,)

    def unknown(self, reason: str) -> Sequence[Fact]:
        self._said = None
        return (DiskLook(str(self._folder), reason=reason),)

    def _measure(self) -> DiskLook:
        volume = os.statvfs(self._existing())
        free = volume.f_bavail * volume.f_frsize
        # What only root may use is no room for the job: count the size as df does, used plus available.
        total = (volume.f_blocks - volume.f_bfree) * volume.f_frsize + free
        if self._capacity is None:
            return DiskLook(str(self._folder), total, free)
        return DiskLook(str(self._folder), self._capacity, max(0, min(free, self._capacity - held(self._folder))))

    def _existing(self) -> Path:
        """The folder, or the nearest one above it that exists already."""
        folder = self._folder
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return folder

    def _moved(self, fact: DiskLook) -> bool:
        said = self._said
        if said is None or said.free_bytes is None or fact.free_bytes is None or said.total_bytes != fact.total_bytes:
            return True
        return abs(said.free_bytes - fact.free_bytes) > WORTH_SAYING * (fact.total_bytes or 1)


def held(folder: Path) -> int:
    """Bytes that the files below ``folder`` hold on the disk. Symlinks are not followed; vanishing files count 0."""
    total, pending = 0, [str(folder)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue
    return total
