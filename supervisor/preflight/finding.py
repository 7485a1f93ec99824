"""A finding, and the rules that findings are of: what each id means, why it matters, what helps, who says so."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

Severity = Literal["error", "warning", "note"]
"""An error stops a start unless it is overruled by its id; a warning costs time or money; a note is for information."""

SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Rule:
    """What an id means. ``title`` is a clause without a full stop; ``why`` and ``remedy`` are sentences."""

    id: str
    severity: Severity
    title: str
    why: str
    remedy: str
    source: str


@dataclass(frozen=True)
class Where:
    """A place: a file, its line from 1, the dotted key. Each may be unknown ("" or 0); all of them: the machine."""

    file: str = ""
    line: int = 0
    key: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        return " ".join(part for part in (place, self.key) if part)


@dataclass(frozen=True)
class Edit:
    """Lines ``first`` to ``last`` (from 1, both included) of ``file`` become ``lines`` (without line ends).

    ``last`` = ``first`` - 1 inserts before ``first``; no ``lines`` delete.
    """

    file: Path
    first: int
    last: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """One thing that was found. ``sentence`` names the values; ``remedy`` is the rule's own unless given here."""

    id: str
    sentence: str
    where: Where = Where()
    remedy: str = ""
    severity: Severity | None = None
    """Only where it differs from the rule's."""
    edits: tuple[Edit, ...] = ()
    """What would mend it, where that is certain enough to be suggested."""

    @property
    def rule(self) -> Rule:
        """What the id means. Raises KeyError for an id that no rule has."""
        return rules()[self.id]

    @property
    def weight(self) -> Severity:
        """Its severity."""
        return self.severity or self.rule.severity

    def as_json(self) -> dict[str, object]:
        """All that is known of it, for ``--json``."""
        rule = self.rule
        return {
            "id": self.id,
            "severity": self.weight,
            "file": self.where.file or None,
            "line": self.where.line or None,
            "key": self.where.key or None,
            "sentence": self.sentence,
            "why": rule.why,
            "remedy": self.remedy or rule.remedy,
            "source": rule.source,
            "fixable": bool(self.edits),
        }


def join_words(words: Iterable[str], last: str = "and") -> str:
    """``a, b and c``, each word once; "" for none."""
    once = list(dict.fromkeys(words))
    return f"{', '.join(once[:-1])} {last} {once[-1]}" if len(once) > 1 else "".join(once)


@cache
def rules() -> Mapping[str, Rule]:
    """All rules by id, from ``rules/*.toml``; tests/preflight/test_rules.py says what each must be like."""
    paths = sorted((Path(__file__).parent / "rules").glob("*.toml"))
    tables = [table for path in paths for table in tomllib.loads(path.read_text(encoding="utf-8")).get("rule", ())]
    return MappingProxyType({table["id"]: Rule(**table) for table in tables})
