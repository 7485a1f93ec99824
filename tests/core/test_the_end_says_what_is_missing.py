"""The end of a run says what of it is not in the store, and what never was a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.views import status
from tests.core.world import SETTINGS, World

PLAIN = replace(SETTINGS, has_finish_line=False, max_steps=None, first_step_at=1)


def ends_after(step: int, *, every: int, settings: f.Settings = PLAIN) -> World:
    """A job that ends by itself, with exit code 0, after ``step``."""
    world = World(settings)
    world.boot()
    world.job_up()
    for number in range(1, step + 1):
        world.step(number)
        if number % every == 0:
            world.checkpoint(number)
    return world


def end(world: World) -> str:
    world.see(f.ComponentExited(world.state.attempt.number, "job", 0))
    world.after(60)
    (last,) = (one for one in world.actions if isinstance(one, a.Exit))
    assert last.code == 0
    assert world.said("finished") == [last.reason]
    return last.reason


def test_a_trainer_that_ends_after_step_11_with_step_9_published_is_finished_and_step_11_is_told_to_be_missing() -> (
    None
):
    world = ends_after(11, every=3)
    sentence = end(world)
    assert sentence == (
        "The run is finished: step 11, 3 min 20 s, reward 0.4. No checkpoint holds step 11, the last one done: steps "
        "10 to 11 exist nowhere. The newest in the store is step 9."
    )
    assert sentence.rstrip(".") in status.headline(world.state)
    assert [one.level for one in world.actions if isinstance(one, a.Say) and one.event == "finished"] == ["warning"]


def test_a_daemon_that_is_started_again_after_that_end_still_says_so() -> None:
    world = ends_after(11, every=3)
    end(world)
    world.boot()
    assert "steps 10 to 11 exist nowhere" in world.said("finished")[-1]
    assert "Raise max_steps" in world.said("finished")[-1]


def test_a_daemon_that_is_started_on_a_finished_run_asks_for_nothing_and_ends_at_once() -> None:
    world = World(replace(PLAIN, fencing=True))
    world.boot()
    world.see(f.Claimed(1))
    world.job_up()
    world.step(1)
    world.checkpoint(1)
    world.see(f.ComponentExited(world.state.attempt.number, "job", 0))
    world.after(10)
    assert world.asked(a.Exit)
    world.actions.clear()
    world.boot()
    world.after(2)
    assert world.said("finished") and world.asked(a.Exit)
    assert not world.asked(a.Claim), "nothing is done here that would need the run"


def test_an_end_whose_last_step_is_published_says_no_more_than_before() -> None:
    assert end(ends_after(12, every=3)) == "The run is finished: step 12, 3 min 20 s, reward 0.4."


def test_an_end_without_any_checkpoint_says_that_nothing_of_the_run_is_left() -> None:
    sentence = end(ends_after(4, every=10))
    assert "steps 1 to 4 exist nowhere" in sentence
    assert sentence.endswith("The store holds no checkpoint of this run.")


def test_one_step_that_is_missing_is_one_step() -> None:
    assert "step 10 exists nowhere" in end(ends_after(10, every=3))


@pytest.mark.parametrize(("last", "missing"), [(12, False), (9, True)])
def test_where_steps_count_from_zero_the_last_line_is_one_below_the_last_checkpoint(last: int, missing: bool) -> None:
    """Until July 2026 step_N means N updates: a run of 12 ends with the line of step 11 and the checkpoint step_12."""
    world = World(replace(SETTINGS, first_step_at=0, max_steps=12))
    world.boot()
    world.job_up()
    for number in range(12):
        if number and number % 3 == 0:
            world.checkpoint(number)
        world.step(number)
    if last == 12:
        world.checkpoint(12)
    sentence = end(world)
    assert ("nowhere" in sentence) is missing
    if missing:
        assert (
            "No checkpoint holds step 11, the last one done: what was trained after the checkpoint of step 9"
            in sentence
        )


def test_what_is_complete_here_and_was_never_published_is_named() -> None:
    world = ends_after(6, every=3)
    world.publish_works = False
    for number in range(7, 13):
        world.step(number)
        if number % 3 == 0:
            world.checkpoint(number)
    world.publish_works = True
    sentence = end(world)
    assert 12 in world.stored
    assert 9 not in world.stored
    assert sentence.endswith("Complete on this disk and not in the store: step 9.")
    assert "nowhere" not in sentence


def test_a_last_checkpoint_that_is_here_and_not_whole_is_named_with_what_it_lacks() -> None:
    world = ends_after(11, every=3)
    world.checkpoint(11, "incomplete")
    sentence = end(world)
    assert "steps 10 to 11 exist nowhere" in sentence
    assert "Step 11 on this disk is not complete: a shard is short." in sentence


def test_a_rollback_before_the_end_leaves_no_higher_step_to_be_missed() -> None:
    world = ends_after(30, every=3)
    world.see(f.Command("rollback", "a", ("24",)))
    world.job_up()
    world.step(25)
    world.step(26)
    world.step(27)
    world.checkpoint(27)
    assert end(world) == "The run is finished: step 27, 3 min 20 s, reward 0.4."


def test_a_checkpoint_of_the_last_step_that_is_there_already_is_no_loss() -> None:
    world = World(replace(PLAIN, max_steps=12))
    world.stored, world.latest = {12: 1 << 30}, 12
    world.boot()
    world.after(5)
    (last,) = (one for one in world.actions if isinstance(one, a.Exit))
    assert last.reason == "The run is finished: step 12 is the last one, and it is in the store."


def test_exit_code_0_with_steps_left_is_no_end_of_a_job_without_a_line_of_success() -> None:
    """`python train.py | tee log` ends with tee's code, whatever the trainer died of."""
    world = ends_after(12, every=5, settings=replace(PLAIN, max_steps=5000))
    world.see(f.ComponentExited(1, "job", 0))
    world.after(60)
    assert not world.said("finished")
    assert [start.step for start in world.asked(a.Start)][-1] == 10
    world.job_up()
    for number in range(11, 18):
        world.step(number)
    world.checkpoint(15)
    world.see(f.ComponentExited(2, "job", 0))
    world.after(60)
    assert not world.said("finished"), "it came further"
    assert [start.step for start in world.asked(a.Start)][-1] == 15


@pytest.mark.parametrize("more", [0, 2], ids=["at once", "after two steps"])
def test_a_job_that_ends_with_exit_code_0_twice_without_a_new_checkpoint_is_finished(more: int) -> None:
    """It stops early, or tells each tenth step only: nothing is quarantined for it, and no person is called."""
    world = ends_after(12, every=5, settings=replace(PLAIN, max_steps=5000))
    world.see(f.ComponentExited(1, "job", 0))
    world.after(60)
    world.job_up()
    for number in range(11, 11 + more):
        world.step(number)
    world.see(f.ComponentExited(2, "job", 0))
    world.after(60)
    assert world.said("finished")
    assert not world.state.store.quarantined


def test_exit_code_0_of_a_job_that_never_tells_a_step_is_its_end() -> None:
    world = World(replace(PLAIN, max_steps=5000))
    world.boot()
    world.job_up()
    end(world)
