"""A job that has failed is told to end at once; one that a person stops is not. What it still does is known."""

from __future__ import annotations

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f

from .world import GIB, World


@pytest.fixture
def world() -> World:
    world = World()
    world.running_at(14)
    return world


def saves_step_15(world: World) -> None:
    world.see(f.StepDone("orchestrator", 15, 200.0, 0.4))
    world.see(f.PhaseSeen("trainer", "checkpoint", 15, "Saving checkpoint at step 15"))


def order(world: World) -> a.Stop:
    (stop,) = world.asked(a.Stop)
    assert isinstance(stop, a.Stop)
    return stop


def test_a_dead_engine_ends_the_job_at_once_and_a_person_does_not(world: World) -> None:
    world.engine_process_dies()
    world.after(5)
    assert (order(world).at_once, order(world).saving) == (True, None)
    calm = World()
    calm.running_at(14)
    saves_step_15(calm)
    calm.see(f.Command("stop"))
    assert (order(calm).at_once, order(calm).saving) == (False, None), "it gets the launcher's whole patience anyway"


def test_the_save_of_a_trainer_that_is_well_is_waited_for(world: World) -> None:
    saves_step_15(world)
    trainer = next(one for one in world.state.job.processes_here() if one.role == "trainer")
    world.engine_process_dies()
    world.after(5)
    stop = order(world)
    assert (stop.at_once, stop.saving, stop.writers) == (True, 15, ((trainer.pid, trainer.start_ticks),))
    assert 0 < stop.save_s <= 60


@pytest.mark.parametrize("failed", ["the trainer", "the save"])
def test_the_save_of_a_trainer_that_failed_is_not_waited_for(world: World, failed: str) -> None:
    saves_step_15(world)
    if failed == "the trainer":
        world.see(f.ProcessGone(world.state.attempt.number, "trainer", world.pid + 3, 5003))
        world.after(10)
    else:
        while not world.asked(a.Stop):
            world.after(60, tick=10)
            assert world.t < 100_000
    assert (order(world).at_once, order(world).saving) == (True, None)


def test_a_step_that_becomes_whole_during_the_stop_is_told_published_and_resumed_from(world: World) -> None:
    world.answer = False
    world.engine_process_dies()
    world.after(5)
    stop = order(world)
    world.see(f.StepDone("trainer", 15, 200.0, loss=0.1))
    assert world.said("step")[-1].endswith("while the job is stopped")
    assert world.state.progress.highest == 15
    world.answer = True
    world.local[15], world.changed[15] = "complete", 1.7e9 + world.t
    world.see(f.AttemptStopped(stop.attempt, 3.0, gpu_free=True))
    world.after(5)
    start = world.asked(a.Start)[-1]
    assert isinstance(start, a.Start) and start.step == 15
    assert world.stored[15] == GIB


def test_a_daemon_that_begins_anew_in_the_midst_of_the_stop_goes_on_with_it_at_once(world: World) -> None:
    world.answer = False
    world.engine_process_dies()
    world.after(5)
    world.boot(adopted=world.state.attempt.number)
    world.after(2)
    assert [one.at_once for one in world.asked(a.Stop) if isinstance(one, a.Stop)] == [True, True]


@pytest.mark.parametrize("scratch", [True, False], ids=["it began from scratch", "its checkpoint is quarantined"])
def test_a_save_that_is_not_wanted_is_not_waited_for(world: World, scratch: bool) -> None:
    """A fresh start is stopped before it overwrites checkpoints, and on a bad step no other is built."""
    for step in (15, 1) if scratch else (11, 12):
        number = world.state.attempt.number
        world.see(f.StepDone("trainer", step, 200.0, loss=0.1))
        world.see(f.PhaseSeen("trainer", "checkpoint", step + 1, f"Saving checkpoint at step {step + 1}"))
        world.actions.clear()
        if step == 1:  # told late: another log has it
            world.see(f.FreshStartSeen("trainer", "Starting from scratch"))
        else:
            world.see(f.ErrorSeen("orchestrator", "fatal-error", "RuntimeError"))
            world.see(f.ProcessGone(number, "orchestrator", world.pid + 2, 5002))
        world.after(10)
        if number == 1:
            assert order(world).saving == step + 1, "there it is"
            world.job_up()
    assert (order(world).at_once, order(world).saving) == (True, None)
    assert bool(world.state.store.quarantined) is not scratch
