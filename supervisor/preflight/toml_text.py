"""Mistakes in the text of a configuration file: all of them in one go, each with its line and the line that was meant.

``tomllib`` stops at the first, and says of `name = Qwen/Qwen3-8B` only "Invalid value". Here the statement at which it
stops is mended where only one thing can be meant (``toml_values``), or left out, and the text is read again.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.base.secret_shapes import is_telling
from supervisor.base.secrets import mask_value, remember
from supervisor.config.run_file import parse_toml
from supervisor.config.toml_keys import TOKEN, long_key_line
from supervisor.config.toml_positions import key_positions
from supervisor.preflight.finding import Edit, Finding, Where
from supervisor.preflight.toml_values import CLAUSES, KEY, NAME, BrokenValueError, Mend, is_toml, mend_header, mend_pair
from supervisor.primerl.configs import LARGEST

MOST_MISTAKES = 20
"""More than so many are not told one by one."""
MOST_LOOKS = 200
"""After so many mistakes the text is looked at no further."""
MOST_READ = 16 << 20
"""Nor where so many characters were read, all readings together."""

_STARTS = re.compile(rf"{KEY.pattern}=(?!=)")
_HEADER = re.compile(r"""[ \t]*\[\[?[ \t]*[A-Za-z_"'][^\[\]=,{}]*\]\]?[ \t]*(?:\#.*)?$""")
_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_LIST = re.compile(r"\s*\[\[([^\[\]]+)\]\]")
_OPENS = re.compile(r"""#.*|\"{3}|'{3}|"(?:[^"\\]|\\.)*(?:"|$)|'[^']*(?:'|$)|[\[\]{}]""")
_MERGE = re.compile(r"(?:<{7}|={7}|>{7})(?:\s|$)")
_TWICE = re.compile(r"Cannot (?:overwrite|declare|mutate)|[Dd]uplicate|already")
_NO_SECRET = re.compile(r"<.*|[0-9]+|[a-z-]{0,11}")
_AGAIN = "stands again "
"""Begins the names of tables that take what stands below a header that stands twice."""


@dataclass(frozen=True)
class Mended:
    """``text``: with the certain mends, as many lines as before. ``data``: what it says, None where that is unknown."""

    text: str
    data: Mapping[str, Any] | None
    findings: tuple[Finding, ...] = ()


def mend_text(path: Path, text: str) -> Mended:
    """What is wrong with the text of ``path`` (JSON where its name ends so, else TOML), and what it says.

    Never raises, whatever the text is, and reads at most MOST_READ characters more than one mistake takes.
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


class _Repair:
    """One file that is not TOML. Lines count from 0."""

    def __init__(self, path: Path, text: str, error: tomllib.TOMLDecodeError) -> None:
        self.path, self.text, self.error = path, text, error
        self.lines = text.split("\n")
        self.shown = list(self.lines)
        """With the mends."""
        self.work = list(self.lines)
        """The same, without what stands twice: that is TOML in the end."""
        self.found: list[Finding] = []
        self.hopeless = 0
        self.read = 0
        self.again: list[tuple[str, ...]] = []
        """Names of the tables with a second header, by the number in their new name."""

    def run(self) -> Mended:
        data: dict[str, Any] | None = None
        while self.text.lstrip()[:1] != "{" and len(self.found) < MOST_LOOKS and self.read < MOST_READ:
            try:
                data = self._load(self.work)
                break
            except tomllib.TOMLDecodeError as error:
                self._mend_where(error)
            except RecursionError:
                break
        sound = sum(1 for line in self.work if _begins(line))
        if not self.found or self.hopeless > max(sound, 2):
            return Mended(self.text, None, (self._no_toml(),))
        for number, names in enumerate(self.again if data else ()):
            _merge(_table_at(data or {}, names), (data or {}).pop(f"{_AGAIN}{number}", {}))
        told = sorted(dict.fromkeys(self.found), key=lambda one: one.where.line)
        if len(told) > MOST_MISTAKES:
            more = f"There are {len(told) - MOST_MISTAKES} more mistakes in the text of {self.path.name}."
            told = [*told[:MOST_MISTAKES], Finding("toml-syntax", more, told[MOST_MISTAKES].where)]
        return Mended("\n".join(self.shown), data, tuple(told))

    def _load(self, lines: Sequence[str]) -> dict[str, Any]:
        text = "\n".join(lines) + "\n"
        self.read += len(text)
        return tomllib.loads(text)

    def _no_toml(self) -> Finding:
        head = self.text.lstrip()[:1]
        yaml = sum(1 for line in self.lines[:200] if re.match(r"\s*[\w-]+:(?:\s|$)", line)) > 2
        kind = {"{": " but rather JSON", "<": " but rather a web page"}.get(head, " but rather YAML" if yaml else "")
        told = f"{self.path.name} is not TOML{kind}: {_plain_words(self.error)}."
        return Finding("not-toml", told, Where(str(self.path), _line_of(self.error, len(self.lines)) + 1))

    # ------------------------------------------------------------ one statement

    def _mend_where(self, error: tomllib.TOMLDecodeError) -> None:
        """Mend the statement at which ``tomllib`` stopped, or take it out: the next reading goes beyond it."""
        first = self._first_line(_line_of(error, len(self.work)))
        self._hide_secrets(first)
        end = self._known_end(first)
        last = first if end is None else end
        old = self.work[first : last + 1]
        if _TWICE.search(str(error)) and self._mend_twice(first, last):
            return
        mended: Mend | None = None
        if old[0].lstrip().startswith("["):
            mended = mend_header(old[0], {found[1].strip() for line in self.work if (found := _LIST.match(line))})
        else:
            with suppress(BrokenValueError):
                mended = mend_pair("\n".join(old))
        new = mended.text.split("\n") if mended else []
        if mended is None or new == old or not is_toml(mended.text):
            self._note_failure(first, last, _plain_words(error))
        else:
            self._note_mend(first, last, new, replace(mended, certain=mended.certain and end is not None))

    def _hide_secrets(self, first: int) -> None:
        """Mask, wherever it is shown, what a telling key is set to: in the lines below it no name stands before it."""
        key = _STARTS.match(self.lines[first])
        if key is None or not is_telling(_names_of(key[1])[-1]):
            return
        lines = [self.lines[first][key.end() :]]
        for line in self.lines[first + 1 :]:
            below = _STARTS.match(line)  # a line of base64 may end with =, and sets nothing
            if _HEADER.match(line) or (below and line[below.end() :].strip()):
                break
            lines.append(line)
        words = re.split(r"""[\s"',=\[\]{}#]+""", " ".join(lines))
        remember(*(word for word in words if not _NO_SECRET.fullmatch(word)))

    def _first_line(self, at: int) -> int:
        """Where the statement with the first mistake, in line ``at``, begins: outside of texts and brackets."""
        at = min(at, len(self.work) - 1)
        while at > 0 and not self.work[at].strip():
            at -= 1
        text = "\n".join(self.work[: at + 1])
        self.read += len(text)
        first = line = depth = 0
        for found in TOKEN.finditer(text):
            line += found[0].count("\n")
            depth += (found[0] in "[{") - (found[0] in "]}")
            if found[0] == "\n" and depth == 0:
                first = line
        return first

    def _last_line(self, first: int) -> int:
        """The last line of the statement, or ``first`` where it is not known."""
        end = self._known_end(first)
        return first if end is None else end

    def _known_end(self, first: int) -> int | None:
        """The last line of the statement: where its brackets close, or before the next one. None: it is not known."""
        depth = braces = 0
        quotes = ""
        for last in range(first, len(self.work)):
            line = self.work[last]
            if last > first and not quotes and not braces and _begins(line):
                return self._without_blanks(first, last - 1)
            while line:
                if quotes:
                    line, quotes = (line.partition(quotes)[2], "") if quotes in line else ("", quotes)
                    continue
                found = _OPENS.search(line)
                line = line[found.end() :] if found else ""
                mark = found[0] if found else ""
                quotes = mark if mark in ('"""', "'''") else ""
                depth += (mark in ("[", "{")) - (mark in ("]", "}"))
                braces += (mark == "{") - (mark == "}")
            if not quotes and (depth <= 0 or self.work[first].lstrip().startswith("[")):
                return last
        if not quotes and not braces:
            return self._without_blanks(first, len(self.work) - 1)
        below = (line for line in self.work[first + 1 :] if line.strip() and not line.lstrip().startswith("#"))
        return first if _HEADER.match(next(below, "[end]")) else None

    def _without_blanks(self, first: int, last: int) -> int:
        while last > first and (not self.work[last].strip() or self.work[last].lstrip().startswith("#")):
            last -= 1
        return last

    # ------------------------------------------------------------ what stands twice

    def _mend_twice(self, first: int, last: int) -> bool:
        """Say which two stand for one, and take one of them out of the text; False where that is not known."""
        names, header, _ = self._statement(first, last)
        if header:
            return self._mend_header_twice(first, names)
        above = next((n for n in range(first - 1, -1, -1) if _HEADER.match(self.work[n])), -1)
        places = key_positions("\n".join(self.work[above + 1 : first]))
        if names not in places or not names:
            return False
        self._say_twice(above + places[names].line, first)
        return True

    def _say_twice(self, old: int, new: int) -> None:
        (first, last), (again, end) = (old, self._last_line(old)), (new, self._last_line(new))
        names, _, before = self._statement(first, last)
        value = self._statement(again, end)[2]
        name = ".".join(names)
        told = f"{name} is set in line {old + 1} and again in line {new + 1}, to"
        key = self._full_path(name, new)
        if before == value and type(before) is type(value):
            edit = Edit(self.path, new + 1, end + 1, ())
            self._add(new, "duplicate-key", f"{told} the same value.", key, f"Take out line {new + 1}.", edit)
            self._take_out(again, end)
        else:
            told += f" different values: {_show_value(name, before)} and {_show_value(name, value)}."
            self._add(new, "duplicate-key", told, key, "Keep the one that you mean, and take out the other.")
            self._take_out(first, last)

    def _mend_header_twice(self, at: int, names: tuple[str, ...]) -> bool:
        header, name = self.work[at].strip(), ".".join(names)
        headers = [n for n in range(at - 1, -1, -1) if _HEADER.match(self.work[n])]
        old = next((n for n in headers if self._statement(n, n)[0] == names), None)
        if old is None:
            return self._mend_set_before(at, names)
        single, many = (old, at) if header.startswith("[[") else (at, old)
        if self.work[many].lstrip().startswith("[["):
            told = f"[{name}] in line {single + 1} is one table, and [[{name}]] in line {many + 1} a list of tables: "
            edit = Edit(self.path, single + 1, single + 1, (f"[[{name}]]",))
            remedy = f"Write line {single + 1} as: [[{name}]]"
            self._add(single, "duplicate-table", f"{told}it cannot be both.", name, remedy, edit)
            self.work[single] = f"[[{name}]]"
            return True
        (old_end, old_keys), (end, keys) = self._block(old), self._block(at)
        edits: tuple[Edit, ...] = ()
        for key in sorted(old_keys.keys() & keys.keys()):
            self._say_twice(old_keys[key], keys[key])
        if not old_keys.keys() & keys.keys():
            moved = "\n".join(line.rstrip("\r") for line in self.lines[at + 1 : end + 1]).rstrip()
            put = Edit(self.path, old_end + 2, old_end + 1, tuple(moved.split("\n")) if moved else ())
            edits = (put, Edit(self.path, at + 1, end + 1, ()))
        told = f"[{name}] stands in line {old + 1} and again in line {at + 1}, which TOML forbids."
        remedy = f"Put the keys below line {at + 1} to those of line {old + 1}, and take out the second header."
        self._add(at, "duplicate-table", told, name, remedy, *edits)
        self._set_aside(at, names)
        return True

    def _set_aside(self, header: int, names: tuple[str, ...]) -> None:
        """Another name for the table that begins here, which goes into ``names`` in the end."""
        self.work[header] = f'["{_AGAIN}{len(self.again)}"]'
        self.again.append(names)

    def _mend_set_before(self, at: int, names: tuple[str, ...]) -> bool:
        """A header that opens a table of which a key above has made a value."""
        places = key_positions("\n".join(self.work[:at]))
        old = next((places[names[:end]].line - 1 for end in range(len(names), 0, -1) if names[:end] in places), None)
        if old is None or self.work[old].lstrip().startswith("["):
            return False
        key, _, value = self._statement(old, self._last_line(old))
        header = self.work[at].strip()
        told = f"{header} in line {at + 1} opens a table that line {old + 1} has already set "
        remedy = f"Take out line {old + 1}, or write all of it there."
        told += f"({'.'.join(key)} = {_show_value('.'.join(key), value)})."
        self._add(at, "duplicate-key", told, ".".join(names), remedy)
        if not header.startswith("[[") and self._full_path(".".join(key), old).startswith(f"{'.'.join(names)}."):
            self._set_aside(at, names)  # dotted keys: what both say is one table
        else:
            self._take_out(old, self._last_line(old))
        return True

    def _block(self, header: int) -> tuple[int, dict[tuple[str, ...], int]]:
        """The last line of a section's own keys, and their lines."""
        end = next((n for n in range(header + 1, len(self.work)) if _HEADER.match(self.work[n])), len(self.work)) - 1
        starts = {n: _STARTS.match(self.work[n]) for n in range(header + 1, end + 1)}
        return self._without_blanks(header, end), {_names_of(found[1]): n for n, found in starts.items() if found}

    def _statement(self, first: int, last: int) -> tuple[tuple[str, ...], bool, Any]:
        """Names, is it a header, value."""
        try:
            data: Any = tomllib.loads("\n".join(self.work[first : last + 1]))
        except (ValueError, RecursionError):
            return (), False, None
        header = self.work[first].lstrip().startswith("[")
        key = _STARTS.match(self.work[first])
        count = len(_names_of(key[1])) if key and not header else 1000
        names: list[str] = []
        while isinstance(data, dict) and len(data) == 1 and len(names) < count:
            name, data = next(iter(data.items()))
            names.append(name)
        return tuple(names), header, data

    # ------------------------------------------------------------ findings

    def _take_out(self, first: int, last: int) -> None:
        self.work[first : last + 1] = [f"# {line}" for line in self.work[first : last + 1]]

    def _full_path(self, key: str, at: int) -> str:
        """The dotted path of a key in line ``at``."""
        section = next((n for n in range(at - 1, -1, -1) if _HEADER.match(self.shown[n])), None)
        if not key or section is None:
            return key
        return ".".join([*_names_of(self.shown[section].strip().partition("#")[0].strip(" []")), key])

    def _note_mend(self, first: int, last: int, lines: list[str], mended: Mend) -> None:
        lines = [line.rstrip("\r") for line in lines]
        filled = [*lines, *[""] * (last + 1 - first - len(lines))]
        key = _STARTS.match(lines[0])
        path = self._full_path(key[1], first) if key else ""
        self.shown[first : last + 1] = filled
        self.work[first : last + 1] = filled
        if len(lines) == last + 1 - first:  # only what differs
            changed = [at for at, new in enumerate(lines) if new != self.lines[first + at].rstrip("\r")]
            if changed:
                first, last, lines = first + changed[0], first + changed[-1], lines[changed[0] : changed[-1] + 1]
        old = " ".join(line.strip() for line in self.lines[first : last + 1])
        new = _shorten_text(" ".join(line.strip() for line in lines))
        self._add(
            first,
            mended.mistakes[0],
            f"`{_shorten_text(old)}`: {'; '.join(CLAUSES[one] for one in mended.mistakes)}.",
            path,
            f"Write it as: {new}" if mended.certain else "",
            *([Edit(self.path, first + 1, last + 1, tuple(lines))] if mended.certain else []),
        )

    def _note_failure(self, first: int, last: int, why: str) -> None:
        """What is not TOML and has no certain meaning: it is left out of what the file says."""
        line, said = first, f" ({why})"
        try:
            tomllib.loads("\n".join([*self.lines[first : last + 1], ""]))
        except tomllib.TOMLDecodeError as error:
            line, said = first + _line_of(error, last - first + 1), f" ({_plain_words(error)})"
        except RecursionError:
            pass
        line = min(line, last)
        key = _STARTS.match(self.lines[first])
        what = "This is not TOML"
        if self.lines[first].lstrip().startswith("["):
            what = "This section header is not TOML"
        elif _MERGE.match(self.lines[first]):
            what = "This is a mark that git leaves where a merge had conflicts"
        elif key is None:
            what = "This line is neither a key with a value nor a section header"
        elif not self.lines[first][key.end() :].split("#")[0].strip() and last == first:
            what = f"{key[1]} has no value"
        path = self._full_path(key[1], first) if key else ""
        self._add(line, "toml-syntax", f"{what}{said}: `{_shorten_text(self.lines[line].strip())}`.", path)
        self.hopeless += 1
        self._take_out(first, last)
        self.shown[first : last + 1] = self.work[first : last + 1]
        if what.startswith("This section"):  # nor is it known what the keys below it belong to
            end = next((n for n in range(last + 1, len(self.work)) if _HEADER.match(self.work[n])), len(self.work))
            self._take_out(last + 1, end - 1)

    def _add(self, at: int, rule: str, sentence: str, key: str, remedy: str = "", *edits: Edit) -> None:
        self.found.append(Finding(rule, sentence, Where(str(self.path), at + 1, key), remedy, edits=edits))


def _begins(line: str) -> bool:
    """Does a statement begin here, if not within a text or brackets?"""
    return _STARTS.match(line) is not None or _HEADER.match(line) is not None


def _names_of(key: str) -> tuple[str, ...]:
    """The parts of a key as it is written."""
    return tuple(part.strip("\"' \t") for part in re.findall(NAME, key))


def _table_at(top: Any, names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        value = top.setdefault(name, {})
        top = value[-1] if isinstance(value, list) and value else value
        if not isinstance(top, dict):
            return {}
    found: dict[str, Any] = top
    return found


def _merge(table: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(table.get(name), dict):
            _merge(table[name], value)
        else:
            table[name] = value


def _line_of(error: Exception, end: int) -> int:
    """The line of an error, from 0; at the end of the text it is the one before ``end``."""
    place = _AT.search(str(error))
    return int(place[1]) - 1 if place and place[1] else end - 1


def _plain_words(error: Exception) -> str:
    """What tomllib says, without its place: that stands beside it."""
    return _AT.sub("", str(error)).rstrip(".")


def _shorten_text(text: str) -> str:
    return text if len(text) <= 160 else text[:120] + " ... " + text[-30:]


def _show_value(name: str, value: object) -> str:
    """What the key ``name`` is set to, without a secret: no name stands before it where it is shown."""
    value = mask_value(value, name)
    text = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."
