"""The plain words that an expression cannot match without: who looks for them first needs the expression seldom."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

# Escapes and character classes, which may hold a literal "*", "+", "{", "(" or "|".
LITERALS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.S)

_INSIDE = re.compile(r"\((?:\?[a-zA-Z]*:|\?P<\w+>)?((?!\?).*)\)", re.S)  # of a group that is part of the match
_TIMES = re.compile(r"\?|\{(\d*)(?:,(\d+))?\}")

PIECE, LEAST = 12, 6
# How often letters come in English text, in percent; what is not named is rarer.
LETTERS: Final = " etaoinsrhldcumfpgwybvk01."
SHARES: Final = (18, 10, 7, 7, 6, 6, 6, 5, 5, 5, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2)
COMMON: Final = dict(zip(LETTERS, SHARES, strict=True))


def part_of(word: str) -> str:
    """A part of the word that begins with a letter that is rare in text: the fewer places an expression has to try, the
    faster it passes over what a model has written."""
    start = min(range(max(1, len(word) - LEAST + 1)), key=lambda place: COMMON.get(word[place], 0))
    return word[start : start + PIECE]


def any_of(words: Iterable[str]) -> str:
    """An expression that finds any of these, the shorter of two that begin alike; it tries each beginning once."""
    return _either(sorted(set(words))) or "(?!)"


def may_hide(found: str, part: str) -> bool:
    """Can ``part`` begin where ``found`` was found, so that it is passed over with it?"""
    return any(found[start : start + len(part)] == part[: len(found) - start] for start in range(len(found)))


def _either(words: list[str]) -> str:
    if "" in words:
        return ""  # what is longer begins with it
    choices = [
        re.escape(letter) + _either([word[1:] for word in words if word[0] == letter])
        for letter in sorted({word[0] for word in words})
    ]
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})" if choices else ""


def words_of(pattern: str) -> tuple[str, ...]:
    """Plain words, one of which stands in each line that ``pattern`` matches; none where that cannot be told.

    Of all that must stand there, the longest: a run of plain letters, or a group with a word in each of its choices.
    """
    choices = [_words_of_one(part) for part in _split(pattern)]
    return tuple(dict.fromkeys(word for words in choices for word in words)) if all(choices) else ()


@cache
def reach_of(pattern: str) -> int:
    """No match is longer than so many characters. The pattern repeats nothing without a bound."""
    return max(map(_reach_of_one, _split(pattern)))


def _reach_of_one(pattern: str) -> int:
    reach = place = 0
    while place < len(pattern):
        end = _after(pattern, place)
        wide = 1
        if pattern[place] == "(":
            inside = _INSIDE.fullmatch(pattern, place, end)
            wide = reach_of(inside[1]) if inside else 0  # what looks ahead or back is no part of the match
        times = _TIMES.match(pattern, end)
        if times:
            wide *= int(times[2] or times[1] or 1)
            end = times.end() + (pattern[times.end() : times.end() + 1] == "?")
        reach += wide
        place = end
    return reach


def _words_of_one(pattern: str) -> tuple[str, ...]:
    """The same for a pattern without a choice outside of its groups."""
    best: tuple[str, ...] = ()
    run, place = "", 0
    while place <= len(pattern):
        char = pattern[place : place + 1]
        end = place + 1
        found: tuple[str, ...] = ()
        plain = ""
        if char == "(":
            end = _closing(pattern, place)
            inner = re.fullmatch(r"\((?:\?:|\?P<\w+>)?((?!\?).*)\)", pattern[place:end], re.S)
            found = words_of(inner[1]) if inner else ()
        elif char == "[":
            end = LITERALS.match(pattern, place).end()  # type: ignore[union-attr]  # it compiles
        elif char == "\\":
            end = place + 2
            plain = "" if pattern[place + 1].isalnum() else pattern[place + 1]
        elif char not in ("", ".", "^", "$", "?", "{"):
            plain = char
        if char == "{":
            end = pattern.index("}", place) + 1
        optional = re.match(r"\?|\{0?,", pattern[end:]) is not None
        if optional:
            found, plain = (), ""
        run += plain
        if plain and pattern[end : end + 1] != "{":
            place = end
            continue
        best = max(best, found, (run,) if run else (), key=lambda words: min(map(len, words), default=0))
        run = ""
        place = end
    return best


def _split(pattern: str) -> list[str]:
    """A pattern at its outermost bars."""
    parts, start, place = [], 0, 0
    while place < len(pattern):
        char = pattern[place]
        if char == "|":
            parts.append(pattern[start:place])
            start = place + 1
        place = _after(pattern, place)
    return [*parts, pattern[start:]]


def _after(pattern: str, place: int) -> int:
    """Where the next part begins: behind a group, a class of characters, an escape, or one character."""
    if pattern[place] == "(":
        return _closing(pattern, place)
    found = LITERALS.match(pattern, place)
    return found.end() if found else place + 1


def _closing(pattern: str, place: int) -> int:
    """Behind the bracket that closes the group that begins at ``place``."""
    place += 1
    while pattern[place] != ")":
        place = _after(pattern, place)
    return place + 1
