"""All are known to do nothing: engine, rollouts, and the trainer's GPUs by what they draw.

That is told before a step is late, and only where each of them can be seen.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.deadlines import standstill_limits, step_limits
from supervisor.core.evolve import replace
from supervisor.core.facts import Role

from .world import GIB, SETTINGS, World

MIN = 60.0
STEP_S = 240.0
BUSY_W, SPINS_W = 520.0, 210.0


def look(
    world: World,
    watts: float | None,
    *,
    tokens: bool,
    readable: bool = True,
    paused: bool = False,
    load: float | None = None,
) -> None:
    """One look of all sensors; ``watts`` and ``load`` are what the trainer's GPU draws, and how busy it is.

    An engine that is ``paused`` keeps its requests, and answers nothing from within.
    """
    gpus = (
        f.Gpu("GPU-0", 0, 70 * GIB, 80 * GIB, "inference", power_w=500.0 if tokens else 120.0),
        f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer", power_w=watts, load=load),
    )
    world.see(f.GpuLook(gpus))
    count = world.t if tokens else world.state.engine.count
    if paused:
        world.engine(iterations=count, running=8.0, liveness="unknown")
    elif readable:
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


# ---------------------------------------------------------------- pictures: processes are seen, too

QUIET = f.EffortLook((f.Effort("trainer", 0.0, 0.0), f.Effort("env", 0.1, 0.1)), "", 0.1, 0.0, 2e5)
SPINS, RESTS = 100.0, 5.0  # percent: how busy a GPU is that waits for another one, or for nothing


def seen_run(steps: int = 60, pause_s: float = 0.0, load: float = SPINS) -> World:
    """As ``run``, and processes are seen; ``load`` is that of the trainer's GPU in the pause before each step."""
    world = World()
    world.boot()
    world.job_up()
    look(world, SPINS_W, tokens=False)
    for number in range(1, steps + 1):
        for t in range(0, int(STEP_S + pause_s), 10):
            world.t += 10
            waits = t < pause_s
            look(world, SPINS_W if waits else BUSY_W, tokens=not waits, load=load if waits else SPINS)
            world.see(QUIET)
        world.see(f.StepDone("trainer", number, STEP_S, loss=0.1))
    assert not world.asked(a.Stop)
    world.actions.clear()
    return world


def stands(
    world: World,
    load: float,
    limit_s: float,
    effort: Callable[[int], f.EffortLook] = lambda number: QUIET,
    watts: float = SPINS_W,
) -> float:
    """As ``still``, with what processes do at each look."""
    began, number = world.t, 0
    while not world.asked(a.Stop) and world.t < began + limit_s:
        world.t += 10
        look(world, watts, tokens=False, load=load)
        world.see(effort(number))
        number += 1
    return world.t - began


def test_a_picture_that_was_never_healthy_has_a_short_limit() -> None:
    world = seen_run()
    assert 90 <= stands(world, SPINS, 3600.0) <= 110
    (sentence,) = world.said("verdict")
    assert "the engine made no token" in sentence and "no environment, file or network moved" in sentence
    assert "as in a collective that never ends" in sentence


def test_where_all_rest_the_slower_rules_hold_since_an_environment_may_wait_for_a_service_elsewhere() -> None:
    world = seen_run()
    assert 300 <= stands(world, RESTS, 3600.0) <= 400
    (sentence,) = world.said("verdict")
    assert "the engine made no token" in sentence and "no environment, file or network moved" not in sentence


def test_each_picture_has_the_limit_that_its_own_pauses_taught() -> None:
    assert stands(seen_run(pause_s=100.0, load=RESTS), SPINS, 3600.0) <= 110
    world = seen_run(pause_s=100.0, load=SPINS)
    assert stands(world, SPINS, 250.0) == 250, "ranks that wait for their batch look like that here"
    assert stands(world, SPINS, 3600.0) <= 90 and world.asked(a.Stop)


def test_a_hang_that_lifts_by_itself_makes_the_limit_of_its_picture_longer() -> None:
    world = seen_run()
    assert stands(world, SPINS, 80.0) == 80
    world.see(f.StepDone("trainer", 61, STEP_S, loss=0.1))
    assert stands(world, SPINS, 190.0) == 190


@pytest.mark.soak
@pytest.mark.parametrize(
    "moving",
    [
        replace(QUIET, helper_cores=3.0),  # a compiler, the tests of an environment
        replace(QUIET, efforts=(f.Effort("env", 1.0, 1.0),)),
        replace(QUIET, file_bytes_s=5e8),  # a checkpoint is read
        replace(QUIET, net_bytes_s=5e7),
        replace(QUIET, file_bytes_s=None),  # hidden: the slower rules hold
        f.EffortLook(reason="the look took too long"),
    ],
)
def test_what_moves_or_cannot_be_seen_is_no_standstill(moving: f.EffortLook) -> None:
    assert stands(seen_run(), SPINS, 290.0, lambda number: moving) == 290


def test_one_look_that_fails_or_shows_a_burst_changes_nothing() -> None:
    for odd in (f.EffortLook(reason="the look took too long"), replace(QUIET, helper_cores=2.0)):
        took = stands(seen_run(), SPINS, 3600.0, lambda number, odd=odd: odd if number in (3, 6) else QUIET)  # type: ignore[misc]
        assert took <= 110


def test_a_rank_that_computes_on_its_cpu_while_its_gpu_rests_has_more_time() -> None:
    works = replace(QUIET, efforts=(f.Effort("trainer", 1.0, 1.0),))
    assert stands(seen_run(), RESTS, 290.0, lambda number: works) == 290


def test_a_gpu_that_computes_shows_no_picture() -> None:
    assert stands(seen_run(), SPINS, 550.0, watts=BUSY_W) == 550


def test_a_resume_that_deadlocks_is_found_by_its_picture_once_a_start_was_seen() -> None:
    world = seen_run()
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    world.after(60.0)
    world.job_up()
    world.actions.clear()
    took = stands(world, SPINS, 3600.0)
    assert 180 <= took <= 210 and world.said("verdict")[0].startswith("The start is stuck")


def run_with_saves() -> World:
    world = seen_run()
    for number in range(61, 80):
        world.see(f.PhaseSeen("trainer", "checkpoint", number - 1))
        for t in range(0, int(STEP_S), 10):
            world.t += 10
            look(world, SPINS_W if t < 60 else BUSY_W, tokens=t >= 60, load=SPINS)
            world.see(replace(QUIET, file_bytes_s=5e8) if t < 60 else QUIET)
        world.see(f.StepDone("trainer", number, STEP_S, loss=0.1))
    world.see(f.PhaseSeen("trainer", "checkpoint", 79))
    world.actions.clear()
    return world


@pytest.mark.soak
def test_a_save_that_hangs_is_found_by_what_it_does_not_write() -> None:
    flushes = replace(QUIET, flushed_bytes_s=3e8)
    assert 300 <= stands(run_with_saves(), SPINS, 3600.0, lambda number: replace(QUIET, flushed_bytes_s=0.0)) <= 330
    assert stands(run_with_saves(), SPINS, 340.0, lambda number: flushes) == 340, "the kernel brings it to the volume"
    assert stands(run_with_saves(), SPINS, 340.0, lambda number: QUIET) == 340, "that is unknown"


# ---------------------------------------------------------------- what moves may be what the run waits for

TESTS_RUN = replace(QUIET, helper_cores=4.0, efforts=(f.Effort("trainer", 0.0, 0.0), f.Effort("env", 4.0, 4.0)))


def test_environments_that_visibly_work_are_given_three_times_as_long() -> None:
    """The last rollouts of a step run their tests; where processes only poll, that hides a hang no longer."""
    resting = stands(seen_run(), RESTS, 3600.0)
    working = stands(seen_run(), RESTS, 3600.0, lambda number: TESTS_RUN)
    assert 300 <= resting <= 400
    assert 2.5 * resting <= working <= 3.5 * resting


def test_a_save_that_the_kernel_still_writes_back_is_not_stuck() -> None:
    flushes = replace(QUIET, flushed_bytes_s=4e7)
    assert stands(run_with_saves(), SPINS, 15 * MIN, lambda number: flushes) == 15 * MIN
    assert stands(run_with_saves(), SPINS, 15 * MIN, lambda number: replace(QUIET, flushed_bytes_s=0.0)) <= 330


@pytest.mark.parametrize(("tokens_s", "pause_s"), [(20, 100), (25, 130), (40, 100)])
def test_what_an_update_paused_late_stays_explained_when_its_end_is_told_before_a_token(
    tokens_s: int, pause_s: int
) -> None:
    world = seen_run()
    world.see(f.PhaseSeen("trainer", "rollouts", 61))
    world.see(f.PhaseSeen("orchestrator", "weight-update", 60, "Updating policy in-flight"))
    for t in range(0, tokens_s + pause_s + 300, 5):
        world.t += 5
        if t == tokens_s + pause_s - 5:
            world.see(f.PhaseSeen("orchestrator", "rollouts", 61))
        paused = tokens_s <= t < tokens_s + pause_s
        look(world, SPINS_W, tokens=not paused, paused=paused, load=SPINS)
        world.see(QUIET)
    assert not world.asked(a.Stop)
    assert "engine/idle" not in world.state.books.learned.phases


def test_a_pause_late_in_a_long_step_is_none_of_the_updates() -> None:
    world = World()
    world.boot()
    world.job_up()
    for number in range(1, 12):
        for t in range(0, 3000, 10):
            world.t += 10
            look(world, BUSY_W, tokens=t >= 10 and not 2900 <= t < 2950)
        world.see(f.StepDone("trainer", number, 3000.0, loss=0.1))
        world.see(f.PhaseSeen("orchestrator", "weight-update", number, "Updating policy in-flight"))
    assert world.state.books.learned.phases["step"].longest_s >= 2950 and not world.asked(a.Stop)


@pytest.mark.parametrize(("tokens_s", "pause_s"), [(40, 70), (40, 100), (60, 90), (100, 60)])
def test_an_update_that_pauses_the_engine_late_is_given_its_time(tokens_s: int, pause_s: int) -> None:
    """Requests that run are finished first, or the weights are still on their way."""
    world = run()
    world.see(f.PhaseSeen("orchestrator", "weight-update", 60, "Updating policy in-flight"))
    for t in range(0, tokens_s + pause_s, 5):
        world.t += 5
        count = world.t if t < tokens_s else world.state.engine.count
        world.engine(iterations=count, liveness="timeout" if t >= tokens_s else "ok", connections=None)
        world.see(f.WorkSeen(64, 0, 256))
    assert not world.asked(a.Stop)


def test_an_update_of_weights_is_over_when_the_engine_makes_tokens_again() -> None:
    """At log level "info" no line says so, and the learned time of each step lacked what was taken for the update."""
    world = World()
    world.boot()
    world.job_up()
    for number in range(1, 30):
        for t in range(0, int(STEP_S), 10):
            world.t += 10
            look(world, BUSY_W, tokens=t >= 10)
        world.see(f.StepDone("trainer", number, STEP_S, loss=0.1))
        world.see(f.PhaseSeen("orchestrator", "weight-update", number, "Updating policy in-flight"))
    assert world.state.books.learned.phases["step"].longest_s >= STEP_S - 30


# ---------------------------------------------------------------- the end of a run


def at_the_end(steps: int = 60) -> World:
    world = seen_run(steps - 1)
    world.see(f.SettingsChanged(replace(world.settings, max_steps=steps)))
    world.after(STEP_S - 1, tick=10)
    world.see(f.StepDone("orchestrator", steps, STEP_S, 0.4))
    world.see(f.StepDone("trainer", steps, STEP_S, loss=0.1))
    world.actions.clear()
    return world


def test_the_evaluations_of_a_finished_training_are_completed() -> None:
    world = at_the_end()
    world.see(f.PhaseSeen("orchestrator", "eval", text="Starting evals in background"))
    world.see(f.PhaseSeen("orchestrator", "draining"))
    world.see(f.FinishSeen("trainer", "RL trainer finished!"))
    for _ in range(270):
        world.t += 10
        look(world, 100.0, tokens=True)
        world.see(QUIET)
    assert not world.asked(a.Stop)
    took = still(world, 100.0, 3600.0)
    assert 600 <= took <= 620 and "finished" in world.said("verdict")[0]


def test_a_last_save_that_hangs_waits_for_no_long_step() -> None:
    world = at_the_end()
    world.see(f.PhaseSeen("trainer", "checkpoint", text="Writing final checkpoint"))
    quiet = stands(world, RESTS, 4 * 3600.0, lambda number: replace(QUIET, flushed_bytes_s=0.0))
    assert 1200 <= quiet <= 1800
    writes = at_the_end()
    writes.see(f.PhaseSeen("trainer", "checkpoint", text="Writing final checkpoint"))
    assert stands(writes, RESTS, 40 * MIN, lambda number: replace(QUIET, file_bytes_s=5e8)) == 40 * MIN


@pytest.mark.parametrize(
    ("role", "phase", "watts"),
    [("trainer", "eval", BUSY_W), ("orchestrator", "eval", SPINS_W), ("trainer", "", BUSY_W)],
)
def test_a_validation_or_an_evaluation_after_the_last_step_is_not_cut(role: Role, phase: str, watts: float) -> None:
    world = at_the_end()
    if phase:
        world.see(f.PhaseSeen(role, phase, text="Running validation"))
    for _ in range(240):
        world.t += 10
        look(world, watts, tokens=False, readable=False)
        world.see(QUIET)
    assert not world.asked(a.Stop)


def test_an_evaluation_of_which_neither_line_nor_counter_tells_is_not_cut_after_the_last_step() -> None:
    world = World(replace(SETTINGS, max_steps=60))
    world.boot()
    world.job_up()
    world.state = replace(world.state, engine=replace(world.state.engine, count=None))  # never readable

    def see(watts: float) -> None:
        world.t += 10
        gpus = (
            f.Gpu("GPU-0", 0, 70 * GIB, 80 * GIB, "inference", power_w=500.0),
            f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer", power_w=watts),
        )
        world.see(f.GpuLook(gpus))
        world.engine(iterations=None, running=None, waiting=None)
        world.see(QUIET)

    for number in range(1, 61):
        for _ in range(24):
            see(BUSY_W)
        world.see(f.StepDone("trainer", number, STEP_S, loss=0.1))
    for _ in range(360):
        see(100.0)
    assert not world.asked(a.Stop)


@pytest.mark.parametrize("lone", [True, False])
def test_tokens_of_engines_on_several_machines_count_at_the_end_as_well(lone: bool) -> None:
    world = at_the_end()
    world.see(f.FinishSeen("trainer", "RL trainer finished!"))
    for _ in range(120):
        world.t += 10
        place = {} if lone else {"host": "n1", "index": 0}
        world.see(f.EngineLook("http://n1:8000", "ok", "ok", iterations=world.t, running=8.0, waiting=0.0, **place))
    assert not world.asked(a.Stop)


# ---------------------------------------------------------------- an engine that answers nothing in an evaluation


@pytest.mark.parametrize("rests", [True, False])
def test_an_engine_that_answers_nothing_and_rests_evaluates_nothing(rests: bool) -> None:
    world = run()
    world.see(f.PhaseSeen("orchestrator", "eval", text="Starting evals in background"))
    for _ in range(12):
        world.t += 10
        look(world, SPINS_W, tokens=True)
    began = world.t
    while not world.asked(a.Stop) and world.t < began + 3600:
        world.t += 10
        watts = 120.0 if rests else 500.0
        gpus = (
            f.Gpu("GPU-0", 0, 70 * GIB, 80 * GIB, "inference", power_w=watts),
            f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer", power_w=SPINS_W),
        )
        world.see(f.GpuLook(gpus))
        world.engine(health="timeout", iterations=None, running=None, waiting=None)
        world.see(f.WorkSeen(64, 0, 256))
    assert (world.t - began < 1800) is rests


# ---------------------------------------------------------------- a trainer that counts each epoch from 1


@pytest.mark.parametrize(("seconds", "steps"), [(20.0, 100), (200.0, 100), (300.0, 10), (200.0, 6), (600.0, 4)])
def test_a_trainer_that_counts_each_epoch_from_1_moves(seconds: float, steps: int) -> None:
    world = World(replace(SETTINGS, has_engine=False))
    world.boot()
    world.job_up()
    for _ in range(8):
        for number in range(1, steps + 1):
            world.after(seconds, tick=10)
            world.see(f.StepDone("trainer", number, seconds, loss=0.1))
    assert not world.asked(a.Stop) and world.state.progress.step == steps
    for _ in range(200):  # it prints one of its steps again and again
        world.after(60, tick=10)
        world.see(f.StepDone("trainer", steps - 4, seconds, loss=0.1))
    assert world.asked(a.Stop)


@pytest.mark.parametrize("late", [1, 2])
def test_a_second_file_that_is_late_does_not_hide_that_an_epochs_steps_are_done(late: int) -> None:
    world = World(replace(SETTINGS, has_engine=False))
    world.boot()
    world.job_up()
    lines: list[int] = []
    for _ in range(4):
        for number in range(1, 41):
            world.after(200.0, tick=10)
            world.see(f.StepDone("trainer", number, 200.0, loss=0.1))
            lines.append(number)
            if len(lines) > late:
                world.see(f.StepDone("trainer", lines[-1 - late], 200.0, loss=0.1))
    assert not world.asked(a.Stop)
    world.after(1800, tick=10)
    assert world.asked(a.Stop)


def test_an_update_of_weights_beside_an_evaluation_teaches_none_of_its_time() -> None:
    world = World()
    world.boot()
    world.job_up()
    for number in range(1, 22):
        evaluates = number % 10 == 0
        for t in range(0, int(STEP_S) + 900 * evaluates, 10):
            world.t += 10
            if t == 220 and evaluates:
                world.see(f.PhaseSeen("orchestrator", "eval", number, "Starting evals in background"))
                world.see(f.PhaseSeen("orchestrator", "weight-update", number, "Updating policy in-flight"))
            look(world, BUSY_W, tokens=True)
        world.see(f.StepDone("trainer", number, STEP_S, loss=0.1))
        world.see(f.StepDone("orchestrator", number, STEP_S, 0.4))
    assert world.state.books.learned.phases["step"].longest_s <= STEP_S
