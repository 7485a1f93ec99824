"""Every key that a version of prime-rl knows, and the kind of its value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property

Bounds = tuple[tuple[str, float], ...]
"""Comparisons by pydantic's names, with what is compared to: (("ge", 1),) is 1 or more. All of them must hold."""


@dataclass(frozen=True)
class Field:
    """One key. ``kinds``: TOML types it takes ("str", "int", "float", "bool", "list", "table", "any"; "none": the text
    "None" means nothing).

    ``below``: the keys of its table ("table"), or of each table in its list ("list"); empty and ``open`` where any key
    is taken. With ``open`` and keys in ``below``, those are known and others may be taken as well.
    ``choices``: the only texts that it takes, where they are listed.
    """

    kinds: frozenset[str]
    below: Mapping[str, Field] = field(default_factory=dict)
    open: bool = False
    choices: tuple[str, ...] = ()
    required: bool = False
    default: object = None
    """A literal default (number, text, bool), None where there is none or it is not literal."""
    ignores: bool = False
    """Keys of its table that are not known are dropped without a word, and not refused."""
    variants: Mapping[str, Field] = field(default_factory=dict)
    """By the text of its key `type`: the table that is meant, where ``below`` has the keys of several."""
    usual: str = ""
    """The variant of its default: meant where a table does not say its `type`."""
    tagged: bool = False
    """Must a table say its `type`, where there is no usual one?"""
    bounds: Bounds = ()
    """What a number must be beyond its kind."""
    elements: frozenset[str] = frozenset()
    """Kinds of the elements of a list, empty where they are not known."""

    def of(self, table: Mapping[str, object]) -> Field:
        """The variant that ``table`` is; itself where that is not known."""
        said = table.get("type", self.usual)
        return self.variants.get(said, self) if isinstance(said, str) else self


@dataclass(frozen=True)
class Schema:
    """The keys of `rl` (or `sft`) of one version. ``exact`` False: which version will run was guessed."""

    top: Mapping[str, Field]
    exact: bool = True
    version: str = "the installed prime-rl"
    """What people are told that it is of."""
    open: bool = False
    """More keys may be taken at the top level than are known here."""
    day: date | None = None
    """From when on main had it; None for what is installed."""

    def get(self, path: str) -> Field | None:
        """The field at a dotted path ("-" and "_" are the same; list indices are left out), None when unknown."""
        below: Mapping[str, Field] = self.top
        found: Field | None = None
        for part in path.split("."):
            if part.isdigit() and found is not None:
                continue
            found = below.get(part.replace("-", "_"))
            if found is None:
                return None
            below = found.below
        return found

    def places(self, name: str) -> Sequence[str]:
        """Dotted paths at which a key of this name is known, shortest first."""
        return self._places_of_tables.get(name.replace("-", "_"), ())

    @cached_property
    def _places_of_tables(self) -> Mapping[str, Sequence[str]]:
        places: dict[str, list[str]] = {}
        for path in walk(self.top):
            places.setdefault(path.rpartition(".")[2], []).append(path)
        return {name: sorted(paths, key=lambda path: (path.count("."), path)) for name, paths in places.items()}


def walk(fields: Mapping[str, Field], above: str = "") -> Iterator[str]:
    """Dotted paths of all keys, each table before what stands in it."""
    for name, one in fields.items():
        path = f"{above}.{name}" if above else name
        yield path
        yield from walk(one.below, path)
