"""A rented machine: GPUs, disk, memory, a line to the store, and at most one job. Physics only.

It tells its watcher (the sensors of the daemon, where one lives) that something physical has changed, never what that
means, and the world, which keeps the ledger, what is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Literal

from supervisor.simulator.chance import Chance
from supervisor.simulator.clockwork import Clockwork, Owner
from supervisor.simulator.job import Job, Line, Process
from supervisor.simulator.link import Checkpoint, Link, Store
from supervisor.simulator.scenario import GB, GIB, TIER_HOLDS, Physics

if TYPE_CHECKING:
    from supervisor.simulator.world import World

WALL = 1_700_000_000.0  # Unix time at t = 0: only a label
ENGINE_GIB, TRAINER_GIB, EMPTY_GIB, GPU_GIB = 72.0, 61.0, 0.5, 80.0


class Watcher(Owner):
    """What looks at a pod; this one sees nothing. Each call says that something may be seen now, never what."""

    def job_changed(self) -> None: ...
    def job_launched(self, job: Job) -> None: ...
    def process_gone(self, job: Job, process: Process) -> None: ...
    def job_ended(self, job: Job) -> None: ...
    def line(self, line: Line) -> None: ...
    def gpus_changed(self) -> None: ...
    def disk_changed(self) -> None: ...
    def host_changed(self) -> None: ...
    def steps_changed(self) -> None: ...


NO_WATCHER = Watcher()


@dataclass
class GpuCard:
    """One GPU and what is on it."""

    uuid: str
    index: int
    role: Literal["inference", "trainer"]
    used_bytes: float
    lost: bool = False
    total_bytes: int = int(GPU_GIB * GIB)


@dataclass
class Folder:
    """A step's folders on the local disk."""

    checkpoint: Checkpoint
    state: Literal["complete", "writing", "incomplete"]
    changed: float  # virtual time of the newest write
    written_bytes: float
    in_memory: bool = False  # in the tier alone, not on the volume yet


class Pod(Owner):
    """One machine from its first minute to its loss."""

    def __init__(
        self,
        number: int,
        clock: Clockwork,
        *,
        physics: Physics,
        physics_random: Random,
        chance: Chance,
        tier: bool = False,
        store: Store,
        world: World,
    ) -> None:
        self.number, self.clock, self.physics, self.physics_random = number, clock, physics, physics_random
        self.chance = chance
        self.tier = tier and physics.has_tier  # does the trainer save into memory?
        self.draining: Folder | None = None
        self.store, self.world = store, world
        self.watcher = NO_WATCHER
        self.unread: list[Line] = []
        self.logs_stand = False  # the log volume does not answer: lines come late
        self.job: Job | None = None
        self.started_at = clock.now
        self.doomed = False  # its end is announced
        self.paused = False
        self.nvml_hangs = False
        self.http_slow = False
        self.oom_kills = 0
        self.memory_free_part = 0.6
        self.pid = 1000
        self.cards = [self._card(i, "inference") for i in range(physics.engines)]
        self.cards += [self._card(physics.engines + i, "trainer") for i in range(physics.trainer_gpus)]
        self.folders: dict[int, Folder] = {}
        self.foreign_bytes = 0.0  # files that are none of the run's
        self.foreign_rate = 0.0
        self._foreign_t = clock.now
        self.aside_bytes = self.aside_whole_bytes = 0.0
        self.link = Link(clock, physics.link_gbit, self, lambda: clock.now >= store.down_until)
        # armed by faults for a moment that comes by itself
        self.tear_next_save: Callable[[], None] | None = None
        self.memory_stays_s = self.slow_stop_s = 0.0
        self.next_save_s = 0.0
        self.next_eval_s = 0.0
        self.heavy_steps: list[float] = []

    def _card(self, index: int, role: Literal["inference", "trainer"]) -> GpuCard:
        return GpuCard(f"GPU-{self.number}-{index}", index, role, EMPTY_GIB * GIB)

    def next_pid(self) -> int:
        self.pid += 7
        return self.pid

    def next_step_s(self, number: int) -> float:
        """How long step ``number`` takes, whoever does it and how often."""
        random = self.chance.of("step", number)
        least = min(10.0, self.physics.step_s / 4) + self.physics.step_s / 20
        seconds = max(least, self.physics.step_s * math.exp(random.gauss(0.0, self.physics.step_sigma)))
        if random.random() < self.physics.step_tail:
            seconds *= min(8.0, random.paretovariate(1.5) + 1.0)
        if self.heavy_steps:
            seconds *= self.heavy_steps.pop()
        return seconds

    # ------------------------------------------------------------ disk

    @property
    def disk_total(self) -> int:
        return int(self.physics.disk_gb * GB)

    def disk_free(self) -> int:
        foreign = self.foreign()
        return int(max(0.0, self._room_beside(foreign)))

    def _room_beside(self, foreign: float) -> float:
        steps = sum(folder.written_bytes for folder in self.folders.values() if not folder.in_memory)
        used = self.physics.base_gb * GB + steps + foreign + self.aside_bytes + self.aside_whole_bytes
        return self.disk_total - used

    def foreign(self) -> float:
        now = self.clock.now
        if self.foreign_rate:
            grown = (now - self._foreign_t) * self.foreign_rate
            self._foreign_t = now
            self.foreign_bytes += max(0.0, min(grown, self._room_beside(self.foreign_bytes)))
        self._foreign_t = now
        return self.foreign_bytes

    def set_foreign(self, size_bytes: float, rate: float = 0.0) -> None:
        """Files of others take so much, and grow by ``rate`` bytes a second."""
        self.foreign()
        self.foreign_bytes, self.foreign_rate = size_bytes, rate
        self.watcher.disk_changed()

    # ------------------------------------------------------------ checkpoints

    def begin_save(self, job: Job) -> float:
        """The trainer begins to write the step it just did; seconds that it will take."""
        size = self.physics.checkpoint_gb * GB
        median = self.physics.tier_save_s if self.tier else self.physics.save_s
        seconds = self.next_save_s or self.chance.around(median, 0.1, "save", job.step)
        self.next_save_s = 0.0
        poison = job.poison if job.poison is not None and job.poison > job.step else None
        room = self.disk_free() if not self.tier else size + 1
        torn, self.tear_next_save = self.tear_next_save, None
        whole = torn is None and room > size
        written = size if whole else min(size / 2, room)
        checkpoint = Checkpoint(job.step, int(size), poison, ruined=job.ruined)
        self.folders[job.step] = Folder(checkpoint, "writing", self.clock.now, written, in_memory=self.tier)
        if torn is not None:
            self.clock.after(seconds / 2, lambda: self._tear(job, torn), job)
        elif not whole:
            text = "OSError: [Errno 28] No space left on device"
            self.clock.after(seconds * written / size, lambda: job.crash("trainer", 1, "disk-full", text), job)
        self.watcher.steps_changed()
        return seconds

    @staticmethod
    def _tear(job: Job, told: Callable[[], None]) -> None:
        told()
        job.kill_role("trainer")

    def end_save(self, job: Job) -> None:
        folder = self.folders[job.step]
        folder.state, folder.changed = "complete", self.clock.now
        self._drain()
        keep = self.physics.trainer_keep
        if keep:
            whole = sorted(step for step, other in self.folders.items() if other.state == "complete")
            for step in whole[:-keep]:
                del self.folders[step]
        self.watcher.steps_changed()

    def _drain(self) -> None:
        """Copy the newest whole step of the tier to the volume; older ones that came faster than that are left out."""
        waiting = [step for step, one in self.folders.items() if one.in_memory and one.state == "complete"]
        for step in sorted(waiting)[:-TIER_HOLDS]:
            if self.folders[step] is not self.draining:
                del self.folders[step]
        if self.draining is not None or not waiting:
            return
        self.draining = folder = self.folders[max(waiting)]
        self.clock.after(folder.written_bytes / GB / self.physics.volume_gb_s, lambda: self._end_drain(folder), self)

    def _end_drain(self, folder: Folder) -> None:
        folder.in_memory, self.draining = False, None
        self._drain()

    def lose_memory(self) -> None:
        """The machine booted anew: what lay in memory alone is gone."""
        self.folders = {step: one for step, one in self.folders.items() if not one.in_memory}
        self.draining = None

    def folder_being_written(self) -> Folder | None:
        """The folder that is being written now."""
        return next((folder for folder in self.folders.values() if folder.state == "writing"), None)

    def tidy(self) -> None:
        """The job writes no more: what was being written stays as it is."""
        for folder in self.folders.values():
            if folder.state == "writing":
                folder.state, folder.changed = "incomplete", self.clock.now
                self.watcher.steps_changed()

    def set_aside_above(self, step: int | None) -> list[int]:
        """Move folders above ``step`` out of the job's sight, as a start does."""
        moved = sorted(s for s in self.folders if step is None or s > step)
        for number in moved:
            folder = self.folders.pop(number)
            if folder.state == "complete":
                self.aside_whole_bytes += folder.written_bytes
            else:
                self.aside_bytes += folder.written_bytes
        if moved:
            self.watcher.steps_changed()
        return moved

    # ------------------------------------------------------------ the job

    def launch(self, attempt: int, step: int | None, interval: int | None) -> Job:
        """Start the job; ``step`` must be complete here. ``interval``: steps between two saves, if a policy chose."""
        poison = self.folders[step].checkpoint.poison if step is not None else None
        self.unread.clear()
        self.job = Job(self, attempt, step, poison, interval or self.physics.interval)
        self.job.ruined = step is not None and self.folders[step].checkpoint.ruined
        self.watcher.job_launched(self.job)
        self.job.begin()
        if any(card.lost for card in self.cards):
            text = "Fatal error in train: CUDA error: no CUDA-capable device is detected"
            job = self.job
            self.clock.after(
                self.physics_random.uniform(20, 45), lambda: job.crash("trainer", 1, "fatal-error", text), job
            )
        return self.job

    def end_job(self) -> None:
        """Take down whatever is left of the job, and its GPU memory."""
        if self.job is None:
            return
        self.job.end()
        self.job = None
        for card in self.cards:
            card.used_bytes = EMPTY_GIB * GIB
        self.tidy()
        self.watcher.gpus_changed()
        self.world.recount()

    def memory_of(self, role: str, up: list[bool] | None, *, gone: bool = False, after_s: float = 0.0) -> None:
        """Fill or empty the GPUs of ``role``: ``up`` by engine, None for all."""

        def change() -> None:
            full = ENGINE_GIB if role == "inference" else TRAINER_GIB
            mine = [card for card in self.cards if card.role == role]
            for number, card in enumerate(mine):
                here = (up[number] if up is not None else True) and not gone
                card.used_bytes = (full + self.physics_random.uniform(0, 1)) * GIB if here else EMPTY_GIB * GIB
            self.watcher.gpus_changed()

        self.clock.after(after_s, change, self.job or self)

    def poison(self, step: int, at: int) -> None:
        """A job that resumes from ``step``, here or from the store, crashes at step ``at``."""
        self.folders[step].checkpoint = replace(self.folders[step].checkpoint, poison=at)
        if step in self.store.steps:
            self.store.steps[step] = replace(self.store.steps[step], poison=at)

    def mend(self) -> None:
        """A person found out what the poisoned checkpoints need."""
        for folder in self.folders.values():
            folder.checkpoint = replace(folder.checkpoint, poison=None)
        self.store.steps = {step: replace(c, poison=None) for step, c in self.store.steps.items()}

    def write(self, line: Line) -> None:
        if self.watcher is NO_WATCHER or self.logs_stand:
            self.unread.append(line)
        else:
            self.watcher.line(line)

    def read_on(self) -> None:
        """The logs can be read again: all that waited is there."""
        self.logs_stand = False
        if self.watcher is not NO_WATCHER:
            waiting, self.unread = self.unread, []
            for line in waiting:
                self.watcher.line(line)

    def job_changed(self) -> None:
        self.world.recount()
        self.watcher.job_changed()

    def job_ended(self, job: Job) -> None:
        self.tidy()
        self.world.job_over(job)
        self.watcher.job_ended(job)
