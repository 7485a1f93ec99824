"""Several runs in one tick: what is done for one of them takes time, and changes what the next one may do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from supervisor.fleet.controller import Controller, RunLook
from supervisor.fleet.decide import decide
from supervisor.fleet.model import Claim, Create, Offered, Pod, Rented, Seen, State
from supervisor.fleet.places.base import Instance, Offer, Order, PlaceError
from supervisor.simulator.virtual_fleet import RUN
from tests.fleet.world import KilledError, VirtualBook, World, default_rules


def control(world: World, book: VirtualBook, *names: str) -> Controller:
    controller = world.controller(book)
    run = controller._runs[RUN]
    controller._runs = {name: replace(run, rules=replace(default_rules(), run_id=name)) for name in names}
    return controller


def test_two_runs_rent_of_one_kind_of_machine_in_one_tick() -> None:
    """RunPod lets a kind of machine, and has many of it."""
    world = World(60)
    kind = Offer("SECURE/H100/2/spot", "H100", 2, 2.0, True, "SECURE/H100/2/spot", is_kind=True)
    world.provider.find_offers = lambda want: [kind]  # type: ignore[method-assign]
    first, second = control(world, VirtualBook(world), "one", "two").tick()
    assert first.did and second.did
    assert len(world.pods) == 2


def test_an_offer_that_one_run_did_not_get_is_not_asked_for_by_the_next_one() -> None:
    world = World(61)
    machines = world.find_machines()[:2]
    world.provider.find_offers = lambda want: machines  # type: ignore[method-assign]
    create, asked = world.provider.create, []

    def create_unless_taken(offer: Offer, order: Order) -> str:
        asked.append(offer.id)
        if offer.id == machines[0].id:
            raise PlaceError("taken", "it is gone")
        return create(offer, order)

    world.provider.create = create_unless_taken  # type: ignore[method-assign]
    first, second = control(world, VirtualBook(world), "one", "two").tick()
    assert "it is gone" in first.failed
    assert second.did
    assert asked == [machines[0].id, machines[1].id]


@pytest.mark.parametrize("fault", ["", "worked"])
def test_a_machine_that_one_run_got_is_not_given_to_the_next_one(fault: str) -> None:
    """One ssh place of two runs, and a second place that is the same host: what was offered is offered once."""
    world = World(64)
    world.provider.faults["create"] = [fault]
    own = Offer("box1", "H100", 2, 0.0, False, "box1")
    world.provider.find_offers = lambda want: [] if world.living else [own]  # type: ignore[method-assign]
    controller = control(world, VirtualBook(world), "one", "two")
    controller._places = {name: replace(controller._places["spot"], name=name) for name in ("spot", "same")}
    for name, run in controller._runs.items():
        rules = replace(run.rules, places={"spot": "virtual", "same": "virtual"}, bids={})
        controller._runs = {**controller._runs, name: replace(run, rules=rules)}
    first, second = controller.tick()
    assert first.did or first.failed
    assert not second.did
    assert len(world.pods) == 1


def test_a_machine_that_failed_one_run_is_left_out_by_all() -> None:
    world = World(65)
    book = VirtualBook(world)
    world.hosts = {"m1": "h", "m2": "h"}
    at = (world.now - 60.0,)
    book.states["one"] = State(wanted=False, faults={"virtual/m0": at})
    # Two runs met one bad machine of host h each. It may be the same one, which says nothing of the others.
    book.states["two"] = State(faults={"virtual/m1": at, "virtual/host h": at})
    book.states["left"] = State(faults={"virtual/host h": at})
    _, second = control(world, book, "one", "two").tick()
    assert second.did
    assert [pod.machine for pod in world.paid()] == ["m2"]


@pytest.mark.parametrize(("failed", "machine"), [(2, "m1"), (3, "m0")])
def test_machines_that_a_run_failed_on_three_times_in_a_row_are_not_left_out_by_the_others(
    failed: int, machine: str
) -> None:
    """Then its image, its key or its file is wrong, and not the machines."""
    world = World(65)
    book = VirtualBook(world)
    at = world.now - 60.0
    pods = (Pod("virtual", 1, Instance(f"i{number}", f"rls-one-{number}", "gone", 2.0)) for number in range(failed))
    ended = tuple(Rented(pod, at, at, 2.0, ended=at, how="no-boot") for pod in pods)
    book.states["one"] = State(wanted=False, rented=ended, faults={"virtual/m0": (at,)})
    control(world, book, "one", "two").tick()
    assert [pod.machine for pod in world.paid()] == [machine]


def test_a_job_gets_no_machine_that_failed_another_run() -> None:
    offered = Offered("spot", Offer("cluster", "", 2, 0.0, False, is_job=True))
    bad = ({"virtual/n1": (900.0,)}, {"virtual/n2": (900.0,), "else/n3": (900.0,)})
    action = decide(State(), default_rules(), Seen(1000.0, Claim(), offers=(offered,), faults=bad)).action
    assert isinstance(action, Create) and action.offered.offer.without == ("n1", "n2")


def test_a_run_whose_holder_came_back_while_another_pod_was_rented_keeps_it() -> None:
    """Renting takes seconds to minutes: what is done for a run is decided on a look of that moment."""
    world = World(62)
    book = VirtualBook(world)
    world.sleep(3600)
    silent, beats = (RunLook(Claim(1, mark, beat_at, step=7), None) for mark, beat_at in (("a", 0.0), ("b", world.now)))
    looks: Iterator[RunLook] = iter([silent, beats])
    controller = control(world, book, "one", "two")
    controller._runs["two"] = replace(controller._runs["two"], look=lambda: next(looks))  # type: ignore[index]
    first, second = controller.tick()
    assert first.did and not second.did
    assert second.decision.sentence == "A pod that this fleet did not rent trains at step 7."
    assert len(world.pods) == 1


def test_what_was_seen_is_written_down_before_the_second_look_is_waited_for() -> None:
    world = World(63)
    book = VirtualBook(world)
    names = ("one", "two")
    for _ in range(40):
        control(world, book, *names).tick()
        world.sleep(30)
    living = [one.id for name in names for one in book.states[name].rented if one.is_living]
    assert living
    for pod in list(world.living.values()):
        world.die(pod)
    world.sleep(200)

    def wait(seconds: float) -> None:
        raise KilledError

    controller = control(world, book, *names)
    controller._sleep = wait
    with pytest.raises(KilledError):
        controller.tick()
    missed = [one.id for name in names for one in book.states[name].rented if one.missing_since == world.now]
    assert missed == living
