"""The daemon is told to end: what is complete here reaches the store first, or the last sentence says what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.cli import render
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.state import State
from supervisor.views.status import explain, headline, status

from .world import GIB, SETTINGS, World

FENCED = replace(SETTINGS, fencing=True, run_file="/etc/rl-supervisor/bs4.toml")


def whole(*steps: int) -> tuple[f.LocalStep, ...]:
    return tuple(f.LocalStep(step, "complete", "", GIB) for step in steps)


def listed(*steps: int) -> f.StoreSteps:
    return f.StoreSteps(tuple(f.StoredStep(step, True, GIB) for step in steps), max(steps, default=None))


def killed(local: tuple[int, ...] = (540, 605), stored: tuple[int, ...] = (540,), **settings: object) -> World:
    """The daemon was killed, its job lives, and the next daemon has just begun. No effect answers by itself."""
    one = World(replace(FENCED, **settings))
    one.boot()
    one.see(f.Claimed(1))
    one.job_up()
    one.step(1)
    one.answer = False
    one.see(f.LocalSteps(whole(*local)))
    one.see(listed(*stored))
    one.actions.clear()
    one.t += 10
    one.see(f.DaemonStarted("test", one.settings, "boot", one.state.attempt.number))
    one.see(f.AttemptAdopted(one.state.attempt.number, None, 100))
    one.actions.clear()
    return one


def told_to_end(one: World) -> World:
    one.see(f.Command("shutdown", "SIGTERM"))
    if one.asked(a.Stop):
        one.see(f.AttemptStopped(one.state.attempt.number, 1.0))
    return one


def ended(one: World) -> a.Exit | None:
    found = one.asked(a.Exit)
    return found[0] if found and isinstance(found[0], a.Exit) else None


def until_ended(one: World, within_s: float) -> a.Exit:
    began = one.t
    while (found := ended(one)) is None:
        assert one.t - began < within_s, f"{one.state.mode}: {one.state.why}"
        one.after(0.25, 0.25)
    return found


def published(one: World) -> list[int]:
    return [action.step for action in one.asked(a.Publish) if isinstance(action, a.Publish)]


# ---------------------------------------------------------------- what is not answered yet is waited for


def test_a_daemon_that_was_killed_and_then_stopped_at_once_publishes_what_is_complete() -> None:
    """605 complete here, 540 published, Result=success, nothing said: the claim was not answered yet."""
    one = told_to_end(killed())
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.after(30.0)
    assert ended(one) is None, "whether another pod holds the run is being asked"
    one.see(f.Claimed(2))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.after(1.0)
    assert published(one) == [605] and ended(one) is None
    assert a.MarkLeaving(2) in one.actions, "should it be killed, the next pod need not wait ten minutes"
    one.see(f.Published(605, GIB, 20.0, GIB))
    assert until_ended(one, 1.0).code == 0
    assert one.asked(a.Release) and not one.said("unpublished")


def test_the_listing_of_the_store_is_waited_for_too() -> None:
    """Another pod wrote in between: what the store holds is not known before it is listed anew."""
    one = told_to_end(killed())
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(f.Claimed(3))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.after(30.0)
    assert ended(one) is None and not published(one)
    one.see(listed(540))
    one.after(1.0)
    assert published(one) == [605]


def test_a_store_that_has_all_of_it_already_is_not_waited_for() -> None:
    one = told_to_end(killed(local=(540,)))
    one.see(f.LocalSteps(whole(540), settled=True))
    one.after(1.0)
    assert ended(one) is None, "a claim that arrives after the end would keep the next pod waiting for ten minutes"
    one.see(f.Claimed(3))
    one.see(f.LocalSteps(whole(540), settled=True))
    assert until_ended(one, 1.0).code == 0, "its listing is not waited for"
    assert one.asked(a.Release) and not one.said("unpublished")


@pytest.mark.parametrize("mode", ["surveying", "restoring", "backing-off", "stopped", "disk-full"])
def test_a_stop_while_nothing_runs_lists_the_disk_first(mode: str) -> None:
    """A job that died while no daemon was there has perhaps completed a step that nobody listed."""
    one = killed(local=(540,))
    one.state = replace(one.state, mode=mode, attempt=replace(one.state.attempt, pid=None))
    one.see(f.Command("shutdown", "SIGTERM"))
    assert one.asked(a.Survey) and ended(one) is None
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(f.Claimed(2))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.after(1.0)
    assert published(one) == [605]


def test_no_older_step_is_begun_while_the_disk_is_listed() -> None:
    one = killed(local=(540, 600))
    one.see(f.Claimed(2))
    one.see(f.PublishFailed(600, "the link is down.", permanent=True))
    one.actions.clear()
    told_to_end(one)
    one.after(1.0)
    assert not published(one)
    one.see(f.LocalSteps(whole(540, 600, 605), settled=True))
    one.after(1.0)
    assert published(one) == [605], "at once, although the last try failed and the next one was minutes away"


def test_an_observer_asks_for_the_run_and_waits_for_the_answer() -> None:
    one = killed(local=(540,), mode="observe")
    one.suppress = True
    one.see(f.Command("shutdown", "SIGTERM"))
    one.see(f.Suppressed("Stop", one.state.attempt.number, "the run is only observed."))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(listed(540))
    one.after(1.0)
    assert one.asked(a.Claim) and ended(one) is None
    one.see(f.Claimed(2))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.after(1.0)
    assert published(one) == [605]


def test_an_observer_publishes_what_was_complete_at_its_end_and_waits_for_no_step_that_the_job_makes_later() -> None:
    one = killed(local=(540,), mode="observe")
    one.suppress = True
    one.see(f.Claimed(2))
    one.see(listed(540))
    one.see(f.Command("shutdown", "SIGTERM"))
    one.see(f.Suppressed("Stop", one.state.attempt.number, "the run is only observed."))
    assert one.said("stopped-job") == ["The job is only observed. It was not touched."]
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.after(1.0)
    assert published(one) == [605]
    one.see(f.LocalSteps(whole(540, 605, 610)))
    one.see(f.Published(605, GIB, 3.0))
    one.see(f.LocalSteps(whole(540, 605, 610, 615)))
    one.after(1.0)
    assert published(one) == [605]
    assert ended(one) is not None


def test_what_never_answers_is_waited_for_until_shortly_before_the_units_kill() -> None:
    one = killed()
    began = one.t
    told_to_end(one)
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    until_ended(one, 420.0)
    assert 395 <= one.t - began <= 402
    (sentence,) = one.said("unpublished")
    assert sentence.startswith("Step 605 is complete and only on this disk: the store has not answered in time.")


def test_a_second_sigterm_changes_nothing_and_a_finished_run_stays_finished() -> None:
    one = killed()
    one.state = replace(one.state, mode="publishing")
    one.see(f.Command("shutdown", "SIGTERM"))
    assert (one.state.mode, one.state.attempt.after_stop) == ("leaving", "finish")
    surveys = len(one.asked(a.Survey))
    one.t += 5
    one.see(f.Command("shutdown", "SIGTERM"))
    assert (one.state.mode, one.state.attempt.after_stop) == ("leaving", "finish"), "the next daemon has to know"
    assert len(one.asked(a.Survey)) == surveys


def test_the_daemon_after_one_that_left_in_the_last_publish_of_a_finished_run_ends_too() -> None:
    one = killed()
    one.state = replace(one.state, mode="publishing")
    one.see(f.Command("shutdown", "SIGTERM"))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    until_ended(one, 420.0)
    assert one.state.ending.said and one.state.mode == "leaving"
    one.actions.clear()
    one.boot()
    one.see(f.Claimed(2))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(f.Published(605, GIB, 3.0))
    assert until_ended(one, 60.0).code == 0
    assert one.state.mode == "finished"


# ---------------------------------------------------------------- what is not in the store is named


AWAY = "the store https://b2 does not answer: connection refused."


def away(one: World) -> World:
    one.see(f.ClaimFailed(AWAY))
    one.see(f.StoreSteps(reason=AWAY))
    return one


def test_with_the_store_away_the_last_sentence_names_the_step_and_how_to_publish_it() -> None:
    one = told_to_end(killed())
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(f.ClaimFailed(AWAY))
    assert until_ended(one, 420.0).code == 0
    (sentence,) = one.said("unpublished")
    assert sentence == (
        "Step 605 is complete and only on this disk: the store https://b2 does not answer: connection refused. "
        "The store's newest is step 540. Do not end this pod. Publish the step with: "
        "rl-supervisor publish /etc/rl-supervisor/bs4.toml --step 605"
    )
    last = [one_said for one_said in one.actions if isinstance(one_said, a.Say)][-1]
    assert (last.sentence, last.level) == (sentence, "error"), "nothing is said after it"
    assert sentence.rstrip(".") in headline(one.state), "what systemd shows"
    exit_ = ended(one)
    assert exit_ is not None and sentence in exit_.reason


def test_while_a_stop_waits_for_the_store_status_says_what_is_only_here_and_how_long_it_waits() -> None:
    """Minutes of "The daemon is shut down by SIGTERM" and "exit code 0" look like an end: the pod would be deleted."""
    one = told_to_end(killed())
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(f.Claimed(2))
    one.see(listed(540))
    one.after(1)
    assert "Step 605 is complete and only on this disk: it is on its way to the store." in headline(one.state)
    one.see(f.PublishFailed(605, AWAY))
    one.after(20)
    assert ended(one) is None
    said = headline(one.state)
    assert f"Step 605 is complete and only on this disk: {AWAY.rstrip('.')}. The store's newest is step 540." in said
    assert "Do not end this pod: the daemon goes on trying for " in said
    waits = explain(one.state)["deadline"]
    assert waits is not None and waits["sentence"] == "The store to take step 605." and 60 < waits["seconds_left"] < 400
    assert "exit code" not in "\n".join(render.status_block(status(one.state)))


def test_a_failed_publish_is_told_in_the_same_way() -> None:
    one = told_to_end(killed())
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(f.Claimed(2))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.after(1.0)
    one.see(f.PublishFailed(605, "the key may not write.", permanent=True))
    assert until_ended(one, 5.0).code == 0
    assert one.said("unpublished")[0].startswith("Step 605 is complete and only on this disk: the key may not write.")


def test_what_could_not_be_answered_before_the_stop_is_asked_once_more() -> None:
    """An outage that is over: its last answer is minutes old, and the next try was minutes away."""
    one = killed()
    away(one)
    one.actions.clear()
    told_to_end(one)
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.after(5.0)
    assert one.asked(a.Survey) and ended(one) is None
    one.see(f.Claimed(2))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(listed(540))
    one.after(1.0)
    assert published(one) == [605]


def test_a_fenced_pod_says_what_stays_on_its_disk_and_waits_for_nothing() -> None:
    one = killed()
    one.see(f.Claimed(2))
    one.see(f.Fenced("pod-b", 3))
    one.see(f.PublishFailed(605, "pod-b holds the run now"))
    told_to_end(one)
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    assert until_ended(one, 1.0).code == 0
    assert one.said("unpublished") == [
        "Step 605 is complete and only on this disk, since pod pod-b holds the run (generation 3)."
    ]


def own_claim(age_s: float, generation: int = 1) -> f.ClaimHeld:
    """The claim of this very state folder, from before this machine was started anew, is watched for three beats."""
    return f.ClaimHeld("vm", generation, age_s, 180.0, copied=True)


def test_a_machine_that_was_started_anew_and_is_stopped_at_once_publishes_once_its_own_old_claim_is_over() -> None:
    one = told_to_end(killed())
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    for age_s in (0.0, 90.0, 165.0):
        one.see(own_claim(age_s))
        one.after(15.0)
        assert ended(one) is None, "the run is this pod's, as far as can be seen"
    one.see(f.Claimed(2, watched=True))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(listed(540))
    one.after(1.0)
    assert published(one) == [605]


def test_a_stop_waits_for_its_own_old_claim_only_with_a_step_to_publish() -> None:
    one = told_to_end(killed(local=(540,)))
    one.see(own_claim(0.0))
    one.see(f.LocalSteps(whole(540), settled=True))
    assert until_ended(one, 1.0).code == 0
    assert not one.said("unpublished")


def test_where_the_old_claim_is_not_over_in_time_the_last_sentence_has_the_command() -> None:
    one = killed()
    one.see(f.LeaveSoon(30.0, "SIGTERM"))
    one.see(f.AttemptStopped(one.state.attempt.number, 1.0))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(own_claim(15.0))
    until_ended(one, 31.0)
    (sentence,) = one.said("unpublished")
    assert sentence == (
        "Step 605 is complete and only on this disk: nothing proves yet that the claim of pod vm (generation 1) was "
        "made on this machine. The store's newest is step 540. Do not end this pod. Publish the step with: "
        "rl-supervisor publish /etc/rl-supervisor/bs4.toml --step 605"
    )


def test_a_copied_disk_whose_original_beats_is_told_to_end_and_waits_for_nothing() -> None:
    one = told_to_end(killed())
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(own_claim(0.0))
    one.see(own_claim(45.0))
    one.see(own_claim(0.0))
    assert until_ended(one, 1.0).code == 0
    assert one.said("unpublished") == [
        "Step 605 is complete and only on this disk, since pod vm holds the run (generation 1)."
    ]


def test_a_pod_whose_time_is_up_says_what_goes_with_it() -> None:
    one = killed()
    one.see(f.LeaveSoon(5.0, "SIGTERM"))
    one.see(f.AttemptStopped(one.state.attempt.number, 1.0))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    until_ended(one, 6.0)
    assert one.said("unpublished")[0].startswith(
        "Step 605 is complete and only on this disk: the store has not answered in time."
    )


def test_giving_up_and_leaving_an_unfit_pod_say_so_too() -> None:
    """94 means: take another pod, the run goes on from the store. The step that is not there would be lost."""
    one = killed()
    one.see(f.Claimed(2))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(listed(540))
    one.see(f.PublishFailed(605, "the link is down.", permanent=True))
    one.state = replace(one.state, mode="unfit", calm_until=0.0, ending=replace(one.state.ending, code=94))
    one.after(1.0)
    found = ended(one)
    assert found is not None and found.code == 94
    assert one.said("unpublished")[0].startswith("Step 605 is complete and only on this disk: the link is down.")


def test_a_disk_that_cannot_be_listed_is_not_taken_for_an_empty_one() -> None:
    one = told_to_end(killed())
    one.see(f.LocalSteps(reason="/ckpt cannot be read: Input/output error", settled=True))
    away(one)
    until_ended(one, 420.0)
    (sentence,) = one.said("unpublished")
    assert sentence.startswith("Step 605 is complete and only on this disk")
    other = told_to_end(killed(local=(540,)))
    other.see(f.LocalSteps(reason="/ckpt cannot be read: Input/output error", settled=True))
    away(other)
    until_ended(other, 5.0)
    (unknown,) = other.said("unpublished")
    assert unknown == (
        "Which steps are complete on this disk is not known: /ckpt cannot be read: Input/output error. The newest one "
        "may not be in the store, so look before you end this pod: "
        "rl-supervisor publish /etc/rl-supervisor/bs4.toml --dry-run"
    )


def test_the_next_daemon_still_starts_a_run_that_was_stopped_so() -> None:
    one = told_to_end(killed())
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    away(one)
    until_ended(one, 420.0)
    state: State = one.state
    one.actions.clear()
    one.answer = True
    one.local, one.stored, one.latest = {540: "complete", 605: "complete"}, {540: GIB}, 540
    one.see(f.DaemonStarted("test", one.settings, "boot", None))
    one.see(f.Claimed((state.fence.once or 0) + 1))
    one.after(2.0)
    assert published(one) == [605] and [start.step for start in one.asked(a.Start) if isinstance(start, a.Start)] == [
        605
    ]


def test_a_scan_after_the_survey_takes_no_step_back_that_was_whole() -> None:
    """A periodic scan waits for quiet time, and calls the newest step "writing" although no job is left to write it."""
    world = World()
    world.running_at(7)
    step = f.LocalStep(7, "complete", "", GIB, world.state.wall)
    world.state = replace(world.state, mode="leaving", ending=replace(world.state.ending, code=0))
    world.see(f.LocalSteps((step,), settled=True))
    world.see(f.LocalSteps((replace(step, state="writing", reason="it changes"),)))
    assert world.state.good_local() == [7]
    world.see(f.LocalSteps((replace(step, state="writing", size_bytes=2 * GIB),)))
    assert world.state.good_local() == [], "files that changed are another matter"


# ---------------------------------------------------------------- a store that is away for a while


def back(one: World) -> None:
    one.see(f.StoreBack())
    if one.state.fence.generation is None:
        one.see(f.Claimed(2))
        one.see(f.LocalSteps(whole(540, 605), settled=True))
    if one.state.store.reason:
        one.see(listed(540))


@pytest.mark.parametrize("order", ["", "supervisorctl"])
@pytest.mark.parametrize("what", ["claim", "listing", "publish", "claim and listing"])
def test_a_store_that_is_away_for_twenty_seconds_at_a_stop_is_waited_for(what: str, order: str) -> None:
    one = told_to_end(killed()) if not order else killed()
    if order:
        one.see(f.LeaveSoon(120.0, "SIGTERM"))
        one.see(f.AttemptStopped(one.state.attempt.number, 1.0))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    if "claim" in what:
        one.see(f.ClaimFailed(AWAY))
    if what == "publish":
        one.see(f.Claimed(2))
        one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(f.StoreSteps(reason=AWAY) if "listing" in what else listed(540))
    if what == "listing":
        one.see(f.Claimed(2))
        one.see(f.LocalSteps(whole(540, 605), settled=True))
    for _ in range(20):
        one.after(1.0)
        if what == "publish" and published(one) and one.state.busy.publish is not None:
            one.see(f.PublishFailed(605, AWAY))
        assert ended(one) is None, "minutes are left"
    back(one)
    one.after(1.0)
    assert published(one)[-1] == 605 and one.state.busy.publish == 605
    one.see(f.Published(605, GIB, 5.0, GIB))
    assert until_ended(one, 5.0).code == 0
    assert not one.said("unpublished")


@pytest.mark.parametrize(
    "fact",
    [
        f.ClaimFailed("the key is not valid.", permanent=True),
        f.StoreSteps(reason="the bucket is gone.", permanent=True),
        f.PublishFailed(605, "the key may not write.", permanent=True),
    ],
)
def test_what_waiting_cannot_cure_ends_a_stop_at_once(fact: f.Fact) -> None:
    one = told_to_end(killed())
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(fact)
    if not isinstance(fact, f.ClaimFailed):
        one.see(f.Claimed(2))
        one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.after(1.0)
    one.see(fact)
    assert until_ended(one, 5.0).code == 0
    assert one.said("unpublished")


def test_a_store_that_stays_away_ends_a_preempted_pod_in_its_time() -> None:
    one = killed()
    began = one.t
    one.see(f.LeaveSoon(60.0, "SIGTERM"))
    one.see(f.AttemptStopped(one.state.attempt.number, 1.0))
    one.see(f.LocalSteps(whole(540, 605), settled=True))
    one.see(f.ClaimFailed(AWAY))
    until_ended(one, 60.0)
    assert 50 <= one.t - began <= 56, "a second or five are for giving the run back"
    assert one.said("unpublished")[0].startswith("Step 605 is complete and only on this disk: the store https://b2")


def test_a_store_that_is_away_is_not_waited_for_with_nothing_to_publish() -> None:
    one = told_to_end(killed((540,), (540,)))
    one.see(f.LocalSteps(whole(540), settled=True))
    one.see(f.ClaimFailed(AWAY))
    until_ended(one, 5.0)


def given_up() -> World:
    one = killed()
    one.see(f.Claimed(2))
    one.see(listed(540))
    one.see(f.LocalSteps(whole(540, 605)))
    one.state = replace(one.state, mode="gave-up", since=one.t, ending=replace(one.state.ending, code=93))
    return one


def test_a_pod_that_gives_up_tries_for_an_hour_to_publish_and_ends_when_the_store_is_back() -> None:
    one = given_up()
    one.see(f.PublishFailed(605, AWAY))
    one.actions.clear()
    one.after(600, 5)
    assert published(one) == [605]
    one.see(f.PublishFailed(605, AWAY))
    one.actions.clear()
    one.after(900, 5)
    assert published(one) == [605]
    assert ended(one) is None
    one.see(f.Published(605, 10, 1.0))
    assert until_ended(one, 5.0).code == 93
    one = given_up()
    one.see(f.PublishFailed(605, AWAY))
    until_ended(one, 3605.0)


def test_a_pod_that_gives_up_waits_for_no_store_that_refuses() -> None:
    one = given_up()
    one.see(f.PublishFailed(605, "the key was deleted", permanent=True))
    until_ended(one, 5.0)


def test_who_is_told_to_end_in_that_hour_still_says_that_a_person_is_needed() -> None:
    """The next daemon, or another pod, would start the job again that was given up."""
    for word in (f.Command("shutdown", "SIGTERM"), f.LeaveSoon(120.0, "the provider")):
        one = given_up()
        one.see(f.PublishFailed(605, AWAY))
        one.after(60, 5)
        one.actions.clear()
        one.see(word)
        assert until_ended(one, 420.0).code == 93
        assert [action.code for action in one.asked(a.Release)] == [93]


def finished(**settings: Any) -> World:
    """Its job has ended well, and no publish of its last step works."""
    one = World(replace(FENCED, max_steps=15, **settings))
    one.boot()
    one.see(f.Claimed(1))
    one.survey()
    one.job_up()
    for number in range(1, 16):
        one.step(number)
    one.publish_works = False
    one.checkpoint(15)
    one.see(f.FinishSeen("trainer", "done"))
    one.see(f.FinishSeen("launcher", "done"))
    one.see(f.ComponentExited(one.state.attempt.number, "launcher", 0))
    return one


def test_a_last_step_that_is_published_late_ends_a_finished_run_as_it_should() -> None:
    one = finished(hooks=("finish",))
    one.after(1500, 5)
    assert one.state.mode == "publishing"
    one.publish_works = True
    one.after(900, 5)
    assert 15 in one.stored
    assert one.asked(a.RunHook)


def test_a_last_step_that_cannot_be_published_for_an_hour_needs_a_person_and_no_second_hour() -> None:
    one = finished()
    one.after(3500, 5)
    assert ended(one) is None
    end = until_ended(one, 300.0)
    assert end.code == 93
    assert "step 15 is not in the store: the link is down. It is kept" in end.reason


def test_why_it_is_not_there_is_said_also_where_no_publish_was_begun() -> None:
    one = finished()
    one.state = replace(one.state, publishing=replace(one.state.publishing, reason=""))
    one.answer = False
    one.see(f.StoreSteps(reason=AWAY))
    one.after(3700, 5)
    assert f"step 15 is not in the store: {AWAY} It is kept" in until_ended(one, 300.0).reason
