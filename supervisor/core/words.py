"""Durations, sizes and lists of steps as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable

WHOSE = {"inference": "inference server", "env": "environment server"}
LONGEST_LINE = 200  # of a job's own words in a sentence


def span(seconds: float) -> str:
    """A duration for people: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if not math.isfinite(seconds):
        return "an unknown time"  # of records that a person edited
    if seconds < 0:
        return "0 s"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def size(count: float) -> str:
    """A number of bytes for people, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit in ("B", "KiB") or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def root_line(name: str, role: str, text: str, told: str = "") -> str:
    """A root cause: signature, role and the job's own line, which is left out where ``told`` has it already."""
    what = "an error without a name" if name == "unknown" else name
    where = f" in the {WHOSE.get(role, role)}" if role else ""
    line = text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 3]}..."
    return f"root cause: {what}{where}" + (f': "{line}"' if line and text not in told else "")


def numbers(steps: Iterable[int], most: int = 10) -> str:
    """Steps for a sentence: ``370, 380, 390 and 12 older``; ``none`` when there is none."""
    ordered = sorted(steps)
    older = len(ordered) - most
    return (", ".join(map(str, ordered[-most:])) or "none") + (f" and {older} older" if older > 0 else "")
