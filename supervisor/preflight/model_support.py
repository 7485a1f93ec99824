"""Models that cannot be trained or served, from a table with sources."""

from __future__ import annotations

from supervisor.preflight.checking import Check

CHECKS: tuple[Check, ...] = ()
