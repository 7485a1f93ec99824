"""The cut of a new file into copied and sent ranges: whole, lawful, and the cheapest there is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from supervisor.checkpoints.blocks import HASH_BYTES, fitting_block_size, hash_part, whole_hash
from supervisor.checkpoints.delta import WORTH, Limits, Span, equal_blocks, plan
from supervisor.storage.hashing import part_ranges, sha1

BLOCK = 10


def runs(draw: st.DrawFn) -> list[bool]:
    """Blocks in runs, as tensors lie in files."""
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=12))
    first = draw(st.booleans())
    return [(index % 2 == 0) == first for index, length in enumerate(lengths) for _ in range(length)]


@st.composite
def files(draw: st.DrawFn) -> tuple[int, list[bool]]:
    equal = runs(draw)
    return (len(equal) - 1) * BLOCK + draw(st.integers(1, BLOCK)), equal


def check(spans: list[Span], size: int, equal: list[bool], least: int) -> int:
    """All that must hold of a cut; returns the bytes it sends."""
    at = 0
    for number, span in enumerate(spans):
        assert span.offset == at and span.size > 0
        assert span.size >= least or number == len(spans) - 1
        at += span.size
        if span.copied:
            assert all(equal[span.offset // BLOCK : (at - 1) // BLOCK + 1])
    assert at == size
    return sum(span.size for span in spans if not span.copied)


def cheapest(size: int, equal: list[bool], least: int) -> int:
    """The same question answered by trying every last region before each boundary."""
    edge = [min(index * BLOCK, size) for index in range(len(equal) + 1)]
    best: list[dict[bool, float]] = [{True: 0.0, False: 0.0}]
    for end in range(1, len(edge)):
        found = {True: float("inf"), False: float("inf")}
        for start in range(end):
            length = edge[end] - edge[start]
            if length < least and end != len(equal):
                continue
            found[False] = min(found[False], best[start][True] + length)
            if all(equal[start:end]):
                found[True] = min(found[True], best[start][False])
        best.append(found)
    return int(min(best[-1].values()))


@given(files(), st.integers(1, 120), st.integers(1, 400))
def test_every_cut_is_whole_and_lawful_and_no_other_one_sends_less(
    file: tuple[int, list[bool]], least: int, part_size: int
) -> None:
    size, equal = file
    found = plan(size, BLOCK, equal, Limits(least, max(part_size, least), 1_000_000))
    wanted = cheapest(size, equal, least)
    if found is None:
        assert wanted > WORTH * size or least > size
    else:
        assert check(found, size, equal, least) == wanted


@given(files(), st.integers(1, 40), st.integers(1, 12))
def test_too_many_pieces_are_traded_for_bytes(file: tuple[int, list[bool]], least: int, most: int) -> None:
    size, equal = file
    found = plan(size, BLOCK, equal, Limits(least, size, most))
    if found is not None:
        check(found, size, equal, least)
        assert len(found) <= most


@given(files(), st.integers(1, 50))
def test_pieces_are_cut_where_plain_parts_are_and_never_much_longer(file: tuple[int, list[bool]], least: int) -> None:
    size, equal = file
    part_size = 4 * least
    for span in plan(size, BLOCK, equal, Limits(least, part_size, 1_000_000)) or []:
        assert span.size < part_size + 2 * least


def test_a_step_that_is_like_the_one_before_sends_nothing_and_one_that_is_not_is_not_cut() -> None:
    limits = Limits(20, 100, 1000)
    assert plan(250, BLOCK, [True] * 25, limits) == [Span(0, 100, True), Span(100, 100, True), Span(200, 50, True)]
    assert plan(250, BLOCK, [False] * 25, limits) is None
    assert plan(19, BLOCK, [True, True], limits) is None


def hash_blocks(data: bytes, size: int) -> bytes:
    return b"".join(xxhash.xxh3_128_digest(data[at : at + size]) for at in range(0, len(data), size))


def test_one_changed_block_costs_one_least_part_and_no_more() -> None:
    equal = [True] * 100
    equal[50] = False
    found = plan(1000, BLOCK, equal, Limits(50, 400, 1000))
    assert found is not None
    assert check(found, 1000, equal, 50) == 50


def test_blocks_compare_in_their_place_and_a_short_last_one_only_with_its_like() -> None:
    old, new = os.urandom(95), os.urandom(10)
    hashes = hash_blocks(old, BLOCK)
    assert equal_blocks(hashes, 95, hashes, 95, BLOCK) == [True] * 10
    grown = old[:30] + new + old[40:] + new
    assert equal_blocks(hash_blocks(grown, BLOCK), 105, hashes, 95, BLOCK) == [
        *[True] * 3, False, *[True] * 5, False, False,
    ]  # fmt: skip
    shrunk = hash_blocks(old[:90], BLOCK)
    assert equal_blocks(shrunk, 90, hashes, 95, BLOCK) == [True] * 9
    assert equal_blocks(b"", 0, hashes, 95, BLOCK) == [False]


@given(st.binary(min_size=1, max_size=400), st.integers(1, 130), st.integers(1, 70))
def test_hashing_by_parts_in_any_order_is_hashing_the_whole(data: bytes, part_size: int, block_size: int) -> None:
    path = Path("/dev/shm") / f"rl-blocks-{os.getpid()}"
    path.write_bytes(data)
    try:
        ranges = part_ranges(len(data), part_size)
        found = {place: hash_part(path, place, len(data), block_size) for place in reversed(ranges)}
        assert [found[place][0] for place in ranges] == [sha1(data[o : o + s]) for o, s in ranges]
        together = b"".join(found[place][1] for place in ranges)
        assert together == hash_blocks(data, block_size)
    finally:
        path.unlink()


def test_the_hash_of_a_file_of_one_block_is_what_every_tool_prints(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"", b"some bytes"):
        path.write_bytes(data)
        _, blocks = hash_part(path, (0, len(data)), len(data), 1 << 20)
        assert whole_hash(blocks) == xxhash.xxh3_128_hexdigest(data)


@pytest.mark.parametrize(
    ("size", "least", "block"),
    [(47 << 30, 5_000_000, 1 << 20), (10 << 40, 5_000_000, 1 << 28), (100, None, 1 << 20), (90_000, 5_000, 1024)],
)
def test_hashes_of_blocks_stay_small_beside_their_file(size: int, least: int | None, block: int) -> None:
    assert fitting_block_size(size, least) == block
    assert -(-size // block) * HASH_BYTES <= 1 << 20
