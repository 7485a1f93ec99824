"""Runs every check over a subject, and puts what they found into the order in which a person wants to read it."""

from __future__ import annotations

from supervisor.preflight import (
    batches,
    environments,
    estimates,
    keys,
    lengths,
    machine,
    model_support,
    resume,
    saving,
    sharing,
    tracking,
)
from supervisor.preflight.checking import Check
from supervisor.preflight.finding import SEVERITIES, Finding
from supervisor.preflight.subject import Subject

_MODULES = (keys, saving, lengths, batches, sharing, model_support, estimates, tracking, environments, resume, machine)


REFUSED = "refused"


def checks() -> tuple[Check, ...]:
    """All of them. Each module of this package that has some lists them in CHECKS."""
    return tuple(check for module in _MODULES for check in module.CHECKS)


def examine(subject: Subject) -> list[Finding]:
    """What all checks find: errors first, then by place."""
    found = [*subject.found]
    for check in checks():
        found += check(subject)
    return in_order(found)


def in_order(found: list[Finding]) -> list[Finding]:
    """Ordered, and what is said twice is said once.

    A refusal of the supervisor gives way to another error at its very place, which says more of it.
    """
    told = {one.where for one in found if one.weight == "error" and one.id != REFUSED and one.where.line}
    unique = [one for one in dict.fromkeys(found) if one.id != REFUSED or one.where not in told]
    return ordered(unique)


def ordered(found: list[Finding]) -> list[Finding]:
    """The worst first; then as they stand in the files, the machine last."""
    return sorted(
        found, key=lambda one: (SEVERITIES.index(one.weight), not one.where.file, one.where.file, one.where.line)
    )
