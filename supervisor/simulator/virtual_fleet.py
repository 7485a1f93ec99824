"""Virtual pods of one run, the run's store and one provider, in virtual time, for the real controller of a fleet.

A pod here does what a pod with our daemon does: it boots, claims the run as the store lets it, loads, trains, saves,
publishes later, and beats. What happens to pods comes from outside: ``simulator.market``, or the tests of the fleet.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from supervisor.base.errors import StoreError
from supervisor.fleet.controller import RunLook
from supervisor.fleet.model import Claim, State, Verdict
from supervisor.fleet.places.base import Instance, Offer, Order, Phase, PlaceError, Want
from supervisor.simulator.clockwork import NEVER, Clockwork, Owner

BEAT_S, PATIENCE_S = 60.0, 600.0
RETRY_S = 5.0
"""A pod that could not write to the store, or may not claim yet, tries again after that."""
CONVICTED = "RL_SUPERVISOR_CONVICTED"
RUN = "swe"


@dataclass(frozen=True)
class JobTimes:
    """How fast a job is, in seconds; ``save_every`` in steps."""

    step_s: float
    save_every: int
    publish_s: float
    load_s: float = 0.0  # from the claim to the first step
    finish: int = 10**9  # the step that ends the run


@dataclass(eq=False)
class VirtualPod:
    """An instance, its disk, and the daemon on it."""

    clock: Clockwork
    times: JobTimes
    id: str
    label: str
    machine: str
    spot: bool
    per_hour: float
    convicted: str  # the standing that it may claim over
    boot_s: float = 0.0  # until it tries to claim; NEVER: it hangs
    unfit: bool = False  # its host is not what was offered
    listed_from: float = 0.0  # the provider's list is late
    phase: Phase = "running"
    says: str = "loading"
    online: bool = True  # it reaches the store
    processes: Owner | None = None  # None: none run
    generation: int | None = None  # that it holds, as it believes
    complete: list[int] = field(default_factory=list)  # steps on its disk
    unpublished: tuple[int, ...] = ()  # of those, as its last beat said
    publishing: bool = False
    trains_from: float = NEVER
    first_step: int = 0  # with which it began to train
    seen_mark: tuple[int, str] = (0, "")
    seen_at: float = 0.0
    destroyed: float | None = None
    lowest_bid: float | None = None  # that wakes it

    @property
    def step(self) -> int:
        """The newest step that it has trained."""
        done = int(max(0.0, self.clock.now - self.trains_from) / self.times.step_s + 1e-6)
        return min(self.times.finish, self.first_step + done)


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


class VirtualFleet:
    """All pods of one run, and the books: ``trained_s`` counts what was lost later, too."""

    def __init__(self, seed: int, times: JobTimes, now: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.times = times
        self.clock = Clockwork(now)
        self.held = Held()
        self.pods: dict[str, VirtualPod] = {}
        self.living: dict[str, VirtualPod] = {}  # those that are not destroyed
        self.store_away_until = 0.0
        self.beats_late_until = 0.0
        self.trouble: list[str] = []  # broken promises
        self.trained_s = self.dollars = self.twice_s = 0.0
        self.most_alive = self.false_replacements = 0
        self._settled = now

    @property
    def now(self) -> float:
        """Seconds of the virtual clock, which is the store's, too."""
        return self.clock.now

    def sleep(self, seconds: float) -> None:
        """Let all happen that is due by then."""
        until = self.now + seconds
        while self.clock.next_t() <= until:
            self.clock.step()
        self.clock.now = until

    # ------------------------------------------------------------ what a world may have otherwise

    def find_machines(self) -> list[Offer]:
        """What the provider offers now."""
        raise NotImplementedError

    def prepare_pod(self, pod: VirtualPod) -> None:
        """How its boot goes, and what its host is like."""
        raise NotImplementedError

    def price_stopped(self, pod: VirtualPod) -> float:
        """Dollars an hour for the disk of an instance that is stopped."""
        return 0.0

    def is_well(self, pod: VirtualPod) -> bool:
        """Does it hold the run, and would it go on by itself?"""
        held = self.held
        return held.holder == pod.id and pod.generation == held.generation and pod.processes is not None

    # ------------------------------------------------------------ money

    def settle(self) -> None:
        """Count what the instances cost since the last change of them."""
        hours = (self.now - self._settled) / 3600.0
        self._settled = self.now
        running = [pod for pod in self.living.values() if pod.phase != "stopped"]
        self.most_alive = max(self.most_alive, len(running))
        self.twice_s += 3600.0 * hours * max(0, len(running) - 1)
        for pod in self.living.values():
            self.dollars += hours * (self.price_stopped(pod) if pod.phase == "stopped" else pod.per_hour)

    # ------------------------------------------------------------ what happens to pods

    def rent(self, offer: Offer, order: Order, *, boots: bool = True) -> VirtualPod:
        """A new instance."""
        self.settle()
        number = f"i{len(self.pods)}"
        price = offer.per_hour if order.bid is None else order.bid + offer.disk_per_hour
        pod = VirtualPod(
            self.clock, self.times, number, order.label, offer.machine, offer.spot, price, order.env.get(CONVICTED, "")
        )
        self.prepare_pod(pod)
        pod.boot_s = pod.boot_s if boots else NEVER
        self.pods[pod.id] = self.living[pod.id] = pod
        self.settle()
        self._boot(pod)
        return pod

    def outbid(self, pod: VirtualPod) -> None:
        """Its instance is stopped; its disk stays."""
        self.settle()
        self.stop_processes(pod)
        pod.phase, pod.generation = "stopped", None

    def wake(self, pod: VirtualPod) -> None:
        """An instance that was outbid comes back by itself, and its onstart script runs again."""
        if pod.destroyed is None and pod.phase == "stopped":
            self.settle()
            pod.phase = "running"
            self._boot(pod)

    def die(self, pod: VirtualPod) -> None:
        """The instance is gone."""
        self.settle()
        self.stop_processes(pod)
        pod.destroyed = self.now
        self.living.pop(pod.id, None)

    def stop_processes(self, pod: VirtualPod) -> None:
        """Its processes end, and no instance tells."""
        self.trained_s += max(0.0, self.now - pod.trains_from)
        pod.first_step, pod.trains_from, pod.publishing = pod.step, NEVER, False
        if pod.processes is not None:
            pod.processes.alive, pod.processes = False, None

    def holder(self) -> VirtualPod | None:
        """The pod that holds the run and lives."""
        pod = self.living.get(self.held.holder)
        return pod if pod is not None and pod.processes is not None and not self.held.released else None

    # ------------------------------------------------------------ what a pod does

    def reaches_store(self, pod: VirtualPod) -> bool:
        """Can it read and write there now?"""
        return pod.online and self.now >= self.store_away_until

    def _boot(self, pod: VirtualPod) -> None:
        pod.processes = Owner()
        self._plan(pod, pod.boot_s, lambda: self._claim(pod))

    def _plan(self, pod: VirtualPod, seconds: float, call: Callable[[], None]) -> None:
        if seconds != NEVER:
            self.clock.after(seconds, call, pod.processes)

    def _claim(self, pod: VirtualPod) -> None:
        held = self.held
        pod.says = "running"
        if held.released and held.code in (0, 93):
            return
        if (held.generation, held.mark) != pod.seen_mark:
            pod.seen_mark, pod.seen_at = (held.generation, held.mark), self.now
        free = held.generation == 0 or held.released or held.holder == pod.id
        convicted = pod.convicted == f"{held.generation}:{held.mark}"
        if not self.reaches_store(pod) or not (free or convicted or self.now - pod.seen_at >= PATIENCE_S):
            self._plan(pod, RETRY_S, lambda: self._claim(pod))
            return
        before = self.pods.get(held.holder)
        if before is not None and before is not pod and self.is_well(before):
            self.false_replacements += 1
        if held.holder != pod.id:
            pod.complete = []
        self.held = Held(held.generation + 1, pod.id, published=held.published)
        pod.generation, pod.first_step = self.held.generation, max([held.published or 0, *pod.complete])
        self._write_beat(pod)
        if pod.unfit:
            self.release(pod, 94, "the host has 1 GPU, and 2 were offered")
            return
        self._plan(pod, BEAT_S, lambda: self._beat(pod))
        self._plan(pod, self.times.load_s, lambda: self._train(pod))

    def _train(self, pod: VirtualPod) -> None:
        pod.trains_from = self.now
        self._plan_save(pod)
        self._publish(pod)

    def _plan_save(self, pod: VirtualPod) -> None:
        last = max(pod.first_step, *pod.complete, 0)
        step = min(self.times.finish, (last // self.times.save_every + 1) * self.times.save_every)
        due = pod.trains_from + (step - pod.first_step) * self.times.step_s

        def save() -> None:
            pod.complete.append(step)
            self._publish(pod)
            if step < self.times.finish:
                self._plan_save(pod)

        self._plan(pod, due - self.now, save)

    def _publish(self, pod: VirtualPod) -> None:
        step = max(pod.complete, default=0)
        if pod.publishing or step <= (self.held.published or 0):
            return
        pod.publishing = True

        def point() -> None:
            if not self.reaches_store(pod):
                self._plan(pod, RETRY_S, point)
            elif self._is_holder(pod):
                if step <= (self.held.published or 0):
                    self.trouble.append(f"{pod.id} moved the pointer back")
                self.held.published, pod.publishing = step, False
                if step == self.times.finish:
                    self.release(pod, 0, "finished")
                else:
                    self._publish(pod)

        self._plan(pod, self.times.publish_s, point)

    def _beat(self, pod: VirtualPod) -> None:
        beats = self.reaches_store(pod) and self.now >= self.beats_late_until
        if beats and self._is_holder(pod):
            self._write_beat(pod)
        self._plan(pod, BEAT_S if beats else RETRY_S, lambda: self._beat(pod))

    def _is_holder(self, pod: VirtualPod) -> bool:
        """Does it still hold the run? One that lost it is fenced, and writes no more."""
        if self.held.holder == pod.id and self.held.generation == pod.generation and not self.held.released:
            return True
        self.stop_processes(pod)
        pod.generation = None
        return False

    def _write_beat(self, pod: VirtualPod) -> None:
        held = self.held
        held.beat_at, held.mark, held.step = self.now, f"{pod.id}-{self.now:.0f}", pod.step
        held.unpublished = pod.unpublished = tuple(step for step in pod.complete if step > (held.published or 0))

    def release(self, pod: VirtualPod, code: int, reason: str) -> None:
        """The pod gives the run back with its last words; its instance is billed until it is destroyed."""
        self._write_beat(pod)
        self.held.released, self.held.code, self.held.reason = True, code, reason
        self.stop_processes(pod)
        pod.generation = None

    # ------------------------------------------------------------ for the controller

    def look(self) -> RunLook:
        """What the run's store says. Raises StoreError."""
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


class VirtualBook:
    """The controller's memory, with all that it said."""

    def __init__(self, world: VirtualFleet) -> None:
        self.world = world
        self.states: dict[str, State] = {}
        self.said: list[str] = []

    def list_runs(self) -> list[str]:
        """As ``fleet.controller.Book``."""
        return list(self.states)

    def read_state(self, run_id: str) -> State:
        """As ``fleet.controller.Book``."""
        return self.states.get(run_id, State())

    def write_state(self, run_id: str, state: State, sentence: str, *, verdict: Verdict = "") -> None:
        """As ``fleet.controller.Book``."""
        self.states[run_id] = state
        if not self.said or self.said[-1] != sentence:
            self.said.append(sentence)

    def read_clock(self) -> float:
        """As ``fleet.controller.Book``."""
        return self.world.now


class VirtualProvider:
    """Lists, lets and ends virtual pods."""

    name = "virtual"

    def __init__(self, world: VirtualFleet) -> None:
        self.world = world

    def meet_fault(self, call: str) -> str:
        """What goes wrong with a request: raises PlaceError, or names it. "worked": done, without an answer; "lost":
        not done, without an answer; "flap": a list without any instance; "no-boot": the pod never comes up."""
        return ""

    def list_instances(self) -> list[Instance]:
        """As ``places.base.Provider``."""
        if self.meet_fault("list") == "flap":
            return []
        return [
            Instance(
                one.id,
                one.label,
                one.phase,
                one.per_hour,
                one.spot,
                "H100",
                2,
                one.machine,
                "",
                one.says,
                one.lowest_bid,
                self.world.price_stopped(one),
            )
            for one in self.world.living.values()
            if self.world.now >= one.listed_from
        ]

    def find_offers(self, want: Want) -> list[Offer]:
        """As ``places.base.Provider``."""
        self.meet_fault("offers")
        busy = {pod.machine for pod in self.world.living.values()}
        fits = [
            one
            for one in self.world.find_machines()
            if one.machine not in busy and one.spot == want.spot and one.per_hour <= want.most_per_hour
        ]
        return sorted(fits, key=lambda one: one.per_hour)

    def create(self, offer: Offer, order: Order) -> str:
        """As ``places.base.Provider``."""
        fault = self.meet_fault("create")
        if fault in ("taken", "credit", "rate"):
            raise PlaceError("taken" if fault == "taken" else "credit" if fault == "credit" else "rate", fault)
        if fault == "lost":
            raise PlaceError("unsure", "no answer within 30 s")
        pod = self.world.rent(offer, order, boots=fault != "no-boot")
        if fault == "worked":
            raise PlaceError("unsure", "no answer within 30 s")
        return pod.id

    def raise_bid(self, instance: Instance, bid: float) -> None:
        """As ``places.base.Provider``."""
        raise NotImplementedError

    def destroy(self, instance: Instance) -> None:
        """As ``places.base.Provider``."""
        fault = self.meet_fault("destroy")
        pod, held = self.world.pods[instance.id], self.world.held
        if max(pod.unpublished, default=0) > (held.published or 0):
            self.world.trouble.append(
                f"{pod.id} is destroyed with steps {pod.unpublished}, {held.published} is published"
            )
        if held.holder == pod.id and not held.released and self.world.now - held.beat_at < 3 * BEAT_S:
            self.world.trouble.append(f"{pod.id} is destroyed while it holds the run and beats")
        if fault != "lost":
            self.world.false_replacements += self.world.is_well(pod)
            self.world.die(pod)
        if fault:
            raise PlaceError("unsure", "no answer within 30 s")

    def read_log(self, instance: Instance) -> str:
        """As ``places.base.Provider``."""
        return ""

    def read_credit(self) -> float | None:
        """As ``places.base.Provider``."""
        return None
