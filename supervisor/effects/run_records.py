"""Records of a run, to and from the bytes that lie in the store: what was learned, and each journal's ledger.

Only numbers and names of ours travel, and nothing that comes back is trusted: a record of another shape, or with a
number that no run has, is left out. It is never a reason not to start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from supervisor.base.records import dataclass
from supervisor.core import goodput as g
from supervisor.core import time_kinds as k
from supervisor.core.codec import encode
from supervisor.core.goodput import Ledger, Outage
from supervisor.core.records import Learned, PhaseTimes

CLOCKS_APART_S = 86400.0

Seconds = Annotated[float, Field(ge=0, le=1e9)]
# A sum of differences may be a rounding error below zero.
Sum = Annotated[float, Field(ge=-1e-3, le=1e9)]
Wall = Annotated[float, Field(ge=0, le=1e10)]
PhaseSeconds = Annotated[float, Field(ge=0, le=1e6)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Resumed = Annotated[int, Field(ge=g.FROM_SCRATCH, le=10**9)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,63}\z")]
Category = Literal[k.CATEGORIES]  # type: ignore[valid-type]


@dataclass(frozen=True)
class Record:
    """One journal's: what it had learned, and its part of the run's ledger."""

    journal: str
    learned: Learned
    ledger: Ledger


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Times(_Part):
    # Logarithms are taken of them.
    seconds: Annotated[list[Annotated[float, Field(ge=1e-3, le=1e6)]], Field(max_length=100)]
    longest_s: PhaseSeconds = 0.0
    count: Count
    median_s: PhaseSeconds = 0.0
    late_s: PhaseSeconds = 0.0


class _Learned(_Part):
    phases: Annotated[dict[Name, _Times], Field(max_length=200)]


class _Outage(_Part):
    number: Count
    cause: Name
    wall: Wall
    step: Count | None
    detect_s: Seconds
    stop_s: Seconds
    prepare_s: Seconds
    start_s: Seconds
    steps_lost: Count
    recovered: bool


class _Ledger(_Part):
    seconds: dict[Category, Sum]
    began_wall: Annotated[float, Field(ge=1.5e9)]  # 2017: nothing of ours is older
    wall: Wall
    last: Category
    spans: Annotated[list[tuple[Count, Count, Sum]], Field(max_length=g.MOST_SPANS)]
    floor: Resumed | None
    starts: Annotated[list[tuple[Wall, Resumed]], Field(max_length=g.MOST_STARTS)] = []
    steps: Count
    steps_lost: Count
    timed: Count
    timed_s: Seconds
    saves: Count
    uploads: Count
    upload_s: Seconds
    upload_bytes: Annotated[int, Field(ge=0, le=10**18)]
    incidents: Count
    restarts: Count
    outages: Annotated[list[_Outage], Field(max_length=g.MOST_OUTAGES)]


class _Record(_Part):
    format: Literal[1]
    journal: str
    learned: _Learned
    ledger: _Ledger


def to_bytes(record: Record) -> bytes:
    """The record as JSON, for ``parse``."""
    return json.dumps({"format": 1, **encode(vars(record))}, separators=(",", ":"), allow_nan=False).encode()


def parse(journal: str, data: bytes, now_wall: float) -> Record | None:
    """A record from the store, or None for one that no daemon of ours wrote. ``now_wall`` is Unix time."""
    try:
        found = _Record.model_validate_json(data)
    except ValidationError:
        return None
    told = found.ledger
    ledger = Ledger(
        **{
            **dict(told),
            "seconds": {name: max(0.0, number) for name, number in told.seconds.items()},
            "spans": tuple(told.spans),
            "starts": tuple(told.starts),
            "outages": tuple(Outage(**dict(one)) for one in told.outages),
        }
    )
    if found.journal != journal or not _is_possible(ledger, now_wall + CLOCKS_APART_S):
        return None
    phases = {
        name: PhaseTimes(**{**dict(times), "seconds": tuple(times.seconds)})
        for name, times in found.learned.phases.items()
    }
    return Record(journal, Learned(phases), ledger)


def of_others(found: Mapping[str, bytes], own: str, now_wall: float) -> tuple[Learned | None, dict[str, Ledger]]:
    """What the newest other journal had learned, and all other journals' ledgers."""
    records = [parse(journal, data, now_wall) for journal, data in sorted(found.items()) if journal != own]
    known = sorted((record for record in records if record is not None), key=lambda record: record.ledger.wall)
    return (known[-1].learned if known else None), {record.journal: record.ledger for record in known}


def _is_possible(ledger: Ledger, latest_wall: float) -> bool:
    """Are its times before ``latest_wall``, and do its steps and starts not contradict each other?"""
    lows = [first for first, _, _ in ledger.spans]
    starts, resumed = [wall for wall, _ in ledger.starts], [step for _, step in ledger.starts]
    return (
        (ledger.began_wall or 0.0) <= ledger.wall
        and max([ledger.wall, *starts, *(one.wall for one in ledger.outages)]) <= latest_wall
        and starts == sorted(starts)
        and resumed == sorted(set(resumed))
        and lows == sorted(lows)
        and all(last >= first - 1 for first, last, _ in ledger.spans)
        and sum(took for _, _, took in ledger.spans) <= ledger.seconds.get(k.PRODUCTIVE, 0.0) + 1
        and ledger.steps_kept >= 0
    )
