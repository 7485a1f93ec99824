"""Disks of the single machines, with two faults at once: neither a torn step nor other bytes than those that were."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.base.errors import StoreError, SupervisorError
from supervisor.core import facts as f
from supervisor.effects.lanes import Lanes
from supervisor.effects.store_work import StoreWork
from supervisor.nodes import steps as steps_module
from supervisor.nodes.wire import now
from tests.hands import Seen, context
from tests.nodes.disk_rig import expected
from tests.nodes.disk_world import World
from tests.nodes.test_disks import content, stored, world

__all__ = ["world"]  # a fixture
THREE = ("n0", "n1", "n2")


def save_other_bytes(world: World, step: int) -> None:
    """The same step of another lineage: the same names and sizes."""
    for rank, name in enumerate(THREE):
        shard = world.disk(name) / f"checkpoints/step_{step}/trainer/__{rank}_0.distcp"
        data = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(data[:-1] + b"!")
    metadata = world.disk("n0") / f"checkpoints/step_{step}/trainer/.metadata"
    metadata.write_bytes(metadata.read_bytes())


def shards(world: World, step: int) -> dict[str, bytes]:
    found = [(world.disk(name) / f"checkpoints/step_{step}/trainer", rank) for rank, name in enumerate(THREE)]
    return {f"trainer/__{rank}_0.distcp": (folder / f"__{rank}_0.distcp").read_bytes() for folder, rank in found}


def test_a_step_that_is_saved_anew_while_one_machine_has_yet_to_send_is_not_committed(world: World) -> None:
    world.save(6)
    world.look()
    manifest = world.folder / "store/several/step_6/manifest.json"
    ended: list[str] = []
    for name in ("n0", "n1"):

        def send(order: dict[str, Any], name: str = name, real: Any = world.machines[name].carry_out) -> Any:
            answer = real(order)
            ended.append(name)
            return answer

        world.machines[name].carry_out = send  # type: ignore[method-assign]

    def save_between(host: str, order: dict[str, Any]) -> None:
        if host == "n2":
            deadline = now() + 60
            while len(ended) < 2 and now() < deadline:
                time.sleep(0.02)
            save_other_bytes(world, 6)

    world.before = save_between
    with pytest.raises(StoreError, match="step 6 changed while it was being published") as caught:
        world.publish(6)
    assert caught.value.kind == "changed"
    assert len(ended) == 2
    assert not manifest.exists()
    world.before = lambda host, order: None
    world.look()
    world.publish(6)
    assert {name: data for name, data in stored(world, 6).items() if "distcp" in name} == shards(world, 6)


@pytest.fixture
def work(world: World) -> Iterator[StoreWork]:
    told: list[f.Fact] = []
    run = context(world.run_file, told)
    run.machines = SimpleNamespace(disks=world.disks)  # type: ignore[assignment]
    run.job = world.job
    made = StoreWork(run, Seen(), Lanes(lambda lane, reason: None))
    made.transfers = world.transfers
    made.claiming._needed = False  # no other pod is about
    yield made
    made.close()


def test_a_start_at_a_step_that_cannot_be_published_fetches_no_older_one_of_that_number(
    world: World, work: StoreWork
) -> None:
    world.save(6)
    world.look()
    world.publish(6)
    save_other_bytes(world, 6)
    world.look()
    here = shards(world, 6)
    world.before = lambda host, order: world.silent.add("n1")  # for the moment in which it was to be sent
    with pytest.raises(SupervisorError, match="Step 6 is not published"):
        work.bring_step(world.job, 6)
    assert world.disks._wanted is None and shards(world, 6) == here


def test_a_store_that_is_away_while_a_disk_does_not_answer_costs_no_part_of_the_newest_step(world: World) -> None:
    world.save(6)
    world.look()
    world.disks.look()
    world.disks._fresh.discard("n1")  # its look had failed
    world.disks.bring_step(world.ask_to_restore(6))
    with pytest.raises(StoreError):
        world.disks.prepare(THREE)  # it is not in the store
    assert shards(world, 6)
    world.look()
    assert world.job.check_step(6, settled=True).state == "complete"


def test_a_full_disk_of_the_head_makes_steps_unknown_and_no_machine_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.save(6)
    world.look()
    world.save(12)
    with monkeypatch.context() as patch:

        def full(*words: object, **more: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(steps_module.os, "utime", full)
        patch.setattr(Path, "write_bytes", full)
        world.look()  # an error would hang up on the machine
        check = world.job.check_step(6)
        assert (check.state, "No space left" in check.reason) == ("writing", True)
        assert world.disks.is_there("n1")
    deadline = now() + 20
    while world.job.check_step(12, settled=True).state != "complete" and now() < deadline:
        world.disks.tick()
        world.look()
    assert world.job.check_step(12, settled=True).state == "complete"


def test_a_clock_of_the_head_that_steps_back_in_the_middle_of_a_save_makes_no_shard_newer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.save(6, metadata=False)
    world.look()
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(steps_module.time, "time", lambda: real() - 600)
        # What the machines say of a file's age is of their own clocks, which are right.
        patch.setattr("supervisor.nodes.disk.time", SimpleNamespace(time=real))
        world.save(6, ranks=[])
        world.look()
        assert world.job.check_step(6, settled=True).state == "complete"


@pytest.mark.soak
def test_a_step_is_deleted_on_all_machines_while_another_is_brought_to_one(world: World) -> None:
    for step in (6, 12):
        world.save(step)
        world.look()
        world.publish(step)
    world.disks.look()
    world.disks.bring_step(world.ask_to_restore(12))
    freed: list[int] = []

    def delete_first(host: str, order: dict[str, Any]) -> None:
        if host == "n2" and order["do"] == "fetch" and not freed:
            freed.append(world.disks.delete_trees(world.job.step_trees(6), world.folder / "head"))

    world.before = delete_first
    world.disks.prepare(THREE)
    assert freed[0] > 0
    for name in THREE:
        assert content(world.disk(name) / "checkpoints") == {f"step_12/{k}": v for k, v in expected(12, 3).items()}
