"""Facts of two sensors have no order: whichever is told first, a story ends in the same way.

A story is what happens to the job and in which order. Each sensor tells its own part of it in that order, and each of
its facts somewhat later than it happened: by up to two of its looks, or what a busy machine makes of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.evolve import replace

from .world import GIB, SETTINGS, World

LATEST_S = {
    "logs": 2.9,
    "processes": 2.0,
    "exit": 2.9,
    "gpu": 2.5,
    "engine": 6.0,
    "host": 2.9,
    "disk": 5.0,
    "scan": 20.0,
}
LAST = 14
EXAMPLES = int(os.environ.get("ORDER_EXAMPLES", "8"))  # of each story; a long run: ORDER_EXAMPLES=500
ENDS = replace(SETTINGS, max_steps=LAST, first_step_at=1)

Told = tuple[float, str, f.Fact]


@dataclass(frozen=True)
class Story:
    """``tells``: facts with the seconds after which they happen and the sensor that tells them."""

    name: str
    tells: Callable[[World], list[Told]]
    ends: Callable[[World], None]
    run: f.Settings = ENDS
    steps: int = 12
    lasts_s: float = 60.0

    def __repr__(self) -> str:
        return self.name


# ---------------------------------------------------------------- what happens


BEGINS_S = 10.0
BEGAN = 1000.0 + 8.0 + 12 * 60.0 + 2.0 + BEGINS_S
"""When each story of twelve steps begins: by then the job was launched, and two checkpoints were published."""


def step(number: int) -> list[f.Fact]:
    return [f.StepDone("orchestrator", number, 200.0, 0.4), f.StepDone("trainer", number, 200.0, loss=0.1)]


def gone(world: World, role: f.Role) -> f.ProcessGone:
    index = ("launcher", "inference", "orchestrator", "trainer").index(role)
    return f.ProcessGone(1, role, world.pid + index, 5000 + index)


def exit_of(code: int | None, signal: int | None = None) -> f.ComponentExited:
    return f.ComponentExited(1, "launcher", code, signal)


def memory(inference: int) -> f.GpuLook:
    gpus = (f.Gpu("GPU-0", 0, inference, 80 * GIB, "inference"), f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer"))
    return f.GpuLook(gpus)


def engine(health: str = "ok", at: float = 0.0) -> f.EngineLook:
    answers = health == "ok"
    return f.EngineLook("http://x", health, "ok" if answers else "bad", iterations=at if answers else None, running=8.0)


def last_save(state: str) -> f.LocalSteps:
    changed = 1.7e9 + 1000.0
    known = [f.LocalStep(step, "complete", "", GIB, changed) for step in (5, 10)]
    return f.LocalSteps((*known, f.LocalStep(LAST, state, "" if state == "complete" else "new", GIB, changed)))  # type: ignore[arg-type]


def end_of_the_run(world: World, code: int = 0, says: Iterable[f.Role] = ("orchestrator", "trainer")) -> list[Told]:
    """The orchestrator is done two steps before the trainer; each process goes as soon as it has said so."""
    says = set(says)
    told: list[Told] = []
    if "orchestrator" in says:
        told.append((0.0, "logs", f.FinishSeen("orchestrator", "Orchestrator finished!")))
    told += [(0.1, "processes", gone(world, "orchestrator"))]
    told += [(float(t), "engine", engine(at=5000.0 + t)) for t in range(5, 390, 5)]
    told += [(190.0, "logs", fact) for fact in step(LAST - 1)]
    told += [(390.0, "logs", fact) for fact in step(LAST)]
    told += [(391.0, "logs", f.PhaseSeen("trainer", "checkpoint", LAST)), (392.0, "scan", last_save("writing"))]
    told += [(393.0, "disk", f.DiskLook("/ckpt", 100 * GIB, 60 * GIB)), (420.0, "scan", last_save("complete"))]
    if "trainer" in says:
        told.append((421.0, "logs", f.FinishSeen("trainer", "Trainer finished!")))
    told += [(421.1, "processes", gone(world, "trainer")), (422.0, "processes", gone(world, "inference"))]
    told += [(422.0, "gpu", memory(0)), (422.5, "engine", engine("refused"))]
    if "launcher" in says:
        told.append((423.0, "logs", f.FinishSeen("launcher", "RL training finished!")))
    return [*told, (423.1, "processes", gone(world, "launcher")), (423.2, "exit", exit_of(code))]


def a_crash(world: World) -> list[Told]:
    return [
        (0.0, "logs", f.ErrorSeen("trainer", "cuda-oom", "torch.OutOfMemoryError: CUDA out of memory")),
        (0.1, "processes", gone(world, "trainer")),
        (1.0, "logs", f.ErrorSeen("launcher", "component-failed", "trainer failed with exit code 1")),
        (1.1, "processes", gone(world, "orchestrator")),
        (1.2, "processes", gone(world, "inference")),
        (1.3, "gpu", memory(0)),
        (1.4, "engine", engine("refused")),
        (1.5, "processes", gone(world, "launcher")),
        (1.6, "exit", exit_of(1)),
    ]


def a_silent_engine_death(world: World) -> list[Told]:
    told: list[Told] = [
        (0.0, "processes", gone(world, "inference")),
        (0.0, "gpu", memory(0)),
        (1.0, "logs", f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')")),
        (3.0, "logs", f.WorkSeen(8, 90)),
    ]
    return [*told, *((float(t), "engine", engine("refused")) for t in range(1, 20, 5))]


def a_silent_trainer_death(world: World) -> list[Told]:
    return [(0.0, "processes", gone(world, "trainer")), *((float(t), "engine", engine(at=5e3 + t)) for t in range(9))]


def killed_for_memory(world: World) -> list[Told]:
    before = f.HostLook(memory_total_bytes=64 * GIB, memory_available_bytes=9 * GIB, oom_kills=0)
    return [
        (0.0, "host", before),
        (9.0, "processes", gone(world, "orchestrator")),
        (9.0, "host", replace(before, oom_kills=1)),
    ]


def a_lost_gpu(world: World) -> list[Told]:
    return [
        (0.0, "gpu", f.GpuFault("GPU 1", 79, "GPU has fallen off the bus")),
        (0.1, "processes", gone(world, "trainer")),
        (0.2, "exit", exit_of(1)),
    ]


def save_and_evaluation(world: World) -> list[Told]:
    told: list[Told] = [(0.0, "logs", fact) for fact in step(13)]
    told += [(1.0, "logs", f.PhaseSeen("trainer", "checkpoint", 13))]
    told += [(1.5 + t, "scan", f.Growing("checkpoint", (t + 1) * GIB)) for t in range(0, 300, 10)]
    told += [(2.0 + t, "disk", f.DiskLook("/ckpt", 100 * GIB, 60 * GIB - t * GIB // 10)) for t in range(0, 300, 5)]
    told += [(310.0, "logs", f.PhaseSeen("orchestrator", "eval", 13))]
    return [*told, *((float(t), "engine", engine(at=5e3 + t)) for t in range(5, 1300, 5))]


def stopped_by_a_person(world: World) -> list[Told]:
    return [
        (0.0, "person", f.Command("stop", "root")),
        (0.5, "logs", f.FinishSeen("trainer", "Trainer finished!")),
        (0.6, "processes", gone(world, "trainer")),
        (0.7, "exit", exit_of(None, 15)),
    ]


# ---------------------------------------------------------------- how it has to end


def finished(world: World) -> None:
    assert not world.asked(a.Start), world.said("verdict")
    assert not world.state.incidents.count, world.said("verdict")
    (code,) = world.asked(a.Exit)
    assert isinstance(code, a.Exit)
    assert (code.code, world.state.mode) == (0, "finished")


def restarted(within_s: float) -> Callable[[World], None]:
    def check(world: World) -> None:
        (start,) = world.asked(a.Start)
        assert isinstance(start, a.Start)
        assert start.step == 10
        assert world.state.incidents.count == 1
        assert world.state.incidents.open is not None
        assert world.state.incidents.open.decided - BEGAN <= within_s, world.said("verdict")

    return check


def left_for_another_pod(world: World) -> None:
    assert world.state.mode == "unfit", world.said("verdict")
    assert len(world.asked(a.Start)) <= 1, "one that was begun before the driver had told of it"


def blamed_on_memory(world: World) -> None:
    restarted(9.0 + 2.0 + 4.0)(world)
    assert "the host's memory was full" in world.said("verdict")[0]


def untouched(world: World) -> None:
    assert not world.said("verdict")
    assert not world.asked(a.Stop)
    assert world.state.mode == "running"


def stopped(world: World) -> None:
    assert not world.asked(a.Start)
    assert world.state.mode == "stopped"


NO_LAST = replace(SETTINGS, max_steps=None)
STORIES = [
    Story("the run ends", end_of_the_run, finished, lasts_s=600),
    Story("the run ends, its last step is not known before", end_of_the_run, finished, NO_LAST, lasts_s=600),
    Story(
        "only the launcher says that it ends",
        lambda world: end_of_the_run(world, says=["launcher", "orchestrator"]),
        finished,
        NO_LAST,
        lasts_s=600,
    ),
    Story("the run ends with code 1", lambda world: end_of_the_run(world, code=1), finished, lasts_s=600),
    Story("a crash", a_crash, restarted(2.0 + 4.0)),
    Story("a silent death of the engine", a_silent_engine_death, restarted(2.0 + 3.0)),
    Story("a silent death of the trainer", a_silent_trainer_death, restarted(2.0 + 4.0)),
    Story("killed for memory", killed_for_memory, blamed_on_memory),
    Story("a lost GPU", a_lost_gpu, left_for_another_pod),
    Story("a save and a long evaluation", save_and_evaluation, untouched, replace(SETTINGS, max_steps=None), 12, 1310),
    Story("stopped by a person", stopped_by_a_person, stopped),
]


def tell(story: Story, late: Callable[[str], float]) -> World:
    """Live through ``story``, each fact told ``late(sensor)`` seconds after it happened, and each sensor in order."""
    world = World(story.run)
    world.boot()
    world.job_up()
    for number in range(1, story.steps + 1):
        world.step(number, 60.0)
        if number % 5 == 0:
            world.checkpoint(number)
    world.actions.clear()
    last: dict[str, float] = {}
    told = []
    begins = world.t + BEGINS_S
    assert begins == BEGAN
    for happens, sensor, fact in story.tells(world):
        at = max(last.get(sensor, 0.0), begins + happens + late(sensor))
        last[sensor] = at
        told.append((at, fact))
    for at, fact in sorted(told, key=lambda one: one[0]):
        world.after(max(0.0, at - world.t))
        world.see(fact)
        if isinstance(fact, f.LocalSteps):
            world.local = {one.step: one.state for one in fact.steps}
    world.after(max(0.0, begins + story.lasts_s - world.t))
    return world


@pytest.mark.parametrize("story", STORIES, ids=repr)
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_a_story_ends_in_the_same_way_in_whatever_order_its_sensors_tell_it(story: Story, data: st.DataObject) -> None:
    story.ends(tell(story, lambda sensor: data.draw(st.floats(0.0, LATEST_S.get(sensor, 0.0)), sensor)))


@pytest.mark.soak
@pytest.mark.parametrize("story", STORIES, ids=repr)
@pytest.mark.parametrize("latest", LATEST_S)
def test_one_sensor_that_is_as_late_as_can_be_changes_no_end(story: Story, latest: str) -> None:
    story.ends(tell(story, lambda sensor: LATEST_S[sensor] if sensor == latest else 0.0))


@pytest.mark.parametrize("role", ["orchestrator", "trainer"])
@pytest.mark.parametrize("apart_s", [-20.0, -2.0, -0.5, 0.0, 0.5, 2.0, 2.9])
def test_a_part_whose_last_line_is_read_after_its_end_is_seen_did_not_die(role: f.Role, apart_s: float) -> None:
    world = World(replace(ENDS, max_steps=None))
    world.running_at(7)
    facts = [(0.0, gone(world, role)), (apart_s, f.FinishSeen(role, "finished!"))]
    began = world.t + 21.0
    for at, fact in sorted(facts, key=lambda one: one[0]):
        world.after(max(0.0, began + at - world.t), 0.25)
        world.see(fact)
    for number in range(8, 12):
        world.step(number, 100.0)
    assert not world.said("verdict")
    assert not world.asked(a.Stop)


def test_a_part_that_dies_without_a_last_line_is_found_in_three_seconds() -> None:
    world = World(ENDS)
    world.running_at(7)
    world.see(gone(world, "orchestrator"))
    world.after(3.0)
    assert "The orchestrator died" in world.said("verdict")[0]
    assert world.asked(a.Start)


def test_exit_0_waits_a_moment_for_the_line_of_success_and_not_longer() -> None:
    world = World(ENDS)
    world.running_at(7)
    world.see(exit_of(0))
    world.after(2.5, 0.5)
    assert not world.said("verdict")
    world.after(0.5)
    assert "The job ended with exit code 0 after step 7 of 14" in world.said("verdict")[0]
    assert world.asked(a.Start)


def test_a_fault_of_the_gpu_that_is_told_after_the_exit_still_ends_this_pod() -> None:
    world = World(ENDS)
    world.running_at(7)
    world.answer = False
    world.see(exit_of(1))
    world.after(0.5)
    world.see(f.GpuFault("GPU 1", 79, "GPU has fallen off the bus"))
    world.answer = True
    world.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    world.after(5)
    assert world.state.mode == "unfit"
    assert "GPU 1: Xid 79" in world.said("unfit")[0]
