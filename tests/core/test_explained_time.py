"""Time that a known reason explains stays explained, and what nobody could see is not taken for standing still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.deadlines import step_limits
from supervisor.core.evolve import replace
from supervisor.core.phases import RESUME, STEP

from .world import SETTINGS, World

MIN, HOUR = 60.0, 3600.0
STEP_S = 120.0
Look = Callable[[World], None]


def busy(world: World) -> None:
    """The engine makes tokens for somebody."""
    world.engine()


def unreadable(world: World) -> None:
    """/health answers, and /metrics cannot be read."""
    world.engine(iterations=None, running=None, waiting=None)


def idle(world: World) -> None:
    """The engine is well and nobody asks it for anything."""
    world.engine(iterations=float(world.state.engine.count or 1.0), running=0.0, waiting=0.0, connections=0)


def run(steps: int = 12, settings: f.Settings = SETTINGS, look: Look = busy) -> World:
    """A run of two-minute steps."""
    world = World(settings)
    world.boot()
    world.job_up()
    for number in range(1, steps + 1):
        world.see(f.PhaseSeen("orchestrator", "rollouts", number))
        passes(world, STEP_S, look)
        step_line(world, number)
    world.actions.clear()
    return world


def passes(world: World, seconds: float, look: Look = busy, *, pipeline: bool = False) -> None:
    """Time passes with a look at the engine each ten seconds; ``pipeline``: the same counts are told as well."""
    end = world.t + seconds
    while world.t < end:
        world.t = min(end, world.t + 10.0)
        look(world)
        if pipeline:
            world.see(f.WorkSeen(64, 0, 256))


def step_line(world: World, number: int) -> None:
    world.see(f.StepDone("orchestrator", number, STEP_S, 0.4))
    world.see(f.StepDone("trainer", number, STEP_S, loss=0.1))


def evaluates(world: World, step: int, seconds: float, look: Look = busy, *, pipeline: bool = False) -> None:
    world.see(f.PhaseSeen("orchestrator", "eval", step, f"Running evals for step {step}"))
    passes(world, seconds, look, pipeline=pipeline)


def stopped(world: World) -> list[str]:
    return [action.reason for action in world.asked(a.Stop) if isinstance(action, a.Stop)]


# ---------------------------------------------------------------- A2: the phase is over, its time stays explained


def test_a_healthy_job_is_not_restarted_when_its_first_long_evaluation_ends() -> None:
    world = run()
    evaluates(world, 13, 58 * MIN)
    world.see(f.PhaseSeen("orchestrator", "rollouts", 13))
    passes(world, STEP_S)
    assert stopped(world) == [] and not world.state.suspicion.sentence
    step_line(world, 13)
    assert stopped(world) == []


def test_an_evaluation_of_three_hours_is_left_alone_with_and_without_counters() -> None:
    for look in (busy, unreadable):
        world = run(look=look)
        evaluates(world, 13, 3 * HOUR, look, pipeline=True)
        world.see(f.PhaseSeen("orchestrator", "rollouts", 13))
        passes(world, STEP_S, look)
        assert stopped(world) == [] and not world.state.suspicion.sentence, look.__name__


def test_what_several_phases_in_a_row_took_is_explained_together() -> None:
    world = run()
    world.see(f.PhaseSeen("trainer", "checkpoint", 12))
    passes(world, 14 * MIN, idle)
    world.see(f.PhaseSeen("trainer", "rollouts", 13))
    world.see(f.PhaseSeen("orchestrator", "weight-update", 12))
    passes(world, 2 * MIN, idle)
    evaluates(world, 13, 50 * MIN)
    world.see(f.PhaseSeen("orchestrator", "rollouts", 13))
    passes(world, STEP_S)
    assert stopped(world) == [] and not world.state.suspicion.sentence


def test_the_trainers_step_that_ends_during_an_evaluation_does_not_end_it() -> None:
    # One step of asynchrony: the orchestrator evaluates while the trainer still has a batch.
    world = run()
    evaluates(world, 14, 1 * MIN)
    world.see(f.StepDone("trainer", 13, STEP_S, loss=0.1))
    passes(world, 2 * HOUR)
    world.see(f.PhaseSeen("orchestrator", "rollouts", 14))
    passes(world, STEP_S)
    assert stopped(world) == [] and not world.state.suspicion.sentence


def test_a_base_model_evaluation_before_the_first_step_is_no_stuck_start() -> None:
    for look in (busy, unreadable):
        world = World(replace(SETTINGS, startup=HOUR))
        world.boot()
        world.job_up()
        evaluates(world, 0, 3 * HOUR, look, pipeline=True)
        world.see(f.PhaseSeen("orchestrator", "rollouts", 1))
        passes(world, STEP_S, look)
        step_line(world, 1)
        assert stopped(world) == [], look.__name__
        # Only what the evaluation leaves is the length of a start, or the next one that hangs costs half a day.
        assert world.state.books.learned.phases[RESUME].longest_s < 10 * MIN


def test_an_evaluation_is_not_learned_as_the_length_of_a_step() -> None:
    world = run()
    before = step_limits(world.state)
    evaluates(world, 13, 3 * HOUR)
    world.see(f.PhaseSeen("orchestrator", "rollouts", 13))
    passes(world, STEP_S)
    step_line(world, 13)
    assert stopped(world) == [] and world.state.progress.step == 13
    assert world.state.books.learned.phases[STEP].longest_s < 2 * STEP_S
    assert step_limits(world.state) == pytest.approx(before, rel=0.2)


def test_a_run_that_evaluates_at_each_step_learns_its_steps_without_and_is_still_left_alone() -> None:
    world = run()
    for number in range(13, 21):
        evaluates(world, number, 40 * MIN)
        world.see(f.PhaseSeen("orchestrator", "rollouts", number))
        passes(world, STEP_S)
        step_line(world, number)
    assert stopped(world) == [] and not world.said("suspect")
    assert world.state.books.learned.phases[STEP].longest_s < 2 * STEP_S


def test_a_save_of_a_quarter_of_an_hour_does_not_count_against_a_step_of_seconds() -> None:
    world = run()
    world.see(f.PhaseSeen("trainer", "checkpoint", 12))
    for second in range(0, 16 * 60, 15):
        world.t += 15.0
        idle(world)
        world.see(f.Growing("checkpoint", (second + 1) << 30))
    world.see(f.PhaseSeen("trainer", "rollouts", 13))
    passes(world, 9 * MIN)
    assert stopped(world) == [] and not world.state.suspicion.sentence


def test_a_daemon_that_stood_still_within_an_evaluation_moves_what_was_explained_along() -> None:
    world = run()
    evaluates(world, 13, 50 * MIN)
    world.see(f.PhaseSeen("orchestrator", "rollouts", 13))
    world.t += 30 * MIN
    world.see(f.ClockJumped(30 * MIN))
    passes(world, STEP_S)
    assert stopped(world) == [] and not world.state.suspicion.sentence


# ---------------------------------------------------------------- and hangs are still found


def test_a_hang_within_an_evaluation_is_found() -> None:
    world = run()
    evaluates(world, 13, 5 * MIN)
    began = world.t
    while not stopped(world) and world.t < began + HOUR:
        passes(world, 10, idle, pipeline=True)
    assert "orchestrator is stuck" in stopped(world)[0]
    assert world.t - began < 15 * MIN


def test_an_engine_that_stands_still_within_an_evaluation_is_found_in_two_minutes() -> None:
    world = run()
    evaluates(world, 13, 5 * MIN)
    began, count = world.t, world.t
    while not stopped(world) and world.t < began + HOUR:
        world.t += 5
        world.engine(iterations=count, canary="timeout" if world.t - began > 60 else "", liveness="timeout")
    assert "vLLM hangs" in stopped(world)[0]
    assert world.t - began < 2 * MIN


def test_a_hang_after_an_evaluation_is_found_as_soon_as_one_without() -> None:
    after_eval, without = run(), run()
    evaluates(after_eval, 13, 2 * HOUR)
    took = []
    for world in (after_eval, without):
        world.see(f.PhaseSeen("orchestrator", "rollouts", 13))
        began = world.t
        while not stopped(world) and world.t < began + 5 * HOUR:
            passes(world, 10, idle, pipeline=True)
        took.append(world.t - began)
    assert took[0] == pytest.approx(took[1], abs=30)


@pytest.mark.parametrize("look", [idle, unreadable])
def test_a_phase_whose_end_is_never_logged_does_not_excuse_for_ever(look: Look) -> None:
    world = run(look=look)
    evaluates(world, 13, 1 * MIN, look)
    began = world.t
    while not stopped(world) and world.t < began + 24 * HOUR:
        passes(world, 30, look, pipeline=True)
    assert stopped(world)
    assert world.t - began < (HOUR if look is idle else 6 * HOUR)


def test_an_evaluation_that_makes_tokens_for_ever_is_ended_within_a_day() -> None:
    world = run()
    evaluates(world, 13, 24 * HOUR)
    assert stopped(world)


def test_a_collective_that_never_ends_is_found_though_saves_stood_before_it() -> None:
    world = run()
    world.see(f.PhaseSeen("trainer", "checkpoint", 12))
    passes(world, 5 * MIN, idle)
    world.see(f.PhaseSeen("trainer", "training", 13))
    began = world.t
    while not stopped(world) and world.t < began + 5 * HOUR:
        passes(world, 30, idle, pipeline=True)
    assert world.t - began < HOUR


# ---------------------------------------------------------------- A3: unknown is not idle


def test_an_evaluation_with_unreadable_counters_and_a_still_pipeline_line_is_not_a_stuck_orchestrator() -> None:
    world = run()  # counters were read before
    evaluates(world, 13, 40 * MIN, unreadable, pipeline=True)
    assert stopped(world) == [] and not world.state.suspicion.sentence


def test_a_validation_by_the_trainer_needs_no_engine() -> None:
    world = run()
    world.see(f.PhaseSeen("trainer", "eval", 13, "Running validation"))
    passes(world, 40 * MIN, idle)
    assert stopped(world) == [] and not world.state.suspicion.sentence


def test_an_engine_so_slow_that_it_makes_two_iterations_a_look_works() -> None:
    world = run()
    count = world.t

    def slow(world: World) -> None:
        nonlocal count
        count += 2
        world.engine(iterations=count)

    evaluates(world, 13, 40 * MIN, slow, pipeline=True)
    assert stopped(world) == [] and not world.state.suspicion.sentence


def test_a_late_step_of_which_the_engine_says_nothing_is_not_stuck_because_one_rollout_takes_a_minute() -> None:
    world = run(look=unreadable)
    soft, _ = step_limits(world.state)
    world.see(f.PhaseSeen("orchestrator", "rollouts", 13))
    done = 0
    while world.t < world.state.progress.t + soft + 5 * MIN:
        done += 1
        for _ in range(9):  # a rollout ends each ninety seconds
            world.t += 10
            unreadable(world)
            world.see(f.WorkSeen(8, done, 256))
    assert stopped(world) == []


def test_refused_requests_are_hopeless_only_where_the_engine_is_known_to_work_for_nobody() -> None:
    def told(**look: Any) -> list[str]:
        world = World(SETTINGS)
        world.boot()
        world.job_up()
        world.see(f.WorkSeen(8, 0, 256))
        for _ in range(80):
            world.t += 10
            world.engine(iterations=1.0, **look)
            world.see(f.WorkSeen(8, 0, 256))
            world.see(f.ErrorSeen("orchestrator", "max-tokens-too-large", "max_tokens is too large"))
        return stopped(world)

    assert told(running=0.0, waiting=0.0, connections=0) != []
    assert told(running=None, waiting=None, connections=None) == []


def test_one_canary_that_is_not_answered_by_an_idle_engine_is_no_hang() -> None:
    def missed(times: int) -> list[str]:
        world = run()
        count = float(world.state.engine.count or 0.0)
        for look in range(24):  # connections that are kept open look like work
            world.t += 5
            canary = "timeout" if look in (11, 17)[:times] else ""
            world.engine(iterations=count, running=0.0, connections=64, liveness="absent", canary=canary)
        return stopped(world)

    assert missed(1) == []
    assert "vLLM hangs" in missed(2)[0]


def test_rollouts_that_wait_for_their_environment_are_no_work_for_an_engine_that_nobody_is_connected_to() -> None:
    world = run()
    count = float(world.state.engine.count or 0.0)
    for _ in range(24):
        world.t += 5
        world.engine(iterations=count, running=0.0, connections=0, liveness="absent")
        world.see(f.WorkSeen(3, 253, 256))
    assert stopped(world) == []


def test_an_update_of_weights_during_an_evaluation_does_not_end_it() -> None:
    for log_goes_on in (("weight-update", 13), ("barrier", None), ("rollouts", None)):
        world = run(look=unreadable)
        evaluates(world, 14, 1 * MIN, unreadable)
        world.see(f.PhaseSeen("orchestrator", *log_goes_on))
        world.see(f.StepDone("trainer", 13, STEP_S, loss=0.1))
        passes(world, 2 * HOUR, unreadable, pipeline=True)
        world.see(f.StepDone("orchestrator", 14, STEP_S, 0.4))
        passes(world, STEP_S, unreadable)
        assert stopped(world) == [] and not world.state.suspicion.sentence, log_goes_on
        assert world.state.books.learned.phases["orchestrator/eval"].longest_s > 2 * HOUR


def test_a_first_evaluation_of_which_no_line_tells_is_left_alone() -> None:
    """metrics.jsonl alone: steps are seen, and nothing of the orchestrator's log."""
    for look in (busy, unreadable):
        world = World(SETTINGS)
        world.boot()
        world.job_up() if look is busy else look(world)
        for number in range(1, 13):
            passes(world, STEP_S, look)
            world.see(f.StepDone("trainer", number, STEP_S))
        passes(world, 3 * HOUR, look)
        assert stopped(world) == [], look.__name__


def test_a_start_in_which_the_engine_makes_tokens_is_not_stuck() -> None:
    world = World(SETTINGS)
    world.boot()
    world.job_up()
    passes(world, 100 * MIN, pipeline=True)
    assert stopped(world) == []


def test_a_step_whose_last_rollouts_take_half_of_it_still_moves() -> None:
    world = World()
    world.boot()
    unreadable(world)
    for number in range(1, 13):
        passes(world, 10 * MIN, unreadable)
        step_line(world, number)
    _, hard = step_limits(world.state)
    began = world.t
    while world.t < began + 1.2 * hard:
        world.t += 10
        unreadable(world)
        world.see(f.WorkSeen(64, int(min(world.t - began, 0.7 * hard)), 10_000))
    assert stopped(world) == []
    while not stopped(world) and world.t < began + 2 * hard:
        world.t += 10
        unreadable(world)
        world.see(f.WorkSeen(64, int(0.7 * hard), 10_000))
    assert "The job hangs" in stopped(world)[0]


def test_an_environment_that_takes_minutes_is_learned_and_its_longest_wait_is_no_stuck_orchestrator() -> None:
    world = World()
    world.boot()
    world.job_up()
    for number in range(1, 33):
        world.see(f.PhaseSeen("trainer", "rollouts", number))
        passes(world, 5 * MIN if number == 7 else 20.0, idle, pipeline=True)
        passes(world, STEP_S)
        step_line(world, number)
    world.actions.clear()
    world.see(f.PhaseSeen("trainer", "rollouts", 33))
    passes(world, STEP_S)
    passes(world, 10 * MIN, idle, pipeline=True)
    assert world.state.now - world.state.progress.t > step_limits(world.state)[0]
    assert stopped(world) == []
    # But not for ever.
    passes(world, 20 * MIN, idle, pipeline=True)
    assert "orchestrator is stuck" in stopped(world)[0]


def test_a_server_that_is_late_with_health_as_well_is_slow_and_does_not_hang() -> None:
    """Nobody can read its counters, so that only /liveness could say that it stands still."""
    world = run(look=unreadable)
    for look in range(60):
        world.t += 5
        health = "timeout" if look % 3 else "ok"
        world.engine(iterations=None, running=None, waiting=None, health=health, liveness="timeout")
        world.see(f.WorkSeen(64, 0, 256))
    assert stopped(world) == []


@pytest.mark.parametrize("counters", [True, False])
def test_rollouts_that_wait_for_their_environment_say_nothing_against_an_engine_to_which_no_one_is_connected(
    counters: bool,
) -> None:
    world = run()
    count = float(world.state.engine.count or 1.0)
    for look in range(60):
        world.t += 5
        world.see(f.WorkSeen(3, 61, 64))
        world.engine(
            liveness="timeout",  # the environments take the host's CPUs: it is late
            connections=None if look % 20 == 19 else 0,
            **{"iterations": count, "running": 0.0, "waiting": 0.0}
            if counters and look % 20 != 19
            else {"iterations": None, "running": None, "waiting": None},
        )
    assert stopped(world) == []


@pytest.mark.parametrize("connections", [3, None])
def test_rollouts_that_stand_still_speak_against_an_engine_that_is_asked(connections: int | None) -> None:
    world = run()
    for _ in range(60):
        world.t += 5
        world.see(f.WorkSeen(3, 61, 64))
        world.engine(liveness="timeout", connections=connections, iterations=None, running=None, waiting=None)
    assert "3 rollouts in flight did not move" in stopped(world)[0]
