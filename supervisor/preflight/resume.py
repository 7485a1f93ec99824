"""The newest checkpoint against the installed revision and the configuration now: would it fail, or train another?"""

from __future__ import annotations

from supervisor.preflight.checking import Check

CHECKS: tuple[Check, ...] = ()
