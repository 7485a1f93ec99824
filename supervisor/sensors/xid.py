"""Faults that the GPU driver reports itself (Xid events): through NVML, or where it has none from the kernel's log."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from supervisor.core.facts import GpuFault
from supervisor.signatures.xids import LINE

WAIT_MS = 10  # the GPU sensor looks each second anyway; the driver keeps events until they are fetched
MOST = 64  # in one look: a GPU that throws faults by the thousand must not hold up the look at its memory
SHOWN = 200
RECORD_BYTES = 8192  # /dev/kmsg gives one record a read, and refuses when the buffer is smaller than that record
KMSG = Path("/dev/kmsg")

Address = tuple[int, int, int]
"""PCI domain, bus and device."""


class XidEvents:
    """Fetches faults of given GPUs. Used by one thread, the GPU sensor's; nothing here waits for long.

    Where NVML gives no events of a GPU (a driver before 510, a virtual machine, a container), they are read from the
    kernel's log, if that is allowed; without both nothing is ever said. What happened before ``watch`` was first called
    is not told.
    """

    def __init__(self, kmsg: Path = KMSG) -> None:
        self._kmsg = kmsg
        self._log: int | None = None
        self._events: Any = None
        self._by_event: dict[int, str] = {}  # NVML's handle -> name for people
        self._by_log: dict[Address, str] = {}

    def watch(self, nvml: Any, gpus: Mapping[str, Any]) -> None:
        """From now on these: name for people -> NVML's handle. NVML is open."""
        self._by_event, self._by_log = {}, {}
        with contextlib.suppress(nvml.NVMLError):
            self._events = nvml.nvmlEventSetCreate()
        for name, handle in gpus.items():
            if self._events is not None and _register(nvml, handle, self._events):
                self._by_event[_pointer(handle)] = name
            elif (address := _address(nvml, handle)) is not None:
                self._by_log[address] = name
        if not self._by_event:
            self.forget(nvml)
        if self._by_log and self._log is None:
            self._log = _open_at_end(self._kmsg)

    def forget(self, nvml: Any) -> None:
        """NVML is about to be closed. The kernel's log stays open, so that nothing in it is missed meanwhile."""
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)

    def take(self, nvml: Any) -> list[GpuFault]:
        """The faults since the last call, oldest first."""
        return [*self._from_events(nvml), *self._from_log()]

    def _from_events(self, nvml: Any) -> Iterator[GpuFault]:
        for _ in range(MOST if self._events is not None else 0):
            try:
                data = nvml.nvmlEventSetWait_v2(self._events, WAIT_MS)
            except nvml.NVMLError_Timeout:
                return
            except nvml.NVMLError:
                # A driver too old to give events, or a GPU that fell off the bus: then this set gives no more.
                self.forget(nvml)
                return
            # By its handle: a GPU that has just fallen off the bus may not answer what its UUID is.
            name = self._by_event.get(_pointer(data.device))
            if name is not None and data.eventType == nvml.nvmlEventTypeXidCriticalError:
                yield GpuFault(name, int(data.eventData))

    def _from_log(self) -> Iterator[GpuFault]:
        for line in _new_lines(self._log) if self._log is not None else ():
            found = LINE.search(line)
            if found is None:
                continue
            name = self._by_log.get((int(found[1], 16), int(found[2], 16), int(found[3], 16)))
            if name is not None:
                yield GpuFault(name, int(found[4]), found[5].strip()[:SHOWN])


def _pointer(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _register(nvml: Any, handle: Any, events: Any) -> bool:
    wanted = nvml.nvmlEventTypeXidCriticalError
    try:
        if not nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted:
            return False
        nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
    except nvml.NVMLError:
        return False
    return True


def _address(nvml: Any, handle: Any) -> Address | None:
    try:
        found = nvml.nvmlDeviceGetPciInfo_v3(handle)
    except nvml.NVMLError:
        return None
    return int(found.domain), int(found.bus), int(found.device)


def _open_at_end(kmsg: Path) -> int | None:
    try:
        log = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None  # dmesg_restrict, or a container without the device
    try:
        os.lseek(log, 0, os.SEEK_END)
    except OSError:
        os.close(log)
        return None
    return log


def _new_lines(log: int) -> Iterator[str]:
    for _ in range(MOST * 16):
        try:
            data = os.read(log, RECORD_BYTES)
        except BrokenPipeError:
            continue  # records were overwritten before they were read; the next read goes on with the oldest
        except OSError:
            return  # BlockingIOError: no more at present
        if not data:
            return
        yield from data.decode(errors="replace").splitlines()
