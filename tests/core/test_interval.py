"""How far apart checkpoints should be: against the exact model, and in words."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core import time_kinds as k
from supervisor.core.evolve import replace
from supervisor.core.goodput import Ledger, Outage
from supervisor.core.interval import Measured, best_interval_s, choose_interval, loss, measure_run
from supervisor.views.interval_advice import advise
from tests.core.world import SETTINGS, World

HOUR = 3600.0


def exact_cost(interval_s: float, save_s: float, between_s: float, recovery_s: float) -> float:
    """Expected time for each second of training, failures being exponential (Daly 2006, the complete cost function)."""
    return between_s * exp(recovery_s / between_s) * (exp((interval_s + save_s) / between_s) - 1) / interval_s


@given(save_s=st.floats(1, 300), between_s=st.floats(4 * HOUR, 500 * HOUR), recovery_s=st.floats(0, HOUR / 2))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_the_interval_is_as_good_as_the_exact_optimum(save_s: float, between_s: float, recovery_s: float) -> None:
    advised = best_interval_s(save_s, between_s, recovery_s)
    least = min(exact_cost(advised * 1.01**power, save_s, between_s, recovery_s) for power in range(-150, 151))
    assert exact_cost(advised, save_s, between_s, recovery_s) < least * 1.02


def test_youngs_own_case() -> None:
    assert best_interval_s(60, 12 * HOUR, 0) == pytest.approx((2 * 60 * 43200 + 3600) ** 0.5)


def test_the_advice_is_in_steps_and_says_what_it_hangs_on() -> None:
    advice = advise(Measured(240, 30, failures=3, watched_s=76 * HOUR, interval_steps=60))
    assert advice.steps == 10, "sqrt(2 * 25 h * 30 s) is 39 minutes"
    assert advice.sentence == (
        "Checkpoints come every 60 steps (4 h); every 10 steps (40 min) would cost less, 2.6 % of all time for saves "
        "and repeated steps instead of 8.2 %: a save takes 30 s, a step 4 min, and something fails about every 25 h "
        "(3 failures in 76 h, with 1 failure in 24 h assumed before)."
    )
    assert advice.warning == ""
    assert advice.present_loss is not None and advice.loss is not None and advice.present_loss > advice.loss


def test_an_interval_that_is_near_enough_is_left_alone() -> None:
    advice = advise(Measured(240, 30, failures=3, watched_s=76 * HOUR, interval_steps=8))
    assert advice.sentence.startswith(
        "Checkpoints come every 8 steps (32 min), which is as good as the best interval, 10 steps (40 min): "
    )


def test_slow_recovery_and_detection_make_saves_a_little_rarer_and_never_more_frequent() -> None:
    quick, slow = Measured(10, 30, watched_s=0), Measured(10, 30, watched_s=0, detect_s=HOUR, recover_s=HOUR)
    first, second = advise(quick).steps, advise(slow).steps
    assert first is not None and second is not None and first <= second < 1.1 * first


def test_an_upload_longer_than_the_interval_is_a_warning_that_names_the_link() -> None:
    advice = advise(Measured(240, 30, upload_s=56 * 60, interval_steps=5))
    assert advice.warning == (
        "An upload takes 56 min, longer than the 20 min between two checkpoints: the link, not the interval, decides "
        "what a lost pod costs, about 94 min of training. A pod with a faster uplink, or less in a checkpoint, is what "
        "would help."
    )


@pytest.mark.parametrize(("minutes", "warned"), [(19, False), (21, True)])
def test_the_warning_comes_as_soon_as_an_upload_does_not_fit_between_two_checkpoints(
    minutes: int, warned: bool
) -> None:
    assert bool(advise(Measured(240, 30, upload_s=minutes * 60, interval_steps=5)).warning) is warned


def test_what_was_not_measured_is_not_guessed() -> None:
    assert advise(Measured(None, None)).sentence == ("No advice on the checkpoint interval yet: no step was timed.")
    assert "no checkpoint save was timed" in advise(Measured(100, None)).sentence
    assert advise(Measured(100, None)).steps is None


def test_a_step_is_the_least_there_is() -> None:
    assert advise(Measured(7200, 1, failures=50, watched_s=HOUR)).steps == 1


def test_a_ledger_says_what_was_measured() -> None:
    outages = (
        Outage(1, "engine-gone", 0, 7, 4, 6, 10, 280, 2),
        Outage(2, "stopped", 0, 9, 500, 0, 0, 0, recovered=False),
    )
    run = Ledger(
        {k.PRODUCTIVE: 36000, k.SAVE: 300, k.STOPPED: 9000},
        timed=180,
        timed_s=36000,
        saves=10,
        uploads=4,
        upload_s=400,
        incidents=2,
        outages=outages,
    )
    found = measure_run(run, lost_pods=1)
    assert (found.step_s, found.save_s, found.upload_s) == (200, 30, 100)
    assert (found.failures, found.watched_s) == (3, 36300)
    assert (found.detect_s, found.recover_s) == (4, 296)
    assert found.interval_steps == 18, "seen, where the run file does not say it"
    assert measure_run(run, interval_steps=20).interval_steps == 20


def test_the_loss_is_least_at_the_best_interval() -> None:
    best = best_interval_s(30, 20 * HOUR, 0)
    assert loss(best, 30, 20 * HOUR) < min(loss(best / 2, 30, 20 * HOUR), loss(best * 2, 30, 20 * HOUR))


# ---------------------------------------------------------------- chosen at each start


KNOWN = Measured(240, 30, failures=3, watched_s=76 * HOUR)  # ten steps are best: see above


def test_before_a_save_was_timed_the_interval_is_a_guess_within_the_bounds_and_says_so() -> None:
    assert choose_interval(Measured(240, None), (1, 100), None) == (
        10,
        "Checkpoints come every 10 steps, a first guess: no save was timed yet.",
    )
    assert choose_interval(Measured(None, None), (20, 100), None)[0] == 20
    assert choose_interval(Measured(None, None), (1, 4), None)[0] == 4
    assert choose_interval(Measured(None, None), (1, 4), 3)[0] == 3, "a second guess is no better than the first"


def test_what_was_measured_decides_and_the_sentence_has_the_arithmetic() -> None:
    steps, sentence = choose_interval(KNOWN, (1, 100), None)
    assert steps == 10
    assert sentence == (
        "Checkpoints come every 10 steps (40 min): a save takes 30 s, a step 4 min, and something fails about every "
        "25 h (3 failures in 76 h, with 1 failure in 24 h assumed before). Saves and repeated steps cost about 2.6 % "
        "of all time so."
    )
    assert choose_interval(KNOWN, (12, 20), None)[0] == 12
    assert choose_interval(KNOWN, (1, 5), None)[0] == 5


def test_an_interval_that_is_as_good_stays_unless_a_person_excludes_it() -> None:
    assert choose_interval(KNOWN, (1, 100), 8)[0] == 8
    assert choose_interval(KNOWN, (9, 100), 8)[0] == 10
    assert choose_interval(KNOWN, (1, 100), 60)[0] == 10


@given(
    m=st.builds(
        Measured,
        step_s=st.floats(0.01, 1e5),
        save_s=st.floats(0.001, 1e5),
        failures=st.integers(0, 1000),
        watched_s=st.floats(0, 1e8),
    ),
    bounds=st.tuples(st.integers(1, 50), st.integers(0, 200)),
    before=st.none() | st.integers(1, 500),
)
@settings(max_examples=200, deadline=None)
def test_it_is_always_within_the_bounds(m: Measured, bounds: tuple[int, int], before: int | None) -> None:
    least, most = bounds[0], sum(bounds)
    steps, sentence = choose_interval(m, (least, most), before)
    assert least <= steps <= most
    assert sentence.startswith(f"Checkpoints come every {steps} step")


def test_each_start_is_told_its_interval_and_lost_pods_make_saves_more_frequent() -> None:
    world = World(replace(SETTINGS, interval_between=(1, 100)))
    world.boot()
    (start,) = world.asked(a.Start)
    assert isinstance(start, a.Start)
    assert start.interval == world.state.attempt.interval == 10
    assert world.said("checkpoint-interval") == [
        "Checkpoints come every 10 steps, a first guess: no save was timed yet."
    ]
    world.running_at(0)
    for number in range(1, 21):
        world.step(number)
        if number % 10 == 0:
            world.see(f.PhaseSeen("trainer", "checkpoint", number, "Saving checkpoint"))
            world.after(60)
            world.checkpoint(number)
    ledger = world.state.books.ledger
    assert ledger.saves > 0
    lost = {f"pod{n}": Ledger({k.PRODUCTIVE: 4 * HOUR}, wall=float(n), last=k.PRODUCTIVE) for n in range(9)}
    world.see(f.StoreRecords(None, lost))
    world.actions.clear()
    world.engine_process_dies()
    world.after(60)
    (again,) = world.asked(a.Start)
    assert isinstance(again, a.Start) and again.interval is not None
    (sentence,) = world.said("checkpoint-interval")
    assert "(10 failures in " in sentence, sentence
    alone, _ = choose_interval(measure_run(ledger), (1, 100), None)
    assert again.interval < alone


def test_a_save_that_no_line_tells_of_is_timed_by_its_files() -> None:
    world = World(replace(SETTINGS, interval_between=(1, 100)))
    world.boot()
    world.running_at(0)
    for number in range(1, 21):
        world.step(number)
        if number % 10 == 0:
            world.see(
                f.LocalSteps((f.LocalStep(number, "writing", "its files are being written", 1, 1.7e9 + world.t),))
            )
            world.after(60)
            written = 1.7e9 + world.t
            world.after(20)  # the sensor waits for quiet before it calls the step complete
            world.see(f.LocalSteps((f.LocalStep(number, "complete", "", 2, written),)))
    assert world.state.books.ledger.saves == 0
    world.actions.clear()
    world.engine_process_dies()
    world.after(60)
    (sentence,) = world.said("checkpoint-interval")
    assert ": a save takes 60 s, " in sentence


def test_without_auto_nothing_is_told_to_the_start() -> None:
    world = World()
    world.boot()
    (start,) = world.asked(a.Start)
    assert isinstance(start, a.Start) and start.interval is None
    assert world.said("checkpoint-interval") == []
