"""Two pods, one run: nothing is started or published before it is claimed, and a pod that loses it stops writing."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.records import Happened
from supervisor.core.state import State
from supervisor.daemon import order_replies

from .world import GIB, SETTINGS, World

FENCED = replace(SETTINGS, fencing=True)
WRITES = (a.Publish, a.PruneStore, a.KeepRecords, a.KeepLineage)


def world(**more: object) -> World:
    return World(replace(FENCED, **more))


def holding(**more: object) -> World:
    one = world(**more)
    one.boot()
    one.see(f.Claimed(1))
    return one


def running(step: int = 7) -> World:
    one = holding()
    one.job_up()
    for number in range(1, step + 1):
        one.step(number)
        if number % 5 == 0:
            one.checkpoint(number)
    one.actions.clear()
    return one


def held(age_s: float = 40.0, generation: int = 7) -> f.ClaimHeld:
    return f.ClaimHeld("pod-b", generation, age_s, 600.0)


def writes(one: World) -> list[a.Action]:
    return [action for action in one.actions if isinstance(action, WRITES)]


def test_the_run_is_claimed_before_anything_is_started_or_published() -> None:
    one = world()
    one.local = {5: "complete"}
    one.boot()
    one.after(10)
    kinds = [type(action) for action in one.actions]
    assert kinds.index(a.Claim) < kinds.index(a.Survey)
    assert not one.asked(a.Start) and not writes(one)
    assert one.state.why == "Asking the store whether another pod holds this run."
    one.see(f.Claimed(1))
    assert one.said("claimed") == ["This pod holds the run now (generation 1)."]
    one.after(2)
    assert one.asked(a.Start)[0].step == 5
    assert one.asked(a.Publish)[0].step == 5


def test_a_store_of_this_machine_alone_is_not_waited_for() -> None:
    one = World()
    one.boot()
    assert not one.asked(a.Claim)
    assert one.asked(a.Start)


def test_while_another_pod_holds_it_nothing_is_started_written_or_deleted() -> None:
    one = world(keep_last=2)
    one.local = {5: "complete", 40: "complete"}
    one.stored, one.latest = {5: GIB, 10: GIB, 15: GIB, 20: GIB}, 20
    one.boot()
    for minute in range(9):
        one.see(held(40.0 + minute))
        one.after(60, tick=5)
    assert not one.asked(a.Start) and not one.asked(a.Restore) and not writes(one)
    assert one.state.mode == "surveying"
    assert one.state.why == (
        "Pod pod-b holds this run (generation 7, its heartbeat moved 48 s ago): nothing is started here. It goes on "
        "here when that pod ends, or when its heartbeat stands still for 10 min; at once with: "
        "supervisorctl start --take-over"
    )
    assert len(one.said("claim-held")) == 1, "told once, and shown for as long as it lasts"


def test_what_the_other_pod_published_is_listed_anew_before_anything_is_resumed() -> None:
    one = world()
    one.local, one.stored, one.latest = {10: "complete"}, {10: GIB}, 10
    one.boot()
    one.see(held())
    one.answer = False
    one.see(f.Claimed(8))
    one.after(1)
    assert not one.asked(a.Start), "the listing is from before"
    one.stored, one.latest, one.answer = {10: GIB, 30: GIB}, 30, True
    one.survey()
    one.after(2)
    assert one.asked(a.Restore)[0].step == 30


def test_a_copied_disk_says_so_and_lists_anew_what_the_original_published() -> None:
    """Its journal held the run last, and yet another daemon wrote since."""
    one = running(5)
    one.answer = False
    one.state = replace(one.state, mode="surveying")
    one.see(f.DaemonStarted("test", one.settings, "boot"))
    one.see(f.ClaimHeld("vm", 1, 40.0, 180.0, copied=True))
    assert one.said("claim-held")[-1] == (
        "Pod vm claimed this run with this very state folder (generation 1), and nothing proves that it was this "
        "machine: its disk may be a copy. Its heartbeat moved 40 s ago. Nothing is started here until it has stood "
        "still for 3 min; at once with: supervisorctl start --take-over"
    )
    one.see(f.Claimed(2, watched=True))
    one.see(f.LocalSteps(one.state.local.steps, settled=True))
    one.after(1)
    assert not one.asked(a.Start), "the journal's listing is from before the copy"
    one.see(f.StoreSteps((f.StoredStep(5, True, GIB), f.StoredStep(30, True, GIB)), 30))
    one.after(1)
    assert one.asked(a.Restore)[0].step == 30


def test_a_daemon_that_begins_again_tells_the_store_what_it_held() -> None:
    one = running()
    one.see(f.Claimed(7))
    one.boot()
    assert one.asked(a.Claim)[-1] == a.Claim(held=7)


def test_take_over_is_handed_on() -> None:
    one = world(take_over=True)
    one.boot()
    assert one.asked(a.Claim) == [a.Claim(take_over=True)]


def test_a_fenced_pod_keeps_its_job_and_its_checkpoints_and_writes_nothing_more() -> None:
    one = running()
    one.see(f.Fenced("pod-b", 2))
    (sentence,) = one.said("fenced")
    assert sentence == (
        "The job goes on, and its checkpoints stay on this disk. Pod pod-b has taken this run over (generation 2): "
        "nothing is published, deleted or started here any more. Take it back with: supervisorctl start --take-over"
    )
    one.stored.update({20: GIB, 25: GIB})  # the other pod's
    one.latest = 25
    for number in range(8, 21):
        one.step(number)
        if number % 5 == 0:
            one.checkpoint(number)
    one.see(f.DiskLook("/x", 100 * GIB, 5 * GIB))
    one.after(60, tick=5)
    assert one.state.live
    assert not one.asked(a.Stop) and not writes(one)
    assert not one.asked(a.PruneLocal), "what another pod published makes no step here superfluous"


def test_the_job_of_a_fenced_pod_ends_and_no_other_one_is_started() -> None:
    one = running()
    one.see(f.Fenced("pod-b", 2))
    one.see(f.ComponentExited(1, "launcher", 1))
    one.after(900, tick=5)
    assert not one.asked(a.Start)
    assert one.state.mode == "surveying"
    assert "Pod pod-b has taken this run over (generation 2)" in one.state.why


def test_a_person_starts_a_fenced_pod_again_and_it_asks_for_the_run() -> None:
    one = running()
    one.see(f.Fenced("pod-b", 2))
    one.see(f.Command("restart", "ana"))
    assert [claim.take_over for claim in one.asked(a.Claim)] == [False]
    one.see(held(3.0, 2))
    one.after(60)
    assert not one.asked(a.Start)
    one.see(f.Claimed(3))
    one.after(5)
    assert one.asked(a.Start)


def test_a_fenced_pod_that_finishes_keeps_its_last_step_and_says_so() -> None:
    one = running()
    one.settings = replace(one.settings, max_steps=10)
    one.state = replace(one.state, settings=one.settings)
    one.see(f.Fenced("pod-b", 2))
    for number in (8, 9, 10):
        one.step(number)
    one.checkpoint(10)
    one.see(f.FinishSeen("trainer", "done"))
    one.see(f.FinishSeen("orchestrator", "done"))
    one.see(f.ComponentExited(1, "launcher", 0))
    one.after(30)
    assert one.asked(a.Exit)[0].code == 93
    assert "step 10 is kept on this disk: Pod pod-b has taken this run over" in one.asked(a.Exit)[0].reason
    assert not one.asked(a.Release), "it is not ours to give back"


def test_a_pod_that_was_fenced_before_it_told_which_steps_are_left_tells_nothing_any_more() -> None:
    """The store was away when it quarantined a step. Its holder of now may resume from that very step."""
    one = running()
    one.see(f.Fenced("pod-b", 2))
    one.state = replace(one.state, lineage=replace(one.state.lineage, unwritten=(Happened("quarantine", 5, 1.7e9),)))
    one.survey()
    one.after(120)
    assert not writes(one)


def test_a_store_that_cannot_be_reached_is_waited_for_on_a_pod_that_never_held_the_run() -> None:
    one = world()
    one.local, one.store_reason = {5: "complete"}, "time-out."
    one.boot()
    one.see(f.ClaimFailed("time-out."))
    one.after(600, tick=5)
    assert not one.asked(a.Start)


def test_a_pod_that_never_held_the_run_waits_where_only_the_claim_fails() -> None:
    """The store can be listed, and this disk has all that it shows: another pod may be training on from there."""
    one = world()
    one.local, one.stored, one.latest = {5: "complete"}, {5: GIB}, 5
    one.boot()
    one.see(f.ClaimFailed("time-out."))
    one.survey()
    one.after(600, tick=5)
    assert not one.asked(a.Start)
    assert one.state.why == "The store cannot say yet whether another pod holds this run: time-out."


def test_a_pod_that_held_the_run_goes_on_from_its_own_newest_step_while_the_store_is_away() -> None:
    one = running()
    one.boot()  # another daemon, the same journal; the job lives on
    one.store_reason = "time-out."
    one.see(f.ClaimFailed("time-out."))
    one.see(f.ComponentExited(1, "launcher", 1))
    one.after(60)
    assert one.asked(a.Start)[-1].step == 5
    assert any("The store cannot say who holds the run: time-out." in s for s in one.said("starting"))
    assert not writes(one)
    one.store_reason = ""
    one.see(f.Claimed(2))
    one.survey()
    one.after(5)
    assert one.state.live
    one.job_up()
    one.checkpoint(10)
    one.after(5)
    assert one.asked(a.Publish)[-1].step == 10


def test_a_key_that_may_not_claim_ends_with_93_before_anything_is_lost() -> None:
    one = world()
    one.boot()
    one.see(f.ClaimFailed("the key lacks the capability writeFiles.", permanent=True))
    one.after(5)
    assert not one.asked(a.Start)
    assert one.asked(a.Exit)[0].code == 93
    assert "This pod cannot claim the run: the key lacks the capability writeFiles." in one.asked(a.Exit)[0].reason


def test_the_run_is_given_back_when_the_daemon_ends_and_not_when_a_person_stops_the_job() -> None:
    one = running()
    one.see(f.Command("stop", "ana"))
    one.after(60)
    assert not one.asked(a.Release), "the daemon goes on, and may start it again"
    one.see(f.Command("shutdown", "ana"))
    one.after(60)
    assert one.asked(a.Release) == [a.Release(1, code=75, reason="The daemon is shut down by ana.")]
    kinds = [type(action) for action in one.actions]
    assert kinds.index(a.Release) < kinds.index(a.Exit)


def test_what_other_pods_left_half_sent_is_swept_once_and_never_our_own() -> None:
    one = world()
    one.boot()
    one.see(f.Claimed(7))
    assert len(one.asked(a.Sweep)) == 1
    one.see(f.Swept(2))
    assert one.said("swept") == ["Cancelled 2 unfinished uploads that pods before this one left in the store."]
    one.boot()  # the same journal: the next publish goes on with what its own one left
    one.see(f.Claimed(8))
    assert len(one.asked(a.Sweep)) == 1
    one.boot()
    one.see(f.Claimed(10))
    assert len(one.asked(a.Sweep)) == 2, "generation 9 was another pod's"


def test_a_sweep_that_a_crash_cut_off_is_asked_for_again() -> None:
    one = world()
    one.boot()
    one.see(f.Claimed(7))
    one.boot()
    one.see(f.Claimed(8))
    assert len(one.asked(a.Sweep)) == 2


def test_a_person_takes_the_run_for_a_waiting_daemon_and_for_a_fenced_one() -> None:
    one = world()
    one.boot()
    one.see(held())
    one.see(f.Command("start", "ana"))
    assert len(one.asked(a.Claim)) == 1, "it waits already"
    one.see(f.Command("start", "ana", ("--take-over",)))
    assert one.asked(a.Claim)[-1].take_over
    one.see(f.Claimed(8))
    one.after(5)
    one.job_up()
    one.see(f.Fenced("pod-b", 9))
    one.see(f.Command("start", "ana", ("--take-over",)))
    assert len(one.asked(a.Claim)) == 3
    one.see(f.Claimed(10))
    one.see(f.Command("start", "ana", ("--take-over",)))
    assert len(one.asked(a.Claim)) == 3, "it holds the run"
    assert one.state.live and not one.asked(a.Stop), "the job was never touched"


# ---------------------------------------------------------------- where a run is only observed


def observer() -> World:
    one = world(mode="observe")
    one.suppress = True
    one.boot()
    return one


def test_an_observer_takes_the_run_from_nobody_and_claims_it_only_to_publish() -> None:
    one = observer()
    one.after(60)
    assert not one.asked(a.Claim) and not writes(one)
    assert one.state.mode == "stopped", "it does not wait for a claim that it does not ask for"
    one.see(f.AttemptAdopted(1, None, 100))
    one.job_up()
    one.checkpoint(5)
    one.after(5)
    assert [claim.take_over for claim in one.asked(a.Claim)] == [False]
    assert not one.asked(a.Publish)
    one.see(held())
    one.after(60)
    assert not writes(one), "the holder goes on"
    one.see(f.Claimed(8))
    one.survey()
    one.after(5)
    assert [publish.step for publish in one.asked(a.Publish)] == [5]
    assert len(one.asked(a.Claim)) == 1
    one.see(f.Command("shutdown", "ana"))
    one.after(90)
    assert one.asked(a.Exit) and not one.asked(a.Release), "the person's job goes on, and so do its checkpoints"


def test_an_observer_that_is_fenced_publishes_no_more_and_asks_for_nothing() -> None:
    one = observer()
    one.see(f.AttemptAdopted(1, None, 100))
    one.job_up()
    one.checkpoint(5)
    one.after(5)
    one.see(f.Claimed(1))
    one.see(f.Fenced("pod-b", 2))
    one.actions.clear()
    one.checkpoint(10)
    one.after(60)
    assert not writes(one) and not one.asked(a.Claim)


def test_an_observer_quarantines_no_step_for_the_others() -> None:
    one = running(11)
    one.see(f.ComponentExited(1, "launcher", 1))
    one.job_up()
    one.step(11)
    one.settings = replace(one.settings, mode="observe")
    one.suppress = True
    one.boot(adopted=2)
    one.see(f.Claimed(2))
    one.see(f.ComponentExited(2, "launcher", 1))
    one.after(60)
    assert any("one good step back" in sentence for sentence in one.said("would")), one.said("would")
    assert not one.asked(a.KeepLineage)
    assert not one.state.store.quarantined


# ---------------------------------------------------------------- which steps are left


def test_a_quarantined_step_is_written_down_in_the_store() -> None:
    one = running(11)
    one.see(f.ComponentExited(1, "launcher", 1))
    one.step(11)
    one.see(f.ComponentExited(2, "launcher", 1))
    one.after(60)
    (kept,) = one.asked(a.KeepLineage)
    assert [(e.kind, e.step) for e in kept.happened] == [("quarantine", 10)]
    assert one.asked(a.Start)[-1].step == 5
    one.see(f.LineageKept(1, pointer=5))
    assert one.said("lineage") == ["The store knows which steps are left. latest.json went back to step 5."]
    assert one.state.lineage.unwritten == ()


def test_what_the_store_did_not_take_is_told_again() -> None:
    one = running(12)
    one.see(f.Command("rollback", "ana", ("5",)))
    one.after(5)
    one.see(f.LineageFailed("time-out."))
    one.after(30)
    first, second = one.asked(a.KeepLineage)
    assert first == second
    one.see(f.LineageKept(1))
    one.after(60)
    assert len(one.asked(a.KeepLineage)) == 2


def test_rollback_stops_the_job_and_goes_on_at_that_step_in_another_lineage() -> None:
    one = running(12)
    one.see(f.Command("rollback", "ana", ("5",)))
    one.after(30)
    assert one.asked(a.Stop)[0].reason == "Going back to step 5 by ana."
    assert one.asked(a.Start)[-1].step == 5
    assert "A person asked for step 5 (rollback)." in one.said("starting")
    (kept,) = one.asked(a.KeepLineage)
    assert [(e.kind, e.step) for e in kept.happened] == [("rollback", 5)]
    assert set(one.state.store.quarantined) == {"10"}
    one.see(f.ComponentExited(one.state.attempt.number, "launcher", 1))
    one.after(30)
    assert one.asked(a.Start)[-1].step == 5, "the left step is never resumed from"


def test_a_rollback_to_a_step_of_the_store_is_written_down_before_it_is_restored() -> None:
    """A restore takes an hour, and a pod that comes meanwhile must not resume above that step."""
    one = running(12)
    del one.local[5]
    one.survey()
    one.actions.clear()
    one.answer = False
    one.see(f.Command("rollback", "ana", ("5",)))
    one.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    one.survey()
    one.after(1)
    assert [restore.step for restore in one.asked(a.Restore)] == [5] and not one.asked(a.Start)
    (kept,) = one.asked(a.KeepLineage)
    assert [(e.kind, e.step) for e in kept.happened] == [("rollback", 5)]
    one.see(f.LineageKept(1, pointer=5))
    one.local[11] = "complete"  # what the job saved last is left, too
    one.survey()
    one.after(30)
    assert not one.asked(a.Publish)
    one.see(f.Restored(5, GIB, 3600.0))
    one.after(5)
    assert one.asked(a.Start)[-1].step == 5
    assert len(one.asked(a.KeepLineage)) == 1


def test_a_rollback_survives_the_daemon_that_was_told() -> None:
    one = running(12)
    one.answer = False
    one.see(f.Command("rollback", "ana", ("5",)))
    one.boot()
    one.see(f.AttemptStopped(1, 3.0, gpu_free=True))
    one.answer = True
    one.see(f.Claimed(2))
    one.after(30)
    assert one.asked(a.Start)[-1].step == 5
    assert [(e.kind, e.step) for e in one.asked(a.KeepLineage)[0].happened] == [("rollback", 5)]


def test_a_step_that_is_being_deleted_is_neither_gone_back_to_nor_pinned() -> None:
    """The job would be stopped for a step that is gone once it has ended."""
    one = running(12)
    one.answer = False
    one.local = {}
    one.survey()
    one.state = replace(one.state, busy=replace(one.state.busy, prune_store=5))
    assert 5 in one.stored and 5 not in one.local
    for verb, said in (("rollback", "Step 5 cannot be used"), ("pin", "Step 5 is being deleted: it cannot")):
        one.see(f.Command(verb, "ana", ("5",)))
        assert said in one.said(verb)[-1]
        done, words = order_replies.answer(one.state, verb, ["5"], "")
        assert not done
        assert "is being deleted" in words
    assert not one.asked(a.Stop)
    assert not one.asked(a.Pin)


def test_a_step_that_went_while_the_job_was_stopped_for_it_stops_no_later_start() -> None:
    one = running(12)
    del one.local[5]
    one.survey()
    one.answer = False
    one.see(f.Command("rollback", "ana", ("5",)))
    one.see(f.AttemptStopped(one.asked(a.Stop)[-1].attempt, 1.0, gpu_free=True))
    del one.stored[5]
    one.spoiled[5] = "half of it is left"
    one.see(f.StoreSteps((f.StoredStep(5, False, GIB, problem=one.spoiled[5]), f.StoredStep(10, True, GIB)), 10))
    one.survey()
    assert one.state.mode == "gave-up", one.state.why
    assert "Step 5 was asked for (rollback) and cannot be used" in one.state.why
    assert one.state.why.endswith("The order is dropped: a start goes on at the last good step.")
    assert one.state.lineage.unwritten == ()
    assert not one.asked(a.KeepLineage)
    one.answer = True
    one.see(f.Command("start", "ana"))
    one.after(5)
    assert 10 in one.local
    assert one.asked(a.Start)[-1].step == 10


def test_rollback_to_a_step_that_is_nowhere_changes_nothing() -> None:
    one = running(12)
    one.see(f.Command("rollback", "ana", ("7",)))
    one.after(30)
    assert one.said("rollback") == ["Step 7 cannot be used: complete here 5, 10, stored 5, 10. Nothing was changed."]
    assert not one.asked(a.Stop) and not one.state.orders.override


def test_a_pod_that_comes_before_the_next_publish_resumes_at_no_step_that_was_left() -> None:
    one = world()
    left = f.StoredStep(20, True, GIB, left="it is quarantined")
    one.answer = False
    one.boot()
    one.see(f.Claimed(1))
    happened = (Happened("quarantine", 20, 1.7e9),)
    one.see(f.LocalSteps((), settled=True))
    one.see(f.StoreSteps((f.StoredStep(10, True, GIB), left), 20, happened=happened))
    one.after(2)
    assert one.asked(a.Restore)[0].step == 10


def test_a_pod_that_comes_back_does_not_resume_its_own_copy_of_what_another_pod_left() -> None:
    one = world()
    one.answer = False
    one.boot()
    one.see(f.Claimed(1))
    wall = 1.7e9
    own = tuple(f.LocalStep(n, "complete", "", GIB, wall - 100) for n in (10, 20, 25))
    one.see(f.LocalSteps(own, settled=True))
    one.see(f.StoreSteps((f.StoredStep(10, True, GIB),), 10, happened=(Happened("rollback", 10, wall),)))
    one.after(2)
    assert one.asked(a.Start)[0].step == 10
    anew = (*own[:1], f.LocalStep(20, "complete", "", GIB, wall + 5000))
    one.see(f.LocalSteps(anew))
    assert one.state.good_local() == [10, 20], "reached anew"


def test_a_person_may_take_a_left_step_all_the_same() -> None:
    one = world(pin_step=20)
    one.answer = False
    one.boot()
    one.see(f.Claimed(1))
    one.see(f.LocalSteps((), settled=True))
    left = f.StoredStep(20, True, GIB, left="it is quarantined")
    one.see(f.StoreSteps((f.StoredStep(10, True, GIB), left), 10, happened=(Happened("quarantine", 20, 1.6e9),)))
    one.after(1)
    assert one.asked(a.Restore)[0].step == 20
    one.see(f.Restored(20, GIB, 5.0))
    one.after(1)
    assert one.asked(a.Start)[0].step == 20
    assert [(e.kind, e.step) for e in one.asked(a.KeepLineage)[0].happened] == [("rollback", 20), ("take", 20)]


def test_claims_and_lineages_survive_the_journal() -> None:
    one = running()
    one.see(f.Fenced("pod-b", 2))
    one.see(f.StoreSteps((f.StoredStep(5, True, GIB, left="x"),), 5, happened=(Happened("take", 5, 1.0, "w"),)))
    assert decode(encode(one.state)) == one.state
    assert isinstance(one.state, State)


def pod_that_was_away(wall_ahead: float = 0.0) -> World:
    """Steps 20, 40 and 60 are here. Another pod went back to 20 meanwhile, and published 40 and 60 of its own."""
    one = World(replace(SETTINGS, fencing=True))
    one.local = dict.fromkeys((20, 40, 60), "complete")
    one.changed = {step: 1.7e9 + one.t + step for step in one.local}
    one.stored, one.latest = dict.fromkeys((20, 40, 60), GIB), 60
    one.manifests = {step: f"m{step}" for step in one.stored}
    one.happened = (Happened("rollback", 20, 1.7e9 + one.t + 100 + wall_ahead),)
    one.t += 1000
    return one


def test_a_pod_that_was_away_goes_on_at_the_stores_step_and_not_at_its_own_of_that_number() -> None:
    one = pod_that_was_away()
    one.boot()
    one.see(f.Claimed(3))
    one.after(30)
    assert [restore.step for restore in one.asked(a.Restore)] == [60]
    assert one.asked(a.Start)[-1].step == 60
    assert "40" in one.state.local.left, "its own copy is of what was left"


def test_a_step_that_was_just_restored_is_the_stores_though_the_clocks_of_two_pods_are_hours_apart() -> None:
    one = pod_that_was_away(wall_ahead=7200.0)
    one.local, one.answer = {}, False
    one.boot()
    one.see(f.Claimed(3))
    one.survey()
    one.see(f.Restored(60, GIB, 60.0))
    one.local, one.changed = {60: "complete"}, {60: 1.7e9 + one.t}
    one.survey()
    one.survey()
    assert one.state.good_local() == [60]
    assert not one.state.local.outdated
    assert not one.asked(a.Publish)
    # Another pod leaves that step, too, and makes it anew.
    one.happened = (*one.happened, Happened("quarantine", 60, 1.7e9 + one.t + 100))
    one.manifests = {60: "another"}
    one.survey()
    assert one.state.good_local() == []
    assert one.state.good_stored() == [20, 40, 60]


def test_a_restored_step_that_is_quarantined_and_made_anew_counts_again() -> None:
    one = running(12)
    one.see(f.Restored(10, GIB, 60.0))
    one.see(f.ComponentExited(one.state.attempt.number, "launcher", 1))
    one.step(11)
    one.see(f.ComponentExited(one.state.attempt.number, "launcher", 1))
    one.after(60)
    assert set(one.state.store.quarantined) == {"10"}
    one.local[10], one.changed = "complete", {10: 1.7e9 + one.t + 1}
    one.after(5)
    one.survey()
    assert one.state.store.quarantined == {}
