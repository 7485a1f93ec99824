"""Two controllers of one fleet, with the claim of a real store: one stops at any request, and wakes later."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.base.errors import StoreError, TryAgainError
from supervisor.fleet import book as book_module
from supervisor.fleet.book import StoreBook
from supervisor.fleet.places.base import Instance, Offer, Order
from supervisor.storage.file import FileStore
from tests.fleet.world import VirtualProvider, World

TICK_S = 30.0


class TimedBook(StoreBook):
    """The controller's memory in a real store, whose clock is the world's."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(FileStore(folder), "fleet")
        self.world = world

    def read_clock(self) -> float:
        super().read_clock()
        if self._generation is not None:
            LAST_WORD[self.world] = self.world.now
        return self.world.now

    def _last_word(self) -> float:
        return LAST_WORD.get(self.world, self.world.now)


LAST_WORD: dict[World, float] = {}


class Stopped(VirtualProvider):
    """What one controller asks. At the request of this number, before it is sent or after its answer, all of it stops
    for longer than another controller waits."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.stop_at, self.stops_after = -1, False
        self.meanwhile: Callable[[], None] = lambda: None
        self.stopped = False

    def meet_fault(self, call: str) -> str:
        fault = super().meet_fault(call)
        if not self.stops_after and call != "write":
            self.stop_if_due()
        return fault

    def stop_if_due(self) -> None:
        if self.requests >= self.stop_at >= 0 and not self.stopped:
            self.stopped = True
            self.meanwhile()

    def list_instances(self) -> list[Instance]:
        found = super().list_instances()
        self.stop_if_due()
        return found

    def create(self, offer: Offer, order: Order) -> str:
        made = super().create(offer, order)
        self.stop_if_due()
        return made

    def destroy(self, instance: Instance) -> None:
        super().destroy(instance)
        self.stop_if_due()


class Side:
    """One controller with what it asks through, which may be another machine's."""

    def __init__(self, world: World, folder: Path, provider: VirtualProvider) -> None:
        self.world, self.provider = world, provider
        self.book = TimedBook(world, folder)

    def tick(self) -> None:
        """As `fleet run`: an error is told, and the next pass comes."""
        self.world.provider = self.provider
        with contextlib.suppress(StoreError, TryAgainError):
            self.book.begin()
            self.world.controller(self.book).tick()  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "settle_time", lambda patience_s: 0.0)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=() if number % 6 == 1 else pytest.mark.soak) for number in range(1, 16)]
)
def test_a_controller_that_is_stopped_at_any_request_and_wakes_later_makes_no_pod_that_stays(
    tmp_path: Path, number: int, after: bool
) -> None:
    world = World(80, finish=160)
    world.listed_after_s = [0.0]
    asleep, awake = Side(world, tmp_path, Stopped(world)), Side(world, tmp_path, VirtualProvider(world))
    provider = asleep.provider
    assert isinstance(provider, Stopped)
    while world.holder() is None or (world.held.step or 0) < 20:
        asleep.tick()
        world.sleep(TICK_S)
    first = world.holder()
    assert first is not None
    world.outbid(first)

    def go_on_elsewhere() -> None:
        for _ in range(24):  # twelve minutes
            world.sleep(TICK_S)
            awake.tick()
        world.provider = provider

    provider.stop_at, provider.stops_after, provider.meanwhile = provider.requests + number, after, go_on_elsewhere
    until = world.now + 12 * 3600
    while world.held.code != 0 or world.paid():
        assert world.now < until, (world.held, world.paid())
        asleep.tick()
        if provider.stopped:
            world.sleep(TICK_S / 2)
            awake.tick()
        world.sleep(TICK_S / 2)
    world.settle()
    assert provider.stopped
    assert world.trouble == []
    assert world.twice_s <= TICK_S  # until the other one's next look
