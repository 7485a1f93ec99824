"""A disk that runs full with nothing safe to delete stops the job, whatever else is believed at that moment."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.evolve import replace
from tests.fuzz.profiles import tries

from .test_calm import _facts
from .world import GIB, SETTINGS, World

FULL = f.DiskLook("/ckpt", 100 * GIB, GIB)
ROOM = f.DiskLook("/ckpt", 100 * GIB, 60 * GIB)
LOOK_S = 5.0


def unpublished(settings: f.Settings = SETTINGS, steps: int = 7) -> World:
    """A run whose link is down, so that nothing here may be deleted."""
    world = World(settings)
    world.publish_works = False
    world.running_at(steps)
    world.see(ROOM)
    return world


def is_stopped(world: World) -> bool:
    return bool(world.asked(a.Stop)) and world.state.mode in ("stopping", "disk-full")


def test_a_full_disk_stops_the_job_while_the_engine_is_under_suspicion() -> None:
    world = unpublished()
    error = f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')")
    for second in range(0, 60, 5):
        world.see(error)
        world.see(FULL if second >= 30 else ROOM)
        world.after(5)
        if second >= 30:
            break
    assert world.state.suspicion.sentence or world.said("suspect")
    assert is_stopped(world)
    assert "The disk is full (1.0 GiB free) and no local step is safe to delete" in world.said("verdict")[0]


def test_a_full_disk_stops_a_job_that_is_starting() -> None:
    world = World()
    world.publish_works = False
    world.boot()
    world.job_up()
    world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
    world.see(FULL)
    world.after(2 * LOOK_S)
    assert is_stopped(world)


def test_a_deletion_that_hangs_hides_a_full_disk_for_two_minutes_and_not_longer() -> None:
    world = World()
    world.running_at(16)
    world.answer = False
    world.see(FULL)
    assert world.asked(a.PruneStale) or world.asked(a.PruneLocal)
    world.after(100)
    assert not world.asked(a.Stop)
    world.after(30)
    assert world.asked(a.Stop)


def test_a_listing_that_fails_hides_no_full_disk() -> None:
    world = World()
    world.running_at(16)
    world.local_reason = "the volume does not answer"
    world.survey()
    world.see(FULL)
    world.after(2 * LOOK_S)
    assert is_stopped(world)


def test_a_run_that_is_only_observed_is_told_once_of_a_full_disk_and_of_a_death_beside_it() -> None:
    world = World(replace(SETTINGS, mode="observe"))
    world.suppress = True
    world.publish_works = False
    world.boot()
    world.see(f.AttemptAdopted(1, None, 100))
    world.job_up()
    for number in range(1, 7):
        world.step(number)
    world.see(FULL)
    world.after(30)
    world.engine_process_dies()
    world.after(60)
    assert [sentence.partition(":")[0] for sentence in world.said("would")] == [
        "Would have stopped the job until there is room",
        "Would have restarted the job at the last good step",
    ]


@tries(60)
@given(st.data())
def test_in_any_state_a_full_disk_stops_the_job_within_two_looks(data: st.DataObject) -> None:
    world = unpublished(replace(SETTINGS, step_floor=120.0, step_ceiling=900.0, max_restarts=50))
    if data.draw(st.booleans(), "it was restarted, and has no step yet"):
        world.engine_process_dies()
        world.after(5)
        world.job_up()
    if paused := data.draw(st.booleans(), "a person paused it"):
        world.see(f.Command("pause", "root"))
    for number in range(1, data.draw(st.integers(1, 25), "facts")):
        world.t += data.draw(st.sampled_from([0.2, 1.0, 5.0, 31.0, 61.0]))
        world.see(_facts(number, data.draw))
    if world.state.orders.paused:
        world.see(FULL)
        world.after(LOOK_S)
        assert paused
        assert not world.state.live or not is_stopped(world), "nothing is stopped while a person has paused it"
        world.see(f.Command("resume", "root"))
    world.actions.clear()
    for _ in range(3):
        world.see(FULL)
        _noise(world, data.draw)
    assert not world.state.live, world.state.suspicion.sentence


def _noise(world: World, draw: Any) -> None:
    """What a look's time brings besides."""
    end = world.t + LOOK_S
    for number in range(draw(st.integers(0, 3))):
        world.t += 1.0
        fact = _facts(100 + number, draw)
        if not isinstance(fact, f.DiskLook):
            world.see(fact)
    world.after(max(0.0, end - world.t))


@pytest.mark.parametrize("over", ["publishing", "stopping"])
def test_a_run_that_ends_while_its_pod_is_about_to_go_is_over_for_the_next_daemon(over: str) -> None:
    world = World(replace(SETTINGS, max_steps=None))
    world.running_at(7)
    world.answer = False
    if over == "publishing":
        world.see(f.LeaveSoon(60.0, "preempted"))
        world = World(replace(SETTINGS, max_steps=None))
        world.running_at(7)
        world.see(f.PhaseSeen("trainer", "checkpoint", 7))
        world.answer = False
        world.see(f.LeaveSoon(120.0, "preempted"))
        assert world.state.mode == "running", "a save is under way, and it fits"
        world.see(f.FinishSeen("trainer", "Trainer finished!"))
        world.see(f.ComponentExited(1, "launcher", 0))
    else:
        world.see(f.FinishSeen("trainer", "Trainer finished!"))
        world.see(f.ComponentExited(1, "launcher", 0))
        assert world.state.mode == "stopping"
        world.see(f.Command("shutdown", "systemd"))
    world.see(f.AttemptStopped(1, 1.0, gpu_free=True))
    assert world.state.mode == "leaving"
    world.answer = True
    world.survey()
    world.after(200)
    assert world.asked(a.Exit)
    world.actions.clear()
    world.boot()
    world.after(30)
    assert not world.asked(a.Start)
    assert world.state.mode == "finished"


def test_a_paused_run_is_told_once_that_the_pause_prevents_the_stop_of_a_full_disk() -> None:
    world = unpublished()
    world.see(f.Command("pause", "root"))
    for free in (GIB, GIB + 1, GIB // 2):
        world.see(f.DiskLook("/ckpt", 100 * GIB, free))
        world.after(10.0)
    assert not is_stopped(world)
    (said,) = world.said("suspect")
    assert said == (
        "Paused, so the job is not stopped although the disk is full: 1.0 GiB free, no local step is safe to delete, "
        "and the next checkpoint may crash the job. Make room, or let it be stopped: supervisorctl resume"
    )
    assert world.state.suspicion.sentence == said, "status shows it while it lasts"
    world.see(f.Command("resume", "root"))
    world.see(FULL)
    world.after(LOOK_S)
    assert is_stopped(world)


def test_room_while_paused_ends_the_warning_and_a_dead_job_is_named_before_a_full_disk() -> None:
    world = unpublished()
    world.see(f.Command("pause", "root"))
    world.see(FULL)
    world.after(LOOK_S)
    world.see(ROOM)
    world.after(LOOK_S)
    assert not world.state.suspicion.sentence and world.said("cleared")
    world.see(FULL)
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    world.after(LOOK_S)
    assert world.state.suspicion.sentence.startswith("Paused, so nothing is done about it: ")
