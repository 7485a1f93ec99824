"""One pass over all runs of a fleet: look from outside, decide, write the decision down, then act.

The order matters. A create is written down before it is asked for, and the place is listed right before it: a
controller that is killed at any request, or a create whose answer never comes, makes no second pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from supervisor.base.errors import StoreError
from supervisor.base.secrets import mask_secrets, printable
from supervisor.fleet.decide import (
    MOST_FRUITLESS,
    count_fruitless,
    decide,
    decide_removed,
    note_created,
    note_not_created,
    note_not_found,
)
from supervisor.fleet.model import (
    Claim,
    Create,
    Decision,
    Destroy,
    FindOffers,
    Money,
    Offered,
    Pod,
    RaiseBid,
    Rules,
    Seen,
    State,
    Verdict,
)
from supervisor.fleet.observe import (
    HOUR_S,
    count_creates,
    doubt_old_listing,
    name_machine,
    note_bid,
    note_not_destroyed,
    observe,
    price_now,
    sum_dollars,
    sum_price_now,
)
from supervisor.fleet.places.base import Instance, Offer, Order, PlaceError, Provider, Want, read_label
from supervisor.fleet.side_by_side import ask_for_each

MOST_PASSES = 12
"""Of one tick over its runs: each does at most one thing for a run. A whole handover takes five."""
MOST_WAIT_S = 180.0
"""A second look that is further away than this is left to the next tick."""


@dataclass(frozen=True)
class RunLook:
    """What the run's own store says."""

    claim: Claim
    published: int | None


class Book(Protocol):
    """What the controller remembers, in the store. Each method raises StoreError, of kind "fenced" when it lost it."""

    def list_runs(self) -> list[str]:
        """Ids of all runs of which there is a state, also those that are in fleet.toml no more."""

    def read_state(self, run_id: str) -> State:
        """The state of a run; an empty one where none was written yet."""

    def write_state(self, run_id: str, state: State, sentence: str, *, verdict: Verdict = "") -> None:
        """Keep the state, and the sentence that was said, before anything is done."""

    def read_clock(self) -> float:
        """Seconds by the store's own clock."""


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
    fit: Callable[[Place, Offer], Offer] = lambda place, offer: offer  # with what is only known of this run


Sweep = Callable[[Mapping[str, State], Mapping[str, list[Instance]]], None]
"""Collects what is left of pods that are gone: given each run's state, and each provider's list where it answered."""


@dataclass(frozen=True)
class Told:
    """What a tick says of one run."""

    run_id: str
    decision: Decision
    did: tuple[str, ...] = ()
    failed: str = ""


@dataclass
class _Market:
    """What the providers say at one moment: each is listed once. ``states``: of all runs of the fleet."""

    states: dict[str, State]
    now: float = 0.0
    instances: dict[str, list[Instance]] = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)
    keyless: set[str] = field(default_factory=set)
    pods: dict[str, tuple[Pod, ...]] = field(default_factory=dict)  # run -> what is listed of it
    seen: dict[str, State] = field(default_factory=dict)  # of all runs, with what is listed now: for what they cost
    offers: dict[str, list[Offer] | PlaceError] = field(default_factory=dict)  # place -> what it was asked for once
    damaged: Mapping[str, str] = field(default_factory=dict)  # run -> why its state cannot be read

    def put(self, name: str, state: State) -> None:
        """What became of a run, by what is listed now."""
        self.states[name] = self.seen[name] = state


class Controller:
    """Watches the runs of one fleet. What it must remember is in the book, and not in memory."""

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
        self._watched: dict[str, tuple[State, State]] = {}  # of a dry one: run -> as it was read, as it was seen since
        self.store_was_away = False
        self.money: Money | None = None  # at the end of the last tick

    def tick(self) -> list[Told]:
        """One pass over all runs. Raises StoreError when the fleet has no book: away, or another has it."""
        try:
            tolds = self._tick()
        except StoreError as error:
            self.store_was_away = self.store_was_away or error.kind != "fenced"
            raise
        self.store_was_away = False
        return tolds

    def _tick(self) -> list[Told]:
        states, damaged = self._read_states()
        market = self._look_around(_Market(states, damaged=damaged))
        tolds = {name: Told(name, Decision(State(), why, person=True)) for name, why in damaged.items()}
        due = dict.fromkeys(states, market.now)
        for number in range(MOST_PASSES):
            if number:
                market = self._look_around(market)
            names = [one for one, at in due.items() if at <= market.now]
            looks = ask_for_each(filter(self._runs.get, names), lambda name: self._runs[name].look())
            calm: dict[str, Decision] = {}
            for name in names:
                told = self._pass(name, market, looks.get(name), calm)
                did, failed = (tolds[name].did, tolds[name].failed) if name in tolds else ((), "")
                again_s = 0.0 if told.did or told.failed else told.decision.again_s
                # A pod that needs its time to end is destroyed once a tick, and what failed once is not tried again.
                if self._dry or again_s is None or again_s >= MOST_WAIT_S or did[-1:] == told.did != ():
                    del due[name]
                else:
                    due[name] = market.now + again_s
                failed = " ".join(dict.fromkeys(filter(None, (failed, told.failed))))
                tolds[name] = replace(told, did=did if did[-1:] == told.did else (*did, *told.did), failed=failed)
            self._write_down(calm)
            if not due:
                break
            self._sleep(max(0.0, min(due.values()) - market.now))
        self.money = _count_money(market)
        if self._sweep is not None and not self._dry:
            if any(told.did or told.failed for told in tolds.values()):
                market = self._look_around(market)
            self._sweep(market.states, market.instances)
        return [told for name, told in tolds.items() if name in self._runs or told.did or not told.decision.done]

    def _read_states(self) -> tuple[dict[str, State], dict[str, str]]:
        """The states, and which of them cannot be read: one that is damaged does not stop the others."""
        states: dict[str, State] = {}
        damaged: dict[str, str] = {}
        names = dict.fromkeys([*self._runs, *self._book.list_runs()])
        for name, read_state in ask_for_each(names, self._book.read_state).items():
            try:
                states[name] = read_state()
            except StoreError as error:
                if error.kind != "damaged":
                    raise
                damaged[name] = f"{error}."
                continue
            read, watched = self._watched.get(name, (None, states[name]))
            if read == states[name]:
                states[name] = watched
            elif self._dry:
                self._watched[name] = (states[name], states[name])
        return states, damaged

    def _pass(self, name: str, market: _Market, look: Callable[[], RunLook] | None, calm: dict[str, Decision]) -> Told:
        """``look``: gives the look of this round. ``calm`` gets the decision that nothing is to be done."""
        state, run = market.states[name], self._runs.get(name)
        if run is None:
            seen = self._look(name, None, market)
            decision = decide_removed(state, name, seen)
        else:
            seen = self._look(name, look, market)
            decision = decide(state, run.rules, seen)
            if decision.action is not None and len(self._runs) > 1:  # what was done for others may have taken minutes
                seen = self._look(name, run.look, market)
                decision = decide(state, run.rules, seen)
            if isinstance(decision.action, FindOffers):
                state, offers = self._find_offers(run, decision.state, decision.action, market)
                decision = decide(state, run.rules, replace(seen, offers=offers))
        if self._dry:
            self._watched[name] = (self._watched[name][0], observe(state, doubt_old_listing(state, seen)))
            return Told(name, decision)
        market.put(name, decision.state)
        if decision.action is None:
            calm[name] = decision
            return Told(name, decision)
        decision = self._say_what_it_printed(decision)
        self._write_down({name: decision})
        match decision.action:
            case Create() as create if run is not None:
                told, state = self._create(name, run, decision, create, market)
                market.put(name, state)
                return told
            case RaiseBid() as raised:
                return self._raise_bid(name, decision, raised, market)
            case Destroy() as destroy:
                return self._destroy(name, decision, destroy, market)
        return Told(name, decision)

    def _write_down(self, decisions: Mapping[str, Decision]) -> None:
        def write(name: str) -> None:
            found = decisions[name]
            self._book.write_state(name, found.state, found.sentence, verdict=found.verdict)

        for written in ask_for_each(decisions, write).values():
            written()

    # ------------------------------------------------------------ looking

    def _look_around(self, last: _Market) -> _Market:
        """List all providers once, and read the clock. What is known of the runs is kept."""
        market = _Market(last.states, self._book.read_clock(), damaged=last.damaged)
        providers = {place.provider.name: place.provider for place in self._places.values()}
        for name, provider in providers.items():
            try:
                market.instances[name] = provider.list_instances()
            except PlaceError as error:
                market.away[name] = str(error)
                if error.kind == "key":
                    market.keyless.add(name)
        for state in market.states.values():
            for name, pod in _list_places(state):
                if name not in providers:
                    market.away[name] = f"no place in use is at {name}, so it is unknown what became of pod {pod}."
        for name, state in market.states.items():
            market.pods[name] = tuple(_pods_of(name, market))
            market.seen[name] = observe(state, Seen(market.now, None, pods=market.pods[name], away=market.away))
        return market

    def _look(self, name: str, look: Callable[[], RunLook] | None, market: _Market) -> Seen:
        looked, no_answer, needs_person = None, "", False
        try:
            looked = look() if look is not None else None
        except StoreError as error:
            no_answer, needs_person = f"{error}.", error.kind in ("permanent", "quota", "damaged")
        states = market.seen.values()
        return Seen(
            now=market.now,
            claim=looked.claim if looked else None,
            no_answer=no_answer,
            store_needs_person=needs_person,
            store_was_away=self.store_was_away,
            published=looked.published if looked else None,
            pods=market.pods[name],
            away=market.away,
            keyless=frozenset(market.keyless),
            occupied=frozenset(machine for state in states for machine in _machines_of(state)),
            has_spot_pod=frozenset(machine for state in states for machine in _machines_of(state, spot_only=True)),
            # Where pod after pod of a run fails, its image or its file is wrong, and not the machines.
            faults=tuple(one.faults for one in states if one.faults and count_fruitless(one) < MOST_FRUITLESS),
            money=_count_money(market),
        )

    def _find_offers(
        self, run: Run, state: State, wanted: FindOffers, market: _Market
    ) -> tuple[State, tuple[Offered, ...]]:
        found: list[Offered] = []
        for name in wanted.places:
            place = self._places[name]
            if name not in market.offers:
                try:
                    market.offers[name] = place.provider.find_offers(place.want)
                except PlaceError as error:
                    market.offers[name] = error
            offers = market.offers[name]
            if isinstance(offers, PlaceError):
                state = note_not_found(state, name, offers, market.now)
            else:
                fitted = (run.fit(place, offer) for offer in offers)
                found += [Offered(name, one) for offer in fitted if (one := _bid(place, offer)) is not None]
        return state, tuple(found)

    # ------------------------------------------------------------ doing

    def _create(self, name: str, run: Run, decision: Decision, create: Create, market: _Market) -> tuple[Told, State]:
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
            state = note_created(state, create.label, made)
            told = Told(name, decision, (f"{decision.sentence} It is instance {made}.",))
        except PlaceError as error:
            state = note_not_created(state, create.label, error, market.now)
            offers = market.offers.get(place.name)
            if error.kind == "taken" and isinstance(offers, list):  # nor does the next run get it
                market.offers[place.name] = [one for one in offers if one.id != create.offered.offer.id]
            told = Told(name, decision, failed=f"{place.name}: {error}")
        self._book.write_state(name, state, told.failed or told.did[0])
        return told, state

    def _raise_bid(self, name: str, decision: Decision, raised: RaiseBid, market: _Market) -> Told:
        provider = self._provider(raised.pod.provider)
        if provider is None:
            return Told(name, decision, failed=f"No place of fleet.toml is at {raised.pod.provider}: bid by hand.")
        try:
            provider.raise_bid(raised.pod.instance, raised.bid)
        except PlaceError as error:
            failed = f"{provider.name}: {error}"
            if error.kind != "unsure":
                bid = None if error.kind in ("rate", "away") else 0.0
                market.put(name, note_bid(market.states[name], raised.pod, bid, market.now))
                self._book.write_state(name, market.states[name], failed)
            return Told(name, decision, failed=failed)
        return Told(name, decision, (decision.sentence,))

    def _say_what_it_printed(self, decision: Decision) -> Decision:
        """With the last line of a pod that never began: its log goes with it."""
        if not isinstance(decision.action, Destroy):
            return decision
        pod = decision.action.pod
        [how] = {one.how for one in decision.state.rented if one.pod.key == pod.key}
        provider = self._provider(pod.provider)
        if how not in ("no-boot", "failed") or provider is None:
            return decision
        try:
            lines = [line for line in map(printable, provider.read_log(pod.instance).splitlines()) if line.strip()]
        except PlaceError as error:
            return replace(decision, sentence=f"{decision.sentence} {error}")
        last = (
            f"The last line that it printed: {mask_secrets(lines[-1].strip())[:200]}"
            if lines
            else "It printed nothing."
        )
        return replace(decision, sentence=f"{decision.sentence} {last}")

    def _destroy(self, name: str, decision: Decision, destroy: Destroy, market: _Market) -> Told:
        provider = self._provider(destroy.pod.provider)
        try:
            if provider is None:
                where = destroy.pod.full_id
                raise PlaceError("refused", f"{where} is at no place of fleet.toml: end it by hand, or add the place.")
            provider.destroy(destroy.pod.instance)
        except PlaceError as error:
            market.put(name, note_not_destroyed(market.states[name], destroy.pod, market.now))
            failed = str(error) if provider is None else f"{provider.name}: {error}"
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


def _count_money(market: _Market) -> Money:
    states = market.seen.values()
    return Money(
        spent=None if market.damaged else sum(sum_dollars(one) + _sum_owed(one, market) for one in states),
        per_hour=sum(map(sum_price_now, states)),
        creates=sum(count_creates(one, market.now) for one in states),
    )


def _list_places(state: State) -> Iterator[tuple[str, str]]:
    """Providers where something of the run lives, or may, and what."""
    for intent in (state.intent, *state.given_up):
        if intent is not None:
            yield intent.provider, intent.label
    for one in state.living_pods:
        yield one.pod.provider, one.id


def _sum_owed(state: State, market: _Market) -> float:
    """Dollars since the last look, at providers that do not answer."""
    silent = [one for one in state.living_pods if one.pod.provider in market.away]
    return sum(max(0.0, market.now - one.seen_at) / HOUR_S * price_now(one) for one in silent)


def _machines_of(state: State, *, spot_only: bool = False) -> Iterator[str]:
    """Where a pod of the run lives, or may soon."""
    if state.intent is not None and state.intent.machine:
        yield state.intent.machine
    for one in state.living_pods:
        instance = one.pod.instance
        if instance.machine and (instance.spot or not spot_only):
            yield name_machine(one.pod.provider, instance.machine)


def _pods_of(name: str, market: _Market) -> Iterator[Pod]:
    """What is listed under the run's labels; and by its id a pod that lives or was made, and whose label is lost."""
    state = market.states[name]
    over = {(one.pod.provider, one.id) for one in state.rented if one.ended and market.now - one.ended >= HOUR_S}
    made = {(one.provider, one.id): (one.generation, one.label) for one in state.asked.values() if one.id}
    pods = [one.pod for one in state.rented]
    known = made | {(pod.provider, pod.instance.id): (pod.generation, pod.instance.label) for pod in pods}
    for provider, instances in market.instances.items():
        for one in instances:
            read, place = read_label(one.label), (provider, one.id)
            if read is not None and read[0] == name:
                yield Pod(provider, read[1], one)
            elif read is None and place in known and place not in over:
                generation, label = known[place]
                yield Pod(provider, generation, replace(one, label=label))


def _is_for(instance: Instance, name: str, generation: int) -> bool:
    read = read_label(instance.label)
    return read is not None and read[0] == name and read[1] >= generation
