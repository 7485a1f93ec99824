"""One look at all GPUs and their driver, in a child process: a broken driver can hang or crash its caller."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from supervisor.base.own_child import OwnChild
from supervisor.base.records import dataclass

LOOK_S = 15.0

# By version, because pynvml's name without one raises another kind of error with drivers before 510. A GPU that cannot
# be read (one that fell off the bus) is left out, and so is not known. One that shares the processor's memory (GB10)
# is there, and its memory is not known.
_ASK = """
import json, pynvml
pynvml.nvmlInit()
def asked(call, *words):
    try:
        value = call(*words)
    except pynvml.NVMLError:
        return None
    return value.decode() if isinstance(value, bytes) else value
def processes(handle):
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        try:
            return [[one.pid, one.usedGpuMemory or 0] for one in getattr(pynvml, name)(handle)]
        except pynvml.NVMLError_FunctionNotFound:
            continue
        except pynvml.NVMLError:
            return None
    return None
def sizes(handle):
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
        return 0, 0, 0
    return memory.total, memory.free, memory.used
gpus = []
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = asked(pynvml.nvmlDeviceGetHandleByIndex, index)
    memory = handle and asked(sizes, handle)
    if not memory:
        continue
    capability = asked(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    gpus.append([index, asked(pynvml.nvmlDeviceGetName, handle) or "", asked(pynvml.nvmlDeviceGetUUID, handle) or "",
                 *memory, list(capability) if capability else None, processes(handle)])
print(json.dumps([asked(pynvml.nvmlSystemGetDriverVersion) or "",
                  asked(pynvml.nvmlSystemGetCudaDriverVersion) or 0, gpus]))
"""
_NO_ERROR_OF_THE_DRIVER = ("LibraryNotFound", "FunctionNotFound", "NoPermission", "Timeout")


@dataclass(frozen=True)
class GpuSurveyed:
    """A GPU as NVML tells of it; memory in bytes, 0 where it is not known.

    ``pids``: process and its bytes, None where they are hidden.
    """

    index: int
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    used_bytes: int
    capability: tuple[int, int] | None = None
    pids: Sequence[tuple[int, int]] | None = None


@dataclass(frozen=True)
class GpuSurvey:
    """``cuda``: newest CUDA version that the driver runs, "" where it is not told.

    ``problem``: a sentence, where the driver could not be asked; ``none``: because there is no driver here at all;
    ``is_broken``: because it answers with an error.
    """

    gpus: Sequence[GpuSurveyed] = field(default_factory=tuple)
    driver: str = ""
    cuda: str = ""
    problem: str = ""
    none: bool = False
    is_broken: bool = False


def survey(timeout_s: float = LOOK_S, environ: Mapping[str, str] | None = None) -> GpuSurvey:
    """Ask NVML once, at most ``timeout_s``. ``environ``: which libraries are found, as the one who asks finds them."""
    words = [sys.executable, "-P", "-c", _ASK]  # never import from the current folder
    try:
        with OwnChild(words, environ=os.environ if environ is None else environ) as child:
            code = child.wait(time.monotonic() + timeout_s)
            child.kill()
            said, last = child.answer(), child.complaint() or "no reason given"
    except OSError as error:
        return GpuSurvey(problem=f"The NVIDIA driver could not be asked ({error}): GPUs are left out.")
    if code is None:
        return GpuSurvey(problem=f"The NVIDIA driver gave no answer in {timeout_s:g} s: GPUs are left out.")
    if code != 0:
        # A container without the `utility` capability has no such library either, but has the GPU's file.
        none = "LibraryNotFound" in last or "DriverNotLoaded" in last
        none = none and not any(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*"))
        broken = "NVMLError" in last and not any(word in last for word in _NO_ERROR_OF_THE_DRIVER)
        return GpuSurvey(problem=f"No GPU was found ({last.split(': ', 1)[-1]}).", none=none, is_broken=broken)
    try:
        driver, cuda, found = json.loads(said)
        gpus = [_gpu(one) for one in found]
    except (ValueError, TypeError, IndexError):
        return GpuSurvey(problem="The NVIDIA driver gave an answer that is not understood: GPUs are left out.")
    return GpuSurvey(gpus, driver, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")


def _gpu(one: list[Any]) -> GpuSurveyed:
    index, name, uuid, total, free, used, capability, pids = one
    generation = (int(capability[0]), int(capability[1])) if capability else None
    processes = None if pids is None else [(int(pid), int(held)) for pid, held in pids]
    return GpuSurveyed(index, name, uuid, total, free, used, generation, processes)
