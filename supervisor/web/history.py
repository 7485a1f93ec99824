"""Lines for charts out of the series that a run's attempts left (``supervisor.journal.series``). Pure.

A gap stays a gap (None), and what is not known is not drawn. Long lines are thinned: of each stretch of time the lowest
and the highest point stay, so a dip of one sample is seen in a year.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import linear_regression, median
from typing import Any

from supervisor.journal.series import Row

MOST_POINTS = 1200  # of a line
GAP_TIMES = 4.0  # so many times the usual distance between two points is a gap
SHORTEST_GAP_S = 180.0
FORECAST_FROM_S, LEAST_FOR_FORECAST = 6 * 3600.0, 20  # and as many samples
GIB, GB, MB = 1 << 30, 1e9, 1e6
TOLD = frozenset({"warning", "error"})
MARKS = frozenset({"rollback", "restored", "launched", "lineage", "incident-closed", "claimed", "fenced"})
MOST_MARKS = 400


@dataclass(frozen=True)
class Piece:
    """The series of one attempt of one pod (by the name of its journal)."""

    journal: str
    attempt: int
    rows: Sequence[Row]


@dataclass
class Line:
    """Points in the order of time. ``undone``: of steps that were trained again later."""

    name: str
    points: list[tuple[float, float | None, int | None]] = field(default_factory=list)  # Unix time, value, step
    undone: bool = False

    def as_json(self) -> dict[str, Any]:
        """As the page draws it."""
        points = thin_points(self.points)
        line: dict[str, Any] = {"name": self.name, "x": [round(t) for t, _, _ in points]}
        line["y"] = [None if y is None or not math.isfinite(y) else float(f"{y:.5g}") for _, y, _ in points]
        if any(step is not None for _, _, step in points):
            line["step"] = [step for _, _, step in points]
        return line | ({"undone": True} if self.undone else {})


def draw_history(pieces: Iterable[Piece]) -> dict[str, Any]:
    """``charts`` [{id, title, unit, lines}], ``attempts`` [{journal, attempt, from, to}], ``marks`` [{t, level,
    sentence}]; times in Unix time. A chart without a point is left out.
    """
    there = [Piece(one.journal, one.attempt, _join_steps(one.rows)) for one in pieces if one.rows]
    there.sort(key=lambda one: float(one.rows[0]["t"]))
    undone = _find_undone(there)
    roles = {index: str(role) for one in there for row in one.rows for index, (role, _) in row.get("roles", {}).items()}

    def of_steps(name: str) -> list[Line]:
        return [*_draw_steps(there, name, undone)]

    def of_samples(name: str, title: str, unit: float = 1.0) -> list[Line]:
        return [_draw_samples(there, title, lambda row: [end / unit for end in _ends_of(row.get(name))])]

    def of_gpus(read: Callable[[Sequence[Any]], Sequence[float]]) -> list[Line]:
        indices = sorted({index for one in there for row in one.rows for index in row.get("gpu", {})}, key=int)
        titles = {index: f"GPU {index}" + (f", {roles[index]}" if index in roles else "") for index in indices}

        def read_gpu(index: str, row: Row) -> Iterable[float]:
            return read(row["gpu"][index]) if index in row.get("gpu", {}) else ()

        return [_draw_samples(there, titles[index], partial(read_gpu, index)) for index in indices]

    charts = (
        ("reward", "Reward", "", of_steps("reward")),
        ("loss", "Loss", "", of_steps("loss")),
        ("step", "Seconds a step", "s", of_steps("s")),
        ("tokens", "Tokens a second", "", of_steps("tps")),
        ("gpu-memory", "GPU memory", "GiB", of_gpus(lambda gpu: [gpu[0] / GIB, gpu[1] / GIB])),
        ("gpu-load", "GPU busy", "%", of_gpus(lambda gpu: [] if gpu[2] is None else [gpu[2]])),
        ("disk", "Disk free", "GB", _with_forecast(of_samples("disk", "free", GB))),
        ("engine", "Requests in the engine", "", of_samples("running", "running") + of_samples("waiting", "waiting")),
        ("link", "Sent to the store", "MB/s", of_samples("link", "while a step is published", MB)),
    )
    drawn = [
        {"id": name, "title": title, "unit": unit, "lines": [line.as_json() for line in lines if line.points]}
        for name, title, unit, lines in charts
    ]
    attempts = [
        {"journal": one.journal, "attempt": one.attempt, "from": one.rows[0]["t"], "to": one.rows[-1]["t"]}
        for one in there
        if one.attempt
    ]
    return {"charts": [one for one in drawn if one["lines"]], "attempts": attempts, "marks": _find_marks(there)}


def thin_points(
    points: Sequence[tuple[float, float | None, int | None]], most: int = MOST_POINTS
) -> Sequence[tuple[float, float | None, int | None]]:
    """At most about so many: the lowest, the highest and the last gap of each stretch of time."""
    if len(points) <= most:
        return points
    begin, end = points[0][0], points[-1][0]
    width = max(end - begin, 1e-9) / (most / 2)
    buckets: dict[int, list[tuple[float, float | None, int | None]]] = {}
    for point in points:
        buckets.setdefault(int((point[0] - begin) / width), []).append(point)
    kept = []
    for bucket in buckets.values():
        known = [point for point in bucket if point[1] is not None]
        chosen = [min(known, key=_value_of), max(known, key=_value_of)] if known else []
        chosen += [point for point in bucket if point[1] is None][-1:]
        kept += sorted(set(chosen), key=lambda point: point[0])
    return kept


def _value_of(point: tuple[float, float | None, int | None]) -> float:
    return math.inf if point[1] is None or math.isnan(point[1]) else point[1]


def _ends_of(value: Any) -> list[float]:
    """Of a number, or of the two ends of several that were made one."""
    found = value if isinstance(value, list) else [value]
    return [float(one) for one in found if isinstance(one, int | float)]


def _join_steps(rows: Sequence[Row]) -> list[Row]:
    """A step that is told twice, by a log and by metrics.jsonl, is one row."""
    kept: list[Row] = []
    newest: dict[object, Row] = {}
    for row in rows:
        before = newest.get(row.get("role"))
        if "step" in row and before is not None and before["step"] == row["step"]:
            before |= {name: value for name, value in row.items() if name not in before}
            continue
        if "step" in row:
            row = newest[row.get("role")] = dict(row)
        kept.append(row)
    return kept


def _find_undone(pieces: Sequence[Piece]) -> dict[int, bool]:
    """Of each row of a step, by its identity: was the step trained again later?"""
    rows = sorted((row for one in pieces for row in one.rows if "step" in row), key=lambda row: float(row["t"]))
    lowest: dict[str, float] = {}
    found = {}
    for row in reversed(rows):
        role, ends = str(row.get("role")), _ends_of(row["step"])
        if ends:
            found[id(row)] = max(ends) >= lowest.get(role, math.inf)
            lowest[role] = min(lowest.get(role, math.inf), *ends)
    return found


def _draw_steps(pieces: Sequence[Piece], name: str, undone: Mapping[int, bool]) -> Iterator[Line]:
    lines: dict[tuple[str, bool], Line] = {}
    for one in pieces:
        for line in lines.values():
            _cut(line, float(one.rows[0]["t"]))
        for row in one.rows:
            values = _ends_of(row.get(name)) if "step" in row else []
            if values:
                key = str(row.get("role")), undone.get(id(row), False)
                title = f"{key[0]}, trained again" if key[1] else key[0]
                line = lines.setdefault(key, Line(title, undone=key[1]))
                step = int(max(_ends_of(row["step"])))
                line.points += [(float(row["t"]), value, step) for value in values]
                if (other := lines.get((key[0], not key[1]))) is not None:
                    _cut(other, float(row["t"]))
    for key in sorted(lines):
        yield lines[key]


def _draw_samples(pieces: Sequence[Piece], name: str, read: Callable[[Row], Iterable[float]]) -> Line:
    line = Line(name)
    for one in pieces:
        found = [(float(row["t"]), value) for row in one.rows for value in read(row)]
        distances = [b - a for (a, _), (b, _) in itertools.pairwise(found) if b > a]
        gap_s = max(SHORTEST_GAP_S, GAP_TIMES * median(distances)) if distances else math.inf
        before = math.inf
        for t, value in found:
            if before == math.inf or t - before > gap_s:  # the first of an attempt, or after a hole
                _cut(line, t)
            line.points.append((t, value, None))
            before = t
    return line


def _with_forecast(lines: list[Line]) -> list[Line]:
    """And where the line goes if the last hours go on: until nothing is left, at most as far as they went back."""
    known = [(t, y) for t, y, _ in lines[0].points if y is not None]
    recent = [(t, y) for t, y in known if t >= known[-1][0] - FORECAST_FROM_S] if known else []
    if len(recent) < LEAST_FOR_FORECAST:
        return lines
    # Checkpoints come and go in steps, so that a line through all of it says more than its two ends.
    slope, _ = linear_regression([t for t, _ in recent], [y for _, y in recent])
    t, free = recent[-1]
    ahead_s = min(t - recent[0][0], -free / slope) if slope < 0 else 0.0
    end = (t + ahead_s, max(0.0, free + slope * ahead_s), None)
    return [*lines, Line("if it goes on", [(t, free, None), end])] if ahead_s > 0 else lines


def _cut(line: Line, t: float) -> None:
    """The line ends here, and goes on elsewhere."""
    if line.points and line.points[-1][1] is not None:
        line.points.append((t, None, None))


def _find_marks(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    found = [
        {
            "t": row["t"],
            "level": str(row.get("level")),
            "event": str(row["event"]),
            "sentence": str(row.get("sentence")),
        }
        for one in pieces
        for row in one.rows
        if "event" in row and (row.get("level") in TOLD or row["event"] in MARKS)
    ]
    return found[-MOST_MARKS:]
