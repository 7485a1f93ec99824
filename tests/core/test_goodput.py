"""Where the time of a run went: every second once, under the name of what it was spent on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from supervisor.core import facts as f
from supervisor.core import goodput as g
from supervisor.core import time_kinds as k
from supervisor.core.account import account, ledger_until_now
from supervisor.core.codec import decode, encode
from supervisor.core.goodput import Ledger, Outage
from supervisor.core.state import State

from . import test_model
from .world import SETTINGS, World


@pytest.fixture
def world() -> World:
    """No publish takes a second in between."""
    world = World(replace(SETTINGS, first_step_at=1))
    world.publish_s = 0
    return world


def spent(world: World) -> dict[str, float]:
    """Whole seconds by category; what is under way is not booked yet."""
    return {name: round(seconds, 3) for name, seconds in world.state.books.ledger.seconds.items() if round(seconds, 3)}


def adds_up(state: State, began: float) -> None:
    ledger = state.books.ledger
    assert ledger.mark is not None
    assert ledger.total_s + (state.now - ledger.mark) == pytest.approx(state.now - began, abs=1e-6)
    assert ledger_until_now(state).total_s == pytest.approx(state.now - began, abs=1e-6)
    assert all(seconds >= -1e-6 for seconds in ledger.seconds.values()), ledger.seconds
    assert ledger.seconds.get(k.PRODUCTIVE, 0.0) == pytest.approx(sum(took for _, _, took in ledger.spans), abs=1e-6)
    assert 0 <= ledger.steps_lost <= ledger.steps


def phase(world: World, name: str, step: int | None = None) -> None:
    world.see(f.PhaseSeen("trainer", name, step))


# ---------------------------------------------------------------- one pod


def test_a_healthy_run_is_start_up_and_then_steps(world: World) -> None:
    world.running_at(4)
    assert spent(world) == {k.STARTUP: 8 + 200, k.PRODUCTIVE: 3 * 200}
    ledger = world.state.books.ledger
    assert (ledger.steps, ledger.steps_kept, ledger.timed, ledger.timed_s) == (4, 4, 3, 600.0)
    assert ledger.began_wall == 1.7e9 + 1000
    adds_up(world.state, 1000)


def test_a_checkpoint_save_inside_a_step_is_told_apart_from_it(world: World) -> None:
    world.running_at(2)
    phase(world, "checkpoint", 2)
    world.t += 30
    phase(world, "rollouts")
    world.step(3)
    assert spent(world)[k.SAVE] == 30
    assert spent(world)[k.PRODUCTIVE] == 200 + 200
    assert world.state.books.ledger.saves == 1
    world.step(4)
    assert (spent(world)[k.SAVE], world.state.books.ledger.saves) == (30, 1), "and once only"
    adds_up(world.state, 1000)


def test_a_save_ends_with_its_newest_file_and_not_when_the_sensor_is_sure(world: World) -> None:
    world.running_at(2)
    phase(world, "checkpoint", 2)
    world.t += 30
    written = 1.7e9 + world.t
    world.t += 25
    world.see(f.LocalSteps((f.LocalStep(2, "complete", "", 1, written),)))
    world.step(3)
    assert (spent(world)[k.SAVE], world.state.books.ledger.saves) == (30, 1)
    adds_up(world.state, 1000)


def test_a_save_that_no_line_ends_ends_where_the_next_step_begins_by_its_own_account(world: World) -> None:
    world.running_at(2)
    phase(world, "checkpoint", 2)
    world.t += 45
    world.step(3)
    assert spent(world)[k.SAVE] == 45
    assert spent(world)[k.PRODUCTIVE] == 200 + 200


def test_an_engine_death_is_booked_part_by_part_and_the_steps_since_the_checkpoint_are_lost(world: World) -> None:
    world.running_at(7)
    before = spent(world)
    assert before[k.PRODUCTIVE] == 1200
    world.t += 60
    world.gpus(inference=0)
    world.engine_process_dies()
    world.after(4)
    world.job_up()
    world.step(6)
    after = spent(world)
    assert after[k.WASTED] == 60 + 2 * 200, "the part of step 8, and steps 6 and 7 whole"
    closed = world.state.incidents.closed[-1]
    noticed = closed.decided - closed.opened
    assert after[k.DETECTION] == noticed > 0
    assert after[k.STOPPING] == 3
    assert after[k.PRODUCTIVE] == 1200 - 400
    assert after[k.STARTUP] == before[k.STARTUP] + 8 + 200
    ledger = world.state.books.ledger
    assert (ledger.steps, ledger.steps_lost, ledger.incidents, ledger.restarts) == (8, 2, 1, 1)
    (outage,) = ledger.outages
    assert (outage.cause, outage.step, outage.steps_lost, outage.recovered) == ("engine-gone", 7, 2, True)
    assert (outage.detect_s, outage.stop_s, outage.prepare_s, outage.start_s) == (noticed, 3, 0, 8 + 200)
    assert closed.closed is not None and outage.seconds == closed.closed - closed.opened
    adds_up(world.state, 1000)


def test_a_person_who_stops_the_run_owns_the_time_until_it_is_started_again(world: World) -> None:
    world.running_at(5)
    world.t += 50
    world.see(f.Command("stop", "kim"))
    world.after(7200, tick=600)
    world.see(f.Command("start", "kim"))
    world.job_up()
    world.step(6)
    after = spent(world)
    assert after[k.STOPPED] == 7200
    assert after[k.WASTED] == 50
    assert k.DETECTION not in after
    assert not world.state.books.ledger.outages
    adds_up(world.state, 1000)


def test_a_daemon_that_was_away_from_a_living_job_cost_nothing(world: World) -> None:
    world.running_at(5)
    world.t += 900
    attempt = world.state.attempt.number
    world.boot(adopted=attempt)
    world.see(f.AttemptAdopted(attempt, 0, world.pid))
    world.see(f.StepDone("trainer", 9, 200.0))
    assert spent(world)[k.PRODUCTIVE] == 4 * 200 + 900
    assert k.INFRASTRUCTURE not in spent(world)
    assert world.state.books.ledger.steps == 9, "the steps between were done, though nobody saw them"
    adds_up(world.state, 1000)


def test_a_save_that_a_daemons_absence_began_in_does_not_last_as_long_as_the_absence(world: World) -> None:
    world.running_at(5)
    world.t += 5
    phase(world, "checkpoint", 5)
    world.after(20)
    world.t += 9000
    attempt = world.state.attempt.number
    world.boot(adopted=attempt)
    world.see(f.AttemptAdopted(attempt, 0, world.pid))
    phase(world, "checkpoint", 5)  # the line is read once more
    world.see(f.StepDone("trainer", 45, 200.0))
    assert (spent(world)[k.SAVE], world.state.books.ledger.saves) == (20, 1)
    assert spent(world)[k.PRODUCTIVE] == 4 * 200 + 5 + 9000
    adds_up(world.state, 1000)


def test_what_a_living_job_did_unwatched_is_lost_with_it_when_it_dies_later(world: World) -> None:
    world.running_at(5)
    world.t += 900
    attempt = world.state.attempt.number
    world.boot(adopted=attempt)
    world.see(f.AttemptAdopted(attempt, 0, world.pid))
    world.t += 10
    world.engine_process_dies()
    world.after(4)
    assert spent(world)[k.WASTED] == 910
    assert k.INFRASTRUCTURE not in spent(world)


def test_a_job_that_died_while_no_daemon_watched_is_the_pods_outage_and_no_progress(world: World) -> None:
    world.running_at(7)
    world.t += 40
    world.see(f.Tick())
    world.t += 3600
    world.boot(adopted=None)
    after = spent(world)
    assert (after[k.WASTED], after[k.INFRASTRUCTURE]) == (40 + 400, 3600)
    adds_up(world.state, 1000)


def test_where_steps_count_from_0_the_step_that_the_checkpoint_is_called_after_is_done_again(world: World) -> None:
    world.settings = replace(world.settings, first_step_at=0)
    world.running_at(7, first=0)
    world.engine_process_dies()
    world.after(4)
    assert world.state.attempt.resume_step == 5
    world.job_up()
    world.step(5)
    assert (world.state.books.ledger.steps_lost, world.state.books.ledger.floor) == (3, g.FROM_SCRATCH)
    assert world.state.books.ledger.steps_kept == 6
    adds_up(world.state, 1000)


def test_a_checkpoint_that_is_written_while_the_job_is_stopped_is_no_part_of_the_next_start(world: World) -> None:
    world.running_at(5)
    world.answer = False
    world.see(f.Command("restart", "kim"))
    phase(world, "checkpoint", 5)
    world.t += 20
    world.answer = True
    world.see(f.AttemptStopped(world.state.attempt.number, 20.0, gpu_free=True))
    world.job_up()
    world.step(6)
    assert k.SAVE not in spent(world)
    assert world.state.books.ledger.saves == 0
    assert spent(world)[k.STOPPING] == 20
    adds_up(world.state, 1000)


def test_a_fresh_start_by_a_persons_wish_wastes_what_was_there(world: World) -> None:
    world.running_at(5)
    world.see(f.Command("shutdown", "kim"))
    world.settings = replace(world.settings, fresh=True)
    world.state = replace(world.state, ending=replace(world.state.ending, said=True))
    world.boot()
    ledger = world.state.books.ledger
    assert (ledger.steps_kept, ledger.floor) == (0, g.FROM_SCRATCH)
    assert not ledger.seconds.get(k.PRODUCTIVE)


def test_time_after_the_last_step_is_nobodys_progress(world: World) -> None:
    world.settings = replace(world.settings, max_steps=5)
    world.running_at(5)
    world.t += 20
    world.see(f.FinishSeen("trainer", "RL trainer finished!"))
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 0))
    after = spent(world)
    assert after[k.OTHER] == 20
    assert k.WASTED not in after
    assert world.state.mode == "finished"
    assert ledger_until_now(world.state).last == k.STOPPED
    adds_up(world.state, 1000)


def test_what_is_under_way_is_shown_as_if_it_ended_well_and_can_be_lost_by_the_next_pod(world: World) -> None:
    world.running_at(5)
    world.t += 90
    world.see(f.Tick())
    now = ledger_until_now(world.state)
    assert now.seconds[k.PRODUCTIVE] == 4 * 200 + 90
    assert now.steps == 5
    lost = g.lose(now, 5)
    assert (lost.seconds[k.PRODUCTIVE], lost.seconds[k.WASTED], lost.steps_lost) == (800, 90, 0)


def test_nothing_is_done_while_nothing_changes(world: World) -> None:
    world.running_at(3)
    before = world.state
    after = replace(before, now=before.now + 1, wall=before.wall + 1)
    assert account(before, after, f.Tick()) is before.books.ledger
    assert account(before, after, f.EngineLook("http://x", "ok", "ok")) is before.books.ledger


def test_uploads_are_counted_and_those_that_found_all_there_are_not() -> None:
    world = World()
    world.running_at(6)
    world.see(f.Published(5, 10, 2.0, 0))
    ledger = world.state.books.ledger
    assert (ledger.uploads, ledger.upload_s, ledger.upload_bytes) == (1, 60.0, 1 << 30)


# ---------------------------------------------------------------- bounds


@given(steps=st.integers(1, 3000), resume=st.integers(0, 3000))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_spans_stay_few_and_lose_no_second(steps: int, resume: int) -> None:
    ledger = Ledger(seconds={k.PRODUCTIVE: 10.0 * steps}, steps=steps)
    for step in range(1, steps + 1):
        ledger = replace(ledger, spans=g.with_span(ledger.spans, (step, step, 10.0)))
    assert len(ledger.spans) <= g.MOST_SPANS
    lost = g.lose(ledger, resume)
    assert lost.total_s == pytest.approx(ledger.total_s)
    assert lost.steps_lost == max(0, steps - resume)
    assert lost.seconds.get(k.WASTED, 0.0) == pytest.approx(10.0 * max(0, steps - resume)), "all took the same"


def test_a_ledger_of_a_long_bad_run_stays_small(world: World) -> None:
    world.running_at(5)
    many = tuple(Outage(number, "engine-gone", 1.7e9 + number, 10**6, 1.5, 2.5, 3.5, 4.5, 7) for number in range(200))
    spans = tuple((number, number, 123.456789) for number in range(g.MOST_SPANS))
    ledger = replace(world.state.books.ledger, outages=many[-g.MOST_OUTAGES :], spans=spans)
    assert len(json.dumps(encode(ledger))) < 32_000
    assert decode(json.loads(json.dumps(encode(ledger)))) == ledger


# ---------------------------------------------------------------- across pods


def pod(began: float, seconds: float, **more: object) -> Ledger:
    """A pod that began at ``began`` and whose last record is of ``seconds`` later."""
    steps = int(seconds // 100)
    spans = tuple((step, step, 100.0) for step in range(1, steps + 1))
    ledger = Ledger(
        {k.PRODUCTIVE: 100.0 * steps, k.STARTUP: seconds - 100.0 * steps},
        began_wall=began,
        wall=began + seconds,
        last=k.PRODUCTIVE,
        spans=spans,
        steps=steps,
        floor=0,
    )
    return replace(ledger, **more)


def test_a_lost_pods_gap_and_the_steps_it_had_not_published_are_in_the_runs_ledger() -> None:
    first = pod(0, 1050)
    second = replace(pod(2000, 100), spans=((9, 9, 100.0),), floor=8)
    second = replace(second, seconds={k.PRODUCTIVE: 100.0, k.STARTUP: 400.0}, wall=2500)
    run = g.sum_ledgers({"bb": second, "aa": first})
    assert run.total_s == 2500, "all time from the first pod's first second to the last pod's last"
    assert run.seconds[k.INFRASTRUCTURE] == 950
    assert run.seconds[k.WASTED] == 200
    assert (run.steps, run.steps_lost, run.steps_kept) == (11, 2, 9)
    assert run.share(k.PRODUCTIVE) == pytest.approx(900 / 2500)
    assert list(g.across({"bb": second, "aa": first})) == ["aa", "bb"]


def test_a_gap_after_a_person_stopped_the_run_is_not_a_lost_pods() -> None:
    first, second = pod(0, 1000, last=k.STOPPED), pod(5000, 500, floor=10, spans=((11, 15, 500.0),))
    run = g.sum_ledgers({"a": first, "b": second})
    assert run.seconds[k.STOPPED] == 4000
    assert not run.seconds[k.INFRASTRUCTURE]


def test_pods_whose_clocks_overlap_book_no_negative_gap() -> None:
    run = g.sum_ledgers({"a": pod(0, 1000), "b": pod(900, 500, floor=10, spans=((11, 15, 500.0),))})
    assert run.total_s == 1500
    assert min(run.seconds.values()) >= 0


def test_a_run_that_has_not_begun_has_no_ratio() -> None:
    assert g.sum_ledgers({}).share(k.PRODUCTIVE) == 0.0
    assert g.sum_ledgers({"a": Ledger()}).share(k.PRODUCTIVE) == 0.0
    assert g.sum_ledgers({"a": Ledger()}).total_s == 0


def test_a_step_under_way_on_a_lost_pod_is_wasted_when_the_next_one_does_it_again(world: World) -> None:
    world.running_at(5)
    world.t += 90
    world.see(f.Tick())
    first = ledger_until_now(world.state)
    began = first.wall + 600
    second = World(replace(SETTINGS, first_step_at=1))
    second.t = began - 1.7e9
    second.stored, second.latest = {5: 1}, 5
    second.boot()
    second.job_up()
    second.step(6)
    run = g.sum_ledgers({"one": first, "two": ledger_until_now(second.state)})
    assert run.seconds[k.WASTED] == 90
    assert run.seconds[k.INFRASTRUCTURE] == pytest.approx(600)
    assert (run.steps, run.steps_kept) == (6, 6)


# ---------------------------------------------------------------- a pod that comes back


class Journal:
    """What one pod's journal books: attempts that go on at a step, and steps of ten seconds each."""

    def __init__(self, began: float) -> None:
        self.ledger = Ledger(began_wall=began, wall=began, last=k.PRODUCTIVE)

    def trains(self, wall: float, resumed: int, to: int, held: int | None = None) -> Journal:
        """The pod goes on at ``resumed`` and trains up to step ``to``. What was before it was no pod of ours."""
        one = g.book(self.ledger, {k.INFRASTRUCTURE: wall - self.ledger.wall, k.PRODUCTIVE: 10.0 * (to - resumed)})
        one = g.resume_ledger(one, resumed, wall, held)
        for step in range(resumed + 1, to + 1):
            one = replace(one, spans=g.with_span(one.spans, (step, step, 10.0), one.starts))
        self.ledger = replace(one, wall=wall + 10.0 * (to - resumed), steps=one.steps + to - resumed)
        assert len(one.spans) <= g.MOST_SPANS
        assert len(one.starts) <= g.MOST_STARTS
        return self


def told(**journals: Journal) -> tuple[Ledger, dict[str, int]]:
    """The run's ledger and the steps that stayed, by pod. Every second is where it was, and somewhere."""
    ledgers = {name: one.ledger for name, one in journals.items()}
    run = g.sum_ledgers(ledgers)
    walls = [(one.began_wall or 0.0, one.wall) for one in ledgers.values()]
    gaps = sum(max(0.0, began - max(until for _, until in walls[:n])) for n, (began, _) in enumerate(walls) if n)
    assert run.total_s == pytest.approx(sum(until - began for began, until in walls) + gaps)
    assert run.seconds[k.PRODUCTIVE] == pytest.approx(10.0 * run.steps_kept)
    assert run.seconds[k.WASTED] == pytest.approx(10.0 * run.steps_lost)
    return run, {name: one.steps_kept for name, one in g.across(ledgers).items()}


def test_one_pod_after_another_keeps_what_the_second_did_not_do_again() -> None:
    run, kept = told(a=Journal(0).trains(0, 0, 51), b=Journal(1000).trains(1000, 40, 106))
    assert kept == {"a": 40, "b": 66}
    assert (run.steps_kept, run.steps_lost) == (106, 11)


def test_a_pod_that_comes_back_keeps_the_steps_that_it_did_since() -> None:
    a = Journal(0).trains(0, 0, 51).trains(3000, 92, 286)
    run, kept = told(a=a, b=Journal(1000).trains(1000, 40, 106))
    assert kept == {"a": 40 + 194, "b": 52}
    assert (run.steps_kept, run.steps_lost) == (286, 11 + 14)


def test_two_pods_that_take_turns_lose_only_what_the_other_did_again() -> None:
    a = Journal(0).trains(0, 0, 51).trains(3000, 92, 286)
    b = Journal(1000).trains(1000, 40, 106).trains(9000, 250, 400)
    run, kept = told(a=a, b=b)
    assert kept == {"a": 40 + 158, "b": 52 + 150}
    assert (run.steps_kept, run.steps_lost) == (400, 11 + 14 + 36)


def test_a_pod_that_goes_back_further_than_the_other_began_replaces_all_of_it() -> None:
    a = Journal(0).trains(0, 0, 51).trains(3000, 20, 60)
    run, kept = told(a=a, b=Journal(1000).trains(1000, 40, 106))
    assert kept == {"a": 60, "b": 0}
    assert run.steps_kept == 60


def test_a_pod_that_went_on_after_it_was_replaced_did_that_for_nothing() -> None:
    run, kept = told(a=Journal(0).trains(0, 0, 300), b=Journal(1000).trains(1000, 40, 106))
    assert kept == {"a": 40, "b": 66}
    assert run.steps_kept == 106


def test_a_record_of_before_starts_were_kept_counts_from_its_begin() -> None:
    old = Journal(0).trains(0, 0, 51)
    old.ledger = replace(old.ledger, starts=(), held=None)
    new = Journal(1000).trains(1000, 40, 106)
    _, kept = told(a=old, b=new)
    assert kept == {"a": 40, "b": 66}
    _, kept = told(a=old.trains(3000, 92, 286), b=new)
    assert kept == {"a": 234, "b": 52}, "a journal that an older version began"


def test_a_restart_under_the_same_claim_is_no_start_of_its_own() -> None:
    a = Journal(0).trains(0, 0, 51, held=1)
    for number in range(200):
        a.trains(1000 + 100 * number, 50 + number, 51 + number, held=1)
    assert a.ledger.starts == ((0, 0),)
    assert a.trains(90_000, 250, 260, held=3).ledger.starts == ((0, 0), (90_000, 250))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 90)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_whoever_takes_turns_each_step_of_the_run_stays_once(turns: list[tuple[int, int]]) -> None:
    pods = [Journal(0), Journal(0)]
    wall, step = 0.0, 0
    for number, (back, more) in enumerate(turns):
        resumed = max(0, step - back)
        step = resumed + more
        pods[number % 2].trains(wall, resumed, step)
        wall += 10.0 * more + 100
    run, _ = told(a=pods[0], b=pods[1])
    if len(turns) <= g.MOST_STARTS:
        assert run.steps_kept == pytest.approx(step, abs=1e-6)
    assert 0 <= run.steps_lost <= run.steps


def test_a_pod_that_takes_the_run_back_under_a_living_job_keeps_what_follows(world: World) -> None:
    world.running_at(6)
    world.see(f.Claimed(3))
    world.step(7)
    assert world.state.books.ledger.starts[-1] == (1.7e9 + world.t - 200, 6)
    other = Journal(world.state.books.ledger.wall - 600).trains(world.state.books.ledger.wall - 600, 5, 12)
    kept = g.across({"a": world.state.books.ledger, "b": other.ledger})
    assert (kept["a"].steps_kept, kept["b"].steps_kept) == (6, 1), (
        "its step 6 was the other's to do; from 7 on it has the run"
    )


def test_an_attempt_has_the_run_since_its_launch_and_not_since_its_first_step(world: World) -> None:
    world.running_at(4)
    assert len(world.state.books.ledger.starts) == 1
    ((wall, step),) = world.state.books.ledger.starts
    assert (wall, step) == (pytest.approx(1.7e9 + world.state.attempt.started), g.FROM_SCRATCH)
    assert wall < world.state.books.ledger.wall - 4 * 200 + 1


# ---------------------------------------------------------------- whatever happens


class Accounted(test_model.Pod):
    """The pod that behaves at random, with an accountant beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.began: float | None = None
        self.kept: list[Ledger] = []

    def see(self, fact: f.Fact) -> None:
        if self.up and self.state.mode == "new":
            if self.began is not None:
                self.t += 500  # another pod: it takes a while until there is one
            self.began = self.t
        super().see(fact)

    @invariant()
    def every_second_is_booked_once(self) -> None:
        if self.began is not None and self.state.mode != "new":
            adds_up(self.state, self.began)

    @invariant()
    def steps_that_stayed_are_those_that_the_job_has(self) -> None:
        ledger = self.state.books.ledger
        if self.up and self.state.mode == "running" and ledger.spans:
            assert ledger.spans[-1][1] == self.state.progress.step


class TestAccounted(Accounted.TestCase):  # type: ignore[name-defined,misc]
    """Parts add up to all time, whatever comes in whatever order."""

    settings = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
