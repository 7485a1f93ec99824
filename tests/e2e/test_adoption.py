"""The daemon is killed fifty times at random moments, and the job notices nothing: not one pid, not one signal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .killing import How, Told, Victim, fifty, story


def assert_untouched(told: Told) -> None:
    assert told.changed == [], story(told)
    assert told.signals == [], story(told)
    assert told.deaf == [], f"silence of these proves nothing: {story(told)}"
    assert told.lost == [], story(told)
    assert told.incidents[0] == told.incidents[1], f"an incident that nobody caused: {story(told)}"


def test_whoever_reads_of_a_failure_can_do_it_again(tmp_path: Path) -> None:
    assert '"seed": 4711' in story(Victim(tmp_path, "fresh", 4711).told)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["restarter", "fresh"])
def test_fifty_kills_of_the_daemon_cost_the_job_nothing(tmp_path: Path, how: How) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    told = fifty(tmp_path, how, 25, 2, seed)
    assert_untouched(told)
    assert told.kills == 25, story(told)
    assert {"any", "adopting", "publish", "incident", "verdict"} == set(told.moments), story(told)
