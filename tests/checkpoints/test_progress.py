"""The rate that people are shown follows the link, not the whole life of a transfer."""

from __future__ import annotations

import pytest

from supervisor.effects.transfers import RecentRate


def test_a_link_that_becomes_slow_shows_within_half_a_minute() -> None:
    rate = RecentRate(window_s=30)
    moved = 0
    for second in range(600):
        moved += 100 if second < 500 else 10
        rate.saw(moved, float(second))
        if second == 499:
            assert rate.bytes_per_s(499.0) == pytest.approx(100)
        if second == 531:
            assert rate.bytes_per_s(531.0) == pytest.approx(10, rel=0.3)
    assert rate.bytes_per_s(599.0) == pytest.approx(10)


def test_silence_brings_the_rate_to_zero() -> None:
    rate = RecentRate(window_s=30)
    for second in range(60):
        rate.saw(100 * second, float(second))
    assert rate.bytes_per_s(74.0) == pytest.approx(50, rel=0.1)
    assert rate.bytes_per_s(200.0) == 0


def test_before_anything_moved_there_is_no_rate() -> None:
    rate = RecentRate()
    assert rate.bytes_per_s(5.0) == 0
    rate.saw(0, 5.0)
    assert rate.bytes_per_s(5.0) == 0


def test_bytes_that_have_to_be_fetched_again_never_make_a_negative_rate() -> None:
    rate = RecentRate()
    rate.saw(1000, 1.0)
    rate.saw(100, 2.0)
    assert rate.bytes_per_s(2.0) == 0
