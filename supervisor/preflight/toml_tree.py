"""Builds the tree that statements of TOML make, and finds what stands twice, which TOML forbids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.preflight.finding import Edit, Finding, Where


@dataclass(frozen=True)
class Section:
    """`[a.b]` or, with ``many``, `[[a.b]]`. Lines count from 0."""

    first: int
    last: int
    names: tuple[str, ...]
    many: bool = False


@dataclass(frozen=True)
class Pair:
    """`a.b = value`. No names: it belongs to a section that was not understood."""

    first: int
    last: int
    names: tuple[str, ...]
    value: Any


Statement = Section | Pair


class Tree:
    """What ``statements`` come to: ``top``, in which the later one wins where two disagree; ``found``, where they do.

    ``lines``: those of ``file``.
    """

    def __init__(self, file: Path, lines: Sequence[str], statements: Sequence[Statement]) -> None:
        self.top: dict[str, Any] = {}
        self.found: list[Finding] = []
        self._file, self._lines, self._statements = file, lines, statements
        # By the table (its id: none is ever let go) and a name in it, what set it.
        self._sections: dict[tuple[int, str], int] = {}
        self._pairs: dict[tuple[int, str], Pair] = {}
        self._kept: list[object] = []
        here, lost = self.top, False
        above: tuple[str, ...] = ()
        for number, one in enumerate(statements):
            if isinstance(one, Section):
                here, lost = self._open_section(one, number)
                above = one.names
            elif one.names:
                table = self._table_below(here, one.names[:-1])
                place = id(table), one.names[-1]
                if place in self._pairs and not lost:
                    self._report_twice(self._pairs[place], one, (*above, *one.names))
                self._pairs[place] = one
                self._kept.append(table.get(one.names[-1]))
                table[one.names[-1]] = one.value

    def _table_below(self, table: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """The table at ``names``: the newest of a list, a new one where there is none."""
        for name in names:
            value = table.get(name)
            newest = value[-1] if isinstance(value, list) and value else value
            if not isinstance(newest, dict):
                self._kept.append(value)
                newest = table[name] = {}
            table = newest
        return table

    def _open_section(self, one: Section, number: int) -> tuple[dict[str, Any], bool]:
        """The table that a header opens, and whether its keys say nothing of what stands twice."""
        above, name = self._table_below(self.top, one.names[:-1]), one.names[-1]
        place = id(above), name
        earlier = self._sections.setdefault(place, number)
        before, rows = self._statements[earlier], above.get(name)
        lost = place in self._pairs
        if lost:
            self._report_set_before(one, self._pairs[place])
        elif isinstance(before, Section) and before.many != one.many:
            self._report_mixed(*(before, one) if one.many else (one, before))
        elif earlier < number and not one.many:
            self._report_section_twice(earlier, number)
        if not one.many and not (isinstance(before, Section) and before.many):
            return self._table_below(above, [name]), lost
        if not isinstance(rows, list):
            above[name] = rows = [rows] if isinstance(rows, dict) and rows else []
        rows.append({})
        return rows[-1], lost

    # ------------------------------------------------------------ findings

    def _add(self, rule: str, sentence: str, line: int, names: Sequence[str], remedy: str, *edits: Edit) -> None:
        self.found.append(Finding(rule, sentence, Where(str(self._file), line, ".".join(names)), remedy, edits=edits))

    def _report_twice(self, old: Pair, new: Pair, path: Sequence[str]) -> None:
        line = new.first + 1
        told = f"{'.'.join(new.names)} is set in line {old.first + 1} and again in line {line}, to"
        if old.value == new.value and type(old.value) is type(new.value):
            edit = Edit(self._file, line, new.last + 1, ())
            self._add("duplicate-key", f"{told} the same value.", line, path, f"Take out line {line}.", edit)
            return
        told += f" different values: {_show_value(old.value)} and {_show_value(new.value)}."
        self._add("duplicate-key", told, line, path, "Keep the one that you mean, and take out the other.")

    def _report_set_before(self, section: Section, pair: Pair) -> None:
        line, header = section.first + 1, ".".join(section.names)
        told = (
            f"{f'[[{header}]]' if section.many else f'[{header}]'} in line {line} opens a table that line "
            f"{pair.first + 1} has already set ({'.'.join(pair.names)} = {_show_value(pair.value)})."
        )
        self._add(
            "duplicate-key", told, line, section.names, f"Take out line {pair.first + 1}, or write all of it there."
        )

    def _report_mixed(self, single: Section, many: Section) -> None:
        name, line = ".".join(single.names), single.first + 1
        told = (
            f"[{name}] in line {line} is one table, and [[{name}]] in line {many.first + 1} a list of tables: "
            "it cannot be both."
        )
        edit = Edit(self._file, line, line, (f"[[{name}]]",))
        self._add("duplicate-table", told, line, single.names, f"Write line {line} as: [[{name}]]", edit)

    def _report_section_twice(self, earlier: int, number: int) -> None:
        """It can be moved to the first where no key of it is there already."""
        old, new = self._statements[earlier], self._statements[number]
        first_end, first_keys = self._block_of_section(earlier)
        new_end, new_keys = self._block_of_section(number)
        first, line = old.first + 1, new.first + 1
        edits: tuple[Edit, ...] = ()
        if not first_keys & new_keys:
            moved = "\n".join(line.rstrip("\r") for line in self._lines[line : new_end + 1]).rstrip()
            edits = (
                Edit(self._file, first_end + 2, first_end + 1, tuple(moved.split("\n")) if moved else ()),
                Edit(self._file, line, new_end + 1, ()),
            )
        told = f"[{'.'.join(old.names)}] stands in line {first} and again in line {line}, which TOML forbids."
        remedy = f"Put the keys below line {line} to those of line {first}, and take out the second header."
        self._add("duplicate-table", told, line, old.names, remedy, *edits)

    def _block_of_section(self, number: int) -> tuple[int, set[str]]:
        """The last line of a section's own keys, and their first names."""
        end = self._statements[number].last
        keys: set[str] = set()
        for one in self._statements[number + 1 :]:
            if isinstance(one, Section):
                break
            end = one.last
            keys.update(one.names[:1])
        return end, keys


def _show_value(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."
