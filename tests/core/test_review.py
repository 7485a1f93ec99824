"""Stories in which evidence contradicts itself, is stale or is garbled: none of them may cost a living run."""

from __future__ import annotations

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.records import Learned, PhaseTimes

from .world import GIB, SETTINGS, World


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


def test_a_run_whose_lines_were_lost_is_believed_with_the_next_step(world: World) -> None:
    world.running_at(8)
    for number in range(500, 503):
        world.step(number)
    assert world.state.progress.step == 502
    assert len(world.state.progress.refused) == 0


def test_a_run_whose_lines_were_lost_is_believed_when_they_are_read_in_one_go(world: World) -> None:
    world.running_at(8)
    for number in (500, 500, 501, 500, 501, 502):  # from two files
        world.see(f.StepDone("trainer", number, 20.0))
    assert world.state.progress.step == 502


def test_two_garbled_numbers_confirm_each_other_only_at_the_pace_of_steps(world: World) -> None:
    world.running_at(8)
    for number in (998, 999, 999, 70, 71):
        world.see(f.StepDone("trainer", number))
    for number in range(9, 20):
        world.step(number)
    assert world.state.progress.step == 19
    assert not world.asked(a.Stop)


def test_a_garbled_number_and_a_true_step_between_begin_a_new_row(world: World) -> None:
    world.running_at(8)
    world.see(f.StepDone("trainer", 998))
    world.step(9)
    world.see(f.StepDone("trainer", 999))
    world.step(10)
    assert world.state.progress.step == 10


def test_no_step_is_believed_to_have_taken_longer_than_the_attempt_lives(world: World) -> None:
    world.running_at(8)
    world.t += 200
    world.see(f.StepDone("trainer", 9, duration_s=1e8))
    assert world.state.books.learned.phases["step"].longest_s <= world.t - world.state.attempt.started


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


# ---------------------------------------------------------------- starts and what follows them


def test_a_start_with_a_step_of_half_an_hour_is_given_what_starts_take_here(world: World) -> None:
    """Load of five minutes and a first step of up to 55: an hour, the setting, is not enough for all of them."""
    longer = PhaseTimes((2400.0, 2100.0, 3300.0), 3300.0, 3, 2400.0, 7200.0)
    world.see(f.DaemonStarted("test", world.settings, "boot"))
    world.see(f.StoreRecords(Learned({"resume": longer})))
    world.job_up()
    for _ in range(230):
        world.t += 20
        world.engine(running=0.0, connections=0)
        world.see(f.PhaseSeen("trainer", "training", 1))
    assert not world.asked(a.Stop)


def test_a_first_step_of_which_rollouts_still_end_is_a_long_one(world: World) -> None:
    world.boot()
    world.job_up()
    for done in range(220):
        world.t += 20
        world.engine()
        world.see(f.WorkSeen(64, done, 256))
    assert not world.asked(a.Stop)
    world.after(8000, tick=60.0)
    assert "made no step" in world.said("verdict")[0]


def test_steps_counted_from_one_after_a_resume_are_told_at_once(world: World) -> None:
    world.local = {15: "complete", 20: "complete"}
    world.boot()
    world.job_up()
    world.step(1)
    world.step(2)
    assert len(world.said("fresh-start")) == 1
    assert "told to resume at step 20 and counts step 1" in world.said("fresh-start")[0]


def test_a_late_answer_under_an_evaluation_is_load_and_no_hang(world: World) -> None:
    world.running_at(8)
    world.see(f.PhaseSeen("orchestrator", "eval", 8))
    for _ in range(50):
        world.see(f.WorkSeen(64, 0, 256))
        world.engine(liveness="timeout", iterations=None, running=None, waiting=None, connections=64)
        world.after(10)
    assert not world.asked(a.Stop)


def test_the_step_under_way_does_not_end_the_incident_of_an_engine_that_restarts_alone() -> None:
    world = World(replace(SETTINGS, inference="own-role"))
    world.running_at(8)
    world.see(f.EngineExited(1, 1))
    world.after(4)
    assert world.asked(a.StopEngine)
    world.see(f.StepDone("trainer", 9, 200.0))
    assert not world.said("incident-closed"), "its rollouts were made by the old server"
    world.after(900)
    world.engine()
    world.step(10)
    assert "step 10 is done" in world.said("incident-closed")[0]
    assert not world.asked(a.Stop)


def test_an_observer_does_not_repeat_what_the_run_survived() -> None:
    world = World(replace(SETTINGS, mode="observe"))
    world.suppress = True
    world.boot()
    world.see(f.AttemptAdopted(1, None, 77))
    world.job_up()
    world.step(1)
    world.engine_process_dies()
    for number in range(2, 12):
        world.after(5)
        world.step(number)
    assert len(world.said("would")) == 1
    assert len(world.said("would-not")) == 1


# ---------------------------------------------------------------- readings that cannot be


def test_a_disk_with_less_than_nothing_free_is_unknown(world: World) -> None:
    world.running_at(8)
    world.see(f.DiskLook("/ckpt", 1000 * GIB, -5))
    assert not world.asked(a.Stop)
    world.see(f.DiskLook("/ckpt", 1000 * GIB, 0))
    assert "The disk is full" in world.said("verdict")[0]


def test_a_counter_that_is_not_a_number_does_not_move(world: World) -> None:
    world.running_at(8)
    for _ in range(40):
        world.engine(iterations=float("nan"), liveness="timeout")
        world.see(f.WorkSeen(64, 3, 256))
        world.after(5)
    assert "vLLM hangs" in world.said("verdict")[0]


def test_the_end_of_a_setup_that_nobody_waits_for_ends_no_run(world: World) -> None:
    world.running_at(8)
    world.see(f.SetupDone("pip could not reach its index"))
    assert world.state.mode == "running"
    assert not world.said("gave-up")


def test_a_start_that_deadlocks_is_still_found_by_two_signals_within_the_setting(world: World) -> None:
    longer = PhaseTimes((2400.0, 2100.0, 3300.0), 3300.0, 3, 2400.0, 20000.0)
    world.see(f.DaemonStarted("test", world.settings, "boot"))
    world.see(f.StoreRecords(Learned({"resume": longer})))
    world.job_up()
    for _ in range(370):
        world.t += 10
        world.engine(iterations=1.0, running=0.0, connections=0)
    assert "The start is stuck" in world.said("verdict")[0]


def test_rollouts_counted_before_a_save_do_not_wait_for_an_idle_engine(world: World) -> None:
    """The engine is idle while the trainer saves, and slow to begin again: it stood still for less than a minute."""
    world.running_at(8)
    world.see(f.WorkSeen(64, 255, 256))
    world.after(50)
    for _ in range(10):
        world.engine(iterations=9.0, running=0.0, waiting=0.0, connections=0)
        world.after(5)
    for _ in range(8):
        world.see(f.WorkSeen(64, 0, 256))
        world.engine(iterations=9.0, running=56.0, connections=64, liveness="timeout")
        world.after(5)
    assert not world.asked(a.Stop)
