"""The market, happening: pods are outbid, wake, die or fall silent as ``simulator.market`` drew it."""

from __future__ import annotations

from functools import partial

from supervisor.fleet.places.base import Instance, Offer, PlaceError
from supervisor.simulator.market import DISK_AN_HOUR, Machine, Market, Trouble, UpRun, job_times
from supervisor.simulator.virtual_fleet import PATIENCE_S, VirtualFleet, VirtualPod, VirtualProvider

CREATE_FAULTS = (("taken", 0.05), ("worked", 0.01), ("lost", 0.01))  # assumed
LATEST_LISTED_S = 100.0


class MarketWorld(VirtualFleet):
    """All policies meet the same market; only the luck of their own requests differs."""

    def __init__(self, market: Market) -> None:
        super().__init__(market.seed, job_times())
        self.market = market
        self.machines = {machine.name: machine for machine in market.machines}
        self.until: dict[Trouble, float] = {}  # what troubles the provider lasts until then
        self.cut_s = 0.0
        self.provider = MarketProvider(self)
        for machine in market.machines:
            for run in machine.runs:
                self.clock.at(run.begin, partial(self._wake_pods, machine))
                if run.end < market.hours * 3600.0:
                    self.clock.at(run.end, partial(self._end_run, machine, run))
        for t, kind, seconds in market.troubles:
            self.clock.at(t, partial(self._trouble, kind, seconds))

    def find_machines(self) -> list[Offer]:
        return [
            Offer(f"o-{one.name}", "H100", 2, one.price_at(self.now), one.spot, one.name, region=one.region)
            for one in self.machines.values()
            if one.run_at(self.now) is not None
        ]

    def prepare_pod(self, pod: VirtualPod) -> None:
        machine = self.machines[pod.machine]
        run = machine.run_at(self.now)
        assert run is not None, "only machines that can be had are offered"
        pod.boot_s, pod.unfit = run.boot_s, machine.lies
        pod.listed_from = self.now + self.random.uniform(0, LATEST_LISTED_S)

    def price_stopped(self, pod: VirtualPod) -> float:
        return DISK_AN_HOUR

    def is_well(self, pod: VirtualPod) -> bool:
        """A pod that is cut off for longer than the patience is not."""
        return super().is_well(pod) and (pod.online or self.cut_s < PATIENCE_S)

    def _wake_pods(self, machine: Machine) -> None:
        for pod in list(self.living.values()):
            if pod.machine == machine.name:
                self.wake(pod)

    def _end_run(self, machine: Machine, run: UpRun) -> None:
        for pod in [one for one in self.living.values() if one.machine == machine.name]:
            if run.how == "silent":
                self.stop_processes(pod)
            elif run.how == "gone" or not machine.spot:
                self.die(pod)
            else:
                self.outbid(pod)

    def _trouble(self, kind: Trouble, seconds: float) -> None:
        if kind == "store":
            self.store_away_until = self.now + seconds
        elif kind == "late-beats":
            self.beats_late_until = self.now + seconds
        elif kind == "cut":
            self.cut_s = seconds
            for pod in self.living.values():
                pod.online = False
                self.clock.after(seconds, partial(setattr, pod, "online", True))
        else:
            self.until[kind] = self.now + seconds


class MarketProvider(VirtualProvider):
    """It may be away, list nothing, or not know."""

    world: MarketWorld

    def lasts(self, kind: Trouble) -> bool:
        """Does this trouble last now?"""
        return self.world.now < self.world.until.get(kind, 0.0)

    def meet_fault(self, call: str) -> str:
        """By the market's troubles; a create has some of its own."""
        if self.lasts("provider"):
            raise PlaceError("unsure" if call in ("create", "destroy") else "away", "503 from the provider")
        if call == "list":
            return "flap" if self.lasts("empty-list") else ""
        luck = self.world.random.random() if call == "create" else 1.0
        for fault, part in CREATE_FAULTS:
            if luck < part:
                return fault
            luck -= part
        return ""

    def list_instances(self) -> list[Instance]:
        """As ``places.base.Provider``."""
        found = super().list_instances()
        if self.lasts("unknown"):
            return [Instance(**{**vars(one), "phase": "unknown", "says": "unknown"}) for one in found]
        return found
