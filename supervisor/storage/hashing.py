"""Parts of a file and their SHA-1, which B2 forces on us for each part and which every check here rests on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

CHUNK_BYTES = 1 << 20
MOST_PARTS = 10_000  # of one B2 file
SMALL_PART_BYTES = 16_000_000
"""Smaller ones cost more requests than they gain; files up to this size are one request."""
EMPTY_SHA1 = hashlib.sha1(b"", usedforsecurity=False).hexdigest()


def sha1(data: bytes) -> str:
    """Hexadecimal SHA-1 of ``data``."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def fitting_part_size(size: int, preferred: int, streams: int = 1) -> int:
    """Bytes of a part for a file of ``size`` bytes: the preferred ones, or fewer where that keeps all streams busy.

    On a link that is slow for each stream, 17 parts of 100 MB over 16 streams take as long as 32. So a file is cut in a
    multiple of the streams, in parts that are not small, or in more where there would be too many parts.
    """
    rounds = max(1, -(-size // (streams * preferred)))
    even = -(-size // (streams * rounds))
    return max(min(preferred, max(even, SMALL_PART_BYTES)), -(-size // MOST_PARTS))


def part_ranges(size: int, part_size: int) -> list[tuple[int, int]]:
    """(offset, size) of each part. An empty file has one empty part."""
    if size == 0:
        return [(0, 0)]
    return [(offset, min(part_size, size - offset)) for offset in range(0, size, part_size)]


def cut_digest(ranges: Sequence[tuple[int, int]]) -> str:
    """One SHA-256 that stands for a file cut in parts of exactly these sizes, whatever its bytes are."""
    return hashlib.sha256(" ".join(str(size) for _, size in ranges).encode()).hexdigest()
