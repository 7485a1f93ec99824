"""The short way through the core is only short: with and without it, the same facts lead to the same actions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.evolve import replace
from supervisor.core.state import State
from tests.fuzz.profiles import tries

from .world import GIB, SETTINGS, World


@lru_cache
def _begin(*, publish_works: bool = True) -> State:
    """A run of eight steps. Where no publish works nothing may be deleted: a full disk stops the job."""
    world = World(replace(SETTINGS, step_floor=120.0, step_ceiling=900.0))
    world.publish_works = publish_works
    world.running_at(8)
    return world.state


GPUS = [
    f.GpuLook(
        (
            f.Gpu("GPU-0", 0, used, 80 * GIB, "inference"),
            f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer"),
        )
    )
    for used in (70 * GIB, 69 * GIB, 0)
]
ENGINE = f.EngineLook("http://127.0.0.1:8000", "ok", "ok", running=8.0, waiting=0.0)


def _facts(number: int, draw: Any) -> f.Fact:
    iterations = draw(st.sampled_from([float(number), 1.0]))
    busy = replace(ENGINE, iterations=iterations)
    return draw(  # type: ignore[no-any-return]
        st.sampled_from(
            [
                f.Tick(),
                *GPUS,
                f.GpuLook(reason="the driver did not answer for 5 s"),
                busy,
                replace(busy, running=0.0),
                replace(busy, running=0.0, connections=0, iterations=1.0),
                replace(busy, health="refused", iterations=None, running=None),
                replace(busy, health="timeout", iterations=None, running=None),
                replace(busy, liveness="timeout"),
                replace(busy, canary="timeout"),
                f.WorkSeen(8, number),
                f.WorkSeen(8, 1),
                f.WorkSeen(0, 1),
                f.Growing("rollouts", number * 1000),
                f.Growing("checkpoint", number * 1000),
                f.PhaseSeen("trainer", "training", number),
                f.PhaseSeen("trainer", "rollouts", number),
                f.PhaseSeen("trainer", "checkpoint", number),
                f.PhaseSeen("orchestrator", "eval", number),
                f.PhaseSeen("orchestrator", "barrier", number),
                f.StepDone("trainer", 8 + number, 200.0, loss=0.1),
                f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"),
                f.DiskLook("/data", 100 * GIB, 50 * GIB),
                f.DiskLook("/data", 100 * GIB, 1 * GIB),
                f.ProcessSeen(1, "env", 900 + number, 1),
                f.HostLook(memory_total_bytes=100, memory_available_bytes=50, oom_kills=number // 20),
                f.ClockJumped(100.0),
            ]
        )
    )


def test_the_first_word_of_rollouts_in_a_late_step_is_no_short_way() -> None:
    short = long = _begin()
    t = short.now + 800.0
    busy = replace(ENGINE, iterations=2.0)
    for fact, at in ((f.Tick(), t - 400.0), (busy, t), (f.WorkSeen(8, 3), t + 0.2), (f.WorkSeen(0, 4), t + 0.4)):
        short, long, _ = _both(short, long, f.Observation(at, 1.7e9 + at, fact), at)


@tries(150)
@given(st.data())
def test_with_and_without_the_short_way_the_core_decides_the_same(data: st.DataObject) -> None:
    short = long = _begin(publish_works=data.draw(st.booleans()))
    t = short.now
    wanted = t
    for number in range(1, data.draw(st.integers(5, 60))):
        t += data.draw(st.sampled_from([0.2, 1.0, 5.0, 31.0, 61.0, 400.0]))
        fact = _facts(number, data.draw)
        # The daemon asks at the deadline when nothing else happens: the short way must not have named it too late.
        while wanted < t:
            short, long, wanted = _both(short, long, f.Observation(wanted, 1.7e9 + wanted, f.Tick()), wanted)
        short, long, wanted = _both(short, long, f.Observation(t, 1.7e9 + t, fact), wanted)


def _both(short: State, long: State, observation: f.Observation, wanted: float) -> tuple[State, State, float]:
    one = decide(short, observation)
    other = decide(replace(long, calm_until=0.0), observation)
    assert one.actions == other.actions, observation
    assert replace(one.state, calm_until=0.0) == replace(other.state, calm_until=0.0), observation
    assert one.deadline > observation.t
    return one.state, other.state, one.deadline


@pytest.mark.soak
@tries(150)
@given(st.data())
def test_a_tick_before_the_named_deadline_concludes_nothing(data: st.DataObject) -> None:
    """Else a daemon that sleeps until the deadline would be later than one that asks every second."""
    state = _begin(publish_works=data.draw(st.booleans()))
    deadline = t = state.now
    for number in range(1, data.draw(st.integers(5, 40))):
        gap = data.draw(st.sampled_from([1.0, 5.0, 31.0, 61.0, 400.0]))
        asked = t + 0.5
        while asked < min(t + gap, deadline):
            decision = decide(state, f.Observation(asked, 1.7e9 + asked, f.Tick()))
            assert decision.actions == (), (asked - t, deadline - t, decision.actions)
            asked += 7.0
        t += gap
        decision = decide(state, f.Observation(t, 1.7e9 + t, _facts(number, data.draw)))
        state, deadline = decision.state, decision.deadline


@pytest.mark.parametrize("fact", [f.Tick(), GPUS[0]])
def test_a_fact_that_says_nothing_new_takes_the_short_way(fact: f.Fact) -> None:
    state = _begin()
    begun = state.now
    for offset in (1.0, 2.0):
        t = begun + offset
        decision = decide(state, f.Observation(t, 1.7e9 + t, fact))
        state = decision.state
    again = decide(state, f.Observation(t + 1, 1.7e9 + t + 1, fact))
    assert again.state.calm_until == state.calm_until > t + 1
