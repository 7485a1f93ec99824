"""The virtual world itself: the same seed is the same run, no second is lost, and nobody is told a fault's name."""

from __future__ import annotations

import json
import re
from hashlib import sha256

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode
from supervisor.core.time_kinds import CATEGORIES, INFRASTRUCTURE, PRODUCTIVE, SAVE, WASTED
from supervisor.simulator.baselines import POLICIES
from supervisor.simulator.clockwork import Clockwork, Owner
from supervisor.simulator.faults import KINDS, with_defaults
from supervisor.simulator.ledger import Account
from supervisor.simulator.run import plan, simulate
from supervisor.simulator.scenario import load_scenario
from supervisor.simulator.world import Planned
from tests.simulate.worlds import after, fault, trace_of


def test_the_same_seed_gives_the_same_observations_byte_for_byte_and_another_seed_does_not() -> None:
    first, again, other = (sha256("\n".join(trace_of(4, seed)[1:]).encode()).hexdigest() for seed in (5, 5, 6))
    assert first == again
    assert first != other


@pytest.mark.soak
def test_the_same_seed_gives_the_same_report() -> None:
    reports = [json.dumps(simulate(load_scenario(), 5, 2).as_json(20.0)) for _ in range(2)]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("scenario", ["default", pytest.param("no-spot", marks=pytest.mark.soak), "healthy"])
@pytest.mark.parametrize(
    ("seed", "hours"),
    [(1, 12), pytest.param(1, 50, marks=pytest.mark.soak), pytest.param(2, 50, marks=pytest.mark.soak)],
)
def test_the_parts_of_the_ledger_add_up_to_all_time(scenario: str, seed: int, hours: int) -> None:
    outcome = simulate(load_scenario(scenario), hours, seed)
    report = outcome.account
    assert set(report.seconds) == set(CATEGORIES)
    assert sum(report.seconds.values()) == pytest.approx(hours * 3600, abs=1e-3)
    assert min(report.seconds.values()) >= 0
    assert outcome.score.ettr == pytest.approx(report.seconds[PRODUCTIVE] / (hours * 3600))


@pytest.mark.soak
def test_every_policy_lives_through_the_same_faults() -> None:
    scenario = load_scenario("default", ["rate.store-outage=100"])
    books = {name: simulate(scenario, 60, 3, factory).account for name, factory in POLICIES.items()}
    outages = {}
    for name, account in books.items():
        assert sum(account.seconds.values()) == pytest.approx(60 * 3600, abs=1e-3), name
        outages[name] = [strike.t for strike in account.strikes if strike.kind == "store-outage"]
    assert outages["oracle"]
    assert outages == dict.fromkeys(POLICIES, outages["oracle"])


def test_time_without_faults_is_steps_saves_and_one_start() -> None:
    told = after(hours=10)
    seconds = told.account.seconds
    done = told.account.steps_done
    assert seconds[SAVE] == pytest.approx(told.world.physics.save_s * (done // 5), rel=0.1)
    assert seconds[INFRASTRUCTURE] == seconds[WASTED] == 0
    assert told.outcome.score.ettr > 0.94
    assert 220 < seconds[PRODUCTIVE] / done < 300  # the mean of the lognormal is 260 s, and an evaluation now and then


@pytest.mark.soak
def test_no_observation_of_a_job_names_what_struck_it() -> None:
    names = re.compile("|".join(re.escape(kind) for kind in KINDS))
    faults = [fault(kind, 7200 * (number + 1)) for number, kind in enumerate(KINDS)]
    lines = trace_of(2 * len(KINDS) + 4, 1, *faults)
    assert len(lines) > 5000
    # What a policy itself concluded comes back in its records, in its own words.
    seen = [line for line in lines[1:] if '"@":"StoreRecords"' not in line]
    assert {found.group() for line in seen for found in names.finditer(line)} == set()


def test_a_trace_is_one_line_of_format_and_then_observations_with_ascending_times() -> None:
    head, *rest = map(json.loads, trace_of(3, 1))
    assert (head["format"], head["version"]) == ("rl-supervisor-trace", 1)
    assert [line["t"] for line in rest] == sorted(line["t"] for line in rest)
    assert isinstance(decode(rest[0]["fact"]), f.DaemonStarted)
    assert {"t", "wall", "source", "fact"} == set(rest[0])


def test_the_mix_strikes_as_often_as_it_says() -> None:
    scenario = load_scenario()
    rates = {rate.kind: rate.per_1000_h for rate in scenario.rates}
    counts = dict.fromkeys(rates, 0)
    for seed in range(100):
        for planned in plan(scenario, 1000, seed):
            counts[planned.kind] += 1
    for kind, rate in rates.items():
        assert counts[kind] / 100 == pytest.approx(rate, abs=4 * (rate / 100) ** 0.5 + 1e-9), kind


def test_every_kind_of_the_mix_is_known_with_its_parameters_and_its_source() -> None:
    scenario = load_scenario()
    for rate in scenario.rates:
        assert rate.source
        with_defaults(rate.kind, rate.parameters)
    never_by_chance = set(KINDS) - {rate.kind for rate in scenario.rates}
    assert never_by_chance == set()


class Stops:
    """A policy that stops a healthy job, once."""

    name, omniscient, tier = "stops", False, False

    def __init__(self) -> None:
        self.stopped = False

    def see(self, observation: f.Observation) -> tuple[list[a.Action], float]:
        match observation.fact:
            case f.DaemonStarted():
                return [a.Start(1, None)], float("inf")
            case f.StepDone(step=7) if not self.stopped:
                self.stopped = True
                return [a.Stop(1, "I felt like it.", 400.0)], float("inf")
            case f.AttemptStopped():
                return [a.Start(2, 5)], float("inf")
        return [], float("inf")

    def learn_fault(self, t: float, fault: str) -> None:
        raise NotImplementedError


def test_a_stop_without_a_reason_is_counted_as_a_false_restart_and_its_cost_is_the_steps() -> None:
    told = after(hours=2, policy=Stops)
    assert [one.reason for one in told.account.false_restarts] == ["I felt like it."]
    assert told.account.steps_lost == 1  # the orchestrator tells step 7 while the trainer still works on it
    assert told.account.seconds[WASTED] > 60
    assert told.resumed_at() == [None, 5]


class Idle(Stops):
    """A policy that starts the job and looks away."""

    def see(self, observation: f.Observation) -> tuple[list[a.Action], float]:
        return ([a.Start(1, None)] if isinstance(observation.fact, f.DaemonStarted) else []), float("inf")


def test_a_dead_engine_lets_the_step_in_training_end_and_nothing_after_it() -> None:
    told = after(fault("engine-exit-0"), hours=6, policy=Idle)
    steps = [fact.step for fact in told.facts if isinstance(fact, f.StepDone) and fact.role == "trainer"]
    errors = [fact for fact in told.facts if isinstance(fact, f.ErrorSeen)]
    assert told.account.seconds["CUSTOM_BADPUT_EVENTS.DETECTION"] > 3.8 * 3600
    assert len(steps) < 35
    assert {error.signature for error in errors} == {"connection-error"}
    look = [fact for fact in told.facts if isinstance(fact, f.GpuLook)][-1]
    assert look.gpus[0].used_bytes < 1 << 30 < look.gpus[1].used_bytes


def test_an_engine_that_hangs_is_looked_at_every_five_seconds_and_its_counters_stand() -> None:
    told = after(fault("engine-hang"), hours=2.2, policy=Idle)
    looks = [fact for fact in told.facts if isinstance(fact, f.EngineLook)][-100:]
    assert {look.health for look in looks} <= {"ok", "timeout"}
    assert len({look.iterations for look in looks if look.iterations is not None}) == 1
    assert "timeout" in {look.canary for look in looks}
    assert "timeout" in {look.liveness for look in looks}
    assert "ok" not in {look.liveness for look in looks}


def test_an_action_that_the_world_has_no_hands_for_is_an_error_at_once() -> None:
    class Odd(Stops):
        def see(self, observation: f.Observation) -> tuple[list[a.Action], float]:
            return [a.Action()], 0.0

    with pytest.raises(NotImplementedError, match="no hands for Action"):
        after(hours=1, policy=Odd)


def test_an_observed_run_is_told_what_was_not_done() -> None:
    told = after(hours=1, policy=Stops, sets=["settings.mode=observe"])
    assert [fact.action for fact in told.facts if isinstance(fact, f.Suppressed)] == ["Start"]
    assert told.account.steps_done == 0


def test_what_the_run_learned_travels_to_the_next_pod() -> None:
    told = after(fault("spot-loss"), hours=4)
    records = [fact for fact in told.facts if isinstance(fact, f.StoreRecords)]
    if told.world.store.learned is None and not told.world.store.ledgers:
        pytest.skip("the core keeps no records yet")
    assert records


def test_a_clockwork_that_is_postponed_keeps_its_order() -> None:
    clock, mine, seen = Clockwork(), Owner(), []
    clock.at(1.0, lambda: seen.append("mine at 1"), mine)
    clock.at(2.0, lambda: seen.append("mine at 2"), mine)
    clock.at(3.0, lambda: seen.append("another's at 3"))
    clock.postpone(5.0, lambda owner: owner is mine)
    while clock.next_t() < 100:
        clock.step()
    assert seen == ["another's at 3", "mine at 1", "mine at 2"]
    assert clock.now == 7.0


def test_a_ledger_that_lost_a_second_says_so() -> None:
    account = Account(0.0)
    account.turn(100.0, PRODUCTIVE)
    account.seconds[PRODUCTIVE] += 1.0
    with pytest.raises(AssertionError, match="of 100"):
        account.check()


def test_steps_above_the_resume_step_are_wasted_and_stay_in_the_sum() -> None:
    account = Account(0.0, category=PRODUCTIVE)
    for step in (1, 2, 3):
        account.step_done(100.0 * step, step)
    account.goes_on_from(350.0, 1)
    account.close(400.0)
    assert account.steps_lost == 2
    assert account.seconds[WASTED] == 250.0
    assert account.seconds[PRODUCTIVE] == 150.0


def test_planned_faults_that_find_nothing_to_strike_are_told() -> None:
    told = after(fault("trainer-crash", 1), hours=1)
    assert told.world.not_struck == [(Planned(1.0, "trainer-crash", {}), "no job is alive")]
