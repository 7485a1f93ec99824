"""GPUs, ports, limits, driver and volumes of this pod."""

from __future__ import annotations

from supervisor.preflight.checking import Check

CHECKS: tuple[Check, ...] = ()
