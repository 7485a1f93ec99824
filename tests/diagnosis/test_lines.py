"""What stands before a line is taken away, whoever put it there, and says when, which rank and whose."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.base.escapes import plain_bytes
from supervisor.diagnosis import gates
from supervisor.diagnosis.frames import Tracebacks
from supervisor.diagnosis.lines import DAY_S, Clock, Stamp, parse
from supervisor.diagnosis.ranks import Ranks

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
        ("ERROR 01-06 03:00:12 core.py:7] ", "ERROR", "01-06 03:00:12", None, "inference"),
        ("ERROR 01-06 03:00:12 [core.py:7] ", "ERROR", "01-06 03:00:12", None, "inference"),
        ("ERROR 01-06 03:00:12 engine.py:366] ", "ERROR", "01-06 03:00:12", None, "inference"),
        ("(raylet) [2026-01-06 03:00:12,123 E 42 43] disk.cc:116: ", "ERROR", "01-06 03:00:12", None, None),
        ("[2026-01-06 03:00:12,123 W 42 43] actor_manager.cc:110: ", "WARNING", "01-06 03:00:12", None, None),
        ("(main pid=9) [2026-01-06 03:00:12,123 C 42 43] a/b.cc:19: ", "CRITICAL", "01-06 03:00:12", None, None),
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
        ("ERROR:composer.cli.launcher:", "ERROR", None, None, None),
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


UNITS = (
    " ",
    "[",
    "(",
    "(a",
    "[a1]: ",
    "0",
    "12:00:00 ",
    "{",
    '{"',
    "\x1b[2m",
    "a.",
    "| ",
    "+-",
    "[PG ",
    "Error: ",
    "INFO",
)


@pytest.mark.parametrize(
    "before", ["", "[rank0]:", "03:00:12 ERROR ", "(EngineCore pid=1) ", '{"level": "INFO", ', "1/2 ["]
)
def test_no_line_takes_long_that_was_made_for_it(before: str) -> None:
    for unit in UNITS:
        line = (before + unit * 65536)[:65536].encode()
        begun = time.process_time()
        parse(line)
        for expression in (gates.ORDINARY, gates.WORKS):
            expression.match(line)
        for expression in (gates.gate(), gates.news()):
            expression.search(line)
        tracebacks = Tracebacks()
        for text in ("Traceback (most recent call last):", '  File "a.py", line 1, in f', line.decode()):
            tracebacks.feed("", 1, text)
        Ranks().feed(f"NCCL {line.decode()}")
        assert time.process_time() - begun < 0.5, (
            before,
            unit,
        )  # of a line of 64 kB; what is tried twice takes for ever


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[1;36m(APIServer pid=1288829)\x1b[0;0m INFO 06-16 14:16:20 [loggers.py:236] Engine 000",
        '(APIServer pid=1) INFO:     127.0.0.1:52856 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "\x1b[2m07:26:12\x1b[0m \x1b[32m\x1b[1m   INFO\x1b[0m x",
        "[trainer0]:07:26:12 SUCCESS x",
        "2026-01-06T03:00:12.123456789Z stdout F 03:00:12    INFO x",
        "07:26:12   DEBUG x",
    ],
)
def test_an_ordinary_line_is_told_by_one_expression(line: str) -> None:
    assert gates.ORDINARY.match(plain_bytes(line.encode()))


LONG = b" and what the model answers goes on" * 2000


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"2026-01-06T03:00:12.123456789+00:00 " + b"h" * 100 + b" " + b"p" * 60 + b"[123456789]: ",
        b"[pod/" + b"p" * 200 + b"] (EngineCore_DP0 pid=42) ERROR 01-06 03:00:12 [" + b"f" * 80 + b"] ",
        b"2026-01-06T03:00:12Z trainer-1 | " + b"d" * 200 + b": 3/9 [00:01<00:02] [trainer12]:[rank12]: ",
    ],
)
def test_what_stands_before_a_message_hides_no_error_in_a_long_line(before: bytes) -> None:
    raw = before + b"x" * 250 + b" The model `qwen3-lora` does not exist" + LONG
    end = gates.end_of(raw)
    assert gates.gate().search(raw, 0, end)
    assert end < len(raw) // 10


@pytest.mark.parametrize("sign", [b"\r 50%", "\u2502".encode(), b'{"log": "'])
def test_all_of_a_long_line_counts_where_it_is_no_plain_text(sign: bytes) -> None:
    raw = sign + LONG + b"CUDA out of memory"
    assert gates.end_of(raw) == len(raw)
