"""Which steps in the store are left: a person went back behind them, or they failed and are quarantined.

``{run}/lineage.json`` lists what happened, each under a number that goes up. A step's manifest says under which number
it was published; what happened later and concerns it leaves it, and the same step reached anew is not concerned. So a
pod that comes before the next publish resumes at none of them. It is read as everything in the store is: as a
stranger's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeGuard, get_args

from supervisor.base.records import dataclass
from supervisor.checkpoints.manifest import run_folder
from supervisor.checkpoints.records import delete_old, put_and_read_back, read_versions, until_listed
from supervisor.storage.base import Store, StoredFile, StoreError

LINEAGE = "lineage.json"
LINEAGE_LIMIT = 1 << 20  # bytes
MOST_ENTRIES = 2000
LONGEST_WHY = 300
MOST_LINEAGES = 1 << 40
Kind = Literal["rollback", "quarantine", "take"]
BEFORE_THE_FIRST = -1
"""The "step" of a rollback to a fresh start."""


@dataclass(frozen=True)
class Entry:
    """One thing that happened, at the Unix time ``wall``.

    rollback: all steps above ``step`` are left; quarantine: ``step`` is; take: a person wants ``step`` anyway.
    """

    kind: Kind
    step: int
    wall: float
    why: str = ""
    lineage: int = 0  # its number, from 1; 0 before it is kept
    generation: int = 0  # of the pod that kept it; 0 where no other pod can have the run

    def same(self, other: Entry) -> bool:
        """Is it the very thing that ``other`` tells? (A request that is made again after a crash.)"""
        return (self.kind, self.step, self.wall) == (other.kind, other.step, other.wall)


@dataclass(frozen=True)
class Lineage:
    """All that happened to a run, by number."""

    entries: tuple[Entry, ...] = ()
    generation: int = 0

    @property
    def number(self) -> int:
        """Number of the present lineage."""
        return max((entry.lineage for entry in self.entries), default=0)

    def reason_against_step(self, step: int, published_in: int, generation: int = 0) -> str:
        """Why ``step``, published in the lineage ``published_in``, is not resumed from; "" when it may be.

        ``generation`` is that of the pod that published it. It had read what pods before it kept; what one of them
        kept later, when it was fenced already, does not concern the step.
        """
        against = self._compare_with(step, published_in, generation)
        if not against:
            return ""
        last = against[-1]
        if last.kind == "quarantine":
            return f"it is quarantined{f': {last.why}' if last.why else ''}"
        return f"the run went back to {'a fresh start' if last.step < 0 else f'step {last.step}'}"

    def passed_over(self, step: int, published_in: int, generation: int = 0) -> bool:
        """Is ``step`` left only because the run went back behind it? Reached anew it is good, were it the same bytes.

        What is quarantined failed, and the same bytes would fail again.
        """
        against = self._compare_with(step, published_in, generation)
        return bool(against) and all(entry.kind == "rollback" for entry in against)

    def _compare_with(self, step: int, published_in: int, generation: int) -> list[Entry]:
        found: list[Entry] = []
        for entry in self.entries:
            if entry.lineage <= published_in or 0 < entry.generation < generation:
                continue
            if (entry.kind == "rollback" and step > entry.step) or (entry.kind == "quarantine" and step == entry.step):
                found.append(entry)
            elif entry.kind == "take" and step == entry.step:
                found.clear()
        return found


def read(store: Store, run_id: str) -> Lineage:
    """What happened to the run so far. Raises StoreError: kind "damaged" when it cannot be understood."""
    return _best_version(_newest_versions(store, run_id))[1]


def _newest_versions(store: Store, run_id: str) -> list[tuple[StoredFile, Lineage | StoreError]]:
    """The newest versions, newest first; for one that cannot be understood, why."""
    return read_versions(store, run_folder(run_id) + LINEAGE, LINEAGE_LIMIT, lambda data: parse(data, run_id))


def _best_version(versions: Sequence[tuple[StoredFile, Lineage | StoreError]]) -> tuple[StoredFile | None, Lineage]:
    """As with the pointer: what a fenced pod writes late counts for nothing. Raises "damaged" when none is read."""
    read = [(file, one) for file, one in versions if isinstance(one, Lineage)]
    problem = next((one for _, one in versions if isinstance(one, StoreError)), None)
    if not read and problem is not None:
        raise problem
    return max(read, key=lambda one: (one[1].generation, one[1].number), default=(None, Lineage()))


def keep(
    store: Store,
    run_id: str,
    happened: Sequence[Entry],
    *,
    generation: int,
    writer: str,
    least: int,
    fence: Callable[[], None] = lambda: None,
) -> Lineage:
    """Add what happened, once; returns all. ``least``: a lineage number that is in use already (the pointer's).

    ``fence``: is the run still ours? When it returns, every pod that lists the run sees what happened.
    """
    name = run_folder(run_id) + LINEAGE
    versions = _newest_versions(store, run_id)
    earlier = [file for file, _ in versions]
    best, known = _best_version(versions)
    fence()  # then neither what was listed nor what was read is another pod's
    entries = list(known.entries)
    number = max(known.number, least)
    for entry in happened:
        if not any(entry.same(other) for other in entries):
            number += 1
            entries.append(Entry(entry.kind, entry.step, entry.wall, entry.why[:LONGEST_WHY], number, generation))
    if len(entries) > MOST_ENTRIES:
        raise StoreError("permanent", f"{run_id} went back {len(entries)} times: look at {LINEAGE} in {store.url}")
    now = Lineage(tuple(entries), generation)
    if now.entries == known.entries:
        if best is not None:  # a try that was killed had not come to it
            delete_old(store, [file for file in earlier if file.file_id != best.file_id])
        return known
    data = to_bytes(now, run_id, writer)
    stored = put_and_read_back(store, name, data, LINEAGE_LIMIT)
    until_listed(store, stored, fence)  # or the next entry would be added to the list without this one
    delete_old(store, earlier)
    return now


def to_bytes(lineage: Lineage, run_id: str, writer: str) -> bytes:
    """JSON as it is stored."""
    value = {
        "format": 1,
        "run_id": run_id,
        "generation": lineage.generation,
        "writer": writer,
        "entries": [
            {name: getattr(one, name) for name in ("lineage", "generation", "kind", "step", "wall", "why")}
            for one in lineage.entries
        ],
    }
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


def parse(data: bytes, run_id: str) -> Lineage:
    """Read it. Raises kind "damaged": then it is unknown which steps are good, and nothing is resumed by guess."""
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise _damaged_error(run_id, f"it is no JSON ({str(error)[:100]})") from error
    if not isinstance(value, dict) or value.get("format") != 1 or value.get("run_id") != run_id:
        raise _damaged_error(run_id, "it is of another format or run")
    entries = value.get("entries")
    generation = value.get("generation")
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES or not _parse_whole_number(generation, 0, 1 << 53):
        raise _damaged_error(run_id, "its entries or its generation are not what they should be")
    found = tuple(_parse_entry(entry, run_id) for entry in entries)
    numbers = [entry.lineage for entry in found]
    if numbers != sorted(set(numbers)):
        raise _damaged_error(run_id, "its entries are out of order")
    return Lineage(found, generation)


def entry_of(value: Any) -> Entry | None:
    """An entry from JSON, None when it is none."""
    if not isinstance(value, dict):
        return None
    kind: Any = value.get("kind")
    step, wall, why = (value.get(name) for name in ("step", "wall", "why"))
    number, generation = value.get("lineage", 0), value.get("generation", 0)
    if not _parse_whole_number(generation, 0, 1 << 53):
        return None
    if (
        kind not in get_args(Kind)
        or not _parse_whole_number(step, BEFORE_THE_FIRST, 10**9)
        or not _parse_whole_number(number, 0, MOST_LINEAGES)
    ):
        return None
    if isinstance(wall, bool) or not isinstance(wall, int | float) or not math.isfinite(wall):
        return None
    if not isinstance(why, str) or len(why) > LONGEST_WHY:
        return None
    return Entry(kind, step, float(wall), why, number, generation)


def _parse_entry(value: Any, run_id: str) -> Entry:
    entry = entry_of(value)
    if entry is None or entry.lineage < 1:
        raise _damaged_error(run_id, "an entry is not what it should be")
    return entry


def _parse_whole_number(value: Any, least: int, most: int) -> TypeGuard[int]:
    return type(value) is int and least <= value <= most


def _damaged_error(run_id: str, what: str) -> StoreError:
    return StoreError(
        "damaged", f"{LINEAGE} of {run_id} is damaged, so it is unknown which steps may be resumed from: {what}"
    )
