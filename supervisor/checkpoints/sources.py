"""The hashes of a step's local files: of parts for the store, of blocks for the next step; in parallel, and once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar

from supervisor.checkpoints.blocks import hash_part
from supervisor.checkpoints.local_plan import Hashed, Identity, LocalPlan
from supervisor.checkpoints.progress import Meter
from supervisor.storage.base import Part, StoreError
from supervisor.storage.hashing import part_ranges

T = TypeVar("T")
HASHERS = 8


class Sources:
    """The files of one step while it is being published."""

    def __init__(self, step: int, local: LocalPlan, meter: Meter) -> None:
        self._step = step
        self._local = local
        self._meter = meter

    def hashed(self, wanted: Sequence[Hashed]) -> list[Hashed]:
        """All of them with their hashes; those that the local plan knows are not read."""
        pairs = [(entry, self._local.known(entry)) for entry in wanted]
        known = [entry for _, entry in pairs if entry is not None]
        todo = [entry for entry, there in pairs if there is None]
        self._meter.phase("hashing", sum(entry.identity.size for entry in wanted))
        self._meter.add(sum(entry.identity.size for entry in known), len(known))
        if not todo:
            return known
        workers = min(HASHERS, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers, thread_name_prefix="hash") as hashers:

            def hash_one(entry: Hashed, place: tuple[int, int]) -> tuple[Part, bytes]:
                self._meter.add(0)  # raises when another file failed
                sha1, blocks = hash_part(entry.source, place, entry.identity.size, entry.block_size)
                self._meter.add(place[1])
                return Part(*place, sha1), blocks

            def hash_file(entry: Hashed) -> Hashed:
                ranges = part_ranges(entry.identity.size, entry.part_size)
                jobs = [hashers.submit(hash_one, entry, place) for place in ranges]
                found = [job.result() for job in jobs]
                done = replace(
                    entry,
                    parts=tuple(part for part, _ in found),
                    blocks=b"".join(blocks for _, blocks in found),
                )
                self.unchanged(done)
                self._local.remember(done)
                self._meter.add(0, 1)
                return done

            fresh = self.all(workers, hash_file, todo)
        self._local.save()
        return known + fresh

    def unchanged(self, entry: Hashed) -> None:
        """Raises kind "changed" when the file is no longer the one that was hashed."""
        try:
            if Identity.of(entry.source) == entry.identity:
                return
        except StoreError:
            self._local.forget(entry.name)
            raise
        self._local.forget(entry.name)
        raise StoreError("changed", f"{entry.source} was rewritten while step {self._step} was being published")

    def all(self, workers: int, act: Callable[[Hashed], T], entries: Sequence[Hashed]) -> list[T]:
        """``act`` on all entries in parallel; the first failure stops the others and is raised."""
        pool = ThreadPoolExecutor(max(1, min(workers, len(entries))), thread_name_prefix="publish")
        with pool:
            jobs = [pool.submit(act, entry) for entry in entries]
            done, waiting = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in waiting:
                job.cancel()
            failed = next((error for job in done if (error := job.exception()) is not None), None)
            if failed is not None:
                self._meter.stop(failed if isinstance(failed, Exception) else RuntimeError(str(failed)))
                self._local.save()
                raise failed
        return [job.result() for job in jobs]
