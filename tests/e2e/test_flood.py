"""A job that writes ten thousand lines a second, or a gigabyte of them, keeps nothing that is decided waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.flood import ASKED_MS, MIB, Measured, Row, Waits, measure, missed

HERE_MB = 150


def test_a_percentile_is_the_edge_of_the_histogram_above_it() -> None:
    waits = Waits()
    before = {"count": 10, "at_most": {"0.001": 10, "0.1": 10}}
    waits.add(before, {"count": 1010, "at_most": {"0.001": 1000, "0.1": 1009}})
    assert waits.percentile_ms(0.5) == 1
    assert waits.percentile_ms(0.999) == 100
    assert waits.percentile_ms(1.0) == float("inf")
    assert not Waits().percentile_ms(0.999) <= ASKED_MS  # nothing measured is nothing reached


def waited(count: int, *, up_to_s: float) -> Waits:
    return Waits(count, {bound: count if bound >= up_to_s else 0 for bound in (0.001, 0.05, 0.1, 0.2, 1.0, 10.0)})


def test_a_bench_that_measured_nothing_has_reached_nothing() -> None:
    calm = Row("flood", waited(3000, up_to_s=0.05))
    assert missed(Measured([calm])) == []
    assert missed(Measured([])) == ["Nothing was measured."]
    assert missed(Measured([Row("flood", waited(7, up_to_s=0.05))])) != []
    assert missed(Measured([calm, Row("storm", waited(3000, up_to_s=0.2))])) == [
        "storm: the 99.9th percentile is 200 ms."
    ]
    assert missed(Measured([calm], incidents=1)) != []
    dry = Row("flood", calm.waits, written=3 * 10**6, due=72 * 10**6)
    assert missed(Measured([dry])) == ["flood: 3.0 of 72.0 MB were written."]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_flood_a_storm_and_a_long_log_cost_no_memory_and_no_restart(tmp_path: Path) -> None:
    """How long decisions wait meanwhile is measured by `python -m bench.flood`, on a machine that does nothing else."""
    said: list[str] = []
    found = measure(tmp_path, 8, 1, big=HERE_MB * 10**6, say=said.append)
    told = "\n".join([found.table(), *said])
    silence, flood, storm, growing, adopted = found.rows
    for row in (flood, storm, growing, adopted):
        assert row.waits.count > 100, told
        assert row.written > row.due / 2, told
        assert row.rss - silence.rss < 48 * MIB, told
    assert found.incidents == 0, told
    assert found.on_disk < 100 * MIB < found.captured, told
