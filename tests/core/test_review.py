"""Stories in which evidence contradicts itself, is stale or is garbled: none of them may cost a living run."""

from __future__ import annotations

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.evolve import replace

from .world import GIB, World


@pytest.fixture
def world() -> World:
    return World()


def refused(world: World) -> None:
    world.engine(health="refused", liveness="unknown", iterations=None, running=None, waiting=None)


# ---------------------------------------------------------------- what the engine's own work contradicts


def test_memory_that_reads_zero_under_an_engine_at_work_is_a_bad_reading(world: World) -> None:
    world.running_at(8)
    for _ in range(12):
        world.gpus(inference=0)
        world.after(5)
        world.engine()
    world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
    world.after(10)
    assert not world.asked(a.Stop)


def test_memory_that_fell_convicts_as_before_where_the_engine_stands(world: World) -> None:
    world.running_at(8)
    for _ in range(4):
        world.gpus(inference=0)
        world.after(5)
        world.engine(iterations=7.0)
    world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
    world.after(60)
    assert "fell to 0 B" in world.said("verdict")[0]


def test_an_unhealthy_answer_of_an_engine_that_makes_tokens_is_no_death(world: World) -> None:
    world.running_at(8)
    for _ in range(24):
        world.engine(health="bad")
        world.see(f.WorkSeen(64, 3, 64))
        world.after(5)
    assert not world.asked(a.Stop)


# ---------------------------------------------------------------- what nobody knows


def test_a_port_that_nobody_could_look_at_since_is_unknown_and_not_refused(world: World) -> None:
    world.running_at(8)
    for _ in range(3):
        refused(world)
        world.after(5)
    assert "refused connections" in world.said("suspect")[-1]
    world.engine(health="unknown", liveness="unknown", iterations=None, running=None, waiting=None, reason="no look")
    world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
    world.after(60)
    assert not world.asked(a.Stop)
    for _ in range(3):
        refused(world)
        world.after(5)
    assert "refused connections" in world.said("verdict")[0], "seen again, it convicts"


def test_rollouts_of_which_nobody_told_since_they_moved_do_not_stand_still(world: World) -> None:
    """An overloaded engine: it answers late, nobody can read its counters, and rollouts are told now and then."""
    world.running_at(8)
    silent = {"iterations": None, "running": None, "waiting": None, "connections": 64}
    for done in range(8):
        world.see(f.WorkSeen(64, done, 256))
        for _ in range(11):
            world.engine(health="ok", liveness="timeout", **silent)
            world.after(5)
    assert not world.asked(a.Stop)
    for _ in range(14):
        world.see(f.WorkSeen(64, 7, 256))
        world.engine(health="ok", liveness="timeout", **silent)
        world.after(5)
    assert "64 rollouts in flight did not move" in world.said("verdict")[0], "told to stand still, they count"


# ---------------------------------------------------------------- what was survived


def test_a_gpu_fault_that_the_run_survived_explains_no_end_hours_later(world: World) -> None:
    world.running_at(8)
    world.see(f.GpuFault("GPU 1", 48, "double-bit ECC"))
    for number in range(9, 15):
        world.step(number)
    world.see(f.ErrorSeen("trainer", "cuda-oom", "CUDA out of memory"))
    world.see(f.ComponentExited(1, "launcher", 1))
    assert "CUDA out of memory" in world.said("verdict")[0]
    assert not world.said("unfit")
    assert world.asked(a.Start)


def test_a_gpu_fault_just_before_the_end_still_names_it(world: World) -> None:
    world.running_at(8)
    world.see(f.GpuFault("GPU 1", 48, "double-bit ECC"))
    world.step(9)
    world.see(f.ComponentExited(1, "launcher", 1))
    assert "Xid 48" in world.said("unfit")[0]


# ---------------------------------------------------------------- garbled numbers


@pytest.mark.parametrize("garbled", [999, 10**9, -7])
def test_a_garbled_step_number_does_not_make_the_true_ones_old_news(world: World, garbled: int) -> None:
    world.running_at(8)
    world.see(f.StepDone("trainer", garbled))
    for number in range(9, 20):
        world.step(number)
    assert world.state.progress.step == 19
    assert not world.asked(a.Stop)


def test_steps_whose_lines_were_lost_are_believed(world: World) -> None:
    world.running_at(8)
    world.after(3000, tick=60.0)
    world.see(f.StepDone("trainer", 23))
    assert world.state.progress.step == 23


def test_no_step_is_believed_to_have_taken_longer_than_the_attempt_lives(world: World) -> None:
    world.running_at(8)
    world.t += 200
    world.see(f.StepDone("trainer", 9, duration_s=1e8))
    assert world.state.learned.phases["step"].longest_s <= world.t - world.state.started


def test_a_gpu_whose_memory_fell_at_one_of_two_engines_is_not_excused_by_the_other(world: World) -> None:
    world.running_at(8)
    gpus = [f.Gpu("GPU-0", 0, 70 * GIB, 80 * GIB, "inference"), f.Gpu("GPU-2", 2, 70 * GIB, 80 * GIB, "inference")]
    for _ in range(3):
        world.see(f.GpuLook(tuple(gpus)))
        world.after(5)
        world.engine()
    gpus[0] = replace(gpus[0], used_bytes=0)
    for _ in range(5):
        world.see(f.GpuLook(tuple(gpus)))
        world.after(5)
        world.engine()
    world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
    world.after(5)
    assert "memory on GPU 0 fell to 0 B" in world.said("verdict")[0]
