"""A pod that is about to go: what is still done in 5, 30 or 120 seconds, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.records import Learned, PhaseTimes

from .world import GIB, SETTINGS, World

FENCED = replace(SETTINGS, fencing=True)


def running(step: int = 7, **more: object) -> World:
    """A job that makes steps, a checkpoint every five, each published; then effects answer no more by themselves."""
    one = World(replace(FENCED, **more))
    one.boot()
    one.see(f.Claimed(1))
    one.job_up()
    for number in range(1, step + 1):
        one.step(number)
        if number % 5 == 0:
            one.checkpoint(number)
    one.actions.clear()
    one.answer = False
    return one


def publishing(took_s: float = 60.0) -> World:
    """The same, and step 10 is being published; the publish before took so long."""
    one = running(9)
    one.state = replace(one.state, publishing=replace(one.state.publishing, took_s=took_s))
    one.step(10)
    one.local[10] = "complete"
    one.see(f.LocalSteps(tuple(f.LocalStep(s, "complete", "", GIB) for s in (5, 10))))
    assert one.asked(a.Publish)[-1].step == 10
    one.actions.clear()
    return one


def moves(one: World, percent: int, rate: float = 0.02 * GIB) -> None:
    """The publish of step 10, of 1 GiB; by default a percent takes half a second."""
    one.see(f.PublishMoves(10, "sending", percent * GIB // 100 + 1, GIB, rate))


def kinds(one: World) -> list[str]:
    return [type(action).__name__ for action in one.actions if not isinstance(action, a.Say)]


def stop_of(one: World) -> a.Stop:
    (stop,) = one.asked(a.Stop)
    assert isinstance(stop, a.Stop)
    return stop


def ended(one: World) -> a.Exit | None:
    found = one.asked(a.Exit)
    return found[0] if found and isinstance(found[0], a.Exit) else None


def until_ended(one: World, within_s: float, tick: float = 0.25) -> float:
    """Seconds until the daemon is asked to end."""
    began = one.t
    while ended(one) is None:
        assert one.t - began < within_s, f"{one.state.mode}: {one.state.why}"
        one.after(tick, tick)
    return one.t - began


# ---------------------------------------------------------------- five seconds


def test_with_five_seconds_the_store_is_told_first_and_the_job_is_stopped_at_once() -> None:
    one = running()
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    assert kinds(one) == ["MarkLeaving", "Stop"]
    stop = stop_of(one)
    assert stop.brief and 1.0 <= stop.budget_s <= 4.0
    (sentence,) = one.said("leaving")
    assert sentence == (
        "This pod goes in 5 s (SIGTERM). The job is stopped at once: no step that it could still train would be kept."
    )


def test_what_is_complete_and_not_yet_in_the_store_is_named() -> None:
    one = publishing()
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    assert one.said("leaving")[0].endswith("would be kept. Step 10 is on its way to the store.")
    one = publishing()
    one.state = replace(
        one.state,
        busy=replace(one.state.busy, publish=None),
        publishing=replace(one.state.publishing, after=one.t + 60.0),
    )
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    assert one.said("leaving")[0].endswith("would be kept. Step 10 is still to be published.")


def test_a_stop_that_is_not_done_when_the_time_is_up_is_left_to_another_daemon() -> None:
    """On a pod that stays after all, nobody would end the rest of the job: 0 is never started again."""
    one = running()
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    assert until_ended(one, 6.0) <= 4.3
    assert ended(one) == a.Exit(75, "This pod's time is up.")
    one.actions.clear()
    one.see(f.DaemonStarted("test", one.settings, "boot", one.state.attempt.number))
    one.see(f.AttemptAdopted(one.state.attempt.number, None, 100))
    one.after(1.0, 0.25)
    assert len(one.asked(a.Stop)) == 1 and ended(one) is None


def test_a_step_that_is_nearly_published_is_finished_and_then_the_daemon_ends() -> None:
    one = publishing()
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    moves(one, 98)
    assert one.said("leaving")[-1] == "Step 10 is sent to 98 %: about 3 s more, and 4 s are left: it can be done."
    one.see(f.AttemptStopped(one.state.attempt.number, 1.0))
    one.see(f.LocalSteps(one.state.local.steps, settled=True))
    one.after(1.0, 0.25)
    assert ended(one) is None, "the publish is waited for"
    one.see(f.Published(10, GIB, 20.0, GIB))
    one.after(0.5, 0.25)
    assert kinds(one)[-2:] == ["Release", "Exit"]
    assert ended(one) == a.Exit(0, "This pod is about to go (SIGTERM).")
    assert one.asked(a.Release)[-1].code == 75, "the daemon ended well, and the run goes on elsewhere"


def test_what_cannot_be_done_in_time_is_tried_until_a_second_before_the_end() -> None:
    one = publishing()
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    moves(one, 90)
    assert "it is tried, and what arrived" in one.said("leaving")[-1]
    one.see(f.AttemptStopped(one.state.attempt.number, 1.0))
    one.see(f.LocalSteps(one.state.local.steps, settled=True))
    assert 3.7 <= until_ended(one, 5.0) <= 4.3
    assert kinds(one)[-2:] == ["Release", "Exit"], "also then the run is given back"


def test_a_publish_that_is_far_from_its_end_is_given_up_so_that_the_next_pod_comes_sooner() -> None:
    one = publishing()
    one.see(f.LeaveSoon(120.0, "the page of leaving.url says so"))
    moves(one, 1, rate=0.001 * GIB)
    assert "it is given up" in one.said("leaving")[-1]
    one.see(f.AttemptStopped(one.state.attempt.number, 10.0))
    one.see(f.LocalSteps(one.state.local.steps, settled=True))
    assert until_ended(one, 60.0) < 2.0


def test_a_job_that_does_not_end_does_not_keep_the_daemon_beyond_its_time() -> None:
    one = running()
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    assert until_ended(one, 6.0) <= 4.3
    assert one.state.mode == "stopping", "the next daemon, if there is one, goes on with the stop"
    assert one.asked(a.Release)


# ---------------------------------------------------------------- half a minute, two minutes


def test_a_complete_step_is_published_where_the_last_publish_would_have_fitted() -> None:
    one = running(9)
    one.state = replace(one.state, publishing=replace(one.state.publishing, took_s=12.0))
    one.see(f.LeaveSoon(30.0, "SIGTERM"))
    assert stop_of(one).budget_s == pytest.approx(13.0), "the rest is for a step that the stop brings to light"
    one.t += 5
    one.see(f.AttemptStopped(one.state.attempt.number, 5.0))
    one.see(f.LocalSteps((f.LocalStep(10, "complete", "", GIB),), settled=True))
    assert one.asked(a.Publish) == [a.Publish(10)]


def test_a_step_that_takes_longer_than_there_is_time_is_not_begun() -> None:
    one = running(9)
    one.state = replace(one.state, publishing=replace(one.state.publishing, took_s=60.0))
    one.see(f.LeaveSoon(30.0, "SIGTERM"))
    one.see(f.AttemptStopped(one.state.attempt.number, 5.0))
    one.see(f.LocalSteps((f.LocalStep(10, "complete", "", GIB),), settled=True))
    one.see(f.StoreSteps((f.StoredStep(5, True, GIB),), 5))
    assert until_ended(one, 30.0) < 2.0, "nobody waits for nothing"
    assert not one.asked(a.Publish)


def saving(one: World, usual_s: float = 20.0, since_s: float = 5.0) -> None:
    """Step 10 is being saved, for ``since_s`` seconds already."""
    times = PhaseTimes((usual_s,) * 5, longest_s=usual_s, count=5, median_s=usual_s, late_s=2 * usual_s)
    learned = Learned({**one.state.books.learned.phases, "trainer/checkpoint": times})
    one.state = replace(one.state, books=replace(one.state.books, learned=learned))
    one.see(f.PhaseSeen("trainer", "checkpoint", 10))
    one.after(since_s)
    one.actions.clear()


def test_a_save_that_can_be_finished_and_published_in_two_minutes_is_waited_for() -> None:
    one = running(9)
    one.state = replace(one.state, publishing=replace(one.state.publishing, took_s=30.0))
    saving(one)
    one.see(f.LeaveSoon(120.0, "/run/preempted appeared"))
    assert kinds(one) == ["MarkLeaving"]
    assert one.said("leaving")[0].endswith(
        "The job goes on until the checkpoint that it writes is complete: there is time to publish that."
    )
    one.after(15.0)
    assert not one.asked(a.Stop)
    one.see(f.PhaseSeen("trainer", "wait-for-batch", 11))
    assert stop_of(one).brief, "the save is done, and nothing else that the job does would be kept"


def test_one_save_is_waited_for_and_not_one_after_another() -> None:
    one = running(9)
    one.see(f.LocalSteps((f.LocalStep(5, "complete", "", GIB), f.LocalStep(10, "writing", "", GIB))))
    one.see(f.LeaveSoon(120.0, "SIGTERM"))
    one.after(10.0)
    assert not one.asked(a.Stop)
    steps = [f.LocalStep(step, "complete", "", GIB) for step in (5, 10)]
    one.see(f.LocalSteps((*steps, f.LocalStep(15, "writing", "", GIB))))
    assert one.asked(a.Stop) and one.asked(a.Publish)[-1].step == 10


def test_a_save_that_does_not_end_is_waited_for_only_while_its_publish_would_fit() -> None:
    one = running(9)
    one.state = replace(one.state, publishing=replace(one.state.publishing, took_s=30.0))
    saving(one)
    began = one.t
    one.see(f.LeaveSoon(120.0, "a command says so"))
    while not one.asked(a.Stop):
        assert one.t - began < 120
        one.after(0.5, 0.5)
    assert 81 <= one.t - began <= 83, "120 less 5 for the end, 30 for the publish, 3 for the stop"


@pytest.mark.parametrize(("within_s", "publish_s"), [(30.0, 30.0), (5.0, 1.0), (120.0, 110.0)])
def test_a_save_that_cannot_be_published_any_more_is_not_waited_for(within_s: float, publish_s: float) -> None:
    one = running(9)
    one.state = replace(one.state, publishing=replace(one.state.publishing, took_s=publish_s))
    saving(one)
    one.see(f.LeaveSoon(within_s, "SIGTERM"))
    assert one.asked(a.Stop)


def test_a_job_that_ends_by_itself_while_its_save_is_waited_for_is_no_incident() -> None:
    one = running(9)
    saving(one)
    one.see(f.LeaveSoon(120.0, "SIGUSR1"))
    one.see(f.ComponentExited(one.state.attempt.number, "launcher", 1))
    one.after(1.0)
    assert one.asked(a.Stop) and not one.asked(a.CollectEvidence)


def test_nothing_is_started_again_on_a_pod_that_is_about_to_go() -> None:
    one = running(9)
    saving(one)
    one.see(f.LeaveSoon(120.0, "SIGUSR1"))
    for verb in ("restart", "start"):
        one.see(f.Command(verb, "ubuntu"))
    assert one.state.mode == "running"
    one.see(f.Command("stop", "ubuntu"))
    one.see(f.AttemptStopped(one.state.attempt.number, 5.0))
    one.see(f.LocalSteps(one.state.local.steps, settled=True))
    until_ended(one, 120.0)
    assert not one.asked(a.Start) and not one.state.orders.wanted


# ---------------------------------------------------------------- how soon, and how often


def test_nobody_knows_how_soon_so_everything_is_done_at_once() -> None:
    one = running(9)
    saving(one)
    one.see(f.LeaveSoon(None, "/run/x appeared"))
    assert kinds(one) == ["MarkLeaving", "Stop"]
    assert one.said("leaving")[0].startswith("This pod is about to go, without a time for it (/run/x appeared).")
    assert stop_of(one).budget_s == SETTINGS.stop_budget_s


def test_a_plain_sigterm_marks_the_claim_and_is_otherwise_as_ever() -> None:
    one = running()
    one.see(f.Command("shutdown", "SIGTERM"))
    assert kinds(one) == ["MarkLeaving", "Stop"]
    assert stop_of(one) == a.Stop(
        one.state.attempt.number, "The daemon is shut down by SIGTERM.", SETTINGS.stop_budget_s
    )


def test_a_plain_sigterm_waits_for_the_last_publish_until_shortly_before_the_units_kill() -> None:
    one = publishing(90.0)
    began = one.t
    one.see(f.Command("shutdown", "SIGTERM"))
    one.see(f.AttemptStopped(one.state.attempt.number, 1.0))
    one.see(f.LocalSteps(one.state.local.steps, settled=True))
    one.after(200.0, 1.0)
    assert ended(one) is None, "the publish moves: the step is nearly in the store"
    until_ended(one, 300.0, 1.0)
    assert 395 <= one.t - began <= 402, "and what sent SIGTERM kills after 420 s"
    assert kinds(one)[-2:] == ["Release", "Exit"]


def test_a_trigger_that_names_no_time_gives_up_no_publish_that_moves() -> None:
    one = publishing(90.0)
    one.see(f.LeaveSoon(None, "/run/x appeared"))
    one.see(f.AttemptStopped(one.state.attempt.number, 1.0))
    one.see(f.LocalSteps(one.state.local.steps, settled=True))
    one.after(900.0, 1.0)
    assert ended(one) is None
    one.see(f.Published(10, GIB, 900.0, GIB))
    until_ended(one, 5.0)


def test_a_second_word_counts_only_where_it_leaves_less_time() -> None:
    one = running()
    one.see(f.LeaveSoon(120.0, "the page of leaving.url says so"))
    budget = stop_of(one).budget_s
    until = one.state.leave.until
    one.see(f.LeaveSoon(200.0, "a command says so"))
    one.see(f.LeaveSoon(None, "SIGUSR1"))
    assert one.state.leave.until == until and len(one.said("leaving")) == 1
    one.t += 10
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    assert budget > 5.0 and one.asked(a.Hurry), "the stop that is under way has less time now"
    assert len(one.asked(a.MarkLeaving)) == 1 and len(one.asked(a.Stop)) == 1
    assert until_ended(one, 6.0) <= 4.3


def test_a_pod_that_does_not_hold_the_run_marks_nothing() -> None:
    one = running()
    one.see(f.Fenced("pod-b", 2))
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    assert kinds(one) == ["Stop"]
    alone = World(SETTINGS)
    alone.boot()
    alone.actions.clear()
    alone.see(f.LeaveSoon(5.0, "SIGTERM"))
    assert not alone.asked(a.MarkLeaving), "the embedded store is this machine's own"


@pytest.mark.parametrize("again_s", [None, 7.0])
def test_the_next_daemon_ends_the_stop_and_neither_claims_nor_starts_until_the_pod_was_to_be_gone_for_a_minute(
    again_s: float | None,
) -> None:
    """The pod has given the run back: claimed anew it would keep the next pod waiting for a holder that is dead."""
    one = running()
    began = one.t
    one.see(f.LeaveSoon(5.0, "/run/preempted appeared"))
    until_ended(one, 6.0)
    assert decode(encode(one.state)) == one.state
    one.t += 5.0
    one.actions.clear()
    one.answer = True
    one.see(f.DaemonStarted("test", one.settings, "boot", one.state.attempt.number))
    assert len(one.asked(a.Stop)) == 1 and one.state.leave.until is None and not one.state.leave.asked
    if again_s is not None:  # and one more, which finds the stop done
        one.after(again_s)
        one.boot()
    while one.t < began + 64.0:
        assert not one.asked(a.Claim) and not one.asked(a.Start)
        one.after(1.0)
    assert (one.state.mode, one.state.why) == (
        "surveying",
        "This pod was about to go. Should it stay, the run goes on here in a minute or so.",
    )
    one.after(2.0)
    assert len(one.asked(a.Claim)) == 1 and not one.asked(a.Start)
    one.see(f.Claimed(2))
    one.after(1.0)
    assert one.asked(a.Start), "the pod stayed after all"


def test_without_a_shared_store_it_is_not_started_either() -> None:
    one = running(fencing=False)
    one.see(f.LeaveSoon(5.0, "SIGPWR"))
    until_ended(one, 6.0)
    one.actions.clear()
    one.answer = True
    one.boot()
    one.after(55.0)
    assert not one.asked(a.Start)
    one.after(10.0)
    assert one.asked(a.Start)


def test_a_daemon_that_begins_long_after_its_pod_was_to_be_gone_begins_as_if_nothing_had_been() -> None:
    one = running()
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    until_ended(one, 6.0)
    one.t += 100.0
    one.actions.clear()
    one.boot()
    assert one.state.leave.stays_at is None and one.asked(a.Claim)


def test_a_run_that_is_finished_and_whose_last_step_is_on_its_way_stays_finished() -> None:
    one = publishing()
    one.see(f.Command("shutdown", "SIGTERM"))
    assert one.state.attempt.after_stop == "shutdown"
    other = publishing()
    other.state = replace(other.state, mode="publishing")
    other.see(f.LeaveSoon(30.0, "SIGTERM"))
    assert (other.state.mode, other.state.attempt.after_stop) == ("leaving", "finish")


def test_nothing_is_deleted_on_a_pod_that_is_about_to_go() -> None:
    one = publishing()
    one.see(f.LeaveSoon(30.0, "SIGTERM"))
    one.see(f.DiskLook(100 * GIB, 3 * GIB))
    one.after(3.0)
    assert not one.asked(a.PruneLocal) and not one.asked(a.PruneStale) and not one.asked(a.PruneStore)
