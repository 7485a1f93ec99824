"""A terminal of the tests: a pty with a program in it, and what its screen shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Self

_SEQUENCE = re.compile(rb"\x1b\[(\??)([0-9;]*)([A-Za-z])")


class Terminal:
    """Use as a context manager. ``odd``: what a well-behaved program does not send."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], columns: int = 80, rows: int = 24) -> None:
        self._words, self._env = list(words), dict(env)
        self.columns, self.rows = columns, rows
        self.sent = b""
        self.odd: list[bytes] = []
        self.modes: set[bytes] = set()
        self.colours: set[bytes] = set()
        self._clear()

    def __enter__(self) -> Self:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Where the tests themselves run in the background, SIGINT is ignored, and a child would inherit that.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execvpe(self._words[0], self._words, self._env)
        self.resize(self.columns, self.rows)
        self.before = termios.tcgetattr(self.fd)
        self.code: int | None = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def resize(self, columns: int, rows: int) -> None:
        """As a window manager does: the kernel sends SIGWINCH."""
        self.columns, self.rows = columns, rows
        self._clear()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def read(self, within_s: float = 0.05) -> None:
        """What came meanwhile."""
        while select.select([self.fd], [], [], within_s)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the program has ended
                return
            self.sent += data
            self._feed(data)
            within_s = 0.0

    def until(self, is_so: Callable[[str], object], within_s: float = 20.0) -> str:
        """What the screen shows once it is so."""
        deadline = time.monotonic() + within_s
        while not is_so(self.text()):
            assert time.monotonic() < deadline, self.text()
            self.read()
        return self.text()

    def end(self, within_s: float = 20.0) -> int:
        """The exit code, once the program has ended."""
        deadline = time.monotonic() + within_s
        while self.code is None:
            assert time.monotonic() < deadline, self.text()
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        self.read()
        return self.code

    def text(self) -> str:
        """The screen without its empty cells at the end of each line."""
        return "\n".join("".join(line).rstrip() for line in self._cells)

    def lines(self) -> list[str]:
        return self.text().split("\n")

    # ------------------------------------------------------------ what it obeys

    def _clear(self) -> None:
        self._cells = [[" "] * self.columns for _ in range(self.rows)]
        self._row = self._column = 0

    def _feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if data[at : at + 1] == b"\x1b":
                found = _SEQUENCE.match(data, at)
                if found is None:
                    self.odd.append(data[at : at + 20])
                    at += 1
                    continue
                self._obey(*found.groups())
                at = found.end()
                continue
            following = data.find(b"\x1b", at)
            following = len(data) if following < 0 else following
            for char in data[at:following].decode("utf-8", "replace"):
                self._put(char)
            at = following

    def _obey(self, private: bytes, numbers: bytes, letter: bytes) -> None:
        if private:
            (self.modes.add if letter == b"h" else self.modes.discard)(numbers)
        elif letter == b"H":
            row, _, column = numbers.partition(b";")
            self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
        elif letter == b"J" and numbers == b"2":
            row, column = self._row, self._column
            self._clear()
            self._row, self._column = row, column
        elif letter == b"K" and not numbers:
            self._cells[self._row][self._column :] = [" "] * (self.columns - self._column)
        elif letter == b"m":
            self.colours.add(numbers)
        else:
            self.odd.append(private + numbers + letter)

    def _put(self, char: str) -> None:
        if char in "\r\n":
            self._column = 0
            self._row = min(self._row + (char == "\n"), self.rows - 1)
            return
        if not char.isprintable():
            self.odd.append(char.encode())
            return
        width = 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if self._column + width > self.columns:
            self.odd.append(b"too long: " + char.encode())
            return
        if width:
            self._cells[self._row][self._column : self._column + width] = [char, ""][:width]
        self._column += width
