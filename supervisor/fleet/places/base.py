"""What a provider of pods can do for us, and how it fails.

No provider has an idempotency key: a create that timed out may have worked. So each instance carries a label with run
and generation (``label_of``), and the controller lists by label before and after each create.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, Protocol

from supervisor.base.errors import SupervisorError

Phase = Literal["queued", "held", "starting", "running", "stopped", "unknown"]
"""Of an instance that the provider lists. ``stopped``: it was outbid, or a person stopped it; it may come back by
itself. ``unknown``: the provider cannot tell ("offline", "unknown"), which has the same cause as a pod's silence and so
is no second signal. One that is not listed is gone. ``queued``: a job waits for its machine, costs nothing, and
starts by itself, however long that takes; a job that runs may be queued again. ``held``: the same, and only a person
lets it start."""
WAITING: tuple[Phase, ...] = ("queued", "held")

ErrorKind = Literal["key", "credit", "rate", "taken", "refused", "away", "unsure"]
"""``key``: 401, 403. ``credit``: no money in the account. ``rate``: asked too often. ``taken``: the offer is gone.
``refused``: the provider will never take this request. ``away``: it did not answer, or 5xx, and nothing was
changed. ``unsure``: the same after a request that may have been carried out."""

LABEL = re.compile(r"rls-([A-Za-z0-9][A-Za-z0-9._-]{0,99})-g([0-9]{5,15})-([0-9a-f]{6})")


class PlaceError(SupervisorError):
    """A provider did not do what it was asked. ``retry_after_s``: not before so many seconds."""

    def __init__(self, kind: ErrorKind, sentence: str, retry_after_s: float = 0.0) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Want:
    """What a place of ``fleet.toml`` asks of a machine."""

    gpu: str  # as the provider spells it; "" for any, which is to look and not to rent
    gpus: int
    spot: bool
    disk_gb: float
    most_per_hour: float  # dollars for the whole machine, disk included
    region: str = ""
    least_down_mbit: float = 0.0
    least_up_mbit: float = 0.0


@dataclass(frozen=True)
class Offer:
    """A machine that could be rented now."""

    id: str
    gpu: str
    gpus: int
    per_hour: float  # dollars for the whole machine, disk included; of a spot machine at its lowest bid
    spot: bool
    machine: str = ""  # the provider's ids of the machine and of who lets it: what bad hosts are remembered by
    is_kind: bool = False  # ``machine`` is a kind of machine, of which the provider picks one
    host: str = ""
    region: str = ""
    down_mbit: float | None = None  # None: the provider does not say
    up_mbit: float | None = None
    disk_gb: float | None = None
    disk_per_hour: float = 0.0  # the part of per_hour that a bid does not include: lowest bid = per_hour - this
    is_job: bool = False  # of a scheduler, which picks the machine, and queues the job until there is one
    without: tuple[str, ...] = ()  # machines that such a job must not get


@dataclass(frozen=True)
class Order:
    """What to start on a machine. ``env`` holds secrets: it is never shown nor written down."""

    label: str
    image: str
    disk_gb: float
    onstart: str
    env: dict[str, str] = field(repr=False)
    bid: float | None = None  # dollars an hour for the whole machine, disk not included; None: on demand


@dataclass(frozen=True)
class Instance:
    """A machine that is rented under one of our labels."""

    id: str
    label: str  # "" where it carries none of ours
    phase: Phase
    per_hour: float | None  # dollars for the whole machine while it runs; None where the provider does not say
    spot: bool = False
    gpu: str = ""
    gpus: int = 0  # 0 where the provider does not say
    machine: str = ""
    host: str = ""
    says: str = ""  # the provider's own word for its state
    lowest_bid: float | None = None  # that keeps it or wakes it, disk not included; None where it is not said
    stopped_per_hour: float | None = None  # dollars while it is stopped, for its disk; None where it is not said
    is_job: bool = (
        False  # of a scheduler: that itself uses no lost machine, and lists a job that has ended not for long
    )
    unfit: tuple[str, ...] = ()  # machines of a job over several that its daemon found so


class Provider(Protocol):
    """One account at one provider. Each method asks over the network, and raises PlaceError."""

    name: str

    def list_instances(self) -> list[Instance]:
        """All instances of the account, in any phase: one of ours may have lost its label."""

    def find_offers(self, want: Want) -> list[Offer]:
        """Machines that could be rented now, fit ``want`` and cost no more than it allows, the cheapest first."""

    def create(self, offer: Offer, order: Order) -> str:
        """Rent one. Returns the instance's id."""

    def raise_bid(self, instance: Instance, bid: float) -> None:
        """Bid so many dollars an hour for the whole machine, disk not included."""

    def destroy(self, instance: Instance) -> None:
        """End it and all that it bills. One that is gone already is no error."""

    def read_log(self, instance: Instance) -> str:
        """The end of what it printed while it started; "" where there is none yet."""

    def read_credit(self) -> float | None:
        """Dollars that the account has left; None where the provider does not say."""


def label_of(run_id: str, generation: int, token: str) -> str:
    """The label of a pod that is made for ``generation`` of a run; ``token``: six hexadecimal digits, one a create."""
    return f"rls-{run_id}-g{generation:05d}-{token}"


def read_label(label: str) -> tuple[str, int] | None:
    """Run and generation; None where the label is none of ours."""
    found = LABEL.fullmatch(label)
    return (found[1], int(found[2])) if found else None
