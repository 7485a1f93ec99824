"""Stories of how the core decides: what it learned, who is to blame, which half goes, what is only watched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.deadlines import explain_step_limits, startup_budget, step_limits
from supervisor.core.evolve import replace
from supervisor.core.records import Learned, PhaseTimes

from .world import GIB, SETTINGS, World

OWN = replace(SETTINGS, inference="own-role")
OBSERVE = replace(SETTINGS, mode="observe")


@pytest.fixture
def world() -> World:
    return World()


def until(
    world: World, event: str, limit_s: float, each: Callable[[], None] = lambda: None, every_s: float = 5.0
) -> float:
    """Seconds until ``event`` is said, with ``each`` happening every so often."""
    began = world.t
    while not world.said(event):
        assert world.t - began <= limit_s, f"not said within {limit_s} s: {world.actions[-3:]}"
        each()
        world.after(every_s, tick=1.0)
    return world.t - began


def idle(world: World) -> None:
    world.engine(iterations=1.0, running=0.0, connections=0)


# ---------------------------------------------------------------- learned deadlines


def test_deadlines_follow_the_runs_own_steps(world: World) -> None:
    world.settings = replace(SETTINGS, step_floor=60.0)
    world.running_at(12)
    deadline = step_limits(world.state)
    assert deadline.hard_s == pytest.approx(1000, abs=10)
    assert 590 <= deadline.soft_s < 1000
    assert "steps take 3 min 20 s (longest 3 min 2" in explain_step_limits(world.state)


def test_before_five_steps_are_timed_the_ceiling_holds(world: World) -> None:
    world.running_at(3)
    deadline = step_limits(world.state)
    assert deadline.hard_s == SETTINGS.step_ceiling
    assert "only 2 timed yet" in explain_step_limits(world.state)


def test_one_freak_step_does_not_widen_the_suspicion_for_long(world: World) -> None:
    world.running_at(12)
    usual = step_limits(world.state).soft_s
    world.step(13, seconds=900)
    assert step_limits(world.state).soft_s >= 1.5 * 900, "it has been seen, so it may come again"
    for number in range(14, 66):
        world.step(number)
    assert step_limits(world.state).soft_s == pytest.approx(usual, rel=0.3)


def test_a_step_during_which_another_daemon_watched_teaches_nothing(world: World) -> None:
    world.running_at(8)
    known = world.state.books.learned.phases["step"].count
    world.boot(adopted=1)
    world.after(300)
    world.step(9)
    assert world.state.books.learned.phases["step"].count == known
    world.step(10)
    assert world.state.books.learned.phases["step"].count == known + 1


def test_the_time_from_launch_to_the_first_step_is_learned_and_shortens_the_next_budget(world: World) -> None:
    assert startup_budget(world.state) == SETTINGS.startup
    world.running_at(7)
    resume = world.state.books.learned.phases["resume"]
    assert resume.count == 1
    assert startup_budget(world.state) == max(600.0, 5 * resume.longest_s)


def test_a_pod_begins_with_what_the_pods_before_it_learned(world: World) -> None:
    times = PhaseTimes((240.0,) * 20, 300.0, 20, 240.0, 720.0)
    world.boot()
    world.see(f.StoreRecords(Learned({"step": times, "resume": PhaseTimes((400.0,), 400.0, 1, 400.0, 1200.0)})))
    assert step_limits(world.state).hard_s == 1500
    assert startup_budget(world.state) == 2000


def test_what_was_learned_goes_to_the_store_with_each_published_step(world: World) -> None:
    world.settings = replace(SETTINGS)
    world.see(f.DaemonStarted("test", world.settings, "boot", None, journal="j1"))
    world.job_up()
    for number in range(1, 6):
        world.step(number)
    world.actions.clear()
    world.checkpoint(5)
    assert world.asked(a.Publish)
    (kept,) = world.asked(a.KeepRecords)
    assert isinstance(kept, a.KeepRecords)
    assert (kept.journal, kept.learned.phases["step"].count) == ("j1", 4)
    assert sum(kept.ledger.seconds.values()) == pytest.approx(world.t - 1000.0)


# ---------------------------------------------------------------- known reasons for silence


def test_a_checkpoint_save_explains_silence_for_as_long_as_saves_take_here(world: World) -> None:
    world.settings = replace(SETTINGS, step_floor=60.0)
    world.boot()
    world.job_up()
    for number in range(1, 13):
        world.see(f.PhaseSeen("trainer", "checkpoint", number))
        world.t += 30
        world.see(f.PhaseSeen("trainer", "rollouts", number))
        world.step(number)
    assert world.state.books.learned.phases["trainer/checkpoint"].longest_s == 30
    world.see(f.PhaseSeen("trainer", "checkpoint", 13))
    took = until(world, "verdict", 2000, lambda: idle(world))
    # Saves never took more than 30 s: nine hundred seconds, which an unknown one is given, are not waited for. Five
    # times as long explains that there is no step, and does not count against it.
    assert 600 + 150 <= took <= 600 + 200


def test_a_download_that_grows_does_not_use_up_the_start(world: World) -> None:
    world.boot()
    for minute in range(200):
        world.t += 60
        world.see(f.Growing("download", (minute + 1) * GIB))
    assert not world.said("verdict"), "three hours of a download that moves"
    took = until(world, "verdict", 4000)
    assert "made no step" in world.said("verdict")[0]
    assert 3500 <= took <= 3700, "its growth is over, so the start's own time runs"


def test_rollouts_that_still_end_hold_the_verdict_back_for_three_times_as_long(world: World) -> None:
    world.running_at(12)
    hard = step_limits(world.state).hard_s
    done = iter(range(10_000))

    def moving() -> None:
        world.engine()
        world.see(f.WorkSeen(8, next(done)))

    took = until(world, "verdict", 4 * hard, moving, every_s=20)
    assert 3 * hard <= took <= 3 * hard + 30


def test_an_evaluation_in_which_nothing_is_asked_of_the_engine_excuses_nothing(world: World) -> None:
    world.running_at(12)
    world.see(f.PhaseSeen("orchestrator", "eval", 12))
    took = until(world, "verdict", 3000, lambda: (idle(world), world.see(f.WorkSeen(8, 100))), every_s=10)  # type: ignore[func-returns-value, arg-type, return-value]
    assert took < 1300 < SETTINGS.step_ceiling


# ---------------------------------------------------------------- who is stuck


def test_the_trainer_that_trains_while_all_wait_is_believed_for_five_times_its_longest(world: World) -> None:
    world.boot()
    world.job_up()
    for number in range(1, 13):
        world.see(f.PhaseSeen("trainer", "rollouts", number))
        world.t += 100
        world.see(f.PhaseSeen("trainer", "training", number))
        world.step(number, seconds=150)
    world.see(f.PhaseSeen("trainer", "training", 13))
    took = until(world, "verdict", 4000, lambda: idle(world))
    assert "The trainer is stuck: it has been training for" in world.said("verdict")[0]
    assert "got no request" in world.said("verdict")[0]
    assert took >= 5 * 150


def test_an_orchestrator_that_waits_for_the_trainer_says_who_works(world: World) -> None:
    world.running_at(12)
    world.see(f.PhaseSeen("orchestrator", "barrier", 13))
    soft = step_limits(world.state).soft_s
    for _ in range(int(soft / 10) + 5):
        world.t += 10
        idle(world)
    assert not world.said("verdict"), "a long training step: the orchestrator said that it waits for it"


def test_everybody_waits_for_everybody_and_the_orchestrator_is_blamed(world: World) -> None:
    world.boot()
    world.job_up()
    for number in range(1, 13):
        world.see(f.PhaseSeen("trainer", "training", number))
        world.t += 50
        world.see(f.PhaseSeen("trainer", "rollouts", number))
        world.step(number, seconds=150)
    world.see(f.PhaseSeen("trainer", "rollouts", 13))
    took = until(world, "verdict", 4000, lambda: idle(world))
    assert "The orchestrator is stuck: the trainer has waited for its batch for" in world.said("verdict")[0]
    assert took < step_limits(world.state).hard_s


def test_a_deadlock_while_resuming_is_found_long_before_the_start_is_overdue(world: World) -> None:
    world.running_at(12)
    world.engine_process_dies()
    world.after(10)
    world.job_up()
    world.actions.clear()
    took = until(world, "verdict", 3600, lambda: idle(world))
    assert "The start is stuck: no step for" in world.said("verdict")[0]
    assert "the engine is well and got no request" in world.said("verdict")[0]
    assert took < 1500 < SETTINGS.startup


def test_one_of_six_engines_stands_still_while_the_others_work(world: World) -> None:
    world.running_at(7)

    def look() -> None:
        units = tuple(f.EngineCount(i, 500.0 if i == 3 else world.t, running=4.0) for i in range(6))
        world.engine(engines=units, liveness="timeout")

    until(world, "verdict", 120, look)
    assert "engine 3 of 6 made no token for" in world.said("verdict")[0]
    assert "/liveness failed" in world.said("verdict")[0]


def test_one_of_six_engines_without_requests_may_be_idle(world: World) -> None:
    world.running_at(7)
    for _ in range(60):
        world.t += 5
        units = tuple(f.EngineCount(i, 500.0 if i == 3 else world.t, running=0.0 if i == 3 else 4.0) for i in range(6))
        world.engine(engines=units)
    assert not world.said("verdict")
    assert not world.said("suspect")


# ---------------------------------------------------------------- the machine


def test_a_process_that_the_kernel_took_is_explained_by_the_hosts_memory(world: World) -> None:
    world.running_at(7)
    world.see(f.HostLook(memory_total_bytes=64 * GIB, memory_available_bytes=20 * GIB, oom_kills=0))
    world.after(30)
    world.see(f.ProcessGone(1, "orchestrator", world.pid + 2, 5002))
    world.see(f.HostLook(memory_total_bytes=64 * GIB, memory_available_bytes=40 * GIB, oom_kills=1))
    world.after(4)
    assert "The orchestrator died" in world.said("verdict")[0]
    assert "the host's memory was full" in world.said("verdict")[0]
    assert world.state.recovery.failures[-1].signature == "host-oom"


def test_little_memory_is_said_once_and_taken_back_once(world: World) -> None:
    world.running_at(7)
    for available in (2, 2, 2, 30, 30):
        world.see(f.HostLook(memory_total_bytes=64 * GIB, memory_available_bytes=available * GIB))
    assert len(world.said("warning")) == 1
    assert "little memory left (2.0 GiB of 64.0 GiB)" in world.said("warning")[0]
    assert world.said("cleared") == ["The host has memory again."]
    assert not world.asked(a.Stop)


def test_open_files_near_the_limit_are_told_with_the_remedy(world: World) -> None:
    world.running_at(7)
    world.see(f.HostLook(open_files=31000, open_files_limit=32000, open_files_of="orchestrator (pid 4711)"))
    assert "31000 of 32000 files are open by orchestrator (pid 4711)" in world.said("warning")[0]
    assert "job.nofile" in world.said("warning")[0]


def test_a_gpu_that_fell_off_the_bus_sends_the_run_to_another_pod(world: World) -> None:
    world.running_at(7)
    world.see(f.GpuFault("GPU 1", 79, "GPU has fallen off the bus"))
    assert not world.asked(a.Stop), "one signal"
    world.see(f.ComponentExited(1, "launcher", 1))
    assert "GPU 1: Xid 79 (GPU has fallen off the bus)" in world.said("verdict")[0]
    assert world.said("unfit")
    assert [e for e in world.asked(a.Exit) if isinstance(e, a.Exit)][-1].code == 94


def test_an_xid_of_the_programs_own_making_is_only_told(world: World) -> None:
    world.running_at(7)
    world.see(f.GpuFault("GPU 1", 31, "MMU fault"))
    world.see(f.ComponentExited(1, "launcher", 1))
    assert "Xid 31" in world.said("warning")[0]
    assert world.asked(a.Start), "restarted like any crash"


def test_a_driver_that_hangs_is_told_and_nothing_is_done(world: World) -> None:
    world.running_at(7)
    for _ in range(40):
        world.t += 5
        world.see(f.GpuLook(reason="the driver did not answer for 5 s"))
        world.engine()
    assert "The GPU driver has not answered for" in world.said("warning")[0]
    assert not world.said("verdict")


# ---------------------------------------------------------------- the policy


def test_a_pod_without_network_waits_and_keeps_its_budget(world: World) -> None:
    world.boot()
    for _ in range(6):
        world.see(f.ErrorSeen("orchestrator", "wandb-unreachable", "wandb.errors.CommError: timed out"))
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(1300)
    assert world.state.recovery.barren == 0, "not the run's failure"
    assert len(world.asked(a.Start)) >= 5
    assert not world.said("gave-up")
    assert any("The network is away" in s for s in world.said("policy"))


def test_a_network_that_stays_away_is_a_persons_business_in_the_end(world: World) -> None:
    world.boot()
    for _ in range(30):
        if world.said("gave-up"):
            break
        world.see(f.ErrorSeen("orchestrator", "wandb-unreachable", "wandb.errors.CommError: timed out"))
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(1300)
    assert world.said("gave-up")


def test_a_damaged_checkpoint_at_the_start_goes_one_step_back_at_once(world: World) -> None:
    world.running_at(12)
    world.engine_process_dies()
    world.after(5)
    world.see(f.ErrorSeen("trainer", "checkpoint-damaged", "RuntimeError: PytorchStreamReader failed"))
    world.see(f.ComponentExited(2, "launcher", 1))
    world.after(60)
    assert "could not read the checkpoint of step 10" in world.said("one-step-back")[0]
    start = world.asked(a.Start)[-1]
    assert isinstance(start, a.Start)
    assert start.step == 5


def test_the_same_incurable_error_with_rollouts_at_zero_is_not_waited_out(world: World) -> None:
    """The seeds' max_tokens: the engine answers each request with 400 at once, and no rollout ever ends."""
    world.boot()
    world.job_up()
    error = f.ErrorSeen(
        "orchestrator",
        "max-tokens-too-large",
        "BadRequestError: 400 'max_tokens' is too large: 8192",
        deterministic=True,
        sentence="Each request asks for more tokens than the engine's context holds.",
        remedy="Lower max_tokens or raise max_model_len.",
    )

    def each() -> None:
        world.see(error)
        world.see(f.WorkSeen(8, 0, 8))
        idle(world)

    took = until(world, "gave-up", 900, each, every_s=10)
    assert took <= 400
    sentence = world.said("gave-up")[0]
    assert "Each request asks for more tokens than the engine's context holds." in sentence
    assert "Lower max_tokens or raise max_model_len." in sentence


def test_a_job_that_filled_the_disk_is_not_restarted_into_a_full_disk(world: World) -> None:
    world.publish_works = False
    world.running_at(7)
    world.see(f.DiskLook("/ckpt", 100 * GIB, 3 * GIB))
    world.local[5] = "complete"
    world.survey()
    world.see(f.ErrorSeen("trainer", "disk-full", "OSError: [Errno 28] No space left on device"))
    world.see(f.DiskLook("/ckpt", 100 * GIB, GIB))
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(600)
    assert world.state.mode == "disk-full"
    assert not world.asked(a.Start)
    world.see(f.DiskLook("/ckpt", 100 * GIB, 50 * GIB))
    world.after(5)
    assert world.asked(a.Start)


def test_before_a_checkpoint_that_will_not_fit_the_oldest_published_one_goes(world: World) -> None:
    world.settings = replace(SETTINGS, keep_local=2)
    world.running_at(10)
    assert set(world.local) == {5, 10}
    world.see(f.DiskLook("/ckpt", 1000 * GIB, 2 * GIB + GIB // 2))
    assert 5 not in world.local, "published, and the next one of 1 GiB would not have fitted"


def test_a_save_that_cannot_fit_is_not_waited_for(world: World) -> None:
    world.publish_works = False
    world.running_at(7)
    world.see(f.DiskLook("/ckpt", 100 * GIB, 2 * GIB + GIB // 2))
    assert any("The next checkpoint, of about 1.0 GiB, does not fit beside" in s for s in world.said("disk"))
    assert not world.asked(a.Stop), "the steps until then are worth having"
    world.after(10)
    world.see(f.PhaseSeen("trainer", "checkpoint", 10))
    assert "does not fit on the disk" in world.said("verdict")[0]
    assert world.asked(a.Stop)


# ---------------------------------------------------------------- which half restarts


def own_engine_running(world: World, step: int = 7) -> None:
    world.settings = OWN
    world.running_at(step)


def test_the_inference_server_is_started_beside_the_job(world: World) -> None:
    world.settings = OWN
    world.boot()
    assert [type(x) for x in world.actions if isinstance(x, a.StartEngine | a.Start)] == [a.StartEngine, a.Start]
    assert world.state.own.alive


def test_a_server_that_a_new_configuration_allows_is_started_with_it(world: World) -> None:
    world.running_at(7)
    world.see(f.SettingsChanged(OWN))
    world.see(f.Command("restart", "root", ("--new-config",)))
    world.after(20)
    assert (world.asked(a.Start)[-1].snapshot, world.asked(a.StartEngine)[-1].snapshot) == (None, None)  # type: ignore[attr-defined]


def test_only_the_engine_failed_so_only_the_engine_is_restarted(world: World) -> None:
    own_engine_running(world)
    world.engine_process_dies()
    world.after(5)
    assert [x.engine for x in world.asked(a.StartEngine)] == [2]  # type: ignore[attr-defined]
    assert not world.asked(a.Stop), "the job lives on"
    assert any("Only the inference server failed" in s for s in world.said("policy"))
    assert world.state.incidents.open is not None
    world.step(8)
    assert world.state.incidents.open is None


def test_what_the_old_engine_leaves_convicts_no_new_one(world: World) -> None:
    own_engine_running(world)
    world.gpus(inference=0)
    world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
    world.answer = False
    world.engine_process_dies()
    world.after(5)
    world.see(f.ProcessGone(1, "inference", 4242, 1))
    world.after(30)
    world.answer = True
    world.see(f.EngineStopped(1, 3.0, gpu_free=True))
    for second in range(150):
        world.t += 1
        world.gpus(inference=0)
        world.engine(health="refused", iterations=None, running=None)
        if second in (20, 40):
            world.see(f.StepDone("trainer", 8 + second // 40, 5.0))  # of rollouts from before
        elif second % 5 == 1:
            world.see(f.WorkSeen(8, 100))
            world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
    assert not world.asked(a.Stop)
    assert world.state.incidents.open is not None, "the new engine has shown nothing yet"
    assert [x.engine for x in world.asked(a.StartEngine)] == [2]  # type: ignore[attr-defined]


def test_a_fresh_start_gets_a_fresh_engine(world: World) -> None:
    world.settings = OWN
    world.boot()
    world.job_up()
    world.step(1)
    world.actions.clear()
    world.see(f.ProcessGone(1, "trainer", world.pid + 3, 5003))
    world.after(20)
    kinds = [type(x) for x in world.actions if isinstance(x, a.StopEngine | a.StartEngine | a.Start)]
    assert kinds == [a.StopEngine, a.StartEngine, a.Start]


def test_an_engine_that_does_not_help_is_followed_by_a_restart_of_both(world: World) -> None:
    own_engine_running(world)
    world.engine_process_dies()
    world.after(5)
    world.see(f.ProcessSeen(1, "inference", 777, 9000))
    world.see(f.ProcessGone(1, "inference", 777, 9000))
    world.after(20)
    assert world.asked(a.Stop)
    assert [x.engine for x in world.asked(a.StopEngine)] == [1, 2]  # type: ignore[attr-defined]
    assert world.asked(a.Start)[-1].step == 5  # type: ignore[attr-defined]


def test_weights_that_fell_due_while_the_engine_was_away_end_the_job_and_the_new_engine_stays(world: World) -> None:
    own_engine_running(world)
    world.engine_process_dies()
    world.after(5)
    assert [x.engine for x in world.asked(a.StartEngine)] == [2]  # type: ignore[attr-defined]
    world.see(f.ComponentExited(1, "launcher", 1))  # the orchestrator gave up asking for it, before it was up
    world.after(20)
    assert world.asked(a.Start)[-1].step == 5  # type: ignore[attr-defined]
    assert [x.engine for x in world.asked(a.StopEngine)] == [1]  # type: ignore[attr-defined]
    assert len(world.asked(a.StartEngine)) == 1
    world.see(f.ComponentExited(2, "launcher", 1))
    world.after(60)
    assert [x.engine for x in world.asked(a.StopEngine)] == [1, 2], "it did not help: the next one is whole"  # type: ignore[attr-defined]


def test_the_trainer_failed_so_the_engine_is_kept_warm(world: World) -> None:
    own_engine_running(world)
    world.see(f.ProcessGone(1, "trainer", world.pid + 3, 5003))
    world.after(5)
    assert world.asked(a.Stop)
    assert not world.asked(a.StopEngine)
    assert not world.asked(a.StartEngine)
    assert world.asked(a.Start)[-1].step == 5  # type: ignore[attr-defined]
    assert any("kept warm" in s for s in world.said("policy"))


def test_where_the_job_cannot_go_on_with_a_new_engine_both_restart(world: World) -> None:
    world.settings = replace(OWN, engine_alone=False)
    world.running_at(7)
    world.engine_process_dies()
    world.after(5)
    assert world.asked(a.Stop)
    assert world.asked(a.Start)


@pytest.mark.parametrize("verb", ["stop", "shutdown"])
def test_an_engine_that_nobody_needs_any_more_is_stopped(world: World, verb: str) -> None:
    own_engine_running(world)
    world.see(f.Command(verb))
    world.after(20)
    assert len(world.asked(a.StopEngine)) == 1
    assert not world.state.own.alive


def test_a_warm_engine_that_dies_meanwhile_is_started_with_the_job(world: World) -> None:
    own_engine_running(world)
    world.answer = False
    world.see(f.ProcessGone(1, "trainer", world.pid + 3, 5003))
    world.after(5)
    world.see(f.EngineExited(1, None, 9))
    world.answer = True
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    world.after(10)
    assert [x.engine for x in world.asked(a.StartEngine)] == [2]  # type: ignore[attr-defined]
    assert world.asked(a.Start)


def test_a_new_daemon_adopts_both_halves(world: World) -> None:
    own_engine_running(world)
    world.see(f.DaemonStarted("test", world.settings, "boot", 1, engine_adopted=1))
    world.see(f.AttemptAdopted(1, None, 110))
    world.after(30)
    assert world.state.own.alive
    assert not world.asked(a.StartEngine)
    assert world.state.mode == "running"


def test_an_engine_that_cannot_be_launched_for_good_is_a_persons_business(world: World) -> None:
    world.settings = OWN
    world.answer = False
    world.boot()
    world.answer = True
    world.survey()
    world.see(f.EngineStartFailed(1, "the program `inference` is not installed.", permanent=True))
    world.after(5)
    assert "could not be launched: the program" in world.said("gave-up")[0]


def test_the_daemon_does_not_end_before_its_engine_has(world: World) -> None:
    world.settings = OWN
    world.running_at(7)
    world.answer = False
    world.see(f.Command("shutdown"))
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    world.survey()
    world.after(20)
    assert world.asked(a.StopEngine)
    assert not world.asked(a.Exit)
    world.see(f.EngineStopped(1, 20.0, gpu_free=True))
    world.after(1)
    assert world.asked(a.Exit)


def test_an_engine_whose_stop_crashed_is_stopped_a_minute_later(world: World) -> None:
    own_engine_running(world)
    world.answer = False
    world.see(f.Command("stop"))
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    assert len(world.asked(a.StopEngine)) == 1
    world.see(f.EffectCrashed("engine", "ValueError: a defect"))
    world.after(50)
    assert len(world.asked(a.StopEngine)) == 1, "what crashed once may crash at once again"
    world.after(20)
    assert len(world.asked(a.StopEngine)) == 2


def test_a_restart_under_the_living_job_that_crashed_becomes_a_restart_of_both(world: World) -> None:
    own_engine_running(world)
    world.answer = False
    world.engine_process_dies()
    world.after(5)
    world.see(f.EffectCrashed("engine", "ValueError: a defect"))
    world.after(5)
    assert world.asked(a.Stop)
    world.answer = True
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    world.after(100)
    assert [x.engine for x in world.asked(a.StartEngine)] == [2]  # type: ignore[attr-defined]
    assert world.asked(a.Start)


def test_no_engine_is_started_while_another_is_being_launched(world: World) -> None:
    world.settings = OWN
    world.answer = False
    world.boot()
    world.survey()
    world.see(f.StartFailed(1, "no shim"))
    assert "no shim. Next try" in world.said("backing-off")[0]
    world.after(5)
    world.survey()
    world.after(5)
    assert len(world.asked(a.StartEngine)) == 1
    assert len(world.asked(a.Start)) == 1
    world.answer = True
    world.see(f.EngineStarted(1, 51))
    world.after(60)
    assert len(world.asked(a.Start)) == 2


def test_a_server_that_cannot_be_launched_does_not_undo_what_a_person_asked_for(world: World) -> None:
    world.settings = OWN
    world.answer = False
    world.boot()
    world.survey()
    world.see(f.Command("stop"))
    world.see(f.EngineStartFailed(1, "the program `inference` is not installed.", permanent=True))
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    assert world.state.mode == "stopped"


def test_what_is_left_of_a_server_under_a_living_job_replaces_the_pod_only_after_the_job_is_stopped(
    world: World,
) -> None:
    own_engine_running(world)
    world.answer = False
    world.engine_process_dies()
    world.after(5)
    world.see(f.EngineStopped(1, 400.0, ("vllm (pid 9)",)))
    assert world.asked(a.Stop)
    assert not world.asked(a.Exit)
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    assert world.state.mode == "unfit"


def test_a_daemon_that_died_before_it_launched_the_server_leaves_no_job_that_waits_for_it(world: World) -> None:
    world.settings = OWN
    world.answer = False
    world.boot()
    world.survey()
    world.answer = True
    world.see(f.DaemonStarted("test", world.settings, "boot", 1))
    world.see(f.AttemptAdopted(1, None, 110))
    world.after(30)
    assert "its inference server was never launched" in world.said("verdict")[0]
    assert [x.engine for x in world.asked(a.StartEngine)] == [1, 2]  # type: ignore[attr-defined]
    assert world.asked(a.Start)[-1].attempt == 2  # type: ignore[attr-defined]


# ---------------------------------------------------------------- only observed


def observed(world: World) -> None:
    """A run that was attached at its seventh step."""
    world.settings = OBSERVE
    world.suppress = True
    world.boot()
    world.see(f.AttemptAdopted(1, None, 110))
    world.job_up()
    for number in range(1, 8):
        world.step(number)
    world.actions.clear()


def test_observing_says_what_would_be_done_and_does_nothing(world: World) -> None:
    observed(world)
    world.engine_process_dies()
    world.after(120)
    (would,) = world.said("would")
    assert would.startswith("Would have restarted the job at the last good step: vLLM died silently")
    assert world.state.mode == "running"
    assert not world.asked(a.Start)
    assert len(world.asked(a.Stop)) == 1, "asked once, and suppressed"


def test_a_run_that_goes_on_by_itself_is_kept_as_a_counterfactual(world: World) -> None:
    observed(world)
    world.see(f.PhaseSeen("orchestrator", "rollouts", 13))
    quiet = 3 * step_limits(world.state).hard_s + 60
    for _ in range(int(quiet / 10)):
        world.t += 10
        world.engine(iterations=world.t, running=1.0)
    assert world.said("would")
    world.see(f.StepDone("trainer", 8, 900.0))
    (kept,) = world.state.observing.would
    assert "the run went on by itself after" in kept.outcome
    assert "step 8 is done" in kept.outcome
    assert world.state.observing.spared == ""
    assert "The run went on by itself" in world.said("would-not")[0]


def test_observing_never_deletes_and_goes_on_publishing(world: World) -> None:
    observed(world)
    world.checkpoint(5)
    world.see(f.DiskLook("/ckpt", 100 * GIB, 1 * GIB))
    world.after(60)
    assert world.asked(a.Publish)
    assert world.local == {5: "complete"}
    assert world.state.mode == "running"
    assert not world.state.busy.prune_local


def test_an_observed_job_that_ends_is_not_restarted(world: World) -> None:
    observed(world)
    world.see(f.ComponentExited(1, "launcher", None, lost=True))
    world.after(60)
    assert world.state.mode == "stopped"
    assert not [x for x in world.asked(a.Start) if x.attempt > 2]  # type: ignore[attr-defined]
    assert "Would have restarted" in world.said("would")[0]


@pytest.mark.parametrize(
    ("order", "mode"),
    [
        (f.Command("shutdown", "SIGTERM"), "leaving"),
        (f.LeaveSoon(120, "SIGTERM of the host"), "leaving"),
        (f.Command("stop"), "stopped"),
    ],
    ids=["shutdown", "soon", "stop"],
)
def test_an_order_that_comes_while_a_start_is_being_held_back_is_obeyed(world: World, order: f.Fact, mode: str) -> None:
    """Effects answer in their order, so the start's answer comes after the stop was decided."""
    observed(world)
    world.answer = False
    world.see(f.ComponentExited(1, "launcher", None, lost=True))
    world.after(2)
    world.see(f.Suppressed("Stop", 1, "the run is only observed."))
    world.survey()
    [start] = world.asked(a.Start)
    number = world.state.attempt.number
    world.see(order)
    assert world.actions.index(start) < world.actions.index(world.asked(a.Stop)[-1])
    world.see(f.Suppressed("Start", number, "the run is only observed."))
    world.see(f.Suppressed("Stop", number, "the run is only observed."))
    assert world.state.mode == mode, world.state.why
    assert world.state.attempt.number == number - 1


def test_the_finish_of_an_observed_run_is_published_and_told(world: World) -> None:
    world.settings = replace(OBSERVE, max_steps=7, first_step_at=1)
    world.suppress = True
    world.boot()
    world.see(f.AttemptAdopted(1, None, 110))
    world.job_up()
    for number in range(1, 8):
        world.step(number)
    world.checkpoint(7)
    world.see(f.FinishSeen("launcher", "RL training finished!"))
    world.see(f.ComponentExited(1, "launcher", None, lost=True))
    world.after(60)
    assert world.said("finished")
    assert world.latest == 7


def test_an_observer_asks_once_an_hour_for_the_end_of_a_server_that_nobody_needs(world: World) -> None:
    own_engine_running(world)
    world.suppress = True
    world.settings = replace(OWN, mode="observe")
    world.see(f.DaemonStarted("test", world.settings, "boot", 1, engine_adopted=1))
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(600)
    assert world.state.mode == "stopped"
    assert len(world.asked(a.StopEngine)) == 1
    world.see(f.Command("shutdown"))
    world.after(10)
    assert world.asked(a.Exit), "what it does not stop it does not wait for"


def test_a_job_that_a_person_started_again_did_not_go_on_by_itself(world: World) -> None:
    observed(world)
    world.see(f.ComponentExited(1, "launcher", None, lost=True))
    world.after(60)
    world.see(f.AttemptAdopted(2, None, 210))
    world.step(8)
    assert not world.said("would-not")
    assert [one.outcome for one in world.state.observing.would] == ["a job of a person was attached 60 s later"]


def test_our_own_canary_is_no_work_of_the_engine(world: World) -> None:
    """It moves the counters every half minute, and nobody else does."""
    world.running_at(12)
    tokens = iter(range(10_000))

    def canary() -> None:
        world.engine(iterations=None, generation_tokens=5e6 + next(tokens), running=0.0, connections=0, canary="ok")
        world.see(f.WorkSeen(8, 100))

    took = until(world, "verdict", 3000, canary, every_s=30)
    assert "The orchestrator is stuck" in world.said("verdict")[0]
    assert took < 700


@pytest.mark.parametrize("own", [0, 1])
def test_a_job_that_is_met_after_its_engines_death_is_understood(world: World, own: int) -> None:
    """Attached at three in the morning: the port refuses, the GPU is empty, and the log has steps from before."""
    world.settings = OBSERVE
    world.suppress = True
    world.boot()
    world.state = replace(world.state, own=replace(world.state.own, number=own))  # this run had one of its own once
    world.see(f.AttemptAdopted(1, None, 110))
    world.see(f.ProcessSeen(1, "trainer", 113, 5003))
    for number in range(20, 30):
        world.see(f.StepDone("trainer", number, 200.0))
    for _ in range(30):
        world.t += 5
        world.gpus(inference=600 << 20)
        world.engine(health="refused", liveness="refused", iterations=None, running=None, waiting=None)
    assert world.said("verdict")[0].startswith("vLLM is dead")
    assert "memory on GPU 0 is no more than 600 MiB of 80.0 GiB" in world.said("verdict")[0]


def test_lines_from_before_the_attachment_teach_nothing_and_count_for_nothing(world: World) -> None:
    world.settings = OBSERVE
    world.suppress = True
    world.boot()
    world.see(f.AttemptAdopted(1, None, 110))
    for number in range(1, 65):
        world.t += 0.06
        world.see(f.StepDone("trainer", number, 200.0))
    assert not world.state.books.learned.phases
    assert world.state.books.ledger.steps == 0
    world.step(65)
    world.step(66)
    assert world.state.books.ledger.steps == 2
    assert world.state.books.learned.phases["step"].count >= 1


def test_a_hang_that_began_before_an_update_of_weights_is_found_within_two_minutes(world: World) -> None:
    world.boot()
    world.job_up()
    for number in range(1, 8):
        world.see(f.PhaseSeen("orchestrator", "weight-update", number))
        world.step(number)
    began = world.t
    for second in range(0, 200, 5):
        world.t += 5
        if second == 45:
            world.see(f.PhaseSeen("orchestrator", "weight-update", 8))
        world.engine(iterations=1.0, liveness="timeout", connections=12)
        if world.said("verdict"):
            break
    assert world.said("verdict")
    assert 100 <= world.t - began <= 120


def test_an_error_line_and_an_unanswered_request_are_no_hang_while_nobody_waits(world: World) -> None:
    world.running_at(7)
    for _ in range(8):
        world.t += 5
        world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
        world.engine(iterations=1.0, running=0.0, connections=0, liveness="timeout")
    assert not world.said("verdict")
    assert world.said("suspect")


def test_a_step_that_was_under_way_acquits_no_dead_engine(world: World) -> None:
    observed(world)
    world.engine_process_dies()
    world.after(10)
    world.see(f.StepDone("trainer", 8, 200.0))
    world.after(100)
    world.see(f.StepDone("trainer", 9, 200.0))
    world.after(100)
    assert not world.said("would-not"), "its rollouts were there already"
    assert len(world.said("would")) == 1
    world.see(f.StepDone("trainer", 10, 200.0))
    assert world.said("would-not"), "that one was not: something else makes rollouts"
    world.after(100)
    assert len(world.said("would")) == 1


def test_what_was_seen_during_a_pause_stays_seen(world: World) -> None:
    world.running_at(7)
    world.see(f.Command("pause"))
    world.engine_process_dies()
    world.after(14)
    world.see(f.Command("resume"))
    world.after(1)
    assert "has been gone for 14 s" in world.said("verdict")[0]


def test_a_host_that_is_paused_again_and_again_hides_no_hang_for_ever(world: World) -> None:
    world.running_at(7)
    paused = 0.0
    for number in range(200):
        world.t += 5
        if number % 6 == 5:
            world.t += 20
            paused += 20
            world.see(f.ClockJumped(20.0))
        world.engine(iterations=1.0, liveness="timeout", connections=12)
        if world.said("verdict"):
            break
    assert "vLLM hangs" in world.said("verdict")[0]
    assert paused <= 100
    assert "no deadline counts that" in world.said("clock-jumped")[0]


def test_the_time_of_a_pause_is_nobodys_silence(world: World) -> None:
    world.running_at(12)
    world.engine()
    world.t += 5000
    world.see(f.ClockJumped(5000.0))
    world.after(200)
    assert not world.said("verdict")
    assert not world.said("suspect")
