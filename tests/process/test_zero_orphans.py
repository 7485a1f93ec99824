"""Zero orphans: a job with every bad habit, ended at a random moment, leaves nothing, and nobody else is touched.

What is alive afterwards is looked for by other means than those under test, see ``zoo``.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.orphans import missed
from tests.process import zoo

GROUPS = pytest.mark.parametrize("grouped", [True, False], ids=["own group", "no group"])


def may_be(grouped: bool, folder: Path) -> None:
    if grouped and not zoo.can_group(folder):
        pytest.skip("this user may make no control groups (version 2, Linux 5.14) here")


def assert_nothing_left(count: zoo.Count) -> None:
    assert count.left == [], count
    assert count.segments == [], count
    assert count.ports == [], count
    assert count.innocents == [], count


@pytest.mark.soak
def test_the_observers_see_what_lives(attempt: zoo.Attempt) -> None:
    """They are worth nothing if they see nothing: before the stop, each of them does."""
    home = attempt.folder
    attempt.start(zoo.ANIMALS, argv=zoo.command(home / "job.py", home))
    zoo.wait_for(lambda: all((home / role).exists() for role in zoo.ROLES), "all of it is up", 60)
    count = zoo.Count()
    zoo.look_behind(count, home, "not stopped")
    assert f"not stopped: somebody holds {home / zoo.FIFO}" in count.left
    assert (len(count.left) > 4, len(count.segments), len(count.ports)) == (True, 4, 1), count
    attempt.stop(zoo.HASTY, budget_s=30.0)
    after = zoo.Count()
    zoo.look_behind(after, home, "stopped")
    assert_nothing_left(after)


@GROUPS
def test_a_few_stops_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    may_be(grouped, tmp_path)
    count = zoo.Count()
    zoo.stops(tmp_path, 4, 1, count, grouped=grouped, patch=monkeypatch)
    assert_nothing_left(count)


@pytest.mark.soak
def test_the_next_attempt_of_an_incident_finds_nothing_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = zoo.Count()
    zoo.incidents(tmp_path, 2, 1, count, grouped=True, patch=monkeypatch)
    assert_nothing_left(count)
    assert count.longest_s < 15, "nobody is asked for longer than the run file says"
    assert "seed=1," in str(count), "or nobody could do it again"


def test_stops_that_were_never_done_have_not_left_nothing() -> None:
    half = {"own group": zoo.Count(stops=100)}
    assert missed({}, 200) == ["0 of 200 stops were done."]
    assert missed(half, 200) == ["100 of 200 stops were done."]
    assert missed(half | {"no group": zoo.Count(stops=100)}, 200) == []
    assert missed(half | {"no group": zoo.Count(stops=100, left=["4711"])}, 200) != []


@pytest.mark.soak
@pytest.mark.timeout(900)
@GROUPS
def test_twelve_stops_under_load_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    may_be(grouped, tmp_path)
    seed = random.SystemRandom().randrange(1 << 30)
    count = zoo.Count()
    with zoo.busy(1):  # in a soak, three other tests are beside it
        zoo.stops(tmp_path / "stops", 7, seed, count, grouped=grouped, patch=monkeypatch)
        zoo.incidents(tmp_path / "incidents", 5, seed, count, grouped=grouped, patch=monkeypatch)
    assert count.stops == 12
    assert_nothing_left(count)
