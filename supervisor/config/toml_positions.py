"""Where each key of a TOML text stands: a small tolerant scanner, since ``tomllib`` tells no positions.

It never raises. On text that is not TOML it skips to the next line and goes on; ``tomllib`` has the last word on
what is valid. Time is linear in the text's length.
"""

from __future__ import annotations

import re
from bisect import bisect_left

from supervisor.base.records import dataclass
from supervisor.config.toml_keys import MOST_PARTS

Key = tuple[str | int, ...]
"""Path of a key: names, and the index of the element for arrays (``("job", "config", 0)``)."""

_BLANK = re.compile(r"(?:[ \t]|#[^\n]*)*+")
_BLANK_LINES = re.compile(r"(?:[ \t\n]|#[^\n]*)*+")
_LINE_END = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_REST_OF_LINE = re.compile(r"[^\n]*")
_NAME = re.compile(
    r""""(?:[^"\\\n]++|\\(?:[btnfre"\\]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}))*+"|'[^'\n]*+'|[A-Za-z0-9_-]++"""
)
_VALUE = re.compile(
    r""""{3}(?:[^"\\]++|\\.|"{1,2}(?!"))*+"{3,5}"""  # it may end with two quotes of its own
    r"""|'{3}(?:[^']++|'{1,2}(?!'))*+'{3,5}"""
    r"""|"(?:[^"\\\n]++|\\[^\n])*+"|'[^'\n]*+'"""
    r"""|[^\n"',\]}#][^\n,\]}#]*+""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x(..)|u(....)|U(........)|(.))")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}
_DEEPEST = 60


@dataclass(frozen=True)
class Position:
    """Line and column, both from 1."""

    line: int
    column: int


def key_positions(text: str) -> dict[Key, Position]:
    """The first place of every key, table header and array element of ``text``."""
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _NotTomlError(Exception):
    """The text is not TOML here."""


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.newlines = [found.start() for found in re.finditer("\n", text)]
        self.found: dict[Key, Position] = {}
        self.table: Key = ()
        self.elements: dict[Key, int] = {}  # arrays of tables: how many elements so far
        self.unclosed: set[str] = (
            set()
        )  # quotes that nothing closes from here on: looked for once, which keeps it linear

    def scan(self) -> dict[Key, Position]:
        while True:
            self._take(_BLANK_LINES)
            if self.at >= len(self.text):
                return self.found
            try:
                self._read_statement()
                self._take(_LINE_END)
            except _NotTomlError:
                self._take(_REST_OF_LINE)

    def _read_statement(self) -> None:
        here = self._present_place()
        closing = "]]" if self._skip("[[") else "]" if self._skip("[") else ""
        if not closing:
            self._read_pair(self.table, 0)
            return
        names = [name for name, _ in self._read_key()]
        if not self._skip(closing):
            raise _NotTomlError
        path: Key = ()
        for number, name in enumerate(names, 1):
            path = (*path, name)
            if closing == "]]" and number == len(names):
                self.elements[path] = self.elements.get(path, 0) + 1
            if path in self.elements:  # through an array of tables a header goes to the newest element
                path = (*path, self.elements[path] - 1)
        self.table = path
        for length in range(1, len(path) + 1):
            self.found.setdefault(path[:length], here)

    def _read_pair(self, table: Key, depth: int) -> None:
        path, keys = table, self._read_key()
        if not self._skip("="):
            raise _NotTomlError
        for name, here in keys:
            path = (*path, name)
            self.found.setdefault(path, here)
        self._take(_BLANK)
        self._read_value(path, depth)

    def _read_key(self) -> list[tuple[str, Position]]:
        """One or more names joined with dots, each with its place."""
        keys: list[tuple[str, Position]] = []
        while len(keys) < MOST_PARTS:  # a path is copied for each of its parts
            self._take(_BLANK)
            here = self._present_place()
            keys.append((_unquote_key(self._take(_NAME)), here))
            self._take(_BLANK)
            if not self._skip("."):
                return keys
        raise _NotTomlError

    def _read_value(self, path: Key, depth: int) -> None:
        quotes = self.text[self.at : self.at + 3]
        if depth > _DEEPEST or quotes in self.unclosed:
            raise _NotTomlError
        if self._skip("["):
            self._read_items(path, depth, "]")
        elif self._skip("{"):
            self._read_items(path, depth, "}")
        elif not self._take(_VALUE).startswith(quotes) and quotes in ('"""', "'''"):
            self.unclosed.add(quotes)  # it was read as "", which an open text does not begin with
            raise _NotTomlError

    def _read_items(self, path: Key, depth: int, closing: str) -> None:
        """What stands in an array, or in an inline table."""
        more, index = True, 0
        while True:
            self._take(_BLANK_LINES)
            if self._skip(closing):
                return
            if not more:
                raise _NotTomlError
            if closing == "]":
                self.found.setdefault((*path, index), self._present_place())
                self._read_value((*path, index), depth + 1)
            else:
                self._read_pair(path, depth + 1)
            self._take(_BLANK_LINES)
            more, index = self._skip(","), index + 1

    # ------------------------------------------------------------ characters

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise _NotTomlError
        self.at = found.end()
        return found[0]

    def _skip(self, expected: str) -> bool:
        found = self.text.startswith(expected, self.at)
        self.at += len(expected) if found else 0
        return found

    def _present_place(self) -> Position:
        line = bisect_left(self.newlines, self.at)
        return Position(line + 1, self.at - (self.newlines[line - 1] + 1 if line else 0) + 1)


def _resolve_escape(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    return chr(int(code, 16)) if code else _ESCAPES.get(found[4], found[4])


def _unquote_key(name: str) -> str:
    """A key's name without its quotes, with its escapes resolved."""
    if name[0] != '"':
        return name.strip("'")
    try:
        return _ESCAPE.sub(_resolve_escape, name[1:-1])
    except (ValueError, OverflowError):  # no such character
        raise _NotTomlError from None
