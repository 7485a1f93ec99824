"""All are known to do nothing: engine, rollouts, and the trainer's GPUs by what they draw.

That is told before a step is late, and only where each of them can be seen.
"""

from __future__ import annotations

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.deadlines import standstill_limits, step_limits

from .world import GIB, SETTINGS, World

MIN = 60.0
STEP_S = 240.0
BUSY_W, SPINS_W = 520.0, 210.0


def look(world: World, watts: float | None, *, tokens: bool, readable: bool = True) -> None:
    """One look of all sensors; ``watts`` is what the trainer's GPU draws."""
    gpus = (
        f.Gpu("GPU-0", 0, 70 * GIB, 80 * GIB, "inference", power_w=500.0 if tokens else 120.0),
        f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer", power_w=watts),
    )
    world.see(f.GpuLook(gpus))
    count = world.t if tokens else world.state.engine.count
    if readable:
        world.engine(iterations=count, running=8.0 if tokens else 0.0, connections=None if tokens else 0)
    else:
        world.engine(iterations=None, running=None, waiting=None)
    world.see(f.WorkSeen(64, int(world.t) if tokens else 0, 256))


def run(steps: int = 60, pause_s: float = 0.0, watts: float | None = BUSY_W) -> World:
    """Steps of four minutes; before each of them the engine pauses for ``pause_s``."""
    world = World()
    world.boot()
    world.job_up()
    for number in range(1, steps + 1):
        for t in range(0, int(STEP_S + pause_s), 10):
            world.t += 10
            look(world, watts, tokens=t >= pause_s)
        world.see(f.StepDone("orchestrator", number, STEP_S, 0.4))
        world.see(f.StepDone("trainer", number, STEP_S, loss=0.1))
    assert not world.asked(a.Stop)
    world.actions.clear()
    return world


def still(world: World, watts: float | None, limit_s: float) -> float:
    """Seconds until the job is stopped while nothing moves; ``limit_s`` where it is not."""
    began = world.t
    while not world.asked(a.Stop) and world.t < began + limit_s:
        world.t += 10
        look(world, watts, tokens=False)
    return world.t - began


def test_a_collective_that_never_ends_is_found_by_what_the_gpus_draw() -> None:
    world = run()
    world.see(f.PhaseSeen("trainer", "training", 61))
    took = still(world, SPINS_W, 3600.0)
    assert "trainer is stuck" in world.said("verdict")[0] and "GPUs have rested" in world.said("verdict")[0]
    assert 5 * MIN <= took <= 8 * MIN


def test_a_trainer_that_computes_for_long_is_not_stuck() -> None:
    world = run()
    world.see(f.PhaseSeen("trainer", "training", 61))
    assert still(world, BUSY_W, 9 * MIN) == 9 * MIN


def test_where_the_power_is_unknown_nothing_is_concluded_from_it() -> None:
    world = run(watts=None)
    world.see(f.PhaseSeen("trainer", "training", 61))
    assert still(world, None, 9 * MIN) == 9 * MIN
    measured = run()
    measured.see(f.PhaseSeen("trainer", "training", 61))
    still(measured, SPINS_W, 4 * MIN)
    measured.see(f.GpuLook(reason="the driver did not answer for 10 s"))  # it may have computed meanwhile
    assert still(measured, SPINS_W, 4 * MIN) == 4 * MIN


def test_counters_that_nobody_reads_are_no_standstill() -> None:
    world = run()
    began = world.t
    while world.t < began + 9 * MIN:
        world.t += 10
        look(world, SPINS_W, tokens=False, readable=False)
    assert not world.asked(a.Stop)


def test_an_orchestrator_that_sends_nothing_is_found_while_the_trainer_says_that_it_waits() -> None:
    world = run(watts=None)
    world.see(f.PhaseSeen("trainer", "rollouts", 61))
    took = still(world, None, 3600.0)
    assert "orchestrator is stuck" in world.said("verdict")[0]
    assert 5 * MIN <= took < step_limits(world.state)[0]


def test_an_environment_that_lets_all_wait_is_learned() -> None:
    world = run(pause_s=150.0)
    limits = standstill_limits(world.state)
    assert limits is not None and limits[0] == pytest.approx(3 * 150, abs=60)
    assert still(world, SPINS_W, 7 * MIN) == 7 * MIN


def test_a_save_and_an_evaluation_are_no_standstill() -> None:
    for role, phase in (("trainer", "checkpoint"), ("orchestrator", "eval")):
        world = run()
        world.see(f.PhaseSeen(role, phase, 60))  # type: ignore[arg-type]
        assert still(world, SPINS_W, 9 * MIN) == 9 * MIN, phase


def test_a_run_of_few_steps_is_given_more_time_since_it_may_just_not_have_paused_yet() -> None:
    world = run(steps=20)
    assert still(world, SPINS_W, 9 * MIN) == 9 * MIN
    assert still(world, SPINS_W, 9 * MIN) < 5 * MIN and world.asked(a.Stop)


def test_nothing_is_said_before_some_steps_were_timed() -> None:
    world = run(steps=3)
    assert standstill_limits(world.state) is None
    assert still(world, SPINS_W, 9 * MIN) == 9 * MIN


def test_a_first_start_and_a_first_resume_may_load_for_as_long_as_they_like() -> None:
    world = World(SETTINGS)
    world.boot()
    world.job_up()
    for _ in range(2):
        look(world, BUSY_W, tokens=True)
    assert standstill_limits(world.state) is None
    assert still(world, SPINS_W, 20 * MIN) == 20 * MIN
