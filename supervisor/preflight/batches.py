"""Batches, groups and parallel layouts that do not divide."""

from __future__ import annotations

from supervisor.preflight.checking import Check

CHECKS: tuple[Check, ...] = ()
