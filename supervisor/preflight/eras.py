"""What prime-rl knew when: its keys and its way to speak on each day of its history, for where none is installed.

``docs/eras.py`` writes ``eras.json`` from the history: one era begins with each commit on main that changed a key, what
it takes, or the way to speak. The classes of verifiers that stand in an environment's table are of the version that
this commit names. Of the source the file holds names, kinds and defaults of keys only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from supervisor.preflight.kinds import beyond, fits
from supervisor.preflight.schema import Field, Schema
from supervisor.primerl.dialect import Dialect

DATA = Path(__file__).with_name("eras.json")
KINDS = ("rl", "sft")
_LEAST_EXPLAINED = 0.5
"""A configuration of which no version knows even this part of the keys is none of prime-rl."""


@dataclass(frozen=True)
class Era:
    """One commit of prime-rl: from its ``day`` on, and until the next one, this is the best guess."""

    number: int
    day: date
    commit: str
    dialect: Dialect

    def schema(self, kind: str) -> Schema:
        """What it knew, of one of KINDS."""
        return _schema_of_era(self, kind)


@cache
def _schema_of_era(era: Era, kind: str) -> Schema:
    data = _load_data()
    version = f"prime-rl {era.commit} of {era.day:%-d %b %Y}"
    return Schema(_tree_of_era(data[kind], era.number), False, version, era.number in data[f"{kind}-open"], era.day)


@cache
def load_eras() -> tuple[Era, ...]:
    """All of them, oldest first."""
    eras: list[Era] = []
    features: dict[str, Any] = {}
    for number, one in enumerate(_load_data()["eras"]):
        features |= one["dialect"]
        features["renamed"] = tuple(features["renamed"])
        eras.append(Era(number, date.fromisoformat(one["day"]), one["commit"], Dialect(**features)))
    return tuple(eras)


def on(day: date) -> Sequence[Era]:
    """The eras of a day, oldest first: that of its morning, and those that began on it. Before all: the oldest."""
    until = [era for era in load_eras() if era.day <= day] or [load_eras()[0]]
    began = sum(1 for era in until if era.day == day)
    return until[-began - 1 :]


def find_fitting_eras(tree: Mapping[str, object], kind: str = "rl") -> Sequence[Era]:
    """The eras that know all keys of ``tree``, else those that know most; oldest first, none without a clue.

    There is none when every era knows as many of them, and when none knows at least half.
    """
    eras = load_eras()
    unknown = [0] * len(eras)
    opened = set(_load_data()[f"{kind}-open"])
    weights = {era: 1 if era in opened else 2 for era in range(len(eras))}
    total = _count_unknown(tree, "", kind, weights, unknown)
    least = min(unknown)
    if least > 2 * total * _LEAST_EXPLAINED or all(count == least for count in unknown):
        return ()
    return tuple(era for era, count in zip(eras, unknown, strict=True) if count == least)


def _count_unknown(
    tree: Mapping[str, object], above: str, kind: str, weights: Mapping[int, int], unknown: list[int]
) -> int:
    """Add to ``unknown`` (by era) the weights of the keys that an era does not know here; gives the number of keys.

    An era's weight is 2, and 1 where its table takes more keys than are known: a key that is known by name still
    speaks for an era. It has none in a table of which no key is known, such as the arguments of an environment.
    """
    total = 0
    for key, value in tree.items():
        path = f"{above}.{key}" if above else str(key)
        spans = _load_data()[kind].get(path.replace("-", "_"), ())
        facts = {era: facts for first, last, facts in spans for era in range(first, last + 1)}
        inside: dict[int, int] = {}
        for era, weight in weights.items():
            if era not in facts:
                unknown[era] += weight
                inside[era] = weight  # nor does it know what stands below
            elif not facts[era].get("open"):
                unknown[era] += 0 if _may_be(facts[era]["kinds"], value) else weight
                inside[era] = 2
            elif _has_names(kind, path, era):
                inside[era] = 1
        total += 1
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                total += _count_unknown(one, path, kind, inside, unknown)
    return total


@cache
def _parents_by_path(kind: str) -> Mapping[str, Sequence[tuple[int, int]]]:
    """By path of a table: the spans of eras in which it has keys that are known by name."""
    parents: dict[str, list[tuple[int, int]]] = {}
    for path, spans in _load_data()[kind].items():
        parents.setdefault(path.rpartition(".")[0], []).extend((first, last) for first, last, _ in spans)
    return parents


def _has_names(kind: str, path: str, era: int) -> bool:
    return any(first <= era <= last for first, last in _parents_by_path(kind).get(path.replace("-", "_"), ()))


def _may_be(kinds: str, value: object) -> bool:
    """Is a table, a list or a single value wanted here? What kind of single value is not asked."""
    if isinstance(value, Mapping):
        return "table" in kinds or "any" in kinds
    if isinstance(value, list):
        return "list" in kinds or "any" in kinds
    return not set(kinds.split()) <= {"table", "list"}


def refused_by_all(path: str, kind: str = "rl", value: object = None) -> bool:
    """Is there no era that would take ``path``, or ``value`` there (None: any), or drop it without a word?"""
    if kind not in KINDS:
        return False
    table = _load_data()[kind]
    spans = [table.get(part, ()) for part in _prefixes_of_path(path)]
    opened = set(_load_data()[f"{kind}-open"])
    for era in range(len(load_eras())):
        takes_more = era in opened
        facts: Mapping[str, Any] | None = None
        for one in spans:
            facts = next((facts for first, last, facts in one if first <= era <= last), None)
            if facts is None:
                break
            takes_more = bool(facts.get("open") or facts.get("ignores"))
        if facts is None and takes_more:
            return False
        if facts is None:
            continue
        field = _field_of_facts(facts, {})
        if value is None or (fits(field, value) and not beyond(field, value)):
            return False
    return True


def _prefixes_of_path(path: str) -> Sequence[str]:
    parts = path.replace("-", "_").split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def periods(path: str, kind: str = "rl") -> Sequence[tuple[date, date | None]]:
    """When a dotted path was known: from a day until the day from which it was not (None: it still is)."""
    eras = load_eras()
    found: list[tuple[date, date | None]] = []
    for first, last, _ in _load_data()[kind].get(path, ()):
        since, before = eras[first].day, eras[last + 1].day if last + 1 < len(eras) else None
        if found and found[-1][1] == since:
            since = found.pop()[0]
        found.append((since, before))
    return found


def homes(name: str, kind: str = "rl") -> Sequence[str]:
    """Every dotted path at which any era knows a key of this name."""
    return [path for path in _load_data()[kind] if path == name or path.endswith(f".{name}")]


# ---------------------------------------------------------------- the file

# A path has a list of [first era, last era, facts]; facts are left out where they are what most keys have.


@cache
def _load_data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def _tree_of_era(table: Mapping[str, Sequence[Sequence[Any]]], era: int) -> Mapping[str, Field]:
    top: dict[str, Field] = {}
    tables: dict[str, dict[str, Field]] = {"": top}
    for path, spans in table.items():  # each table before what stands in it
        facts = next((facts for first, last, facts in spans if first <= era <= last), None)
        if facts is None:
            continue
        above, _, name = path.rpartition(".")
        below = tables[path] = {}
        tables[above][name] = _field_of_facts(facts, below)
    return top


def _field_of_facts(facts: Mapping[str, Any], below: Mapping[str, Field]) -> Field:
    return Field(
        frozenset(facts["kinds"].split()),
        below,
        open=bool(facts.get("open")),
        choices=tuple(facts.get("choices", ())),
        required=bool(facts.get("required")),
        default=facts.get("default"),
        ignores=bool(facts.get("ignores")),
        variants={name: _variant_of_union(number) for name, number in facts.get("variants", {}).items()},
        usual=facts.get("usual", ""),
        tagged=bool(facts.get("tagged")),
        bounds=tuple(facts.get("bounds", {}).items()),
        elements=frozenset(facts.get("elements", "").split()),
    )


@cache
def _variant_of_union(number: int) -> Field:
    """One table of a union, whole; many places and eras have the same ones."""
    return _whole_field(_load_data()["variants"][number])


def _whole_field(facts: Mapping[str, Any]) -> Field:
    return _field_of_facts(facts, {name: _whole_field(one) for name, one in facts.get("below", {}).items()})
