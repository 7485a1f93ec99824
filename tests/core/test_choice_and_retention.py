"""Where a run resumes, what is published, and what may be deleted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.retention import safe_locally, victims_in_store
from supervisor.core.state import Local, State, Store
from tests.fuzz.profiles import tries

from .world import GIB, SETTINGS, NeverAgain, World


def test_nothing_anywhere_is_a_fresh_start_that_says_so() -> None:
    world = World()
    world.boot()
    assert world.asked(a.Start)[0].step is None
    assert "There is no checkpoint, here or in the store: this is a fresh start." in world.said("starting")


def test_a_store_that_cannot_be_listed_is_never_an_empty_one() -> None:
    world = World()
    world.store_reason = "connection refused."
    world.boot()
    world.after(3600, tick=10)
    assert not world.asked(a.Start)
    assert world.state.mode == "surveying"
    assert "may hold checkpoints" in world.state.why
    world.store_reason, world.stored, world.latest = "", {40: GIB}, 40
    world.after(60, tick=5)
    assert world.asked(a.Restore)[0].step == 40
    assert world.asked(a.Start)[-1].step == 40


@pytest.mark.parametrize("local", [{}, {30: "writing"}])
def test_a_pointer_to_a_step_that_the_store_does_not_list_is_no_empty_store(local: dict[int, str]) -> None:
    """A listing may be old, or its answer not the store's: one such answer would throw all steps away."""
    world = World()
    world.latest, world.local = 20, local
    world.boot()
    world.after(1800, tick=10)
    assert not world.asked(a.Start) and not world.asked(a.Exit)
    assert world.state.why.startswith("latest.json names step 20, which the store does not list whole. If a person")
    assert any("latest.json names step 20" in said for said in world.said("waiting")), "it is said again"
    world.stored = {10: GIB, 20: GIB}
    world.t += 7200  # the pod was paused: no listing tells of that time
    world.after(60, tick=5)
    assert world.asked(a.Restore)[0].step == 20
    assert world.asked(a.Start)[-1].step == 20


@pytest.mark.parametrize("local", [{}, {30: "torn"}])
def test_a_step_that_the_pointer_names_and_no_listing_shows_is_waited_for_an_hour(local: dict[int, str]) -> None:
    """The pod is paid, and to the fleet one that holds its claim and beats is a healthy one."""
    world = World()
    world.latest, world.local = 20, local
    world.store_reason = "connection refused."
    world.boot()
    world.after(3 * 3600, tick=60)
    world.store_reason = ""  # the hour begins with the first listing, not with a wait for something else
    world.after(1800, tick=10)
    world.store_reason = "connection refused."  # and a listing that fails begins no new one
    world.after(120, tick=10)
    world.store_reason = ""
    world.after(1600, tick=10)
    assert not world.asked(a.Exit)
    world.after(200, tick=10)
    ended = world.asked(a.Exit)[0]
    assert ended.code == 93 and not world.asked(a.Start)
    assert "step 20 (latest.json names it, and the store does not list it whole)" in ended.reason
    assert ("step 30 (a shard is short)" in ended.reason) == bool(local)


def test_a_pointer_that_a_person_deletes_after_its_steps_leads_to_a_fresh_start_on_each_pod() -> None:
    world = World()
    world.latest = 20
    world.boot()
    world.after(600, tick=10)
    assert "delete bs4/latest.json too, or start with --fresh." in world.state.why
    world.latest = None
    world.after(60, tick=5)
    assert world.asked(a.Start)[0].step is None


def test_a_step_that_the_pointer_names_may_be_listed_without_its_manifest_for_an_hour() -> None:
    """As by an old listing, or in a store that is being copied."""
    world = World()
    world.latest, world.spoiled, world.manifests = 20, {20: "step 20 has no manifest.json"}, {20: ""}
    world.boot()
    world.after(3500, tick=10)
    assert not world.asked(a.Start) and not world.asked(a.Exit)
    world.after(200, tick=10)
    assert "step 20 (latest.json names it, and the store does not list it whole)" in world.asked(a.Exit)[0].reason


def test_a_step_that_the_pointer_names_is_waited_for_beside_an_older_one_that_is_damaged() -> None:
    world = World()
    world.latest, world.stored, world.spoiled = 20, {}, {10: "shard 3 of step 10 is not there"}
    world.boot()
    world.after(1800, tick=10)
    assert not world.asked(a.Start) and not world.asked(a.Exit)
    world.stored = {20: GIB}
    world.after(60, tick=5)
    assert world.asked(a.Restore)[0].step == 20


@pytest.mark.parametrize("step", [10, 15])
def test_a_start_below_the_step_that_the_pointer_names_says_so(step: int) -> None:
    world = World()
    world.latest, world.stored, world.local = 20, {10: GIB}, {} if step == 10 else {15: "complete"}
    world.boot()
    world.after(60, tick=5)
    assert world.asked(a.Start)[0].step == step
    told = world.said("restoring" if step == 10 else "starting")
    assert "latest.json names step 20, which the store does not list whole." in told[0]


def test_a_pod_that_trained_the_run_is_not_told_to_delete_the_pointer() -> None:
    """There the run's own progress is a reason to ask a person, too."""
    world = NeverAgain()
    world.running_at(12)
    world.stored, world.local, world.latest = {}, {}, 10
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(600, tick=10)
    assert "latest.json names step 10" in world.state.why and "start with --fresh" in world.state.why
    assert "delete" not in world.state.why.replace("deleted", "")


def test_a_person_who_deleted_all_steps_starts_afresh_beside_the_pointer_that_is_left() -> None:
    world = World(settings=replace(SETTINGS, fresh=True))
    world.latest = 20
    world.boot()
    assert world.asked(a.Start)[0].step is None
    world.running_at(2)
    world.engine_process_dies()
    world.after(60)
    assert not world.state.orders.override
    assert world.asked(a.Start)[-1].step is None


def test_a_wrong_key_ends_with_93_and_starts_nothing() -> None:
    world = World()
    world.store_reason, world.store_permanent = "the key was refused.", True
    world.boot()
    assert not world.asked(a.Start)
    assert world.asked(a.Exit)[0].code == 93


def test_local_steps_at_least_as_new_as_all_that_was_published_need_no_store() -> None:
    world = World()
    world.running_at(7)
    world.store_reason = "time-out."
    world.engine_process_dies()
    world.after(5)
    assert world.asked(a.Start)[-1].step == 5


def test_the_store_is_newer_than_the_disk() -> None:
    world = World()
    world.local, world.stored, world.latest = {5: "complete"}, {5: GIB, 10: GIB}, 10
    world.boot()
    assert world.asked(a.Restore)[0].step == 10
    assert world.asked(a.Start)[0].step == 10


def test_a_damaged_newest_step_falls_back_to_the_one_before() -> None:
    world = World()
    world.stored, world.latest, world.damaged = {5: GIB, 10: GIB}, 10, {10}
    world.boot()
    assert [r.step for r in world.asked(a.Restore)] == [10, 5]
    assert world.asked(a.Start)[0].step == 5
    assert "left as it is" in world.said("restore-damaged")[0]
    assert not [x for x in world.asked(a.PruneStore) if x.step == 10]


def test_a_stored_step_of_which_the_listing_shows_that_it_is_damaged_is_told_and_passed_over() -> None:
    world = World()
    world.stored, world.latest, world.spoiled = {5: GIB}, 10, {10: "step 10 lacks trainer/.metadata"}
    world.boot()
    assert [r.step for r in world.asked(a.Restore)] == [5]
    assert world.asked(a.Start)[0].step == 5
    told = "Step 10 in the store is damaged and is left as it is: step 10 lacks trainer/.metadata."
    assert world.said("restore-damaged") == [told]
    assert not [x for x in world.asked(a.PruneStore) if x.step == 10]


def test_where_the_only_stored_step_is_damaged_nothing_is_begun_anew() -> None:
    world = World()
    world.latest, world.spoiled = 10, {10: "step 10 lacks trainer/.metadata"}
    world.boot()
    assert not world.asked(a.Start)
    assert "none of them is good: stored step 10 (step 10 lacks trainer/.metadata)" in world.asked(a.Exit)[0].reason


def test_a_store_that_had_steps_and_is_empty_asks_for_its_volume_first() -> None:
    world = World()
    world.running_at(12)
    world.local, world.stored, world.latest = {}, {}, None
    world.survey()
    world.see(f.Command("restart", "ana"))
    world.after(5)
    said = world.asked(a.Exit)[0].reason
    assert "Step 10 was sent to this store: is its volume mounted, its URL the same? Start with --fresh" in said


def test_only_broken_checkpoints_of_unknown_origin_start_nothing() -> None:
    world = World()
    world.local = {5: "incomplete"}
    world.boot()
    assert not world.asked(a.Start)
    assert "none of them is good: step 5 (a shard is short)" in world.asked(a.Exit)[0].reason


def test_a_torn_first_checkpoint_of_our_own_fresh_run_begins_again() -> None:
    world = World()
    world.boot()
    world.step(1)
    world.checkpoint(1, "incomplete")
    world.see(f.ComponentExited(1, "launcher", 1))
    assert [s.step for s in world.asked(a.Start)] == [None, None]


def test_a_torn_newest_step_is_passed_over() -> None:
    world = World()
    world.running_at(10)
    world.checkpoint(15, "incomplete")
    world.see(f.ComponentExited(1, "launcher", 1))
    assert world.asked(a.Start)[-1].step == 10


def test_a_step_by_hand_goes_back_and_quarantines_what_is_higher() -> None:
    world = World(replace(SETTINGS, pin_step=5))
    world.local, world.stored, world.latest = {5: "complete", 10: "complete"}, {5: GIB, 10: GIB}, 10
    world.boot()
    assert world.asked(a.Start)[0].step == 5
    assert set(world.state.store.quarantined) == {"10"}
    world.see(f.ComponentExited(1, "launcher", 1))
    assert world.asked(a.Start)[-1].step == 5, "a quarantined step is never resumed from"


def test_a_step_by_hand_that_is_not_there_starts_nothing() -> None:
    world = World(replace(SETTINGS, pin_step=7))
    world.local = {5: "complete"}
    world.boot()
    assert "Step 7 was asked for (--step) and cannot be used: complete here 5" in world.asked(a.Exit)[0].reason


def test_fresh_overrules_and_a_later_restart_resumes_the_new_lineage() -> None:
    world = World(replace(SETTINGS, fresh=True))
    world.local, world.stored, world.latest = {10: "complete"}, {10: GIB}, 10
    world.boot()
    assert (world.asked(a.Start)[0].step, world.asked(a.Start)[0].fresh) == (None, True)
    for number in range(1, 6):
        world.step(number)
    world.checkpoint(5)
    assert 5 in world.stored
    assert [p.back for p in world.asked(a.Publish) if p.step == 5] == [True]
    world.see(f.ComponentExited(1, "launcher", 1))
    assert world.asked(a.Start)[-1].step == 5


def test_the_newest_complete_step_is_published_next_and_skipped_ones_are_told() -> None:
    world = World()
    world.boot()
    world.job_up()
    world.answer = False
    for number in (5, 10, 15):
        world.checkpoint(number)
    assert [p.step for p in world.asked(a.Publish)] == [5]
    world.see(f.Published(5, GIB, 600.0, GIB))
    assert [p.step for p in world.asked(a.Publish)] == [5, 15]
    assert world.said("skipped") == ["Steps complete faster than the link carries them: 10 skipped."]


def test_a_failing_publish_is_tried_again_later_and_later() -> None:
    world = World()
    world.publish_works = False
    world.boot()
    world.job_up()
    world.step(5)
    world.checkpoint(5)
    world.after(2000, tick=10)
    tries = len(world.asked(a.Publish))
    assert 6 <= tries <= 12
    assert "the link is down. Next try in 5 s." in world.said("publish-failed")[0]


def test_disk_over_the_threshold_deletes_published_steps_oldest_first() -> None:
    world = World()
    world.running_at(25)
    world.see(f.DiskLook("/data", 100 * GIB, 10 * GIB))
    assert [p.step for p in world.asked(a.PruneLocal)][:2] == [5, 10]
    assert sorted(world.local)[-2:] == [20, 25]


def test_unpublished_steps_are_never_deleted_and_a_full_disk_stops_the_job_cleanly() -> None:
    world = World()
    world.publish_works = False
    world.running_at(15)
    world.see(f.DiskLook("/data", 100 * GIB, 1 * GIB))
    assert not world.asked(a.PruneLocal)
    assert world.state.mode == "disk-full"
    assert "no local step is safe to delete" in world.said("verdict")[0]
    world.publish_works = True
    world.after(700, tick=5)
    world.see(f.DiskLook("/data", 100 * GIB, 1 * GIB))
    assert [p.step for p in world.asked(a.PruneLocal)] == [5, 10]
    world.see(f.DiskLook("/data", 100 * GIB, 30 * GIB))
    assert world.asked(a.Start)[-1].step == 15


def test_what_a_launch_moved_aside_goes_at_once_when_the_disk_is_full_again() -> None:
    """The torn step may be what fills the disk, and the pruning just before the launch could not see it yet."""
    world = World()
    world.running_at(15)
    world.see(f.ComponentExited(1, "rl", 1))
    world.after(120)
    assert [start.attempt for start in world.asked(a.Start)] == [2]
    world.state = replace(
        world.state, disk=replace(world.state.disk, stale_attempt=2, stale_t=world.t)
    )  # pruned between the decision and the launch
    world.see(f.AttemptStarted(2, 15, 77, "rl @ rl.toml"))
    world.job_up()
    world.see(f.DiskLook("/data", 100 * GIB, 5 * GIB))
    assert len(world.asked(a.PruneStale)) == 1


def test_store_keeps_the_last_ones_and_every_mth() -> None:
    world = World(replace(SETTINGS, keep_last=3, keep_every=10))
    world.running_at(40)
    assert sorted(world.stored) == [10, 20, 30, 35, 40]


def test_a_step_that_a_person_goes_back_to_is_kept_until_the_job_that_is_stopped_for_it_is_gone() -> None:
    """prime-rl takes up to 330 s to stop; meanwhile steps complete, are published, and push the oldest out."""
    state = State(
        settings=SETTINGS,
        local=Local(steps=tuple(f.LocalStep(step, "complete", "", 1) for step in (5, 10, 15, 20))),
        store=Store(steps=tuple(f.StoredStep(step, True, 1) for step in (5, 10, 15, 20)), latest=20),
    )
    assert 5 in victims_in_store(state) and 5 in safe_locally(state, 2)
    asked = replace(state, orders=replace(state.orders, asked_step=5, override=True))
    assert 5 not in victims_in_store(asked) and 5 not in safe_locally(asked, 2)
    named = replace(state, settings=replace(SETTINGS, pin_step=5), orders=replace(state.orders, override=True))
    assert 5 not in victims_in_store(named) and 5 not in safe_locally(named, 2)
    assert 5 in victims_in_store(replace(named, orders=replace(named.orders, override=False))), (
        "it was started there: the attempt keeps it now"
    )


def on_both(*numbers: int) -> State:
    """Steps that are complete here and published."""
    return State(
        settings=SETTINGS,
        local=Local(steps=tuple(f.LocalStep(step, "complete", "", 1) for step in numbers)),
        store=Store(steps=tuple(f.StoredStep(step, True, 1) for step in numbers), latest=max(numbers)),
    )


def test_the_step_that_the_pointer_names_is_kept_however_many_newer_ones_there_are() -> None:
    """It may have been moved back by hand. Who reads by name would find a pointer to nothing."""
    state = on_both(5, 10, 15, 20, 25, 30)
    assert victims_in_store(state) == [5, 10, 15]
    assert victims_in_store(replace(state, store=replace(state.store, latest=10))) == [5, 15]


def test_what_is_damaged_in_the_store_is_left_for_a_person() -> None:
    """A restore of step 15 found a file gone, and its manifest with it: its other files may be all there is of it."""
    state = on_both(5, 10, 20, 25, 30)
    torn = f.StoredStep(15, False, 1)
    state = replace(state, store=replace(state.store, steps=(*state.store.steps, torn)))
    assert 15 in victims_in_store(state)
    assert 15 not in victims_in_store(
        replace(state, store=replace(state.store, damaged={"15": "trainer/.metadata is not in the store"}))
    )


def test_a_step_that_is_being_written_again_is_not_deleted_though_the_store_has_one_of_its_number() -> None:
    """Its shards are open. What the store has is of the lineage that the run went back behind."""
    state = on_both(5, 10, 15, 20, 25)
    writing = tuple(f.LocalStep(step, "writing", "changed just now", 1) for step in (15, 20))
    state = replace(state, local=replace(state.local, steps=(*state.local.steps[:2], *writing)))
    assert safe_locally(state, 1) == [5]
    below = replace(state, local=replace(state.local, steps=(*state.local.steps, f.LocalStep(25, "complete", "", 1))))
    assert safe_locally(below, 1) == [5, 10, 15, 20], "torn, and passed by"


def test_a_step_that_a_job_is_loading_stays_though_it_is_no_good_one() -> None:
    """A person chose a quarantined one: it would be taken from under the job that reads it."""
    state = replace(
        on_both(5, 10, 15, 20),
        mode="starting",
        store=replace(on_both(5, 10, 15, 20).store, quarantined={"15": 1.0, "20": 1.0}),
        attempt=replace(on_both(5, 10, 15, 20).attempt, resume_step=15),
    )
    state = replace(state, store=replace(state.store, steps=(*state.store.steps, f.StoredStep(25, True, 1))))
    assert 15 not in safe_locally(state, 1)
    assert 15 in safe_locally(replace(state, attempt=replace(state.attempt, resume_step=20)), 1)


def test_two_good_steps_stay_in_the_store_though_only_one_is_to_be_kept() -> None:
    """The newest may turn out to be damaged, and an older journal may hold settings that no run file may have now."""
    for keep_last in (0, 1):
        world = World(replace(SETTINGS, keep_last=keep_last))
        world.running_at(20)
        assert sorted(world.stored) == [15, 20], keep_last
        world.damaged, world.local = {20}, {}
        world.see(f.ComponentExited(1, "launcher", 1))
        world.after(120)
        assert world.asked(a.Start)[-1].step == 15


steps = st.lists(st.integers(0, 60), unique=True, max_size=12)


@tries(300)
@given(
    complete=steps, broken=steps, stored=steps, keep=st.integers(1, 4), busy=st.one_of(st.none(), st.integers(0, 60))
)
def test_pruning_never_takes_an_unpublished_needed_step(
    complete: list[int], broken: list[int], stored: list[int], keep: int, busy: int | None
) -> None:
    local = [f.LocalStep(s, "complete", "", 1) for s in complete]
    local += [f.LocalStep(s, "incomplete", "torn", 1) for s in broken if s not in complete]
    state = State(
        settings=SETTINGS,
        local=Local(steps=tuple(local)),
        store=Store(steps=tuple(f.StoredStep(s, True, 1) for s in stored)),
    )
    state = replace(state, busy=replace(state.busy, publish=busy))
    gone = safe_locally(state, keep)
    newest = max(stored, default=None)
    for step in gone:
        assert newest is not None
        assert step in stored or step < newest
        assert step != busy
        assert step not in sorted(complete)[-keep:]
    left = set(complete) - set(gone)
    assert not complete or max(complete) in left
    assert not complete or not stored or max([*left, *stored]) == max([*complete, *stored])


@tries(300)
@given(stored=steps, last=st.integers(0, 5), every=st.one_of(st.none(), st.integers(1, 10)))
def test_the_store_always_keeps_two_good_steps_and_the_one_the_pointer_names(
    stored: list[int], last: int, every: int | None
) -> None:
    latest = max(stored, default=None)
    state = State(
        settings=replace(SETTINGS, keep_last=last, keep_every=every),
        store=Store(steps=tuple(f.StoredStep(s, True, 1) for s in stored), latest=latest),
    )
    left = set(stored) - set(victims_in_store(state))
    assert len(left) >= min(2, len(stored))
    assert latest is None or latest in left
    assert set(sorted(stored)[-last:] if last else ()) <= left


def test_state_and_facts_survive_json() -> None:
    world = World()
    world.running_at(7)
    world.gpus(inference=0)
    world.engine_process_dies()
    world.after(4)
    assert decode(json.loads(json.dumps(encode(world.state)))) == world.state
    for observation in world.log:
        assert decode(json.loads(json.dumps(encode(observation.fact)))) == observation.fact


def test_a_scan_that_was_under_way_does_not_hide_the_last_step_from_the_last_publish() -> None:
    world = World(replace(SETTINGS, max_steps=10, first_step_at=1))
    world.running_at(9)
    world.step(10)
    world.answer = False
    world.see(f.FinishSeen("trainer", "RL trainer finished!"))
    world.see(f.ComponentExited(1, "rl", 0))
    world.see(f.AttemptStopped(1, 1.0, gpu_free=True))
    assert world.state.mode == "publishing"
    writing = f.LocalStep(10, "writing", "changed less than 20 s ago", GIB)
    world.see(f.LocalSteps((f.LocalStep(5, "complete", "", GIB), writing)))
    assert not world.asked(a.Exit), "the answer to the survey is still awaited"
    world.answer = True
    world.see(f.LocalSteps((f.LocalStep(5, "complete", "", GIB), f.LocalStep(10, "complete", "", GIB)), settled=True))
    assert 10 in world.stored
    assert world.asked(a.Exit)[-1].code == 0


def test_giving_up_publishes_the_step_that_was_completed_just_before() -> None:
    world = World(replace(SETTINGS, max_restarts=0))
    world.running_at(9)
    world.local[8] = "complete"  # written since the last scan
    world.see(f.ComponentExited(1, "rl", 1))
    assert world.state.mode == "gave-up"
    assert 8 in world.stored
    assert world.asked(a.Exit)[-1].code == 93


def test_an_error_that_the_run_survived_hours_ago_does_not_explain_its_end() -> None:
    world = World()
    world.running_at(5)
    world.see(f.ErrorSeen("trainer", "cuda-oom", "CUDA out of memory, retried"))
    for number in range(6, 10):
        world.step(number)
    world.see(f.ComponentExited(1, "rl", 1))
    assert world.said("verdict")[0] == "The job ended with exit code 1 after step 9 of 1000."
