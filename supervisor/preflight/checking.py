"""What a check is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from supervisor.preflight.finding import Finding
from supervisor.preflight.subject import Subject

Check = Callable[[Subject], Iterator[Finding]]
"""A pure look at one matter. It complains only of what it knows, and never raises on odd values."""
