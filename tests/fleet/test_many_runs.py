"""Several runs in one tick: what is done for one of them takes time, and changes what the next one may do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from supervisor.fleet.controller import Controller, RunLook
from supervisor.fleet.model import Claim
from supervisor.fleet.places.base import Offer, Order, PlaceError
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
