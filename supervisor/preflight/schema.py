"""Every key that an installed prime-rl knows and what kind of value it takes, read from its source without running it.

To be written: ``read``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Field:
    """One key. ``kinds``: TOML types it takes ("str", "int", "float", "bool", "list", "table", "any", "none").

    ``below``: the keys of its table ("table"), or of each table in its list ("list"); empty and ``open`` where any key
    is taken. ``choices``: the only texts that it takes, where they are listed.
    """

    kinds: frozenset[str]
    below: Mapping[str, Field] = field(default_factory=dict)
    open: bool = False
    choices: tuple[str, ...] = ()
    required: bool = False
    default: object = None
    """A literal default (number, text, bool), None where there is none or it is not literal."""


@dataclass(frozen=True)
class Schema:
    """The keys of `rl` (or `sft`) of one version. ``exact`` False: of another version that is near, so not certain."""

    top: Mapping[str, Field]
    exact: bool = True
    source: str = ""

    def get(self, path: str) -> Field | None:
        """The field at a dotted path ("-" and "_" are the same; list indices are left out), None when unknown."""
        raise NotImplementedError

    def places(self, name: str) -> Sequence[str]:
        """Dotted paths at which a key of this name is known, shortest first."""
        raise NotImplementedError


def read(roots: Sequence[Path], kind: str) -> Schema | None:
    """The schema of the prime-rl in ``roots`` ("rl" or "sft"); None where its source is not understood."""
    raise NotImplementedError
