"""The incidents of the original runs, replayed: what is concluded, how soon, and what is done."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core import actions as a
from supervisor.core.codec import encode
from supervisor.journal import trace
from supervisor.journal.replay_trace import Turn, replay
from tests.incidents.make import HERE, all_files

NAMES = sorted(path.name for path in HERE.glob("*.jsonl*"))
FOUR = {
    "crash-after-step-6.jsonl",
    "crash-after-step-6-by-memory.jsonl",
    "three-hours-of-connection-errors.jsonl.gz",
    "stuck-at-0-of-8.jsonl.gz",
    "disk-full.jsonl",
    "disk-full-and-nothing-published.jsonl",
}


class Replayed:
    """One incident's file, what it expects, and the turns of its replay."""

    def __init__(self, source: trace.Trace) -> None:
        self.expect = source.expect
        self.turns = list(replay(source))
        self.fault = float(self.expect["fault"])

    def first(self, wanted: Any) -> tuple[Turn, a.Action]:
        for turn in self.turns:
            for action in turn.actions:
                if wanted(action):
                    return turn, action
        raise AssertionError("\n".join(f"{t.observation.t:8.1f} {x}" for t in self.turns for x in t.actions))

    def verdict(self) -> tuple[float, str]:
        """When after the fault (seconds), and what was said."""
        words = self.expect["verdict"]
        turn, said = self.first(
            lambda x: isinstance(x, a.Say) and x.level in ("warning", "error") and words in x.sentence
        )
        assert isinstance(said, a.Say)
        return turn.observation.t - self.fault, said.sentence

    def action(self) -> tuple[float, a.Action]:
        wanted = dict(self.expect["action"])
        turn, action = self.first(lambda x: wanted.items() <= encode(x).items())
        return turn.observation.t - self.fault, action

    def sentences(self, event: str) -> list[str]:
        said = [x for turn in self.turns for x in turn.actions if isinstance(x, a.Say)]
        return [action.sentence for action in said if action.event == event]


def replayed(name: str) -> Replayed:
    return Replayed(trace.load(HERE / name))


def test_all_incidents_are_here() -> None:
    assert set(NAMES) == FOUR


@pytest.mark.parametrize("name", ["crash-after-step-6.jsonl", "crash-after-step-6-by-memory.jsonl"])
def test_silent_death_after_step_6_is_restarted_at_step_5_within_seconds(name: str) -> None:
    incident = replayed(name)
    after_s, sentence = incident.verdict()
    assert 0 < after_s <= incident.expect["within_s"], sentence
    assert "GPU 0" in sentence
    restarted_s, start = incident.action()
    assert restarted_s <= incident.expect["within_s"] + 10, "it took a person fifteen minutes"
    assert start == a.Start(2, 5, snapshot=1)
    assert "step 6 is done" in incident.sentences("incident-closed")[0]
    assert len(incident.sentences("verdict")) == 1, "no false verdict before or after it"


def test_three_hours_of_connection_errors_last_a_minute() -> None:
    incident = replayed("three-hours-of-connection-errors.jsonl.gz")
    after_s, sentence = incident.verdict()
    assert 0 < after_s <= 60
    assert "APIConnectionError('Connection error.')" in sentence, "port and log agree; nothing else could be seen"
    restarted_s, start = incident.action()
    assert restarted_s <= 75
    assert start == a.Start(2, 5, snapshot=1)
    assert len(incident.sentences("incident-closed")) == 1


def test_rollouts_stuck_at_0_of_8_end_within_minutes_with_exit_93_and_the_engines_own_reason() -> None:
    incident = replayed("stuck-at-0-of-8.jsonl.gz")
    after_s, sentence = incident.verdict()
    assert 0 < after_s <= incident.expect["within_s"], sentence
    ended_s, _ = incident.action()
    assert ended_s <= incident.expect["within_s"]
    (why,) = incident.sentences("gave-up")
    assert "too large: 4000" in why, "what the engine said"
    assert "Lower the sampling's max_tokens" in why, "and what a person has to do"
    starts = [x for turn in incident.turns for x in turn.actions if isinstance(x, a.Start)]
    assert len(starts) == 1, "a restart cannot cure it, and none is tried"


def test_a_disk_that_fills_because_nothing_deletes_is_pruned_of_published_steps_before_it_is_full() -> None:
    incident = replayed("disk-full.jsonl")
    before_s, _ = incident.action()
    assert before_s < 0
    assert incident.sentences("pruned")[0].startswith("Deleted step 5 from the local disk")
    published = [x.step for turn in incident.turns for x in turn.actions if isinstance(x, a.Publish)]
    assert published[0] == 5, "only what is in the store is deleted"
    assert not incident.sentences("verdict")
    assert not [x for turn in incident.turns for x in turn.actions if isinstance(x, a.Stop)]


def test_a_disk_that_fills_with_nothing_published_stops_the_job_before_it_crashes() -> None:
    incident = replayed("disk-full-and-nothing-published.jsonl")
    before_s, _ = incident.action()
    assert before_s < 0
    assert "the job is stopped before it crashes" in incident.sentences("verdict")[0]
    assert not [x for turn in incident.turns for x in turn.actions if isinstance(x, a.PruneLocal)], "nothing is safe"
    assert "nothing is published yet" in incident.sentences("disk")[0]


@pytest.mark.soak
def test_the_files_are_what_their_script_makes() -> None:
    """The parser may word its facts anew: then the decisions still have to be those of the files."""
    made = all_files()
    assert set(made) == set(NAMES)
    for name, text in made.items():
        again = Replayed(trace.parse(text.splitlines(), name))
        there = replayed(name)
        assert [t.actions for t in again.turns if t.actions] == [t.actions for t in there.turns if t.actions], (
            f"{name} is not current: python -m tests.incidents.make"
        )
