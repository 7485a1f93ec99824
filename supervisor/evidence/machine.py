"""The machine at the moment of the verdict: GPUs, the engine's own figures, the kernel's messages, disks, sockets."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from supervisor.base import http
from supervisor.evidence.collecting import FILE_BYTES, Sink, output_of, within
from supervisor.evidence.processes import links_of
from supervisor.evidence.scene import Scene
from supervisor.process.ports import kernel_address, tcp_sockets
from supervisor.process.survivors import Process
from supervisor.sensors.cgroups import cgroup_of

ENGINE_S = 2.0
PAGE_BYTES = 4 << 20
KMSG = Path("/dev/kmsg")
KMSG_RECORD = 8192
MOST_RECORDS = 20_000
LAST_RECORDS = 150  # of the kernel's messages whatever they say
TELLING = re.compile(
    r"(?i)xid|nvrm|nvidia|out of memory|oom|killed process|hung_task|blocked for more|segfault|general protection|"
    r"i/o error|remounting|ext4-fs|xfs|nfs|nvme|mce|edac|page allocation failure|soft lockup|cgroup"
)
STATVFS_S = 1.5
SHM = Path("/dev/shm")  # noqa: S108 - it is looked at, nothing is written there
SOCKETS_READ = 50_000
MOST_SOCKETS = 400
CGROUPS = Path("/sys/fs/cgroup")
MOST_GROUPS = 12
MEMORY_FILES = (
    "memory.current", "memory.max", "memory.high", "memory.peak", "memory.events", "memory.swap.current", "pids.max",
    "memory.usage_in_bytes", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt",
    "memory.oom_control",
)  # fmt: skip
TCP_STATES = (  # linux/tcp_states.h
    "?", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT",
    "LAST_ACK", "LISTEN", "CLOSING",
)  # fmt: skip

# ---------------------------------------------------------------- GPUs


def gpus(scene: Scene, sink: Sink) -> None:
    """``gpu.json``: all that NVML says of each GPU now. What it does not say is named with its reason."""
    import pynvml  # late: a machine without GPUs should not pay for it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        sink.put("gpu.json", json.dumps({"reason": f"NVML cannot be opened: {error}"}, indent=1))
        return
    try:
        found = {"driver": _answer_or_reason(pynvml, pynvml.nvmlSystemGetDriverVersion)}
        devices: list[dict[str, Any]] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            devices.append({"index": index})
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError as error:
                devices[-1]["reason"] = str(error)
                continue
            devices[-1] |= _of_gpu(pynvml, handle)
            sink.put("gpu.json", json.dumps({**found, "gpus": devices}, indent=1, default=str))
        sink.put("gpu.json", json.dumps({**found, "gpus": devices}, indent=1, default=str))
    except pynvml.NVMLError as error:
        sink.note(f"NVML: {error}")
    finally:
        try:
            pynvml.nvmlShutdown()  # counted by NVML: the sensor's own stays open
        except pynvml.NVMLError as error:
            sink.note(f"NVML: {error}")


def _of_gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    questions: dict[str, Callable[[], Any]] = {
        "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "memory_bytes": lambda: _fields_of_record(nvml.nvmlDeviceGetMemoryInfo(handle), "used", "free", "total"),
        "processes": lambda: [
            {"pid": one.pid, "used_bytes": one.usedGpuMemory}
            for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ],
        "utilization_percent": lambda: _fields_of_record(nvml.nvmlDeviceGetUtilizationRates(handle), "gpu", "memory"),
        "recent_utilization_percent": lambda: _driver_samples(nvml, handle, nvml.NVML_GPU_UTILIZATION_SAMPLES),
        "recent_power_mw": lambda: _driver_samples(nvml, handle, nvml.NVML_TOTAL_POWER_SAMPLES),
        "power_mw": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
        "power_limit_mw": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "performance_state": lambda: nvml.nvmlDeviceGetPerformanceState(handle),
        "throttle_reasons": lambda: hex(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        "ecc_uncorrected": lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        "remapped_rows": lambda: list(nvml.nvmlDeviceGetRemappedRows(handle)),
        "pcie_replays": lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle),
        "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
    }
    return {name: _answer_or_reason(nvml, question) for name, question in questions.items()}


def _answer_or_reason(nvml: Any, question: Callable[[], Any]) -> Any:
    try:
        value = question()
    except nvml.NVMLError as error:
        return f"not told: {error}"
    except (AttributeError, TypeError, ValueError) as error:  # a library older or newer than what is asked for
        return f"not told: {type(error).__name__}"
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _fields_of_record(record: Any, *names: str) -> dict[str, int]:
    return {name: int(getattr(record, name)) for name in names}


def _driver_samples(nvml: Any, handle: Any, kind: int) -> dict[str, Any]:
    """The driver's own ring of the last seconds: oldest first, with the time over which they go."""
    _, samples = nvml.nvmlDeviceGetSamples(handle, kind, 0)
    taken = [(int(one.timeStamp), int(one.sampleValue.uiVal)) for one in samples if one.timeStamp]
    if not taken:
        return {"values": []}
    return {"seconds": round((taken[-1][0] - taken[0][0]) / 1e6, 1), "values": [value for _, value in taken][-120:]}


# ---------------------------------------------------------------- the engine


def engine(scene: Scene, sink: Sink) -> None:
    """``engine.txt``: /health now; ``engine-metrics.txt``: /metrics now, ``engine-metrics-before.txt``: last seen."""
    page, url = scene.asked.engine_page, scene.asked.engine_url
    if page is not None:
        seen = datetime.fromtimestamp(page[0], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        head = f"# as it was last read, {seen}\n"
        sink.put("engine-metrics-before.txt", head + page[1])
    if url is None:
        sink.put("engine.txt", "This job has no inference engine that answers HTTP.\n")
        return
    for path, name in (("/health", "engine.txt"), ("/metrics", "engine-metrics.txt")):
        began = time.monotonic()
        status, body = _get_page(url, path)
        told = f"# GET {url}{path}: {status} after {time.monotonic() - began:.2f} s\n"
        sink.put(name, told + body)
        if not body and name == "engine-metrics.txt":
            sink.note(f"/metrics: {status}")


def _get_page(url: str, path: str) -> tuple[str, str]:
    try:
        page = http.ask(f"{url.rstrip('/')}{path}", timeout_s=ENGINE_S, limit_bytes=PAGE_BYTES)
    except http.NoAnswerError as error:
        return str(error), ""
    return f"status {page.status}", page.text


# ---------------------------------------------------------------- the kernel


def kernel(scene: Scene, sink: Sink, *, kmsg: Path = KMSG) -> None:
    """``kernel.txt``: messages that tell of GPUs, memory, disks and hangs, and the last ones whatever they say."""
    source, lines, why = _kernel_lines(kmsg)
    if not lines:
        sink.put("kernel.txt", f"The kernel's messages cannot be read here: {why}.\n")
        return
    telling = [line for line in lines[:-LAST_RECORDS] if TELLING.search(line)][-400:]
    sink.put("kernel.txt", "\n".join([f"# from {source}", *telling, "# the last ones", *lines[-LAST_RECORDS:]]) + "\n")


def _kernel_lines(kmsg: Path) -> tuple[str, list[str], str]:
    why = []
    try:
        lines = list(_kernel_records(kmsg))
    except OSError as error:
        why.append(f"{kmsg}: {error.strerror}")
    else:
        if lines:
            return str(kmsg), lines, ""
        why.append(f"{kmsg} is empty")
    for argv in (["dmesg", "--kernel"], ["journalctl", "-k", "-b", "-q", "--no-pager", "-n", "2000"]):
        try:
            text, trouble = output_of(
                argv, timeout_s=2.0, limit_bytes=FILE_BYTES * 2, env={"PATH": os.defpath, "LANG": "C.UTF-8"}
            )
        except OSError as error:
            why.append(f"{argv[0]}: {error.strerror}")
            continue
        if text.strip() and not trouble:
            return argv[0], text.splitlines(), ""
        why.append(f"{argv[0]}: {' '.join(text.split())[:120] or trouble or 'nothing'}")
    return "", [], "; ".join(why)


def _kernel_records(kmsg: Path) -> Iterator[str]:
    """``level,seq,microseconds since boot,flags;text`` a record (Documentation/ABI/testing/dev-kmsg).

    Times are local ones, as ``dmesg -T`` and the job's logs have them: ``diagnose`` puts them beside each other.
    """
    log = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        for _ in range(MOST_RECORDS):
            try:
                data = os.read(log, KMSG_RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # overwritten before it was read
            if not data:
                return
            head, _, text = data.decode(errors="replace").partition(";")
            fields = head.split(",")
            since = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdecimal() else 0.0
            when = datetime.fromtimestamp(booted + since, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
            yield f"{when} [{since:.3f}] {text.splitlines()[0] if text.strip() else ''}"
    finally:
        os.close(log)


# ---------------------------------------------------------------- disks and memory


def disks(scene: Scene, sink: Sink) -> None:
    """``disks.txt``: room and inodes where the run writes, /dev/shm and its largest files, what is mounted where."""
    told = []
    names = (*scene.asked.folders, scene.asked.state_dir, str(SHM), "/tmp")  # noqa: S108 - only looked at
    for folder in dict.fromkeys(map(Path, names)):
        told.append(within(STATVFS_S, partial(_room_of_folder, folder), f"{folder} does not answer: a dead mount?"))
        sink.put("disks.txt", "\n".join(told) + "\n")
    told += ["", f"Largest in {SHM}:", *within(STATVFS_S, _list_segments, [f"{SHM} does not answer"])]
    told += ["", "Mounts:", *_list_mounts()]
    sink.put("disks.txt", "\n".join(told) + "\n")


def _room_of_folder(folder: Path) -> str:
    try:
        look = os.statvfs(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    total, free = look.f_blocks * look.f_frsize, look.f_bavail * look.f_frsize
    inodes = f"{look.f_favail} of {look.f_files} inodes free" if look.f_files else "inodes not told"
    full = 100 * (1 - free / total) if total else 0.0
    return f"{folder}: {free >> 20} MB of {total >> 20} MB free ({full:.0f} % full), {inodes}"


def _list_segments() -> list[str]:
    found = []
    with os.scandir(SHM) as entries:
        for entry, _ in zip(entries, range(20_000), strict=False):
            try:
                look = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            found.append((look.st_blocks * 512, look.st_uid, look.st_mtime, entry.name))
    found.sort(reverse=True)
    rows = [
        f"  {size >> 10:>10} KB  uid {uid:<6} {datetime.fromtimestamp(changed, UTC):%Y-%m-%d %H:%M:%S}  {name}"
        for size, uid, changed, name in found[:20]
    ]
    return [*rows, f"  {len(found)} files in all"]


def _list_mounts() -> list[str]:
    try:
        lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError as error:
        return [f"  /proc/self/mounts: {error.strerror}"]
    quiet = ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "securityfs", "debugfs", "tracefs", "bpf")
    parts = [line.split() for line in lines if len(line.split()) > 3]
    return [f"  {p[2]:<10} {p[1]}  ({p[0]}, {p[3][:120]})" for p in parts if p[2] not in quiet][:200]


def memory(scene: Scene, living: Sequence[Process], sink: Sink) -> None:
    """``memory.txt``: the machine's memory, its pressure and load, and that of the run's control groups."""
    told = []
    for path in ("/proc/loadavg", "/proc/pressure/memory", "/proc/pressure/io", "/proc/pressure/cpu", "/proc/meminfo"):
        told += [f"== {path} ==", _shorten(Path(path))]
    folders = {folder for process in living[:200] for folder in memory_groups(process.pid)}
    for folder in sorted(folders)[:MOST_GROUPS]:
        for name in MEMORY_FILES:
            file = folder / name
            if file.is_file():
                told += [f"== {file} ==", _shorten(file)]
    sink.put("memory.txt", "\n".join(told) + "\n")


def _shorten(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:8000].rstrip()
    except OSError as error:
        return f"not told: {error.strerror}"


def memory_groups(pid: int, proc: Path = Path("/proc"), root: Path = CGROUPS) -> list[Path]:
    """The folders that account for a process's memory, outermost first: its control group and all above it, since the
    limit that kills stands on any level (a pod's is above the one that the job sees itself in).
    """
    group = cgroup_of(proc / str(pid) / "cgroup", root)
    levels = reversed(list(group.levels())) if group is not None else ()
    return [folder for folder in levels if any((folder / name).is_file() for name in MEMORY_FILES)]


# ---------------------------------------------------------------- sockets


def sockets(scene: Scene, living: Sequence[Process], sink: Sink) -> None:
    """``sockets.txt``: the TCP sockets that the run's processes hold, and all on its engine's port."""
    holders: dict[str, list[int]] = {}
    for process in living:
        for link in links_of(process.pid) or ():
            if link.startswith("socket:["):
                holders.setdefault(link[8:-1], []).append(process.pid)
    url = scene.asked.engine_url
    port = urlsplit(url).port if url else None
    rows = ["STATE        LOCAL                  REMOTE                 SEND-Q RECV-Q HELD BY"]
    counts: dict[str, int] = {}
    for f in islice(tcp_sockets(), SOCKETS_READ):
        local, remote = _parse_address(f[1]), _parse_address(f[2])
        pids = holders.get(f[9], [])
        if not pids and port not in (local[1], remote[1]):
            continue
        number = int(f[3], 16)
        state = TCP_STATES[number] if number < len(TCP_STATES) else f[3]
        counts[state] = counts.get(state, 0) + 1
        if len(rows) > MOST_SOCKETS:
            continue
        send, receive = (int(part, 16) for part in f[4].split(":"))
        who = ", ".join(f"{pid} {scene.role(pid)}".strip() for pid in pids[:6]) or "another process or none"
        rows.append(f"{state:<12} {local[0]}:{local[1]:<6}  {remote[0]}:{remote[1]:<6}  {send:>6} {receive:>6} {who}")
    told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
    sink.put("sockets.txt", "\n".join([*rows, f"\nIn all: {told}."]) + "\n")


def _parse_address(field: str) -> tuple[str, int]:
    """``0100007F:1F90`` as the kernel prints it."""
    address, _, port = field.partition(":")
    return str(kernel_address(address)), int(port, 16)
