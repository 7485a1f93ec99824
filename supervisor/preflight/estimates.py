"""What the run will need of disk and GPU memory, beside what there is."""

from __future__ import annotations

from supervisor.preflight.checking import Check

CHECKS: tuple[Check, ...] = ()
