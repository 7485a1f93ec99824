"""Sub-step progress: files of a phase that takes long grow while it goes on (a download, rollouts, a checkpoint)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.core.facts import Fact, Growing
from supervisor.jobs.base import GrowthKind, Job

KINDS: tuple[GrowthKind, ...] = ("download", "rollouts", "checkpoint")
MOST_FILES = 20_000  # beyond it a kind is not measured: a look must stay cheap
BLOCK_BYTES = 512  # unit of st_blocks, whatever the file system's own blocks are (stat(2))


class GrowthSensor:
    """Posts ``Growing`` when files of a phase have grown since the look before. One attempt; look every ten seconds.

    What lay there before the first look is no growth, and nothing is said of files that became smaller or vanished
    (a person tidied up), except where a later step's folder has taken the place of an earlier one's. ``wanted`` says
    which kinds are of interest at this moment; one that was of none is measured anew.

    A file counts with the bytes that it occupies, at most its length: some programs write at the end first
    (hf_transfer; hf_xet before xet-core@128fb6fc), which makes a file look whole at once. Nothing that we know
    allocates a file's blocks beforehand. A download that writes once more over what an earlier attempt had left
    (hf_xet does) is not seen until it has passed that.
    """

    name = "growing"

    def __init__(self, job: Job, *, wanted: Callable[[GrowthKind], bool] = lambda what: True) -> None:
        self._job = job
        self._wanted = wanted
        self._last: dict[GrowthKind, tuple[int, int]] = {}

    def look(self) -> Sequence[Fact]:
        return [fact for what in KINDS if (fact := self._look_at(what)) is not None]

    def unknown(self, reason: str) -> Sequence[Fact]:
        return ()  # silence is what it means; deadlines are for that

    def _look_at(self, what: GrowthKind) -> Growing | None:
        if not self._wanted(what):
            self._last.pop(what, None)
            return None
        measured = self._measure(what)
        before = self._last.get(what)
        if measured is None:
            return None
        self._last[what] = measured
        return Growing(what, measured[1]) if before is not None and measured > before else None

    def _measure(self, what: GrowthKind) -> tuple[int, int] | None:
        """The step, and bytes of its files; (-1, 0) where there is nothing, None where that cannot be said."""
        try:
            grows = self._job.growing_trees(what)
            if grows is None:
                return -1, 0
            size_bytes = occupied_bytes(grows.trees)
        except OSError:
            return None
        return None if size_bytes is None else (grows.step, size_bytes)


def occupied_bytes(trees: Sequence[Path], most_files: int = MOST_FILES) -> int | None:
    """Bytes that the files in and below ``trees`` occupy; None when there are too many. Symlinks are not followed."""
    total, files = 0, 0
    pending = [str(tree) for tree in trees]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                            continue
                        look = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    files += 1
                    # File systems that keep small files elsewhere, or do not tell, report no blocks at all.
                    occupied = look.st_blocks * BLOCK_BYTES
                    total += min(look.st_size, occupied) if occupied else look.st_size
        except (FileNotFoundError, NotADirectoryError):
            continue
        if files > most_files:
            return None
    return total
