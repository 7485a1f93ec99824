"""Pins, readers and checks of the store: what keeps a stored step, and what is said of damaged ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.retention import victims_in_store
from supervisor.core.state import Pins, State, Store
from tests.core.world import GIB, SETTINGS, World
from tests.fuzz.profiles import tries

steps = st.lists(st.integers(0, 60), unique=True, max_size=12)


def stored(*numbers: int) -> tuple[f.StoredStep, ...]:
    return tuple(f.StoredStep(number, True, 1) for number in numbers)


@tries(300)
@given(
    stored_steps=steps, pinned=steps, wished=steps, reading=steps, damaged=steps, verified=steps, last=st.integers(2, 4)
)
def test_no_rule_of_retention_takes_what_somebody_keeps(  # noqa: PLR0917
    stored_steps: list[int],
    pinned: list[int],
    wished: list[int],
    reading: list[int],
    damaged: list[int],
    verified: list[int],
    last: int,
) -> None:
    state = State(
        settings=replace(SETTINGS, keep_last=last),
        store=Store(
            steps=stored(*stored_steps),
            latest=max(stored_steps, default=None),
            reading=tuple(reading),
            damaged=dict.fromkeys(map(str, damaged), "torn"),
            verified=tuple(sorted(verified)),
        ),
        pins=Pins(steps=tuple(pinned), wishes={str(step): step % 2 == 0 for step in wished}),
    )
    gone = set(victims_in_store(state))
    good = set(stored_steps) - set(damaged)
    assert not gone & ({*pinned, *wished, *reading} | set(damaged))
    assert len(good - gone) >= min(2, len(good))
    seen = [step for step in sorted(verified) if step in good]
    assert not seen or seen[-1] not in gone
    assert not victims_in_store(replace(state, pins=replace(state.pins, reason="pins.json is damaged")))


def test_a_pinned_step_stays_and_an_unpinned_one_goes() -> None:
    world = World(replace(SETTINGS, keep_last=2))
    world.running_at(10)
    world.see(f.Command("pin", "root", ("5",)))
    assert world.asked(a.Pin) == [a.Pin(5, True)]
    assert world.said("pin")[-1] == "Step 5 is pinned: it is kept in the store until it is unpinned."
    for number in (15, 20, 25):
        world.step(number)
        world.checkpoint(number)
    assert sorted(world.stored) == [5, 20, 25]
    world.see(f.Command("unpin", "root", ("5",)))
    world.step(30)
    world.checkpoint(30)
    assert sorted(world.stored) == [25, 30]


def test_a_pin_that_the_store_did_not_take_is_asked_for_again_and_counts_meanwhile() -> None:
    world = World(replace(SETTINGS, keep_last=2))
    world.running_at(10)
    world.pin_problem = "the link is down."
    world.see(f.Command("pin", "", ("5",)))
    assert "could not be written down: the link is down. It is kept here meanwhile" in world.said("pin")[-1]
    assert world.asked(a.Pin) == [a.Pin(5, True)]
    world.pin_problem = ""
    for _ in range(2):
        world.see(f.StoreSteps(stored(5, 10), 10, pinned=tuple(world.pinned)))
        assert world.asked(a.Pin) == [a.Pin(5, True)] * 2
    assert world.state.pins.steps == (5,) and not world.state.pins.wishes


def test_a_damaged_step_is_told_once_never_resumed_from_and_never_deleted() -> None:
    world = World(replace(SETTINGS, keep_last=2))
    world.running_at(30)
    world.see(f.StoreChecked(good=(25, 30), damaged={"20": "trainer/x is missing"}))
    assert world.said("store-damaged") == [
        "Step 20 in the store is damaged and will not be restored: trainer/x is missing"
    ]
    world.see(f.StoreChecked(good=(25, 30), damaged={"20": "trainer/x is missing"}))
    assert len(world.said("store-damaged")) == 1
    assert 20 not in world.state.good_stored()


def test_what_a_deep_check_found_good_is_remembered_as_the_newest_verified() -> None:
    world = World()
    world.running_at(20)
    world.see(f.StoreChecked(good=(10,), deep=True))
    world.see(f.StoreChecked(good=(10, 15)))
    assert world.state.store.verified == (10,)


# ---------------------------------------------------------------- what was damaged is not so for ever


def listed(world: World, *manifests: str) -> None:
    steps = tuple(f.StoredStep(5 * (n + 1), True, 1, manifest=manifest) for n, manifest in enumerate(manifests))
    world.see(f.StoreSteps(steps, 5 * len(steps)))


def test_a_damaged_step_that_another_pod_published_anew_is_good_again() -> None:
    world = World(SETTINGS)
    world.answer = False
    world.boot()
    world.see(f.LocalSteps((), settled=True))
    listed(world, "m5", "m10")
    world.see(f.RestoreFailed(10, "a part has another hash.", damaged=True))
    listed(world, "m5", "m10")
    assert world.state.good_stored() == [5], "the same manifest, the same damage"
    listed(world, "m5", "m10-anew")
    assert world.state.good_stored() == [5, 10]


def test_a_listing_that_was_old_takes_no_step_away_for_long() -> None:
    world = World(SETTINGS)
    world.answer = False
    world.boot()
    listed(world, "m5", "m10")
    world.see(f.StoreChecked((5,), {"10": "it lacks a file."}))
    assert world.state.good_stored() == [5]
    world.see(f.StoreChecked((5, 10)))
    assert world.state.good_stored() == [5, 10]
    world.see(f.StoreChecked((5,), {"10": "a part has another hash."}, deep=True))
    world.see(f.StoreChecked((5, 10)))
    assert world.state.good_stored() == [5], "what was read is not taken back by a listing"
    world.see(f.StoreChecked((5, 10), deep=True))
    assert world.state.good_stored() == [5, 10]


def test_steps_that_come_faster_than_the_link_carries_them_do_not_fill_the_store() -> None:
    world = World(replace(SETTINGS, keep_last=2))
    world.running_at(10)
    world.answer = False
    assert sorted(world.stored) == [5, 10]
    world.checkpoint(15)
    for step in (15, 20, 25, 30):
        assert world.state.busy.publish == step
        world.checkpoint(step + 5)  # the next one is complete before this one is sent
        world.stored[step], world.latest = 1, step
        world.see(f.Published(step, 1, 1.0))
        if (gone := world.state.busy.prune_store) is not None:
            world.stored.pop(gone)
            world.see(f.Pruned(gone, "store", 1))
    assert sorted(world.stored) == [25, 30]


def test_a_step_that_the_store_does_not_let_go_keeps_no_other_from_being_published() -> None:
    world = World(replace(SETTINGS, keep_last=2))
    world.running_at(10)
    world.answer = False
    world.stored |= {1: 1, 2: 1}
    world.survey()
    world.after(1)
    assert [one.step for one in world.asked(a.PruneStore)] == [1]
    world.see(f.PruneFailed(1, "store", "somebody restores it."))
    world.checkpoint(15)
    world.after(2)
    assert [one.step for one in world.asked(a.Publish)] == [15]
    world.see(f.Published(15, 1, 1.0))
    world.after(30)
    assert len(world.asked(a.PruneStore)) == 1
    world.after(60)
    assert len(world.asked(a.PruneStore)) == 2


# ---------------------------------------------------------------- what is no step at all, and is billed all the same


def bare(*numbers: int) -> tuple[f.StoredStep, ...]:
    return tuple(f.StoredStep(number, False, 1) for number in numbers)


def test_a_step_that_was_half_sent_and_then_passed_by_is_deleted() -> None:
    world = World(SETTINGS)
    world.running_at(10)
    world.publish_works = False
    world.checkpoint(15)
    assert [one.step for one in world.asked(a.Publish)] == [15]
    world.see(f.StoreSteps((*stored(5, 10), *bare(15)), 10))
    world.after(3)
    assert not world.asked(a.PruneStore), "its publish goes on"
    world.publish_works = True
    world.checkpoint(20)
    world.after(60)
    world.see(f.StoreSteps((*stored(5, 10), *bare(15), *stored(20)), 20))
    assert [one.step for one in world.asked(a.PruneStore)] == [15]


def test_a_step_that_was_half_deleted_is_deleted_to_its_end() -> None:
    world = World(replace(SETTINGS, keep_last=2))
    world.running_at(10)
    world.answer = False
    world.stored |= {1: 1}
    world.survey()
    world.after(1)
    assert [one.step for one in world.asked(a.PruneStore)] == [1]
    world.see(f.PruneFailed(1, "store", "503 service unavailable."))
    world.see(f.StoreSteps((*bare(1), *stored(5, 10)), 10))
    world.after(70)
    assert [one.step for one in world.asked(a.PruneStore)] == [1, 1]
    world.see(f.Pruned(1, "store", 1))
    world.see(f.StoreSteps(stored(5, 10), 10))
    world.after(70)
    assert len(world.asked(a.PruneStore)) == 2


def test_another_pod_deletes_what_is_unfinished_between_the_steps() -> None:
    state = State(settings=SETTINGS, store=Store(steps=(*stored(10), *bare(15, 40), *stored(20)), latest=20))
    assert victims_in_store(state) == [15], "with 40 a publish may go on"
    assert not victims_in_store(replace(state, pins=replace(state.pins, reason="pins.json is damaged")))
    for kept in (
        replace(state, pins=replace(state.pins, steps=(15,))),
        replace(state, pins=replace(state.pins, wishes={"15": True})),
        replace(state, store=replace(state.store, reading=(15,))),
        replace(state, attempt=replace(state.attempt, resume_step=15)),
    ):
        assert not victims_in_store(kept)
    assert not victims_in_store(replace(state, busy=replace(state.busy, publish=15)))


def test_no_step_of_the_original_scripts_is_taken_for_an_unfinished_one() -> None:
    theirs = (f.StoredStep(10, False, 1, legacy=True), f.StoredStep(20, False, 1, legacy=True))
    before = State(settings=SETTINGS, store=Store(steps=(*theirs, f.StoredStep(30, True, 1, legacy=True)), latest=30))
    assert not victims_in_store(before)
    # The pointer is ours now, and nothing in the store tells theirs from what was half sent.
    since = State(settings=SETTINGS, store=Store(steps=(*bare(10, 20, 30), *stored(40, 50, 60)), latest=60))
    assert not victims_in_store(since)


def test_a_damaged_step_with_a_manifest_is_a_persons_to_delete() -> None:
    torn = f.StoredStep(15, False, 1, manifest="m15")
    assert not victims_in_store(
        State(settings=SETTINGS, store=Store(steps=(*stored(10), torn, *stored(20)), latest=20))
    )


# ---------------------------------------------------------------- the same bytes, that failed once


def test_a_step_that_the_store_holds_and_nobody_resumes_at_is_no_published_one() -> None:
    world = World(SETTINGS)
    world.running_at(10)
    world.answer = False
    world.local[15] = "complete"
    world.changed[15] = 1.7e9 + world.t
    world.survey()
    world.see(f.StoreSteps((*stored(5, 10), f.StoredStep(15, True, 1, left="it is quarantined")), 10))
    assert [one.step for one in world.asked(a.Publish)] == [15]
    world.see(f.PublishFailed(15, "the same bytes are left.", step_changed=True, left=True))
    assert world.state.good_local() == [5, 10] and world.state.last_good == 10
    world.after(900, tick=5)
    assert len(world.asked(a.Publish)) == 1, "asked once"
    world.changed[15] = 1.7e9 + world.t
    world.survey()
    assert world.state.good_local() == [5, 10, 15], "written anew"


def test_a_quarantined_step_that_another_pod_made_anew_is_good_in_the_store_and_left_on_this_disk() -> None:
    world = World(SETTINGS)
    world.answer = False
    world.boot()
    whole = (
        f.LocalStep(5, "complete", "", GIB, world.state.wall - 90),
        f.LocalStep(10, "complete", "", GIB, world.state.wall - 60),
    )
    world.see(f.LocalSteps(whole, settled=True))
    listed(world, "m5", "m10")
    store = replace(world.state.store, quarantined={"10": world.state.wall})
    world.state = replace(world.state, store=store)
    listed(world, "m5", "m10")
    assert (world.state.good_stored(), world.state.good_local()) == ([5], [5])
    left = f.StoredStep(10, True, 1, manifest="m10-anew", left="it is quarantined")
    world.see(f.StoreSteps((f.StoredStep(5, True, 1, manifest="m5"), left), 5))
    assert world.state.good_stored() == [5], "what the store itself says was left stays left"
    world.state = replace(world.state, store=store)
    listed(world, "m5", "m10-anew")
    assert (world.state.good_stored(), world.state.good_local()) == ([5, 10], [5])
    world.see(f.LocalSteps(whole, settled=True))
    assert world.state.good_local() == [5]
