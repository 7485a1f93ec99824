"""What ``supervisorctl top`` shows, as lines of text. Pure: a daemon's answer and a run's series in, lines out.

Each line has one colour at most, and no more columns than the terminal: what comes from a run cannot move anything.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from supervisor.cli import render
from supervisor.core.words import size, span

Line = tuple[str, str]
"""Text, and what it is: a state or a level (``render.Paint``), "keys", or ""."""
Row = Mapping[str, Any]  # of supervisor.journal.series

LABEL, VALUE, TOLD = 12, 17, 27  # columns
LEAST_SPARKS, MOST_SPARKS = 8, 60
MOST_OF_SENTENCE, MOST_OF_FACT = 4, 3  # lines
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.-~=*%#"
SHORTEST_SPAN_S = 600.0  # of memory: samples come every 30 s
SAMPLE_HOLDS_S = 45.0
GIB = 1 << 30
KEYS = {
    "run": "r runs   l logs   e explain   q quit",
    "runs": "1-9, or arrows and Enter: this run   q quit",
    "logs": "l next log   arrows: older   Esc back   q quit",
    "explain": "arrows: further down   Esc back   q quit",
}


@dataclass(frozen=True)
class Size:
    """Of the terminal. ``blocks``: it can show the characters of BLOCKS."""

    columns: int = 80
    rows: int = 24
    blocks: bool = True


def draw_run(status: Mapping[str, Any], series: Sequence[Row], trouble: str, terminal: Size, now: float) -> list[Line]:
    """The run: a sentence, what trains, lines of the last steps, disk, transfer, incidents. ``trouble``: why the answer
    is an old one, or what of the series cannot be read.
    """
    lines = draw_head(status, terminal, now)
    lines += [*((line, "error") for line in _wrap(trouble, terminal.columns)[:MOST_OF_SENTENCE]), ("", "")]
    lines += draw_series(status, series, terminal)
    lines += _wrap_facts(_list_facts(status), terminal)
    room = terminal.rows - len(lines) - 2
    notes = [("note", str(one), "") for one in status.get("notes") or ()]
    told = _wrap_facts([*_list_incidents(status, now), *notes], terminal)
    if told and room > 0:
        lines += [("", ""), *told[:room]]
    return lines


def draw_head(status: Mapping[str, Any], terminal: Size, now: float) -> list[Line]:
    """The run and its state, and the sentence in a few lines."""
    state = str(status.get("state") or "unknown")
    word, _, told = render.headline(status, "", now=now).strip().partition("  ")
    whole = f"{render.safe(status.get('run') or '')}  {word}"
    sentence = _wrap(told, terminal.columns)
    if len(sentence) > MOST_OF_SENTENCE:
        sentence[MOST_OF_SENTENCE - 1 :] = [f"{sentence[MOST_OF_SENTENCE - 1]} ..."]
    clock = render.clock(now)
    return [(f"{whole.ljust(terminal.columns - len(clock) - 1)} {clock}", state), *((line, "") for line in sentence)]


def draw_series(status: Mapping[str, Any], series: Sequence[Row], terminal: Size) -> list[Line]:
    """Step time and reward, a mark a step, and the least used memory of each role's GPUs over the same time."""
    width = min(max(terminal.columns - LABEL - VALUE - TOLD, LEAST_SPARKS), MOST_SPARKS)
    lines = _wrap_facts([("progress", render.progress(status) + render.remaining_time(status), "")], terminal)
    begin = math.inf
    for name, title, words in (("s", "step time", _seconds_in_words), ("reward", "reward", "{:.3g}".format)):
        points = _list_steps(series, name)[-width:]
        if points:
            begin = min(begin, points[0][0])
            values = [value for _, value in points]
            told = f"{words(min(values))} to {words(max(values))}, {len(values)} step{'s' if len(values) > 1 else ''}"
            sparks = draw_sparks(values, terminal, most=None, least=None)
            lines.append(_label(title, f"{words(values[-1]):<{VALUE}}{sparks:<{width}}  {told}"))
    return lines + _draw_memory(status, series, terminal, width, begin)


def _draw_memory(
    status: Mapping[str, Any], series: Sequence[Row], terminal: Size, width: int, begin: float
) -> list[Line]:
    roles: dict[str, list[Mapping[str, Any]]] = {}
    for gpu in status.get("gpus") or ():
        roles.setdefault(str(gpu.get("role") or "other"), []).append(gpu)
    samples = [row for row in series if row.get("gpu")]
    end = samples[-1]["t"] if samples else 0.0
    begin = min(begin, end - SHORTEST_SPAN_S)
    begin = max(begin, samples[0]["t"]) if samples else begin
    lines = []
    for role, gpus in roles.items():
        used = [gpu["used_bytes"] for gpu in gpus if gpu.get("used_bytes") is not None]
        total = max((gpu.get("total_bytes") or 0 for gpu in gpus), default=0)
        indices = {str(gpu.get("index")) for gpu in gpus}
        lowest = [
            (float(row["t"]), min(found))
            for row in samples
            if (found := [float(one[0]) for index, one in row["gpu"].items() if index in indices])
        ]
        value = f"{min(used) / GIB:.1f}" if used else "unknown"
        if used and max(used) - min(used) > 0.05 * GIB:
            value += f" to {max(used) / GIB:.1f}"
        value += f" of {total / GIB:.0f} GiB" if used and total else ""
        told = f"{f'lowest of {len(gpus)}, ' if len(gpus) > 1 else ''}{(end - begin) / 60:.0f} min" if samples else ""
        sparks = draw_sparks(
            _lowest_over_time(lowest, begin, end, width), terminal, most=float(total) or None, least=0.0
        )
        lines.append(_label(f"{role[: LABEL - 1]}", f"{value:<{VALUE}}{sparks:<{width}}  {told}"))
    return lines


def draw_sparks(values: Sequence[float | None], terminal: Size, *, most: float | None, least: float | None) -> str:
    """A mark for each value, a blank for None. ``most`` and ``least``: of the scale; None: those of the values."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known) if least is None else least, max(known) if most is None else most
    marks = BLOCKS if terminal.blocks else ASCII
    found = ""
    for value in values:
        if value is None or not math.isfinite(value):
            found += " "
        else:
            share = (value - low) / (high - low) if high > low else 0.5
            found += marks[min(max(int(share * len(marks)), 0), len(marks) - 1)]
    return found


def draw_runs(answers: Sequence[Mapping[str, Any]], chosen: int, terminal: Size) -> list[Line]:
    """The runs of this machine, a number before each."""
    lines: list[Line] = [("Runs of this machine", ""), ("", "")]
    first = max(0, chosen - (terminal.rows - 5))
    for number, status in list(enumerate(answers))[first:]:
        head = render.headline(status, render.safe(status.get("run") or ""))
        lines.append((f"{'>' if number == chosen else ' '} {number + 1}  {head}", str(status.get("state") or "")))
    return lines


def draw_text(title: str, text: Sequence[str], back: int, terminal: Size) -> list[Line]:
    """Lines that are longer than the screen: its end, or so many lines before that."""
    room = terminal.rows - 3
    back = min(max(back, 0), max(0, len(text) - room))
    end = len(text) - back
    return [(title, ""), ("", ""), *((line, "") for line in text[max(0, end - room) : end])]


def fit_lines(lines: Sequence[Line], keys: str, terminal: Size) -> list[Line]:
    """Exactly as many lines as the terminal has, none too long, the keys in the last."""
    kept = [(clip_text(text, terminal.columns), kind) for text, kind in lines[: max(terminal.rows - 1, 0)]]
    kept += [("", "")] * (terminal.rows - 1 - len(kept))
    return [*kept, (clip_text(keys, terminal.columns - 1).ljust(terminal.columns - 1), "keys")]


def clip_text(text: str, columns: int) -> str:
    """At most so many columns of it; wide characters take two, and those that combine none."""
    text = render.safe(text).rstrip()
    if len(text) <= columns and text.isascii():
        return text
    found, used = "", 0
    for char in text:
        used += 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used > columns:
            break
        found += char
    return found


# ---------------------------------------------------------------- parts


def _wrap_facts(facts: Iterable[tuple[str, str, str]], terminal: Size) -> list[Line]:
    return [
        (line, kind)
        for label, text, kind in facts
        if text
        for line in _wrap(text, terminal.columns, label)[:MOST_OF_FACT]
    ]


def _label(label: str, text: str) -> Line:
    return f"{label:<{LABEL}}{text}", ""


def _list_steps(series: Iterable[Row], name: str) -> list[tuple[float, float]]:
    """Time and value of the role that told the most; a step that was trained again counts again."""
    roles: dict[str, list[tuple[float, float]]] = {}
    for row in series:
        value = row.get(name)
        ends: list[float] = value if isinstance(value, list) else [] if value is None else [value]
        if "step" in row and ends and all(math.isfinite(end) for end in ends):
            roles.setdefault(str(row.get("role")), []).append((float(row["t"]), float(median(ends))))
    return max(roles.values(), key=len, default=[])


def _lowest_over_time(
    points: Sequence[tuple[float, float]], begin: float, end: float, width: int
) -> Sequence[float | None]:
    """The lowest of each of ``width`` stretches of time. A sample is the lowest since the one before."""
    found: list[float | None] = [None] * width
    scale, before = width / max(end - begin, 1.0), -math.inf
    for t, value in points:
        first = max(before, t - SAMPLE_HOLDS_S, begin)
        for at in range(int((first - begin) * scale), min(int((t - begin) * scale), width - 1) + 1):
            found[at] = value if found[at] is None else min(found[at] or 0.0, value)
        before = t
    return found


def _list_facts(status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Label, text, and what it is; without text it is left out."""
    disk, moving, engine = status.get("disk") or {}, status.get("publishing"), status.get("engine")
    needed, free = status.get("disk_needed_bytes"), disk.get("free_bytes")
    scarce = needed is not None and free is not None and free < needed
    room = f"; the next checkpoint needs {size(needed)}" if needed is not None else ""
    steps = [f"{word} {status[name]}" for name, word in _STEPS.items() if status.get(name) is not None]
    reason = status.get("store_reason")
    spent = status.get("goodput")
    return [
        ("disk", f"{render.disk_in_words(disk)}{room}", "error" if scarce else ""),
        (str((moving or {}).get("what") or "transfer"), render.transfer(moving) if moving else "none now", ""),
        ("steps", ", ".join(steps) or "none complete yet", ""),
        ("store", f"cannot be used: {reason}" if reason else "", "error"),
        ("engine", render.engine_in_words(engine) if engine else "", ""),
        ("time", render.goodput_in_words(spent) if spent else "", ""),
    ]


_STEPS = {"last_good_step": "complete here", "published_step": "published"}


def _list_incidents(status: Mapping[str, Any], now: float) -> list[tuple[str, str, str]]:
    """Newest first."""
    found = []
    opened = status.get("incident")
    for one in [*([opened] if opened else []), *reversed(status.get("incidents") or ())]:
        at = render.clock(one["opened"], now) if one.get("opened") is not None else "?"
        lasts = f"{'open for' if one is opened else 'over in'} {span(float(one.get('seconds') or 0))}"
        told = f"#{one.get('id')} {at} {lasts}: {one.get('sentence') or one.get('cause') or ''}"
        found.append(("INCIDENT" if one is opened else "incident", told, "error" if one is opened else ""))
    return found


def _seconds_in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if 10 <= seconds < 1000 else span(seconds)


def _wrap(text: object, columns: int, label: str = "") -> list[str]:
    first, further = (f"{label:<{LABEL}}", " " * LABEL) if label else ("", "")
    width = max(columns, 2 * LABEL)
    return textwrap.wrap(
        render.safe(text), width, initial_indent=first, subsequent_indent=further, break_on_hyphens=False
    )
