"""What a run looked like over time, a file an attempt, for charts: steps, samples, and what was said.

``STATE/series/0007.jsonl``, one object a line, ``t`` is Unix time:

- a step: ``step``, ``role``, and of ``reward``, ``loss``, ``s`` (seconds), ``tps`` (tokens a second) what is known;
- a sample, every 30 s: ``gpu`` {index: [least used bytes, most used bytes, mean load in percent or null]} since the
  last one, ``disk`` (free bytes), ``running``, ``waiting`` (requests of the engine), ``link`` (bytes a second, while a
  step is published);
- ``event``, ``level``, ``sentence``: what the daemon said;
- ``roles``: {index: [role, total bytes]}, when they become known or change.

What is not known has no key. A file that grows beyond its limit is thinned: of its older half each two neighbours
become one, whose numbers are [lowest, highest]. So no dip is lost, however old. Nothing here is needed to keep a run
alive: what cannot be written is left out.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from supervisor.core.facts import GpuLook, Observation, StepDone
from supervisor.core.state import State
from supervisor.journal.journal import Event

FOLDER = "series"
SAMPLE_S = 30.0
FILE_BYTES = 1 << 20  # compressed, numbers at random too, it is within log_packing.LOG_LIMIT
MOST_FILES = 200
SAMPLED = ("disk", "running", "waiting", "link")
MOST_EVENTS = 2000  # of one file; the oldest go

LATEST_T, LARGEST = 1e11, 1 << 63  # Unix time that any browser knows; a number that fits a float

Row = dict[str, Any]


class Rate(Protocol):
    """A transfer."""

    @property
    def rate(self) -> float:
        """Bytes a second."""


class SeriesWriter:
    """Appends what the loop sees. Called in the loop alone."""

    def __init__(self, state_dir: Path, publishing: Callable[[], Rate | None]) -> None:
        self._publishing = publishing
        self._folder = state_dir / FOLDER
        self._sampled_at = -math.inf
        self._gpus: dict[int, list[float]] = {}  # least and most used bytes, sum and count of the loads
        self._roles: tuple[int, dict[str, list[object]]] = (0, {})  # of an attempt, as they were last written

    def note(self, observation: Observation, state: State, said: Iterable[Event]) -> None:
        """One turn of the loop."""
        fact, wall = observation.fact, round(observation.wall, 1)
        rows: list[Row] = [
            {"t": wall, "event": one.event, "level": one.level, "sentence": one.sentence}
            for one in said
            if one.event != "step"
        ]
        if isinstance(fact, StepDone):
            values = {"reward": fact.reward, "loss": fact.loss, "s": fact.duration_s, "tps": fact.throughput}
            known = {name: float(f"{value:.6g}") for name, value in values.items() if value is not None}
            rows.append({"t": wall, "step": fact.step, "role": fact.role, **known})
        elif isinstance(fact, GpuLook):
            self._note_gpus(fact)
        if state.live and observation.t - self._sampled_at >= SAMPLE_S:
            self._sampled_at = observation.t
            rows += self._take_sample(wall, state)
        if rows:
            with contextlib.suppress(OSError):
                self._append(state.attempt.number, rows)

    def _note_gpus(self, look: GpuLook) -> None:
        for gpu in () if look.host else look.gpus:  # charts are of one machine: hundreds of lines say nothing
            seen = self._gpus.setdefault(gpu.index, [gpu.used_bytes, gpu.used_bytes, 0.0, 0])
            seen[0], seen[1] = min(seen[0], gpu.used_bytes), max(seen[1], gpu.used_bytes)
            if gpu.load is not None:
                seen[2], seen[3] = seen[2] + gpu.load, seen[3] + 1

    def _take_sample(self, wall: float, state: State) -> Iterator[Row]:
        roles: dict[str, list[object]] = {
            str(one.gpu.index): [one.gpu.role, one.gpu.total_bytes]
            for one in state.gpus.by_uuid.values()
            if not one.gpu.host
        }
        if roles and (state.attempt.number, roles) != self._roles:
            self._roles = state.attempt.number, roles
            yield {"t": wall, "roles": roles}
        look, moving = state.engine.look, self._publishing()
        values: Row = {
            "disk": state.disk.free,
            "running": look.running if look else None,
            "waiting": look.waiting if look else None,
            "link": None if moving is None else round(moving.rate),
        }
        row = {"t": wall, **{name: value for name, value in values.items() if value is not None}}
        if self._gpus:
            row["gpu"] = {
                str(index): [least, most, round(total / count) if count else None]
                for index, (least, most, total, count) in sorted(self._gpus.items())
            }
            self._gpus = {}
        if len(row) > 1:
            yield row

    def _append(self, attempt: int, rows: Sequence[Row]) -> None:
        path = path_of(self._folder.parent, attempt)
        if not path.exists():
            self._folder.mkdir(mode=0o750, exist_ok=True)
            for old in sorted(self._folder.glob("*.jsonl"))[: -MOST_FILES + 1]:
                old.unlink()
        with path.open("ab") as file:
            file.write(_to_bytes(rows))
            size = file.tell()
        if size > FILE_BYTES:
            new = path.with_suffix(".new")
            new.write_bytes(_to_bytes(thin(parse_series(path.read_bytes()))))
            new.replace(path)


def path_of(state_dir: Path, attempt: int) -> Path:
    """The file of an attempt."""
    return state_dir / FOLDER / f"{attempt:04d}.jsonl"


def parse_series(data: bytes) -> list[Row]:
    """The rows; a line that is cut, or none of ours, is left out: a file in the store may come from any host."""
    rows = []
    for line in data.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and _is_row(row):
            rows.append(row)
    return rows


def _is_row(row: Row) -> bool:
    gpus, roles = row.get("gpu", {}), row.get("roles", {})
    texts = [row[name] for name in ("role", "event", "level", "sentence") if name in row]
    numbers = [row[name] for name in ("step", "reward", "loss", "s", "tps", *SAMPLED) if name in row]
    return (
        _is_number(row.get("t"))
        and 0 <= row["t"] <= LATEST_T
        and all(isinstance(text, str) for text in texts)
        and all(_is_number(one) or _is_list(one, 2) for one in numbers)
        and ("step" not in row or ("role" in row and all(math.isfinite(end) for end in _ends_of(row["step"]))))
        and all(isinstance(one, dict) and all(index.isdigit() for index in one) for one in (gpus, roles))
        and all(isinstance(one, list) and len(one) == 3 and _is_list(one[:2], 2) for one in gpus.values())
        and all(one[2] is None or _is_number(one[2]) for one in gpus.values())
        and all(isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in roles.values())
    )


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) <= LARGEST)


def _is_list(value: object, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(_is_number(one) for one in value)


def thin(rows: Sequence[Row]) -> list[Row]:
    """Half as many steps and samples in the older half, none of them lost to the eye, and the newest events."""
    events = [row for row in rows if "event" in row][-MOST_EVENTS:]
    kept = [*events, *(row for row in rows if "roles" in row)]
    kinds: dict[object, list[Row]] = {}
    for row in rows:
        if "event" not in row and "roles" not in row:
            kinds.setdefault(row.get("role"), []).append(row)
    for of_kind in kinds.values():
        older, newer = of_kind[: len(of_kind) // 2], of_kind[len(of_kind) // 2 :]
        kept += [_merge_rows(*older[at : at + 2]) for at in range(0, len(older), 2)]
        kept += newer
    return sorted(kept, key=lambda row: float(row["t"]))


def _merge_rows(one: Row, other: Row | None = None) -> Row:
    if other is None:
        return one
    merged: Row = {}
    for name in {**one, **other}:
        first, second = one.get(name), other.get(name)
        if first is None or second is None or name in ("t", "role"):
            merged[name] = second if first is None else first
        elif name == "gpu":
            merged[name] = {
                index: _merge_gpu(first.get(index), second.get(index)) for index in sorted({**first, **second})
            }
        else:
            ends = [*_ends_of(first), *_ends_of(second)]
            known = [end for end in ends if math.isfinite(end)]
            merged[name] = [min(known), max(known)] if known else first
    return merged


def _merge_gpu(one: Sequence[Any] | None, other: Sequence[Any] | None) -> Sequence[Any] | None:
    if one is None or other is None:
        return one or other
    loads = [load for load in (one[2], other[2]) if load is not None]
    return [min(one[0], other[0]), max(one[1], other[1]), round(sum(loads) / len(loads)) if loads else None]


def _ends_of(value: Any) -> Sequence[float]:
    return value if isinstance(value, list) else [value]


def _to_bytes(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for row in rows)
