"""Finds a key of very many parts in a TOML text, before ``tomllib`` spends hours on it.

The time that ``tomllib`` takes for a key grows with the square of its parts. It reads a key in a line of its own, in a
header and in an inline table; a dot in a string, a comment or a number is no part of one.
"""

from __future__ import annotations

import re

MOST_PARTS = 2000

TOKEN = re.compile(
    r'''"""(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5}|\\?\Z)'''  # it may end with two quotes of its own
    r"""|'{3}(?:[^']++|'(?!''))*+(?:'{3,5}|\Z)"""
    r"""|"(?:[^"\\\n]++|\\.)*+"?"""
    r"""|'[^'\n]*'?"""
    r"""|\#[^\n]*"""
    r"""|[.=,\[\]{}\n]""",
    re.DOTALL,
)
"""Strings, comments, the dots between a key's parts, and what ends a key. Up to the first mistake this sees strings
where ``tomllib`` does, and beyond that ``tomllib`` does not read."""


def long_key_line(text: str) -> int:
    """Number of the line with a key of more than ``MOST_PARTS`` parts; 0 where there is none. In linear time."""
    if all(line.count(".") <= MOST_PARTS for line in text.split("\n")):
        return 0
    dots = 0
    for found in TOKEN.finditer(text):
        first = found[0][0]
        if first == ".":
            dots += 1
            if dots > MOST_PARTS:
                return text.count("\n", 0, found.start()) + 1
        elif first not in "\"'":  # a part of a key may be quoted
            dots = 0
    return 0
