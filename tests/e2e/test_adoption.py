"""The daemon is killed fifty times at random moments, and the job notices nothing: not one pid, not one signal."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench.adoption import missed

from .killing import How, Told, Victim, fifty, story


def assert_untouched(told: Told) -> None:
    assert told.changed == [], story(told)
    assert told.signals == [], story(told)
    assert told.deaf == [], f"silence of these proves nothing: {story(told)}"
    assert told.lost == [], story(told)
    assert told.incidents[0] == told.incidents[1], f"an incident that nobody caused: {story(told)}"


def half() -> Told:
    times = {"control": [0.3], "kills": [0.3]}
    return Told(kills=25, published=9, incidents=(2, 2), steps=times, work=times)


def test_kills_that_were_never_done_have_cost_nobody_nothing() -> None:
    assert missed({"restarter": half(), "fresh": half()}, 50) == []
    assert missed({"restarter": half()}, 50) == ["25 of 50 kills were done."]
    assert missed({}, 50) == ["0 of 50 kills were done."]
    silent = replace(half(), work={"control": [], "kills": []})
    assert missed({"restarter": half(), "fresh": silent}, 50) == ["fresh: the ratio of work is nan."]
    assert len(missed({"restarter": half(), "fresh": replace(half(), published=0)}, 50)) == 1


def test_whoever_reads_of_a_failure_can_do_it_again(tmp_path: Path) -> None:
    assert '"seed": 4711' in story(Victim(tmp_path, "fresh", 4711).told)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["restarter", "fresh"])
def test_twenty_kills_of_the_daemon_cost_the_job_nothing(tmp_path: Path, how: How) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    told = fifty(tmp_path, how, 10, 2, seed)
    assert_untouched(told)
    assert told.kills == 10, story(told)
    assert {"any", "adopting", "publish", "incident", "verdict"} == set(told.moments), story(told)
