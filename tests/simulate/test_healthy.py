"""Nothing breaks and everything is odd: no restart may follow."""

from __future__ import annotations

import pytest

from supervisor.base.errors import ConfigError
from supervisor.simulator.healthy import BLOCK, EVAL_S, STEP_S, healthy_physics
from supervisor.simulator.run import simulate
from supervisor.simulator.scenario import load_scenario
from supervisor.simulator.schedule import parse_faults

HARD = [f"rate.{kind}=60" for kind in ("engine-overload", "big-save", "slow-steps", "log-gap", "nvml-hang")]


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_hundred_healthy_hours_with_many_oddities_see_no_restart(seed: int) -> None:
    account = simulate(load_scenario("healthy", HARD), 100, seed).account
    assert sum(account.struck_by_kind().values()) > 20
    assert account.false_restarts == []
    assert account.restarts == 0


@pytest.mark.soak
def test_a_healthy_run_is_not_restarted_when_a_long_evaluation_ends() -> None:
    steady = ["step_s=60", "step_sigma=0.2", "step_tail=0", "eval_every=0", "interval=20"]
    fault = {"at": "5h", "kind": "long-evaluation", "seconds": 3500.0}
    account = simulate(load_scenario("healthy", steady), 8, 7, faults=parse_faults([fault], "test")).account
    assert account.struck_by_kind() == {"long-evaluation": 1}
    assert account.false_restarts == [] and account.restarts == 0


# ---------------------------------------------------------------- worlds as different as real runs are


def quiet(world: int, hours: float, seed: int, *sets: str) -> None:
    """So many hours of a healthy world pass without a restart."""
    account = simulate(load_scenario(f"world-{world}", sets), hours, seed).account
    assert account.false_restarts == [], f"--scenario world-{world} --seed {seed} --hours {hours:g} {sets}"
    assert account.restarts == 0 and account.steps_done > 0


@pytest.mark.parametrize("world", range(1, BLOCK + 1, 4))
def test_no_healthy_world_is_restarted(world: int) -> None:
    quiet(world, 8, 5)


@pytest.mark.soak
@pytest.mark.parametrize("world", range(1, BLOCK + 1, 8))
def test_nor_with_all_looks_that_real_sensors_make(world: int) -> None:
    quiet(world, 4, 6, "thinned=false")


@pytest.mark.soak
@pytest.mark.parametrize("world", range(1, 3 * BLOCK + 1))
def test_three_twenties_of_healthy_worlds_are_not_restarted_in_fifteen_hours_each(world: int) -> None:
    quiet(world, 15, 7)
    if world % 3 == 0:  # a third: other looks at worlds of the same ranges
        quiet(world, 5, 8, "thinned=false")


def test_twenty_worlds_go_through_the_whole_of_each_range() -> None:
    worlds = [healthy_physics(number) for number in range(1, BLOCK + 1)]
    steps, evaluations = ([world[name] for world in worlds] for name in ("step_s", "eval_s"))
    assert min(steps) < 1.4 * STEP_S[0] and max(steps) > STEP_S[1] / 1.4
    assert min(evaluations) < 1.4 * EVAL_S[0] and max(evaluations) > EVAL_S[1] / 1.4
    assert {world["lines"] for world in worlds} == {"debug", "info", "steps"}
    for name in ("counters", "nvml", "pipeline", "overlaps", "eval_first", "liveness", "keepalive"):
        assert {world[name] for world in worlds} == {True, False}, name
    assert min(world["flaky"] for world in worlds) == 0 and max(world["flaky"] for world in worlds) > 0.04
    assert healthy_physics(3) == healthy_physics(3) != healthy_physics(23)


def test_a_world_without_a_number_is_none() -> None:
    for name in ("world-0", "world-", "world-x"):
        with pytest.raises(ConfigError, match="world-1, world-2"):
            load_scenario(name)
