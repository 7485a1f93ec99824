"""Which pod this is, as far as it can be proven: by what a copy of its disk on another machine does not have.

The journal's identity and machine-id lie on the disk and are copied with it. What stays with the machine is the
provider's name for the instance, which lives in the environment, and the product id in a machine's firmware (DMI,
``/sys/class/dmi/id/product_uuid``, for root alone). In a container the firmware is the host's, which several containers
share, so there it proves nothing. Within one boot of one container its pid namespace and process 1 prove it as well.

Each is mixed with the path of the state folder: a copy on the same machine lies elsewhere, and is not the same pod.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from supervisor.base import proc_stat
from supervisor.checkpoints.writers import UNKNOWN

INSTANCE = ("VAST_CONTAINERLABEL", "VAST_CONTAINER_ID", "RUNPOD_POD_ID")
"""The provider's own name for what is rented (docs.vast.ai, docs.runpod.io): it survives a stop and a new container."""
SLURM_NODE = "SLURMD_NODENAME"
"""Slurm's name of the machine, in the environment of each of its tasks."""
LARGEST_ENVIRONMENT = 1 << 20
FIRST_PIDS = "pid:[4026531836]"  # the machine's own processes (PROC_PID_INIT_INO in include/linux/proc_ns.h)
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NO_UUID = ("03000200-0400-0500-0006-000700080009", "12345678-1234-5678-90ab-cddeefaabbcc")
"""What boards say when their maker wrote none: thousands say the same."""


def place_of_pod(environ: Mapping[str, str], state_dir: Path, root: Path = Path("/")) -> str:
    """For ``writers.writer_name``: the instance, then this boot of it; zeros for a half that cannot be known.

    ``root``: where ``proc`` and ``sys`` are, for tests.
    """
    where = str(state_dir.resolve())
    names = (_instance(environ, root), _boot(root))
    return "".join(hashlib.sha256(f"{one}\0{where}".encode()).hexdigest()[:16] if one else UNKNOWN for one in names)


def _instance(environ: Mapping[str, str], root: Path) -> str:
    first = environment_of_process_one(root)  # a login over ssh has few of the container's variables
    for name in INSTANCE:
        if value := environ.get(name) or first.get(name, ""):
            return f"{name}={value}"
    if node := environ.get(SLURM_NODE):
        # A name may go to another machine (nodes of a cloud), or to several on one (in tests): only with this boot.
        return f"slurm={environ.get('SLURM_CLUSTER_NAME', '')}/{node}/{_boot_id(root)}"
    in_container = (
        _namespace(root) != FIRST_PIDS
        or any((root / mark.lstrip("/")).exists() for mark in CONTAINER_MARKS)
        or any(one.get(name) for one in (environ, first) for name in ("container", "KUBERNETES_SERVICE_HOST"))
    )
    return "" if in_container else _product(root)


def _product(root: Path) -> str:
    try:
        found = (root / "sys/class/dmi/id/product_uuid").read_text(errors="replace").strip().lower()
    except OSError:
        return ""
    filler = len(set(found) - {"-"}) == 1 or found in _NO_UUID
    return f"dmi={found}" if _UUID.fullmatch(found) and not filler else ""


def _boot(root: Path) -> str:
    """This boot, its pid namespace, and when process 1 of it began; "" where the first two are hidden."""
    boot = _boot_id(root)
    namespace = _namespace(root)
    first = proc_stat.start_ticks(1) if root == Path("/") else 0
    return f"{boot} {namespace} {first}" if boot and namespace else ""


def _boot_id(root: Path) -> str:
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace(root: Path) -> str:
    try:
        return os.readlink(root / "proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def environment_of_process_one(root: Path) -> dict[str, str]:
    """The variables of the container's first process, {} where they are hidden."""
    try:
        with (root / "proc/1/environ").open("rb") as file:
            text = file.read(LARGEST_ENVIRONMENT).decode("utf-8", "replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, equals, value in pairs if equals}
