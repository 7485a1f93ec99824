"""Nothing breaks and everything is odd: no restart may follow."""

from __future__ import annotations

import pytest

from supervisor.simulator.virtual.run import simulate
from supervisor.simulator.virtual.scenario import load_scenario

HARD = [f"rate.{kind}=60" for kind in ("engine-overload", "big-save", "slow-steps", "log-gap", "nvml-hang")]


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_hundred_healthy_hours_with_many_oddities_see_no_restart(seed: int) -> None:
    report = simulate(load_scenario("healthy", HARD), 100, seed).report
    assert sum(report.struck.values()) > 20
    assert report.false_restarts == ()
    assert report.restarts == 0
