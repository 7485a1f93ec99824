"""The plain words that an expression cannot match without: one search for all of them passes over what is healthy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from re import _parser  # type: ignore[attr-defined]  # what ``re`` itself reads an expression with, in each Python 3.11+
from typing import Any, Final

import re2

MOST_TEXTS: Final = 16  # that one run of parts may have
MEMORY_BYTES: Final = 64 << 20  # at most. Where it needs more to begin, RE2 reads a hundred times as slowly
LINES_BYTES: Final = 16 << 20  # the same for single lines, which a daemon reads for weeks
END: Final = "\n"  # the last letter of a word that a message must end with

_REPEATS: Final = (_parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.POSSESSIVE_REPEAT)
_WITHOUT_PARTS: Final = (_parser.LITERAL, _parser.NOT_LITERAL, _parser.IN, _parser.ANY, _parser.AT)

# Letters that are themselves however a line was written: as text, or as JSON (docker's also hides <, > and &).
_PLAIN: Final = frozenset(map(chr, range(0x20, 0x7F))) - frozenset('"\\<>&')
# Behind a message: the end of the line, JSON's quotation mark, the rest of a frame, "[repeated 3x across cluster]".
_BEHIND: Final = r"[ \t\r]*(?:[^\w \t\r]|$)"


def words_of(pattern: str) -> tuple[str, ...]:
    """Plain words, one of which stands in each line that ``pattern`` matches; none where that cannot be told.

    Of all that must stand there, those of which the shortest is longest: a run of plain letters, or a group with a
    word in each of its choices. Raises re.error.
    """
    parsed = _parse_pattern(pattern)
    found = () if parsed.state.flags & re.IGNORECASE else _best_words(parsed)
    return tuple(word for word in found if not any(other != word and other in word for other in found))


@cache
def reach_of(pattern: str) -> int:
    """No match is longer than so many characters. Raises re.error."""
    return int(_parse_pattern(pattern).getwidth()[1])


def is_doubtful(pattern: str) -> bool:
    """May it match an empty line, or hold what is refused late (flags, names, looks behind)? Raises re.error."""
    return "(?" in re.sub(r"\(\?[:!=]", "", pattern) or _parse_pattern(pattern).getwidth()[0] == 0


def is_bounded(pattern: str) -> bool:
    """Does it repeat nothing without a limit? Raises re.error."""
    return _all_bounded(_parse_pattern(pattern))


def finder(words: Iterable[str], *expressions: str) -> Any:
    """Finds in bytes without colours whatever one of the words is in, and each of the expressions.

    RE2 reads hundreds of megabytes a second, however many there are.
    """
    return re2.compile("|".join([_any_of(words), *expressions]).encode("latin-1"), _finder_options(MEMORY_BYTES))


class Choices:
    """Which of many lists of words a line has one of, told in one pass over it. Safe in any thread."""

    def __init__(self, choices: Sequence[Sequence[str]]) -> None:
        self._set = re2.Set.SearchSet(_finder_options(LINES_BYTES))
        for words in choices:
            self._set.Add(_any_of(words).encode("latin-1"))
        self._set.Compile()

    def of(self, line: str) -> list[int]:
        """Their places, in order."""
        return sorted(self._set.Match(line.encode(errors="replace")) or ())


def _finder_options(most_bytes: int) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = most_bytes
    return options


def _any_of(words: Iterable[str]) -> str:
    return "|".join(re.escape(word.removesuffix(END)) + _BEHIND * word.endswith(END) for word in sorted(set(words)))


@lru_cache(maxsize=64)
def _parse_pattern(pattern: str) -> Any:
    return _parser.parse(pattern)


def _all_bounded(parsed: Any) -> bool:
    for kind, value in parsed:
        if kind in _REPEATS and value[1] == _parser.MAXREPEAT:
            return False
        for part in value if kind not in _WITHOUT_PARTS and isinstance(value, tuple | list) else [value]:
            for inner in part if isinstance(part, list) else [part]:
                if isinstance(inner, _parser.SubPattern) and not _all_bounded(inner):
                    return False
    return True


def _best_words(parsed: Any) -> tuple[str, ...]:
    """The best of the runs of parts with known texts only, and of the parts that hold words of their own."""
    best: tuple[str, ...] = ()
    run: tuple[str, ...] = ("",)
    for item in [*parsed, None]:
        texts = _texts_of_part(item) if item else ()
        if texts and len(run) * len(texts) <= MOST_TEXTS:
            run = tuple(dict.fromkeys(before + text for before in run for text in texts))
            continue
        best = max(best, run, _words_inside(item) if item else (), key=_shortest_word)
        run = texts or ("",)
    return best if _shortest_word(best) else ()


def _texts_of_part(item: tuple[Any, Any]) -> tuple[str, ...]:
    """All texts that a part matches, where they are few and plain; none where that cannot be told."""
    name, value = str(item[0]), item[1]
    if name == "LITERAL":
        return (chr(value),) if chr(value) in _PLAIN else ()
    if name == "AT":
        return (END,) if str(value) == "AT_END" else ("",)
    if name in ("ASSERT", "ASSERT_NOT"):
        return ("",)
    if name == "IN":
        return _texts_of_any([[one] for one in value])
    if name == "BRANCH":
        return _texts_of_any(value[1])
    if name == "SUBPATTERN" and not value[1] & re.IGNORECASE:
        return _texts_of_all(value[3])
    if name.endswith("_REPEAT") and value[:2] == (0, 1):
        found = _texts_of_all(value[2])
        return ("", *found) if found else ()
    return ()


def _texts_of_all(parts: Any) -> tuple[str, ...]:
    run: tuple[str, ...] = ("",)
    for item in parts:
        run = tuple(dict.fromkeys(before + text for before in run for text in _texts_of_part(item)))
        if not 0 < len(run) <= MOST_TEXTS:
            return ()
    return run


def _texts_of_any(choices: Sequence[Any]) -> tuple[str, ...]:
    found = [_texts_of_all(choice) for choice in choices] if len(choices) <= MOST_TEXTS else []
    return tuple(dict.fromkeys(text for texts in found for text in texts)) if all(found) else ()


def _words_inside(item: tuple[Any, Any]) -> tuple[str, ...]:
    """Words of a part of which not all texts are known."""
    name, value = str(item[0]), item[1]
    if name == "SUBPATTERN" and not value[1] & re.IGNORECASE:
        return _best_words(value[3])
    if name == "ATOMIC_GROUP":
        return _best_words(value)
    if name.endswith("_REPEAT") and value[0] > 0:
        return _best_words(value[2])
    if name == "BRANCH":
        choices = [_best_words(choice) for choice in value[1]]
        return tuple(dict.fromkeys(word for words in choices for word in words)) if all(choices) else ()
    return ()


def _shortest_word(words: tuple[str, ...]) -> int:
    return min((len(word.removesuffix(END)) for word in words), default=0)
