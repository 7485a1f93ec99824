"""Tracebacks of several processes at once, chains, groups, loguru's and rich's; and whose the last frame is."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.frames import Raised, Tracebacks, own


def fed(text: str, key: str = "") -> list[Raised]:
    tracebacks = Tracebacks()
    return [found for number, line in enumerate(text.splitlines(), 1) if (found := tracebacks.feed(key, number, line))]


PLAIN = """Traceback (most recent call last):
  File "/app/src/prime_rl/utils/utils.py", line 51, in async_wrapper
    ret = await func(*args, **kwargs)
  File "/root/wordle/wordle.py", line 12, in reward
    return call["x"]
  File "/usr/lib/python3.12/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"""


def test_the_users_own_frame_is_the_last_that_is_no_librarys() -> None:
    (found,) = fed(PLAIN)
    assert found.text == "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert str(found.own) == "/root/wordle/wordle.py:12 in reward"
    assert found.last is not None
    assert found.last.function == "raw_decode"
    assert (found.first_line, found.line) == (1, 8)


def test_what_is_raised_while_another_is_handled_knows_what_it_began_with() -> None:
    second = """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/src/prime_rl/orchestrator/envs.py", line 3, in load
    raise RuntimeError("no") from error
RuntimeError: no"""
    first, then = fed(PLAIN + "\n" + second)
    assert then.cause == first
    assert str(then.place) == "/root/wordle/wordle.py:12 in reward"
    (alone,) = fed(second)
    assert alone.cause is None


def test_the_lines_of_two_ranks_are_kept_apart() -> None:
    tracebacks = Tracebacks()
    lines = PLAIN.splitlines()
    found = []
    for number, line in enumerate(lines):
        for key in ("[rank0]:", "[rank1]:"):
            found.append((key, tracebacks.feed(key, number, line)))
    assert [key for key, raised in found if raised] == ["[rank0]:", "[rank1]:"]
    assert tracebacks.idle


def test_logurus_own_form_and_a_group_of_exceptions() -> None:
    (found,) = fed(
        'Traceback (most recent call last):\n\n> File "/root/env.py", line 3, in f\n    x()\n    \u2502 \u2514 1\n\n'
        "ValueError: no"
    )
    assert str(found.own) == "/root/env.py:3 in f"
    group = """  + Exception Group Traceback (most recent call last):
  |   File "/app/src/prime_rl/orchestrator/orchestrator.py", line 3, in run
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/root/env.py", line 5, in g
    |     x()
    | KeyError: 'a'
    +------------------------------------"""
    assert [one.text for one in fed(group)][-1] == "KeyError: 'a'"
    assert str(fed(group)[-1].own) == "/root/env.py:5 in g"


def test_a_traceback_without_an_end_is_let_go() -> None:
    tracebacks = Tracebacks()
    tracebacks.feed("", 0, "Traceback (most recent call last):")
    for number in range(1000):
        tracebacks.feed("", number, "  and so on")
    assert tracebacks.idle


@pytest.mark.parametrize(
    ("path", "how_much"),
    [
        ("/root/beautifulsoup-rl/environments/bs/bs.py", 2),
        ("/workspace/prime-rl/environments/wordle/wordle.py", 2),
        ("train.py", 2),
        ("/app/.venv/lib/python3.12/site-packages/wordle/wordle.py", 1),
        ("/app/.venv/lib/python3.12/site-packages/wordle.py", 1),
        ("/app/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py", 0),
        ("/app/.venv/lib/python3.12/site-packages/flash_attn_2_cuda.py", 0),
        ("/app/src/prime_rl/trainer/rl/train.py", 0),
        ("/workspace/verifiers/verifiers/rubrics/rubric.py", 0),
        ("/usr/lib/python3.12/asyncio/base_events.py", 0),
        ("/root/.local/share/uv/python/cpython-3.12/lib/python3.12/runpy.py", 0),
        ("<frozen importlib._bootstrap>", 0),
        ("<string>", 0),
    ],
)
def test_whose_a_file_is(path: str, how_much: int) -> None:
    assert own(path) == how_much
