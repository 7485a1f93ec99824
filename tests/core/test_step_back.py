"""A checkpoint is suspected only by what a checkpoint can cause, and then also where its symptoms vary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.fencing import left_here

from .world import GIB, SETTINGS, World


def resumed_at_ten() -> World:
    """Steps 5 and 10 are good; the job was restarted once and has resumed at step 10."""
    world = World()
    world.running_at(10)
    world.see(f.Command("restart", "ana"))
    world.after(10)
    assert resume_steps(world) == [10]
    return world


def resume_steps(world: World) -> list[int | None]:
    return [start.step for start in world.asked(a.Start) if isinstance(start, a.Start)]


def attempt(world: World) -> int:
    return world.state.attempt.number


def crash(world: World, *, after_steps: int = 0, signature: str = "", text: str = "", code: int = 1) -> None:
    """The job makes ``after_steps`` steps from where it resumed, says why, and ends by itself."""
    resumed = world.state.attempt.resume_step or 0
    if after_steps:
        world.job_up()
    for number in range(resumed + 1, resumed + 1 + after_steps):
        world.step(number)
    if signature:
        world.see(f.ErrorSeen("trainer", signature, text or signature))
    world.see(f.ComponentExited(attempt(world), "launcher", code))
    world.after(700)


def killed(world: World) -> None:
    world.see(f.ComponentExited(attempt(world), "launcher", None, 9))
    world.after(700)


def out_of_memory(world: World) -> None:
    kills = world.state.host.oom_kills or 0
    world.see(f.HostLook(memory_total_bytes=64 * GIB, memory_available_bytes=20 * GIB, oom_kills=kills))
    world.see(f.HostLook(memory_total_bytes=64 * GIB, memory_available_bytes=40 * GIB, oom_kills=kills + 1))
    world.see(f.ComponentExited(attempt(world), "launcher", 1))
    world.after(700)


def port_taken(world: World) -> None:
    world.see(f.ErrorSeen("inference", "port-in-use", "[Errno 98] address already in use"))
    world.see(f.ErrorSeen("launcher", "component-failed", "Error: Inference failed with exit code 1"))
    world.see(f.ComponentExited(attempt(world), "launcher", 1))
    world.after(700)


def trainer_killed(world: World) -> None:
    world.see(f.ErrorSeen("launcher", "component-failed", "Error: Trainer failed with exit code -9"))
    world.see(f.ComponentExited(attempt(world), "launcher", 1))
    world.after(700)


def engine_dead(world: World) -> None:
    world.see(f.ErrorSeen("inference", "engine-dead", "EngineCore encountered a fatal error."))
    world.see(f.ErrorSeen("orchestrator", "fatal-error", "Fatal error in orchestrate"))
    world.see(f.ComponentExited(attempt(world), "launcher", 1))
    world.after(700)


def engine_ended(world: World) -> None:
    world.see(f.ErrorSeen("launcher", "component-failed", "Error: Inference failed with exit code 1"))
    world.see(f.ComponentExited(attempt(world), "launcher", 1))
    world.after(700)


def gpu_fault(world: World) -> None:
    world.see(f.GpuFault("GPU 1", 31, "MMU fault"))
    world.see(f.ErrorSeen("trainer", "cuda-illegal-access", "CUDA error: an illegal memory access"))
    world.see(f.ComponentExited(attempt(world), "launcher", 1))
    world.after(700)


def disk_full(world: World) -> None:
    world.see(f.ErrorSeen("trainer", "disk-full", "OSError: [Errno 28] No space left on device"))
    world.see(f.ErrorSeen("trainer", "fatal-error", "Fatal error in train"))
    world.see(f.ComponentExited(attempt(world), "launcher", 1))
    world.after(700)


def volume_gone(world: World) -> None:
    """A step that this pod's volume does not give is no bad step."""
    world.see(f.ErrorSeen("trainer", "volume-broken", "OSError: [Errno 116] Stale file handle"))
    world.see(f.ErrorSeen("trainer", "checkpoint-failed", "Error: the checkpoint could not be read"))
    world.see(f.ComponentExited(attempt(world), "launcher", 1))
    world.after(700)


def handed_on(world: World) -> None:
    """A shell hands a SIGTERM on as 143."""
    crash(world, code=143)


def lost(world: World) -> None:
    world.see(f.ComponentExited(attempt(world), "launcher", None, None, lost=True))
    world.after(700)


def hub_refuses(world: World) -> None:
    crash(world, signature="hub-refused", text="403 Forbidden")


OWN = [
    killed,
    out_of_memory,
    port_taken,
    trainer_killed,
    engine_dead,
    engine_ended,
    gpu_fault,
    disk_full,
    volume_gone,
    handed_on,
    lost,
    hub_refuses,
]


@pytest.mark.parametrize("cause", OWN)
def test_what_no_checkpoint_causes_quarantines_no_step_however_often_it_comes(cause: object) -> None:
    world = resumed_at_ten()
    while world.state.mode == "starting":
        cause(world)  # type: ignore[operator]
    assert world.state.mode == ("unfit" if cause is gpu_fault else "gave-up"), world.state.why
    assert set(resume_steps(world)) == {10}
    assert not world.state.store.quarantined
    assert not world.asked(a.KeepLineage)


@pytest.mark.soak
@pytest.mark.parametrize("cause", OWN)
def test_one_crash_beside_this_pods_own_troubles_quarantines_no_step(cause: object) -> None:
    world = resumed_at_ten()
    cause(world)  # type: ignore[operator]
    crash(world, after_steps=1)
    cause(world)  # type: ignore[operator]
    cause(world)  # type: ignore[operator]
    assert set(resume_steps(world)) == {10}
    assert not world.state.store.quarantined


@pytest.mark.parametrize("cause", OWN)
def test_two_crashes_speak_against_the_step_whatever_came_between_them(cause: object) -> None:
    world = resumed_at_ten()
    crash(world, after_steps=1)
    cause(world)  # type: ignore[operator]
    assert resume_steps(world)[-1] == 10
    crash(world, after_steps=2, signature="fatal-error")
    assert resume_steps(world)[-1] == 5
    assert set(world.state.store.quarantined) == {"10"}


def test_a_poisoned_step_whose_crash_varies_by_a_step_goes_one_step_back() -> None:
    world = resumed_at_ten()
    crash(world, after_steps=1)
    assert resume_steps(world)[-1] == 10, "one crash is no proof against a step"
    crash(world, after_steps=3)
    assert resume_steps(world)[-1] == 5
    (sentence,) = world.said("one-step-back")
    assert "crashed twice soon after step 10: that step is quarantined" in sentence


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("loss-not-finite", "cuda-illegal-access"),
        ("", "fatal-error"),
        ("segfault", "loss-not-finite"),
        ("python-error", ""),
        ("connection-error", "reward-function-error"),
    ],
)
def test_a_poisoned_step_with_another_symptom_each_time_goes_one_step_back(first: str, second: str) -> None:
    world = resumed_at_ten()
    crash(world, after_steps=1, signature=first)
    crash(world, after_steps=1, signature=second)
    assert resume_steps(world)[-1] == 5


def test_a_trainer_that_says_that_it_crashed_and_is_gone_speaks_against_the_step() -> None:
    """Its launcher lives on for a while: the process is seen gone before the job has ended."""
    world = resumed_at_ten()
    for _ in range(2):
        world.job_up()
        world.step(11)
        world.see(f.ErrorSeen("trainer", "fatal-error", "Fatal error in train: loss is nan"))
        world.see(f.ProcessGone(attempt(world), "trainer", world.pid + 3, 5003))
        world.after(700)
    assert resume_steps(world)[-1] == 5


@pytest.mark.parametrize(("role", "index"), [("trainer", 3), ("orchestrator", 2), ("inference", 1)])
def test_a_process_that_is_gone_without_a_word_says_nothing_of_the_step(role: f.Role, index: int) -> None:
    world = resumed_at_ten()
    while world.state.live:
        world.job_up()
        world.see(f.ErrorSeen("orchestrator", "connection-error", "Connection error."))
        world.see(f.ProcessGone(attempt(world), role, world.pid + index, 5000 + index))
        world.after(700)
    assert world.state.mode == "gave-up"
    assert not world.state.store.quarantined


def test_a_crash_in_native_code_is_the_jobs_own_end() -> None:
    world = resumed_at_ten()
    for _ in range(2):
        world.see(f.ComponentExited(attempt(world), "launcher", None, 11))
        world.after(700)
    assert resume_steps(world)[-1] == 5


def test_weights_that_the_engine_cannot_take_speak_against_the_step() -> None:
    world = resumed_at_ten()
    for _ in range(2):
        world.job_up()
        world.see(f.ErrorSeen("inference", "engine-weights-differ", "ValueError: There is no module named x"))
        world.engine_process_dies()
        world.after(700)
    assert resume_steps(world)[-1] == 5


def test_crashes_far_from_the_resume_step_and_from_each_other_end_with_a_step_back_before_giving_up() -> None:
    """The checkpoints are far apart: such crashes may be the step's fault, and a person is called only after that."""
    world = resumed_at_ten()
    for steps in (7, 8, 9):
        crash(world, after_steps=steps)
        assert resume_steps(world)[-1] == 10
    crash(world, after_steps=10)
    assert resume_steps(world)[-1] == 5
    assert "No new complete step after step 10 in 3 restarts" in world.said("one-step-back")[0]
    crash(world, after_steps=10)
    assert world.state.mode == "gave-up", "tried once"


def test_the_very_same_step_far_from_the_resume_is_one_place_too() -> None:
    world = resumed_at_ten()
    crash(world, after_steps=8)
    crash(world, after_steps=8, signature="fatal-error")
    assert resume_steps(world)[-1] == 5


def test_of_two_unreadable_steps_in_a_row_the_third_is_tried() -> None:
    world = World(replace(SETTINGS, keep_local=9, keep_last=9))
    world.running_at(30)
    world.see(f.Command("restart", "ana"))
    world.after(10)
    for _ in range(5):
        crash(world, signature="checkpoint-damaged", text="RuntimeError: PytorchStreamReader failed")
    assert resume_steps(world) == [30, 25, 20, 15, 10, 5], "as often as each is proven"
    assert set(world.state.store.quarantined) == {"30", "25", "20", "15", "10"}
    assert world.state.live
    world.job_up()
    for number in range(6, 11):
        world.step(number)
    world.checkpoint(10)
    assert "10" not in world.state.store.quarantined, "written anew"
    assert world.state.live


def date_files(world: World, behind_s: float) -> None:
    """The daemon's clock is behind the one that dates the files."""
    world.changed = {step: changed + behind_s for step, changed in world.changed.items()}
    world.survey()


@pytest.mark.parametrize("behind_s", [7200.0, 0.0, -7200.0])
def test_a_clock_apart_from_that_of_the_files_undoes_no_quarantine(behind_s: float) -> None:
    world = resumed_at_ten()
    date_files(world, behind_s)
    ten = next(one for one in world.state.local.steps if one.step == 10)
    for steps in (1, 2, 3, 4, 5):
        crash(world, after_steps=steps)
    assert resume_steps(world)[:4] == [10, 10, 5, 5]
    assert set(world.state.store.quarantined) == {"10"}
    assert left_here(world.state.lineage.unwritten, [ten]), "nor after the loss of the journal"
    world.job_up()
    for number in range(6, 11):
        world.step(number)
    world.checkpoint(10)
    date_files(world, max(behind_s, 0.0))
    assert "10" not in world.state.store.quarantined, "written anew"


def test_a_quarantined_step_that_a_person_wants_is_good_whatever_clock_dated_its_files() -> None:
    world = resumed_at_ten()
    date_files(world, 7200.0)
    for steps in (1, 2):
        crash(world, after_steps=steps)
    assert resume_steps(world)[-1] == 5
    world.local[10] = "complete"
    world.see(f.Command("rollback", "ana", ("10",)))
    world.happened = world.state.lineage.unwritten
    world.after(10)
    world.happened = world.state.lineage.unwritten
    world.survey()
    assert [entry.kind for entry in world.happened] == ["quarantine", "rollback", "take"]
    assert (resume_steps(world)[-1], world.state.good_local()) == (10, [5, 10])


class Fetching(World):
    """The step to go back to is on its way from the store, and does not come yet."""

    def _carry_out(self, action: a.Action) -> None:
        if not isinstance(action, a.Restore):
            super()._carry_out(action)


@pytest.mark.parametrize("ahead_s", [0.0, 7200.0])
def test_a_clock_that_dates_the_files_ahead_undoes_no_rollback(ahead_s: float) -> None:
    """The disk is scanned while the step to go back to is fetched."""
    world = Fetching()
    world.running_at(10)
    world.checkpoint(15)
    world.after(5)
    del world.local[5]
    date_files(world, ahead_s)
    world.actions.clear()
    world.see(f.Command("rollback", "ana", ("5",)))
    for _ in range(4):
        world.after(20)
        world.survey()
    assert world.state.mode == "restoring" and not world.asked(a.Publish)
    assert world.state.good_local() == [] and world.state.good_stored() == [5]


def test_a_line_of_the_launcher_after_it_does_not_hide_that_the_step_is_unreadable() -> None:
    world = resumed_at_ten()
    world.see(f.ErrorSeen("trainer", "checkpoint-damaged", "RuntimeError: PytorchStreamReader failed"))
    world.see(f.ErrorSeen("trainer", "fatal-error", "Fatal error in train"))
    world.see(f.ErrorSeen("launcher", "component-failed", "Error: Trainer failed with exit code 1"))
    world.see(f.ComponentExited(attempt(world), "launcher", 1))
    world.after(60)
    assert resume_steps(world)[-1] == 5
    assert "could not read the checkpoint of step 10" in world.said("one-step-back")[0]


def test_unreadable_steps_until_none_is_left_end_with_a_person() -> None:
    world = resumed_at_ten()
    while world.state.mode == "starting":
        crash(world, signature="checkpoint-damaged", text="RuntimeError: PytorchStreamReader failed")
    assert world.state.mode == "gave-up"
    assert set(world.state.store.quarantined) == {"10"}, "the last one there is stays, for the person"


def test_a_step_that_is_reached_anew_gives_the_budget_back() -> None:
    world = resumed_at_ten()
    crash(world, after_steps=1)
    crash(world, after_steps=2)
    assert resume_steps(world)[-1] == 5
    world.job_up()
    for number in range(6, 11):
        world.step(number)
    world.checkpoint(10)
    assert world.state.recovery.barren == 0
    for number in range(11, 16):
        world.step(number)
    world.checkpoint(15)
    assert not world.state.recovery.stepped_back


def test_crashes_after_a_step_that_was_made_anew_are_not_the_steps_and_end_with_a_person() -> None:
    """It crashes at step 12, whatever it resumes from: three more tries, and no step is left again."""
    world = resumed_at_ten()
    crash(world, after_steps=1)
    crash(world, after_steps=1)
    world.job_up()
    for number in range(6, 11):
        world.step(number)
    world.checkpoint(10)
    while world.state.live and len(resume_steps(world)) < 20:
        crash(world, after_steps=1)
    assert world.state.mode == "gave-up"
    assert resume_steps(world) == [10, 10, 5, 10, 10, 10]
    assert len(world.said("one-step-back")) == 1


def test_a_persons_stop_between_two_crashes_is_no_failure_and_begins_the_evidence_anew() -> None:
    world = resumed_at_ten()
    crash(world, after_steps=1)
    world.see(f.Command("stop", "ana"))
    world.after(60)
    world.see(f.Command("start", "ana"))
    world.after(60)
    crash(world, after_steps=1)
    assert not world.state.store.quarantined, "what the person changed meanwhile may be why"
    crash(world, after_steps=1)
    assert resume_steps(world)[-1] == 5


@pytest.mark.parametrize("late", ["gpu", "memory"])
def test_what_the_machine_says_just_after_the_end_explains_it_too(late: str) -> None:
    """The end and the driver's or the kernel's word come from two sensors, in either order."""
    world = resumed_at_ten()
    world.see(f.HostLook(memory_total_bytes=64 * GIB, memory_available_bytes=20 * GIB, oom_kills=0))
    world.answer = False
    for count in (1, 2, 3):
        world.see(f.ComponentExited(attempt(world), "launcher", 1))
        world.t += 0.5
        if late == "gpu":
            world.see(f.GpuFault("GPU 1", 94, "contained"))
        else:
            world.see(f.HostLook(memory_total_bytes=64 * GIB, memory_available_bytes=20 * GIB, oom_kills=count))
        world.answer = True
        world.see(f.AttemptStopped(attempt(world), 3.0, gpu_free=True))
        world.after(700)
        world.answer = False
        assert resume_steps(world)[-1] == 10
        assert not world.state.store.quarantined


def test_a_step_that_cannot_be_read_below_the_one_that_was_left_does_not_free_that_one() -> None:
    world = World(replace(SETTINGS, keep_local=9, keep_last=9))
    world.running_at(30)
    world.see(f.Command("restart", "ana"))
    world.after(10)
    crash(world, after_steps=1)
    crash(world, after_steps=1)
    crash(world, signature="checkpoint-damaged", text="RuntimeError: PytorchStreamReader failed")
    assert resume_steps(world)[-1] == 20
    world.job_up()
    for number in range(21, 31):
        world.step(number)
        if number % 5 == 0:
            world.checkpoint(number)
    while world.state.live and len(resume_steps(world)) < 20:
        crash(world, after_steps=1)
    assert world.state.mode == "gave-up"
    assert resume_steps(world) == [30, 30, 25, 20, 30, 30, 30]


def test_a_rollback_on_purpose_begins_the_suspicions_anew() -> None:
    world = resumed_at_ten()
    crash(world, after_steps=1)
    crash(world, after_steps=1)
    world.see(f.Command("rollback", "ana", ("5",)))
    world.after(10)
    assert world.state.recovery.left_step is None
    assert not world.state.recovery.stepped_back
