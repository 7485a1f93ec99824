"""Mistakes in the text of a configuration file: all of them in one go, each with its line and the line that was meant.

``tomllib`` stops at the first, and says of `name = Qwen/Qwen3-8B` only "Invalid value". Here each statement is read by
itself; one that is not TOML is mended where only one thing can be meant (``toml_values``), and left out otherwise.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.config.run_file import parse_toml
from supervisor.config.toml_keys import long_key_line
from supervisor.preflight import toml_values
from supervisor.preflight.finding import Edit, Finding, Where
from supervisor.preflight.toml_headers import mended_header, section_of
from supervisor.preflight.toml_tree import Pair, Statement, Tree
from supervisor.preflight.toml_values import CannotMendError, is_scalar, rewritten
from supervisor.primerl.configs import LARGEST

MOST_MISTAKES = 20
"""More than so many are not told one by one."""
MOST_BROKEN = 200
"""A file with more broken lines is not looked at to its end."""

_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEY = re.compile(rf"[ \t]*({_NAME}(?:[ \t]*\.[ \t]*{_NAME})*)[ \t]*")
_SEPARATOR = re.compile(r"==|:=|=>|->|=|:")
_STARTS = re.compile(rf"[ \t]*{_NAME}(?:[ \t]*\.[ \t]*{_NAME})*[ \t]*=(?!=)")
_HEADER = re.compile(r"""[ \t]*\[\[?[ \t]*[A-Za-z_"'][^\[\]=,{}]*\]\]?[ \t]*(?:\#.*)?$""")
_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True)
class Mended:
    """``text``: with the certain mends, as many lines as before. ``data``: what it says, None where that is unknown."""

    text: str
    data: Mapping[str, Any] | None
    findings: tuple[Finding, ...] = ()


def mend_text(path: Path, text: str) -> Mended:
    """What is wrong with the text of ``path`` (JSON where its name ends so, else TOML), and what it says.

    Never raises, whatever the text is; the time is linear in its length.
    """
    if len(text) > LARGEST:
        told = f"{path.name} has more than {LARGEST >> 20} MiB: that is no configuration of prime-rl."
        return Mended(text, None, (Finding("toml-syntax", told, Where(str(path))),))
    if path.suffix == ".json":
        return _read_json(path, text)
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        return Mended(text, parse_toml(plain))
    except tomllib.TOMLDecodeError as error:
        return _Repair(path, plain, error).run()
    except (ValueError, RecursionError) as error:  # nested too deep, or a key of thousands of parts
        told = f"This is no configuration: {str(error) or 'it is nested too deep'}."
        return Mended(text, None, (Finding("toml-syntax", told, Where(str(path), long_key_line(plain))),))


def _read_json(path: Path, text: str) -> Mended:
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 0)
        said = getattr(error, "msg", "") or str(error) or "nested too deep"
        return Mended(text, None, (Finding("json-syntax", f"This is not JSON: {said}.", Where(str(path), line)),))
    if not isinstance(data, Mapping):
        return Mended(text, None, (Finding("json-syntax", "It holds no table of settings.", Where(str(path))),))
    return Mended(text, data)


def _line_of(error: Exception, start: int = 0) -> int:
    place = _AT.search(str(error))
    return start + int(place[1]) if place and place[1] else start + 1 if start else 0


@dataclass
class _Repair:
    """One file that is not TOML."""

    path: Path
    text: str
    error: Exception
    found: list[Finding] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    broken: int = 0
    hopeless: int = 0
    """How many of the broken statements could not be mended."""
    lost: bool = False
    """The header of the present section is not understood, so neither is what stands below it."""
    section: tuple[str, ...] = ()
    """The present section."""

    def run(self) -> Mended:
        self.lines = self.text.split("\n")
        self.result = list(self.lines)
        if self.text.lstrip()[:1] == "{":
            return Mended(self.text, None, (self._no_toml(),))
        at = 0
        while at < len(self.lines):
            line = self.lines[at].strip(" \t\r")
            if not line or line.startswith("#"):
                at += 1
                continue
            at = self._read_header(at) if line.startswith("[") else self._read_pair(at)
            if self.broken > MOST_BROKEN or (self.hopeless > MOST_MISTAKES and self.hopeless > len(self.statements)):
                return Mended(self.text, None, (self._no_toml(),))
        tree = Tree(self.path, self.lines, self.statements)
        self.found += dict.fromkeys(tree.found[:MOST_BROKEN])
        if not self.found:  # nothing that is known here: tomllib has the last word
            self._add_finding("toml-syntax", f"This is not TOML: {_plain_words(self.error)}.", _line_of(self.error) - 1)
        if self.hopeless > len(self.statements) and self.hopeless > 2:
            return Mended(self.text, None, (self._no_toml(),))
        told = sorted(self.found, key=lambda one: one.where.line)
        if len(told) > MOST_MISTAKES:
            more = f"There are {len(told) - MOST_MISTAKES} more mistakes in the text of {self.path.name}."
            told = [*told[:MOST_MISTAKES], Finding("toml-syntax", more, told[MOST_MISTAKES].where)]
        return Mended("\n".join(self.result), tree.top, tuple(told))

    def _no_toml(self) -> Finding:
        kind = "TOML"
        head = self.text.lstrip()[:1]
        if head == "{":
            kind = "TOML but rather JSON"
        elif head == "<":
            kind = "TOML but rather a web page"
        elif sum(1 for line in self.lines[:200] if re.match(r"\s*[\w-]+:(?:\s|$)", line)) > 2:
            kind = "TOML but rather YAML"
        line = _line_of(self.error)
        return Finding(
            "not-toml",
            f"{self.path.name} is not {kind}: {_plain_words(self.error)}.",
            self._where_in_words(line - 1, ""),
        )

    # ------------------------------------------------------------ one statement

    def _read_header(self, at: int) -> int:
        """A line that starts a section. Returns the next line to read."""
        line = self.lines[at].rstrip("\r")
        section = section_of(line, at)
        if section is None:
            mend = mended_header(line, self._names_of_lists())
            section = section_of(mend.text, at) if mend else None
            if mend is None or section is None:
                self.section = ()
                self._note_failure(at, at, "This section header is not TOML")
                self.lost = True
                return at + 1
            self._note_mend(at, at, [mend.text], mend.mistake, mend.what, certain=mend.certain)
        self.lost = False
        self.section = section.names
        self.statements.append(section)
        return at + 1

    def _read_pair(self, at: int) -> int:
        """A key with its value, over as many lines as it has. Returns the next line to read."""
        line, stray = _without_strange_blanks(self.lines[at])
        key = _KEY.match(line)
        if not key and line.lstrip().startswith("//"):
            self._note_mend(at, at, [line.replace("//", "#", 1)], "stray-character", "a comment of TOML begins with #")
            return at + 1
        if not key:
            merge = re.match(r"(?:<{7}|={7}|>{7})(?:\s|$)", line)
            told = "This line is neither a key with a value nor a section header"
            self._note_failure(at, at, "This is a mark that git leaves where a merge had conflicts" if merge else told)
            return at + 1
        separator = _SEPARATOR.match(line, key.end())
        if separator is None:
            return self._without_separator(at, key)
        last = self._find_extent(at, separator.end())
        if (
            separator[0] == "="
            and not stray
            and (pair := self._read_statement(at, last, self.lines[at : last + 1], key[1]))
        ):
            self.statements.append(pair)
            return last + 1
        value = "\n".join([line[separator.end() :], *self.lines[at + 1 : last + 1]])
        try:
            new, wrong = rewritten(value)
        except CannotMendError:
            empty = not value.split("#")[0].strip() and separator[0] == "="
            self._note_failure(at, last, f"{key[1]} has no value" if empty else "This is not TOML", key[1])
            return last + 1
        mistakes: tuple[str, ...] = ("stray-character",) * stray + ("wrong-separator",) * (separator[0] != "=")
        mistakes = tuple(dict.fromkeys((*mistakes, *wrong)))
        head = line[: key.end()].rstrip() + " =" if separator[0] != "=" else line[: separator.end()]
        spaced = new if new[:1] in " \t" or separator[0] == "=" else f" {new}"
        self._take_statement(at, last, [one.rstrip("\r") for one in (head + spaced).split("\n")], key[1], mistakes)
        return last + 1

    def _without_separator(self, at: int, key: re.Match[str]) -> int:
        """`max_steps 100`: a key and a value that is one, with nothing between them."""
        line = self.lines[at].rstrip("\r")
        rest = line[key.end() :]
        value = rest.partition(" #")[0].strip()
        if value[:1] in toml_values.BLANKS:
            value = ""
        if not value or "." in key[1] or not (is_scalar(value) or _load_toml(f"x = {value}")):
            self._note_failure(at, at, "This line is neither a key with a value nor a section header")
            return at + 1
        name, before = key[1], line[: key.end()].rstrip()
        if name.startswith("--"):  # a flag of the command line
            name = name[2:].replace("-", "_")
            before = before.replace(key[1], name, 1)
        self._take_statement(at, at, [f"{before} = {rest.lstrip()}"], name, ("wrong-separator",))
        return at + 1

    def _take_statement(self, first: int, last: int, lines: list[str], key: str, mistakes: Sequence[str]) -> None:
        """A statement as it was meant, if that is TOML now."""
        pair = self._read_statement(first, last, lines, key)
        if pair is None or not mistakes:
            self._note_failure(first, last, "This is not TOML", key)
            return
        self.statements.append(pair)
        self._note_mend(
            first, last, lines, mistakes[0], "; ".join(toml_values.CLAUSES[one] for one in mistakes), key=key
        )

    def _read_statement(self, first: int, last: int, lines: Sequence[str], key: str) -> Statement | None:
        data = _load_toml("\n".join(lines))
        if data is None:
            return None
        names = _names_of_key(key)
        value: Any = data
        for name in names:
            if not isinstance(value, dict) or len(value) != 1 or name not in value:
                return None
            value = value[name]
        return Pair(first, last, names, value) if not self.lost else Pair(first, last, (), None)

    def _find_extent(self, at: int, start: int) -> int:
        """The last line of the value that starts in line ``at``: brackets and texts of several lines are followed."""
        depth, braces, column = 0, 0, start
        for number in range(at, len(self.lines)):
            line = self.lines[number]
            if number > at and (_HEADER.match(line) or (not braces and _STARTS.match(line))):
                return at if braces else _without_blanks(self.lines, at, number - 1)
            while column < len(line):
                char = line[column]
                if char == "#":
                    break
                if char in "\"'":
                    if line.startswith(char * 3, column):
                        end = self._end_of_text(number, column + 3, char * 3)
                        return at if end is None else end if not depth else self._end_of_lines(at, end)
                    column = _end_of_quotes(line, column)
                    continue
                if char in "[{":
                    depth += 1
                    braces += char == "{"
                elif char in "]}" and depth:
                    depth -= 1
                    braces -= char == "}" and braces > 0
                column += 1
            if not depth:
                return number
            column = 0
        return at if braces else _without_blanks(self.lines, at, len(self.lines) - 1)

    def _end_of_text(self, number: int, column: int, quotes: str) -> int | None:
        """The line in which a text of several lines ends."""
        for at in range(number, len(self.lines)):
            if self.lines[at].find(quotes, column if at == number else 0) >= 0:
                return at
        return None

    def _end_of_lines(self, at: int, end: int) -> int:
        """A text of several lines within brackets is rare: as many lines as it takes to be TOML, within reason."""
        for last in range(end, min(end + 20, len(self.lines))):
            if _load_toml("\n".join(self.lines[at : last + 1])) is not None:
                return last
        return at

    def _names_of_lists(self) -> set[str]:
        """Names that stand somewhere as `[[name]]`."""
        return {match[1].strip() for line in self.lines if (match := re.match(r"\s*\[\[([^\[\]]+)\]\]", line))}

    # ------------------------------------------------------------ findings

    def _full_path(self, key: str) -> str:
        """The dotted path of a key of the present section."""
        return ".".join([*self.section, key]) if key else ""

    def _where_in_words(self, at: int, key: str) -> Where:
        return Where(str(self.path), max(at + 1, 0), key)

    def _note_mend(
        self, first: int, last: int, lines: list[str], rule: str, what: str, *, key: str = "", certain: bool = True
    ) -> None:
        self.broken += 1
        self.result[first : last + 1] = [*lines, *[""] * (last + 1 - first - len(lines))]
        if len(lines) == last + 1 - first:  # only what differs
            changed = [at for at, new in enumerate(lines) if new != self.lines[first + at].rstrip("\r")]
            if changed:
                first, last, lines = first + changed[0], first + changed[-1], lines[changed[0] : changed[-1] + 1]
        shown = " ".join(line.strip() for line in self.lines[first : last + 1])
        edits = (Edit(self.path, first + 1, last + 1, tuple(lines)),) if certain else ()
        self.found.append(
            Finding(
                rule,
                f"`{_shorten_text(shown)}`: {what}.",
                self._where_in_words(first, self._full_path(key)),
                f"Write it as: {_shorten_text(' '.join(line.strip() for line in lines))}" if certain else "",
                edits=edits,
            )
        )

    def _note_failure(self, first: int, last: int, what: str, key: str = "") -> None:
        """What is not TOML and has no certain meaning: it is left out of what the file says."""
        self.broken += 1
        self.hopeless += 1
        self.result[first : last + 1] = [f"# {line}" for line in self.lines[first : last + 1]]
        line, said = first, ""
        try:
            tomllib.loads("\n".join(self.lines[first : last + 1]))
        except tomllib.TOMLDecodeError as error:
            line, said = _line_of(error, first) - 1, f" ({_plain_words(error)})"
        except (ValueError, RecursionError):
            pass
        shown = _shorten_text(self.lines[min(line, len(self.lines) - 1)].strip())
        self._add_finding("toml-syntax", f"{what}{said}: `{shown}`.", min(line, last), self._full_path(key))

    def _add_finding(self, rule: str, sentence: str, at: int, key: str = "") -> None:
        self.found.append(Finding(rule, sentence, self._where_in_words(at, key)))


def _without_strange_blanks(line: str) -> tuple[str, bool]:
    """Blanks before the first "=" that are none for TOML become some, or go; True where there were any."""
    head, equals, tail = line.partition("=")
    plain = "".join(toml_values.BLANKS.get(char, char) for char in head)
    return plain + equals + tail, plain != head


def _load_toml(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _plain_words(error: Exception) -> str:
    """What tomllib says, without its place: that stands beside it."""
    return _AT.sub("", str(error)).rstrip(".")


def _shorten_text(text: str) -> str:
    return text if len(text) <= 160 else text[:120] + " ... " + text[-30:]


def _names_of_key(key: str) -> tuple[str, ...]:
    """The parts of a key as it is written."""
    names: list[str] = []
    data: Any = _load_toml(f"{key} = 0")
    while isinstance(data, dict) and len(data) == 1:
        name, data = next(iter(data.items()))
        names.append(name)
    return tuple(names)


def _without_blanks(lines: Sequence[str], first: int, last: int) -> int:
    while last > first and (not lines[last].strip() or lines[last].lstrip().startswith("#")):
        last -= 1
    return last


def _end_of_quotes(line: str, column: int) -> int:
    """Behind the text that starts at ``column``; the end of the line where it is not closed."""
    quote = line[column]
    column += 1
    while column < len(line) and line[column] != quote:
        column += 2 if quote == '"' and line[column] == "\\" else 1
    return column + 1
