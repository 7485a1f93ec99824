"""The .env beside a run file, as systemd reads it: the daemon reads it at each start, and `check` before it.

The rules are those of systemd.exec(5), EnvironmentFile=, as ``src/basic/env-file.c`` of systemd 254 has them. Nothing
in the file is executed, and no variable in it is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from supervisor.base.records import dataclass

LARGEST = 1 << 20  # bytes
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANKS = " \t"


@dataclass(frozen=True)
class EnvFile:
    """``values`` by name; ``notes`` say what systemd would leave out of it, or why the file was not read."""

    path: Path
    values: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def beside(run_file: Path) -> EnvFile:
    """``NAME.env`` beside ``NAME.toml``; without values where there is none."""
    path = run_file.with_suffix(".env")
    try:
        if not path.is_file():  # a FIFO would be waited for
            return EnvFile(path)
        with path.open("rb") as file:
            text = file.read(LARGEST).decode("utf-8", "replace")
    except OSError as error:
        return EnvFile(path, notes=(f"{path} cannot be read here ({error.strerror}), so its keys were not looked at.",))
    values: dict[str, str] = {}
    notes = []
    for line, name, value in assignments(text):
        if _NAME.fullmatch(name) and "\0" not in value:  # no process can have that
            values[name] = value
            continue
        plain = name.removeprefix("export").strip()
        mend = f": write {plain}=... without `export`" if name.startswith("export") and _NAME.fullmatch(plain) else ""
        notes.append(f"{path} line {line} is no NAME=value line, and systemd leaves it out{mend}.")
    return EnvFile(path, values, tuple(notes))


def assignments(text: str) -> list[tuple[int, str, str]]:
    """(line, what stands before the =, value) of each assignment, whatever its name is."""
    found: list[tuple[int, str, str]] = []
    at, line = 0, 1
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    while at < len(text):
        begin = line
        if text[at] in " \t\n":
            line += text[at] == "\n"
            at += 1
        elif text[at] in "#;":
            at = _end_of_line(text, at)
        else:
            end = _end_of_line(text, at)
            name, equals, _ = text[at:end].partition("=")
            if not equals:
                found.append((begin, name.rstrip(), ""))
                at = end
                continue
            value, at = _read_value(text, at + len(name) + 1)
            line += text.count("\n", end, at)
            found.append((begin, name.rstrip(_BLANKS), value))
    return found


def _read_value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at ``at``, and where its line ends."""
    value = ""
    while at < len(text) and text[at] != "\n":
        char = text[at]
        if char == "'":
            end = text.find("'", at + 1)
            end = len(text) if end < 0 else end
            value, at = value + text[at + 1 : end], end + 1
        elif char == '"':
            inner, at = _double_quoted(text, at + 1)
            value += inner
        elif char in _BLANKS:
            at += 1
        else:
            inner, at = _read_plain(text, at)
            return value + inner, at  # quotes after that are letters like others
    return value, at


def _read_plain(text: str, at: int) -> tuple[str, int]:
    value, keep = "", 0
    while at < len(text) and text[at] != "\n":
        if text[at] == "\\":
            value += text[at + 1 : at + 2].replace("\n", "")  # at the end of a line it goes on in the next
            at += 2
            keep = len(value)
            continue
        value += text[at]
        at += 1
    return value[:keep] + value[keep:].rstrip(_BLANKS), at


def _double_quoted(text: str, at: int) -> tuple[str, int]:
    value = ""
    while at < len(text) and text[at] != '"':
        if text[at] == "\\":
            char = text[at + 1 : at + 2]
            value += char if char and char in '"\\`$' else "" if char == "\n" else f"\\{char}"
            at += 2
            continue
        value += text[at]
        at += 1
    return value, at + 1


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
