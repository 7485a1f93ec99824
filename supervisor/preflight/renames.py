"""What a setting of prime-rl was called before, is called now, or that it went: ``primerl/renames.toml``, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from supervisor.preflight.schema import Schema
from supervisor.primerl.renames import Rename, renames

_MOST_STEPS = 4
"""orchestrator.environment was renamed three times within a year."""


@dataclass(frozen=True)
class Known:
    """A setting under the name that a version knows; ``by``: the change of name that is nearest to it."""

    path: str
    by: Rename


def known_as(path: str, schema: Schema, kind: str = "rl") -> Known | None:
    """What ``schema`` calls the setting at a dotted path that it does not know; None where no change of name says."""
    seen = {path}
    paths = [path]
    for _ in range(_MOST_STEPS):
        reached: list[str] = []
        for one in paths:
            for rename, other in _next_names(one, kind):
                if other in seen:
                    continue
                if takes(schema, other):
                    return Known(other, rename)
                seen.add(other)
                reached.append(other)
        paths = reached
    return None


def find_removal(path: str, kind: str = "rl") -> Rename | None:
    """The change by which a setting went, the last one; None where it did not, or was only renamed."""
    seen = {path}
    paths = [path]
    for _ in range(_MOST_STEPS):
        for one in paths:
            for rename in renames():
                if not rename.new and _path_below(one, _renames_of(rename.old, kind)) is not None:
                    return rename
        paths = [other for one in paths for _, other in _next_names(one, kind) if other not in seen]
        seen.update(paths)
    return None


def find_dropped_names(has: Callable[[str], bool], schema: Schema | None) -> Mapping[str, str]:
    """Old names that the version of ``schema`` drops, for the new one is set as well: each with the new one."""
    if schema is None:
        return {}
    both = [one for one in renames() if one.yields and has(one.old) and has(one.new)]
    return {one.old: one.new for one in both if takes(schema, one.old) and takes(schema, one.new)}


def takes(schema: Schema, path: str) -> bool:
    """Does a version take this path: by name, or below a table that takes anything?"""
    if schema.get(path) is not None:
        return True
    above = path.rpartition(".")[0]
    while above:
        field = schema.get(above)
        if field is not None:
            return field.open and "table" in field.kinds
        above = above.rpartition(".")[0]
    return False


def _next_names(path: str, kind: str) -> Iterator[tuple[Rename, str]]:
    """Other names of a path, or of a table that it stands in: the longest match first."""
    found = []
    for rename in renames():
        old, new = _renames_of(rename.old, kind), _renames_of(rename.new, kind)
        for mine, other in ((old, new), (new, old)):
            rest = _path_below(path, mine) if mine and other else None
            if rest is not None:
                found.append((len(mine), rename, other + rest))
    for _, rename, other in sorted(found, key=lambda one: -one[0]):
        yield rename, other


def _renames_of(path: str, kind: str) -> str:
    return path.removeprefix("trainer.") if kind == "sft" else path


def _path_below(path: str, table: str) -> str | None:
    """What of ``path`` comes behind ``table`` ("" for the table itself), None where it is not below it."""
    if path == table:
        return ""
    return path[len(table) :] if table and path.startswith(f"{table}.") else None
