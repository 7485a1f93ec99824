"""What an agent sees of its machine's GPUs, memory and engines, beside processes and output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.jobs.base import Engine, GpuPlan, Place
from supervisor.nodes.wire import Message, now
from supervisor.sensors.base import Looker
from supervisor.sensors.engine import EngineSensor
from supervisor.sensors.gpu import GpuRole, GpuSensor
from supervisor.sensors.gpu_survey import survey
from supervisor.sensors.host import HostSensor

GPU_S, ENGINE_S, HOST_S = 3.0, 5.0, 5.0
LOOK_S = 15.0  # for one look: two questions, each with five seconds
WELL_S = 15.0  # an engine that is well is told of so often
TOLD_S = 30.0  # GPUs of which nothing changes are told of so often
KEPT_FAULTS = 16


class GpuSights:
    """The machine is the run's alone, and so are its GPUs."""

    def __init__(self, say: Callable[[Message], None], places: Callable[[], Sequence[Place]]) -> None:
        """``places``: what runs here for the newest attempt. ``say`` is called in a thread of the sensor."""
        self._say, self._places = say, places
        self._lost: set[str] = set()
        self.faults: list[tuple[float, Message]] = []
        """When each was seen (``wire.now``), the newest ones: told again with each new connection."""
        self._newest: tuple[f.Gpu, ...] | None = None

    def watch(self) -> None:
        """Look from now on. A driver that hangs holds up this thread and the sensor's alone."""
        while (found := survey()).problem and not found.none:
            self._take(f.GpuLook(reason=found.problem))
            time.sleep(TOLD_S)
        if gpus := [str(one.index) for one in found.gpus]:
            Looker(GpuSensor(GpuPlan(trainer=gpus), heartbeat_s=TOLD_S), self._take, interval_s=GPU_S).start()
        else:
            self._take(f.GpuLook())  # there are none: that is known, too

    def is_free(self) -> bool | None:
        """Is the memory of what works for the run back? None: unknown."""
        return None if self._newest is None else not self._list_held()

    def _list_held(self) -> list[f.Gpu]:
        """GPUs of the run whose memory is in use."""
        places = self._places()
        return [gpu for gpu in self._newest or () if not gpu.is_empty and find_role(gpu, places) != "other"]

    def list_pids(self) -> list[int]:
        """The processes that the driver lists, at the last look that asked; [] where it hides that."""
        return sorted({pid for gpu in self._newest or () for pid in gpu.pids or ()})

    def tell_not_free(self, holders: Sequence[str]) -> None:
        """The job is gone and its memory is not. The next start will tell whether that matters."""
        held = f", on it are {'; '.join(holders)}" if holders else ", no living process of the run holds it"
        for gpu in self._list_held():
            self._say({"t": "remark", "text": f"The memory of {gpu.name} did not come back after a stop{held}."})

    def _take(self, fact: f.Fact) -> None:
        if isinstance(fact, f.GpuFault):
            self._tell_fault(fact.gpu, fact.xid, fact.text)
        if not isinstance(fact, f.GpuLook):
            return
        if not fact.reason:
            for text in sorted(set(fact.lost) - self._lost):
                gpu, _, said = text.partition(": ")
                self._tell_fault(gpu, 0, said)
            self._lost = set(fact.lost)
        self._newest = None if fact.reason else fact.gpus
        self._tell(fact)

    def tell_again(self) -> None:
        """To a head that has not heard it, or since something else runs here now."""
        if self._newest is not None:
            self._tell(f.GpuLook(self._newest))

    def _tell(self, fact: f.GpuLook) -> None:
        places = self._places()
        gpus = tuple(replace(gpu, role=find_role(gpu, places)) for gpu in fact.gpus)
        self._say({"t": "gpus", "look": encode(replace(fact, gpus=gpus, lost=()))})

    def _tell_fault(self, gpu: str, xid: int, text: str) -> None:
        message = {"t": "gpu", "gpu": gpu, "xid": xid, "text": text}
        self.faults = [*self.faults, (now(), message)][-KEPT_FAULTS:]
        self._say(message)


class OomSights:
    """Tells when the kernel ends a process of this machine for want of memory: signal 9 alone does not say why."""

    def __init__(self, say: Callable[[Message], None], processes: Callable[[], Iterable[tuple[int, str]]]) -> None:
        self._say = say
        self._kills: int | None = None
        self._looker = Looker(HostSensor(processes), self.take, interval_s=HOST_S)

    def watch(self) -> None:
        """Look from now on."""
        self._looker.start()

    def take(self, fact: f.Fact) -> None:
        """What the sensor says, in its thread."""
        kills = fact.oom_kills if isinstance(fact, f.HostLook) else None
        if kills is not None and self._kills is not None and kills > self._kills:
            text = "The kernel ended a process because memory was full (OOM kill)."
            self._say({"t": "remark", "text": text})
        self._kills = kills if kills is not None else self._kills


def find_role(gpu: f.Gpu, places: Sequence[Place]) -> GpuRole:
    """What the GPU does here: "other" where that cannot be told."""
    users = [one for one in places if one.role in ("trainer", "inference") and _may_use(one, gpu)]
    roles = {one.role for one in users}
    if len(roles) > 1:
        # Two that both see all GPUs will have shared them out; only they know how.
        return "shared" if all(one.gpus is not None for one in users) else "other"
    return "trainer" if "trainer" in roles else "inference" if roles else "other"


def _may_use(place: Place, gpu: f.Gpu) -> bool:
    # CUDA takes a number, or the beginning of a UUID.
    return place.gpus is None or any(
        name == str(gpu.index) or (not name.isdecimal() and gpu.uuid.lower().startswith(name.lower()))
        for name in place.gpus
    )


def watch_engine(place: Place, hang_s: float, post: Callable[[f.Fact], None]) -> Looker:
    """Ask the engine of ``place`` on this machine; an answer each few seconds."""
    engine = Engine(f"http://127.0.0.1:{place.port}", liveness=True)
    sensor = EngineSensor(engine, canary_after_s=hang_s / 2, canary_timeout_s=hang_s / 2)
    return Looker(sensor, post, interval_s=ENGINE_S, deadline_s=LOOK_S)


def is_worth_saying(look: f.EngineLook) -> bool:
    """Is it more than that the engine answers? That its /liveness does, which goes through the engine, is more."""
    return look.health != "ok" or look.liveness not in ("unknown", "absent") or bool(look.canary)
