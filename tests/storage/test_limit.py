"""A limit on bytes a second, by a clock that the test turns."""

from __future__ import annotations

import os
import time
from pathlib import Path

from supervisor.base.retry import Retry
from supervisor.storage import open_store
from supervisor.storage.limit import BURST_S, Throttle, TokenBucket
from tests.b2server import B2Server
from tests.storage.parts import hash_parts

MB = 1_000_000


def test_an_idle_bucket_lets_a_short_burst_through_and_no_more() -> None:
    bucket = TokenBucket(10 * MB, now=0.0)
    assert bucket.take(int(10 * MB * BURST_S), now=100.0) == 0.0
    assert bucket.take(5 * MB, now=100.0) == 0.5


def test_what_is_taken_on_credit_delays_everybody_after_it() -> None:
    bucket = TokenBucket(10 * MB, now=0.0)
    waits = [bucket.take(MB, now=0.0) for _ in range(16)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert abs(waits[-1] - (16 * 0.1 - BURST_S)) < 1e-9


def test_over_a_minute_of_many_streams_the_rate_is_the_limit() -> None:
    now, slept = [0.0], [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds
        now[0] += seconds

    throttle = Throttle(10 * MB, clock=lambda: now[0], sleep=sleep)
    moved = 0
    while now[0] < 60:
        size = throttle.block(256 << 10)
        throttle.pass_(size)
        moved += size
    assert abs(moved / now[0] - 10 * MB) < 0.01 * 10 * MB


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    bucket = TokenBucket(10 * MB, now=100.0)
    bucket.take(int(10 * MB * BURST_S), now=100.0)
    assert bucket.take(MB, now=50.0) > 0


def test_without_a_limit_nothing_waits() -> None:
    throttle = Throttle(None, sleep=lambda seconds: 1 / 0)
    assert throttle.block(1 << 20) == 1 << 20
    throttle.pass_(1 << 40)


def test_a_store_with_a_limit_sends_and_fetches_no_faster(b2: B2Server) -> None:
    store = open_store("b2://the-bucket", b2.url, b2.environ(), limit_mbit=8)  # 1 MB/s, a burst of 250 KB
    stored = store.put_bytes("run/x", bytes(750_000))
    begun = time.monotonic()
    assert store.get_range(stored, 0, 750_000) == bytes(750_000)
    assert time.monotonic() - begun >= 0.4


def test_a_part_that_takes_minutes_is_no_standstill(b2: B2Server, tmp_path: Path) -> None:
    """Whoever watches a transfer sees bytes move long before the first part of a slow link has arrived."""
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(3 * b2.state.part_size))
    size = path.stat().st_size
    parts = hash_parts(path, size, b2.state.part_size)
    store = open_store("b2://the-bucket", b2.url, b2.environ(), streams=3, limit_mbit=8 * size / MB)
    told: list[int] = []

    def progress(moved: int) -> None:
        arrived = sum(entry["status"] == 200 for entry in b2.journal("b2_upload_part"))
        told.append(moved if arrived == 0 else 0)

    store.put_file("run/shard", path, size, parts, progress)
    assert 0.2 * size < sum(told) <= size, "bytes were told of before any part was there"


def test_what_is_sent_again_counts_once(b2: B2Server, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(3 * b2.state.part_size))
    size = path.stat().st_size
    b2.fail("b2_upload_part", cut_upload_after=b2.state.part_size // 2, times=2)
    store = open_store("b2://the-bucket", b2.url, b2.environ(), streams=3, retry=Retry(sleep=lambda _: None))
    told: list[int] = []
    store.put_file("run/shard", path, size, hash_parts(path, size, b2.state.part_size), told.append)
    assert sum(told) == size
    assert min(told) < 0, "what was lost on the way is taken back"
