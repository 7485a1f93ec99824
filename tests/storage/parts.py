"""The parts of a file that a test sends."""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.base import Part
from supervisor.storage.hashing import part_ranges
from supervisor.storage.source import hash_range


def hash_parts(path: Path, size: int, part_size: int) -> tuple[Part, ...]:
    """All of them with their hashes."""
    return tuple(Part(at, length, hash_range(path, at, length)) for at, length in part_ranges(size, part_size))
