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
    """Errors first; then as they stand in the files, the machine last. What is said twice is said once."""
    unique = list(dict.fromkeys(found))
    return sorted(
        unique, key=lambda one: (SEVERITIES.index(one.weight), not one.where.file, one.where.file, one.where.line)
    )
