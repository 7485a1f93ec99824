"""Which ranges of a new file are copied from the file of the step before and which are sent. A pure function.

Every part of a large file but the last has a least size (5 MB on B2), so a changed byte costs that much, and an equal
range shorter than that has to be sent. Among all cuts that keep to this, the one that sends the fewest bytes is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.checkpoints.blocks import HASH_BYTES, count_blocks

WORTH = 0.95
"""If more than this share of a file must be sent, the whole file is sent: plain parts are simpler to resume."""
NEVER = 1 << 62


@dataclass(frozen=True)
class Limits:
    """What a store takes: ``least_bytes`` of a part but the last, the part size it likes, and the most parts."""

    least_bytes: int
    part_size: int
    most_pieces: int


@dataclass(frozen=True)
class Span:
    """A range of the new file; ``copied`` where the old one has the same bytes at the same offset."""

    offset: int
    size: int
    copied: bool


def equal_blocks(new: bytes, new_size: int, old: bytes, old_size: int, block_size: int) -> list[bool]:
    """For each block of the new file: has the old one the same block in the same place?"""
    count = count_blocks(new_size, block_size)
    shared = min(count, count_blocks(old_size, block_size))
    same = [new[at : at + HASH_BYTES] == old[at : at + HASH_BYTES] for at in range(0, shared * HASH_BYTES, HASH_BYTES)]
    if shared and new_size != old_size:  # the shorter one's last block may be a shorter one
        start = (shared - 1) * block_size
        same[-1] = same[-1] and min(block_size, new_size - start) == min(block_size, old_size - start)
    return same + [False] * (count - shared)


def plan(size: int, block_size: int, equal: Sequence[bool], limits: Limits) -> list[Span] | None:
    """The cut of a file that sends the fewest bytes, or None when sending it whole is as good."""
    least = limits.least_bytes
    while least <= size:
        pieces = _cut_regions(_find_regions(size, block_size, equal, least), size, least, limits.part_size)
        if sum(piece.size for piece in pieces if not piece.copied) > WORTH * size:
            return None
        if len(pieces) <= limits.most_pieces:
            return pieces
        least *= 2
    return None


def _find_regions(size: int, block_size: int, equal: Sequence[bool], least: int) -> list[Span]:
    """Alternating copied and sent regions, each of ``least`` bytes or at the end, with the fewest bytes sent.

    ``sent[j]`` and ``kept[j]`` are the fewest bytes sent for all before boundary ``j`` when a region of that kind ends
    there. A region may begin at every boundary ``i`` that is far enough back, and, if it is copied, from the beginning
    of the run of equal blocks on; both conditions only move forward, so one walk with two running minima is enough.
    """
    count = len(equal)
    edge = [min(index * block_size, size) for index in range(count + 1)]
    sent, kept = [NEVER] * (count + 1), [NEVER] * (count + 1)
    sent[0] = kept[0] = 0
    sent_from, kept_from = [0] * (count + 1), [0] * (count + 1)
    best_kept, best_kept_at, next_kept = NEVER, 0, 0  # of kept[i] - edge[i]: where a sent region may begin
    best_sent, best_sent_at, next_sent = NEVER, 0, 0  # of sent[i] in this run: where a copied region may begin
    for end in range(1, count + 1):
        far = edge[end] - least if end < count else edge[end] - 1  # the last region may be short
        while next_kept < end and edge[next_kept] <= far:
            if kept[next_kept] - edge[next_kept] < best_kept:
                best_kept, best_kept_at = kept[next_kept] - edge[next_kept], next_kept
            next_kept += 1
        if best_kept < NEVER // 2:
            sent[end], sent_from[end] = best_kept + edge[end], best_kept_at
        if not equal[end - 1]:
            best_sent, next_sent = NEVER, end
            continue
        while next_sent < end and edge[next_sent] <= far:
            if sent[next_sent] < best_sent:
                best_sent, best_sent_at = sent[next_sent], next_sent
            next_sent += 1
        if best_sent < NEVER:
            kept[end], kept_from[end] = best_sent, best_sent_at
    regions: list[Span] = []
    end, copied = count, kept[count] <= sent[count]
    while end > 0:
        start = kept_from[end] if copied else sent_from[end]
        regions.append(Span(edge[start], edge[end] - edge[start], copied))
        end, copied = start, not copied
    return regions[::-1]


def _cut_regions(regions: Sequence[Span], size: int, least: int, part_size: int) -> list[Span]:
    """Regions in pieces of about ``part_size``, cut where plain parts are cut: so most hashes serve for both."""
    pieces: list[Span] = []
    for region in regions:
        start, end = region.offset, region.offset + region.size
        while start < end:
            stop = (start // part_size + 1) * part_size
            if stop - start < least:
                stop += part_size
            if stop >= end or (end - stop < least and end != size):
                stop = end
            pieces.append(Span(start, stop - start, region.copied))
            start = stop
    return pieces
