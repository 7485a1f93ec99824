"""The run's step folders on the local disk, and whether each is complete: by the job's rules, and quiet for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.core.facts import Fact, LocalStep, LocalSteps
from supervisor.jobs.base import Job, StepCheck
from supervisor.sensors.base import Clock

RECHECK_S = 60.0  # an incomplete step with unchanged files is checked again after this


@dataclass(frozen=True)
class _Tree:
    """All files of a step in one look: if this is unchanged, so is the answer to "complete?"."""

    files: tuple[tuple[str, int, int, int, int], ...]  # path, inode, size, mtime and ctime in ns
    size_bytes: int
    changed_wall: float


@dataclass(frozen=True)
class _Memory:
    tree: _Tree
    check: StepCheck
    checked_at: float
    unchanged_since: float


class CheckpointSensor:
    """Posts ``LocalSteps`` when anything in it changed, and every ``heartbeat_s``.

    A step that the job calls complete is "writing" until its files have been unchanged for ``quiet_s``, by their own
    times or, where those lie in the future (a volume with another clock), by what was seen here. Checks are kept as
    long as names, sizes, inodes and times of all files of the step are the same, so that looking at many steps of
    50 GB costs one ``stat`` a file.
    """

    name = "checkpoints"

    def __init__(
        self,
        job: Job,
        *,
        quiet_s: float = 20.0,
        heartbeat_s: float = 60.0,
        clock: Clock = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._job = job
        self._quiet_s = quiet_s
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._wall = wall
        self._memories: dict[int, _Memory] = {}
        self._said: LocalSteps | None = None
        self._said_at = 0.0

    def look(self) -> Sequence[Fact]:
        now = self._clock()
        try:
            fact = LocalSteps(tuple(self._step(step, now) for step in self._job.steps()))
        except OSError as error:
            fact = LocalSteps(reason=f"the checkpoint folders could not be listed: {error}")
        else:
            self._memories = {step.step: self._memories[step.step] for step in fact.steps}
        if fact == self._said and now - self._said_at < self._heartbeat_s:
            return ()
        self._said, self._said_at = fact, now
        return (fact,)

    def unknown(self, reason: str) -> Sequence[Fact]:
        self._said = None
        return (LocalSteps(reason=reason),)

    def _step(self, step: int, now: float) -> LocalStep:
        tree = _look_at(self._job.step_trees(step))
        memory = self._memories.get(step)
        if memory is None or memory.tree != tree:
            memory = _Memory(tree, self._job.check_step(step), now, now)
            # What changed while it was checked was not what was checked.
            if memory.check.state == "complete" and _look_at(self._job.step_trees(step)) != tree:
                memory = replace(memory, check=replace(memory.check, state="writing", reason=self._not_quiet))
        elif memory.check.state == "writing" or (
            memory.check.state == "incomplete" and now - memory.checked_at >= RECHECK_S
        ):
            memory = replace(memory, check=self._job.check_step(step), checked_at=now)
        self._memories[step] = memory

        check = memory.check
        size_bytes = check.size_bytes or tree.size_bytes
        changed_wall = check.changed_wall or tree.changed_wall
        age_s = self._wall() - changed_wall
        if check.state == "complete" and age_s < self._quiet_s and now - memory.unchanged_since < self._quiet_s:
            return LocalStep(step, "writing", self._not_quiet, size_bytes, changed_wall)
        return LocalStep(step, check.state, check.reason, size_bytes, changed_wall)

    @property
    def _not_quiet(self) -> str:
        return f"complete, but changed less than {self._quiet_s:g} s ago"


def _look_at(trees: Sequence[Path]) -> _Tree:
    files = tuple(sorted(file for tree in trees for file in _files(str(tree))))
    return _Tree(
        files,
        size_bytes=sum(size for _, _, size, _, _ in files),
        changed_wall=max((mtime_ns for _, _, _, mtime_ns, _ in files), default=0) / 1e9,
    )


def _files(folder: str) -> Iterator[tuple[str, int, int, int, int]]:
    """Every entry below ``folder`` that is no folder; symlinks are entries, not followed. What vanishes is left out."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(entry.path)
                    continue
                try:
                    look = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield entry.path, look.st_ino, look.st_size, look.st_mtime_ns, look.st_ctime_ns
    except (FileNotFoundError, NotADirectoryError):
        return
