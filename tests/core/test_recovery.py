"""The main job as scenarios: something dies, the core says why, and the run goes on from the last good step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f

from .world import GIB, SETTINGS, World


@pytest.fixture
def world() -> World:
    return World()


def test_engine_dies_with_exit_zero_and_the_run_resumes_from_the_last_good_step(world: World) -> None:
    world.running_at(7)
    world.gpus(inference=0)
    world.engine_process_dies()
    world.after(4)
    (sentence,) = world.said("verdict")
    assert "vLLM died silently: its process 111 has been gone for 2 s" in sentence
    assert "the launcher, the orchestrator and the trainer live on (GPU 0 at 0 B)" in sentence
    start = world.asked(a.Start)[-1]
    assert (start.step, start.attempt, start.snapshot) == (5, 2, 1)
    assert world.state.incidents.open is not None, "processes that are up are no success yet"
    world.job_up()
    world.step(6)
    assert world.state.incidents.open is None
    assert "Incident 1 is over" in world.said("incident-closed")[0]
    assert world.state.mode == "running"


def test_the_verdict_on_a_gone_process_comes_within_five_seconds(world: World) -> None:
    world.running_at(7)
    world.engine_process_dies()
    died = world.t
    while not world.said("verdict"):
        world.after(0.5)
    assert world.state.incidents.closed or world.state.incidents.open
    assert world.state.incidents.open.decided - died <= 5


def test_a_helper_process_that_ends_proves_nothing(world: World) -> None:
    world.running_at(7)
    world.see(f.ProcessSeen(1, "inference", 999, 1, key=False))
    world.see(f.ProcessGone(1, "inference", 999, 1, key=False))
    world.after(60)
    assert not world.said("verdict")


def test_a_process_of_an_older_attempt_that_ends_proves_nothing(world: World) -> None:
    world.running_at(7)
    world.see(f.ProcessGone(0, "inference", 5, 5))
    world.after(60)
    assert not world.said("verdict")


def test_fallen_memory_alone_is_only_suspicious(world: World) -> None:
    world.running_at(7)
    for _ in range(60):
        world.t += 1
        world.gpus(inference=0)
        world.engine()
    assert not world.said("verdict")
    (suspicion,) = world.said("suspect")
    assert "memory on GPU 0 fell to 0 B from 70.0 GiB; one signal is not enough to act" in suspicion


def test_fallen_memory_with_a_refused_port_convicts_within_fifteen_seconds(world: World) -> None:
    world.running_at(7)
    began = world.t
    while not world.said("verdict"):
        world.t += 1
        world.gpus(inference=0)
        if int(world.t - began) % 5 == 0:
            world.engine(health="refused", liveness="refused", iterations=None, running=None, waiting=None)
        assert world.t - began < 17
    assert "vLLM is dead while the trainer holds 60.0 GiB" in world.said("verdict")[0]
    assert "fell to 0 B" in world.said("verdict")[0]


def test_fallen_memory_with_a_port_that_no_longer_answers_convicts_within_fifteen_seconds(world: World) -> None:
    """A saturated engine times out, too, but it keeps its memory: together they need no two minutes of silence."""
    world.running_at(7)
    began = world.t
    while not world.said("verdict"):
        world.t += 1
        world.gpus(inference=0)
        if int(world.t - began) % 5 == 0:
            world.engine(health="timeout", liveness="unknown", iterations=None, running=None, waiting=None)
        assert world.t - began < 17
    assert "vLLM is dead while the trainer holds 60.0 GiB" in world.said("verdict")[0]


def test_on_one_shared_gpu_a_drop_from_the_plateau_counts(world: World) -> None:
    world.shared = True
    world.running_at(7)
    for second in range(16):
        world.t += 1
        world.gpus(inference=30 * GIB)
        if second % 5 == 0:
            world.engine(health="refused", iterations=None, running=None, waiting=None)
    assert "memory on GPU 0 fell to 30.0 GiB from 70.0 GiB" in world.said("verdict")[0]


def test_unknown_memory_is_not_zero(world: World) -> None:
    world.running_at(7)
    for _ in range(60):
        world.t += 1
        world.see(f.GpuLook(reason="the driver did not answer for 5 s"))
        world.engine()
    assert not world.said("verdict")
    assert not world.said("suspect")


def test_engine_answers_health_and_makes_no_progress_while_work_waits(world: World) -> None:
    world.running_at(7)
    began = world.t
    while not world.said("verdict"):
        world.t += 5
        world.engine(iterations=1.0, liveness="timeout", connections=12, running=0.0)
        assert world.t - began <= 90
    sentence = world.said("verdict")[0]
    assert "vLLM hangs: it answers /health but makes no progress" in sentence
    assert "made no token for" in sentence
    assert "/liveness failed" in sentence


def test_a_frozen_counter_without_waiting_work_is_an_idle_engine(world: World) -> None:
    world.running_at(7)
    for _ in range(100):
        world.t += 5
        world.engine(iterations=1.0, running=0.0, connections=0)
    assert not world.said("verdict")


def test_a_frozen_counter_with_work_is_one_signal_and_not_enough(world: World) -> None:
    world.running_at(7)
    for _ in range(60):
        world.t += 5
        world.engine(iterations=1.0, liveness="absent")
    assert not world.said("verdict")
    assert world.said("suspect")


def test_a_weight_update_excuses_a_silent_engine(world: World) -> None:
    world.running_at(7)
    world.see(f.PhaseSeen("orchestrator", "weight-update", 8))
    for _ in range(20):
        world.t += 5
        world.engine(iterations=1.0, liveness="timeout")
    assert not world.said("verdict")


def test_an_orchestrator_that_stands_still_convicts_with_an_overdue_step(world: World) -> None:
    world.running_at(7)
    began = world.t
    while world.t < began + 2000:
        world.t += 10
        world.see(f.WorkSeen(inflight=0, done=64, total=128))
        world.engine(iterations=1.0, running=0.0, connections=0)
        if world.said("verdict"):
            break
    # No rollout is in flight, and neither of them was ever heard to say that it waits for the other.
    assert world.said("verdict")[0].startswith("The orchestrator or the trainer is stuck: no new step for")
    assert world.t - began < 5 * 200, "sooner than silence alone would"


def test_silence_of_five_times_the_longest_step_convicts_alone(world: World) -> None:
    world.running_at(7)
    began = world.t
    while not world.said("verdict") and world.t < began + 4000:
        world.t += 10
        world.see(f.Tick())
    longest = world.state.books.learned.phases["step"].longest_s
    assert 5 * longest <= world.t - began <= 5 * longest + 15
    assert "The job hangs: no new step for 16 min" in world.said("verdict")[0]


def test_a_slow_step_is_not_restarted(world: World) -> None:
    world.running_at(7)
    world.step(8, seconds=900)
    assert not world.said("verdict")


def test_a_checkpoint_being_written_excuses_silence(world: World) -> None:
    world.running_at(7)
    world.see(f.PhaseSeen("trainer", "checkpoint", 8))
    world.after(5 * 200 + 100, tick=5)
    assert not world.said("verdict")


def test_a_sleeping_host_does_not_count_as_silence(world: World) -> None:
    world.running_at(7)
    world.t += 7200
    world.see(f.ClockJumped(7200))
    world.engine()
    world.after(60)
    assert not world.said("verdict")


def test_a_trainer_crash_restarts_from_the_last_good_step(world: World) -> None:
    world.running_at(12)
    world.see(f.ErrorSeen("trainer", "cuda-oom", "torch.OutOfMemoryError: CUDA out of memory"))
    world.see(f.ComponentExited(1, "launcher", 1))
    assert "The job ended with exit code 1 after step 12 of 1000: torch.OutOfMemoryError" in world.said("verdict")[0]
    assert world.asked(a.Start)[-1].step == 10
    assert world.asked(a.CollectEvidence), "evidence is kept before anything is stopped"
    kinds = [type(x) for x in world.actions]
    assert kinds.index(a.CollectEvidence) < kinds.index(a.Stop)


def test_a_configuration_error_is_not_restarted(world: World) -> None:
    world.boot()
    world.see(f.ErrorSeen("launcher", "config-invalid", "seq_len: Extra inputs are not permitted", True))
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(5)
    assert len(world.asked(a.Start)) == 1
    assert world.asked(a.Exit)[-1].code == 93
    assert "A restart cannot cure this" in world.asked(a.Exit)[-1].reason


@pytest.mark.parametrize(("code", "signal", "lost"), [(None, 9, False), (143, None, False), (None, None, True)])
def test_a_job_that_was_killed_is_restarted_whatever_it_had_said(
    world: World, code: int | None, signal: int | None, lost: bool
) -> None:
    """A pod's provider ends it while it starts: the error line before that did not."""
    world.boot()
    world.see(f.ErrorSeen("launcher", "module-missing", "ImportError: an optional part is missing", True))
    world.see(f.ComponentExited(1, "launcher", code, signal, lost))
    world.after(120)
    assert not world.asked(a.Exit)
    assert len(world.asked(a.Start)) == 2


def test_without_a_new_complete_step_three_restarts_are_the_end(world: World) -> None:
    world.running_at(5)
    for _ in range(4):
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(700)
    assert world.state.mode == "gave-up"
    assert world.asked(a.Exit)[-1].code == 93
    assert len(world.asked(a.Start)) == 3
    assert world.stored == {5: GIB}, "everything is kept"


def test_the_same_failure_at_the_same_step_twice_goes_one_step_back_once(world: World) -> None:
    world.running_at(11)
    world.see(f.ComponentExited(1, "launcher", 1))
    assert world.asked(a.Start)[-1].step == 10
    world.step(11)
    world.see(f.ComponentExited(2, "launcher", 1))
    world.after(60)
    assert "that step is quarantined, and the run goes one good step back, to step 5" in world.said("one-step-back")[0]
    assert world.asked(a.Start)[-1].step == 5
    world.step(6)
    world.see(f.ComponentExited(3, "launcher", 1))
    world.after(60)
    assert world.asked(a.Start)[-1].step == 5, "once, and not further back"
    assert len(world.said("one-step-back")) == 1


def test_two_crashes_far_apart_accuse_no_checkpoint_and_two_at_one_place_do(world: World) -> None:
    """All follow a resume at the same step. What is wrong with it would show at the same place again."""
    world.boot()
    world.job_up()
    for number in range(1, 51):
        world.step(number, seconds=20)
        if number in (20, 50):
            world.checkpoint(number)

    def crash_after(step: int) -> None:
        for number in range(51, step + 1):
            world.step(number, seconds=20)
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(60)

    crash_after(53)
    crash_after(92)
    assert world.asked(a.Start)[-1].step == 50, "39 steps lie between the two"
    assert (world.said("one-step-back"), dict(world.state.store.quarantined)) == ([], {})
    crash_after(92)
    assert world.asked(a.Start)[-1].step == 20
    assert set(world.state.store.quarantined) == {"50"}


def test_progress_gives_the_budget_back(world: World) -> None:
    world.running_at(6)
    for crash in range(8):
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(400)
        assert world.state.live, world.state.why
        done = 5 * (crash + 1)
        for number in range(done + 1, done + 6):
            world.step(number)
        world.checkpoint(done + 5)
        world.step(done + 6)
    assert not world.asked(a.Exit)


def test_back_off_grows_with_jitter_and_is_repeatable(world: World) -> None:
    waits = []
    for _ in range(2):
        other = World(replace(SETTINGS, max_restarts=10, seed=3))
        other.running_at(5)
        times = []
        for _ in range(6):
            other.see(f.ComponentExited(other.state.attempt.number, "launcher", 1))
            began = other.t
            while other.state.mode != "starting":
                other.after(1)
            times.append(round(other.t - began, 3))
        waits.append(times)
    assert waits[0] == waits[1]
    assert waits[0][0] <= 4, "the first restart after progress waits for nothing"
    assert max(waits[0]) <= 5 * 2**4 + 4
    assert len(set(waits[0])) > 2


def test_imitated_finish_line_does_not_end_the_run(world: World) -> None:
    world.running_at(7)
    world.see(f.FinishSeen("trainer", "RL trainer finished!"))
    world.after(900, tick=5)
    assert world.state.mode == "running"
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(5)
    assert "exit code 1 after step 7" in world.said("verdict")[0]
    assert world.asked(a.Start)[-1].step == 5


def test_a_run_that_says_it_starts_from_scratch_is_stopped_before_it_overwrites(world: World) -> None:
    world.running_at(7)
    world.engine_process_dies()
    world.after(5)
    world.see(f.FreshStartSeen("trainer", "Training from scratch"))
    world.see(f.StepDone("trainer", 1, 10.0))
    world.after(1)
    assert "said that it starts from scratch, and is at step 1" in world.said("verdict")[-1]


def test_start_up_has_a_budget_of_its_own(world: World) -> None:
    world.boot()
    world.after(3590, tick=10)
    assert not world.said("verdict")
    world.after(20, tick=1)
    assert "made no step in" in world.said("verdict")[0]


def orchestrator_is_done(world: World) -> None:
    """prime-rl's orchestrator has produced its last batch and ends with exit 0; the trainer has two steps to go."""
    world.settings = replace(SETTINGS, max_steps=10, first_step_at=1)
    world.running_at(8)
    world.see(f.FinishSeen("orchestrator", "Orchestrator finished."))
    world.see(f.ProcessGone(world.state.attempt.number, "orchestrator", world.pid + 2, 5002))


def test_the_orchestrator_ends_long_before_the_trainer_and_nothing_is_restarted(world: World) -> None:
    orchestrator_is_done(world)
    world.after(300)  # the ninth step: longer than any grace for a process
    world.see(f.StepDone("trainer", 9, 300.0))
    world.after(300)
    world.see(f.StepDone("trainer", 10, 300.0))
    world.after(400)  # the last checkpoint is being written; the orchestrator's line is 1000 s old
    assert not world.asked(a.Stop)
    assert not [sentence for sentence in world.said("verdict") if "died" in sentence or "still there" in sentence]


def test_a_trainer_that_hangs_after_the_orchestrator_was_done_is_still_found(world: World) -> None:
    orchestrator_is_done(world)
    world.after(2 * 3600, tick=5)
    assert world.asked(a.Stop)
    assert any("no new step" in sentence for sentence in world.said("verdict"))


def test_the_job_finishes_and_the_last_step_is_published_before_the_exit(world: World) -> None:
    world.settings = replace(SETTINGS, max_steps=10, first_step_at=1, hooks=("finish",))
    world.running_at(10)
    world.see(f.FinishSeen("trainer", "RL trainer finished!"))
    world.see(f.ComponentExited(1, "launcher", 0))
    assert 10 in world.stored
    kinds = [type(x) for x in world.actions]
    assert kinds.index(a.RunHook) < kinds.index(a.Exit)
    assert world.asked(a.Exit)[-1].code == 0
    again = World(world.settings, world.state)
    again.boot()
    assert again.asked(a.Exit)[-1].code == 0
    assert not again.asked(a.Start)


def test_a_finished_run_whose_max_steps_were_raised_goes_on_with_the_configuration_as_it_is_now(world: World) -> None:
    world.settings = replace(SETTINGS, max_steps=10, first_step_at=1)
    world.running_at(10)
    world.see(f.FinishSeen("trainer", "RL trainer finished!"))
    world.see(f.ComponentExited(1, "launcher", 0))
    again = World(replace(world.settings, max_steps=20), world.state)
    again.t, again.local, again.stored = world.t, dict(world.local), dict(world.stored)
    again.boot()
    again.after(30)
    started = again.asked(a.Start)
    assert [(start.step, start.snapshot) for start in started] == [(10, None)]


def test_processes_that_end_one_by_one_at_the_last_step_are_no_death(world: World) -> None:
    world.settings = replace(SETTINGS, max_steps=10, first_step_at=1)
    world.running_at(10)
    world.engine_process_dies()
    world.after(20)
    world.see(f.ComponentExited(1, "launcher", 0))
    assert "The job finished: exit code 0 after step 10 of 10." in world.said("verdict")


def test_survivors_make_the_pod_unfit(world: World) -> None:
    world.running_at(7)
    world.answer = False
    world.engine_process_dies()
    world.after(4)
    world.see(f.AttemptStopped(1, 60.0, ("VLLM::EngineCore (pid 111, state D)",), None))
    world.after(1)
    assert world.asked(a.Exit)[-1].code == 94
    assert "VLLM::EngineCore (pid 111, state D)" in world.asked(a.Exit)[-1].reason


def test_paused_means_nothing_is_started_or_stopped(world: World) -> None:
    world.running_at(7)
    world.see(f.Command("pause", "root"))
    world.engine_process_dies()
    world.after(120)
    assert not world.asked(a.Stop)
    assert "Paused, so nothing is done about it: vLLM died silently" in world.said("suspect")[-1]
    world.see(f.Command("resume", "root"))
    world.after(10)
    assert world.asked(a.Start)[-1].step == 5


def test_stopped_survives_a_restart_of_the_daemon(world: World) -> None:
    world.running_at(7)
    world.see(f.Command("stop", "alice"))
    assert world.state.mode == "stopped"
    again = World(state=world.state)
    again.local = dict(world.local)
    again.boot()
    again.after(600, tick=5)
    assert not again.asked(a.Start)
    again.see(f.Command("start", "alice"))
    assert again.asked(a.Start)[-1].step == 5


def test_systemctl_stop_stops_the_job_and_the_next_daemon_starts_it_again(world: World) -> None:
    world.running_at(7)
    world.see(f.Command("shutdown", "systemd"))
    assert world.asked(a.Stop)
    assert world.asked(a.Exit)[-1].code == 0
    again = World(state=world.state)
    again.local, again.stored, again.latest = dict(world.local), dict(world.stored), world.latest
    again.boot()
    assert again.asked(a.Start)[-1].step == 5


def test_a_step_completed_just_before_systemctl_stop_is_published_before_the_daemon_ends(world: World) -> None:
    world.running_at(9)
    world.local[10] = "complete"  # written, and not listed by any scan yet
    world.see(f.Command("shutdown", "systemd"))
    world.after(10)
    assert 10 in world.stored
    kinds = [type(x) for x in world.actions]
    assert max(i for i, kind in enumerate(kinds) if kind is a.Publish) < kinds.index(a.Exit)
    assert world.asked(a.Exit)[-1].code == 0


def test_a_new_daemon_adopts_the_living_job_and_touches_nothing(world: World) -> None:
    world.running_at(7)
    again = World(state=world.state)
    again.t = world.t + 40
    again.local = dict(world.local)
    again.boot(adopted=1)
    again.see(f.AttemptAdopted(1, None, world.pid))
    again.after(30)
    assert not again.asked(a.Start)
    assert not again.asked(a.Stop)
    assert "it was not touched" in again.said("adopted")[0]


def test_a_job_that_ended_while_no_daemon_watched_is_restarted_with_its_status_known(world: World) -> None:
    world.running_at(7)
    again = World(state=world.state)
    again.local, again.stored, again.latest = dict(world.local), dict(world.stored), world.latest
    again.t = world.t
    again.boot(adopted=1)
    again.see(f.ComponentExited(1, "launcher", 0))
    again.after(5)
    assert "The job ended with exit code 0 after step 7 of 1000" in again.said("verdict")[0]
    assert again.asked(a.Start)[-1].step == 5


def test_restart_with_new_config_takes_the_files_as_they_are(world: World) -> None:
    world.running_at(7)
    world.see(f.ConfigChanged("/root/rl.toml"))
    assert "goes on with the snapshot" in world.said("config-changed")[0]
    world.see(f.ConfigChanged("/root/rl.toml", same=True))
    assert "again as the run was started" in world.said("config-changed")[1] and not world.state.orders.config_changed
    world.see(f.ConfigChanged("/root/rl.toml"))
    assert world.state.orders.config_changed == ("/root/rl.toml",)
    world.see(f.Command("restart", "root"))
    assert world.asked(a.Start)[-1].snapshot == 1
    world.see(f.Command("restart", "root", ("--new-config",)))
    assert world.asked(a.Start)[-1].snapshot is None


def test_a_launch_that_fails_does_not_bring_the_old_configuration_back(world: World) -> None:
    world.running_at(7)
    world.answer = False
    world.see(f.Command("restart", "root", ("--new-config",)))
    world.see(f.AttemptStopped(1, 1.0))
    survey(world)
    assert (world.asked(a.Start)[-1].attempt, world.asked(a.Start)[-1].snapshot) == (2, None)
    world.see(f.StartFailed(2, "port 8000 is taken."))
    world.after(600, tick=10)
    survey(world)
    assert (world.asked(a.Start)[-1].attempt, world.asked(a.Start)[-1].snapshot) == (3, None)
    world.see(f.AttemptStarted(3, 7, 100))
    assert not world.state.orders.new_config


def survey(world: World) -> None:
    world.see(f.LocalSteps(tuple(f.LocalStep(n, "complete", "", GIB) for n in (1, 7)), settled=True))
    world.see(f.StoreSteps((f.StoredStep(5, True, GIB),), 5))


def test_a_run_that_gave_up_takes_what_a_person_has_mended_in_the_files(world: World) -> None:
    world.running_at(7)
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(20)
    assert world.asked(a.Start)[-1].snapshot == 1
    error = "pydantic_core.ValidationError: 1 validation error for RLConfig"  # prime-rl was changed meanwhile
    world.see(f.ErrorSeen("launcher", "config-invalid", error, deterministic=True))
    world.see(f.ComponentExited(2, "launcher", 1))
    world.after(20)
    assert world.state.mode == "gave-up"
    again = World(state=world.state)
    again.local, again.stored, again.latest, again.t = dict(world.local), dict(world.stored), world.latest, world.t
    again.boot()
    assert again.asked(a.Start)[-1].snapshot is None, "with the old snapshot it could only give up again"


def test_replaying_the_observations_gives_the_same_decisions(world: World) -> None:
    world.running_at(7)
    world.engine_process_dies()
    world.after(4)
    world.step(6)
    replayed = World(world.settings)
    replayed.answer = False
    for observation in world.log:
        replayed.t = observation.t
        replayed.see(observation.fact)
    assert replayed.state == world.state


def test_a_launcher_that_prints_success_after_both_crashed_is_not_believed(world: World) -> None:
    world.running_at(7)
    world.see(f.FinishSeen("launcher", "RL training finished!"))
    world.see(f.ComponentExited(1, "rl", 0))
    world.after(5)
    assert "The job ended with exit code 0 after step 7 of 1000" in world.said("verdict")[0]
    assert world.asked(a.Start)[-1].step == 5


def test_rollout_counts_that_read_the_same_while_steps_are_done_are_no_signal(world: World) -> None:
    world.running_at(7)
    for number in range(8, 14):
        world.see(f.WorkSeen(inflight=4, done=0, total=4))
        world.step(number, seconds=50)
        world.engine(iterations=1.0)
    assert not world.said("suspect")


def test_a_saturated_engine_whose_health_times_out_is_not_killed(world: World) -> None:
    """gonka 1421: a two-second probe that times out under load killed healthy engines eight times a day."""
    world.running_at(7)
    for _ in range(60):
        world.t += 5
        world.see(f.WorkSeen(inflight=128, done=0, total=128))
        world.engine(health="timeout", liveness="timeout", iterations=None, running=None, waiting=None)
    assert not world.said("verdict")


def test_an_engine_that_only_times_out_convicts_once_the_step_is_overdue(world: World) -> None:
    world.running_at(7)
    began = world.t
    while not world.said("verdict") and world.t < began + 2000:
        world.t += 5
        world.engine(health="timeout", liveness="timeout", iterations=None, running=None, waiting=None)
    assert "vLLM hangs: its port has accepted and not answered" in world.said("verdict")[0]
    assert world.t - began < 5 * 200


def test_counters_that_cannot_be_read_did_not_stand_still(world: World) -> None:
    world.running_at(7)
    for _ in range(60):
        world.t += 5
        world.engine(iterations=None, running=None, waiting=None, connections=3)
        world.see(f.WorkSeen(inflight=64, done=0, total=128))
    assert not world.said("verdict")


def test_long_rollouts_while_the_engine_makes_tokens_are_a_long_step_and_no_hang(world: World) -> None:
    world.running_at(7)
    for _ in range(180):
        world.t += 5
        world.see(f.WorkSeen(inflight=128, done=0, total=128))
        world.engine(liveness="timeout")
    assert not world.said("verdict"), "900 s, more than four times the median, and every token counted"
