"""Nothing that the daemon holds or keeps grows with the length of a run; and if something did, it would be seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.long_life import Life, Look, judged, live, missed, table

MIB = float(1 << 20)
# Rings of sentences, pools and Python's own heap fill for some days, and of the first incidents all is kept: only the
# bench's 24 days leave that behind. In three days each may become so much more, a part of what the leak makes of it.
MOST = {"rss": 8 * MIB, "fds": 8.0, "threads": 8.0, "children": 3.0, "state_files": 150.0, "journal": 24 * MIB}


def _series(per_day: float, *, start: float, scatter: float, days: float = 24.0, looks: int = 600) -> list:
    chance = random.Random(5)
    times = [days * number / looks for number in range(looks)]
    return [(t, start + per_day * t + chance.gauss(0, scatter)) for t in times]


def test_a_level_that_only_scatters_does_not_grow() -> None:
    assert not judged("rss", _series(0.0, start=60 * MIB, scatter=2 * MIB)).grows
    assert not judged("fds", [(t, round(value)) for t, value in _series(0.0, start=40, scatter=3)]).grows


def test_a_cache_that_fills_in_the_first_days_does_not_grow() -> None:
    filling = [(t, min(50 + 3 * t, 65) * MIB) for t, _ in _series(0.0, start=0, scatter=0)]
    assert not judged("rss", filling).grows


def test_children_that_come_and_go_are_no_growth_even_when_there_are_more_of_them_in_the_end() -> None:
    bursts = [(t, 1.0 if (number % 10 == 0) or (t > 20 and number % 4 == 0) else 0.0) for number, (t, _) in
              enumerate(_series(0.0, start=0, scatter=0))]  # fmt: skip
    assert not judged("children", bursts).grows


@pytest.mark.parametrize(
    ("name", "per_day", "start", "scatter"),
    [("rss", 0.3 * MIB, 60 * MIB, 0.5 * MIB), ("fds", 0.2, 40, 0.5), ("threads", 0.2, 30, 0.5)],
)
def test_a_slow_leak_grows(name: str, per_day: float, start: float, scatter: float) -> None:
    assert judged(name, _series(per_day, start=start, scatter=scatter)).grows


def test_too_few_looks_are_no_judgement() -> None:
    with pytest.raises(ValueError, match="windows hold a look"):
        judged("rss", [(0.0, 1.0), (1.0, 1.0), (24.0, 1.0)])


def lived(days: float, *, exit_code: int | None = 0, incidents: int = 20) -> Life:
    looks = [Look(days * number / 600, *(9,) * 9) for number in range(601)]
    return Life(looks, days=days, exit_code=exit_code, incidents=incidents)


@pytest.mark.parametrize(
    ("life", "told"),
    [
        (lived(6.8, exit_code=None), ["The daemon was cut off, where", "It lived 6.8 of 24 days."]),
        (lived(23.9, exit_code=75), ["The daemon ended with exit code 75, where"]),
        (lived(23.9, incidents=3), ["It saw 3 of 20 incidents."]),
        (Life(), ["The daemon was cut off", "It lived 0.0", "It saw 0", "There was not one look at a running daemon."]),
    ],
)
def test_a_life_that_was_not_lived_to_its_end_is_none_in_which_nothing_grew(life: Life, told: list[str]) -> None:
    found = missed(life, 24, 20)
    assert [one.startswith(words) for one, words in zip(found, told, strict=True)] == [True] * len(told), found
    assert table(life)


def test_a_life_in_which_nothing_grew() -> None:
    assert missed(lived(23.9), 24, 20) == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_three_days_of_a_real_daemon_in_fast_motion(tmp_path: Path) -> None:
    life = live(tmp_path, 3, incidents=3, limit_s=500)
    assert life.exit_code == 0, table(life)
    assert life.incidents >= 3, table(life)
    assert life.publishes >= 30, table(life)
    changes = {growth.name: growth.change for growth in life.growths()}
    assert not [name for name, most in MOST.items() if changes[name] > most], table(life)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_daemon_that_leaks_is_seen_to_grow(tmp_path: Path) -> None:
    life = live(tmp_path, 1, incidents=0, limit_s=300, leak="fds,threads,memory")
    changes = {growth.name: growth.change for growth in life.growths()}
    assert not [name for name in ("rss", "fds", "threads") if changes[name] <= MOST[name]], table(life)
