"""Runs that the supervisor once judged wrongly, as traces: each stays judged rightly.

To add one: `rl-supervisor trace RUN.toml --incident N -o tests/judged/NAME.jsonl.gz`, then unpack it or keep it packed,
look through it for what must not leave your machine, and put what should have happened into its first line:

    "expect": {"says": ["vLLM died silently"], "never": ["hangs"]}

``says``: each of these is in a warning or an error of the replay, in this order. ``never``: none of these is in any.
An empty ``says`` means that the run was healthy. The file's name is a clause that says what is true of the run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.core import actions as a
from supervisor.journal import trace
from supervisor.journal.replay_trace import replay

HERE = Path(__file__).parent
TRACES = sorted(HERE.glob("*.jsonl*"))


def warnings_of(path: Path) -> list[str]:
    """The warnings and errors of the trace's replay by today's code, in their order."""
    said = [action for turn in replay(trace.load(path)) for action in turn.actions if isinstance(action, a.Say)]
    return [say.sentence for say in said if say.level in ("warning", "error")]


def missing(sentences: list[str], says: list[str]) -> list[str]:
    """What of ``says`` no sentence has behind the one before it."""
    rest = iter(sentences)
    return [words for words in says if not any(words in sentence for sentence in rest)]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_run_is_judged_as_its_trace_expects(path: Path) -> None:
    expect = trace.load(path).expect
    assert expect.keys() == {"says", "never"}, 'the first line needs "expect": {"says": [...], "never": [...]}'
    sentences = warnings_of(path)
    assert missing(sentences, expect["says"]) == [], sentences
    assert [said for said in sentences for words in expect["never"] if words in said] == []


def test_the_order_of_sentences_counts() -> None:
    assert missing(["vLLM died", "restarting"], ["died", "restarting"]) == []
    assert missing(["vLLM died", "restarting"], ["restarting", "died"]) == ["died"]
