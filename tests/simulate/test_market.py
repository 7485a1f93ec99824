"""The market that never was: what is drawn, what is counted, and how the fleet's controller does in it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from supervisor.base.errors import ConfigError
from supervisor.cli.main import main
from supervisor.simulator import market as market_module
from supervisor.simulator.clockwork import NEVER
from supervisor.simulator.market import Machine, Market, Trouble, UpRun, draw_market, read_traces
from supervisor.simulator.market_compare import (
    ORACLE,
    MarketScore,
    add_scores,
    compare_policies,
    plan_with_foresight,
    simulate_market,
)
from supervisor.simulator.market_policies import (
    NeverReplace,
    Ours,
    OursSpotOnly,
    ReplaceAndRemember,
    ReplaceAtOnce,
    SkyPilot,
    SkyPilotElsewhere,
    ToldAtOnce,
)

HOUR = 3600.0
MADE_UP = Path(__file__).with_name("market_trace.csv")


def machine(
    name: str,
    *runs: tuple[float, float],
    how: str = "outbid",
    price: float = 2.0,
    lies: bool = False,
    boot_s: float = 600.0,
    spot: bool = True,
) -> Machine:
    """Runs in hours; the first letter of the name is the region."""
    up = tuple(UpRun(begin * HOUR, end * HOUR, how, boot_s) for begin, end in runs)  # type: ignore[arg-type]
    return Machine(name, name[0], spot, price, (1.0,), lies, up)


def market(hours: float, *machines: Machine, troubles: Sequence[tuple[float, Trouble, float]] = ()) -> Market:
    return Market(1, hours, machines, tuple(troubles))


# ---------------------------------------------------------------- what is drawn


def test_runs_gaps_and_losses_are_those_of_the_published_traces() -> None:
    random, end = Random(1), 30_000 * 24 * HOUR
    runs = list(market_module._draw_up(random, end))[1:-1]
    up = [until - begin for begin, until in runs]
    gaps = [begin - until for (_, until), (begin, _) in pairwise(runs)]
    assert statistics.median(up) / HOUR == pytest.approx(0.9, rel=0.03)
    assert statistics.mean(up) / HOUR == pytest.approx(4.4, rel=0.05)
    assert statistics.median(gaps) / 60 == pytest.approx(29, rel=0.03)
    assert len(runs) / (end / 24 / HOUR) == pytest.approx(4.6, rel=0.05)


def test_servers_fail_again_as_often_as_in_the_published_trace() -> None:
    faults = [pair for seed in range(400) for pair in market_module._draw_faults(Random(seed), 3000 * 24 * HOUR)]
    after = [(b[0] - a[1]) / 24 / HOUR for a, b in pairwise(faults) if b[0] > a[1]]
    for days, part in ((1, 0.213), (7, 0.303), (30, 0.429)):
        again = sum(gap <= days for gap in after) / len(after)
        assert part - 0.02 < again < part + 0.1  # a fresh fault may come as soon


@pytest.mark.soak
def test_a_market_is_the_same_for_the_same_seed_and_another_one_for_another() -> None:
    first, again, other = (draw_market(seed, 20) for seed in (3, 3, 4))
    assert first == again
    assert first.machines != other.machines
    assert simulate_market(first, Ours)[0] == simulate_market(again, Ours)[0]


def test_a_healthy_market_loses_no_machine() -> None:
    drawn = draw_market(1, 500, healthy=True)
    assert not any(one.lies or len(one.runs) > 1 or one.runs[0].end < 500 * HOUR for one in drawn.machines)
    assert {kind for _, kind, _ in drawn.troubles} == set(market_module.TROUBLES)


# ---------------------------------------------------------------- what is counted


@pytest.mark.soak
def test_an_outbid_pod_is_replaced_and_its_dollars_steps_and_hours_are_counted() -> None:
    here = market(24.0, machine("a", (0, 6), price=2.0), machine("b", (0, 24), price=3.0))
    score, world = simulate_market(here, OursSpotOnly)
    assert [pod.machine for pod in world.pods.values()] == ["a", "b"]
    lost_h = 24 - score.useful_h
    assert 2 * 15 / 60 < lost_h < 2 * 15 / 60 + 8 / 60 + score.lost_h + 0.1  # two boots of 15 min, and 3 min of silence
    assert 0 < score.lost_h < 0.5
    disk = 18 * market_module.DISK_AN_HOUR
    assert score.dollars == pytest.approx(1.2 * (2 * 6 + 3 * 18), abs=0.5 + disk)
    assert (score.false, score.twice_h, score.trouble) == (0, 0.0, ())


def test_an_outbid_pod_comes_back_by_itself_and_goes_on_from_its_own_disk() -> None:
    saved_h = (15 + 5 * 20 + 1) / 60  # a minute after the fifth save, which is not published yet
    here = market(24.0, machine("a", (0, saved_h), (8, 24)))
    score, world = simulate_market(here, NeverReplace)
    assert len(world.pods) == 1
    assert score.lost_h < 0.1  # and not the twenty minutes since the fourth save
    assert score.useful_h == pytest.approx(16 + saved_h - 2 * 0.25 - score.lost_h, abs=0.1)
    assert world.held.generation == 2


def test_a_host_that_falls_silent_is_listed_and_convicted_by_silence() -> None:
    here = market(12.0, machine("a", (0, 6), how="silent"), machine("b", (0, 12), price=3.0))
    score, world = simulate_market(here, Ours)
    assert [pod.machine for pod in world.pods.values()] == ["a", "b"]
    assert world.false_replacements == 0
    script, scripted = simulate_market(here, ReplaceAtOnce)
    assert [pod.machine for pod in scripted.pods.values()] == ["a", "b"]
    assert 2 / 15 - 0.01 < script.useful_h - score.useful_h < 2 / 15 + 0.1  # two minutes of silence, not ten
    assert simulate_market(here, NeverReplace)[0].useful_h < 6


def test_a_liar_is_left_with_94_and_remembered_by_ours() -> None:
    here = market(6.0, machine("a", (0, 6), price=1.5, lies=True), machine("b", (0, 6)))
    _, world = simulate_market(here, Ours)
    assert [pod.machine for pod in world.pods.values()] == ["a", "b"]
    _, forgetful = simulate_market(here, ReplaceAtOnce)
    assert {pod.machine for pod in forgetful.pods.values()} == {"a"}
    _, mindful = simulate_market(here, ReplaceAndRemember)
    assert [pod.machine for pod in mindful.pods.values()] == ["a", "b"]


def test_boots_that_never_end_take_half_an_hour_each_and_after_three_a_person_comes() -> None:
    hanging = [machine(name, (0, 12), boot_s=NEVER, price=1.5) for name in "abc"]
    here = market(12.0, *hanging, machine("d", (0, 12)))
    score, world = simulate_market(here, Ours)
    assert [pod.machine for pod in world.pods.values()] == ["a", "b", "c", "d"]
    assert score.useful_h == pytest.approx(12 - 3 * 0.5 - 1 - 0.25, abs=0.1)
    _, told = simulate_market(here, ToldAtOnce)
    assert [pod.machine for pod in told.pods.values()] == ["d"]


def test_skypilot_goes_on_in_the_same_region_or_in_another_one() -> None:
    here = market(8.0, machine("a0", (0, 4)), machine("a1", (0, 8), price=3.0), machine("b0", (0, 8), price=2.5))
    assert [pod.machine for pod in simulate_market(here, SkyPilot)[1].pods.values()] == ["a0", "a1"]
    here = market(8.0, machine("a0", (0, 4)), machine("a1", (0, 8), price=2.2), machine("b0", (0, 8), price=2.5))
    assert [pod.machine for pod in simulate_market(here, SkyPilotElsewhere)[1].pods.values()] == ["a0", "b0"]


@pytest.mark.parametrize(("seconds", "false"), [(50.0, 0), (300.0, 1)])
def test_a_cloud_that_cannot_be_asked_makes_skypilot_cancel_after_a_minute_and_ours_waits(
    seconds: float, false: int
) -> None:
    here = market(6.0, machine("a", (0, 6)), machine("b", (0, 6)), troubles=[(3 * HOUR, "provider", seconds)])
    assert simulate_market(here, SkyPilot)[0].false == false
    assert simulate_market(here, Ours)[0].false == simulate_market(here, ReplaceAtOnce)[0].false == 0


def test_one_failed_probe_makes_skypilot_replace_a_pod_that_trains_and_ours_waits() -> None:
    cut: tuple[float, Trouble, float] = (3 * HOUR, "cut", 45.0)
    here = market(6.0, machine("a", (0, 6)), machine("b", (0, 6)), troubles=[cut])
    assert simulate_market(here, SkyPilot)[0].false == 1
    assert simulate_market(here, Ours)[0].false == 0
    assert simulate_market(here, ToldAtOnce)[0].false == 0


def test_an_empty_list_makes_a_script_pay_twice_and_ours_looks_again() -> None:
    flap: tuple[float, Trouble, float] = (3 * HOUR - 5.0, "empty-list", 20.0)
    here = market(6.0, machine("a", (0, 6)), machine("b", (0, 6)), troubles=[flap])
    script = simulate_market(here, ReplaceAtOnce)[0]
    assert (script.false, script.pods) == (1, 2)
    assert script.twice_h > 0
    ours = simulate_market(here, Ours)[0]
    assert (ours.false, ours.pods, ours.twice_h) == (0, 1, 0.0)


def test_a_store_that_was_away_and_late_beats_after_it_convict_no_pod_that_trains() -> None:
    troubles: list[tuple[float, Trouble, float]] = [
        (3 * HOUR, "store", 590.0),
        (3 * HOUR + 240.0, "late-beats", 530.0),
    ]
    here = market(6.0, machine("a", (0, 6)), machine("b", (0, 6)), troubles=troubles)
    assert simulate_market(here, Ours)[0].pods == 1


@pytest.mark.soak
@pytest.mark.xfail(strict=True, reason="The core keeps a pod on demand for good, also when spot machines are back")
def test_a_pod_on_demand_is_left_when_spot_machines_are_back() -> None:
    here = market(72.0, machine("a", (0, 6), (8, 72)), machine("demand0", (0, 72), price=4.5, spot=False))
    assert simulate_market(here, Ours)[0].dollars < 72 * 4.0


# ---------------------------------------------------------------- the bound


def test_the_oracle_takes_the_run_that_lasts_and_leaves_the_cheap_short_one() -> None:
    here = market(
        24.0, machine("a", (0, 2), (3, 5), price=1.0), machine("b", (0, 14)), machine("c", (10, 24), price=3.0)
    )
    score = plan_with_foresight(here)
    assert score.pods == 2
    assert score.useful_h == pytest.approx(24 - 2 * 0.25)
    assert score.dollars == pytest.approx(1.2 * (14 * 2 + 10 * 3))


def test_the_oracle_waits_for_a_run_that_comes_within_its_boot_and_takes_the_cheapest_of_equals() -> None:
    here = market(10.0, machine("a", (0, 0.3)), machine("b", (0.1, 10), price=3.0), machine("c", (0.1, 10), price=2.5))
    score = plan_with_foresight(here)
    assert score.pods == 1
    assert score.useful_h == pytest.approx(9.9 - 0.25)
    assert score.dollars == pytest.approx(1.2 * 9.9 * 2.5)


def test_the_oracle_rents_on_demand_only_while_no_spot_machine_is_up() -> None:
    demand = machine("demand0", (0, 24), price=4.5, spot=False)
    score = plan_with_foresight(market(24.0, machine("a", (0, 6), (8, 24)), demand))
    assert score.pods == 3
    assert score.useful_h == pytest.approx(24 - 3 * 0.25)
    assert score.dollars == pytest.approx(1.2 * 22 * 2 + 2 * 4.5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [20, 21])
def test_no_policy_on_spot_machines_has_more_useful_hours_than_the_oracle(seed: int) -> None:
    here = draw_market(seed, 120)
    bound = plan_with_foresight(here).useful_h
    for policy in (OursSpotOnly, ToldAtOnce):
        assert simulate_market(here, policy)[0].useful_h <= bound


# ---------------------------------------------------------------- how ours does


def find_better(scores: Sequence[MarketScore]) -> list[str]:
    """Policies with more useful hours than ours for fewer dollars each; the bounds are no policies."""
    ours = next(one for one in scores if one.policy == Ours.name)
    return [
        one.policy
        for one in scores
        if one.policy not in (ORACLE, ToldAtOnce.name, Ours.name, OursSpotOnly.name)
        and one.useful >= ours.useful
        and one.per_useful_hour <= ours.per_useful_hour
    ]


def check_healthy(hours: float, seeds: Sequence[int]) -> None:
    found = add_scores([simulate_market(draw_market(seed, hours, healthy=True), Ours)[0] for seed in seeds])
    assert (found.false, found.trouble) == (0, ())
    assert found.useful > 99.5


@pytest.mark.soak
def test_no_healthy_pod_is_replaced_in_100_hours() -> None:
    check_healthy(100, [1])


@pytest.mark.soak
@pytest.mark.parametrize("seeds", [(31, 32)])
def test_no_policy_is_better_in_both_and_ours_breaks_no_promise(seeds: Sequence[int]) -> None:
    scores = compare_policies([draw_market(seed, 96) for seed in seeds], workers=1)
    by_name = {one.policy: one for one in scores}
    assert find_better(scores) == []
    assert by_name[Ours.name].trouble == by_name[OursSpotOnly.name].trouble == ()
    assert by_name[Ours.name].false == 0


@pytest.mark.soak
def test_no_healthy_pod_is_replaced_in_400_hours() -> None:
    check_healthy(200, (11, 12))


@pytest.fixture(scope="module")
def month_scores() -> dict[str, MarketScore]:
    return {one.policy: one for one in compare_policies([draw_market(seed, 720) for seed in range(41, 47)])}


@pytest.mark.optin
@pytest.mark.timeout(900)
def test_in_months_no_policy_is_better_in_both(month_scores: dict[str, MarketScore]) -> None:
    assert find_better(list(month_scores.values())) == []
    assert month_scores[ToldAtOnce.name].useful - month_scores[Ours.name].useful < 1.0
    assert month_scores[Ours.name].trouble == ()


@pytest.mark.optin
@pytest.mark.timeout(900)
def test_in_months_ours_is_within_two_points_of_the_oracle(month_scores: dict[str, MarketScore]) -> None:
    assert month_scores[ORACLE].useful - month_scores[OursSpotOnly.name].useful < 2.0


# ---------------------------------------------------------------- traces and the command


@pytest.mark.soak
def test_a_trace_is_replayed_run_for_run() -> None:
    zones, hours = read_traces([MADE_UP])
    assert hours == 48
    assert zones["east-1a"] == [(0.0, 5 * HOUR), (7.5 * HOUR, 48 * HOUR)]
    assert zones["west-2b"] == [(2 * HOUR, 30 * HOUR)]
    here = draw_market(1, hours, zones)
    spots = [one for one in here.machines if one.spot]
    assert [(one.name, one.region) for one in spots] == [("east-1a", "east-1"), ("west-2b", "west-2")]
    _, world = simulate_market(here, OursSpotOnly)
    first = world.pods["i0"]
    assert first.machine == "east-1a"
    assert not any(one.lies for one in here.machines)


def test_a_trace_of_skypilots_format_is_one_zone(tmp_path: Path) -> None:
    file = tmp_path / "us-east-1c_v100_1.json"
    file.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [0, 1, 1, 0, 4, 0]}))
    assert read_traces([file]) == ({"us-east-1c": [(600.0, 1800.0), (2400.0, 3000.0)]}, 1.0)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", "[]", 'A trace is JSON with "metadata"'),
        ("a.csv", "time,zone\n0,1\n", "is no trace"),
        ("a.csv", "", "is no trace"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_traces([tmp_path / name])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traces([tmp_path / "none.csv"])


@pytest.mark.soak
def test_the_command_prints_a_row_for_each_policy_and_says_that_figures_are_modelled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "market", "--trace", str(MADE_UP), "--seeds", "1"]) == 0
    text = capsys.readouterr().out
    assert "One run for 48 virtual hours in each of 1 markets, runs of 2 zones from 1 files" in text
    assert "Modelled, not measured" in text
    for word in ("ours", "never replace", "SkyPilot EAGER_NEXT_REGION", "oracle", "false replacements"):
        assert word in text
    assert main(["simulate", "market", "--days", "1", "--seeds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["hours"] == 24
    assert report["policies"][0]["policy"] == "ours"
