"""What an agent sees of its machine beside processes and output: GPUs, engines, memory, and what the processes do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.jobs.base import Engine, GpuPlan, Place
from supervisor.nodes.wire import Message, now
from supervisor.process.survivors import Identity, Process, process_table
from supervisor.sensors.base import Looker, Sensor
from supervisor.sensors.effort import EffortSensor
from supervisor.sensors.engine import EngineSensor
from supervisor.sensors.gpu import GpuRole, GpuSensor
from supervisor.sensors.gpu_survey import survey
from supervisor.sensors.host import HostSensor

GPU_S, ENGINE_S, HOST_S, EFFORT_S = 3.0, 5.0, 5.0, 10.0
LOOK_S = 15.0  # for one look: two questions, each with five seconds
WELL_S = 15.0  # an engine that is well is told of so often
TOLD_S = 30.0  # GPUs of which nothing changes are told of so often
KEPT_FAULTS = 16
WRAPPERS = ("bash", "sh", "uv")  # they start what works, and wait for it

Worker = tuple[f.Role | None, int, int, bool]
"""Role, pid, start ticks, and whether it is one that counts. No role: a helper."""


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
        if gpus := [str(one.index) for one in found.gpus if one.total_bytes]:
            Looker(GpuSensor(GpuPlan(trainer=gpus), heartbeat_s=TOLD_S), self._take, interval_s=GPU_S).start()
        else:
            self._take(f.GpuLook())  # there are none: that is known, too

    def is_free(self) -> bool | None:
        """Is the memory of what works for the run back? None: unknown."""
        return None if self._newest is None else not self._list_held()

    def _list_held(self) -> list[f.Gpu]:
        """Those of the run, with memory in use."""
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


class Sights:
    """What one sensor sees of the machine."""

    def __init__(self, say: Callable[[Message], None], kind: str, sensor: Sensor, interval_s: float) -> None:
        self._say, self._top = say, Message(t=kind)
        self.newest: list[tuple[float, Message]] = []
        """What was told last, and when (``wire.now``): told again with each new connection."""
        self._looker = Looker(sensor, self._take, interval_s=interval_s)

    def watch(self) -> None:
        """Look from now on."""
        self._looker.start()

    def _take(self, fact: f.Fact) -> None:
        message: Message = {**self._top, "look": encode(fact)}
        self.newest = [(now(), message)]
        self._say(message)


class HostSights(Sights):
    """The machine's memory, OOM kills, open files and /dev/shm, as the run's processes there have them."""

    def __init__(self, say: Callable[[Message], None], processes: Callable[[], Iterable[tuple[int, str]]]) -> None:
        super().__init__(say, "host", HostSensor(processes), HOST_S)


@dataclass(frozen=True)
class Root:
    """A component that runs here: its shim, its own process, and the engine's processes that were seen below it."""

    role: f.Role
    shim_pid: int
    pid: int
    engines: Sequence[Identity] = ()


class EffortSights(Sights):
    """What the processes of the newest attempt do here: CPU time, files, and the network of the machine."""

    def __init__(self, say: Callable[[Message], None], roots: Callable[[], tuple[int, Sequence[Root]]]) -> None:
        """``roots``: the number of the attempt, and what runs here of it."""
        super().__init__(say, "effort", EffortSensor(self._list_all, over_machines=True), EFFORT_S)
        self._roots = roots
        self._top["attempt"] = 0
        self._key: list[tuple[int, str]] = []

    def list_key(self) -> list[tuple[int, str]]:
        """The processes that count, as of the last look: (pid, role)."""
        return self._key

    def _list_all(self) -> list[Worker]:
        self._top["attempt"], roots = self._roots()
        found = list_workers(roots, process_table()) if roots else []
        self._key = [(pid, role) for role, pid, _, is_key in found if role is not None and is_key]
        return found


def list_workers(roots: Sequence[Root], processes: Mapping[int, Process]) -> list[Worker]:
    """Each process below the components' shims, and whether it is one that counts; for ``EffortSensor``.

    Of a trainer the ranks count, which torchrun gives ``LOCAL_RANK``; what they start waits in loops, as they do. Of an
    engine its cores do, and nothing else. What is below any other is a helper.
    """
    below: dict[int, list[Process]] = {}
    for process in processes.values():
        below.setdefault(process.ppid, []).append(process)
    found: list[Worker] = []
    for root in roots:
        if root.role == "inference":
            found += [(root.role, *one, True) for one in root.engines]
            continue
        main = root.pid
        while (one := processes.get(main)) and one.name in WRAPPERS and len(below.get(main, ())) == 1:
            main = below[main][0].pid
        # An orphan is a child of the shim.
        tree = _list_tree(root.shim_pid, below)
        ranks = {one.pid for one in tree if _is_rank(one.pid)} if root.role == "trainer" else set()
        # A rank's own children have its environment, too.
        key = {one.pid for one in tree if one.pid in ranks and one.ppid not in ranks} or {main}
        for one in tree:
            role = root.role if one.pid in key or one.pid in ranks else None
            found.append((role, *one.identity, one.pid in key))
    return found


def _list_tree(top: int, below: Mapping[int, Sequence[Process]]) -> list[Process]:
    tree, todo = [], list(below.get(top, ()))
    while todo:
        tree.append(process := todo.pop())
        todo += below.get(process.pid, ())
    return tree


def _is_rank(pid: int) -> bool:
    try:
        return b"\0LOCAL_RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


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
