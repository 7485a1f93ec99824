"""Progress bars (tqdm's) at a log's end: what was under way at an error and was done after it shows that it passed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from supervisor.diagnosis.last_words import LAST_WORDS
from supervisor.diagnosis.lines import parse

# What stands before a bar names its process, too, where several write into one log.
_BAR: Final = re.compile(rb"(?:^|\r)(?P<name>[^\r\n|%]{1,120}?): {1,4}(?P<percent>\d{1,3})%\|")
_BEHIND: Final = 3  # lines after the bar, no words of an end: the program went on


def done_bars(tail: Sequence[bytes], before: int) -> list[tuple[int, int]]:
    """Where each bar was first seen at less than 100 %, and where it came there. ``before``: lines above ``tail``."""
    begun: dict[bytes, int] = {}
    done: list[tuple[int, int]] = []
    for number, raw in enumerate(tail, before + 1):
        for bar in _BAR.finditer(raw):
            if int(bar["percent"]) < 100:
                begun.setdefault(bar["name"], number)
            elif (since := begun.pop(bar["name"], None)) is not None:
                done.append((since, number))
    return [(since, number) for since, number in done if _goes_on(tail[number - before :])]


def _goes_on(behind: Sequence[bytes]) -> bool:
    lines = [parse(raw).text for raw in behind if raw.strip()]
    return sum(not LAST_WORDS.match(text) for text in lines) >= _BEHIND
