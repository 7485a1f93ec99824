"""Checkpoints and resuming - whether and when they are written, kept, and what would delete them."""

from __future__ import annotations

from supervisor.preflight.checking import Check

CHECKS: tuple[Check, ...] = ()
