"""Builds the tree that statements of TOML make, and finds what stands twice, which TOML forbids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.config.toml_positions import Key
from supervisor.preflight.finding import Edit, Finding, Where


@dataclass(frozen=True)
class Section:
    """`[a.b]` or, with ``many``, `[[a.b]]`. Lines count from 0."""

    first: int
    last: int
    names: tuple[str, ...]
    many: bool = False

    @property
    def header(self) -> str:
        name = ".".join(self.names)
        return f"[[{name}]]" if self.many else f"[{name}]"


@dataclass(frozen=True)
class Pair:
    """`a.b = value`. No names: it belongs to a section that was not understood."""

    first: int
    last: int
    names: tuple[str, ...]
    value: Any


Statement = Section | Pair


def build_tree(statements: Sequence[Statement]) -> dict[str, Any]:
    """The tree, as far as the statements agree; where they do not, the later one wins."""
    tree: dict[str, Any] = {}
    here: dict[str, Any] = tree
    for one in statements:
        if isinstance(one, Section):
            here = _open_table(tree, one)
        elif one.names:
            table = here
            for name in one.names[:-1]:
                table = _table_below(table, name)
            table[one.names[-1]] = one.value
    return tree


def _open_table(tree: dict[str, Any], section: Section) -> dict[str, Any]:
    table = tree
    for name in section.names[:-1]:
        table = _table_below(table, name)
    last = section.names[-1]
    if not section.many:
        return _table_below(table, last)
    rows = table.get(last)
    if not isinstance(rows, list):
        rows = table[last] = [rows] if isinstance(rows, dict) and rows else []
    rows.append({})
    new: dict[str, Any] = rows[-1]
    return new


def _table_below(table: dict[str, Any], name: str) -> dict[str, Any]:
    """The table of a name: the newest of a list, a new one where there is none."""
    value = table.get(name)
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        newest: dict[str, Any] = value[-1]
        return newest
    if not isinstance(value, dict):
        value = table[name] = {}
    return value


def clashes(file: Path, lines: Sequence[str], statements: Sequence[Statement]) -> Iterator[Finding]:
    """What stands twice, or as a table here and as a list there."""
    sections: dict[Key, int] = {}
    pairs: dict[Key, Pair] = {}
    rows: dict[Key, int] = {}
    lists: dict[Key, Section] = {}
    here: Key = ()
    lost = False
    for number, one in enumerate(statements):
        if isinstance(one, Section):
            path = _resolve_names(one.names[:-1], rows)
            path = (*path, one.names[-1])
            lost = False
            if path in pairs:
                yield _set_before(file, one, pairs[path])
                lost = True
            elif one.many:
                if path in sections:
                    yield _report_mixed(file, _read_section(statements, sections[path]), one)
                lists.setdefault(path, one)
                rows[path] = rows.get(path, -1) + 1
                path = (*path, rows[path])
            elif path in lists:
                yield _report_mixed(file, one, lists[path])
                rows[path] += 1
                path = (*path, rows[path])
            elif path in sections:
                yield _report_section_twice(file, lines, statements, number, sections[path])
            else:
                sections[path] = number
            here = path
        elif one.names and not lost:
            path = (*here, *one.names)
            if path in pairs:
                yield _report_twice(file, pairs[path], one, path)
            pairs[path] = one


def _resolve_names(names: Sequence[str], rows: dict[Key, int]) -> Key:
    path: Key = ()
    for name in names:
        path = (*path, name)
        if path in rows:
            path = (*path, rows[path])
    return path


def _join_names(names: Sequence[str]) -> str:
    return ".".join(names)


def _report_twice(file: Path, old: Pair, new: Pair, path: Key) -> Finding:
    key = _join_names(new.names)
    where = Where(str(file), new.first + 1, _join_names([one for one in path if isinstance(one, str)]))
    both = f"in line {old.first + 1} and again in line {new.first + 1}"
    if old.value == new.value and type(old.value) is type(new.value):
        sentence = f"{key} is set {both}, to the same value."
        edits = (Edit(file, new.first + 1, new.last + 1, ()),)
        return Finding("duplicate-key", sentence, where, f"Take out line {new.first + 1}.", edits=edits)
    sentence = f"{key} is set {both}, to different values: {_show_value(old.value)} and {_show_value(new.value)}."
    return Finding("duplicate-key", sentence, where, "Keep the one that you mean, and take out the other.")


def _show_value(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    if isinstance(value, str):
        text = f'"{value}"'
    return text if len(text) <= 60 else text[:56] + " ..."


def _set_before(file: Path, section: Section, pair: Pair) -> Finding:
    sentence = (
        f"{section.header} in line {section.first + 1} opens a table that line {pair.first + 1} has already set "
        f"({_join_names(pair.names)} = {_show_value(pair.value)})."
    )
    remedy = f"Take out line {pair.first + 1}, or write all of it there."
    return Finding("duplicate-key", sentence, Where(str(file), section.first + 1, _join_names(section.names)), remedy)


def _report_mixed(file: Path, single: Section, many: Section) -> Finding:
    name, line = _join_names(single.names), single.first + 1
    sentence = (
        f"[{name}] in line {line} is one table, and [[{name}]] in line {many.first + 1} a list of tables: "
        "it cannot be both."
    )
    edits = (Edit(file, line, line, (f"[[{name}]]",)),)
    remedy = f"Write line {line} as: [[{name}]]"
    return Finding("duplicate-table", sentence, Where(str(file), line, name), remedy, edits=edits)


def _read_section(statements: Sequence[Statement], number: int) -> Section:
    one = statements[number]
    return one if isinstance(one, Section) else Section(one.first, one.last, one.names)


def _report_section_twice(
    file: Path, lines: Sequence[str], statements: Sequence[Statement], number: int, earlier: int
) -> Finding:
    """A section that stands twice. It can be moved to the first where no key of it is there already."""
    old, new = _read_section(statements, earlier), _read_section(statements, number)
    first_end, first_keys = _block_of_section(statements, earlier)
    new_end, new_keys = _block_of_section(statements, number)
    name = _join_names(old.names)
    sentence = f"[{name}] stands in line {old.first + 1} and again in line {new.first + 1}, which TOML forbids."
    remedy = (
        f"Put the keys below line {new.first + 1} to those of line {old.first + 1}, and take out the second header."
    )
    edits: tuple[Edit, ...] = ()
    if not first_keys & new_keys:
        moved = [line.rstrip("\r") for line in lines[new.first + 1 : new_end + 1]]
        while moved and not moved[-1].strip():
            moved.pop()
        edits = (Edit(file, first_end + 2, first_end + 1, tuple(moved)), Edit(file, new.first + 1, new_end + 1, ()))
    return Finding("duplicate-table", sentence, Where(str(file), new.first + 1, name), remedy, edits=edits)


def _block_of_section(statements: Sequence[Statement], number: int) -> tuple[int, set[str]]:
    """The last line of a section's own keys, and their first names."""
    end = statements[number].last
    keys: set[str] = set()
    for one in statements[number + 1 :]:
        if isinstance(one, Section):
            break
        end = one.last
        keys.update(one.names[:1])
    return end, keys
