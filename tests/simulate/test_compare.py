"""The comparison: its figures from books that are written by hand, then all policies in the same small world."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.time_kinds import CATEGORIES, DETECTION, INFRASTRUCTURE, PRODUCTIVE, SAVE
from supervisor.simulator import sensitivity
from supervisor.simulator.baselines import ALL, NAMED
from supervisor.simulator.compare import compare, distance, run_all, sentences, table
from supervisor.simulator.ledger import Account, score
from supervisor.simulator.run import simulate
from supervisor.simulator.scenario import load_scenario
from supervisor.simulator.schedule import parse_faults

HOUR = 3600.0


def books(**hours: float) -> Account:
    """An account with so many hours by category (by the name of its constant), the rest of ten productive."""
    names = {"save": SAVE, "pods": INFRASTRUCTURE, "detection": DETECTION}
    account = Account(0.0)
    t = 0.0
    for word, value in hours.items():
        account.turn(t, names[word])
        t += value * HOUR
    account.turn(t, PRODUCTIVE)
    account.close(10 * HOUR)
    return account


def test_ettr_and_what_is_left_of_it_without_pods_and_saves() -> None:
    mine = score("core", [books(save=1, pods=1, detection=2), books()])
    assert mine.ettr == pytest.approx((6 + 10) / 20)
    assert mine.ettr_apart == pytest.approx((6 + 10) / 18)
    assert mine.dollars_lost(4.0) == pytest.approx(4 * 4.0)


def test_detection_counts_what_needed_an_act_and_nothing_else() -> None:
    account = books()
    for kind, needs, seen in (
        ("hang", "restart", 60.0),
        ("hang", "restart", None),
        ("spot", "nothing", 5.0),
        ("odd", "nothing", None),
    ):
        strike = account.struck(kind, 100.0, needs)
        strike.detected = None if seen is None else 100.0 + seen
    mine = score("core", [account])
    assert mine.detection_s == {"hang": [60.0]}
    assert mine.needing == {"hang": 2}


def test_the_distance_to_the_oracle_and_the_gap_that_is_closed() -> None:
    scores = [
        score("oracle", [books(detection=0.5)]),
        score("core", [books(detection=1.0)]),
        score("torchrun", [books(detection=5.0)]),
        score("seed-scripts", [books(detection=2.5)]),
    ]
    how_far = distance(scores)
    assert how_far is not None and how_far.best_other == "seed-scripts"
    assert how_far.points == pytest.approx(5.0)
    assert how_far.closed == pytest.approx(0.75)
    assert sentences(scores)[1] == "It closes 75 % of the gap of the best other, seed-scripts."
    assert table(scores, 4.0).splitlines()[2].startswith("oracle")


def test_a_comparison_without_the_oracle_claims_no_distance() -> None:
    assert distance([score("core", [books()]), score("torchrun", [books()])]) is None


@pytest.fixture(scope="module")
def rough() -> list[object]:
    """Every policy through the same 25 hours of eight times as many faults."""
    return list(compare(sensitivity.at_rates(load_scenario(), 8.0), 25, [3], workers=1))


@pytest.mark.soak
def test_no_policy_beats_the_oracle_and_the_core_beats_all_others(rough) -> None:  # type: ignore[no-untyped-def]
    by_name = {s.policy: s for s in rough}
    assert set(by_name) == set(ALL)
    others = [s for s in rough if s.policy not in ("core", "oracle")]
    assert by_name["oracle"].ettr > max(s.ettr for s in others)
    assert by_name["core"].ettr > max(s.ettr for s in others if s.policy != "plain-watcher")
    assert by_name["core"].seconds[DETECTION] < 0.7 * min(s.seconds[DETECTION] for s in others)
    assert by_name["core"].ettr <= by_name["oracle"].ettr


@pytest.mark.soak
def test_the_ledgers_of_all_policies_add_up() -> None:
    scores = compare(sensitivity.at_rates(load_scenario(), 30.0), 4, [3], workers=1)
    assert {mine.policy for mine in scores} == set(ALL)
    for mine in scores:
        assert set(mine.seconds) == set(CATEGORIES)
        assert sum(mine.seconds.values()) == pytest.approx(4 * HOUR)
        assert mine.needing, "faults struck"


@pytest.mark.soak
def test_the_same_seed_gives_the_same_faults_to_every_policy() -> None:
    scenario = sensitivity.at_rates(load_scenario(), 4.0)
    first = [run_all([(scenario, 30, 7, name)], 1)[0] for name in ("core", "torchrun", "oracle")]
    spots = [[s.t for s in account.strikes if s.kind == "spot-loss"] for account in first]
    assert spots[0] and spots[0] == spots[1] == spots[2]


def test_a_tier_stalls_less_and_a_reboot_takes_what_it_held() -> None:
    slow = load_scenario("network-volume", ["load_s=60"])
    assert slow.physics.has_tier and not load_scenario("container").physics.has_tier
    assert slow.physics.save_s == pytest.approx(47 / 0.3) and slow.physics.tier_save_s == pytest.approx(47)
    reboot = parse_faults([{"at": "7300s", "kind": "host-reboot"}], "test")
    tier, volume = (simulate(slow, 5, 3, NAMED[name], faults=reboot) for name in ("core-tier", "core"))
    assert tier.account.seconds[SAVE] < 0.4 * volume.account.seconds[SAVE]
    assert all(one.account.starts == 2 and one.world.pod is not None for one in (tier, volume))


@pytest.mark.soak
def test_two_processes_give_what_one_gives() -> None:
    jobs = [(load_scenario(), 10.0, seed, name) for seed in (1, 2) for name in ("core", "torchrun")]
    assert [a.seconds for a in run_all(jobs, 1)] == [a.seconds for a in run_all(jobs, 2)]


def test_the_sensitivity_table_has_a_place_for_every_combination() -> None:
    cells = sensitivity.sensitivity(
        load_scenario(), 2, [1], rates=(1.0, 4.0), links_gbit=(2.0,), intervals_min=(20.0, 40.0), workers=2
    )
    assert [(c.rates, c.interval_min) for c in cells] == [(1.0, 20.0), (4.0, 20.0), (1.0, 40.0), (4.0, 40.0)]
    told = sensitivity.table(cells).splitlines()
    assert "faults x4" in told[0] and told[2].startswith("20 min, 2 Gbit/s") and told[3].startswith("40 min")


def test_a_place_of_the_table_changes_rates_link_and_interval_and_nothing_else() -> None:
    scenario = load_scenario()
    moved = sensitivity.at(scenario, 2.0, 8.0, 40.0)
    assert [r.per_1000_h for r in moved.rates] == [2 * r.per_1000_h for r in scenario.rates]
    assert moved.physics == replace(scenario.physics, link_gbit=8.0, interval=10)
    assert moved.settings == scenario.settings
