"""Step folders: `step_N` under a folder, found as prime-rl's own pathing.py finds them (by name alone, complete or
not)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def step_numbers(folder: Path) -> list[int]:
    return sorted(
        int(path.name.rpartition("_")[2]) for path in folder.glob("step_*") if path.name.rpartition("_")[2].isdigit()
    )


def highest_step(folder: Path) -> int | None:
    numbers = step_numbers(folder)
    return numbers[-1] if numbers else None


def folder_bytes(folder: Path) -> int:
    """The size of all files below. It does not fail when some of them are deleted meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, name), follow_symlinks=False).st_size  # noqa: PTH116, PTH118
    return total
