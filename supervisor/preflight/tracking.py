"""Weights and Biases, tokens, environments and their settings."""

from __future__ import annotations

from supervisor.preflight.checking import Check

CHECKS: tuple[Check, ...] = ()
