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
    """A run at step 25: the store has 20 and 25, this disk all of them."""

    def __init__(self) -> None:
        super().__init__(TWO)
        self.running_at(25)

    def pin(self, step: int, verb: str = "pin") -> None:
        self.see(f.Command(verb, "ana", (str(step),)))

    def disk_fills(self, free: int = 10 * GIB) -> None:
        self.see(f.DiskLook("/data", 100 * GIB, free))

    def published(self) -> list[int]:
        return [one.step for one in self.asked(a.Publish)]


ALONE = "is kept by this disk alone, and goes with it: the store has no good copy."


def test_a_pinned_step_that_the_store_lacks_stays_on_this_disk() -> None:
    world = Pinning()
    assert sorted(world.stored) == [20, 25] and 5 in world.local
    world.pin(5)
    assert world.said("pin")[-1] == f"Step 5 is pinned: it {ALONE}"
    world.after(60)
    assert not world.published() and world.latest == 25
    world.disk_fills()
    assert sorted(world.local) == [5, 20, 25]
    world.disk_fills(1 * GIB)
    assert sorted(world.local) == [5, 25]
    world.pin(5, "unpin")
    world.disk_fills(1 * GIB)
    assert sorted(world.local) == [25]


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
    assert not world.published() and 15 not in [one.step for one in world.asked(a.PruneLocal)]


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
    world.pin_problem = "the link is down."
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
    world.disk_fills()
    assert world.pinned == {5} and 5 in world.local and not world.published()


def test_a_pinned_step_that_no_run_resumes_at_stays_here_and_is_said_to() -> None:
    world = Pinning()
    world.answer = False
    world.checkpoint(30)
    world.see(f.PublishFailed(30, "the same bytes are quarantined.", step_changed=True, left=True))
    world.changed[30], world.answer = 0.0, True
    world.step(35)
    world.checkpoint(35)
    world.actions.clear()
    assert answer(world.state, "pin", ["30"], "") == (True, f"Step 30 {ALONE}")
    world.pin(30)
    assert world.said("pin")[-1] == f"Step 30 is pinned: it {ALONE}"
    world.after(900, tick=5)
    world.disk_fills()
    assert 30 in world.local and not world.published()


def test_pins_of_another_pod_hold_what_is_whole_here() -> None:
    world = Pinning()
    world.pinned, world.local[10] = {5, 10, 99}, "incomplete"
    world.survey()
    world.disk_fills()
    world.after(700, tick=5)
    assert 5 in world.local and not world.published()


def test_a_disk_with_nothing_but_pinned_steps_says_so_and_the_run_goes_on_once_they_are_unpinned() -> None:
    world = Pinning()
    for step in (5, 10, 15):
        world.pin(step)
    for _ in range(2):
        world.disk_fills(1 * GIB)
        world.after(150)
    assert sorted(world.local) == [5, 10, 15, 25] and world.state.mode == "disk-full"
    assert (
        "the newest complete step stays, and so does what is pinned and only here: 5, 10, 15." in world.said("disk")[0]
    )
    for step in (5, 10, 15):
        world.pin(step, "unpin")
    world.disk_fills(1 * GIB)
    assert sorted(world.local) == [25]
    world.disk_fills(40 * GIB)
    world.after(30)
    assert world.asked(a.Start)


def test_a_pinned_step_that_only_this_disk_has_is_named_at_the_end() -> None:
    world = Pinning()
    world.pin(5)
    world.see(f.Command("shutdown", "ana"))
    world.after(30)
    only = "Step 5 is complete and only on this disk: a person pinned it, and the store has newer ones."
    assert only in world.asked(a.Exit)[0].reason and "RUN.toml --step 5" in world.asked(a.Exit)[0].reason
