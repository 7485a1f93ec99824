"""Lines for charts: gaps stay gaps, dips stay dips, and what was trained twice is drawn apart."""

from __future__ import annotations

import math
import random
import time
from typing import Any

from supervisor.journal.series import Row
from supervisor.web.history import MOST_POINTS, Piece, draw_history, thin_points

GIB = 1 << 30


def step(t: float, number: object, role: str = "trainer", **values: object) -> Row:
    return {"t": t, "step": number, "role": role, **values}


def lines_of(pieces: list[Piece], chart: str) -> dict[str, dict[str, Any]]:
    found = {one["id"]: one for one in draw_history(pieces)["charts"]}
    return {line["name"]: line for line in found[chart]["lines"]} if chart in found else {}


def test_each_role_has_its_line_and_what_is_not_known_has_none() -> None:
    rows = [step(60.0 * n, n, loss=1.0 / n, s=60.0) for n in range(1, 4)]
    rows += [step(60.0 * n, n, "orchestrator", reward=0.1 * n) for n in range(1, 4)]
    told = draw_history([Piece("a", 1, rows)])
    assert [one["id"] for one in told["charts"]] == ["reward", "loss", "step"]
    assert lines_of([Piece("a", 1, rows)], "reward") == {
        "orchestrator": {"name": "orchestrator", "x": [60, 120, 180], "y": [0.1, 0.2, 0.3], "step": [1, 2, 3]}
    }


def test_a_step_that_two_files_tell_is_one_point_and_not_trained_again() -> None:
    rows = [step(1.0, 1, loss=0.5), step(1.1, 1, s=3.0), step(4.0, 2, loss=0.4), step(4.1, 2, s=3.0)]
    assert list(lines_of([Piece("a", 1, rows)], "loss")) == ["trainer"]
    assert lines_of([Piece("a", 1, rows)], "step")["trainer"]["y"] == [3.0, 3.0]


def test_short_steps_of_which_several_come_by_one_file_before_the_other_are_still_one_point_each() -> None:
    logged = [{"t": 10.0, "step": step, "role": "trainer", "loss": 0.1, "s": 0.8} for step in (24, 25, 26)]
    metrics = [{"t": 10.1, "step": step, "role": "trainer", "loss": 0.1234, "tps": 9000.0} for step in (24, 25, 26)]
    drawn = lines_of([Piece("a", 1, [*logged, *metrics])], "loss")
    assert list(drawn) == ["trainer"]
    assert drawn["trainer"]["step"] == [24, 25, 26]
    assert lines_of([Piece("a", 1, [*logged, *metrics])], "tokens")["trainer"]["y"] == [9000.0] * 3


def test_after_a_rollback_the_steps_of_before_are_a_line_of_their_own() -> None:
    first = [step(float(n), n, reward=float(n)) for n in range(1, 11)]
    second = [step(20.0 + n, n, reward=100.0 + n) for n in range(6, 13)]  # resumed at step 5
    for pieces in ([Piece("a", 1, first), Piece("a", 2, second)], [Piece("b", 1, second), Piece("a", 1, first)]):
        lines = lines_of(pieces, "reward")
        assert lines["trainer, trained again"]["undone"]
        assert [y for y in lines["trainer, trained again"]["y"] if y is not None] == [6, 7, 8, 9, 10]
        assert lines["trainer"]["y"] == [1, 2, 3, 4, 5, None, 106, 107, 108, 109, 110, 111, 112]


def test_between_two_attempts_and_where_samples_are_missing_there_is_a_gap() -> None:
    first = [{"t": 30.0 * n, "disk": 5e9} for n in range(10)]
    first += [{"t": 30.0 * n, "disk": 4e9} for n in range(40, 45)]
    second = [{"t": 2000.0 + 30 * n, "disk": 3e9} for n in range(2)]
    line = lines_of([Piece("a", 1, first), Piece("a", 2, second)], "disk")["free"]
    assert line["y"] == [5] * 10 + [None] + [4] * 5 + [None] + [3] * 2


def test_two_attempts_with_a_sample_each_are_two_points_and_no_line() -> None:
    pieces = [Piece("a", n, [{"t": 30.0 * n, "running": 3}]) for n in (1, 2)]
    assert lines_of(pieces, "engine")["running"]["y"] == [3, None, 3]


def test_a_disk_that_fills_has_a_forecast_until_nothing_is_left() -> None:
    rows: list[Row] = [{"t": 300.0 * n, "disk": (100 - n) * 1e9} for n in range(60)]
    line = lines_of([Piece("a", 1, rows)], "disk")["if it goes on"]
    assert (line["x"], line["y"]) == ([17700, 30000], [41, 0])
    calm: list[Row] = [{"t": 300.0 * n, "disk": 5e10 + n} for n in range(60)]
    for of in (calm, rows[:10]):
        assert "if it goes on" not in lines_of([Piece("a", 1, of)], "disk")


def test_the_dip_of_a_gpu_is_drawn_by_its_role_and_no_load_is_no_zero() -> None:
    rows: list[Row] = [{"t": 0.0, "roles": {"0": ["inference", 80 * GIB]}}]
    rows += [{"t": 30.0 * n, "gpu": {"0": [60 * GIB, 61 * GIB, None]}} for n in range(5)]
    rows[3]["gpu"] = {"0": [0, 61 * GIB, None]}
    assert min(lines_of([Piece("a", 1, rows)], "gpu-memory")["GPU 0, inference"]["y"]) == 0
    assert lines_of([Piece("a", 1, rows)], "gpu-load") == {}


def test_steps_that_were_made_one_keep_both_ends() -> None:
    line = lines_of([Piece("a", 1, [step(1.0, [1, 4], loss=[0.1, 0.9]), step(9.0, 5, loss=0.2)])], "loss")["trainer"]
    assert (line["y"], line["step"]) == ([0.1, 0.9, 0.2], [4, 4, 5])


def test_a_loss_that_is_no_number_is_a_gap_in_json() -> None:
    line = lines_of([Piece("a", 1, [step(1.0, 1, loss=math.nan), step(2.0, 2, loss=1.0)])], "loss")["trainer"]
    assert line["y"] == [None, 1.0]


def test_a_hundred_thousand_steps_are_drawn_within_a_second_and_no_extreme_is_lost() -> None:
    luck = random.Random(1)
    points: list[tuple[float, float | None, int | None]] = [(60.0 * n, luck.random(), n) for n in range(100_000)]
    points[70_000] = (60.0 * 70_000, -50.0, 70_000)
    points[70_001] = (60.0 * 70_001, None, None)
    began = time.monotonic()
    kept = thin_points(points)
    assert time.monotonic() - began < 5.0  # a crowded machine; 0.1 s on a quiet one
    assert len(kept) <= MOST_POINTS * 1.5
    assert -50.0 in [y for _, y, _ in kept]
    assert None in [y for _, y, _ in kept]
    assert [t for t, _, _ in kept] == sorted(t for t, _, _ in kept)


def test_what_was_said_of_weight_is_marked() -> None:
    rows = [
        {"t": 1.0, "event": event, "level": level, "sentence": f"It {event}."}
        for event, level in (("note", "info"), ("verdict", "error"), ("rollback", "info"), ("disk", "warning"))
    ]
    assert [one["event"] for one in draw_history([Piece("a", 1, rows)])["marks"]] == ["verdict", "rollback", "disk"]


def test_nothing_known_is_an_empty_page() -> None:
    assert draw_history([]) == {"charts": [], "attempts": [], "marks": []}
