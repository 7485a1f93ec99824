"""A step that a person pins, that is whole on this disk, and that the store lacks."""

from __future__ import annotations

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.evolve import replace
from supervisor.daemon.order_replies import answer
from tests.core.world import GIB, SETTINGS, World

TWO = replace(SETTINGS, keep_last=2)


class Pinning(World):
    """A run at step 25: the store has 20 and 25, this disk all of them. Steps in ``refused`` cannot be published."""

    def __init__(self) -> None:
        super().__init__(TWO)
        self.refused: set[int] = set()
        self.permanent = False
        self.running_at(25)

    def _carry_out(self, action: a.Action) -> None:
        if isinstance(action, a.Publish) and action.step in self.refused:
            self.see(f.PublishFailed(action.step, "a part cannot be read.", permanent=self.permanent))
        else:
            super()._carry_out(action)

    def pin(self, step: int, verb: str = "pin") -> None:
        self.see(f.Command(verb, "ana", (str(step),)))

    def disk_fills(self, free: int = 10 * GIB) -> None:
        self.see(f.DiskLook("/data", 100 * GIB, free))

    def published(self) -> list[int]:
        return [one.step for one in self.asked(a.Publish)]


def test_a_pinned_step_that_the_store_lacks_is_published_again() -> None:
    world = Pinning()
    assert sorted(world.stored) == [20, 25] and 5 in world.local
    world.pin(5)
    told = "Step 5 is pinned: it stays on this disk until it is published, and then in the store until it is unpinned."
    assert world.said("pin")[-1] == told
    world.after(60)
    assert world.published() == [5] and world.latest == 25
    world.disk_fills()
    assert 5 not in world.local and 5 in world.stored
    for number in (30, 35):
        world.step(number)
        world.checkpoint(number)
    assert sorted(world.stored) == [5, 30, 35]


def test_a_pinned_step_stays_on_a_disk_that_fills_until_the_store_has_it() -> None:
    world = Pinning()
    world.refused = {5}
    world.pin(5)
    world.disk_fills()
    assert sorted(world.local) == [5, 20, 25]
    world.disk_fills(1 * GIB)
    assert sorted(world.local) == [5, 25]
    world.refused = set()
    world.after(700, tick=5)
    world.disk_fills(1 * GIB)
    assert 5 in world.stored and sorted(world.local) == [25]


def test_a_pin_while_the_store_deletes_the_step_keeps_the_copy_on_this_disk() -> None:
    world = Pinning()
    world.stored[15], world.answer = GIB, False
    world.survey()
    world.after(2)
    assert [one.step for one in world.asked(a.PruneStore)] == [15]
    world.pin(15)
    world.disk_fills(1 * GIB)
    world.see(f.Pruned(-1, "local", 0))
    world.after(30)
    assert not world.published() and 15 not in [one.step for one in world.asked(a.PruneLocal)]
    world.see(f.Pruned(15, "store", GIB))
    world.after(5)
    assert world.published() == [15]


def test_the_last_copy_that_is_being_deleted_is_not_pinned() -> None:
    world = Pinning()
    world.answer = False
    world.disk_fills()
    world.see(f.Pruned(-1, "local", 0))
    assert [one.step for one in world.asked(a.PruneLocal)] == [5]
    world.pin(5)
    assert world.said("pin")[-1] == "Step 5 is being deleted: it cannot be pinned any more."
    assert not world.state.pins.wishes and not world.asked(a.Pin)
    told = "Step 5 is being deleted at this moment: it cannot be pinned any more."
    assert answer(world.state, "pin", ["5"], "") == (False, told)


def test_a_pin_that_is_taken_back_at_once_keeps_nothing() -> None:
    world = Pinning()
    world.refused, world.pin_problem = {5}, "the link is down."
    world.pin(5)
    world.pin(5, "unpin")
    world.disk_fills()
    assert 5 not in world.local and 5 not in world.pinned


def test_a_pin_outlives_a_store_that_is_away_a_disk_that_fills_and_a_new_daemon() -> None:
    world = Pinning()
    world.store_reason = world.pin_problem = "no connection."
    world.survey()
    world.pin(5)
    world.disk_fills()
    world.state = decode(encode(world.state))
    world.boot(adopted=1)
    world.disk_fills()
    world.after(3600, tick=10)
    assert 5 in world.local and not world.published()
    world.store_reason = world.pin_problem = ""
    world.survey()
    world.after(5)
    assert world.pinned == {5} and world.published() == [5]


def test_a_pinned_step_that_no_run_resumes_at_stays_here_and_is_said_to() -> None:
    world = Pinning()
    world.answer = False
    world.checkpoint(30)
    world.see(f.PublishFailed(30, "the same bytes are quarantined.", step_changed=True, left=True))
    world.changed[30], world.answer = 0.0, True
    world.step(35)
    world.checkpoint(35)
    world.actions.clear()
    told = "is quarantined, left or damaged in the store, so this disk alone keeps it until it is unpinned."
    assert answer(world.state, "pin", ["30"], "") == (True, f"Step 30 {told}")
    world.pin(30)
    assert world.said("pin")[-1] == f"Step 30 is pinned: it {told}"
    world.after(900, tick=5)
    world.disk_fills()
    assert 30 in world.local and not world.published()


def test_pins_of_another_pod_hold_what_is_whole_here() -> None:
    world = Pinning()
    world.pinned, world.local[10], world.refused = {5, 10, 99}, "incomplete", {5}
    world.survey()
    world.disk_fills()
    assert 5 in world.local
    world.refused = set()
    world.after(700, tick=5)
    assert set(world.published()) == {5} and 5 in world.stored


def test_a_disk_with_nothing_but_pinned_steps_says_so_and_the_run_goes_on_once_they_are_published() -> None:
    world = Pinning()
    world.refused = {5, 10, 15}
    for step in world.refused:
        world.pin(step)
    for _ in range(2):
        world.disk_fills(1 * GIB)
        world.after(150)
    assert sorted(world.local) == [5, 10, 15, 25] and world.state.mode == "disk-full"
    assert (
        "the newest complete step stays, and so does what is pinned and only here: 5, 10, 15." in world.said("disk")[0]
    )
    world.refused = set()
    world.after(120)
    assert world.stored.keys() >= {5, 10, 15}
    world.disk_fills(1 * GIB)
    assert sorted(world.local) == [25]
    world.disk_fills(40 * GIB)
    world.after(30)
    assert world.asked(a.Start)


def test_a_pinned_step_that_cannot_be_published_holds_up_no_newer_one_and_is_named_at_the_end() -> None:
    world = Pinning()
    world.refused, world.permanent = {5}, True
    world.pin(5)
    assert world.said("publish-failed") == ["Publishing step 5 failed: a part cannot be read. Next try in 10 min."]
    world.after(300)
    assert world.published() == [5]
    world.checkpoint(30)
    assert world.published()[:2] == [5, 30] and 30 in world.stored
    world.local[35] = "complete"
    world.see(f.Command("shutdown", "ana"))
    world.after(500)
    only = "Step 5 is complete and only on this disk: a part cannot be read. The store's newest is step 35."
    assert 35 in world.stored and only in world.asked(a.Exit)[0].reason


def test_a_pod_that_goes_keeps_its_way_to_the_store_for_the_step_that_its_job_still_saves() -> None:
    world = Pinning()
    world.state = replace(world.state, leave=replace(world.state.leave, exit_at=world.t + 1000))
    world.pinned = {5}
    world.survey()
    world.after(3)
    assert not world.published()


def test_a_pinned_step_never_moves_the_pointer_back() -> None:
    world = Pinning()
    world.stored[10], world.refused = GIB, {5}
    world.survey()
    world.pin(5)
    world.refused = set()
    world.see(f.Command("rollback", "ana", ("10",)))
    world.after(900, tick=5)
    assert world.latest == 10 and 5 in world.stored
    assert [one.step for one in world.asked(a.Publish) if one.back] == [10]
