"""What decides in the market: the fleet's own controller, and what people use instead.

All rent at the same bid, and their pods resume from the newest published step. The others are given more than they
have: a pod of theirs takes the run over at once, and the old one is fenced, so none of them ever makes two writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from supervisor.fleet.controller import Controller, Place, Run
from supervisor.fleet.model import Rules
from supervisor.fleet.places.base import Instance, Offer, Order, PlaceError, Want, label_of
from supervisor.simulator.clockwork import NEVER
from supervisor.simulator.market_world import MarketWorld
from supervisor.simulator.virtual_fleet import BEAT_S, CONVICTED, PATIENCE_S, RUN, VirtualBook, VirtualPod

BID_FACTOR = 1.2
SPOT = Want("H100", 2, spot=True, disk_gb=200, most_per_hour=4.0)
ON_DEMAND = Want("H100", 2, spot=False, disk_gb=200, most_per_hour=6.0)
BOOT_S = 1800.0
SHOWN_BY_S = 120.0
PERSON_S = 3600.0


class Ours:
    """The real controller: a spot machine first, on demand where no spot machine fits. A person comes after an hour."""

    name = "ours"
    every_s = 30.0
    wants: ClassVar = {"spot": SPOT, "on-demand": ON_DEMAND}

    def __init__(self, world: MarketWorld) -> None:
        self.world, self.book = world, VirtualBook(world)
        rules = Rules(RUN, dict.fromkeys(self.wants, world.provider.name), BEAT_S, PATIENCE_S, BOOT_S)
        places = {name: Place(name, world.provider, want, BID_FACTOR) for name, want in self.wants.items()}
        self.controller = Controller(
            {RUN: Run(rules, world.look, lambda _place, _offer, label, over: _order_pod(label, over))},
            places,
            self.book,
            sleep=world.sleep,
        )
        self.asked_at: float | None = None

    def tick(self) -> None:
        """One pass."""
        [told] = self.controller.tick()
        if not told.decision.person or self.world.holder() is not None:
            self.asked_at = None
        elif self.asked_at is None:
            self.asked_at = self.world.now
        elif self.world.now - self.asked_at >= PERSON_S:
            self.book.states[RUN] = replace(self.book.states[RUN], up_at=self.world.now)
            self.asked_at = None


class OursSpotOnly(Ours):
    """The same without a place on demand."""

    name = "ours, spot only"
    wants: ClassVar = {"spot": SPOT}


def _order_pod(label: str, convicted: str) -> Order:
    return Order(label, "image", 200, "onstart", {CONVICTED: convicted})


class ReplaceAtOnce:
    """A script: each 30 s it looks, and replaces a pod at the first sign with the cheapest machine.

    Signs: the list shows it stopped or not at all, no beat for two periods, code 94, no start within 30 min. It does
    nothing while the provider does not answer, and remembers no machine.
    """

    name = "replace at once"
    every_s = 30.0
    want = SPOT
    remember_s = 0.0

    def __init__(self, world: MarketWorld) -> None:
        self.world = world
        self.left: dict[str, float] = {}  # machine -> when a pod on it was given up
        self.mine: VirtualPod | None = None
        self.made_at = 0.0
        self.region = ""

    def tick(self) -> None:
        """One look, and what follows."""
        try:
            listed = {one.id: one for one in self.world.provider.list_instances()}
            if self.mine is None and listed:  # a create without an answer
                self.mine = self.world.pods[max(listed, key=lambda name: int(name[1:]))]
            if self.mine is None or self.has_reason(self.mine, listed.get(self.mine.id)):
                self.replace_pod(list(listed.values()))
            else:
                self.end_pods([one for one in listed.values() if one.id != self.mine.id])
        except PlaceError:
            self.note_failure()

    def note_failure(self) -> None:
        """The provider did not answer."""

    def has_reason(self, pod: VirtualPod, shown: Instance | None) -> bool:
        """Must it be replaced now?"""
        held = self.world.held
        silent = self.has_begun(pod) and self.world.now >= self.world.store_away_until and not held.released
        return self.is_lost(pod, shown) or (silent and self.world.now - held.beat_at >= 2 * BEAT_S)

    def has_begun(self, pod: VirtualPod) -> bool:
        """Did it ever hold the run?"""
        return self.world.held.holder == pod.id

    def is_lost(self, pod: VirtualPod, shown: Instance | None) -> bool:
        """By the list, its last words, or a start that takes too long."""
        age_s, held = self.world.now - self.made_at, self.world.held
        if shown is None and (self.has_begun(pod) or age_s >= SHOWN_BY_S):
            return True
        if shown is not None and shown.phase == "stopped":
            return True
        return held.released if self.has_begun(pod) else age_s >= BOOT_S

    def end_pods(self, listed: Sequence[Instance]) -> None:
        """Destroy them. Raises PlaceError."""
        for one in listed:
            self.world.provider.destroy(one)

    def replace_pod(self, listed: Sequence[Instance]) -> None:
        """Destroy what is listed, and rent another one. Raises PlaceError."""
        self.end_pods(listed)
        if self.mine is not None and not any(one.id == self.mine.id and one.phase == "stopped" for one in listed):
            self.left[self.mine.machine] = self.world.now
        self.mine = None
        offers = [
            one
            for one in self.world.provider.find_offers(self.want)
            if self.world.now >= self.left.get(one.machine, -self.remember_s) + self.remember_s
        ]
        if not offers:
            return
        chosen = self.choose_offer(offers)
        held = self.world.held
        label = label_of(RUN, held.generation + 1, f"{len(self.world.pods):06x}")
        order = _order_pod(label, f"{held.generation}:{held.mark}")
        if chosen.spot:
            order = replace(order, bid=BID_FACTOR * chosen.per_hour)
        self.made_at, self.region = self.world.now, chosen.region
        self.mine = self.world.pods[self.world.provider.create(chosen, order)]

    def choose_offer(self, offers: Sequence[Offer]) -> Offer:
        """One of these, of which the first is the cheapest."""
        return offers[0]


class OnDemand(ReplaceAtOnce):
    """The same with machines on demand only."""

    name = "the same, on demand"
    want = ON_DEMAND


class ReplaceAndRemember(ReplaceAtOnce):
    """The same with spot machines and a memory: what it gave up for anything but an outbid is left out for a day."""

    name = "the same, with memory"
    remember_s = 24 * 3600.0


class NeverReplace(ReplaceAndRemember):
    """A person rents a pod that trains, and then waits for it: an outbid one comes back when its bid wins again."""

    name = "never replace"

    def has_reason(self, pod: VirtualPod, shown: Instance | None) -> bool:
        trained = (self.world.held.published or 0) > 0
        return not trained and self.is_lost(pod, shown)


class SkyPilot(ReplaceAtOnce):
    """A managed job of SkyPilot 0.14.1 with ``job_recovery: FAILOVER``: the same region first, then any.

    Each 20 s its controller reads the cluster's state from the cloud, and probes it over SSH. One probe that fails is
    a recovery (skypilot issue 10162 and pull request 10664, open in September 2026). A cloud that cannot be asked is
    one after 60 s and five tries (``jobs.status_check``, pull request 10499). A recovery cancels the job, ends the
    cluster and launches again. It recovers on code 94, and sees no silence of a job.
    """

    name = "SkyPilot FAILOVER"
    every_s = 20.0

    def __init__(self, world: MarketWorld) -> None:
        super().__init__(world)
        self.failed: list[float] = []

    def tick(self) -> None:
        before = len(self.failed)
        super().tick()
        if len(self.failed) == before:
            self.failed = []

    def note_failure(self) -> None:
        self.failed.append(self.world.now)
        if self.mine is not None and len(self.failed) > 5 and self.world.now - self.failed[0] >= 60.0:
            self._cancel_job(self.mine)

    def has_reason(self, pod: VirtualPod, shown: Instance | None) -> bool:
        reached = pod.online and pod.processes is not None
        if self.is_lost(pod, shown) or (self.has_begun(pod) and not reached):
            self._cancel_job(pod)
            return True
        return False

    def _cancel_job(self, pod: VirtualPod) -> None:
        if pod.online and self.has_begun(pod):
            self.world.false_replacements += self.world.is_well(pod)
            self.world.stop_processes(pod)

    def choose_offer(self, offers: Sequence[Offer]) -> Offer:
        return next((one for one in offers if one.region == self.region), offers[0])


class SkyPilotElsewhere(SkyPilot):
    """The same with ``EAGER_NEXT_REGION``: any other region first."""

    name = "SkyPilot EAGER_NEXT_REGION"

    def choose_offer(self, offers: Sequence[Offer]) -> Offer:
        return next((one for one in offers if one.region != self.region), offers[0])


class ToldAtOnce(ReplaceAtOnce):
    """A bound on watching: it is told of each loss as it happens, and which machines lie or hang. It sees no future."""

    name = "told at once"
    every_s = 10.0

    def has_reason(self, pod: VirtualPod, shown: Instance | None) -> bool:
        cut = not pod.online and self.world.cut_s >= PATIENCE_S
        return pod.processes is None or cut or (not self.has_begun(pod) and (pod.unfit or pod.boot_s == NEVER))

    def choose_offer(self, offers: Sequence[Offer]) -> Offer:
        machines = [(one, self.world.machines[one.machine]) for one in offers]
        good = (
            one
            for one, machine in machines
            if not machine.lies and (run := machine.run_at(self.world.now)) is not None and run.boot_s < BOOT_S
        )
        return next(good, offers[0])


POLICIES = (
    Ours,
    OursSpotOnly,
    NeverReplace,
    ReplaceAtOnce,
    ReplaceAndRemember,
    OnDemand,
    SkyPilot,
    SkyPilotElsewhere,
    ToldAtOnce,
)
