"""The ages of the last step, of the start and of phases outlive the daemon; what none watched is proved by the logs."""

from __future__ import annotations

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.deadlines import EVAL_CEILINGS, step_limits

from .world import GIB, World


def another_daemon(world: World, away_s: float = 5.0) -> None:
    world.t += away_s
    world.boot(adopted=world.state.attempt.number)
    world.see(f.AttemptAdopted(world.state.attempt.number, world.state.attempt.resume_step, world.pid))


def nine_minutes(world: World, **engine: object) -> None:
    for _ in range(108):
        world.t += 5
        world.engine(**engine)


IDLE = {"iterations": None, "running": None, "waiting": None, "connections": None}


def test_a_daemon_that_restarts_every_nine_minutes_sees_that_the_job_is_stuck() -> None:
    world = World()
    world.running_at(7)
    stuck = world.t
    while not world.said("verdict") and world.t - stuck < 6 * 3600:
        nine_minutes(world, **IDLE)
        another_daemon(world)
    hard = step_limits(world.state)[1]
    assert world.t - stuck < hard + 660, "at most one daemon later"
    assert "The job hangs: no new step for" in world.said("verdict")[0]
    assert world.asked(a.Stop)


def test_a_start_beside_which_daemons_come_and_go_is_overdue_in_its_time() -> None:
    world = World()
    world.boot()
    while not world.said("verdict") and world.t < 6 * 3600:
        nine_minutes(world, health="refused", **IDLE)
        another_daemon(world)
    assert world.t - 1000 < 3600 + 660
    assert "made no step in 1 h" in world.said("verdict")[0] or "made no step in 60 min" in world.said("verdict")[0]


def test_an_evaluation_is_not_young_again_with_each_daemon() -> None:
    world = World()
    world.running_at(7)
    world.see(f.PhaseSeen("orchestrator", "eval", 8))
    stuck = world.t
    while not world.said("verdict") and world.t - stuck < 12 * 3600:
        nine_minutes(world, **IDLE)
        another_daemon(world)
    allowed = world.state.settings.step_ceiling * EVAL_CEILINGS
    assert world.t - stuck < allowed + step_limits(world.state)[1] + 660, "at most one daemon later"


def test_steps_that_the_unread_log_tells_count() -> None:
    """The job went on for two hours without a daemon: its lines come within seconds, and nothing is late."""
    world = World()
    world.running_at(7)
    another_daemon(world, away_s=7200)
    for number in range(8, 40):
        world.see(f.StepDone("trainer", number, 200.0, loss=0.1))
    for _ in range(100):
        world.t += 5
        world.engine()
    assert not world.said("verdict")
    assert not world.said("suspect")


def test_a_new_daemon_looks_for_two_minutes_before_it_believes_the_age_of_a_step() -> None:
    world = World()
    world.running_at(7)
    another_daemon(world, away_s=7200)
    for _ in range(22):
        world.t += 5
        world.engine()
    assert not world.asked(a.Stop), "its logs may not be read yet"
    world.see(f.StepDone("trainer", 8, 200.0, loss=0.1))
    for _ in range(100):
        world.t += 5
        world.engine()
    assert not world.said("verdict")


def test_a_step_during_which_tokens_are_made_has_the_time_that_it_would_have_had() -> None:
    world = World()
    world.running_at(7)
    world.after(600, tick=5)
    another_daemon(world, away_s=600)
    for _ in range(60):
        world.t += 5
        world.engine()
    assert not world.said("verdict"), "25 min, and the engine works: three times the hard limit is allowed"


def test_lines_that_could_not_be_read_prove_no_silence() -> None:
    world = World()
    world.running_at(7)
    another_daemon(world, away_s=7200)
    world.see(f.LinesMissed())
    for _ in range(120):
        world.t += 5
        world.engine(**IDLE)
    assert not world.asked(a.Stop)


def test_a_download_that_goes_on_without_a_daemon_does_not_make_the_start_old() -> None:
    world = World()
    world.boot()
    for part in range(10):
        world.t += 60
        world.see(f.Growing("download", part * GIB))
    another_daemon(world, away_s=2 * 3600)
    world.after(600, tick=5)
    assert not world.said("verdict")


def test_a_host_that_sleeps_after_the_daemon_came_makes_nothing_old() -> None:
    world = World()
    world.running_at(7)
    another_daemon(world)
    world.t += 7200
    world.see(f.ClockJumped(7200))
    for _ in range(60):
        world.t += 5
        world.engine()
    assert not world.said("verdict")


def test_a_daemon_that_dies_within_its_first_two_minutes_passes_the_true_ages_on() -> None:
    world = World()
    world.running_at(7)
    stuck = world.t
    for _ in range(12):
        for _ in range(20):
            world.t += 5
            world.engine(**IDLE)
        another_daemon(world)
    while not world.said("verdict") and world.t - stuck < 6 * 3600:
        world.t += 5
        world.engine(**IDLE)
    assert world.t - stuck < 12 * 105 + 130
