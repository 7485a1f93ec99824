"""Money does not burn in silence: what comes again and again, or does not move, is said, and ended where it must be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core import recurring
from supervisor.core.goodput import Ledger
from supervisor.core.records import Learned
from supervisor.core.state import Crash

from .world import GIB, SETTINGS, World

HOUR = 3600.0


# ---------------------------------------------------------------- starts that hang (row 7)


def until_it_ends(world: World, *, most_s: float, each: object = None) -> float:
    """Hours until the core gives up; ``each`` is what every new attempt shows."""
    began, attempt = world.t, 0
    while not world.asked(a.Exit) and world.t - began < most_s:
        if world.state.attempt.number != attempt and world.state.mode == "starting":
            attempt = world.state.attempt.number
            if each is not None:
                each(attempt)  # type: ignore[operator]
        world.after(60, tick=20)
    return (world.t - began) / HOUR


def test_a_first_start_that_hangs_and_shows_nothing_new_calls_a_person_after_two_hours() -> None:
    world = World()
    world.boot()
    hours = until_it_ends(world, most_s=20 * HOUR)
    assert 2.0 <= hours < 2.2
    assert world.asked(a.Exit)[-1].code == 93
    assert "2 h of starts showed nothing new" in world.asked(a.Exit)[-1].reason
    assert "raise deadlines.startup" in world.asked(a.Exit)[-1].reason
    assert len(world.asked(a.Start)) == 2


def test_a_start_that_hangs_at_the_same_phase_each_time_shows_nothing_new() -> None:
    world = World()
    world.boot()

    def each(attempt: int) -> None:
        world.see(f.PhaseSeen("trainer", "startup"))
        world.see(f.PhaseSeen("orchestrator", "engine-wait"))
        for used in (0, 30 * GIB + attempt):
            world.t += 10
            world.see(f.GpuLook((f.Gpu("GPU-0", 0, used, 80 * GIB, "inference"),)))

    assert until_it_ends(world, most_s=20 * HOUR, each=each) < 2.3


def test_a_start_that_comes_further_than_the_one_before_is_given_twice_the_time() -> None:
    world = World()
    world.boot()

    def each(attempt: int) -> None:
        world.see(f.PhaseSeen("trainer", "startup"))
        if attempt > 1:
            world.engine(iterations=None, running=None, waiting=None)

    until_it_ends(world, most_s=2.5 * HOUR, each=each)
    assert not world.asked(a.Exit)
    assert world.state.attempt.number == 2, "it has two hours, not one"
    until_it_ends(world, most_s=20 * HOUR, each=each)
    assert world.state.mode == "gave-up"
    assert world.t - 1000 < 5.5 * HOUR


def test_a_download_that_is_further_each_time_is_something_new() -> None:
    world = World()
    world.boot()

    def each(attempt: int) -> None:
        for part in range(3):
            world.t += 60
            world.see(f.Growing("download", (attempt * 10 + part) * GIB))

    until_it_ends(world, most_s=2.5 * HOUR, each=each)
    assert not world.asked(a.Exit)


def test_a_crash_between_two_such_starts_makes_neither_new() -> None:
    world = World()
    world.boot()

    def each(attempt: int) -> None:
        if attempt == 2:
            world.see(f.ComponentExited(attempt, "launcher", 1))

    assert until_it_ends(world, most_s=20 * HOUR, each=each) < 2.3


def test_a_resume_that_hangs_in_a_run_whose_starts_are_known_burns_no_day_either() -> None:
    world = World()
    world.running_at(7)
    world.engine_process_dies()
    assert until_it_ends(world, most_s=20 * HOUR) < 3.0
    assert world.state.mode == "gave-up"


# ---------------------------------------------------------------- one GPU, again and again (rows 21, 22)


def crash_and_go_on(world: World, *faults: tuple[str, int]) -> None:
    """A GPU's fault, a crash, a restart, and a new checkpoint after it: the budget of restarts begins anew."""
    for gpu, xid in faults:
        world.see(f.GpuFault(gpu, xid))
    world.see(f.ErrorSeen("trainer", "fatal-error", "Fatal error in train"))
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    world.after(300)
    if not world.state.live:
        return
    world.job_up()
    step = world.state.attempt.resume_step or 0
    for number in range(step + 1, step + 6):
        world.step(number)
    world.checkpoint(step + 5)


def test_the_same_gpu_with_a_fault_before_each_of_three_crashes_sends_the_run_to_another_pod() -> None:
    world = World()
    world.running_at(10)
    for count, xid in enumerate((94, 31, 13), 1):
        assert world.state.live, count
        crash_and_go_on(world, ("GPU 1", xid))
    assert world.state.mode == "unfit"
    assert "GPU 1 (GPU-1) reported a fault before 3 failures in" in world.said("unfit")[0]
    assert world.asked(a.Exit)[-1].code == 94
    assert not world.state.store.quarantined


def test_faults_of_different_gpus_are_not_one_gpus() -> None:
    world = World()
    world.running_at(10)
    for gpu in ("GPU 0", "GPU 1", "GPU 0", "GPU 1"):
        crash_and_go_on(world, (gpu, 94))
    assert world.state.live


def test_faults_of_gpus_that_no_one_can_name_are_not_merged() -> None:
    world = World()
    world.running_at(10)
    for _ in range(5):
        crash_and_go_on(world, ("GPU 7", 94))
    assert world.state.live


def test_what_a_kill_leaves_in_the_drivers_log_is_no_fault_of_a_gpu() -> None:
    world = World()
    world.running_at(10)
    for _ in range(5):
        crash_and_go_on(world, ("GPU 1", 45), ("GPU 1", 43))
    assert world.state.live


def test_a_fault_of_all_gpus_at_once_is_the_programs() -> None:
    world = World()
    world.running_at(10)
    for _ in range(4):
        looks = tuple(f.Gpu(f"GPU-{n}", n, 60 * GIB, 80 * GIB, "trainer") for n in range(8))
        world.see(f.GpuLook(looks))
        crash_and_go_on(world, *((f"GPU {n}", 31) for n in range(8)))
    assert world.state.live


def test_crashes_of_one_gpu_that_lie_days_apart_are_not_counted_together() -> None:
    world = World()
    world.running_at(10)
    for _ in range(4):
        crash_and_go_on(world, ("GPU 1", 94))
        world.t += 7 * HOUR
        world.see(f.ClockJumped(7 * HOUR))
    assert world.state.live


def test_a_link_between_gpus_that_fails_is_restarted_once_and_then_left() -> None:
    world = World()
    world.running_at(10)
    crash_and_go_on(world, ("GPU 0", 74), ("GPU 1", 74))
    assert world.state.live
    assert len(world.asked(a.Start)) == 1
    crash_and_go_on(world, ("GPU 0", 74), ("GPU 1", 74))
    assert world.state.mode == "unfit"


# ---------------------------------------------------------------- crash after each checkpoint (row 40)


def test_twelve_crashes_after_twelve_checkpoints_are_said_as_what_they_are() -> None:
    world = World(replace(SETTINGS, keep_local=3))
    world.running_at(10)
    verdicts = []
    for _ in range(12):
        world.see(f.ErrorSeen("trainer", "cuda-oom", "torch.OutOfMemoryError: CUDA out of memory"))
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        verdicts.append(world.said("verdict")[-1])
        world.after(300)
        step = world.state.attempt.resume_step or 0
        world.job_up()
        for number in range(step + 1, step + 6):
            world.step(number)
        world.checkpoint(step + 5)
        assert world.state.live
    assert "of one kind" not in verdicts[1]
    assert "3 crashes of one kind (cuda-oom) in" in verdicts[2]
    assert "12 crashes of one kind (cuda-oom) in 4 h" in verdicts[-1]
    assert "each 5 to 10 steps after it resumed" in verdicts[-1]
    assert "11 of them after a new checkpoint" in verdicts[-1]
    assert len(set(verdicts[2:])) == 10, "not the same words each time"
    told = world.said("recurring")
    assert [sentence.split()[0] for sentence in told] == ["3", "6", "12"]
    assert "12 crashes of one kind" in world.state.incidents.closed[-1].sentence


def test_crashes_at_one_step_after_a_rollback_are_not_said_to_have_checkpoints_in_between() -> None:
    crashes = [Crash(0.0, "cuda", 4, None), Crash(10.0, "cuda", None, 4)]
    crashes += [Crash(20.0 + number, "cuda", 4, 2) for number in range(4)]
    said = recurring.sentence(replace(World().state, recovery=replace(World().state.recovery, crashes=tuple(crashes))))
    assert said.startswith("6 crashes of one kind (cuda) in "), said
    assert ", each after step 4" in said, "the one fact that tells the data from the GPU"
    assert said.endswith(", 1 of them after a new checkpoint."), "a step back is no progress"


def test_crashes_of_different_kinds_are_not_one_series() -> None:
    world = World()
    world.running_at(10)
    for name in ("cuda-oom", "nccl-error", "disk-full", "port-in-use"):
        world.see(f.ErrorSeen("trainer", name, name))
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(300)
    assert not world.said("recurring")


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_person_who_acts_begins_the_series_anew(verb: str) -> None:
    world = World()
    world.boot()
    for _ in range(2):
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(300)
    world.see(f.Command("stop", "ana"))
    world.after(10)
    world.see(f.Command(verb, "ana"))
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    assert "of one kind" not in world.said("verdict")[-1]


# ---------------------------------------------------------------- waits that are paid (rows 30, 39, 41)


def ages(sentences: list[str], before: str, after: str) -> list[str]:
    return [sentence.partition(before)[2].partition(after)[0] for sentence in sentences]


@pytest.mark.soak
def test_a_store_that_is_away_for_twelve_hours_is_said_again_with_its_age_and_what_a_person_can_do() -> None:
    world = World()
    world.store_reason = "the store did not answer: 503 service unavailable."
    world.boot()
    world.after(12 * HOUR, tick=5)
    said = world.said("waiting")
    assert ages(said, "No job has run here for ", ",") == ["10 min", "60 min", "4 h", "7 h", "10 h"]
    assert "this pod is paid meanwhile" in said[-1]
    assert "503 service unavailable" in said[-1]
    assert "rl-supervisor check --online RUN.toml" in said[-1]
    assert "end this pod and take another" in said[-1]
    assert not world.asked(a.Start)
    world.store_reason = ""
    world.after(60)
    assert world.asked(a.Start)
    world.after(HOUR, tick=60)
    assert len(world.said("waiting")) == 5


def test_the_age_of_a_wait_outlives_the_daemon() -> None:
    world = World()
    world.store_reason = "the store did not answer."
    world.boot()
    for _ in range(8):
        world.after(540, tick=5)
        world.boot()
    assert ages(world.said("waiting"), "here for ", ",") == ["10 min", "60 min"]


def test_a_restore_that_fails_again_and_again_is_one_wait() -> None:
    world = World()
    world.answer = False
    world.boot()
    world.see(f.LocalSteps((), settled=True))
    world.see(f.StoreSteps((f.StoredStep(10, True, GIB),), 10))
    for _ in range(130):
        world.after(30, tick=5)
        world.see(f.RestoreFailed(10, "time-out."))
        world.see(f.LocalSteps((), settled=True))
    assert ages(world.said("waiting"), "here for ", ",")[:2] == ["10 min", "60 min"]


def test_a_pod_that_waits_for_another_one_says_so_again() -> None:
    world = World(replace(SETTINGS, fencing=True))
    world.boot()
    for _ in range(260):
        world.see(f.ClaimHeld("pod-a", 3, 5.0, 600.0))
        world.after(60, tick=20)
    said = world.said("waiting")
    assert len(said) == 3
    assert "Pod pod-a holds this run" in said[-1]
    assert "end this pod" in said[-1]


def test_a_fenced_pod_whose_job_goes_on_says_again_that_two_pods_are_paid() -> None:
    world = World(replace(SETTINGS, fencing=True))
    world.boot()
    world.see(f.Claimed(1))
    world.job_up()
    for number in range(1, 8):
        world.step(number)
    world.see(f.Fenced("pod-b", 2))
    for number in range(8, 30):
        world.step(number)
    said = world.said("two-pods")
    assert len(said) == 2
    assert "pod pod-b holds it" in said[0]
    assert "supervisorctl stop" in said[0]
    assert "supervisorctl start --take-over" in said[0]
    assert not world.asked(a.Stop), "its steps may be the better ones: a person decides"
    world.see(f.Command("start", "ana", ("--take-over",)))
    world.see(f.Claimed(3))
    for number in range(30, 60):
        world.step(number)
    assert len(world.said("two-pods")) == 2


def test_a_start_that_a_crawling_download_holds_up_for_hours_is_said_again_with_its_size() -> None:
    world = World()
    world.boot()
    fetched = 0
    for _ in range(12 * 60):
        world.after(60, tick=20)
        fetched += 100_000
        world.see(f.Growing("download", fetched))
    assert not world.asked(a.Stop), "it shows something new all the time"
    said = world.said("downloading")
    assert ages(said, "made no step for ", ":") == ["60 min", "4 h", "7 h", "10 h"]
    assert "a download still grows (6.1 MiB by now)" in said[0]
    assert "this pod is paid meanwhile" in said[0]


def test_a_download_of_half_an_hour_is_no_news() -> None:
    world = World()
    world.boot()
    for minute in range(30):
        world.after(60, tick=20)
        world.see(f.Growing("download", (minute + 1) * GIB))
    world.job_up()
    for number in range(1, 5):
        world.step(number)
    assert not world.said("downloading")


def pod(began: float, uploads: int) -> Ledger:
    return Ledger({"GOODPUT": 3 * HOUR}, began_wall=began, wall=began + 3 * HOUR, uploads=uploads)


def test_pods_that_were_taken_before_they_published_anything_are_counted() -> None:
    world = World()
    world.boot()
    pods = {"a": pod(1e9, 4), "b": pod(1.1e9, 0), "c": pod(1.2e9, 0), "d": pod(1.3e9, 0)}
    world.see(f.StoreRecords(Learned(), pods))
    (sentence,) = world.said("pods")
    assert "The 3 pods before this one published no step, in 9 h together" in sentence


def test_one_pod_without_a_step_or_an_old_one_is_no_news() -> None:
    world = World()
    world.boot()
    world.see(f.StoreRecords(Learned(), {"a": pod(1e9, 0), "b": pod(1.1e9, 0), "c": pod(1.2e9, 1), "d": pod(1.3e9, 0)}))
    assert not world.said("pods")


# ---------------------------------------------------------------- a first start that shows nothing new

SPINNING = f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer", power_w=210.0, load=100.0)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            (f.EngineLook("http://127.0.0.1:8000", "refused"),),
            "has not opened its port: http://127.0.0.1:8000 says refused",
        ),
        (
            (f.EffortLook((f.Effort("trainer", 0.0, 0.0, "pid 9 in nfs4_wait"),)),),
            "waits for a disk or a driver: pid 9",
        ),
        ((f.EffortLook((f.Effort("trainer", 4.0, 1.0),)),), "it may compile"),
        (
            (f.GpuLook((SPINNING,)), f.EffortLook((f.Effort("trainer", 1.0, 1.0),), "", 0.0, 0.0, 0.0)),
            "ranks wait for each other",
        ),
    ],
)
def test_a_first_start_that_shows_nothing_new_for_twenty_minutes_says_what_it_waits_for(
    facts: tuple[f.Fact, ...], says: str
) -> None:
    world = World()
    world.boot()
    for role in ("launcher", "trainer"):
        world.see(f.ProcessSeen(world.state.attempt.number, role, 114, 5, role))  # type: ignore[arg-type]
    began = world.t
    while not world.said("start-shows-nothing-new") and world.t < began + 7200:
        world.t += 10
        for fact in facts:
            world.see(fact)
    assert 1190 <= world.t - began <= 1230 and not world.asked(a.Stop)
    (sentence,) = world.said("start-shows-nothing-new")
    assert says in sentence and "supervisorctl stop" in sentence


def test_a_first_start_that_goes_on_is_left_alone() -> None:
    world = World()
    world.boot()
    for number in range(60):
        world.t += 60
        world.see(f.PhaseSeen("trainer", "startup", number // 10))
    assert not world.said("start-shows-nothing-new")
