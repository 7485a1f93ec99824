"""How much room the checkpoint volume has, for those who train on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.core.facts import DiskLook, Fact
from supervisor.sensors.base import Clock

HEARTBEAT_S = 60.0
CHANGE_PART = 0.002  # of the total: below it the next heartbeat is early enough


class DiskSensor:
    """Posts ``DiskLook`` for the volume that holds ``path`` (or will: the nearest folder that exists is asked).

    ``total`` and ``free`` are what a process without privileges may use, as ``df`` counts: the blocks that the file
    system keeps for root belong to neither. A volume without a free inode has no free room either, for nothing can be
    created on it, and deleting a step frees both.

    With ``capacity_bytes`` (a quota; a shared volume reports the whole cluster's space) the total is that, and free is
    the smaller of what the volume has free and what ``used_bytes()`` leaves of the capacity. ``used_bytes`` counts the
    run's own files: other files below the quota are not seen, so leave room for them. Where it returns None, only the
    volume's own free space counts.
    """

    name = "disk"

    def __init__(
        self,
        path: Path,
        *,
        capacity_bytes: int | None = None,
        used_bytes: Callable[[], int | None] = lambda: None,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self._path = path
        self._capacity_bytes = capacity_bytes
        self._used_bytes = used_bytes
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._said: DiskLook | None = None
        self._said_at = 0.0

    def look(self) -> Sequence[Fact]:
        now = self._clock()
        fact, said = self.measure(), self._said
        if said is not None and now - self._said_at < self._heartbeat_s and not has_moved(said, fact):
            return ()
        self._said, self._said_at = fact, now
        return (fact,)

    def unknown(self, reason: str) -> Sequence[Fact]:
        self._said = None
        return (DiskLook(str(self._path), reason=reason),)

    def measure(self) -> DiskLook:
        """The volume as it is now."""
        for folder in (self._path, *self._path.parents):
            try:
                look = os.statvfs(folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                return DiskLook(str(self._path), reason=f"statvfs of {folder} failed: {error.strerror}")
            break
        if look.f_blocks == 0 and self._capacity_bytes is None:  # ramfs, a tmpfs of size=0, some of FUSE
            return DiskLook(str(self._path), reason=f"the file system of {folder} does not tell its size")
        free = look.f_bavail * look.f_frsize
        total = (look.f_blocks - look.f_bfree + look.f_bavail) * look.f_frsize
        if look.f_files > 0 and look.f_favail == 0:  # file systems without a limit of inodes report 0 of 0
            free = 0
        if self._capacity_bytes is not None:
            total = self._capacity_bytes
            left = total - (self._used_bytes() or 0)
            free = min(free, left) if look.f_blocks else left
        return DiskLook(str(self._path), total, max(0, free))


def has_moved(said: DiskLook, fact: DiskLook) -> bool:
    """Does a look differ by enough to matter from the one that was told last?"""
    if fact.free_bytes is None or said.free_bytes is None or replace(fact, free_bytes=said.free_bytes) != said:
        return fact != said
    return abs(fact.free_bytes - said.free_bytes) > CHANGE_PART * (fact.total_bytes or 0)
