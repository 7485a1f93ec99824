"""Lines for charts out of the series that a run's attempts left (``supervisor.journal.series``). Pure.

A gap stays a gap (None), and what is not known is not drawn. Long lines are thinned: of each stretch of time the lowest
and the highest point stay, so a dip of one sample is seen in a year.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import linear_regression, median
from typing import Any

from supervisor.journal.series import Row

MOST_POINTS = 1200  # of a line
NEWEST_S = (3600.0, 6 * 3600.0, 24 * 3600.0)  # a line's last hours are thinned less: a person looks closely at those
GAP_TIMES = 4.0  # so many times the usual distance between two points is a gap
SHORTEST_GAP_S = 180.0
FORECAST_FROM_S, LEAST_FOR_FORECAST = 6 * 3600.0, 20  # and as many samples
GIB, GB, MB = 1 << 30, 1e9, 1e6
UNITS = {"disk": GB, "running": 1.0, "waiting": 1.0, "link": MB}
KEYS_OF_OTHERS = frozenset({"step", "event", "roles"})  # of rows that are no samples
TOLD = frozenset({"warning", "error"})
MARKS = frozenset({"rollback", "restored", "launched", "lineage", "incident-closed", "claimed", "fenced"})
MOST_MARKS = 400

Point = tuple[float, float | None, int | None]  # Unix time, value, step


class Piece:
    """The series of one attempt of one pod (by the name of its journal).

    Samples are most of it. They are thinned into lines here, once, and their rows are forgotten: ``rows`` has the
    others, in the order of time. It is equal to itself alone, so what was drawn of it can be kept.
    """

    def __init__(self, journal: str, attempt: int, rows: Iterable[Row]) -> None:
        there = sorted(rows, key=lambda row: float(row["t"]))  # a clock may have been set back meanwhile
        self.journal, self.attempt = journal, attempt
        self.span = (float(there[0]["t"]), float(there[-1]["t"])) if there else None
        self.rows = _join_steps([row for row in there if not KEYS_OF_OTHERS.isdisjoint(row)])
        self.samples = _read_samples(there)


@dataclass
class Line:
    """Points in the order of time. ``undone``: of steps that were trained again later."""

    name: str
    points: list[Point] = field(default_factory=list)
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
    there = sorted((one for one in pieces if one.span), key=_begin_of)
    undone = _find_undone(there)
    roles = {index: str(role) for one in there for row in one.rows for index, (role, _) in row.get("roles", {}).items()}

    def of_samples(name: str, title: str) -> list[Line]:
        return [_draw_samples(there, (name, ""), title)]

    def of_gpus(name: str) -> list[Line]:
        indices = sorted({index for one in there for kind, index in one.samples if kind == name}, key=int)
        titles = {index: f"GPU {index}" + (f", {roles[index]}" if index in roles else "") for index in indices}
        return [_draw_samples(there, (name, index), titles[index]) for index in indices]

    charts = (
        ("reward", "Reward", "", _draw_steps(there, "reward", undone)),
        ("loss", "Loss", "", _draw_steps(there, "loss", undone)),
        ("step", "Seconds a step", "s", _draw_steps(there, "s", undone)),
        ("tokens", "Tokens a second", "", _draw_steps(there, "tps", undone)),
        ("gpu-memory", "GPU memory", "GiB", of_gpus("gpu-memory")),
        ("gpu-load", "GPU busy", "%", of_gpus("gpu-load")),
        ("disk", "Disk free", "GB", _with_forecast(of_samples("disk", "free"))),
        ("engine", "Requests in the engine", "", of_samples("running", "running") + of_samples("waiting", "waiting")),
        ("link", "Sent to the store", "MB/s", of_samples("link", "while a step is published")),
    )
    drawn = [
        {"id": name, "title": title, "unit": unit, "lines": [line.as_json() for line in lines if line.points]}
        for name, title, unit, lines in charts
    ]
    attempts = [
        {"journal": one.journal, "attempt": one.attempt, "from": one.span[0], "to": one.span[1]}
        for one in there
        if one.attempt and one.span
    ]
    return {"charts": [one for one in drawn if one["lines"]], "attempts": attempts, "marks": _find_marks(there)}


def _begin_of(piece: Piece) -> float:
    return piece.span[0] if piece.span else math.inf


def thin_points(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """At most about so many: the lowest, the highest and the last gap of each stretch of time. ``points`` are in its
    order.
    """
    if len(points) <= most:
        return points
    begin, end = points[0][0], points[-1][0]
    widest = max(end - begin, 1e-9) / (most / 4)
    widths = [(newest_s, min(widest, newest_s / (most / 4 / len(NEWEST_S)))) for newest_s in NEWEST_S]
    kept: list[Point] = []
    for _, stretch in itertools.groupby(points, lambda point: _stretch_of(end - point[0], widths, widest)):
        low = high = gap = None
        for point in stretch:
            if point[1] is None or not math.isfinite(point[1]):
                gap = point
                continue
            if low is None or point[1] < low[1]:  # type: ignore[operator]
                low = point
            if high is None or point[1] > high[1]:  # type: ignore[operator]
                high = point
        kept += sorted({point for point in (low, high, gap) if point is not None}, key=itemgetter(0))
    return kept


def _stretch_of(age: float, widths: Sequence[tuple[float, float]], widest: float) -> tuple[int, int]:
    for number, (newest_s, width) in enumerate(widths):
        if age <= newest_s:
            return number, int(age / width)
    return len(widths), int(age / widest)


def _ends_of(value: Any) -> list[float]:
    """Of a number, or of the two ends of several that were made one."""
    found = value if isinstance(value, list) else [value]
    return [float(one) for one in found if isinstance(one, int | float)]


def _join_steps(rows: Sequence[Row]) -> list[Row]:
    """A step that is told twice, by a log and by metrics.jsonl, is one row: no attempt trains a step twice.

    Where steps are short, several come by the one before they come by the other.
    """
    kept: list[Row] = []
    there: dict[tuple[object, str], Row] = {}
    for row in rows:
        if "step" not in row:
            kept.append(row)
            continue
        key = row.get("role"), str(row["step"])  # of thinned rows it is the two ends of several
        before = there.get(key)
        if before is None:
            kept.append(there.setdefault(key, dict(row)))
        else:
            before |= {name: value for name, value in row.items() if name not in before}
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


def _draw_steps(pieces: Sequence[Piece], name: str, undone: Mapping[int, bool]) -> list[Line]:
    lines: dict[tuple[str, bool], Line] = {}
    for one in pieces:
        for line in lines.values():
            _cut(line, _begin_of(one))
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
    return [lines[key] for key in sorted(lines)]


def _read_samples(rows: Sequence[Row]) -> dict[tuple[str, str], Sequence[Point]]:
    """Lines of a piece by what they show, and of which GPU; with their gaps."""
    found: dict[tuple[str, str], list[Point]] = {}
    for row in rows:
        t = float(row["t"])
        for name, unit in UNITS.items():
            if name in row:
                found.setdefault((name, ""), []).extend((t, end / unit, None) for end in _ends_of(row[name]))
        for index, (least, most, load) in row.get("gpu", {}).items():
            found.setdefault(("gpu-memory", index), []).extend(((t, least / GIB, None), (t, most / GIB, None)))
            if load is not None:
                found.setdefault(("gpu-load", index), []).append((t, float(load), None))
    return {key: thin_points(_with_gaps(points), MOST_POINTS // 2) for key, points in found.items()}


def _with_gaps(points: Sequence[Point]) -> list[Point]:
    distances = [b[0] - a[0] for a, b in itertools.pairwise(points) if b[0] > a[0]]
    gap_s = max(SHORTEST_GAP_S, GAP_TIMES * median(distances)) if distances else math.inf
    line: list[Point] = []
    for point in points:
        if line and point[0] - line[-1][0] > gap_s:
            line.append((point[0], None, None))
        line.append(point)
    return line


def _draw_samples(pieces: Sequence[Piece], key: tuple[str, str], title: str) -> Line:
    line = Line(title)
    for one in pieces:
        if points := one.samples.get(key):
            _cut(line, points[0][0])
            line.points += points
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
