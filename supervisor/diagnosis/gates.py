"""Which lines are worth a look: expressions that pass over all others, each tried once on the bytes of a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from supervisor.primerl.logs import SIGNATURES

PIECE, LEAST = 12, 6
# How often letters come in English text, in percent; what is not named is rarer.
LETTERS: Final = " etaoinsrhldcumfpgwybvk01."
SHARES: Final = (18, 10, 7, 7, 6, 6, 6, 5, 5, 5, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2)
COMMON: Final = dict(zip(LETTERS, SHARES, strict=True))

# Possessive, so that nothing is tried twice: a line of blanks alone would take for ever else.
_COLOURS = rb"(?:\x1b\[[0-9;]*+m)*+"
_HEAD = (
    _COLOURS + rb"(?:\d{4}-\d\d-\d\dT\S{8,40}+ (?:std(?:out|err) F )?+)?+(?:\[[A-Za-z]{1,32}+\d{1,6}+\]: ?+){0,2}+"
    rb"(?:\([^()\n]{1,60}+\))?+"
    + _COLOURS
    + rb" ?+"
    + _COLOURS
    + rb"(?:\d\d:\d\d:\d\d)?+"
    + _COLOURS
    + rb" *+"
    + _COLOURS
)
# A line of a logger at a level that tells of nothing bad, and the little in such lines that is wanted.
ORDINARY = re.compile(_HEAD + rb" *+(?:INFO|DEBUG|SUCCESS|TRACE)\b")
ORDINARY_JSON = re.compile(rb'\s{0,4}\{.{0,400}?"level(?:name)?": ?"(?:INFO|DEBUG|SUCCESS|TRACE|info|debug|success)"')
_WANTED: Final = ("Step ", "finished", "Resuming ", "Starting ", "API server version")


@cache
def gate() -> re.Pattern[bytes]:
    """Finds any word without which no known error, traceback or summary of one can be."""
    words = {word for signature in SIGNATURES.signatures for word in signature.words}
    words |= {
        "Traceback (most",
        "==> ",
        "dump signal",
        "last enqueued",
        "Root Cause",
        "above exception",
        "'loss': ",
        "step:",
    }
    return re.compile(_either(sorted({_rarest(word) for word in words})).encode())


@cache
def news() -> re.Pattern[bytes]:
    """Finds what is wanted of ordinary lines."""
    words = {word for signature in SIGNATURES.signatures if signature.quiet for word in signature.words}
    return re.compile(_either(sorted({_rarest(word) for word in (*words, *_WANTED)})).encode())


def _either(words: Sequence[str]) -> str:
    """An expression for any of these, which tries each beginning once."""
    if "" in words:
        return ""  # what is longer begins with it
    choices = []
    for letter in sorted({word[0] for word in words}):
        choices.append(re.escape(letter) + _either([word[1:] for word in words if word[0] == letter]))
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"


def _rarest(word: str) -> str:
    """A part of the word that begins with a letter that is rare in text: the fewer places an expression has to try, the
    faster it passes over what a model has written."""
    start = min(range(max(1, len(word) - LEAST + 1)), key=lambda place: COMMON.get(word[place], 0))
    return word[start : start + PIECE]
