"""Steps that take longer for good are told once, with what the GPUs read, and nothing is done about it."""

from __future__ import annotations

import random

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.records import Learned, PhaseTimes

from .world import GIB, World


@pytest.fixture
def world() -> World:
    return World()


def steps(world: World, first: int, count: int, seconds: float) -> int:
    for number in range(first, first + count):
        world.step(number, seconds)
    return first + count


def gpus(world: World, *slowed: str | None) -> None:
    looks = [f.Gpu(f"GPU-{i}", i, 60 * GIB, 80 * GIB, "trainer", slowed=text) for i, text in enumerate(slowed)]
    world.see(f.GpuLook(tuple(looks)))


def test_a_gpu_that_throttles_for_good_is_named_with_since_when_and_from_what_to_what(world: World) -> None:
    world.running_at(20)
    gpus(world, "", "91 C, HW thermal slowdown, 900 of 1980 MHz")
    number = steps(world, 21, 20, 310.0)
    (sentence,) = world.said("pace")
    assert sentence == (
        "Steps take 5 min 10 s since 23:36 UTC, 3 min 20 s before. GPU 1: 91 C, HW thermal slowdown, 900 of 1980 MHz."
    )
    assert not world.asked(a.Stop)
    assert not world.said("verdict")
    steps(world, number, 9, 200.0)
    assert world.said("pace")[1:] == ["Steps take 3 min 20 s again."]


def test_where_no_gpu_reads_slowed_none_is_blamed(world: World) -> None:
    world.running_at(20)
    gpus(world, "", "")
    steps(world, 21, 20, 310.0)
    (sentence,) = world.said("pace")
    assert sentence.endswith("3 min 20 s before. No GPU reports that it is slowed.")


def test_what_no_driver_tells_is_not_said(world: World) -> None:
    world.running_at(20)
    gpus(world, "", None)
    steps(world, 21, 20, 310.0)
    (sentence,) = world.said("pace")
    assert sentence.endswith("3 min 20 s before.")


@pytest.mark.parametrize(("count", "seconds"), [(4, 310.0), (60, 250.0), (4, 1000.0)])
def test_a_few_slow_steps_or_slightly_slower_ones_are_no_news(world: World, count: int, seconds: float) -> None:
    world.running_at(20)
    number = steps(world, 21, count, seconds)
    steps(world, number, 10, 200.0)
    assert not world.said("pace")


def test_a_third_of_the_speed_gone_is_said_within_half_an_hour_in_a_run_of_regular_steps(world: World) -> None:
    world.running_at(20)
    began = world.t
    number = 21
    while not world.said("pace") and number < 60:
        number = steps(world, number, 1, 300.0)
    assert world.t - began <= 1800


def test_short_steps_have_to_be_slow_for_twenty_five_minutes(world: World) -> None:
    world.boot()
    world.job_up()
    number = steps(world, 1, 30, 20.0)
    number = steps(world, number, 42, 35.0)
    assert not world.said("pace"), "24 min"
    steps(world, number, 10, 35.0)
    assert len(world.said("pace")) == 1


def test_an_evaluation_in_each_step_is_no_slower_step(world: World) -> None:
    world.running_at(20)
    for number in range(21, 45):
        world.see(f.PhaseSeen("orchestrator", "eval", number))
        world.step(number, 400.0)
    assert not world.said("pace")


def test_steps_that_grow_slowly_are_followed(world: World) -> None:
    world.boot()
    world.job_up()
    seconds = 100.0
    for number in range(1, 200):
        seconds *= 1.01
        world.step(number, seconds)
    assert seconds > 600
    assert not world.said("pace")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_steps_of_a_heavy_tail_are_no_news(seed: int) -> None:
    world, draw = World(), random.Random(seed)
    world.boot()
    world.job_up()
    for number in range(1, 300):
        world.step(number, 100.0 * draw.lognormvariate(0.0, 0.35))
    assert not world.said("pace")


def test_another_pod_that_is_slower_than_the_ones_before_it_is_told(world: World) -> None:
    world.boot()
    world.see(f.StoreRecords(Learned({"step": PhaseTimes((200.0,) * 20, 220.0, 20, 200.0, 600.0)})))
    world.job_up()
    steps(world, 1, 20, 400.0)
    assert "Steps take 6 min 40 s since" in world.said("pace")[0]
    assert "3 min 20 s before" in world.said("pace")[0]


def test_it_is_said_once_across_daemons_and_the_state_goes_through_the_journal(world: World) -> None:
    world.running_at(20)
    number = steps(world, 21, 20, 310.0)
    assert len(world.said("pace")) == 1
    world.state = decode(encode(world.state))
    world.boot(adopted=1)
    steps(world, number, 20, 310.0)
    assert len(world.said("pace")) == 1
