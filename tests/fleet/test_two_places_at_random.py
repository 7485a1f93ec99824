"""Two places, limits, a person's words, and faults in combination: by chance, and the same for each seed."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from typing import Any

import pytest

from supervisor.base.errors import StoreError
from supervisor.fleet.model import Rules
from supervisor.fleet.observe import sum_dollars
from supervisor.fleet.places.base import Instance, Offer, Order
from supervisor.simulator.virtual_fleet import RUN, VirtualPod
from tests.fleet.test_combined_faults import Part, TwoPlaces
from tests.fleet.world import KilledError, VirtualBook

HOUR_S = 3600.0
CENT = 0.01


class OddPart(Part):
    """A provider that may hide a pod, deny that it sees one, or name no price."""

    world: Market

    def list_instances(self) -> list[Instance]:
        found = []
        for one in super().list_instances():
            odd = self.world.odd.get(one.id)
            if odd == "unknown" and one.phase != "stopped":
                one = replace(one, phase="unknown")
            if odd in ("free", "no price"):
                one = replace(one, per_hour=0.0 if odd == "free" else None)
            if self.world.hidden_until.get(one.id, 0.0) <= self.world.now:
                found.append(one)
        return found


class Market(TwoPlaces):
    """Each pod that is rented is held against the limits of that moment, by what is billed and can be seen."""

    def __init__(self, seed: int, limits: dict[str, Any]) -> None:
        super().__init__(seed, finish=400)
        self.limits = limits
        self.a, self.b = OddPart(self, "A", "a"), OddPart(self, "B", "b")
        self.only: str | None = None
        self.odd: dict[str, str] = {}
        self.hidden_until: dict[str, float] = {}
        self.made_at: list[float] = []
        self.above: list[str] = []

    def rules(self) -> Rules:
        return replace(super().rules(), **self.limits)

    def rent(self, offer: Offer, order: Order, *, boots: bool = True) -> VirtualPod:
        shown = [pod for pod in self.paid() if pod.listed_from <= self.now and pod.id not in self.hidden_until]
        billed = sum(self.disk_per_hour if pod.phase == "stopped" else pod.per_hour for pod in shown)
        if billed + offer.per_hour > self.limits["per_hour"] + 2 * CENT:
            self.above.append(f"${billed:.2f} an hour are billed, and {offer.id} is ${offer.per_hour:.2f}")
        if sum(self.now - at < HOUR_S for at in self.made_at) >= self.limits["creates_per_hour"]:
            self.above.append(f"{offer.id} is one pod too many within an hour")
        self.made_at.append(self.now)
        return super().rent(offer, order, boots=boots)

    def mend(self) -> None:
        """What may last for ever ends."""
        self.only, self.bad = None, set()
        self.odd.clear()
        for pod in self.pods.values():
            pod.online = True


def happen(world: Market, luck: random.Random) -> None:
    if luck.random() > 0.07:
        return
    pods, part = world.paid(), luck.choice([world.a, world.b])
    pod = luck.choice(pods) if pods else None
    later = world.now + luck.uniform(30, 1500)
    if pod is not None and luck.random() < 0.6:
        what = luck.choice(["outbid", "wake", "die", "online", "label", "odd", "hide"])
        if what in ("outbid", "wake", "die"):
            pod.lowest_bid = luck.choice([None, 2.0, 4.0, 20.0])
            getattr(world, what)(pod)
        elif what == "online":
            pod.online = not pod.online
        elif what == "label" and pod.generation is not None:
            world.without_label.add(pod.id)
        elif what == "odd":
            world.odd[pod.id] = luck.choice(["unknown", "free", "no price"])
        elif what == "hide":
            world.hidden_until[pod.id] = later
        return
    what = luck.choice(["store", "place", "list", "create", "destroy", "kill", "bad", "late", "beats", "file", "mend"])
    if what == "store":
        world.store_away_until = later
    elif what == "place":
        part.away_until = later + luck.choice([0.0, 4000.0])
    elif what == "list":
        part.faults["list"] = ["flap"]
    elif what == "create":
        part.faults["create"] = [luck.choice(["worked", "lost", "taken", "credit", "rate", "no-boot"])]
    elif what == "destroy":
        part.faults["destroy"] = [luck.choice(["lost", "worked"])]
        part.faults["bid"] = [luck.choice(["refused", "sleeps", "worked"])]
    elif what == "kill":
        part.kill_at = part.requests + luck.randrange(1, 12)
    elif what == "bad":
        world.bad = {luck.choice(world.machines)}
    elif what == "late":
        world.listed_after_s = luck.choice([[0.0], [0.0, 300.0], [0.0, 900.0]])
    elif what == "beats":
        world.beats_late_until = world.now + luck.uniform(30, 500)
    elif what == "file":
        world.only = luck.choice([None, "a", "b"])
    elif what == "mend":
        world.mend()


@pytest.mark.parametrize("seed", [*range(50), *(pytest.param(n, marks=pytest.mark.soak) for n in range(50, 200))])
def test_random_faults_in_two_places_lose_no_step_leave_no_pod_and_stay_within_the_limits(seed: int) -> None:
    luck = random.Random(seed)
    limits = {"per_hour": luck.choice([3.0, 4.0, 6.0]), "creates_per_hour": luck.choice([2, 4])}
    world = Market(seed, limits)
    book = VirtualBook(world)
    troubled_until = world.now + 24 * HOUR_S
    while world.held.code != 0 or world.paid():
        assert world.now < troubled_until + 24 * HOUR_S, (book.said[-4:], world.held, world.paid())
        if world.now < troubled_until:
            happen(world, luck)
        else:
            world.mend()
        with contextlib.suppress(KilledError, StoreError):
            [told] = world.controller(book, only=world.only).tick()
            if told.decision.person and "pods in a row" in told.decision.sentence:
                book.states[RUN] = replace(book.states[RUN], up_at=world.now)  # a person mended it
        world.sleep(luck.choice([20, 30, 45, 30, 30, 400]))
    world.mend()
    world.a.away_until = world.b.away_until = world.store_away_until = 0.0
    world.hidden_until.clear()
    for _ in range(3):
        with contextlib.suppress(KilledError):
            world.controller(book).tick()
        world.sleep(60)
    world.settle()
    assert (world.trouble, world.above) == ([], [])
    assert sum_dollars(book.states[RUN]) >= 0.85 * world.dollars - 0.5  # never much less than is billed
