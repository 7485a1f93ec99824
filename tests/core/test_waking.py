"""What waits after a failure waits no longer once another fact shows that its cause is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.state import Incident, Incidents

from .world import GIB, SETTINGS, World

FULL = f.DiskLook("/ckpt", 100 * GIB, GIB)
ROOM = f.DiskLook("/ckpt", 100 * GIB, 60 * GIB)
AWAY = "the store did not answer: 503 service unavailable."
BACK: list[Callable[[], f.Fact]] = [
    f.StoreBack,
    lambda: f.Published(5, GIB, 3.0),
    lambda: f.LineageKept(0),
    lambda: f.PinKept(5, True),
    lambda: f.Swept(0),
    lambda: f.Pruned(1, "store", GIB),
]


def failing(settings: f.Settings = SETTINGS) -> World:
    """A run of which no publish has succeeded for a while: the next try is more than a minute away."""
    world = World(settings)
    world.publish_works = False
    world.boot()
    world.job_up()
    for number in range(1, 6):
        world.step(number, 20.0)
    world.checkpoint(5)
    while world.state.publishing.after - world.t < 60:
        world.engine()
        world.after(10)
    world.actions.clear()
    world.answer = False
    return world


@pytest.mark.parametrize("back", BACK)
def test_an_upload_that_succeeds_anywhere_wakes_the_publish_that_waits(back: Callable[[], f.Fact]) -> None:
    world = failing()
    world.after(20)
    assert not world.asked(a.Publish)
    world.see(back())
    world.after(1)
    if not isinstance(back(), f.Published):
        assert world.asked(a.Publish)
    assert world.state.publishing.after <= world.t


def test_a_listing_that_works_again_wakes_it_and_one_that_always_worked_does_not() -> None:
    world = failing()
    world.survey()
    world.after(1)
    assert not world.asked(a.Publish)
    world.store_reason = AWAY
    world.survey()
    world.store_reason = ""
    world.survey()
    world.after(1)
    assert world.asked(a.Publish)


def test_a_pin_that_could_not_be_written_down_wakes_nothing() -> None:
    world = failing()
    world.see(f.PinKept(5, True, "503"))
    world.see(f.Pruned(1, "local", GIB))
    world.after(1)
    assert not world.asked(a.Publish)


def test_a_job_that_stands_still_for_a_full_disk_asks_the_store_every_few_seconds() -> None:
    """It was 75 s: the back-off of a run that trains was kept for one whose GPUs stand still until a step is sent."""
    world = World()
    world.publish_works = False
    world.running_at(6)
    world.see(ROOM)
    while world.state.publishing.after - world.t < 60:
        world.engine()
        world.after(5)
    world.see(FULL)
    world.after(2)
    assert world.state.mode == "disk-full"
    world.after(200)
    world.publish_works = True
    world.actions.clear()
    world.after(16)
    assert world.asked(a.Publish)
    assert world.state.store.published == 5


def test_while_it_stands_still_the_same_failure_is_said_once() -> None:
    world = World()
    world.publish_works = False
    world.running_at(6)
    world.see(FULL)
    world.after(600)
    assert world.state.mode == "disk-full"
    assert len(world.asked(a.Publish)) > 20
    assert len(world.said("publish-failed")) <= 3


def test_room_that_appears_lets_the_job_go_on_at_once() -> None:
    world = World()
    world.publish_works = False
    world.running_at(6)
    world.see(FULL)
    world.after(300)
    world.actions.clear()
    world.see(ROOM)
    world.after(1)
    assert world.asked(a.Start)


def test_room_that_appears_wakes_the_publish_of_a_job_that_trains_at_once() -> None:
    world = failing()
    world.see(f.DiskLook("/ckpt", 100 * GIB, 5 * GIB // 2))  # the next save does not fit, and none is under way
    for _ in range(4):
        world.after(1)
        world.engine()
    assert world.state.mode == "running"
    assert not world.asked(a.Publish)
    world.see(ROOM)
    assert world.asked(a.Publish)


def restoring(reason: str) -> World:
    """A fresh pod whose restore has just failed, and waits for half a minute."""
    world = World()
    world.stored, world.latest = {5: GIB}, 5
    world.answer = False
    world.see(FULL)
    world.boot()
    world.survey()
    world.see(f.RestoreFailed(5, reason))
    assert world.state.mode == "backing-off"
    world.actions.clear()
    return world


@pytest.mark.parametrize("back", [f.StoreBack(), ROOM])
def test_a_restore_that_failed_for_want_of_store_or_room_is_tried_as_soon_as_there_is_one(back: f.Fact) -> None:
    world = restoring(AWAY)
    world.after(5)
    world.see(back)
    assert world.state.mode == "surveying"
    assert world.asked(a.Survey)


def test_a_start_that_waits_for_the_network_is_woken_when_the_store_answers_again() -> None:
    world = World()
    world.running_at(6)
    for _ in range(6):
        world.see(f.ErrorSeen("orchestrator", "wandb-unreachable", "wandb.errors.CommError: timed out"))
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        if world.state.mode == "backing-off" and world.state.recovery.backoff_until - world.t > 60:
            break
        world.after(1300)
    assert world.state.mode == "backing-off"
    world.actions.clear()
    world.see(f.StoreBack())
    world.after(1)
    assert world.asked(a.Start)


def test_a_job_that_crashes_again_and_again_is_not_woken_by_the_store() -> None:
    world = World(replace(SETTINGS, max_restarts=50))
    world.running_at(6)
    while world.state.recovery.backoff_until - world.t < 20:
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(0.1)
    assert world.state.mode == "backing-off"
    world.see(f.StoreBack())
    world.see(ROOM)
    world.after(1)
    assert world.state.mode == "backing-off"


def test_a_survey_that_waits_for_the_store_is_asked_anew_at_once() -> None:
    world = World()
    world.store_reason = AWAY
    world.boot()
    world.after(5)
    world.store_reason = ""
    world.actions.clear()
    world.see(f.StoreBack())
    assert world.asked(a.Start)


# ---------------------------------------------------------------- what is said of steps that are passed by


def passed_by(between: Callable[[World], None]) -> list[str]:
    """What is said when step 15 is published, after ``between``, and step 10 never was."""
    world = World()
    world.boot()
    world.job_up()
    world.checkpoint(5)
    world.publish_works = False
    world.answer = False
    between(world)
    world.see(f.PublishMoves(10, "", 0, 0, 0.0))
    world.after(700)
    return world.said("skipped")


def steps(world: World, *numbers: int) -> None:
    for number in numbers:
        world.checkpoint(number)


def test_a_link_that_is_too_slow_is_called_one() -> None:
    def slow(world: World) -> None:
        steps(world, 10, 15, 20)
        world.see(f.Published(10, GIB, 600.0, GIB))

    assert passed_by(slow) == ["Steps complete faster than the link carries them: 15 skipped."]


@pytest.mark.parametrize("permanent", [False, True])
def test_an_outage_a_refused_key_or_a_full_cap_is_no_slow_link(permanent: bool) -> None:
    reason = "the storage cap of the account is reached." if permanent else AWAY

    def away(world: World) -> None:
        steps(world, 10)
        world.see(f.PublishFailed(10, reason, permanent=permanent))
        steps(world, 15)

    (sentence,) = passed_by(away)
    assert sentence.startswith("Step 15 is sent next, and 10 is skipped, since nothing could be published meanwhile: ")
    assert reason in sentence


def test_a_store_that_could_not_be_listed_is_no_slow_link() -> None:
    def away(world: World) -> None:
        world.store_reason = AWAY
        world.survey()
        steps(world, 10, 15)
        world.store_reason = ""
        world.survey()

    (sentence,) = passed_by(away)
    assert AWAY in sentence
    assert "faster" not in sentence


def test_steps_from_while_no_daemon_ran_or_another_pod_held_the_run_are_no_slow_link() -> None:
    world = World(replace(SETTINGS, fencing=True))
    world.local = {5: "complete", 10: "complete", 15: "complete"}
    world.boot()
    world.see(f.ClaimHeld("pod-b", 3, 10.0, 600.0))
    world.see(f.Claimed(4))
    world.survey()
    world.after(5)
    (sentence,) = world.said("skipped")
    assert "faster" not in sentence
    assert sentence.startswith(
        "Step 15 is sent next, and 5, 10 are skipped, since nothing could be published meanwhile"
    )


@pytest.mark.parametrize("before", ["on a fresh pod", "hours after a crash"])
def test_a_restore_that_never_fits_waits_an_hour_for_room_and_then_for_a_person(before: str) -> None:
    world = World()
    world.stored, world.latest = {5: GIB}, 5
    world.answer = False
    world.boot()
    if before != "on a fresh pod":
        world.see(f.LocalSteps((), settled=True))
        world.see(f.StoreSteps(reason="the store did not answer."))
        world.state = replace(
            world.state, incidents=Incidents(open=Incident(1, "engine-died", "It died.", 0.0, 0.0, 1, 5, stopped=1.0))
        )
        world.after(2 * 3600, tick=60)
    began, tries = world.t, 0
    while world.state.mode != "gave-up" and world.t < began + 2 * 3600:
        if world.state.mode == "surveying":
            world.see(f.LocalSteps((), settled=True))
            world.see(f.StoreSteps((f.StoredStep(5, True, GIB),), 5))
        if world.state.mode == "restoring":
            tries += 1
            world.see(f.RestoreFailed(5, "step 5 needs 47.0 GB more at /ckpt, where 3.0 GB are free.", no_room=True))
        world.after(5, tick=5)
    assert world.state.mode == "gave-up" and world.state.ending.code == 93
    assert 3600 <= world.t - began <= 3700 and 50 <= tries <= 62
    assert world.state.recovery.full_since is None, "who starts it again has an hour again"
    [told] = world.said("gave-up")
    assert told.startswith("Step 5 cannot be restored: step 5 needs 47.0 GB more at /ckpt, where 3.0 GB are free. No")
    assert told.endswith("Nothing became free in 60 min: a person has to make room.")
