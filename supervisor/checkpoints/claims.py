"""Which pod holds a run: generations that are claimed in the store, so that of two pods only one writes.

``{run}/writers/gen_00007.json`` is the claim of generation 7, ``gen_00007.beat.json`` its holder's heartbeat with what
is known of its pod, ``gen_00007.leave.json`` its word that its pod is about to go, ``gen_00007.end.json`` its release,
with its last words. The highest generation that was ever claimed is the one that counts.

Where the store can make an object only if there is none (``Store.claim``), the first one has it. Elsewhere (B2 has no
conditional write) it is settled by time: a pod that finds the run free writes its claim within half the settle time,
waits the whole of it, and looks again; of several versions the oldest has it, where a store keeps only one, the last
that was written. That is right as long as the upload hosts' clocks, and listings, are less than half the settle time
apart; beyond that two pods may both think so for a moment, and the look before each manifest, pointer and delete tells
one of them that it is fenced.

A journal is no pod: its disk may have been copied. A later daemon of the same journal goes on at once only where the
claim proves that it was made at the same place (``same_pod``).

Two wall clocks are never compared: a holder is gone when its heartbeat did not change for long enough
on the clock of the pod that waits, which is that pod's own business (``supervisor.effects.claiming``).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from supervisor.base.records import dataclass
from supervisor.checkpoints.manifest import run_folder
from supervisor.checkpoints.records import SETTLE_S, SETTLE_TRIES, delete_old, get_listed, readable_latest
from supervisor.checkpoints.writers import WRITER, FencedError, host_of, same_pod
from supervisor.storage.base import Store, StoredFile, StoreError

WRITERS = "writers/"
NAME = re.compile(r"gen_([0-9]{5,15})(\.beat|\.leave|\.end)?\.json")
CLAIM_LIMIT = 4 << 10  # bytes
MOST_GENERATIONS = 10**15
KEPT_GENERATIONS = 8
"""Older claims are deleted. One that is written late for a generation so far back is not the highest: no win."""
LOOKED_LATELY_S = 20.0
TRIES = 5


@dataclass(frozen=True)
class Standing:
    """Who holds the run, as the store tells it. ``generation`` 0: no pod ever did."""

    generation: int = 0
    writer: str = ""  # "" when its claim cannot be read
    released: bool = False
    mark: str = ""  # changes with each heartbeat, and means nothing else
    leaving: bool = False  # its pod is about to go: it still writes, and beats often until it is gone

    @property
    def free(self) -> bool:
        """May any pod claim the next generation?"""
        return self.generation == 0 or self.released


# ---------------------------------------------------------------- looking


def look(store: Store, run_id: str) -> Standing:
    """Who holds the run now. Two small requests. Raises StoreError when the store cannot tell."""
    return look_with_files(store, run_id)[0]


def look_with_files(store: Store, run_id: str) -> tuple[Standing, list[StoredFile]]:
    """The same, and every version of everything in the folder of the claims: of each name the newest first."""
    folder = run_folder(run_id) + WRITERS
    for number in range(TRIES):
        time.sleep(SETTLE_S * number)
        versions = [file for file in store.list_versions(folder) if NAME.fullmatch(file.name.removeprefix(folder))]
        highest = max((generation for generation, kind in map(_read_name, versions) if kind == ""), default=None)
        if highest is None:
            return Standing(), versions
        owner = _files_of(versions, highest)[-1]  # newest first: the last is the oldest
        beats = _files_of(versions, highest, ".beat")
        released, leaving = (bool(_files_of(versions, highest, kind)) for kind in (".end", ".leave"))
        mark = beats[0].file_id if beats else owner.file_id
        writer = _writer_of(store, owner)
        if writer is not None:
            return Standing(highest, writer, released, mark, leaving), versions
    raise StoreError("transient", f"the claims of run {run_id} in {store.url} change while they are read; try again")


def _writer_of(store: Store, file: StoredFile) -> str | None:
    """The writer of the claim; "" when it is no claim of ours, None when it was withdrawn since it was listed."""
    try:
        value = json.loads(get_listed(store, file.name, CLAIM_LIMIT, file.file_id))
    except StoreError as error:
        if error.kind not in ("missing", "damaged"):
            raise
        return None if error.kind == "missing" else ""
    except (ValueError, RecursionError):
        return ""
    writer = value.get("writer") if isinstance(value, dict) else None
    return writer if isinstance(writer, str) and WRITER.fullmatch(writer) else ""


def _read_name(file: StoredFile) -> tuple[int, str]:
    """Generation and kind of a file whose name is a ``NAME``; "" is a claim itself."""
    number, dot, kind = file.name.rpartition("gen_")[2].removesuffix(".json").partition(".")
    return int(number), dot + kind


def _files_of(versions: Sequence[StoredFile], generation: int, kind: str = "") -> list[StoredFile]:
    return [file for file in versions if _read_name(file) == (generation, kind)]


def _claim_name(run_id: str, generation: int, kind: str = "") -> str:
    return f"{run_folder(run_id)}{WRITERS}gen_{generation:05d}{kind}.json"


# ---------------------------------------------------------------- claiming


def claim(
    store: Store,
    run_id: str,
    writer: str,
    settle_s: float,
    *,
    label: str = "",
    over: Standing | None = None,
    take_over: bool = False,
    held: int = 0,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Standing:
    """Try to hold the run; returns who does: us when ``writer`` is ours.

    A run that another pod holds is claimed only when its standing is still ``over`` (its heartbeat has been seen to
    stand still since), or with ``take_over``, by a person. ``label``: of the pod, as a fleet named it, so that a
    controller knows the holder before its first beat. ``held``: the highest generation that this pod held before: a
    folder that knows of none is what a volume leaves that is not mounted. Raises StoreError.
    """
    pointed: int | None = None  # read once: with a pointer that rotted that alone may take longer than a claim may
    for _ in range(TRIES):
        began = clock()
        seen, _ = look_with_files(store, run_id)
        if seen.writer == writer and not seen.released:
            target = seen.generation  # ours already: a try that was killed before it could tell
            sleep(settle_s)
        else:
            if not (seen.free or take_over or same_pod(seen.writer, writer) or seen == over):
                return seen
            if pointed is None:
                latest = readable_latest(store, run_id)  # the claims may have been deleted by hand
                pointed = latest.generation if latest else 0
                if clock() - began > settle_s / 2:
                    continue
            target = 1 + max(seen.generation, pointed)
            if target == 1 and held and not take_over and store.url.startswith("file:"):
                raise StoreError(
                    "transient",
                    f"{store.url} knows nothing of run {run_id}, which this pod held there: is its volume mounted? If "
                    "the store is new, or was emptied, type: supervisorctl start --take-over",
                )
            if target >= MOST_GENERATIONS:
                raise StoreError(
                    "permanent", f"{store.url} names a generation that no run has: look at {run_id}/writers"
                )
            data = _dump_claim(writer, target, {"label": label} if label else None)
            made = store.claim(_claim_name(run_id, target), data)
            if made is None:
                store.put_bytes(_claim_name(run_id, target), data)
                if clock() - began > settle_s / 2:
                    _withdraw_claim(store, run_id, target, writer)  # too late to be seen by a pod that looked meanwhile
                    continue
                sleep(settle_s)
        found, versions = _until_listed(store, run_id, target, sleep)
        if found.generation == target and found.writer == writer:
            _delete_late_claims(store, found, versions)
        return found
    raise StoreError("transient", f"{store.url} answers too slowly for a claim to settle in {settle_s:.1f} s")


def _until_listed(
    store: Store, run_id: str, target: int, sleep: Callable[[float], None]
) -> tuple[Standing, list[StoredFile]]:
    for number in range(1, SETTLE_TRIES * 4 + 1):
        found, versions = look_with_files(store, run_id)
        if found.generation >= target:
            return found, versions
        sleep(SETTLE_S * min(number, 8))
    raise StoreError("transient", f"{store.url} does not list the claim of generation {target}, which it confirmed")


def _withdraw_claim(store: Store, run_id: str, generation: int, writer: str) -> None:
    for file in store.list_versions(_claim_name(run_id, generation)):
        if file.name == _claim_name(run_id, generation) and _writer_of(store, file) == writer:
            store.delete(file)


def _delete_late_claims(store: Store, held: Standing, versions: list[StoredFile]) -> None:
    """Delete claims that came too late, and generations that are long over."""
    late = _files_of(versions, held.generation)[:-1]
    over = [file for file in versions if _read_name(file)[0] <= held.generation - KEPT_GENERATIONS]
    delete_old(store, [*late, *over])


# ---------------------------------------------------------------- holding


def check(store: Store, run_id: str, generation: int, writer: str) -> Standing:
    """Do we still hold the run? Asked right before each manifest, pointer and delete. Raises FencedError if not."""
    return _check_claim(store, run_id, generation, writer)[0]


def _check_claim(store: Store, run_id: str, generation: int, writer: str) -> tuple[Standing, list[StoredFile]]:
    found, versions = look_with_files(store, run_id)
    if found.generation < generation:
        raise StoreError(
            "transient",
            f"{store.url} does not list the claim of generation {generation} of run {run_id}, which this pod holds: is "
            f"its volume mounted? If a person deleted {run_id}/{WRITERS}, start the daemon again",
        )
    if found.generation == generation and not found.writer:
        raise StoreError(
            "transient",
            f"the claim of generation {generation} of run {run_id} in {store.url}, which this pod holds, cannot be "
            f"read; try again. If a person changed {run_id}/{WRITERS}, start the daemon again",
        )
    if found.generation > generation or found.writer != writer:
        raise FencedError(
            f"pod {host_of(found.writer)} holds run {run_id} now (generation {found.generation}, this pod had "
            f"{generation}): nothing more is written to or deleted from {store.url} here",
            host_of(found.writer),
            found.generation,
        )
    if found.released:
        raise FencedError(
            f"this pod has released run {run_id} (generation {generation}): nothing more is written to {store.url}",
            host_of(writer),
            generation,
        )
    return found, versions


def beat(
    store: Store, run_id: str, generation: int, writer: str, count: int, *, about: Mapping[str, Any] | None = None
) -> Standing:
    """Tell that the holder lives, and what is known ``about`` it. Raises FencedError when it holds no more.

    ``count`` differs from the beat before.
    """
    held, versions = _check_claim(store, run_id, generation, writer)
    earlier = _files_of(versions, generation, ".beat")
    data = _dump_claim(writer, generation, {**(about or {}), "beat": count})
    put = store.put_bytes(_claim_name(run_id, generation, ".beat"), data)
    delete_old(store, earlier)
    return replace(held, mark=put.file_id)


def mark_leaving(store: Store, run_id: str, generation: int, writer: str) -> Standing:
    """Tell that this pod is about to go. No other pod may claim the run for that; a waiting pod waits shorter.

    Raises FencedError when it was not ours any more.
    """
    held, _ = _check_claim(store, run_id, generation, writer)
    if not held.leaving:
        store.put_bytes(_claim_name(run_id, generation, ".leave"), _dump_claim(writer, generation))
    return replace(held, leaving=True)


def release(
    store: Store,
    run_id: str,
    generation: int,
    writer: str,
    *,
    code: int | None = None,
    reason: str = "",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Give the run back: the next pod need not wait. Raises FencedError when it was not ours any more.

    For those who look from outside: ``code`` and ``reason`` say how the daemon ended, ``about`` what a beat would have.
    """
    _check_claim(store, run_id, generation, writer)
    last = {**(about or {}), "code": code, "reason": reason}
    store.put_bytes(_claim_name(run_id, generation, ".end"), _dump_claim(writer, generation, last))


class Fence:
    """The look before each act that could hurt another holder; ``generation`` None looks nowhere."""

    def __init__(self, store: Store, run_id: str, generation: int | None, writer: str) -> None:
        self._store = store
        self._run_id = run_id
        self._generation = generation
        self._writer = writer
        self._looked = float("-inf")
        self._since = 0.0

    def __call__(self) -> None:
        """Raise FencedError when another pod holds the run."""
        if self._generation is not None:
            began = time.clock_gettime(time.CLOCK_BOOTTIME)
            _, versions = _check_claim(self._store, self._run_id, self._generation, self._writer)
            self._since = _files_of(versions, self._generation)[-1].uploaded_at
            self._looked = began

    def nobody_elses(self, file: StoredFile) -> bool:
        """Came this object after our claim, by the store's clock? Only then no pod may still be about to delete it.

        A pod that fell asleep while it deleted a step goes on, when it wakes, with what it had listed.
        """
        return self._generation is None or file.uploaded_at > self._since

    def lately(self, within_s: float = LOOKED_LATELY_S) -> None:
        """The same, unless it was looked a moment ago. The clock goes on while the host sleeps."""
        if time.clock_gettime(time.CLOCK_BOOTTIME) - self._looked > within_s:
            self()


def _dump_claim(writer: str, generation: int, more: Mapping[str, Any] | None = None) -> bytes:
    return json.dumps({**(more or {}), "format": 1, "generation": generation, "writer": writer}).encode() + b"\n"
