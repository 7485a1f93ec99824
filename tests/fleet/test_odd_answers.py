"""What a second set of fakes broke, written from the vendors' documents alone: each once, in the virtual world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.base import http
from supervisor.fleet.controller import RunLook
from supervisor.fleet.model import Claim
from supervisor.fleet.observe import count_creates
from supervisor.fleet.places import rest
from supervisor.fleet.places.base import Instance, Offer, Order, PlaceError
from supervisor.fleet.places.fields import read_amount
from supervisor.fleet.places.prime import Prime
from supervisor.fleet.places.vast import Vast
from supervisor.simulator.clockwork import NEVER
from supervisor.simulator.virtual_fleet import VirtualPod
from tests.fleet.test_controller import is_over, run_until, train_world, trains
from tests.fleet.world import RUN, VirtualBook, World, default_rules


class Silent(World):
    """Pods of ``freeze`` claim the run, beat once, and never say a word again. Who has trained no step names none."""

    def __init__(self, seed: int, freeze: Callable[[VirtualPod], bool]) -> None:
        super().__init__(seed)
        self.freeze = freeze

    def _write_beat(self, pod: VirtualPod) -> None:
        super()._write_beat(pod)
        if pod.trains_from == NEVER:
            self.held.step = None

    def _train(self, pod: VirtualPod) -> None:
        if self.freeze(pod):
            self.stop_processes(pod)
        else:
            super()._train(pod)


def hours(world: World, book: VirtualBook, count: float) -> None:
    until = world.now + 3600 * count
    run_until(world, book, lambda: world.now >= until, count + 1)


def test_pods_that_claim_the_run_and_freeze_are_no_more_than_three() -> None:
    """They were rented up to limits.per_hour: each may hold a step, so each is kept, and billed."""
    world = Silent(70, lambda pod: True)
    book = VirtualBook(world)
    hours(world, book, 6)
    assert len(world.pods) == 3
    assert "3 pods in a row ended or fell silent before they trained" in book.said[-1]


def test_a_pod_that_froze_before_its_first_step_goes_when_the_next_one_has_published() -> None:
    """It was kept for ever: it had named no step that another one could be newer than."""
    world = Silent(71, lambda pod: pod.id == "i0")
    book = VirtualBook(world)
    run_until(world, book, lambda: bool(world.held.published))
    hours(world, book, 0.1)
    assert world.pods["i0"].destroyed is not None
    run_until(world, book, is_over(world))
    assert world.trouble == [] and len(world.pods) == 2


@pytest.mark.parametrize("kind", ["taken", "rate", "refused"])
def test_a_create_that_was_refused_and_worked_leaves_one_pod(kind: str) -> None:
    """Listed 45 s later, after the next one was rented: it was taken for a pod that had trained, and kept."""
    world = World(72)
    world.listed_after_s = [45.0]
    create = world.provider.create
    refused: list[str] = []

    def refuse(offer: Offer, order: Order) -> str:
        made = create(offer, order)
        if not refused:
            refused.append(made)
            raise PlaceError("taken" if kind == "taken" else "rate" if kind == "rate" else "refused", "It is gone.")
        return made

    world.provider.create = refuse  # type: ignore[method-assign]
    book = VirtualBook(world)
    world.controller(book).tick()
    assert count_creates(book.states[RUN], world.now) == (1 if kind == "taken" else 0)
    run_until(world, book, lambda: world.holder() is not None)
    hours(world, book, 0.1)
    assert len(world.paid()) == 1
    assert count_creates(book.states[RUN], world.now) == len(world.pods)
    run_until(world, book, is_over(world))
    assert world.trouble == []


def test_an_id_that_a_provider_gives_twice_is_two_pods() -> None:
    """The second one got the age of the first, and was destroyed as one that never came up."""
    world, book, first = train_world(73)
    world.die(first)
    world.rent = as_id(world, "i0")  # type: ignore[method-assign]
    run_until(world, book, lambda: world.held.generation == 2)
    one, two = book.states[RUN].rented
    assert (one.id, two.id) == ("i0", "i0")
    assert not one.is_living and two.is_living and two.since > one.since
    run_until(world, book, is_over(world))
    assert world.trouble == [] and len(book.states[RUN].rented) == 2


def as_id(world: World, name: str) -> Callable[..., VirtualPod]:
    rent = world.rent

    def rented(offer: Offer, order: Order, *, boots: bool = True) -> VirtualPod:
        pod = rent(offer, order, boots=boots)
        del world.pods[pod.id], world.living[pod.id]
        pod.id = name
        world.pods[name] = world.living[name] = pod
        return pod

    return rented


def test_a_list_that_says_stopped_and_running_by_turns_convicts_by_silence() -> None:
    """Each "running" was an awakening, and put the patience off: such a run stood still for ever."""
    world, book, first = train_world(74)
    world.stop_processes(first)
    listing, looks = world.provider.list_instances, [0]

    def by_turns() -> list[Instance]:
        looks[0] += 1
        return [replace(one, phase="stopped") if looks[0] % 2 else one for one in listing()]

    world.provider.list_instances = by_turns  # type: ignore[method-assign]
    began = world.now
    run_until(world, book, lambda: len(world.pods) == 2, hours=1)
    assert world.now - began <= 600 + 180 + 300


def old_look(world: World, generation: int | None = None, older_s: float = 0.0) -> Callable[[], RunLook]:
    look = world.look

    def old() -> RunLook:
        now = look()
        claim = replace(now.claim, generation=generation or now.claim.generation, beat_at=now.claim.beat_at - older_s)
        return replace(now, claim=replace(claim, label=world.pods["i0"].label) if generation else claim)

    return old


def test_an_old_listing_of_the_store_changes_nothing() -> None:
    """It named a pod that had lost the run, so the one that trains was taken for one that is not needed."""
    world = World(75, finish=1200)
    book = VirtualBook(world)
    run_until(world, book, trains(world))
    first = world.holder()
    assert first is not None
    world.outbid(first)
    run_until(world, book, lambda: world.held.generation == 2)
    second = world.holder()
    assert second is not None
    hours(world, book, 0.5)
    before = len(world.pods)
    for look in (old_look(world, generation=1), old_look(world, older_s=400.0)):
        honest, world.look = world.look, look  # type: ignore[method-assign]
        hours(world, book, 0.1)
        assert "It is unknown who trains, so nothing is changed: its store shows a heartbeat" in book.said[-1]
        world.look = honest  # type: ignore[method-assign]
        hours(world, book, 0.2)
    assert world.holder() is second and len(world.pods) == before
    run_until(world, book, is_over(world))
    assert world.trouble == []


def test_claims_that_a_person_deleted_are_believed_after_fleet_up() -> None:
    world, book, _ = train_world(76)
    world.look = lambda: RunLook(Claim(), None)  # type: ignore[method-assign]
    hours(world, book, 0.3)
    assert "Where its claims were deleted on purpose: rl-supervisor fleet up" in book.said[-1]
    [told] = world.controller(book).tick()
    assert told.decision.person
    book.states[RUN] = replace(book.states[RUN], up_at=world.now)
    world.controller(book, default_rules()).tick()
    assert "It is unknown" not in book.said[-1]


class Answers:
    """What a server answers, one after the other; the last one again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pages: http.Page) -> None:
        self.pages, self.asked, self.now = list(pages), 0, 0.0
        monkeypatch.setattr(rest.http, "ask", self.ask)

    def ask(self, *words: object, **more: object) -> http.Page:
        self.asked += 1
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


def test_a_list_is_left_alone_for_as_long_as_its_server_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked every 30 s, while offers and creates were not."""
    empty = http.Page(200, b'{"instances": []}')
    server = Answers(monkeypatch, http.Page(429, b"slow", False, 300.0), empty)
    vast = Vast("k", "http://127.0.0.1:1", clock=server.clock, sleep=server.sleep)
    for _ in range(10):
        with pytest.raises(PlaceError) as caught:
            vast.list_instances()
        assert caught.value.kind == "rate"
        server.sleep(29.0)
    assert server.asked == 1
    server.sleep(5.0)
    assert vast.list_instances() == [] and server.asked == 2
    server.pages = [http.Page(503, b"", False, 5.0), empty]  # a pause that short is waited for
    with pytest.raises(PlaceError):
        vast.list_instances()
    began = server.now
    assert vast.list_instances() == [] and server.now - began == pytest.approx(5.0)


def test_a_pod_that_prime_lists_twice_on_one_page_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its list was never whole then, so Prime was away for ever."""
    row = b'{"id": "a", "name": "x", "status": "ACTIVE"}'
    page = http.Page(200, b'{"total_count": 2, "data": [%s, %s]}' % (row, row))
    server = Answers(monkeypatch, page)
    prime = Prime("k", "http://127.0.0.1:1", clock=server.clock, sleep=server.sleep)
    assert [one.id for one in prime.list_instances()] == ["a"]


def test_a_price_next_to_zero_is_zero() -> None:
    """Its logarithm, and a disk in steps of it, ended the whole tick."""
    assert read_amount(5e-324) == read_amount("1e-300") == 0.0
    assert read_amount(0.0123456789) == 0.0123456789  # a bid below the lowest one is refused
