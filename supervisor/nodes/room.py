"""Room on the disks of machines that have their own: the one on which the next save is the first not to fit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.facts import DiskLook, Fact
from supervisor.jobs.base import Job
from supervisor.sensors.disk import DiskSensor

if TYPE_CHECKING:
    from supervisor.nodes.steps import RemoteFile

Files = Mapping[str, Mapping[str, "RemoteFile"]]
"""By machine and path, what lies there."""

AGAIN_S = 10.0
MOST_TWICE = 1.1  # of a step's bytes: small files that each machine writes


class RoomSensor(DiskSensor):
    """Posts ``DiskLook`` of one machine that saves, with the part of a step that it does; see ``DiskSensor``."""

    def __init__(self, mirror: Path) -> None:
        super().__init__(mirror)
        self.reserve_bytes = 0  # what stays free on each disk
        self._rooms: dict[str, tuple[int, int]] = {}
        self._files: Files | None = None
        self._job: Job | None = None
        self._measured: Files | None = None
        self._again_at = 0.0
        self._parts: dict[str, float] = {}
        self._step_bytes = 0

    def hear(self, rooms: dict[str, tuple[int, int]], files: Files | None, job: Job | None) -> None:
        """Of each machine with a disk that answers: bytes in all and free.

        ``files``: of all machines of the run, None while one of them is not known; ``job`` sees them put together.
        """
        self._rooms, self._files, self._job = rooms, files, job

    def unknown(self, reason: str) -> Sequence[Fact]:
        self._said = None
        return (DiskLook("", reason=reason),)

    def measure(self) -> DiskLook:
        """The disk on which there is least room for the next save."""
        rooms = self._rooms
        self._measure_parts()
        saves = {host: part for host in sorted(rooms) if (part := self._parts.get(host, 0.0))}
        if not saves:
            return DiskLook("", reason="which machine saves how much of a step is not known before one is saved")
        looks = [DiskLook("", *rooms[host], host=host, part=part) for host, part in saves.items()]
        first = min(looks, key=self._room_after_save)
        if self._room_after_save(first) >= self.reserve_bytes:  # all of them have room: which is emptied first?
            first = min(looks, key=lambda one: (one.free_bytes or 0) / max(1, one.total_bytes or 0))
        return first

    def _room_after_save(self, look: DiskLook) -> float:
        return (look.free_bytes or 0) - look.part * self._step_bytes

    def _measure_parts(self) -> None:
        """By the newest whole step that was saved here. While a disk does not answer, what is known stands."""
        files, job = self._files, self._job
        if files is None or job is None or files == self._measured or time.monotonic() < self._again_at:
            return
        self._again_at = time.monotonic() + AGAIN_S
        steps = sorted(job.steps(), reverse=True)
        for step in steps:
            paths = [str(file.source.relative_to(self._path)) for file in job.step_files(step)]
            own = {host: sum(of[path].size for path in paths if path in of) for host, of in files.items()}
            whole = sum(max((of[path].size for of in files.values() if path in of), default=0) for path in paths)
            # What a start brought, to some machines or all, says nothing of what each saves.
            is_brought = sum(own.values()) > MOST_TWICE * whole
            if whole and not is_brought and job.check_step(step, settled=True).state == "complete":
                self._step_bytes, self._measured = whole, files if step == steps[0] else None
                self._parts = {host: size / whole for host, size in own.items()}
                return
