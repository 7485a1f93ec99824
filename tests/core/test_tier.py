"""What the core knows of a tier: what waits there, and when the run stops using it."""

from __future__ import annotations

import itertools

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.leaving import list_unpublished

from .world import GIB, World

IN_MEMORY = f.TierLook("/dev/shm/run", (40,), in_memory=True)
BEFORE = f.HostLook(100 * GIB, 40 * GIB, oom_kills=3)
KILLED = f.HostLook(100 * GIB, 60 * GIB, oom_kills=4)


def starts(world: World) -> list[a.Start]:
    return [action for action in world.actions if isinstance(action, a.Start)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_an_oom_kill_with_steps_in_memory_ends_the_tier_and_never_speaks_against_the_checkpoint(
    order: tuple[int, ...],
) -> None:
    """The counter, the dead process and the look at the tier come in any order."""
    world = World()
    world.running_at(41)
    world.local[40] = "complete"
    world.see(f.TierLook("/dev/shm/run", (), in_memory=True))
    world.see(BEFORE)
    gone = [
        lambda: world.see(KILLED),
        lambda: world.see(IN_MEMORY),
        lambda: world.see(f.ComponentExited(world.state.attempt.number, "rl", None, 9)),
    ]
    before = len(starts(world))
    for number in order:
        gone[number]()
    world.after(60)
    assert len(starts(world)) > before
    assert world.state.tier.over.startswith("the kernel ended a process because memory was full")
    assert "the next start saves on the run's own volume" in " ".join(world.said("warning"))
    assert not any(one.suspect is not None for one in world.state.recovery.failures)
    assert not world.state.store.quarantined
    world.see(f.TierLook())  # another daemon, which knows of no tier
    world.see(f.ComponentExited(world.state.attempt.number, "rl", 1))
    world.after(120)
    assert "memory was full" in starts(world)[-1].no_tier, "not for the rest of the run"


def test_an_oom_kill_without_steps_in_memory_leaves_the_tier_alone() -> None:
    world = World()
    world.running_at(41)
    world.see(f.TierLook("/nvme/run", (40,), in_memory=False))
    world.see(BEFORE)
    world.see(KILLED)
    assert world.state.tier.over == ""


def test_the_memory_that_a_run_needs_is_learned_only_while_none_of_its_checkpoints_lies_there() -> None:
    world = World()
    world.boot()
    world.see(f.HostLook(100 * GIB, 10 * GIB))
    assert world.state.host.peak_bytes is None, "before its first step a job has not used what it needs"
    world.job_up()
    world.running_at(3)
    world.see(f.HostLook(100 * GIB, 40 * GIB))
    world.see(f.HostLook(100 * GIB, 70 * GIB))
    world.see(f.TierLook("/dev/shm/run", (), in_memory=True))
    world.see(f.HostLook(100 * GIB, 5 * GIB))
    assert world.state.host.peak_bytes == 60 * GIB


def test_a_whole_step_that_the_volume_does_not_take_is_neither_passed_over_nor_waited_for_after_a_persons_word() -> (
    None
):
    """Without that, a run whose only whole step lies on the tier would begin anew, and nothing would be said."""
    world = World()
    world.boot()
    world.job_up()
    world.see(f.StepDone("trainer", 41))
    world.see(f.TierLook("/dev/shm/run", (40,), in_memory=True, failed="the volume is full"))
    world.see(f.ComponentExited(world.state.attempt.number, "rl", None, 9))
    before = len(starts(world))
    world.after(120)
    assert len(starts(world)) == before
    assert "Step 40 is whole only on the tier, /dev/shm/run: the volume is full." in world.state.why
    world.local[40] = "complete"
    world.see(f.TierLook("/dev/shm/run", (), in_memory=True))
    world.after(120)
    assert starts(world)[-1].step == 40
    world.see(f.TierLook("/dev/shm/run", (44,), in_memory=True, failed="the volume is full"))
    world.see(f.Command("rollback", "a person", ("40",)))
    world.after(60)
    assert starts(world)[-1].step == 40 and len(starts(world)) == before + 2, "a person's word comes first"


def test_the_last_sentence_names_what_lies_only_on_the_tier() -> None:
    world = World()
    world.running_at(41)
    world.see(f.TierLook("/dev/shm/run", (44,), in_memory=True, failed="the volume is full."))
    assert list_unpublished(world.state).startswith(
        "Step 44 is whole only on the tier, /dev/shm/run: the volume is full. A lost host loses it; the next start of"
    )
    world.see(f.TierLook("/dev/shm/run", (38,), in_memory=True))
    assert max(world.state.good_stored()) == 40 and not list_unpublished(world.state), "a newer one is in the store"
