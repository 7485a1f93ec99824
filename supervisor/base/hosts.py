"""Slurm's lists of hosts."""

from __future__ import annotations

import re

MOST_NAMES = 100_000


def expand_hosts(text: str) -> list[str]:
    """Slurm's list of hosts, "n[1-3,07-09],m4", as names. ValueError for what is none."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else [one for word in ranges.split(",") for one in _expand_range(word)]
            names = [name + end for name in names for end in ends]
            if len(found) + len(names) > MOST_NAMES:
                raise ValueError(f"{text[:100]!r} names too many hosts")
        found += names
    return found


def _expand_range(word: str) -> list[str]:
    first, dash, last = word.partition("-")
    if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
        raise ValueError(f"{word!r} is no range of hosts")
    if not dash:
        return [first]
    if int(last) - int(first) > MOST_NAMES:
        raise ValueError(f"{word!r} names too many hosts")
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
