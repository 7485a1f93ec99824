"""Step folders: `step_N` under a folder, found as prime-rl's own pathing.py finds them (by name alone, complete or
not)."""

from __future__ import annotations

from pathlib import Path


def step_numbers(folder: Path) -> list[int]:
    return sorted(
        int(path.name.rpartition("_")[2]) for path in folder.glob("step_*") if path.name.rpartition("_")[2].isdigit()
    )


def highest_step(folder: Path) -> int | None:
    numbers = step_numbers(folder)
    return numbers[-1] if numbers else None


def folder_bytes(folder: Path) -> int:
    """The size of all files below."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
