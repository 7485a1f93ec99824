"""Are the environments of the run installed where it will train, and can they be imported there?"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.preflight.checking import Check
from supervisor.preflight.finding import Finding
from supervisor.preflight.subject import Subject

CHECKS: tuple[Check, ...] = ()


def slow_findings(subject: Subject, timeout_s: float = 60.0) -> Sequence[Finding]:
    """Ask the job's interpreter itself, at most ``timeout_s`` for each environment."""
    return ()
