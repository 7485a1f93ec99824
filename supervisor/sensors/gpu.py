"""GPU memory of the run's GPUs through NVML, and the faults it reports: a look every second, a fact on change.

"Used" is NVML's, with what the driver itself reserves. GPUs are named by NVML index (PCI bus order, not
CUDA_VISIBLE_DEVICES) or by UUID; an index is turned into its UUID once and kept so, because NVML counts anew when a
GPU falls off the bus, and number 1 would then be another run's GPU.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from supervisor.base.records import dataclass
from supervisor.core.facts import EMPTY_BYTES, Fact, Gpu, GpuLook, Remark
from supervisor.jobs.base import GpuPlan
from supervisor.sensors.base import Clock
from supervisor.sensors.xid import XidEvents

GpuRole = Literal["inference", "trainer", "shared", "other"]

CHANGE_BYTES = 64 << 20
CHANGE_PART = 0.005  # of the GPU's total: small GPUs (and simulated ones) move in small steps
SLOWDOWNS = {0x40: "HW thermal slowdown", 0x80: "HW power brake", 0x20: "SW thermal slowdown", 0x08: "HW slowdown"}
"""NVML's clock event reasons (nvml.h) that mean trouble; the power cap (0x4) is usual for a GPU at work."""
SURE_LOOKS = 3  # in a row, before a GPU about which NVML only says "unknown error" is said to be lost


@dataclass
class _Device:
    handle: Any
    index: int
    role: GpuRole
    pids: tuple[int, ...] | None = None
    seen: bool = False  # could it ever be read?
    failures: int = 0  # looks in a row in which it could not
    peak_w: float | None = None  # the most that it drew since that was told: one that computes has pauses


class GpuSensor:
    """Posts ``GpuLook`` for the GPUs of ``plan``; with an empty plan for every GPU, as role "other".

    A look is posted when a GPU's memory moved by more than 64 MiB or 0.5 % of its total, when it became empty
    (``Gpu.is_empty``) or was filled, and every ``heartbeat_s``. Where nothing can be read (no library, no driver, MIG)
    it is ``GpuLook(reason=...)``, and NVML is opened anew every ``retry_s`` seconds until it works.

    One GPU that cannot be read hides no other one. If it could be read before, it is in ``GpuLook.lost``: at once when
    NVML says so, after three looks when it says "not found" or "unknown error" while others answer. If it never could
    (a number in [gpus] that does not exist), a ``Remark`` says so once. While a GPU is lost NVML is opened anew every
    ``lost_retry_s``, and every ``retry_s`` when no other one is left to look at: a GPU that was reset comes back so.

    Xid events of the run's GPUs are posted as ``GpuFault`` (see ``xid``).

    ``pids`` and ``slowed`` are asked for less often than memory, because pids cost the driver a hundred times more;
    these are None where they cannot be trusted: in containers the driver shows no processes, or the host's numbers.
    """

    name = "gpu"

    def __init__(
        self,
        plan: GpuPlan,
        *,
        heartbeat_s: float = 10.0,
        retry_s: float = 5.0,
        lost_retry_s: float = 300.0,
        faults: XidEvents | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._plan = plan
        self._heartbeat_s = heartbeat_s
        self._retry_s = retry_s
        self._lost_retry_s = lost_retry_s
        self._faults = faults or XidEvents()
        self._clock = clock
        self._uuids: dict[str, str] = {}  # what the person wrote -> UUID it had at first
        self._devices: dict[str, _Device] = {}
        self._absent: dict[str, str] = {}  # UUIDs that were there and are not enumerated any more -> sentence
        self._lost: dict[str, str] = {}  # what was first said of each lost GPU: it stays the same fact
        self._dumb: dict[int, str] = {}  # index -> what NVML said instead of giving a handle
        self._notes: list[str] = []  # sentences on GPUs that never could be read
        self._noted: set[str] = set()
        self._open = False
        self._failure = ""
        self._retry_at = float("-inf")
        self._reopen_at = float("inf")  # while a GPU is lost
        self._said: GpuLook | None = None
        self._said_at = float("-inf")

    def look(self) -> Sequence[Fact]:
        now = self._clock()
        if self._failure and now < self._retry_at:
            return self._say(GpuLook(reason=self._failure), now)
        # Here and not at the top: 4 MiB that a machine without GPUs should not pay before it has to.
        import pynvml

        faults: list[Fact] = []
        try:
            if self._open and now >= self._reopen_at:
                self._close(pynvml)
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
                self._devices = self._find(pynvml)
                mine = [device for device in self._devices.values() if device.role != "other"]
                self._faults.watch(pynvml, {f"GPU {device.index}": device.handle for device in mine})
            faults += self._faults.take(pynvml)
            fact = self._read_all(pynvml)
        except (pynvml.NVMLError, _UnusableError) as error:
            self._failure = str(error) if isinstance(error, _UnusableError) else _sentence(pynvml, error)
            self._close(pynvml)
            self._retry_at = now + self._retry_s
            return [*faults, *self._say(GpuLook(reason=self._failure), now)]
        self._failure = ""
        faults += self._remarks()
        if fact is None:
            return faults
        again_s = self._lost_retry_s if fact.gpus else self._retry_s
        self._reopen_at = min(self._reopen_at, now + again_s) if fact.lost else float("inf")
        if self._worth_saying(fact, now):
            return [*faults, *self._say_with_pids(pynvml, fact, now)]
        return faults

    def unknown(self, reason: str) -> Sequence[Fact]:
        self._said = None
        return (GpuLook(reason=reason),)

    # ------------------------------------------------------------ NVML

    def _find(self, nvml: Any) -> dict[str, _Device]:
        """Handles of the run's GPUs by UUID, in NVML's order; leaves what is missing in ``_absent`` and ``_notes``."""
        present: dict[str, tuple[Any, int]] = {}
        self._absent, self._dumb, self._notes, self._reopen_at = {}, {}, [], float("inf")
        dumb = ""
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                present[nvml.nvmlDeviceGetUUID(handle)] = handle, index
            except nvml.NVMLError as error:
                # One that fell off the bus, perhaps another run's; NVML answers "lost" or just "unknown error" for it.
                dumb = f" (NVML about GPU {index}: {error})"
                self._dumb[index] = str(error)
        roles = self._roles(present, dumb)
        devices = {uuid: self._device(uuid, *present[uuid], roles[uuid]) for uuid in present if uuid in roles}
        for device in devices.values():
            if _is_split(nvml, device.handle):
                raise _UnusableError(
                    f"GPU {device.index} is split by MIG, and memory of MIG devices is not looked at: "
                    "switch MIG off on the run's GPUs, or go without GPU memory as a signal"
                )
        return devices

    def _device(self, uuid: str, handle: Any, index: int, role: GpuRole) -> _Device:
        before = self._devices.get(uuid)
        if before is None:
            return _Device(handle, index, role)
        return _Device(handle, index, role, seen=before.seen)

    def _roles(self, present: Mapping[str, tuple[Any, int]], dumb: str) -> dict[str, GpuRole]:
        if not self._plan.inference and not self._plan.trainer:
            if dumb:
                self._notes.append(f"Not all of this machine's GPUs can be read{dumb}.")
            return dict.fromkeys(present, "other")
        found: dict[str, str] = {}
        missing: list[str] = []
        for name in dict.fromkeys((*self._plan.inference, *self._plan.trainer)):
            try:
                found[name] = self._uuid(name, present, dumb)
            except _LostError as lost:
                self._absent[lost.uuid] = f"GPU {lost.name}: it is not on the bus any more{dumb}"
            except _MissingError as error:
                missing.append(str(error))
        if missing and not found and not self._absent:
            raise _UnusableError("; ".join(missing))
        self._notes += [f"[gpus]: {sentence}; the others are looked at." for sentence in missing]
        inference = {found[name] for name in self._plan.inference if name in found}
        trainer = {found[name] for name in self._plan.trainer if name in found}
        roles: dict[str, GpuRole] = dict.fromkeys(trainer, "trainer")
        roles.update(dict.fromkeys(inference, "inference"))
        roles.update(dict.fromkeys(inference & trainer, "shared"))
        return roles

    def _uuid(self, name: str, present: Mapping[str, tuple[Any, int]], dumb: str) -> str:
        """UUID of the GPU that a person called ``name``."""
        if name.startswith("MIG-"):
            raise _UnusableError(f"{name} is a MIG device, and memory of MIG devices is not looked at")
        known = self._uuids.get(name)
        if known is not None:
            if known not in present:
                raise _LostError(known, name)
            return known
        if name.isdecimal():
            if int(name) in self._dumb:
                raise _MissingError(f"GPU {name} cannot be read (NVML: {self._dumb[int(name)]})")
            here = [uuid for uuid, (_, index) in present.items() if index == int(name)]
            if not here:
                raise _MissingError(f"there is no GPU {name}: this machine has {len(present)}, counted from 0{dumb}")
        else:
            # CUDA takes a UUID's beginning when it is the only one that begins so; so do people.
            here = [uuid for uuid in present if uuid.lower().startswith(name.lower())]
            if len(here) != 1:
                which = "no GPU" if not here else "more than one GPU"
                raise _MissingError(f"{which} is named {name} on this machine{dumb}")
        self._uuids[name] = here[0]
        return here[0]

    def _read_all(self, nvml: Any) -> GpuLook | None:
        """All that can be read, and what is lost; None when that is not certain yet. NVMLError when nothing can."""
        gpus: list[Gpu] = []
        errors: dict[str, Any] = {}
        for uuid, device in self._devices.items():
            try:
                gpus.append(self._read(nvml, uuid, device))
            except nvml.NVMLError as failure:
                errors[uuid] = failure
        lost, sure = dict(self._absent), True
        for uuid, error in errors.items():
            device = self._devices[uuid]
            device.failures += 1
            gone = error.value == nvml.NVML_ERROR_GPU_IS_LOST
            if not gone and not gpus:
                raise error  # none answers: that is the driver, and not a GPU
            if (
                device.role == "other"
                or not device.seen
                or not (gone or error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_UNKNOWN))
            ):
                self._notes.append(f"GPU {device.index} cannot be read (NVML: {error}); the others are looked at.")
            elif gone or device.failures >= SURE_LOOKS:
                lost[uuid] = f"GPU {device.index}: {error}"
            else:
                sure = False
        if not gpus and not lost:
            raise _UnusableError(
                "; ".join(f"GPU {self._devices[u].index} cannot be read (NVML: {e})" for u, e in errors.items())
            )
        if not sure:
            return None
        self._lost = {uuid: self._lost.get(uuid, sentence) for uuid, sentence in lost.items()}
        return GpuLook(gpus=tuple(gpus), lost=tuple(self._lost.values()))

    def _read(self, nvml: Any, uuid: str, device: _Device) -> Gpu:
        memory = nvml.nvmlDeviceGetMemoryInfo(device.handle)
        device.seen, device.failures = True, 0
        used, total = int(memory.used), int(memory.total)
        power_w, load = _power_w(nvml, device.handle), _load(nvml, device.handle)
        if power_w is not None:
            device.peak_w = max(power_w, device.peak_w or 0.0)
        return Gpu(uuid, device.index, used, total, device.role, device.pids, power_w=device.peak_w, load=load)

    def _remarks(self) -> list[Fact]:
        fresh = [note for note in dict.fromkeys(self._notes) if note not in self._noted]
        self._noted.update(fresh)
        self._notes = []
        return [Remark("gpu", note) for note in fresh]

    def _close(self, nvml: Any) -> None:
        if not self._open:
            return
        self._open = False
        self._faults.forget(nvml)
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            return  # the reason why it was closed has been kept; there is nothing more to know

    # ------------------------------------------------------------ what to say

    def _worth_saying(self, fact: GpuLook, now: float) -> bool:
        said = self._said
        if said is None or said.reason or now - self._said_at >= self._heartbeat_s:
            return True
        before = {gpu.uuid: gpu for gpu in said.gpus}
        return (
            said.lost != fact.lost
            or before.keys() != {gpu.uuid for gpu in fact.gpus}
            or any(_has_moved(before[gpu.uuid], gpu) for gpu in fact.gpus)
        )

    def _say_with_pids(self, nvml: Any, fact: GpuLook, now: float) -> Sequence[Fact]:
        gpus = []
        for gpu in fact.gpus:
            device = self._devices[gpu.uuid]
            device.pids = _pids(nvml, device.handle, gpu.used_bytes)
            device.peak_w = None
            gpus.append(replace(gpu, pids=device.pids, slowed=_slowdown(nvml, device.handle)))
        return self._say(GpuLook(gpus=tuple(gpus), lost=fact.lost), now, always=True)

    def _say(self, fact: GpuLook, now: float, *, always: bool = False) -> Sequence[Fact]:
        if not always and fact == self._said and now - self._said_at < self._heartbeat_s:
            return ()
        self._said, self._said_at = fact, now
        return (fact,)


def _has_moved(before: Gpu, gpu: Gpu) -> bool:
    change = abs(gpu.used_bytes - before.used_bytes)
    return change > min(CHANGE_BYTES, CHANGE_PART * gpu.total_bytes) or gpu.is_empty != before.is_empty


class _UnusableError(Exception):
    """No GPU of the run can be read; the text is for people."""


class _LostError(Exception):
    """A GPU that was there is not there any more."""

    def __init__(self, uuid: str, name: str) -> None:
        super().__init__(uuid, name)
        self.uuid, self.name = uuid, name


class _MissingError(Exception):
    """A GPU that a person named has never been there."""


def _is_split(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False  # GPUs that know no MIG answer "not supported", old drivers "function not found"
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _power_w(nvml: Any, handle: Any) -> float | None:
    """What a GPU draws; whole watts, since each other number is another fact. None where it is not measured."""
    try:
        return float(round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000))
    except nvml.NVMLError:
        return None


def _load(nvml: Any, handle: Any) -> float | None:
    """Percent of the last moments in which any kernel ran: 100 as well where it only waits for another GPU."""
    try:
        return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:
        return None


def _pids(nvml: Any, handle: Any, used_bytes: int) -> tuple[int, ...] | None:
    """Processes on a GPU as the driver lists them, None where the list is hidden or speaks of the host's numbers."""
    # By version, because pynvml's name without one raises another kind of error with drivers before 510.
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetComputeRunningProcesses_v2):
        try:
            pids = tuple(sorted({int(process.pid) for process in ask(handle)}))
            break
        except nvml.NVMLError_FunctionNotFound:
            continue
        except nvml.NVMLError:
            return None
    else:
        return None
    if not pids:
        # Not the 2 % of `is_gpu_empty`: on a large GPU that could be a tenant that the driver hides.
        return () if used_bytes < EMPTY_BYTES else None
    return pids if all(Path(f"/proc/{pid}").exists() for pid in pids) else None


def _slowdown(nvml: Any, handle: Any) -> str | None:
    """Why the driver holds a GPU's clocks down, with temperature and clock; "" while it does not, None: unknown."""
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        try:  # the second name is that of drivers before 535
            reasons = int(getattr(nvml, name)(handle))
            break
        except (AttributeError, nvml.NVMLError_FunctionNotFound):
            continue
        except nvml.NVMLError:
            return None
    else:
        return None
    why = [word for bit, word in SLOWDOWNS.items() if reasons & bit]
    if not why:
        return ""
    words = ", ".join(why)
    with contextlib.suppress(nvml.NVMLError):
        words = f"{nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)} C, {words}"
    with contextlib.suppress(nvml.NVMLError):
        clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        words = f"{words}, {clock} of {nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)} MHz"
    return words


def _sentence(nvml: Any, error: Any) -> str:
    """What an NVML error means and what a person can do."""
    helps = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found: no NVIDIA driver here, or the container "
        "was started without its `utility` capability",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was upgraded under its library: restart the pod",
        nvml.NVML_ERROR_GPU_IS_LOST: "a GPU fell off the bus: only a reboot brings it back",
        nvml.NVML_ERROR_NO_PERMISSION: "no permission to talk to the driver: see the modes of /dev/nvidia*",
    }
    return helps.get(error.value, f"NVML failed: {error}")
