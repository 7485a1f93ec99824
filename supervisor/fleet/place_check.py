"""Does a run fit into a place of ``fleet.toml``? The run file's own checks, on a pod as the place would rent it.

What is not known here (the trainer's configuration lies on the pod, the GPU is of no known kind, the store is away) is
not complained of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from supervisor.config.toml_positions import key_positions
from supervisor.fleet.fleet_file import PlaceTable
from supervisor.jobs.base import GpuPlan
from supervisor.preflight import disk_space, gpu_memory
from supervisor.preflight.finding import Finding, Where
from supervisor.preflight.machine import where_gpus
from supervisor.preflight.site import Gpu, Site, Volume
from supervisor.preflight.subject import Subject

GIB = 1 << 30
GPU_GIB = (
    *(("H100 NVL", 94), ("H100", 80), ("H200", 141), ("H20", 96), ("B200", 180), ("B300", 270), ("GH200", 96)),
    *(("A100", 80), ("A800", 80), ("H800", 80), ("L40S", 48), ("L40", 48), ("L4", 24), ("A40", 48), ("A10", 24)),
    *(("A6000", 48), ("6000ADA", 48), ("6000 ADA", 48), ("PRO 6000", 96), ("PRO 5000", 72), ("5000ADA", 32)),
    *(("A5000", 24), ("A4000", 16), ("4090", 24), ("5090", 32), ("3090", 24), ("5080", 16), ("4080", 16), ("T4", 16)),
    *(("V100", 32), ("5070 TI", 16), ("4070", 12), ("3080", 12), ("3060", 12), ("2080 TI", 11)),
)
"""GiB of a GPU by its name, the first whose words it has; the largest where several are sold (NVIDIA's data sheets)."""


def gpu_gib(name: str) -> int | None:
    """Memory of one GPU; None where the name is not known. A size in the name has the last word."""
    words = re.sub(r"[^A-Z0-9]+", " ", name.upper()).split()
    said = [int(found[1]) for word in words if (found := re.fullmatch(r"(\d{1,3})GI?B?", word))]
    text = f" {' '.join(word.removeprefix('RTX').removeprefix('GTX') for word in words)} "
    return said[0] if said else next((gib for known, gib in GPU_GIB if f" {known} " in text), None)


def site_of_place(table: PlaceTable) -> Site:
    """A fresh pod there. Of a machine of your own only its GPUs may be known, if they are written down."""
    total = (gpu_gib(table.gpu) or 0) * GIB
    gpus = [Gpu(number, f"GPU-{number}", table.gpu, total, total) for number in range(table.gpus)]
    size = int(table.disk_gb * 1e9)
    disk = Volume("/", "overlay", size, size)
    return Site(gpus=gpus if table.gpu else None, volumes={} if table.is_own else {"output": disk, "hf-cache": disk})


def find_misfits(
    subject: Subject, table: PlaceTable, where: tuple[Path, str], ranks: int | None = None
) -> list[Finding]:
    """What keeps the run from a place. ``subject`` was gathered with ``site_of_place``; ``where``: ``fleet.toml`` and
    the place's name; ``ranks``: trainer processes that wrote the newest published step, None where that is not known.
    """
    found = [*_missing_gpus(subject, table, where), *_other_world_size(subject, ranks)]
    if not found:
        checks = (*gpu_memory.CHECKS, *disk_space.CHECKS)
        found = [one for check in checks for one in check(subject)]
    return found


def _plan_of(subject: Subject) -> GpuPlan:
    """Which GPUs the run takes: where the trainer's configuration lies on the pod alone, what the run file says."""
    run = subject.run_file
    if run is None or subject.plan.inference or subject.plan.trainer:
        return subject.plan
    return GpuPlan([str(one) for one in run.gpus.inference], [str(one) for one in run.gpus.trainer])


def _missing_gpus(subject: Subject, table: PlaceTable, where: tuple[Path, str]) -> Iterator[Finding]:
    plan = _plan_of(subject)
    wanted = dict.fromkeys((*plan.inference, *plan.trainer))
    missing = [name for name in wanted if name.isdigit() and int(name) >= table.gpus]
    if missing and table.gpu:
        path, name = where
        places = key_positions(path.read_text(encoding="utf-8"))
        key = ("place", name, "gpus")
        line = next((places[key[:length]].line for length in (3, 2) if key[:length] in places), 0)
        told = f"The run wants GPU {', '.join(missing)}, and a pod there has {table.gpus} (0 to {table.gpus - 1})."
        remedy = f"Set gpus = {max(int(one) for one in wanted if one.isdigit()) + 1}, or give the run fewer."
        yield Finding("gpu-missing", told, Where(str(path), line, ".".join(key)), remedy)


def _other_world_size(subject: Subject, ranks: int | None) -> Iterator[Finding]:
    """The plan's GPUs of the trainer are its processes, unless the model's replicas write no shards of their own."""
    now = len(_plan_of(subject).trainer)
    replicas = subject.settings.number("trainer.model.dp_replicate", "model.dp_replicate") or 1
    if ranks is None or not now or replicas > 1 or now == ranks:
        return
    told = f"{ranks} trainer processes wrote the newest published step, and this run has {now} GPUs for the trainer."
    yield Finding("world-size-changed", told, where_gpus(subject))
