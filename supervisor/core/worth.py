"""Training that runs but is worthless: a warning for people, never a reason to restart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Worth:
    """What the last steps said of themselves."""
