"""What of the findings stops a start, and what a person has overruled."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from supervisor.preflight.finding import Finding

UNYIELDING = frozenset(
    {"run-file", "refused", "config-missing", "config-unreadable", "prime-rl-not-found", "prime-rl-unknown"}
)
"""Errors that no overruling helps against: the supervisor cannot start such a run, whatever a person says."""


def stopping(found: Sequence[Finding], overruled: Collection[str]) -> list[Finding]:
    """The errors that stop a start."""
    return [one for one in found if one.weight == "error" and not beaten(one, overruled)]


def beaten(one: Finding, overruled: Collection[str]) -> bool:
    """Is it an error that a person has overruled?"""
    return one.weight == "error" and one.id in overruled and one.id not in UNYIELDING
