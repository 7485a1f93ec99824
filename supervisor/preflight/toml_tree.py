"""Builds the tree that statements of TOML make, and finds what stands twice, which TOML forbids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Section:
    """`[a.b]` or, with ``many``, `[[a.b]]`. Lines count from 0."""

    first: int
    last: int
    names: tuple[str, ...]
    many: bool = False

    @property
    def written(self) -> str:
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


@dataclass(frozen=True)
class Clash:
    """Two statements that TOML forbids to stand together. ``line`` (from 0) is the later one's."""

    rule: str
    line: int
    key: str
    sentence: str
    remedy: str
    delete: tuple[int, int] | None = None
    """Lines (from 0) that can go."""
    move_to: int | None = None
    """The line (from 0) behind which what was deleted belongs, but for its header."""
    replace: tuple[int, str] | None = None

    def edits(self, lines: Sequence[str]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """First line, last line (from 1) and what becomes of them."""
        if self.replace:
            yield self.replace[0] + 1, self.replace[0] + 1, (self.replace[1],)
        if self.delete is None:
            return
        first, last = self.delete
        if self.move_to is not None:
            moved = tuple(line.rstrip("\r") for line in lines[first + 1 : last + 1])
            while moved and not moved[-1].strip():
                moved = moved[:-1]
            yield self.move_to + 2, self.move_to + 1, moved
        yield first + 1, last + 1, ()


def assembled(statements: Sequence[Statement]) -> dict[str, Any]:
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


def clashes(statements: Sequence[Statement]) -> Iterator[Clash]:
    """What stands twice, or as a table here and as a list there."""
    sections: dict[Path, int] = {}
    pairs: dict[Path, Pair] = {}
    rows: dict[Path, int] = {}
    lists: dict[Path, Section] = {}
    here: Path = ()
    lost = False
    for number, one in enumerate(statements):
        if isinstance(one, Section):
            path = _resolve_names(one.names[:-1], rows)
            path = (*path, one.names[-1])
            lost = False
            if path in pairs:
                yield _set_before(one, pairs[path])
                lost = True
            elif one.many:
                if path in sections:
                    yield _report_mixed(_read_section(statements, sections[path]), one)
                lists.setdefault(path, one)
                rows[path] = rows.get(path, -1) + 1
                path = (*path, rows[path])
            elif path in lists:
                yield _report_mixed(one, lists[path])
                rows[path] += 1
                path = (*path, rows[path])
            elif path in sections:
                yield _report_section_twice(statements, number, sections[path])
            else:
                sections[path] = number
            here = path
        elif one.names and not lost:
            path = (*here, *one.names)
            if path in pairs:
                yield _report_twice(pairs[path], one, path)
            pairs[path] = one


def _resolve_names(names: Sequence[str], rows: dict[Path, int]) -> Path:
    path: Path = ()
    for name in names:
        path = (*path, name)
        if path in rows:
            path = (*path, rows[path])
    return path


def _join_names(names: Sequence[str]) -> str:
    return ".".join(names)


def _report_twice(old: Pair, new: Pair, path: Path) -> Clash:
    key, whole = _join_names(new.names), _join_names([one for one in path if isinstance(one, str)])
    same = old.value == new.value and type(old.value) is type(new.value)
    both = f"in line {old.first + 1} and again in line {new.first + 1}"
    if same:
        sentence = f"{key} is set {both}, to the same value."
        return Clash(
            "duplicate-key", new.first, whole, sentence, f"Take out line {new.first + 1}.", (new.first, new.last)
        )
    sentence = f"{key} is set {both}, to different values: {_show_value(old.value)} and {_show_value(new.value)}."
    return Clash("duplicate-key", new.first, whole, sentence, "Keep the one that you mean, and take out the other.")


def _show_value(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    if isinstance(value, str):
        text = f'"{value}"'
    return text if len(text) <= 60 else text[:56] + " ..."


def _set_before(section: Section, pair: Pair) -> Clash:
    sentence = (
        f"{section.written} in line {section.first + 1} opens a table that line {pair.first + 1} has already set "
        f"({_join_names(pair.names)} = {_show_value(pair.value)})."
    )
    remedy = f"Take out line {pair.first + 1}, or write all of it there."
    return Clash("duplicate-key", section.first, _join_names(section.names), sentence, remedy)


def _report_mixed(single: Section, many: Section) -> Clash:
    name = _join_names(single.names)
    sentence = (
        f"[{name}] in line {single.first + 1} is one table, and [[{name}]] in line {many.first + 1} a list of tables: "
        "it cannot be both."
    )
    return Clash(
        "duplicate-table",
        single.first,
        name,
        sentence,
        f"Write line {single.first + 1} as: [[{name}]]",
        replace=(single.first, f"[[{name}]]"),
    )


def _read_section(statements: Sequence[Statement], number: int) -> Section:
    one = statements[number]
    return one if isinstance(one, Section) else Section(one.first, one.last, one.names)


def _report_section_twice(statements: Sequence[Statement], number: int, earlier: int) -> Clash:
    """A section that stands twice. It can be moved to the first where no key of it is there already."""
    old, new = _read_section(statements, earlier), _read_section(statements, number)
    first_end, first_keys = _block_of_section(statements, earlier)
    new_end, new_keys = _block_of_section(statements, number)
    name = _join_names(old.names)
    sentence = f"[{name}] stands in line {old.first + 1} and again in line {new.first + 1}, which TOML forbids."
    remedy = (
        f"Put the keys below line {new.first + 1} to those of line {old.first + 1}, and take out the second header."
    )
    if first_keys & new_keys:
        return Clash("duplicate-table", new.first, name, sentence, remedy)
    return Clash("duplicate-table", new.first, name, sentence, remedy, (new.first, new_end), first_end)


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
