"""GPU memory of the run's GPUs through NVML: a look every second, a fact when something moved.

"Used" is NVML's, with what the driver itself reserves. GPUs are named by NVML index (PCI bus order, not
CUDA_VISIBLE_DEVICES) or by UUID; an index is turned into its UUID once and kept so, because NVML counts anew when a
GPU falls off the bus, and number 1 would then be another run's GPU.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from supervisor.core.facts import Fact, Gpu, GpuLook
from supervisor.jobs.base import GpuPlan
from supervisor.sensors.base import Clock

GpuRole = Literal["inference", "trainer", "shared", "other"]

CHANGE_BYTES = 64 << 20
CHANGE_PART = 0.005  # of the GPU's total: small GPUs (and simulated ones) move in small steps
NEAR_ZERO_BYTES = 1 << 30  # a GPU without tenants shows 0 to about 600 MiB, by driver and persistence mode
NEAR_ZERO_PART = 0.10  # of the highest level seen


@dataclass
class _Device:
    handle: Any
    index: int
    role: GpuRole
    highest_bytes: int = 0
    pids: tuple[int, ...] | None = None


class GpuSensor:
    """Posts ``GpuLook`` for the GPUs of ``plan``; with an empty plan for every GPU, as role "other".

    A look is posted when a GPU's memory moved by more than 64 MiB or 0.5 % of its total, when it came near zero or
    left it, and every ``heartbeat_s``. Anything that keeps even one of the GPUs from being read (no library, no
    driver, a GPU that fell off the bus, MIG) gives ``GpuLook(reason=...)``; NVML is then opened anew every
    ``retry_s`` seconds until it works.

    ``pids`` are asked for less often than memory, because that costs the driver a hundred times more; they are None
    where they cannot be trusted: in containers the driver shows no processes, or the host's numbers of them.
    """

    name = "gpu"

    def __init__(
        self, plan: GpuPlan, *, heartbeat_s: float = 10.0, retry_s: float = 5.0, clock: Clock = time.monotonic
    ) -> None:
        self._plan = plan
        self._heartbeat_s = heartbeat_s
        self._retry_s = retry_s
        self._clock = clock
        self._uuids: dict[int, str] = {}  # index as the person wrote it -> UUID it had at first
        self._devices: dict[str, _Device] = {}
        self._open = False
        self._failure = ""
        self._retry_at = float("-inf")
        self._said: GpuLook | None = None
        self._said_at = float("-inf")

    def look(self) -> Sequence[Fact]:
        now = self._clock()
        if self._failure and now < self._retry_at:
            return self._say(GpuLook(reason=self._failure), now)
        # Here and not at the top: 4 MiB that a machine without GPUs should not pay before it has to.
        import pynvml

        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
                self._devices = self._find(pynvml)
            fact = GpuLook(gpus=tuple(self._read(pynvml, uuid, device) for uuid, device in self._devices.items()))
        except (pynvml.NVMLError, _UnusableError) as error:
            self._failure = str(error) if isinstance(error, _UnusableError) else _sentence(pynvml, error)
            self._close(pynvml)
            self._retry_at = now + self._retry_s
            return self._say(GpuLook(reason=self._failure), now)
        self._failure = ""
        if self._worth_saying(fact, now):
            return self._say_with_pids(pynvml, fact, now)
        return ()

    def unknown(self, reason: str) -> Sequence[Fact]:
        self._said = None
        return (GpuLook(reason=reason),)

    # ------------------------------------------------------------ NVML

    def _find(self, nvml: Any) -> dict[str, _Device]:
        """Handles of the run's GPUs by UUID, in NVML's order."""
        present: dict[str, tuple[Any, int]] = {}
        lost = ""
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                present[nvml.nvmlDeviceGetUUID(handle)] = handle, index
            except nvml.NVMLError as error:
                # One that fell off the bus, perhaps another run's; NVML answers "lost" or just "unknown error" for it.
                lost = f" (NVML about GPU {index}: {error})"
        roles = self._roles(present, lost)
        devices = {
            uuid: _Device(handle, index, roles[uuid], highest_bytes=self._highest(uuid))
            for uuid, (handle, index) in present.items()
            if uuid in roles
        }
        for device in devices.values():
            if _is_split(nvml, device.handle):
                _give_up(
                    f"GPU {device.index} is split by MIG, and memory of MIG devices is not looked at: "
                    "switch MIG off on the run's GPUs, or go without GPU memory as a signal"
                )
        return devices

    def _highest(self, uuid: str) -> int:
        return self._devices[uuid].highest_bytes if uuid in self._devices else 0

    def _roles(self, present: Mapping[str, tuple[Any, int]], lost: str) -> dict[str, GpuRole]:
        if not self._plan.inference and not self._plan.trainer:
            if lost:
                _give_up(f"not all of this machine's GPUs can be read{lost}")
            return dict.fromkeys(present, "other")
        inference = {self._uuid(name, present, lost) for name in self._plan.inference}
        trainer = {self._uuid(name, present, lost) for name in self._plan.trainer}
        roles: dict[str, GpuRole] = dict.fromkeys(trainer, "trainer")
        roles.update(dict.fromkeys(inference, "inference"))
        roles.update(dict.fromkeys(inference & trainer, "shared"))
        return roles

    def _uuid(self, name: str, present: Mapping[str, tuple[Any, int]], lost: str) -> str:
        """UUID of the GPU that a person called ``name``."""
        if name.isdecimal():
            here = next((uuid for uuid, (_, index) in present.items() if index == int(name)), None)
            uuid = self._uuids.get(int(name), here)
            if uuid is None:
                _give_up(f"there is no GPU {name}: this machine has {len(present)}, counted from 0{lost}")
            if uuid not in present:
                _give_up(f"GPU {name} ({uuid}) is not on the bus any more{lost}")
            self._uuids[int(name)] = uuid
            return uuid
        if name.startswith("MIG-"):
            _give_up(f"{name} is a MIG device, and memory of MIG devices is not looked at")
        # CUDA takes a UUID's beginning when it is the only one that begins so; so do people.
        found = [uuid for uuid in present if uuid.lower().startswith(name.lower())]
        if len(found) != 1:
            _give_up(f"{'no GPU' if not found else 'more than one GPU'} is named {name} on this machine{lost}")
        return found[0]

    def _read(self, nvml: Any, uuid: str, device: _Device) -> Gpu:
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(device.handle)
        except nvml.NVMLError_GpuIsLost:
            _give_up(f"GPU {device.index} ({uuid}) fell off the bus (NVML: GPU is lost); only a reboot brings it back")
        device.highest_bytes = max(device.highest_bytes, int(memory.used))
        return Gpu(uuid, device.index, int(memory.used), int(memory.total), device.role, device.pids)

    def _close(self, nvml: Any) -> None:
        if not self._open:
            return
        self._open = False
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
        return before.keys() != {gpu.uuid for gpu in fact.gpus} or any(
            self._moved(before[gpu.uuid], gpu) for gpu in fact.gpus
        )

    def _moved(self, before: Gpu, gpu: Gpu) -> bool:
        change = abs(gpu.used_bytes - before.used_bytes)
        if change > min(CHANGE_BYTES, CHANGE_PART * gpu.total_bytes):
            return True
        near_zero = min(NEAR_ZERO_BYTES, NEAR_ZERO_PART * self._devices[gpu.uuid].highest_bytes)
        return (gpu.used_bytes < near_zero) != (before.used_bytes < near_zero)

    def _say_with_pids(self, nvml: Any, fact: GpuLook, now: float) -> Sequence[Fact]:
        gpus = []
        for gpu in fact.gpus:
            device = self._devices[gpu.uuid]
            device.pids = _pids(nvml, device.handle, gpu.used_bytes)
            gpus.append(Gpu(gpu.uuid, gpu.index, gpu.used_bytes, gpu.total_bytes, gpu.role, device.pids))
        return self._say(GpuLook(gpus=tuple(gpus)), now, always=True)

    def _say(self, fact: GpuLook, now: float, *, always: bool = False) -> Sequence[Fact]:
        if not always and fact == self._said and now - self._said_at < self._heartbeat_s:
            return ()
        self._said, self._said_at = fact, now
        return (fact,)


class _UnusableError(Exception):
    """A GPU of the run cannot be read; the text is for people."""


def _give_up(sentence: str) -> NoReturn:
    raise _UnusableError(sentence)


def _is_split(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False  # GPUs that know no MIG answer "not supported", old drivers "function not found"
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


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
        return () if used_bytes < NEAR_ZERO_BYTES else None
    return pids if all(Path(f"/proc/{pid}").exists() for pid in pids) else None


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


def merged(plan: GpuPlan, inference: Sequence[int | str], trainer: Sequence[int | str]) -> GpuPlan:
    """The job's own plan, overruled by what a person wrote in ``[gpus]``."""
    return GpuPlan(
        inference=[str(name) for name in inference] or plan.inference,
        trainer=[str(name) for name in trainer] or plan.trainer,
    )
