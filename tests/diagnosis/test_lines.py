"""What stands before a line is taken away, whoever put it there, and says when, which rank and whose."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.lines import DAY_S, Clock, Stamp, parse

OOM = "torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(
    ("before", "level", "shown", "rank", "role"),
    [
        ("", None, None, None, None),
        ("03:00:12   ERROR ", "ERROR", "03:00:12", None, None),
        ("\x1b[2m03:00:12\x1b[0m \x1b[31m\x1b[1m  ERROR\x1b[0m ", "ERROR", "03:00:12", None, None),
        ("[default3]:03:00:12   ERROR ", "ERROR", "03:00:12", 3, "trainer"),
        ("[trainer0]:[rank0]: ", None, None, 0, "trainer"),
        ("(EngineCore_DP0 pid=42) ERROR 01-06 03:00:12 [core.py:7] ", "ERROR", "01-06 03:00:12", None, "inference"),
        ("(APIServer pid=42) ", None, None, None, "inference"),
        ("ERROR 01-06 03:00:12 [core.py:7] ", "ERROR", "01-06 03:00:12", None, "inference"),
        ("2026-01-06 03:00:12 - verifiers.rubrics.Rubric - ERROR - ", "ERROR", "01-06 03:00:12", None, None),
        ("2026-01-06 03:00:12.123 | ERROR    | trl.train:main:12 - ", "ERROR", "01-06 03:00:12", None, None),
        ("2026-01-06T03:00:12.123456789Z ", None, "01-06 03:00:12", None, None),
        ("2026-01-06T03:00:12.123456789Z stderr F ", None, "01-06 03:00:12", None, None),
        ("2026-01-06T03:00:12+0000 pod7 rl[4100]: ", None, "01-06 03:00:12", None, None),
        ("Jan 06 03:00:12 pod7 rl[4100]: ", None, "01-06 03:00:12", None, None),
        ("[pod/trainer-0/main] ", None, None, None, None),
        ("trainer-1  | ", None, None, None, None),
        ("[Tue Jan  6 03:00:12 2026] ", None, "01-06 03:00:12", None, None),
        ("[88123.118123] ", None, None, None, None),
        ("2026-01-06 03:00:12 [88123.118] ", None, "01-06 03:00:12", None, None),
        ("Step:  50%|#####     | 2/4 [00:10<00:10,  5.20s/it]", None, None, None, None),
        ("ERROR:    ", "ERROR", None, None, None),
    ],
)
def test_a_line(before: str, level: str | None, shown: str | None, rank: int | None, role: str | None) -> None:
    line = parse((before + OOM).encode())
    assert line.text == OOM
    assert (line.level, line.rank, line.role) == (level, rank, role)
    assert (line.stamp.shown if line.stamp else None) == shown


def test_torchs_own_head_stays_and_tells_level_time_and_rank() -> None:
    text = (
        "[rank1]:[E706 02:14:11.06 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: x"
    )
    line = parse(text.encode())
    assert (line.level, line.rank) == ("ERROR", 1)
    assert line.stamp == Stamp(8051, line.stamp.day if line.stamp else None, "07-06 02:14:11")
    assert line.text.startswith("[E706 ")


def test_json_of_prime_rl_and_of_docker() -> None:
    record = {"timestamp": "2026-08-15T10:09:31+00:00", "level": "error", "message": "x", "exception": "Traceback"}
    line = parse(json.dumps(record).encode())
    assert (line.level, line.text, line.exception) == ("ERROR", "x", "Traceback")
    docker = {"log": "03:00:12   ERROR x\n", "stream": "stdout", "time": "2026-01-06T03:00:12.1Z"}
    line = parse(json.dumps(docker).encode())
    assert (line.level, line.text) == ("ERROR", "x")
    assert parse(b'{"broken": ').text == '{"broken":'


def test_days_go_on_over_midnight_and_over_the_year() -> None:
    clock = Clock()
    assert clock.at(Stamp(86_000)) < clock.at(Stamp(10)) < clock.at(Stamp(86_399)) < clock.at(Stamp(5))
    assert clock.at(Stamp(3)) == pytest.approx(2 * DAY_S + 3)  # a line that is a little late is no new day
    year = Clock()
    assert year.at(Stamp(0, 365 + 730_000)) < year.at(Stamp(0, 730_000))


@given(st.binary(max_size=300))
def test_no_line_is_too_odd(raw: bytes) -> None:
    parse(raw)


@given(st.text(alphabet='[]():{}0123456789-T. E"\\\u2502rankINFO', max_size=120))
def test_no_line_of_such_letters_is_too_odd(text: str) -> None:
    parse(text.encode())
