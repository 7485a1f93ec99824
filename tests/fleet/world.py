"""A world of virtual pods for the tests of the controller: six machines, and faults that a test asks for by name."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import cast

from supervisor.base.errors import StoreError
from supervisor.fleet.controller import Controller, Place, Run
from supervisor.fleet.model import Bidding, Rules, State, Verdict
from supervisor.fleet.places.base import ErrorKind, Instance, Offer, Order, PlaceError, Want
from supervisor.simulator import virtual_fleet
from supervisor.simulator.virtual_fleet import BEAT_S, PATIENCE_S, RUN, JobTimes, VirtualFleet, VirtualPod


class KilledError(BaseException):
    """The controller was killed here."""


class World(VirtualFleet):
    """``finish`` at this step ends the run."""

    def __init__(self, seed: int, finish: int = 400) -> None:
        super().__init__(seed, JobTimes(step_s=10.0, save_every=12, publish_s=40.0, finish=finish), now=1_000_000.0)
        self.machines = [f"m{number}" for number in range(6)]
        self.bad: set[str] = set()
        self.listed_after_s = [0.0, 0.0, 45.0, 100.0]  # after a create
        self.disk_per_hour = 0.25  # of a pod that is stopped
        self.hosts: dict[str, str] = {}  # machine -> who lets it
        self.without_label: set[str] = set()  # pods that the provider lists so
        self.provider = VirtualProvider(self)

    def find_machines(self) -> list[Offer]:
        return [
            Offer(f"o-{machine}", "H100", 2, 2.0 + 0.1 * number, True, machine, host=self.hosts.get(machine, ""))
            for number, machine in enumerate(self.machines)
        ]

    def prepare_pod(self, pod: VirtualPod) -> None:
        pod.boot_s = self.random.uniform(60, 400)
        pod.unfit = pod.machine in self.bad
        pod.listed_from = self.now + self.random.choice(self.listed_after_s)

    def price_stopped(self, pod: VirtualPod) -> float:
        return self.disk_per_hour

    def paid(self) -> list[VirtualPod]:
        return list(self.living.values())

    def controller(self, book: VirtualBook, rules: Rules | None = None, *, dry: bool = False) -> Controller:
        want = Want("H100", 2, spot=True, disk_gb=200, most_per_hour=10.0)
        place = Place("spot", self.provider, want)

        def order(place: Place, offer: Offer, label: str, convicted: str) -> Order:
            return Order(label, "image", 200, "onstart", {"RL_SUPERVISOR_CONVICTED": convicted})

        rules = rules or default_rules()
        return Controller({RUN: Run(rules, self.look, order)}, {"spot": place}, book, sleep=self.sleep, dry=dry)


def default_rules() -> Rules:
    bids = {"spot": Bidding(1.2, 10.0)}
    return Rules(RUN, {"spot": "virtual"}, BEAT_S, PATIENCE_S, 1800.0, creates_per_hour=60, bids=bids)


class VirtualBook(virtual_fleet.VirtualBook):
    """The controller's memory, with a kill at the given call. ``damaged``: runs whose state cannot be read."""

    world: World
    away_until = 0.0
    damaged: Set[str] = frozenset()

    def read_state(self, run_id: str) -> State:
        if self.world.now < self.away_until:
            raise StoreError("transient", "the store is away")
        if run_id in self.damaged:
            raise StoreError("damaged", f"state/{run_id}.json is no record of this controller")
        return super().read_state(run_id)

    def write_state(self, run_id: str, state: State, sentence: str, *, verdict: Verdict = "") -> None:
        self.world.provider.meet_fault("write")
        super().write_state(run_id, state, sentence, verdict=verdict)


class VirtualProvider(virtual_fleet.VirtualProvider):
    """``faults``: call -> how the next ones of it fail."""

    world: World

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.faults: dict[str, list[str]] = {}
        self.away_until = 0.0
        self.kill_at: int | None = None
        self.requests = 0
        self.bids: list[tuple[str, float]] = []
        self.printed: str | PlaceError = ""  # by each pod

    def meet_fault(self, call: str) -> str:
        """Each request may be the last one of the controller."""
        self.requests += 1
        if self.kill_at is not None and self.requests >= self.kill_at:
            self.kill_at = None
            raise KilledError(call)
        if self.world.now < self.away_until and call != "write":
            raise PlaceError("unsure" if call in ("create", "destroy") else "away", "503 from the provider")
        waiting = self.faults.get(call)
        return waiting.pop(0) if waiting else ""

    def list_instances(self) -> list[Instance]:
        without = self.world.without_label
        found = [replace(one, host=self.world.hosts.get(one.machine, "")) for one in super().list_instances()]
        return [replace(one, label="") if one.id in without else one for one in found]

    def read_log(self, instance: Instance) -> str:
        if isinstance(self.printed, PlaceError):
            raise self.printed
        return self.printed

    def raise_bid(self, instance: Instance, bid: float) -> None:
        fault = self.meet_fault("bid")
        if fault in ("refused", "rate", "away", "credit"):
            raise PlaceError(cast(ErrorKind, fault), f"Vast was asked for a bid: {fault}")
        pod = self.world.pods[instance.id]
        self.bids.append((pod.id, bid))
        assert pod.lowest_bid is not None
        if bid >= pod.lowest_bid:
            pod.per_hour = bid
            if fault != "sleeps":
                self.world.wake(pod)
        if fault == "worked":
            raise PlaceError("unsure", "no answer within 30 s")
