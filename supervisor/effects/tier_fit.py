"""Is a folder on a faster file system fit for checkpoints: is there room for three beside the job, and is it faster?"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.core.words import size

STEPS = 3  # the one that is being copied to the volume, a newer whole one that waits, and the one that is being saved
MARGIN_BYTES = 1 << 30
LEAST_BYTES = 1 << 30  # a container's /dev/shm has 64 MiB unless it is given more
FASTER = 1.5
PROBE_BYTES, BLOCK_BYTES = 256 << 20, 4 << 20
LOGIND = ("/etc/systemd/logind.conf", "/etc/systemd/logind.conf.d", "/usr/lib/systemd/logind.conf.d")
FIRST_PERSON_UID = 1000  # logind empties no /dev/shm of root's or of a system's user (logind.conf(5), RemoveIPC)


@dataclass(frozen=True)
class Room:
    """What is known before a start. ``free_bytes`` counts what the run itself has on the tier as free."""

    folder: Path
    total_bytes: int
    free_bytes: int
    in_memory: bool
    step_bytes: int | None = None
    memory_bytes: int | None = None
    """The smallest limit that the job's memory has; None where that is unknown."""
    peak_bytes: int | None = None
    """The most memory that the run has used, without a tier."""


def why_too_small(room: Room, *, auto: bool) -> str:
    """Why three steps do not fit, a clause; "" where they do. What is unknown speaks against ``auto`` alone."""
    if room.total_bytes < LEAST_BYTES:
        return f"{room.folder} has only {size(room.total_bytes)} in all, and a tier needs {size(LEAST_BYTES)}"
    if room.step_bytes is None:
        return "the size of a step is not known before one is saved" if auto else ""
    needed = STEPS * room.step_bytes + MARGIN_BYTES
    wanted = f"three steps and a margin take {size(needed)}"
    if room.free_bytes < needed:
        return f"{wanted}, and {room.folder} has room for {size(room.free_bytes)}"
    if not room.in_memory:
        return ""
    if room.memory_bytes is None or room.peak_bytes is None:
        return "how much memory the job needs is not known before it has made a step" if auto else ""
    left = room.memory_bytes - room.peak_bytes
    if left < needed:
        return f"{wanted}, and beside the job {size(max(0, left))} of {size(room.memory_bytes)} memory are left"
    return ""


def why_not_faster(tier: Path, volume: Path) -> str:
    """Why it brings too little, by a probe of 256 MiB with sync on both; "" where it is fast enough. Raises OSError."""
    fast, slow = write_rate(tier), write_rate(volume)
    if fast >= FASTER * slow:
        return ""
    return f"it takes {size(fast)}/s and {volume} {size(slow)}/s, and {FASTER:g} times as much is wanted"


def write_rate(folder: Path, probe_bytes: int = PROBE_BYTES) -> float:
    """Bytes a second, synced, of one writer. Raises OSError."""
    block = os.urandom(BLOCK_BYTES)
    path = folder / f".rl-supervisor-probe-{os.getpid()}"
    began = time.monotonic()
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(max(1, probe_bytes // BLOCK_BYTES)):
                file.write(block)
            os.fsync(file.fileno())
        return probe_bytes / max(time.monotonic() - began, 1e-6)
    finally:
        path.unlink(missing_ok=True)


def lies_in_memory(folder: Path) -> bool:
    """Is it a tmpfs or ramfs, by the mounts that this process sees?"""
    with suppress(OSError, ValueError):
        device = folder.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == wanted:
                return kind.split()[0] in ("tmpfs", "ramfs")
    return False


def is_emptied_at_logout(folder: Path, uid: int, booted: Path = Path("/run/systemd/system")) -> bool:
    """Does logind delete this user's files in /dev/shm when the last session ends (RemoveIPC, on by default)?"""
    if uid < FIRST_PERSON_UID or not folder.is_relative_to("/dev/shm") or not booted.is_dir():  # noqa: S108
        return False
    said = "yes"
    for name in LOGIND:
        path = Path(name)
        for file in sorted(path.glob("*.conf")) if path.is_dir() else [path]:
            with suppress(OSError):
                for line in file.read_text(errors="replace").splitlines():
                    key, _, value = line.partition("=")
                    said = value.strip().lower() if key.strip() == "RemoveIPC" else said
    return said not in ("no", "false", "0", "off")
