"""One pass over all runs of a fleet: look from outside, decide, write the decision down, then act.

The order matters. A create is written down before it is asked for, and the place is listed right before it: a
controller that is killed at any request, or a create whose answer never comes, makes no second pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from supervisor.base.errors import StoreError
from supervisor.fleet.decide import decide, note_created, note_not_created
from supervisor.fleet.model import Claim, Create, Decision, Destroy, FindOffers, Offered, Pod, Rules, Seen, State
from supervisor.fleet.observe import note_not_destroyed
from supervisor.fleet.places.base import Instance, Offer, Order, PlaceError, Provider, Want, read_label

MOST_PASSES = 12
"""Of one tick over one run: each does at most one thing. A whole handover takes five."""
MOST_WAIT_S = 180.0
"""A second look that is further away than this is left to the next tick."""


@dataclass(frozen=True)
class RunLook:
    """What the run's own store says."""

    claim: Claim
    published: int | None


class Book(Protocol):
    """What the controller remembers, in the store. Each method raises StoreError, of kind "fenced" when it lost it."""

    def read_state(self, run_id: str) -> State:
        """The state of a run; an empty one where none was written yet."""
        ...

    def write_state(self, run_id: str, state: State, sentence: str) -> None:
        """Keep the state, and the sentence that was said, before anything is done."""
        ...

    def read_clock(self) -> float:
        """Seconds by the store's own clock."""
        ...


@dataclass(frozen=True)
class Place:
    """A place of ``fleet.toml``: what is asked of which provider."""

    name: str
    provider: Provider
    want: Want
    bid_factor: float = 1.2  # of a spot machine's lowest bid


@dataclass(frozen=True)
class Run:
    """A run of ``fleet.toml``. ``order`` says what to start for an offer, with the convicted standing."""

    rules: Rules
    look: Callable[[], RunLook]
    order: Callable[[Place, Offer, str, str], Order]


Sweep = Callable[[Mapping[str, State], Mapping[str, list[Instance]]], None]
"""Collects what is left of pods that are gone: given each run's state, and each provider's list where it answered."""


@dataclass(frozen=True)
class Told:
    """What a tick says of one run."""

    run_id: str
    decision: Decision
    did: tuple[str, ...] = ()
    failed: str = ""
    again_s: float | None = None


@dataclass
class _Market:
    """What the providers say within one pass: each is listed once. ``states``: of all runs of the fleet."""

    states: dict[str, State]
    instances: dict[str, list[Instance]] = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)
    keyless: set[str] = field(default_factory=set)


class Controller:
    """Watches the runs of one fleet. It holds nothing in memory between two ticks."""

    def __init__(
        self,
        runs: Mapping[str, Run],
        places: Mapping[str, Place],
        book: Book,
        *,
        sleep: Callable[[float], None],
        sweep: Sweep | None = None,
        dry: bool = False,
    ) -> None:
        """``sleep`` waits for a second look. ``dry``: the same sentences, and nothing is done or written."""
        self._runs, self._places, self._book = runs, places, book
        self._sleep, self._sweep = sleep, sweep
        self._dry = dry

    def tick(self) -> list[Told]:
        """One pass over all runs. Raises StoreError when the fleet has no book: away, or another has it."""
        market = self._list_instances({name: self._book.read_state(name) for name in self._runs})
        tolds = [self._tend(name, run, market) for name, run in self._runs.items()]
        if self._sweep is not None and not self._dry:
            if any(told.did or told.failed for told in tolds):
                market = self._list_instances(market.states)
            self._sweep(market.states, market.instances)
        return tolds

    def _tend(self, name: str, run: Run, market: _Market) -> Told:
        did: list[str] = []
        for number in range(MOST_PASSES):
            if number:
                market = self._list_instances(market.states)
            told = self._pass(name, run, market)
            if did and told.did == (did[-1],):
                break  # a pod that needs its time to end: the next tick looks again
            did += told.did
            if self._dry or told.failed or (not told.did and (told.again_s or MOST_WAIT_S) >= MOST_WAIT_S):
                break
            if not told.did:
                self._sleep(told.again_s or 0.0)
        return replace(told, did=tuple(did))

    def _pass(self, name: str, run: Run, market: _Market) -> Told:
        state = market.states[name]
        seen = self._look(name, run, market)
        decision = decide(state, run.rules, seen)
        if isinstance(decision.action, FindOffers):
            state, offers = self._find_offers(decision.state, decision.action, seen.now)
            decision = decide(state, run.rules, replace(seen, offers=offers))
        if self._dry:
            return Told(name, decision, again_s=decision.again_s)
        market.states[name] = decision.state
        self._book.write_state(name, decision.state, decision.sentence)
        match decision.action:
            case Create() as create:
                told, market.states[name] = self._create(name, run, decision, create, seen.now)
                return told
            case Destroy() as destroy:
                return self._destroy(name, decision, destroy, market)
        return Told(name, decision, again_s=decision.again_s)

    # ------------------------------------------------------------ looking

    def _list_instances(self, states: dict[str, State]) -> _Market:
        market = _Market(states)
        providers = {place.provider.name: place.provider for place in self._places.values()}
        for name, provider in providers.items():
            try:
                market.instances[name] = provider.list_instances()
            except PlaceError as error:
                market.away[name] = str(error)
                if error.kind == "key":
                    market.keyless.add(name)
        for state in states.values():
            for one in state.rented:
                if one.is_living and one.pod.provider not in providers:
                    why = f"no place in use is at {one.pod.provider}, so it is unknown what became of pod {one.id}."
                    market.away[one.pod.provider] = why
        return market

    def _look(self, name: str, run: Run, market: _Market) -> Seen:
        try:
            looked = run.look()
        except StoreError:
            looked = None
        rented = [one for state in market.states.values() for one in state.rented]
        now = self._book.read_clock()
        return Seen(
            now=now,
            claim=looked.claim if looked else None,
            published=looked.published if looked else None,
            pods=tuple(_pods_of(name, market)),
            away=market.away,
            keyless=frozenset(market.keyless),
            spent=sum(one.dollars for one in rented),
            spending=sum(_price_now(state) for state in market.states.values()),
            creates=sum(1 for state in market.states.values() for at in state.creates if now - at < 3600.0),
        )

    def _find_offers(self, state: State, wanted: FindOffers, now: float) -> tuple[State, tuple[Offered, ...]]:
        found: list[Offered] = []
        for name in wanted.places:
            place = self._places[name]
            try:
                bids = [_bid(place, one) for one in place.provider.find_offers(place.want)]
                found += [Offered(name, one) for one in bids if one is not None]
            except PlaceError as error:
                pause_s = max(error.retry_after_s, 30.0)
                state = replace(state, not_before={**state.not_before, name: now + pause_s})
        return state, tuple(found)

    # ------------------------------------------------------------ doing

    def _create(self, name: str, run: Run, decision: Decision, create: Create, now: float) -> tuple[Told, State]:
        place, state = self._places[create.offered.place], decision.state
        known = {one.id for one in state.rented}  # the decision has them in mind
        try:
            others = [
                one.id
                for one in place.provider.list_instances()
                if _is_for(one, name, create.generation) and one.phase != "stopped" and one.id not in known
            ]
            if others:
                raise PlaceError("unsure", f"{place.provider.name} lists {others[0]} for this run already.")
            order = run.order(place, create.offered.offer, create.label, create.convicted)
            if create.offered.offer.spot:
                order = replace(order, bid=create.offered.offer.per_hour - create.offered.offer.disk_per_hour)
            made = place.provider.create(create.offered.offer, order)
            state = note_created(state, create.label)
            told = Told(name, decision, (f"{decision.sentence} It is instance {made}.",))
        except PlaceError as error:
            state = note_not_created(state, create.label, error.kind, error.retry_after_s, now)
            told = Told(name, decision, failed=f"{place.name}: {error}")
        self._book.write_state(name, state, told.failed or told.did[0])
        return told, state

    def _destroy(self, name: str, decision: Decision, destroy: Destroy, market: _Market) -> Told:
        provider = self._provider(destroy.pod.provider)
        if provider is None:
            return Told(name, decision, failed=f"No place of fleet.toml is at {destroy.pod.provider}: end it by hand.")
        try:
            provider.destroy(destroy.pod.instance)
        except PlaceError as error:
            market.states[name] = note_not_destroyed(market.states[name], destroy.pod)
            failed = f"{provider.name}: {error}"
            self._book.write_state(name, market.states[name], failed)
            return Told(name, decision, failed=failed)
        return Told(name, decision, (decision.sentence,))

    def _provider(self, name: str) -> Provider | None:
        return next((place.provider for place in self._places.values() if place.provider.name == name), None)


def _bid(place: Place, offer: Offer) -> Offer | None:
    """The offer at what will be paid for it; None where that is too much."""
    price = offer.per_hour
    if offer.spot:
        bid = (offer.per_hour - offer.disk_per_hour) * place.bid_factor
        price = min(bid + offer.disk_per_hour, max(place.want.most_per_hour, offer.per_hour))
    return replace(offer, per_hour=price) if price <= place.want.most_per_hour else None


def _price_now(state: State) -> float:
    """Dollars an hour for what runs for one run, and for what was just asked for."""
    running = [one for one in state.rented if one.is_living and one.pod.instance.phase != "stopped"]
    asked = 0.0 if state.intent is None else state.intent.per_hour
    return asked + sum(one.per_hour or 0.0 for one in running)


def _pods_of(name: str, market: _Market) -> Iterator[Pod]:
    for provider, instances in market.instances.items():
        for one in instances:
            read = read_label(one.label)
            if read is not None and read[0] == name:
                yield Pod(provider, read[1], one)


def _is_for(instance: Instance, name: str, generation: int) -> bool:
    read = read_label(instance.label)
    return read is not None and read[0] == name and read[1] >= generation
