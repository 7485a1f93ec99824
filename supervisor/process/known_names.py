"""What the daemon knows its nanny and its shims by. ``nanny.py``, which imports nothing of ours, has the same words."""

from __future__ import annotations

NANNY = "RL_SUPERVISOR_NANNY"
"""Set for the daemon: who is its nanny, "PID-TICKS"."""
SHIMS = ("rl-shim", "rl-exit", "rl-signal")
"""Names of our own shims: what lives under one is ours."""
