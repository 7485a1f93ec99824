"""What the fleet's core sees, remembers and orders. Times are seconds by the store's own clock, money is dollars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from supervisor.fleet.places.base import ErrorKind, Instance, Offer

How = Literal["gone", "outbid", "unfit", "failed", "no-boot", "replaced", "duplicate", "finished", "down"]
"""How a pod ended."""


Verdict = Literal["", "person", "done"]
"""Of a decision: only a person can go on from here, or nothing is left to do."""


# ---------------------------------------------------------------- what is seen


@dataclass(frozen=True)
class Claim:
    """Who holds the run, as its store tells it (``supervisor.checkpoints.claims``)."""

    generation: int = 0  # 0: no pod ever held it
    mark: str = ""  # another one with each beat
    beat_at: float = 0.0  # when the newest beat, the claim, or the release was uploaded
    released: bool = False
    code: int | None = None  # with which the holder ended, where it said so
    reason: str = ""
    label: str = ""  # of the holder's pod, as this fleet named it; "" of one that it did not make
    step: int | None = None
    unpublished: tuple[int, ...] | None = None  # steps that are only on the holder's disk; None: it does not say

    @property
    def is_free(self) -> bool:
        return self.generation == 0 or self.released


@dataclass(frozen=True)
class Pod:
    """An instance under one of the run's labels."""

    provider: str
    generation: int  # the one it was made for
    instance: Instance

    @property
    def key(self) -> tuple[str, str, str]:
        """An id alone is not enough: it is not documented that a provider gives none twice."""
        return self.provider, self.instance.id, self.instance.label

    @property
    def full_id(self) -> str:
        """As people name it: two providers may give one id."""
        return f"{self.provider}/{self.instance.id}"


@dataclass(frozen=True)
class Offered:
    """What could be rented now in one place of ``fleet.toml``."""

    place: str
    offer: Offer  # its price is what will be paid: of a spot machine, the bid


@dataclass(frozen=True)
class Money:
    """What all runs of the fleet cost."""

    spent: float | None = 0.0  # dollars so far; None: a part of the memory cannot be read
    per_hour: float = 0.0  # dollars, for what runs now
    creates: int = 0  # within the last hour


@dataclass(frozen=True)
class Seen:
    """One look at a run from outside. What could not be looked at is told as such, and nothing is made of it."""

    now: float
    claim: Claim | None  # None: the store does not answer
    no_answer: str = ""  # why it does not
    store_needs_person: bool = False  # it will not answer by itself: a key, a bucket, a damaged record
    store_was_away: bool = False  # at the look before, in a way that left nothing remembered
    published: int | None = None  # newest step that latest.json names
    pods: tuple[Pod, ...] = ()
    away: Mapping[str, str] = field(default_factory=dict)  # provider -> why its instances could not be listed
    keyless: frozenset[str] = frozenset()  # providers that refuse the account's key
    offers: tuple[Offered, ...] | None = None  # None: not asked for yet
    occupied: frozenset[str] = frozenset()  # machines on which a pod of the fleet lives, or is to live
    has_spot_pod: frozenset[str] = frozenset()  # those of them on which a spot pod lives, or any pod is to live
    faults: tuple[Mapping[str, tuple[float, ...]], ...] = ()  # what each run of the fleet remembers of machines
    money: Money = Money()


# ---------------------------------------------------------------- what a person wants


@dataclass(frozen=True)
class Bidding:
    """How a place bids for spot machines: the lowest possible bid times ``factor``, and never more than ``most``."""

    factor: float
    most: float  # dollars an hour for the whole machine, disk included


@dataclass(frozen=True)
class Rules:
    """What ``fleet.toml`` says of one run, and the limits of the fleet."""

    run_id: str
    places: Mapping[str, str]  # place -> its provider, in the order of preference
    beat_s: float = 60.0
    patience_s: float = 600.0
    boot_s: float = 1800.0  # from the create to the claim
    per_hour: float | None = None
    total: float | None = None
    creates_per_hour: int = 6
    until: float | None = None  # no pod is rented after that
    bids: Mapping[str, Bidding] = field(default_factory=dict)  # of places with spot machines
    rents: bool = True  # False: this look is for the money and for what is rented, and nothing more is rented


# ---------------------------------------------------------------- what is remembered


@dataclass(frozen=True)
class Trained:
    """What a pod trained, by its beats."""

    first: int  # the step of its first beat that named one
    first_at: float
    last: int
    last_at: float
    kept: int  # newest published step while it held the run
    before_s: float = 0.0  # useful seconds before it began again at an older step

    @property
    def useful_s(self) -> float:
        """Seconds of training that no other pod does again: up to the newest published step."""
        if self.last <= self.first:
            return self.before_s
        kept = min(max(self.kept, self.first), self.last)
        return self.before_s + (self.last_at - self.first_at) * (kept - self.first) / (self.last - self.first)


@dataclass(frozen=True)
class Rented:
    """A pod that was seen under one of the run's labels, and what became of it."""

    pod: Pod  # as it was listed last
    since: float
    seen_at: float  # until when it is paid for: the last look that found it listed, or the first that did not
    per_hour: float | None  # the last price that is known; None: never
    place: str = ""  # for which it was rented; "": unknown
    disk_per_hour: float = 0.0  # the part of its price that a bid does not include
    bid: float | None = None  # to which its bid was raised since its last beat; 0: refused; None also: no answer came
    bid_at: float = 0.0  # when that was asked for
    woke_at: float = 0.0  # when it was first listed as running again, since its last beat, after it was stopped
    unheard_s: float = 0.0  # of its time the store was away
    queued_at: float = 0.0  # the last look that found it waiting in a queue
    held: bool = False  # it held the run
    step: int | None = None  # by its last beat
    published: int = 0  # newest published step at its last beat
    trained: Trained | None = None
    unpublished: tuple[int, ...] | None = ()  # by its last beat; a pod that never held the run has none
    missing_since: float | None = None  # the first of the looks in a row that found it stopped or not listed
    missing_at: float = 0.0  # and the last of them
    dollars: float = 0.0
    ended: float | None = None
    destroyed_at: float = 0.0  # when its provider was asked to end it
    not_destroyed_at: float = 0.0  # when its provider last failed to
    stuck_since: float = 0.0  # and when it first did, or said that it had ended a pod that lives on
    how: How | None = None  # also of one that is to be destroyed, and still lives

    @property
    def id(self) -> str:
        return self.pod.instance.id

    @property
    def is_living(self) -> bool:
        return self.ended is None


@dataclass(frozen=True)
class Intent:
    """A create that was decided: written down before it is asked for, since its answer may never come."""

    label: str
    place: str
    provider: str
    generation: int
    at: float
    per_hour: float
    machine: str = ""
    disk_per_hour: float = 0.0
    made: bool = False  # the provider confirmed it
    id: str = ""  # of the instance, as the provider told then
    refused: bool = False  # the provider refused it; that has been wrong, so a pod of it may still be listed


@dataclass(frozen=True)
class Closed:
    """A place where a request failed: nothing is asked of it for a while."""

    until: float
    kind: ErrorKind
    why: str
    count: int = 0  # failed creates in a row
    at: float = 0.0


@dataclass(frozen=True)
class State:
    """All that the controller remembers of one run. It lies in the store, where no pod's key reaches."""

    wanted: bool = True  # False after ``fleet down``
    up_at: float = 0.0  # when a person typed ``fleet up`` last
    agreed: tuple[str, ...] = ()  # PROVIDER/ID of pods that a person let go with all that is on them
    intent: Intent | None = None
    given_up: tuple[Intent, ...] = ()  # creates that were waited for in vain, and may be listed yet
    rented: tuple[Rented, ...] = ()
    faults: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # machine, or host -> when it was at fault
    taken: Mapping[str, float] = field(default_factory=dict)  # machine, or place that names none -> no create before
    closed: Mapping[str, Closed] = field(default_factory=dict)  # place -> its last failure
    asked: Mapping[str, Intent] = field(default_factory=dict)  # label -> a create that was ordered in the last days
    offered: Mapping[str, float] = field(default_factory=dict)  # machine -> since when each search found it
    searched_at: float = 0.0
    cheapest: tuple[Offered, ...] = ()  # of what was found last, for people
    generation: int = 0  # of the claim that was seen last
    store_is_away: bool = False  # it did not answer at the last look
    heard_at: float = 0.0  # when it answered last
    beat_at: float = 0.0  # of the newest beat that was seen
    unheard_s: float = 0.0  # since then it was away for so long: no pod could beat
    patient_from: float = 0.0  # ``fleet up``, and as much later as the store was away since then
    forgotten_dollars: float = 0.0  # for pods that are over, and of which nothing else is remembered

    @property
    def living_pods(self) -> tuple[Rented, ...]:
        """Its pods that are not over."""
        return tuple(one for one in self.rented if one.is_living)


# ---------------------------------------------------------------- what is ordered


@dataclass(frozen=True)
class FindOffers:
    """Ask the places what could be rented now, and decide again."""

    places: tuple[str, ...]


@dataclass(frozen=True)
class Create:
    """Rent ``offer``. The pod is given ``convicted``: the standing that it may claim over, "" where the run is free."""

    offered: Offered
    label: str
    generation: int
    convicted: str = ""


@dataclass(frozen=True)
class Destroy:
    """End an instance, and all that it bills."""

    pod: Pod


@dataclass(frozen=True)
class RaiseBid:
    """Bid so much for a pod that was outbid, dollars an hour without its disk. It wakes with all that is on it."""

    pod: Pod
    bid: float


Action = FindOffers | Create | Destroy | RaiseBid


@dataclass(frozen=True)
class Decision:
    """A new state, one sentence for people, and at most one thing to do."""

    state: State
    sentence: str
    action: Action | None = None
    again_s: float | None = None  # look again so soon: a second look decides
    person: bool = False  # only a person can go on from here
    done: bool = False  # the run is finished, and nothing of it is rented

    @property
    def verdict(self) -> Verdict:
        return "person" if self.person else "done" if self.done else ""
