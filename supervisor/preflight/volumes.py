"""The file systems of this pod: what lies where, what a container was given, and the models in the Hub's cache."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from supervisor.effects.move_aside import nearest_folder
from supervisor.preflight import installed
from supervisor.preflight.site import Volume

MOUNTS = Path("/proc/self/mountinfo")
PERSISTENT_BYTES = 10 << 30  # smaller ones are files for configuration
_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_OWN = {
    *("overlay", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "squashfs", "nsfs", "autofs", "securityfs"),
    *(
        "debugfs",
        "tracefs",
        "bpf",
        "pstore",
        "configfs",
        "fusectl",
        "hugetlbfs",
        "binfmt_misc",
        "fuse.lxcfs",
        "iso9660",
    ),
    *_MEMORY,
}
_SYSTEM = re.compile(r"/(proc|sys|dev|etc|usr|lib|lib64|bin|sbin|boot|run|snap)(/|$)")


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    point: Path
    kind: str


def mounts(table: Path = MOUNTS) -> list[Mount]:
    """All mounts, as proc(5) describes the file; later ones lie over earlier ones."""
    found = []
    for line in installed.text_of(table).splitlines():
        words = line.split()
        if "-" in words[6:]:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4])
            found.append(Mount(Path(point), words[words.index("-", 6) + 1]))
    return found


def volume_of(folder: Path, table: Sequence[Mount]) -> Volume | None:
    """The file system on which ``folder`` lies or would be made. Raises OSError."""
    place = nearest_folder(folder).resolve()
    known = [one for one in table if place.is_relative_to(one.point)]
    if not known:
        return None
    longest = max(len(one.point.parts) for one in known)
    mount = [one for one in known if len(one.point.parts) == longest][-1]
    size = os.statvfs(place)
    return Volume(str(mount.point), mount.kind, size.f_blocks * size.f_frsize, size.f_bavail * size.f_frsize)


def list_given_volumes(table: Sequence[Mount]) -> list[Volume]:
    """The volumes that a container was given: folders of real file systems that are not the system's own."""
    found: dict[str, Volume] = {}
    for mount in table:
        if mount.kind in _OWN or mount.point == Path("/") or _SYSTEM.match(str(mount.point)):
            continue
        with suppress(OSError):
            volume = volume_of(mount.point, table) if mount.point.is_dir() else None
            if volume is not None and volume.total_bytes >= PERSISTENT_BYTES and os.access(mount.point, os.W_OK):
                found[volume.mount] = volume
    return list(found.values())


def cached_models(cache: Path) -> dict[str, Path]:
    """Models in the hub's cache: name to the folder of the revision that would be used. Raises OSError.

    A repository's folder is ``models--OWNER--NAME`` with ``refs/main`` and ``snapshots/COMMIT`` (huggingface_hub,
    file_download.py).
    """
    found = {}
    for folder in sorted(cache.glob("models--*")) if cache.is_dir() else ():
        commit = installed.text_of(folder / "refs" / "main").strip()
        snapshots = [path for path in (folder / "snapshots").glob("*") if path.is_dir()]
        named = [path for path in snapshots if path.name == commit]
        if chosen := named or snapshots[-1:]:
            found[folder.name.removeprefix("models--").replace("--", "/")] = chosen[0]
    return found
