"""Tokens - sequence, prompt, completion and the engine's context must fit into each other."""

from __future__ import annotations

from supervisor.preflight.checking import Check

CHECKS: tuple[Check, ...] = ()
