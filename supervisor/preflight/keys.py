"""Keys that the trainer does not know, or knows at another place, and values of the wrong kind."""

from __future__ import annotations

from supervisor.preflight.checking import Check

CHECKS: tuple[Check, ...] = ()
