"""Where each key of a TOML text stands: a small tolerant scanner, since ``tomllib`` tells no positions.

It never raises. On text that is not TOML it skips to the next line and goes on; ``tomllib`` has the last word on
what is valid. Time is linear in the text's length.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

from supervisor.config.toml_keys import MOST_PARTS

Key = tuple[str | int, ...]
"""Path of a key: names, and the index of the element for arrays (``("job", "config", 0)``)."""

_BARE = frozenset(string.ascii_letters + string.digits + "-_")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "\\": "\\"}
_HEX = frozenset(string.hexdigits)
_DEEPEST = 60


@dataclass(frozen=True, slots=True)
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
        self.text = text
        self.at = 0
        self.line = 1
        self.line_start = 0
        self.found: dict[Key, Position] = {}
        self.table: Key = ()
        self.elements: dict[Key, int] = {}  # arrays of tables: how many elements so far

    def scan(self) -> dict[Key, Position]:
        while self.at < len(self.text):
            self._skip_blank(newlines=True)
            try:
                self._read_statement()
                self._skip_blank(newlines=False)
                if self._peek_next() not in ("", "\n"):
                    raise _NotTomlError
            except _NotTomlError:
                self._skip_line()
        return self.found

    # ------------------------------------------------------------ statements

    def _read_statement(self) -> None:
        if self._peek_next() == "":
            return
        if self.text.startswith("[[", self.at):
            self._array_header()
        elif self._peek_next() == "[":
            self._read_header()
        else:
            self._read_assignment(self.table, 0)

    def _read_header(self) -> None:
        here = self._present_place()
        self._take_text("[")
        keys = self._read_dotted_key()
        self._take_text("]")
        self.table = self._resolve_header([name for name, _ in keys])
        self._note_path(self.table, here)

    def _array_header(self) -> None:
        here = self._present_place()
        self._take_text("[[")
        keys = [name for name, _ in self._read_dotted_key()]
        self._take_text("]]")
        array = (*self._resolve_header(keys[:-1]), keys[-1])
        index = self.elements.get(array, 0)
        self.elements[array] = index + 1
        self.table = (*array, index)
        self._note_path(self.table, here)

    def _resolve_header(self, names: list[str]) -> Key:
        """A header's path, with the index of the newest element wherever it passes through an array of tables."""
        path: Key = ()
        for name in names:
            path = (*path, name)
            if path in self.elements:
                path = (*path, self.elements[path] - 1)
        return path

    def _read_assignment(self, table: Key, depth: int) -> None:
        path, keys = table, self._read_dotted_key()
        self._take_text("=")
        for name, here in keys:
            path = (*path, name)
            self.found.setdefault(path, here)
        self._skip_blank(newlines=False)
        self._read_value(path, depth)

    def _note_path(self, path: Key, here: Position) -> None:
        for length in range(1, len(path) + 1):
            self.found.setdefault(path[:length], here)

    # ------------------------------------------------------------ keys and values

    def _read_dotted_key(self) -> list[tuple[str, Position]]:
        """One or more names joined with dots, each with its place."""
        keys = []
        while True:
            self._skip_blank(newlines=False)
            here = self._present_place()
            if self._peek_next() in ('"', "'"):
                keys.append((self._read_quoted(), here))
            else:
                start = self.at
                while self._peek_next() in _BARE:
                    self.at += 1
                if self.at == start:
                    raise _NotTomlError
                keys.append((self.text[start : self.at], here))
            self._skip_blank(newlines=False)
            if self._peek_next() != ".":
                return keys
            if len(keys) == MOST_PARTS:  # a path is copied for each of its parts
                raise _NotTomlError
            self.at += 1

    def _read_value(self, path: Key, depth: int) -> None:
        if depth > _DEEPEST:
            raise _NotTomlError
        head = self._peek_next()
        if head in ('"', "'"):
            self._read_quoted()
        elif head == "[":
            self._read_array(path, depth)
        elif head == "{":
            self._inline_table(path, depth)
        else:
            start = self.at
            while self._peek_next() not in ("", "\n", ",", "]", "}", "#"):
                self.at += 1
            if self.at == start:
                raise _NotTomlError

    def _read_array(self, path: Key, depth: int) -> None:
        self._take_text("[")
        index = 0
        while True:
            self._skip_blank(newlines=True)
            if self._peek_next() == "]":
                break
            self.found.setdefault((*path, index), self._present_place())
            self._read_value((*path, index), depth + 1)
            index += 1
            self._skip_blank(newlines=True)
            if self._peek_next() != ",":
                break
            self.at += 1
        self._take_text("]")

    def _inline_table(self, path: Key, depth: int) -> None:
        self._take_text("{")
        while True:
            self._skip_blank(newlines=True)
            if self._peek_next() == "}":
                break
            self._read_assignment(path, depth + 1)
            self._skip_blank(newlines=True)
            if self._peek_next() != ",":
                break
            self.at += 1
        self._take_text("}")

    def _read_quoted(self) -> str:
        """A string in any of TOML's four kinds of quotes, with its escapes resolved."""
        quote = self._peek_next()
        if self.text.startswith(quote * 3, self.at):
            return self._read_multiline(quote)
        self.at += 1
        parts = []
        while True:
            char = self._peek_next()
            if char in ("", "\n"):
                raise _NotTomlError
            if char == "\\" and quote == '"':
                parts.append(self._read_escape())
                continue
            self.at += 1
            if char == quote:
                return "".join(parts)
            parts.append(char)

    def _read_multiline(self, quote: str) -> str:
        """Only values may be of this kind, so its content is of no interest; its end and its lines are."""
        start = (self.at, self.line, self.line_start)
        self.at += 3
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\" and quote == '"':
                self.at += 1
                if self._peek_next() != "\n":
                    self.at += 1
            elif self.text.startswith(quote * 3, self.at):
                self.at += 3
                while self._peek_next() == quote:  # up to two quotes may stand before the closing three
                    self.at += 1
                return ""
            else:
                self._step_on()
        # Never closed: read on after the line where it opened, but only once, which keeps the time linear.
        self.at, self.line, self.line_start = start
        self.text = self.text[: self.at] + " " * 3 + self.text[self.at + 3 :].replace(quote * 3, "   ")
        raise _NotTomlError

    def _read_escape(self) -> str:
        char = self.text[self.at + 1 : self.at + 2]
        length = {"x": 2, "u": 4, "U": 8}.get(char, 0)
        if not length:
            if char not in _ESCAPES:
                raise _NotTomlError
            self.at += 2
            return _ESCAPES[char]
        digits = self.text[self.at + 2 : self.at + 2 + length]
        if len(digits) < length or not set(digits) <= _HEX or int(digits, 16) > 0x10FFFF:
            raise _NotTomlError
        self.at += 2 + length
        return chr(int(digits, 16))

    # ------------------------------------------------------------ characters

    def _peek_next(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _present_place(self) -> Position:
        return Position(self.line, self.at - self.line_start + 1)

    def _take_text(self, expected: str) -> None:
        if not self.text.startswith(expected, self.at):
            raise _NotTomlError
        self.at += len(expected)

    def _step_on(self) -> None:
        if self.text[self.at] == "\n":
            self.line += 1
            self.line_start = self.at + 1
        self.at += 1

    def _skip_blank(self, *, newlines: bool) -> None:
        """Skip spaces and a comment, and with ``newlines`` as many lines of them as there are."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t" or (newlines and char == "\n"):
                self._step_on()
            elif char == "#":
                while self._peek_next() not in ("", "\n"):
                    self.at += 1
            else:
                return

    def _skip_line(self) -> None:
        while self._peek_next() not in ("", "\n"):
            self.at += 1
