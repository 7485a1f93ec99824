"""Pins, readers and checks of the store: what keeps a stored step, and what is said of damaged ones."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.retention import victims_in_store
from supervisor.core.state import State
from tests.core.world import SETTINGS, World

steps = st.lists(st.integers(0, 60), unique=True, max_size=12)


def stored(*numbers: int) -> tuple[f.StoredStep, ...]:
    return tuple(f.StoredStep(number, True, 1) for number in numbers)


@settings(max_examples=300, deadline=None)
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
        store=stored(*stored_steps),
        store_latest=max(stored_steps, default=None),
        pinned=tuple(pinned),
        pin_wishes={str(step): step % 2 == 0 for step in wished},
        reading=tuple(reading),
        damaged=dict.fromkeys(map(str, damaged), "torn"),
        verified=tuple(sorted(verified)),
    )
    gone = set(victims_in_store(state))
    good = set(stored_steps) - set(damaged)
    assert not gone & ({*pinned, *wished, *reading} | set(damaged))
    assert len(good - gone) >= min(2, len(good))
    seen = [step for step in sorted(verified) if step in good]
    assert not seen or seen[-1] not in gone
    assert not victims_in_store(replace(state, pins_reason="pins.json is damaged"))


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
    assert world.state.pinned == (5,) and not world.state.pin_wishes


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
    assert world.state.verified == (10,)


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
