"""Section headers of TOML, and those that almost are some."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

from supervisor.preflight import toml_values
from supervisor.preflight.toml_tree import Section
from supervisor.preflight.toml_values import quote_toml

_PART = re.compile(r"""[ \t]*("[^"]*"|'[^']*'|[^."']+)[ \t]*(?:\.|$)""")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Header:
    """A header as it was meant: its line, what was wrong, and whether it could be meant otherwise."""

    text: str
    mistake: str
    what: str
    certain: bool = True


def section_of(line: str, at: int) -> Section | None:
    """The section that a line starts, None where it is no header."""
    try:
        data: Any = tomllib.loads(line)
    except (ValueError, RecursionError):
        return None
    names: list[str] = []
    while isinstance(data, dict) and len(data) == 1:
        name, data = next(iter(data.items()))
        names.append(name)
    many = isinstance(data, list) and data == [{}]
    return Section(at, at, tuple(names), many) if names and (many or data == {}) else None


def mended_header(line: str, lists: set[str]) -> Header | None:
    """A header as it was meant, None where that is not certain."""
    plain = "".join(toml_values.BLANKS.get(char, char) for char in line)
    plain = "".join('"' if char in toml_values.TYPOGRAPHIC else char for char in plain)
    match = re.fullmatch(r"([ \t]*)(\[{1,2})([^\[\]#]*?)(\]{0,2})[ \t]*:?[ \t]*(#.*)?", plain)
    if not match or not match[3].strip() or set(match[3]) & set("={},"):
        return None
    parts = _header_parts(match[3])
    if parts is None:
        return None
    name = ".".join(part if _BARE.fullmatch(part) or part[0] in "\"'" else quote_toml(part) for part in parts)
    many = len(match[2]) == 2 or (len(match[4]) == 2 and name in lists)
    tail = f"  {match[5]}" if match[5] else ""
    text = f"{match[1]}{'[[' if many else '['}{name}{']]' if many else ']'}{tail}"
    if len(match[2]) != len(match[4]):
        certain = len(match[2]) == 2 or not match[4] or name in lists
        return Header(text, "unclosed", "a bracket of the header is missing or too many", certain)
    if plain != line:
        return Header(text, "typographic-quotes", "there are characters in it that TOML does not know")
    if name != match[3].strip():
        return Header(text, "unquoted-text", "TOML wants quotes around such a name")
    return Header(text, "stray-character", "there is a character that does not belong here")


def _header_parts(inner: str) -> list[str] | None:
    parts, at = [], 0
    inner = inner.strip()
    while at < len(inner):
        match = _PART.match(inner, at)
        if not match or not match[1].strip():
            return None
        parts.append(match[1].strip())
        at = match.end()
    return parts if not inner.endswith(".") else None
