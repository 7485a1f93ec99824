"""Training that is worth nothing: the last healthy step is kept (promise 13), named, and gone back to where asked."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.records import Happened, Hold
from supervisor.daemon.order_replies import answer
from supervisor.views import status
from tests.core.world import SETTINGS
from tests.core.world import World as Pod

NAN = math.nan
TIGHT = replace(SETTINGS, keep_last=2)


class World(Pod):
    """A pod whose store keeps the lineage, too."""

    def _carry_out(self, action: a.Action) -> None:
        latest = self.latest
        super()._carry_out(action)
        if isinstance(action, a.Publish) and latest is not None and latest > action.step and not action.back:
            self.latest = latest if latest in self.stored else self.latest
        if isinstance(action, a.KeepLineage):
            self.happened = (*self.happened, *action.happened)
            self.see(f.LineageKept(len(action.happened)))


def trains(world: World, first: int, last: int, *, loss: float = 0.1, reward: float | None = 0.4) -> None:
    """Steps with a checkpoint every five of them, on a disk so full that all that may go goes."""
    for number in range(first, last + 1):
        world.step(number, loss=loss, reward=reward)
        if number % 5 == 0:
            world.checkpoint(number)
            world.see(f.DiskLook("/ckpt", 100 << 30, 10 << 30))


def goes_up(world: World) -> None:
    world.boot()
    world.job_up()


def run_of_20_steps_and_nan_from_21(last: int, settings: f.Settings = SETTINGS) -> World:
    world = World(settings)
    goes_up(world)
    trains(world, 1, 20)
    trains(world, 21, last, loss=NAN)
    return world


def next_pod(before: World, settings: f.Settings | None = None) -> World:
    """Another pod: it knows what the store tells."""
    world = World(settings or before.settings)
    world.t = before.t + 600
    world.stored, world.latest = dict(before.stored), before.latest
    world.held, world.holds, world.happened = before.held, before.holds, before.happened
    return world


def command_in(sentence: str) -> tuple[str, int]:
    """The command that a sentence ends with, taken apart: a person copies it."""
    found = re.search(r"supervisorctl (rollback) (\d+)$", sentence)
    assert found, sentence
    return found[1], int(found[2])


# ---------------------------------------------------------------- the step is kept


def test_a_run_whose_loss_is_nan_keeps_the_step_before_it() -> None:
    world = run_of_20_steps_and_nan_from_21(60)
    assert 20 in world.stored
    assert 20 in world.local
    assert {50, 55, 60} <= set(world.stored), "what the rules keep besides"
    assert not {25, 30, 35, 40} & set(world.stored)
    (sentence,) = (one for one in world.said("worth") if one.startswith("The loss is nan"))
    assert sentence == (
        "The loss is nan for 2 steps, up to step 22: the weights are most likely lost. Step 20, the newest "
        "checkpoint from before it, is kept. Go back to it with: supervisorctl rollback 20"
    )


def test_a_run_whose_reward_stays_flat_at_zero_keeps_the_step_before_it() -> None:
    world = World()
    goes_up(world)
    trains(world, 1, 22)
    trains(world, 23, 60, reward=0.0)
    assert 20 in world.stored
    assert 20 in world.local
    (sentence,) = (one for one in world.said("worth") if one.startswith("The reward is zero"))
    assert command_in(sentence) == ("rollback", 20)


def test_fast_steps_lose_no_good_step_before_the_flat_reward_is_old_enough_to_be_said() -> None:
    world = World()
    goes_up(world)
    trains(world, 1, 20)
    for number in range(21, 101):
        world.step(number, seconds=5.0, reward=0.0)
        if number % 5 == 0:
            world.checkpoint(number)
    assert not world.said("worth"), "half an hour is not over"
    assert 20 in world.stored


def test_the_command_in_the_sentence_goes_back_to_that_step_and_nothing_is_held_any_more() -> None:
    world = run_of_20_steps_and_nan_from_21(45)
    verb, step = command_in(world.said("worth")[0])
    assert answer(world.state, verb, [str(step)], "")[0]
    world.see(f.Command(verb, "a", (str(step),)))
    starts = [one for one in world.asked(a.Start) if isinstance(one, a.Start)]
    assert starts[-1].step == 20
    assert world.held == ()
    assert world.holds == ()
    assert status.status(world.state)["worthless"] == []
    world.job_up()
    trains(world, 21, 45)
    assert sorted(world.stored) == [20, 35, 40, 45], "20 is what this attempt resumed from; 15 goes by the usual rules"


def test_a_fresh_pod_keeps_the_step_before_it_has_seen_anything_itself() -> None:
    one = run_of_20_steps_and_nan_from_21(45)
    two = next_pod(one)
    goes_up(two)
    assert two.state.attempt.resume_step == 45
    for number in (50, 55, 60, 65):  # it tells neither loss nor reward
        two.see(f.StepDone("trainer", number, 200.0))
        two.checkpoint(number)
    assert 20 in two.stored
    (sentence,) = two.said("worth")
    assert command_in(sentence) == ("rollback", 20)
    assert sentence.startswith("The loss is nan for 2 steps, up to step 22")
    assert status.status(two.state)["worthless"] == [sentence]


def test_a_pod_after_that_one_knows_it_too_and_what_lifts_it_there_is_written_down() -> None:
    two = next_pod(run_of_20_steps_and_nan_from_21(45))
    goes_up(two)
    trains(two, 46, 50, loss=NAN)
    three = next_pod(two)
    goes_up(three)
    trains(three, 51, 55)
    assert "The loss is a number again at step 52" in three.said("worth")[-1]
    four = next_pod(three)
    goes_up(four)
    assert 20 in four.stored
    assert status.status(four.state)["worthless"] == [], "it is well again, and not for long enough"
    trains(four, 56, 75)
    assert 20 not in four.stored
    assert four.holds == ()


def test_a_nan_that_lifts_by_itself_holds_the_step_until_enough_healthy_ones_are_in_the_store() -> None:
    world = run_of_20_steps_and_nan_from_21(22)
    world.step(23)
    world.step(24)
    assert "The loss is a number again at step 24" in world.said("worth")[-1]
    trains(world, 25, 34)
    assert 20 in world.stored
    trains(world, 35, 35)
    assert world.holds == ()
    trains(world, 36, 40)
    assert 20 not in world.stored
    assert 20 not in world.local


def test_a_nan_that_comes_back_before_that_still_counts_from_the_first_one() -> None:
    world = run_of_20_steps_and_nan_from_21(22)
    trains(world, 23, 27)
    trains(world, 28, 60, loss=NAN)
    assert 20 in world.stored
    assert command_in(world.said("worth")[-1]) == ("rollback", 20)


def test_steps_that_told_no_loss_before_the_first_nan_are_not_taken_for_healthy() -> None:
    world = World()
    goes_up(world)
    trains(world, 1, 22)
    for number in range(23, 32):
        world.see(f.StepDone("trainer", number, 200.0))
        if number % 5 == 0:
            world.checkpoint(number)
    trains(world, 32, 60, loss=NAN)
    assert 20 in world.stored, "of 25 and 30 nobody knows whether they are well"
    assert command_in(world.said("worth")[0]) == ("rollback", 20)


def test_a_daemon_that_was_killed_before_the_store_knew_of_the_hold_writes_it_down_when_it_is_back() -> None:
    world = World()
    goes_up(world)
    trains(world, 1, 20)
    world.answer = False
    trains(world, 21, 22, loss=NAN)
    assert world.asked(a.KeepHolds)
    assert world.held == ()
    world.answer = True
    world.boot(adopted=world.state.attempt.number)
    world.step(23, loss=NAN)
    assert world.held == (15, 20)


def test_one_nan_between_good_steps_holds_nothing_for_long_and_writes_nothing_wrong() -> None:
    world = World()
    goes_up(world)
    for number in range(1, 60):
        trains(world, number, number, loss=NAN if number % 7 == 0 else 0.1)
    assert sorted(world.stored) == [45, 50, 55]
    assert world.holds == ()


def test_a_daemon_that_begins_anew_goes_on_holding() -> None:
    world = run_of_20_steps_and_nan_from_21(24)
    again = World(state=decode(encode(world.state)))
    again.__dict__.update({name: value for name, value in world.__dict__.items() if name != "state"})
    again.boot(adopted=again.state.attempt.number)
    trains(again, 25, 60, loss=NAN)
    assert 20 in again.stored
    assert 20 in again.local


def test_a_step_published_late_is_the_one_that_is_kept() -> None:
    world = World()
    goes_up(world)
    trains(world, 1, 15)
    world.publish_works = False
    trains(world, 16, 22)
    trains(world, 23, 27, loss=NAN)
    assert sorted(world.stored) == [5, 10, 15]
    world.publish_works = True
    world.after(700)
    trains(world, 28, 60, loss=NAN)
    assert 20 in world.stored, "complete here, so it was published though newer ones were complete"
    assert 20 in world.local
    assert world.held == (20,)
    assert world.state.store.latest == 60


def test_a_good_step_that_newer_worthless_ones_have_passed_in_the_store_is_published_and_latest_stays() -> None:
    world = World()
    goes_up(world)
    world.boot()
    world.local = {20: "complete", 25: "complete"}
    world.stored, world.latest = {10: 1 << 30, 25: 1 << 30}, 25
    world.survey()
    world.actions.clear()
    world.job_up()
    world.state = replace(world.state, worth=replace(world.state.worth, holds={"loss-nan": Hold("loss-nan", 21)}))
    world.step(26, loss=NAN)
    world.survey()
    world.after(5)
    assert [one.step for one in world.asked(a.Publish) if isinstance(one, a.Publish)] == [20]
    assert world.state.store.latest == 25


def test_nan_before_any_checkpoint_holds_nothing_and_says_so() -> None:
    world = World(TIGHT)
    goes_up(world)
    trains(world, 1, 30, loss=NAN)
    assert sorted(world.stored) == [25, 30]
    sentence = world.said("worth")[0]
    assert "No checkpoint from before it exists" in sentence
    assert sentence.endswith("rl-supervisor run RUN.toml --fresh")


def test_a_reward_that_was_never_above_zero_has_no_step_before_it() -> None:
    world = World(TIGHT)
    goes_up(world)
    trains(world, 1, 40, reward=0.0)
    assert sorted(world.stored) == [35, 40]
    trains(world, 41, 50)
    assert sorted(world.stored) == [45, 50]
    assert world.holds == ()


def test_an_unread_reward_is_no_flat_zero() -> None:
    world = World(TIGHT)
    goes_up(world)
    trains(world, 1, 20)
    trains(world, 21, 60, reward=None)
    assert not world.said("worth")
    assert sorted(world.stored) == [55, 60]


def test_a_reward_that_is_no_number_holds_nothing_while_the_loss_is_one() -> None:
    """NaN in one metric only: it is said that the batches bring no reward; the loss is well."""
    world = World()
    goes_up(world)
    trains(world, 1, 20)
    trains(world, 21, 22, reward=NAN)
    assert "loss-nan" not in world.state.worth.holds


def test_a_store_that_is_away_while_the_nan_begins_learns_of_it_later() -> None:
    world = World()
    goes_up(world)
    trains(world, 1, 20)
    world.hold_problem = "the link is down."
    trains(world, 21, 23, loss=NAN)
    assert world.held == ()
    assert any("the link is down" in sentence for sentence in world.said("hold"))
    world.hold_problem = ""
    trains(world, 24, 26, loss=NAN)
    assert world.held == (15, 20)


def test_a_store_that_nobody_can_read_the_pins_of_is_asked_again_for_what_is_held() -> None:
    one = run_of_20_steps_and_nan_from_21(45)
    two = next_pod(one)
    two.answer = False
    two.boot()
    two.see(f.StoreSteps((f.StoredStep(20, True, 1), f.StoredStep(45, True, 1)), 45, pins_reason="no JSON."))
    assert two.state.worth.holds == {}
    two.answer = True
    two.survey()
    assert two.state.worth.holds["loss-nan"].bad == 21
    assert two.held == (15, 20)


def test_a_crash_that_resumes_below_the_first_bad_step_begins_to_count_anew() -> None:
    world = run_of_20_steps_and_nan_from_21(23)
    world.see(f.ComponentExited(world.state.attempt.number, "job", 1))
    world.after(30)
    assert world.state.attempt.resume_step == 20
    assert world.state.worth.holds == {}
    world.job_up()
    trains(world, 21, 60, loss=NAN)
    assert 20 in world.stored


def test_a_rollback_to_a_step_that_is_bad_itself_holds_on() -> None:
    world = run_of_20_steps_and_nan_from_21(45)
    world.see(f.Command("rollback", "a", ("40",)))
    world.job_up()
    trains(world, 41, 60, loss=NAN)
    assert 20 in world.stored


def test_a_step_whose_very_next_one_is_bad_may_be_broken_itself_so_the_one_before_is_kept_too() -> None:
    """The loss of step 21 is of the weights that step 20 left: if its update broke them, step 20 holds NaN as well."""
    world = run_of_20_steps_and_nan_from_21(45)
    assert {15, 20} <= set(world.stored)
    assert 20 in world.local
    assert 15 not in world.local, "room is scarce, and it is safe in the store"
    world.see(f.Command("rollback", "a", ("20",)))
    world.job_up()
    world.actions.clear()
    trains(world, 21, 22, loss=NAN)
    (sentence,) = world.said("worth")
    assert "It was bad at once after step 20" in sentence
    assert command_in(sentence) == ("rollback", 15)


def test_of_a_step_that_was_well_for_a_while_no_other_is_kept() -> None:
    world = World()
    goes_up(world)
    trains(world, 1, 22)
    trains(world, 23, 60, loss=NAN)
    assert sorted(world.stored) == [20, 50, 55, 60]
    assert world.held == (20,)


# ---------------------------------------------------------------- what is done about it


@pytest.mark.parametrize("loss", [NAN, math.inf])
def test_stop_ends_the_spending_and_says_what_to_do(loss: float) -> None:
    world = World(replace(SETTINGS, on_worthless="stop"))
    goes_up(world)
    trains(world, 1, 20)
    world.step(21, loss=loss)
    assert not world.asked(a.Stop)
    world.step(22, loss=loss)
    assert [type(one) for one in world.actions if isinstance(one, a.Stop | a.Exit)] == [a.Stop, a.Exit]
    (last,) = (one for one in world.actions if isinstance(one, a.Exit))
    assert last.code == 93
    assert last.reason.startswith(f"The loss is {loss} for 2 steps, up to step 22: the weights are most likely lost.")
    assert last.reason.endswith("Start it again at step 20 with: rl-supervisor run RUN.toml --step 20")
    assert 20 in world.stored


def test_the_command_in_the_last_sentence_goes_back_too_once_the_daemon_has_ended() -> None:
    world = World(replace(SETTINGS, on_worthless="stop"))
    goes_up(world)
    trains(world, 1, 20)
    trains(world, 21, 22, loss=NAN)
    (last,) = (one for one in world.actions if isinstance(one, a.Exit))
    step = int(last.reason.rpartition("--step ")[2])
    world.settings = replace(world.settings, pin_step=step)
    world.boot()
    assert world.state.attempt.resume_step == step == 20
    assert world.holds == ()
    world.job_up()
    trains(world, 21, 30)
    assert not status.status(world.state)["worthless"]


def test_a_person_who_starts_a_worthless_run_again_gets_one_more_bad_step_and_not_more() -> None:
    world = World(replace(SETTINGS, on_worthless="stop"))
    goes_up(world)
    trains(world, 1, 20)
    trains(world, 21, 22, loss=NAN)
    world.actions.clear()
    world.local[21] = world.local[22] = "complete"
    world.survey()
    world.boot()
    assert world.state.attempt.resume_step == 22
    world.job_up()
    assert not world.asked(a.Stop), "it has done nothing bad yet"
    world.step(23, loss=NAN)
    assert world.asked(a.Stop)


def test_rollback_goes_back_once_with_another_lineage_and_stops_when_that_did_not_help() -> None:
    world = World(replace(SETTINGS, on_worthless="rollback"))
    goes_up(world)
    trains(world, 1, 20)
    trains(world, 21, 22, loss=NAN)
    assert world.state.mode == "starting"
    assert world.state.attempt.resume_step == 20
    (back,) = world.happened
    assert (back.kind, back.step) == ("rollback", 20)
    assert back.why.startswith("The loss is nan")
    assert any("Going back to step 20" in sentence for sentence in world.said("verdict"))
    assert not any("A person asked" in sentence for sentence in world.said("starting"))
    world.job_up()
    trains(world, 21, 23)
    world.actions.clear()
    trains(world, 24, 25, loss=NAN)
    (last,) = (one for one in world.actions if isinstance(one, a.Exit))
    assert last.code == 93
    assert "went back to step 20 for this already" in last.reason


def test_rollback_goes_back_again_from_healthy_steps_beyond_the_bad_point() -> None:
    world = World(replace(SETTINGS, on_worthless="rollback"))
    goes_up(world)
    trains(world, 1, 20)
    trains(world, 21, 22, loss=NAN)
    world.job_up()
    trains(world, 21, 32)
    trains(world, 33, 34, loss=NAN)
    assert world.state.attempt.resume_step == 30
    assert [one.step for one in world.happened] == [20, 30]


def test_a_fresh_pod_does_not_go_back_a_second_time_either() -> None:
    one = World(replace(SETTINGS, on_worthless="rollback"))
    goes_up(one)
    trains(one, 1, 20)
    trains(one, 21, 22, loss=NAN)
    two = next_pod(one)
    goes_up(two)
    assert two.state.attempt.resume_step == 20
    trains(two, 21, 22, loss=NAN)
    assert two.state.mode == "gave-up"


def test_rollback_without_a_step_from_before_behaves_as_stop_and_says_so() -> None:
    world = World(replace(SETTINGS, on_worthless="rollback"))
    goes_up(world)
    world.step(1, loss=NAN)
    world.step(2, loss=NAN)
    (last,) = (one for one in world.actions if isinstance(one, a.Exit))
    assert last.code == 93
    assert "no checkpoint from before it exists" in last.reason
    assert last.reason.endswith("Begin again with: rl-supervisor run RUN.toml --fresh")


@pytest.mark.parametrize("what", ["stop", "rollback"])
def test_a_reward_that_was_never_above_zero_is_only_said(what: str) -> None:
    world = World(replace(SETTINGS, on_worthless=what))  # type: ignore[arg-type]
    goes_up(world)
    trains(world, 1, 60, reward=0.0)
    assert not world.asked(a.Stop)


def test_a_flat_reward_is_acted_upon_where_it_was_above_zero() -> None:
    world = World(replace(SETTINGS, on_worthless="rollback"))
    goes_up(world)
    trains(world, 1, 20)
    trains(world, 21, 31, reward=0.0)
    assert world.state.attempt.resume_step == 20


@pytest.mark.parametrize("what", ["stop", "rollback"])
def test_observing_does_neither_and_tells_once_what_it_would_have_done(what: str) -> None:
    world = World(replace(SETTINGS, on_worthless=what, mode="observe"))  # type: ignore[arg-type]
    world.suppress = True
    world.see(f.DaemonStarted("test", world.settings, "boot"))
    world.survey()
    world.see(f.AttemptAdopted(1, None, 100))
    world.job_up()
    for number in range(1, 31):
        world.step(number, loss=NAN if number > 20 else 0.1)
        if number % 5 == 0:
            world.checkpoint(number)
    assert not world.asked(a.Stop)
    assert not world.happened
    assert len(world.said("would")) == 1
    told = {"stop": "Would have stopped the job", "rollback": "Would have gone back to step 20"}[what]
    assert world.said("would")[0].startswith(told)
    assert "supervisorctl rollback" not in world.said("worth")[0], "that is refused while only observing"


def test_paused_it_is_only_said_until_a_person_resumes() -> None:
    world = World(replace(SETTINGS, on_worthless="stop"))
    goes_up(world)
    trains(world, 1, 20)
    world.see(f.Command("pause"))
    trains(world, 21, 24, loss=NAN)
    assert not world.asked(a.Stop)
    world.see(f.Command("resume"))
    world.after(1)
    assert world.asked(a.Stop)


def test_a_suspicion_does_not_hide_it() -> None:
    world = World(replace(SETTINGS, on_worthless="stop"))
    goes_up(world)
    trains(world, 1, 20)
    world.step(21, loss=NAN)
    world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
    world.step(22, loss=NAN)
    assert world.asked(a.Stop)


def test_a_fenced_pod_leaves_the_lineage_alone_and_stops() -> None:
    world = World(replace(SETTINGS, on_worthless="rollback", fencing=True))
    world.boot()
    world.see(f.Claimed(1))
    world.job_up()
    trains(world, 1, 20)
    world.see(f.Fenced("other", 2))
    trains(world, 21, 22, loss=NAN)
    assert world.state.mode == "gave-up"
    assert not any(one.kind == "rollback" for one in (*world.happened, *world.state.lineage.unwritten))


def test_a_hold_of_a_later_version_is_kept_as_it_is() -> None:
    world = World()
    world.held, world.holds = (5,), (Hold("entropy-collapsed", 7, "The entropy fell to zero."),)
    world.stored, world.latest = {5: 1 << 30, 10: 1 << 30}, 10
    goes_up(world)
    trains(world, 11, 40)
    assert 5 in world.stored
    assert world.holds == (Hold("entropy-collapsed", 7, "The entropy fell to zero."),)


def test_the_operators_rollback_has_no_reason_that_a_later_pod_takes_for_ours() -> None:
    world = run_of_20_steps_and_nan_from_21(45, replace(SETTINGS, on_worthless="say"))
    world.see(f.Command("rollback", "a", ("20",)))
    assert world.happened == (Happened("rollback", 20, world.happened[0].wall),)


@pytest.mark.parametrize("choice", ["stop", "rollback"])
def test_a_young_run_without_reward_whose_first_pod_was_taken_early_is_not_acted_upon(choice: str) -> None:
    settings = replace(SETTINGS, on_worthless=choice)
    one = World(settings)
    goes_up(one)
    for number in range(1, 5):
        one.step(number, reward=0.0)
        if number % 2 == 0:
            one.checkpoint(number)
    two = next_pod(one)
    goes_up(two)
    assert two.state.attempt.resume_step == 4
    trains(two, 5, 30, reward=0.0)
    assert not two.asked(a.Stop), "its reward was never seen above zero: so many a run begins"
    assert two.said("worth"), "it is said"
