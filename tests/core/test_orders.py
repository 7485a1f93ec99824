"""Facts and commands in an unexpected order: what was promised holds whatever comes first, late, twice or never."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.views.status import status

from .world import GIB, SETTINGS, World


@pytest.fixture
def world() -> World:
    return World()


def mute(world: World) -> None:
    """From now on no effect answers by itself."""
    world.answer = False
    world.actions.clear()


def test_a_daemon_that_died_while_a_persons_stop_was_carried_out_stops_the_job_and_stays_stopped(world: World) -> None:
    world.running_at(7)
    mute(world)
    world.see(f.Command("stop", "kim"))
    world.actions.clear()
    world.boot(adopted=1)
    assert [stop.attempt for stop in world.asked(a.Stop)] == [1], "its job may still be alive"
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    world.answer = True
    world.after(60)
    assert world.state.mode == "stopped"
    assert not world.asked(a.Start)


def test_a_stop_right_after_a_crash_does_not_hide_it(world: World) -> None:
    world.running_at(7)
    world.answer = False
    world.see(f.ComponentExited(world.state.attempt.number, "rl", 1, None, False))
    world.after(5)
    crash = world.said("verdict")[0]
    world.see(f.Command("stop", "kim"))
    world.answer = True
    world.see(f.AttemptStopped(1, 0.1, gpu_free=True))
    told = status(world.state)
    assert told["state"] == "stopped" and told["incident"] is None
    assert crash.rstrip(".") in told["sentence"]
    assert "open until the run was ended" in told["sentence"]
    assert told["last_incident"]["recovered_step"] is None
    world.see(f.Command("start", "kim"))
    assert "open until the run was ended" in status(world.state)["sentence"]


def test_start_right_after_stop_is_not_forgotten(world: World) -> None:
    world.running_at(7)
    mute(world)
    world.see(f.Command("stop"))
    world.see(f.Command("start"))
    world.answer = True
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    assert [start.step for start in world.asked(a.Start)] == [5]


def test_restart_while_the_job_is_being_stopped_starts_only_after_the_stop(world: World) -> None:
    world.running_at(7)
    mute(world)
    world.see(f.Command("stop"))
    world.see(f.Command("restart"))
    world.survey()
    assert not world.asked(a.Start)
    world.answer = True
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    assert [start.step for start in world.asked(a.Start)] == [5]


@pytest.mark.parametrize("verb", ["stop", "start", "restart"])
def test_a_shutdown_is_not_overridden_by_what_a_person_asks_afterwards(world: World, verb: str) -> None:
    world.running_at(7)
    mute(world)
    world.see(f.Command("shutdown", "SIGTERM"))
    world.see(f.Command(verb))
    world.answer = True
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    world.see(f.Command(verb))
    world.after(90)
    assert [leave.code for leave in world.asked(a.Exit)] == [0]
    assert not world.asked(a.Start)


def test_restart_during_a_restore_does_not_ask_for_a_second_one(world: World) -> None:
    world.stored, world.latest = {40: GIB}, 40
    world.boot()
    world = World()
    world.stored, world.latest, world.answer = {40: GIB}, 40, False
    world.boot()
    world.survey()
    world.see(f.Command("restart"))
    world.survey()
    assert len(world.asked(a.Restore)) == 1
    world.local[40] = "complete"
    world.see(f.Restored(40, GIB, 30.0))
    assert [start.step for start in world.asked(a.Start)] == [40]


@pytest.mark.parametrize(
    "failure",
    [
        f.RestoreFailed(40, "the link is down."),
        f.RestoreFailed(40, "another hash.", damaged=True),
        f.RestoreFailed(40, "the key is wrong.", permanent=True),
    ],
)
@pytest.mark.parametrize("verb", ["stop", "shutdown"])
def test_a_restore_that_fails_after_a_stop_starts_nothing_and_ends_nothing(
    world: World, verb: str, failure: f.RestoreFailed
) -> None:
    world.stored, world.latest, world.answer = {40: GIB}, 40, False
    world.boot()
    world.survey()
    world.see(f.Command(verb))
    world.see(failure)
    world.answer = True
    world.after(120)
    assert not world.asked(a.Start)
    assert [leave.code for leave in world.asked(a.Exit)] == ([] if verb == "stop" else [0])
    assert world.state.mode == ("stopped" if verb == "stop" else "leaving")


@pytest.mark.parametrize("lane", ["prune", "prune-store", "publish", "restore", "job", "setup", "hook", "scan"])
def test_an_effect_that_always_crashes_is_not_asked_for_in_a_tight_loop(lane: str) -> None:
    world = World(replace(SETTINGS, hooks=("finish",)))
    world.stored, world.latest = {10: GIB, 20: GIB, 30: GIB, 40: GIB, 50: GIB}, 50
    world.answer = False
    world.boot()
    world.survey()
    asked = 0
    for _ in range(20):
        before = len([action for action in world.actions if not isinstance(action, a.Say | a.Survey)])
        world.see(f.EffectCrashed(lane, "ValueError"))
        asked += len([x for x in world.actions if not isinstance(x, a.Say | a.Survey)]) - before
    assert asked <= 1


def test_a_stop_that_crashes_is_asked_for_again_after_a_pause(world: World) -> None:
    world.running_at(7)
    mute(world)
    world.see(f.Command("stop"))
    for _ in range(10):
        world.see(f.EffectCrashed("job", "TryAgainError"))
    assert len(world.asked(a.Stop)) == 1
    world.after(70)
    assert len(world.asked(a.Stop)) == 2
    assert world.state.mode == "stopping"


def test_a_finish_hook_that_crashes_does_not_keep_the_pod(world: World) -> None:
    world.settings = replace(SETTINGS, max_steps=5, first_step_at=1, hooks=("finish",))
    world.running_at(5)
    mute(world)
    world.see(f.FinishSeen("trainer", "RL trainer finished!"))
    world.see(f.ComponentExited(1, "launcher", 0))
    world.see(f.AttemptStopped(1, 1.0, gpu_free=True))
    world.survey()
    assert world.asked(a.RunHook)
    world.see(f.EffectCrashed("hook", "OSError"))
    assert [leave.code for leave in world.asked(a.Exit)] == [0]


def test_a_step_that_changed_under_its_publish_is_not_chosen_again_at_once(world: World) -> None:
    world.publish_works = False
    world.running_at(5)
    mute(world)
    world.after(120)
    tries = len(world.asked(a.Publish))
    for _ in range(50):
        world.see(f.PublishFailed(5, "it is gone.", step_changed=True))
    assert len(world.asked(a.Publish)) == tries


def test_a_step_reached_anew_is_published_again_although_the_store_lists_the_old_one(world: World) -> None:
    world.stored, world.latest = {20: GIB, 40: GIB}, 40
    world.settings = replace(SETTINGS, pin_step=20)
    world.boot()
    world.job_up()
    world.publish_works = False
    for step in range(21, 41):
        world.step(step)
    world.after(2000, tick=100)
    world.checkpoint(40)  # in the store, 40 is still the lineage that was left
    world.actions.clear()
    world.publish_works = True
    world.after(4000, tick=50)
    assert 40 in [publish.step for publish in world.asked(a.Publish)]


def test_fresh_without_the_store_is_still_fresh_once_the_store_is_listed(world: World) -> None:
    world.stored, world.latest, world.store_reason = {20: GIB, 40: GIB}, 40, "the link is down."
    world.settings = replace(SETTINGS, fresh=True)
    world.boot()
    assert [start.step for start in world.asked(a.Start)] == [None]
    world.job_up()
    for step in range(1, 6):
        world.step(step)
    world.store_reason = ""
    world.checkpoint(5)
    world.survey()
    assert [publish.step for publish in world.asked(a.Publish)] == [5]
    world.engine_process_dies()
    world.after(30)
    assert [start.step for start in world.asked(a.Start)][-1] == 5


def test_a_damaged_step_that_a_person_asked_for_is_fetched_once(world: World) -> None:
    world.stored, world.latest, world.damaged = {20: GIB, 40: GIB}, 40, {20}
    world.settings = replace(SETTINGS, pin_step=20)
    world.boot()
    world.after(300)
    assert len(world.asked(a.Restore)) == 1
    assert [leave.code for leave in world.asked(a.Exit)] == [93]


def test_a_run_that_began_fresh_and_lost_every_checkpoint_is_not_begun_again(world: World) -> None:
    world.publish_works = False
    world.running_at(12)
    world.local = {5: "incomplete", 10: "incomplete"}
    world.engine_process_dies()
    world.after(60)
    assert not world.asked(a.Start)
    assert [leave.code for leave in world.asked(a.Exit)] == [93]


def test_a_fresh_run_that_dies_before_its_first_checkpoint_begins_again(world: World) -> None:
    world.stored, world.latest = {40: GIB}, 40
    world.settings = replace(SETTINGS, fresh=True)
    world.boot()
    world.job_up()
    world.step(1)
    world.engine_process_dies()
    world.after(60)
    assert [start.step for start in world.asked(a.Start)] == [None, None]


def test_a_step_above_the_pointer_hides_no_newer_work(world: World) -> None:
    """Left by a rollback on an earlier pod."""
    world.local, world.answer = {20: "complete"}, False
    world.boot()
    world.see(f.LocalSteps((f.LocalStep(20, "complete", "", GIB),), settled=True))
    left = f.StoredStep(45, True, GIB, left="the run went back to step 20")
    world.see(f.StoreSteps((f.StoredStep(20, True, GIB), left), 20))
    world.answer = True
    world.see(f.AttemptStarted(1, 20, 110, "rl"))
    world.job_up()
    for step in range(21, 31):
        world.step(step)
    world.checkpoint(25)
    world.checkpoint(30)
    assert 30 in [publish.step for publish in world.asked(a.Publish)]


def test_a_job_that_dies_right_after_each_save_makes_progress_and_is_not_given_up(world: World) -> None:
    world.running_at(7)
    for number in range(2, 8):
        first = max(world.local) + 1
        for step in range(first, first + 5):
            world.step(step)
        world.local[first + 4] = "complete"  # no scan saw it while the job lived
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(400)
        assert world.state.mode == "starting", world.state.why
        assert world.asked(a.Start)[-1].attempt == number
        world.job_up()


def test_a_finished_run_that_is_shut_down_while_it_publishes_stays_finished(world: World) -> None:
    world.settings = replace(SETTINGS, max_steps=None)
    world.running_at(5)
    mute(world)
    world.see(f.FinishSeen("trainer", "RL trainer finished!"))
    world.see(f.ComponentExited(1, "launcher", 0))
    world.see(f.AttemptStopped(1, 1.0, gpu_free=True))
    assert world.state.mode == "publishing"
    world.see(f.Command("shutdown", "SIGTERM"))
    world.answer = True
    world.boot()
    world.after(60)
    assert world.state.mode == "finished"
    assert not world.asked(a.Start)


def test_a_full_disk_is_pruned_also_below_the_threshold(world: World) -> None:
    world.running_at(30)
    world.see(f.DiskLook("/ckpt", 4 * GIB, GIB))  # 75 % used, and less free than the job needs
    assert world.asked(a.PruneLocal)


def test_a_job_that_hangs_after_its_last_step_is_found() -> None:
    world = World(replace(SETTINGS, max_steps=10, first_step_at=1))
    world.running_at(10)
    world.after(3 * 3600, tick=20)
    assert world.said("verdict")


def test_an_orchestrators_finish_and_exit_zero_do_not_finish_a_run_whose_trainer_has_steps_left() -> None:
    world = World(replace(SETTINGS, max_steps=10, first_step_at=1))
    world.running_at(7)
    world.see(f.FinishSeen("orchestrator", "Orchestrator finished."))
    world.see(f.ComponentExited(1, "launcher", 0))
    world.after(30)
    assert [start.step for start in world.asked(a.Start)] == [5]


def test_a_whole_step_above_the_pointer_is_resumed_from(world: World) -> None:
    """Its publish died between manifest and pointer, and then the pod."""
    world.stored, world.latest = {10: GIB, 40: GIB}, 10
    world.boot()
    assert [restore.step for restore in world.asked(a.Restore)] == [40]
    sentence = "Step 40 is the last good step, and it is in the store only. latest.json is behind: it names step 10."
    assert world.said("restoring") == [sentence]
    world.after(5)
    assert [publish.step for publish in world.asked(a.Publish)] == [40], "the pointer is moved, and nothing sent"
    assert world.latest == 40
    world.after(60)
    assert len(world.asked(a.Publish)) == 1


def test_a_pointer_that_the_original_scripts_moved_back_is_followed(world: World) -> None:
    """They keep no list of what they left: a step of ours above it may be one that they went back behind."""
    world.answer = False
    world.boot()
    world.see(f.LocalSteps((), settled=True))
    world.see(f.StoreSteps((f.StoredStep(50, True, GIB, legacy=True), f.StoredStep(60, True, GIB)), 50))
    assert [restore.step for restore in world.asked(a.Restore)] == [50]


def test_gpu_memory_that_a_stranger_holds_is_said_with_who_and_ends_with_the_pod(world: World) -> None:
    world.running_at(7)
    mute(world)
    world.see(f.Command("restart"))
    holder = "pid 4711 of user anna (python serve.py)"
    world.see(f.AttemptStopped(1, 60.0, gpu_free=False, gpu_holders=(holder,)))
    assert world.state.ending.code == 94
    (sentence,) = world.said("unfit")
    assert sentence.endswith(f"left alone, but on its GPUs: {holder}. End that, or replace the pod.")


def ordered_back_to_20(world: World) -> None:
    """The job is stopped for it, and this disk, which answers first, has later steps only."""
    world.running_at(30)
    world.t += 600
    mute(world)
    world.see(f.Command("rollback", "api", ("20",)))
    world.see(f.AttemptStopped(1, 1.0, gpu_free=True))
    assert world.asked(a.Survey)
    here = tuple(f.LocalStep(step, "complete", "", GIB) for step in (25, 30))
    world.see(f.LocalSteps(here, settled=True))


def test_a_rollback_goes_by_a_listing_of_the_store_that_is_no_older_than_the_stop(world: World) -> None:
    """Step 20 went from the store while the run trained: by hand, or by another pod. The disk answers first."""
    ordered_back_to_20(world)
    assert not world.asked(a.Restore), "what is known of the store is ten minutes old"
    assert "listed anew" in world.state.why
    world.see(f.StoreSteps(tuple(f.StoredStep(step, True, GIB) for step in (25, 30)), 30))
    assert not world.asked(a.Restore)
    assert not world.state.lineage.unwritten, "no higher step is left for a step that cannot be used"
    assert world.state.mode == "gave-up"


def test_a_rollback_is_carried_out_once_the_store_is_listed_anew(world: World) -> None:
    ordered_back_to_20(world)
    world.see(f.StoreSteps(tuple(f.StoredStep(step, True, GIB) for step in (20, 30)), 30))
    assert [restore.step for restore in world.asked(a.Restore)] == [20]
