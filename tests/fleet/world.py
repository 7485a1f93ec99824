"""A world of virtual pods, one store and one provider in virtual time, for the real controller.

A pod here does what a pod with our daemon does: it boots, claims the run as the store would let it, trains, saves,
publishes later, and beats. The world breaks it: outbid, dead, cut off, silent for a while, woken again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from supervisor.base.errors import StoreError
from supervisor.fleet.controller import Controller, Place, Run, RunLook
from supervisor.fleet.model import Claim, Rules, State
from supervisor.fleet.places.base import Instance, Offer, Order, Phase, PlaceError, Want, read_label

BEAT_S, PATIENCE_S, STEP_S, SAVE_EVERY = 60.0, 600.0, 10.0, 12
RUN = "swe"


class KilledError(BaseException):
    """The controller was killed here."""


@dataclass
class VirtualPod:
    id: str
    label: str
    machine: str
    per_hour: float
    made_at: float
    boot_s: float
    convicted: str = ""
    listed: Phase = "running"
    on: bool = True  # its processes run
    online: bool = True  # it reaches the store
    says: str = "loading"
    generation: int | None = None  # that it holds, as it believes
    fenced: bool = False
    step: int = 0
    complete: list[int] = field(default_factory=list)  # on its disk
    beat_at: float = 0.0
    up_since: float = 0.0
    seen_mark: tuple[int, str] = (0, "")
    seen_at: float = 0.0
    publishing: tuple[int, float] | None = None
    destroyed: float | None = None
    unfit: bool = False
    dies_while_booting: bool = False
    listed_from: float = 0.0  # the provider's list is late


@dataclass
class Held:
    """The claim and the pointer in the run's store."""

    generation: int = 0
    holder: str = ""
    mark: str = ""
    beat_at: float = 0.0
    released: bool = False
    code: int | None = None
    reason: str = ""
    step: int | None = None
    unpublished: tuple[int, ...] | None = None
    published: int | None = None


class World:
    """``finish`` at this step ends the run. ``clock_off_s``: by so much the controller's own clock is wrong."""

    def __init__(self, seed: int, finish: int = 400) -> None:
        self.random = random.Random(seed)
        self.now = 1_000_000.0
        self.finish = finish
        self.held = Held()
        self.pods: dict[str, VirtualPod] = {}
        self.machines = [f"m{number}" for number in range(6)]
        self.bad: set[str] = set()
        self.store_away_until = 0.0
        self.listed_after_s = [0.0, 0.0, 45.0, 100.0]  # after a create
        self.provider = VirtualProvider(self)
        self.trouble: list[str] = []  # broken promises
        self.most_alive = 0
        self.twice_s = 0.0  # for so long two pods were paid that both could hold the run
        self.writers_at_once = 0

    # ------------------------------------------------------------ time

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.advance(min(5.0, until - self.now))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for pod in list(self.pods.values()):
            if pod.destroyed is None and pod.on:
                self._live(pod)
        paid = [pod for pod in self.pods.values() if pod.destroyed is None and pod.listed != "stopped"]
        self.most_alive = max(self.most_alive, len(paid))
        if len(paid) > 1:
            self.twice_s += seconds

    def _live(self, pod: VirtualPod) -> None:
        if self.now - pod.up_since < pod.boot_s or pod.dies_while_booting:
            return
        pod.says = "running"
        if pod.generation is None or pod.fenced:
            if not pod.fenced:
                self._try_to_claim(pod)
            return
        self._train(pod)
        if not pod.online or self.now < self.store_away_until:
            return
        if self.held.holder != pod.id or self.held.generation != pod.generation:
            pod.fenced = True
            return
        self._publish(pod)
        if self.now - pod.beat_at >= BEAT_S:
            self._beat(pod)

    def _train(self, pod: VirtualPod) -> None:
        pod.step = min(self.finish, pod.step + 1) if self.random.random() < 5.0 / STEP_S else pod.step
        if pod.step and (pod.step % SAVE_EVERY == 0 or pod.step == self.finish) and pod.step not in pod.complete:
            pod.complete.append(pod.step)

    def _publish(self, pod: VirtualPod) -> None:
        """Raises nothing: the only place that writes for the run, so two writers would be seen here."""
        newest = max(pod.complete, default=None)
        if pod.publishing is None and newest is not None and newest > (self.held.published or 0):
            pod.publishing = (newest, self.now + 40.0)
        if pod.publishing is not None and self.now >= pod.publishing[1]:
            if self.held.published is not None and pod.publishing[0] <= self.held.published:
                self.trouble.append(f"{pod.id} moved the pointer back")
            self.held.published, pod.publishing = pod.publishing[0], None
        if self.held.published == self.finish:
            self._release(pod, 0, "finished")

    def _beat(self, pod: VirtualPod) -> None:
        pod.beat_at = self.now
        published = self.held.published or 0
        self.held.beat_at, self.held.mark = self.now, f"{pod.id}-{self.now:.0f}"
        self.held.step = pod.step
        self.held.unpublished = tuple(step for step in pod.complete if step > published)

    def _release(self, pod: VirtualPod, code: int, reason: str) -> None:
        self._beat(pod)
        self.held.released, self.held.code, self.held.reason = True, code, reason
        pod.generation, pod.on = None, False

    def _try_to_claim(self, pod: VirtualPod) -> None:
        held = self.held
        if not pod.online or self.now < self.store_away_until:
            return
        seen = (held.generation, held.mark)
        if seen != pod.seen_mark:
            pod.seen_mark, pod.seen_at = seen, self.now
        free = held.generation == 0 or held.released or held.holder == pod.id
        convicted = pod.convicted == f"{held.generation}:{held.mark}"
        if held.released and held.code in (0, 93):
            return
        if not (free or convicted or self.now - pod.seen_at >= PATIENCE_S):
            return
        self.held = Held(held.generation + 1, pod.id, published=held.published)
        pod.generation, pod.step = self.held.generation, held.published or 0
        pod.complete = [step for step in pod.complete if step <= pod.step]
        self._beat(pod)
        if pod.unfit:
            self._release(pod, 94, "the host has 1 GPU, and 2 were offered")

    # ------------------------------------------------------------ what happens to pods

    def outbid(self, pod: VirtualPod) -> None:
        pod.on, pod.listed, pod.generation = False, "stopped", None

    def wake(self, pod: VirtualPod) -> None:
        if pod.destroyed is None and pod.listed == "stopped":
            pod.on, pod.listed, pod.fenced, pod.up_since = True, "running", False, self.now

    def die(self, pod: VirtualPod) -> None:
        pod.on, pod.destroyed = False, self.now

    def holder(self) -> VirtualPod | None:
        pod = self.pods.get(self.held.holder)
        return pod if pod is not None and pod.destroyed is None and pod.on and not self.held.released else None

    def paid(self) -> list[VirtualPod]:
        return [pod for pod in self.pods.values() if pod.destroyed is None]

    # ------------------------------------------------------------ for the controller

    def look(self) -> RunLook:
        if self.now < self.store_away_until:
            raise StoreError("transient", "the store is away")
        held = self.held
        claim = Claim(
            held.generation,
            held.mark,
            held.beat_at,
            held.released,
            held.code,
            held.reason,
            self.pods[held.holder].label if held.holder else "",
            held.step,
            held.unpublished,
        )
        return RunLook(claim, held.published)

    def controller(self, book: VirtualBook, rules: Rules | None = None) -> Controller:
        want = Want("H100", 2, spot=True, disk_gb=200, most_per_hour=10.0)
        place = Place("spot", self.provider, want)

        def order(place: Place, offer: Offer, label: str, convicted: str) -> Order:
            return Order(label, "image", 200, "onstart", {"RL_SUPERVISOR_CONVICTED": convicted})

        rules = rules or default_rules()
        return Controller({RUN: Run(rules, self.look, order)}, {"spot": place}, book, sleep=self.sleep)


def default_rules(**changes: float) -> Rules:
    return Rules(RUN, {"spot": "virtual"}, BEAT_S, PATIENCE_S, 1800.0, creates_per_hour=int(changes.pop("creates", 60)))


class VirtualBook:
    """The controller's memory, with a kill at the given call."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.states: dict[str, State] = {}
        self.said: list[str] = []

    def read_state(self, run_id: str) -> State:
        return self.states.get(run_id, State())

    def write_state(self, run_id: str, state: State, sentence: str) -> None:
        self.world.provider.count("write")
        self.states[run_id] = state
        if not self.said or self.said[-1] != sentence:
            self.said.append(sentence)

    def read_clock(self) -> float:
        return self.world.now


class VirtualProvider:
    """Lists, lets and ends virtual pods. ``faults``: call -> how the next ones of it fail."""

    name = "virtual"

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults: dict[str, list[str]] = {}
        self.away_until = 0.0
        self.kill_at: int | None = None
        self.requests = 0
        self.empty_until = 0.0

    def count(self, call: str) -> str:
        """Each request may be the last one of the controller; returns the fault that it meets."""
        self.requests += 1
        if self.kill_at is not None and self.requests >= self.kill_at:
            self.kill_at = None
            raise KilledError(call)
        if self.world.now < self.away_until and call != "write":
            raise PlaceError("unsure" if call in ("create", "destroy") else "away", "503 from the provider")
        waiting = self.faults.get(call)
        return waiting.pop(0) if waiting else ""

    def list_instances(self) -> list[Instance]:
        if self.count("list") == "flap":
            return []
        return [
            Instance(pod.id, pod.label, pod.listed, pod.per_hour, True, "H100", 2, pod.machine, "", pod.says)
            for pod in self.world.paid()
            if self.world.now >= pod.listed_from
        ]

    def find_offers(self, want: Want) -> list[Offer]:
        self.count("offers")
        if self.world.now < self.empty_until:
            return []
        busy = {pod.machine for pod in self.world.paid()}
        free = [machine for machine in self.world.machines if machine not in busy]
        return [
            Offer(f"o-{machine}", "H100", 2, 2.0 + 0.1 * number, True, machine) for number, machine in enumerate(free)
        ]

    def create(self, offer: Offer, order: Order) -> str:
        fault = self.count("create")
        if fault in ("taken", "credit", "rate"):
            raise PlaceError("taken" if fault == "taken" else "credit" if fault == "credit" else "rate", fault)
        if fault == "lost":
            raise PlaceError("unsure", "no answer within 30 s")
        world = self.world
        found = read_label(order.label)
        assert found is not None
        pod = VirtualPod(
            id=f"i{len(world.pods)}",
            label=order.label,
            machine=offer.machine,
            per_hour=order.bid or offer.per_hour,
            made_at=world.now,
            boot_s=world.random.uniform(60, 400),
            convicted=order.env["RL_SUPERVISOR_CONVICTED"],
            up_since=world.now,
            unfit=offer.machine in world.bad,
            dies_while_booting=fault == "no-boot",
            listed_from=world.now + world.random.choice(world.listed_after_s),
        )
        world.pods[pod.id] = pod
        if fault == "worked":
            raise PlaceError("unsure", "no answer within 30 s")
        return pod.id

    def raise_bid(self, instance: Instance, bid: float) -> None:
        raise AssertionError("not ordered by any rule")

    def destroy(self, instance: Instance) -> None:
        fault = self.count("destroy")
        pod = self.world.pods[instance.id]
        held = self.world.held
        unpublished = held.unpublished if held.holder == pod.id else ()
        if unpublished and max(unpublished) > (held.published or 0):
            self.world.trouble.append(f"{pod.id} is destroyed with steps {unpublished}, {held.published} is published")
        if held.holder == pod.id and not held.released and self.world.now - held.beat_at < 3 * BEAT_S:
            self.world.trouble.append(f"{pod.id} is destroyed while it holds the run and beats")
        if fault != "lost":
            self.world.die(pod)
        if fault:
            raise PlaceError("unsure", "no answer within 30 s")

    def read_log(self, instance: Instance) -> str:
        return ""

    def read_credit(self) -> float | None:
        return None
