"""The journal was lost: what persons ordered stays ordered, a living job is adopted, and the loss is one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.journal_lost import OldOrders, go_on
from supervisor.core.state import State
from supervisor.views.status import headline

from .world import GIB, SETTINGS, World

LOST = "The journal /s/journal.db is missing: what was decided is lost."


def begun(
    state: State, orders: OldOrders | None, attempt: int, *, living: bool, settings: f.Settings = SETTINGS
) -> World:
    """The next daemon, with a complete step here and in the store. No effect answers by itself."""
    one = World(settings, go_on(state, orders, attempt, living=living))
    one.local, one.stored, one.latest = {5: "complete"}, {5: GIB}, 5
    one.answer = False
    adopted = attempt if one.state.mode == "stopping" else None
    one.see(f.DaemonStarted("test", settings, "boot", adopted, lost=LOST))
    if living:
        one.see(f.AttemptAdopted(attempt, None, 4711))
    one.survey()
    one.after(2.0)
    return one


def test_a_run_that_a_person_had_stopped_is_not_started() -> None:
    one = begun(State(), OldOrders(wanted=False), 3, living=False)
    assert not one.asked(a.Start)
    assert one.state.mode == "stopped" and one.state.attempt.number == 3
    one.see(f.Command("start", "ubuntu"))
    one.survey()
    one.after(1.0)
    assert [start.attempt for start in one.asked(a.Start) if isinstance(start, a.Start)] == [4]


def test_a_run_that_nobody_had_stopped_goes_on_at_its_last_good_step() -> None:
    one = begun(State(), OldOrders(), 3, living=False)
    (start,) = one.asked(a.Start)
    assert isinstance(start, a.Start) and (start.attempt, start.step) == (4, 5)


def test_a_paused_run_stays_paused() -> None:
    one = begun(State(), OldOrders(paused=True), 3, living=False)
    assert one.state.orders.paused and not one.asked(a.Start)


def test_a_finished_run_stays_finished_unless_more_steps_are_wanted() -> None:
    settings = replace(SETTINGS, max_steps=20)
    one = begun(State(), OldOrders(finished=True, max_steps=20), 3, living=False, settings=settings)
    assert not one.asked(a.Start)
    exits = [one_exit.code for one_exit in one.asked(a.Exit) if isinstance(one_exit, a.Exit)]
    assert exits == [0] and one.said("journal-lost") == [LOST]
    more = begun(State(), OldOrders(finished=True, max_steps=20), 3, living=False)
    assert more.asked(a.Start)


@pytest.mark.parametrize("orders", [None, OldOrders(), OldOrders(paused=True)])
def test_a_living_job_is_adopted_and_none_is_started_beside_it(orders: OldOrders | None) -> None:
    one = begun(State(), orders, 3, living=True)
    assert not one.asked(a.Start) and not one.asked(a.Stop)
    assert (one.state.mode, one.state.attempt.number, one.state.attempt.pid) == ("starting", 3, 4711)
    assert one.state.orders.paused == (orders is not None and orders.paused)


def test_the_stop_of_a_person_that_was_under_way_is_ended() -> None:
    one = begun(State(), OldOrders(wanted=False), 3, living=True)
    assert [stop.attempt for stop in one.asked(a.Stop) if isinstance(stop, a.Stop)] == [3]
    one.see(f.AttemptStopped(3, 1.0))
    one.survey()
    one.after(1.0)
    assert one.state.mode == "stopped" and not one.asked(a.Start)


def test_a_journal_that_lacks_the_newest_attempt_does_not_start_another_beside_it() -> None:
    """It holds attempt 1 in the midst of its steps; attempt 4 lives."""
    before = World()
    before.running_at(7)
    one = begun(before.state, OldOrders(), 4, living=True)
    assert not one.asked(a.Start) and not one.asked(a.Stop)
    assert (one.state.mode, one.state.attempt.number) == ("starting", 4)
    assert one.state.books.learned == before.state.books.learned, "what was learned is still true"


def test_a_journal_that_lacks_the_word_of_a_person_obeys_it_all_the_same() -> None:
    before = World()
    before.running_at(7)
    assert begun(before.state, OldOrders(wanted=False), 1, living=False).state.mode == "stopped"
    stopped = replace(before.state, mode="stopped", orders=replace(before.state.orders, wanted=False))
    assert begun(stopped, OldOrders(), 1, living=False).asked(a.Start)
    stopping = replace(
        before.state,
        mode="stopping",
        orders=replace(before.state.orders, wanted=False),
        attempt=replace(before.state.attempt, after_stop="stop"),
    )
    assert go_on(stopping, OldOrders(), 1, living=True).attempt.after_stop == "restart"


def test_the_loss_is_one_sentence_in_log_status_and_incidents() -> None:
    one = begun(State(), OldOrders(), 3, living=True)
    assert one.said("journal-lost") == [LOST]
    assert LOST.rstrip(".") in headline(one.state)
    (incident,) = one.state.incidents.closed
    assert (incident.id, incident.cause, incident.sentence) == (1, "journal-lost", LOST)
    assert one.state.incidents.open is None, "nothing is wrong with the run"
    assert decode(encode(one.state)) == one.state


def test_a_first_start_loses_nothing() -> None:
    one = World()
    one.boot()
    assert not one.said("journal-lost") and not one.state.incidents.closed
