"""Records of a run, to and from the bytes that lie in the store: what was learned, and each journal's ledger.

Only numbers and names of ours travel, and nothing that comes back is trusted: a record of another shape, or with a
number that no run has, is left out. It is never a reason not to start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from supervisor.core import goodput as g
from supervisor.core import time_kinds as k
from supervisor.core.codec import encode
from supervisor.core.goodput import Ledger, Outage
from supervisor.core.records import Learned, PhaseTimes

FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,63}")
MOST_PHASES = 200
MOST_TIMES = 100
LONGEST_PHASE_S = 1e6
MOST_SECONDS = 1e9
MOST_STEPS = 10**9
FIRST_WALL = 1.5e9  # 2017: nothing of ours is older
CLOCKS_APART_S = 86400.0


@dataclass(frozen=True)
class Record:
    """One journal's: what it had learned, and its part of the run's ledger."""

    journal: str
    learned: Learned
    ledger: Ledger


class _WrongError(ValueError):
    """A record is not what we would have written."""


def to_bytes(record: Record) -> bytes:
    """The record as JSON, for ``parse``."""
    return json.dumps({"format": FORMAT, **encode(vars(record))}, separators=(",", ":"), allow_nan=False).encode()


def parse(journal: str, data: bytes, now_wall: float) -> Record | None:
    """A record from the store, or None for one that no daemon of ours wrote. ``now_wall`` is Unix time."""
    try:
        value = json.loads(data, parse_constant=_no_number)
        if _parse_table(value).get("format") != FORMAT or value.get("journal") != journal:
            return None
        return Record(journal, _read_learned(value.get("learned")), _parse_ledger(value.get("ledger"), now_wall))
    except (ValueError, RecursionError):
        return None


def of_others(found: Mapping[str, bytes], own: str, now_wall: float) -> tuple[Learned | None, dict[str, Ledger]]:
    """What the newest other journal had learned, and all other journals' ledgers."""
    records = [parse(journal, data, now_wall) for journal, data in sorted(found.items()) if journal != own]
    known = sorted((record for record in records if record is not None), key=lambda record: record.ledger.wall)
    return (known[-1].learned if known else None), {record.journal: record.ledger for record in known}


def _parse_ledger(value: Any, now_wall: float) -> Ledger:
    table = _parse_table(value)
    seconds = _parse_table(table.get("seconds"))
    if not set(seconds) <= set(k.CATEGORIES):
        raise _WrongError("a category that we do not have")
    began, wall = (_parse_number(table.get(name), now_wall + CLOCKS_APART_S) for name in ("began_wall", "wall"))
    if not FIRST_WALL <= began <= wall:
        raise _WrongError("times that no run has")
    last = table.get("last")
    if last not in k.CATEGORIES:
        raise _WrongError("a category that we do not have")
    floor = table.get("floor")
    ledger = Ledger(
        # A sum of differences may be a rounding error below zero.
        seconds={name: max(0.0, _parse_number(number, MOST_SECONDS, least=-1e-3)) for name, number in seconds.items()},
        began_wall=began,
        wall=wall,
        last=str(last),
        spans=tuple(_parse_span(one) for one in _parse_list(table.get("spans"), g.MOST_SPANS)),
        starts=tuple(_parse_start(one, now_wall) for one in _parse_list(table.get("starts", []), g.MOST_STARTS)),
        floor=None if floor is None else _parse_whole_number(floor, least=g.FROM_SCRATCH),
        timed_s=_parse_number(table.get("timed_s"), MOST_SECONDS),
        upload_s=_parse_number(table.get("upload_s"), MOST_SECONDS),
        upload_bytes=_parse_whole_number(table.get("upload_bytes"), most=10**18),
        outages=tuple(_parse_outage(one, now_wall) for one in _parse_list(table.get("outages"), g.MOST_OUTAGES)),
        **{name: _parse_whole_number(table.get(name)) for name in _COUNTS},
    )
    lows = [first for first, _, _ in ledger.spans]
    kept = ledger.seconds.get(k.PRODUCTIVE, 0.0)
    walls, resumed = [wall for wall, _ in ledger.starts], [step for _, step in ledger.starts]
    if walls != sorted(walls) or resumed != sorted(set(resumed)):
        raise _WrongError("starts that contradict each other")
    if lows != sorted(lows) or sum(took for _, _, took in ledger.spans) > kept + 1 or ledger.steps_kept < 0:
        raise _WrongError("steps that contradict each other")
    return ledger


_COUNTS = ("steps", "steps_lost", "timed", "saves", "uploads", "incidents", "restarts")


def _parse_span(value: Any) -> g.Span:
    first, last, took = _parse_list(value, 3, exactly=True)
    span = (_parse_whole_number(first), _parse_whole_number(last), _parse_number(took, MOST_SECONDS, least=-1e-3))
    if span[1] < span[0] - 1:
        raise _WrongError("steps that run backwards")
    return span


def _parse_start(value: Any, now_wall: float) -> g.Start:
    wall, step = _parse_list(value, 2, exactly=True)
    return _parse_number(wall, now_wall + CLOCKS_APART_S), _parse_whole_number(step, least=g.FROM_SCRATCH)


def _parse_outage(value: Any, now_wall: float) -> Outage:
    table = _parse_table(value)
    step, recovered = table.get("step"), table.get("recovered")
    if not isinstance(recovered, bool):
        raise _WrongError("neither true nor false")
    parts = {
        name: _parse_number(table.get(name), MOST_SECONDS) for name in ("detect_s", "stop_s", "prepare_s", "start_s")
    }
    return Outage(
        number=_parse_whole_number(table.get("number")),
        cause=_parse_name(table.get("cause")),
        wall=_parse_number(table.get("wall"), now_wall + CLOCKS_APART_S),
        step=None if step is None else _parse_whole_number(step),
        steps_lost=_parse_whole_number(table.get("steps_lost")),
        recovered=recovered,
        **parts,
    )


def _read_learned(value: Any) -> Learned:
    phases = _parse_table(_parse_table(value).get("phases"))
    if len(phases) > MOST_PHASES:
        raise _WrongError("too many phases")
    return Learned({_parse_name(name): _parse_times(times) for name, times in phases.items()})


def _parse_times(value: Any) -> PhaseTimes:
    table = _parse_table(value)
    numbers = {
        name: _parse_number(table.get(name, 0.0), LONGEST_PHASE_S) for name in ("longest_s", "median_s", "late_s")
    }
    # Logarithms are taken of them.
    seconds = tuple(
        _parse_number(one, LONGEST_PHASE_S, least=1e-3) for one in _parse_list(table.get("seconds"), MOST_TIMES)
    )
    return PhaseTimes(seconds=seconds, count=_parse_whole_number(table.get("count")), **numbers)


# ---------------------------------------------------------------- values


def _no_number(text: str) -> NoReturn:
    raise _WrongError(f"{text} is no number")


def _parse_table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _WrongError("not a table")
    return value


def _parse_list(value: Any, most: int, *, exactly: bool = False) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > most or (exactly and len(value) != most):
        raise _WrongError("not such a list")
    return value


def _parse_number(value: Any, most: float, *, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _WrongError("not a number")
    if not least <= value <= most:  # nor is NaN
        raise _WrongError("a number that no run has")
    return float(value)


def _parse_whole_number(value: Any, *, least: int = 0, most: int = MOST_STEPS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _WrongError("not such a whole number")
    return value


def _parse_name(value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise _WrongError("not a name")
    return value
