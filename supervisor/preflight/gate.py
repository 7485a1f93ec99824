"""What of the findings stops a start, and what a person has overruled."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import replace

from supervisor.preflight.examine import REFUSED, sort_findings
from supervisor.preflight.finding import Finding, rules
from supervisor.preflight.subject import Subject
from supervisor.preflight.toml_values import CLAUSES

NO_TOML = frozenset({*CLAUSES, "duplicate-key", "duplicate-table", "toml-syntax", "not-toml", "json-syntax"})
"""What no program can read: the supervisor could not tell what the run is, and the trainer would end at once."""
UNYIELDING = NO_TOML | {
    *("run-file", "refused", "config-missing", "config-unreadable", "prime-rl-not-found", "prime-rl-unknown"),
}
"""Errors that no overruling helps against: the supervisor cannot start such a run, whatever a person says."""
PASSING = frozenset({"port-in-use", "gpu-busy"})
"""Errors of this moment: what a run before this one holds it lets go while it ends. A start waits for its ports, and is
tried again."""


def add_standing_refusals(found: Sequence[Finding], subject: Subject, overruled: Collection[str]) -> list[Finding]:
    """``found``, and the refusals that had given way to an error which is overruled: those are in the way still."""
    yielded = [one for one in subject.found if one.id == REFUSED and one not in found]
    places = {one.where for one in found if one.weight == "error" and not beaten(one, overruled)}
    return sort_findings([*found, *(one for one in yielded if one.where not in places)])


def may_be_overruled(found: Sequence[Finding], subject: Subject, overruled: Collection[str]) -> bool:
    """Would a start follow if all errors of ``found`` were overruled?"""
    wanted = {*overruled, *(one.id for one in find_stopping_errors(found, overruled))}
    return not find_stopping_errors(add_standing_refusals(found, subject, wanted), wanted)


def find_stopping_errors(found: Sequence[Finding], overruled: Collection[str]) -> list[Finding]:
    """The errors that stop a start."""
    return [one for one in found if one.weight == "error" and not beaten(one, overruled)]


def beaten(one: Finding, overruled: Collection[str]) -> bool:
    """Is it an error that a person has overruled?"""
    return one.weight == "error" and one.id in overruled and one.id not in UNYIELDING


def lower_passing_errors(found: Sequence[Finding]) -> list[Finding]:
    """``found`` for a start: what passes by itself is a warning there, since nothing would start the run again."""
    return [replace(one, severity="warning") if one.id in PASSING else one for one in found]


def overrule_mistakes(subject: Subject) -> list[Finding]:
    """Ids that the run file overrules and that are none, or that no overruling helps against."""
    names = subject.run_file.check.overrule if subject.run_file is not None else []
    where = subject.run_where("check", "overrule")
    found = []
    for name in names:
        if name not in rules():
            near = difflib.get_close_matches(name, rules(), 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else "."
            found.append(
                Finding("overrule-unknown", f"[check] overrule names {name}, and there is no such finding{hint}", where)
            )
        elif name in UNYIELDING:
            told = f"[check] overrule names {name}, and overruling that does not help: such a run cannot be started."
            found.append(Finding("overrule-unknown", told, where))
    return found
