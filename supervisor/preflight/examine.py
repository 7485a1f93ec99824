"""Runs every check over a subject, and puts what they found into the order in which a person wants to read it."""

from __future__ import annotations

from dataclasses import replace

from supervisor.preflight import (
    batches,
    disk_space,
    engine_table,
    environments,
    gpu_memory,
    halves,
    keys,
    lengths,
    machine,
    model_support,
    resume,
    saving,
    sharing,
    together,
    tracking,
)
from supervisor.preflight.finding import SEVERITIES, Finding, Where
from supervisor.preflight.subject import Check, Subject

_MODULES = (
    keys,
    engine_table,
    saving,
    halves,
    lengths,
    batches,
    together,
    sharing,
    model_support,
    gpu_memory,
    disk_space,
    tracking,
    environments,
    resume,
    machine,
)


REFUSED = "refused"
_GIVES_WAY = {
    "unquoted-text": {"wrong-kind"},
    "missing-brackets": {"wrong-kind", "unknown-key"},
    "unknown-key": {"resume-by-hand", "weights-only"},
    "other-files": {"unknown-key"},
    "renderer-of-a-folder": {"model-name-elsewhere"},
    "out-of-bounds": {"below-one", "oversampling-below-one", "no-steps"},
}
"""What need not be said beside an error of these at its very place: its remedy would lead to that, or past it."""
LONGEST = 1000
"""Characters of a sentence: more is cut out of its middle."""


def checks() -> tuple[Check, ...]:
    """All of them. Each module of this package that has some lists them in CHECKS."""
    return tuple(check for module in _MODULES for check in module.CHECKS)


def examine(subject: Subject) -> list[Finding]:
    """What all checks find: errors first, then by place."""
    found = _find_all(subject)
    if subject.others:
        found = _make_certain(found, subject)
    return in_order([*subject.found, *found])


def _find_all(subject: Subject) -> list[Finding]:
    return [one for check in checks() for one in check(subject)]


def _make_certain(found: list[Finding], subject: Subject) -> list[Finding]:
    """What is an error in some of the versions that it may be, and not in others, is a warning."""
    for dialect, schema in subject.others:
        other = _find_all(replace(subject, dialect=dialect, schema=schema))
        there = {(one.id, one.where) for one in other if one.weight == "error"}
        found = [
            replace(one, severity="warning") if one.weight == "error" and (one.id, one.where) not in there else one
            for one in found
        ]
    return found


def in_order(found: list[Finding]) -> list[Finding]:
    """Ordered, and what is said twice is said once.

    A refusal of the supervisor gives way to any other error at its very place, which says more of it.
    """
    found = [_one_line(one) for one in found]
    told: dict[Where, set[str]] = {}
    for one in found:
        if one.weight == "error" and one.id != REFUSED and one.where.line:
            told.setdefault(one.where, set()).add(one.id)
    return sort_findings([one for one in dict.fromkeys(found) if not _gives_way(one, told.get(one.where, set()))])


def _gives_way(one: Finding, errors: set[str]) -> bool:
    return bool(errors) if one.id == REFUSED else not errors.isdisjoint(_GIVES_WAY.get(one.id, ()))


def _one_line(one: Finding) -> Finding:
    """Values of a configuration may be texts of several lines, or of thousands of characters."""
    return replace(one, sentence=_shorten_text(one.sentence), remedy=_shorten_text(one.remedy))


def _shorten_text(text: str) -> str:
    if len(text) <= LONGEST and "\n" not in text:
        return text
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def sort_findings(found: list[Finding]) -> list[Finding]:
    """The worst first; then as they stand in the files, the machine last."""
    return sorted(
        found, key=lambda one: (SEVERITIES.index(one.weight), not one.where.file, one.where.file, one.where.line)
    )
