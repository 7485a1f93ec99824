"""The practice GPUs: a folder of small files that the NVML stand-in reads and the practice processes write.

`gpus` has one line a GPU (`UUID total_bytes reserved_bytes name`); `pid.PID` says what one process holds: its start
ticks, then `index bytes` lines. Memory belongs to a process only while that process lives, so it is freed by any death
and kept by a stop. The file `error` (a number) makes every call fail with that NVML return code; while the file `hang`
exists, calls block.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from tests.practice.processes import start_ticks

DEFAULT_TOTAL_BYTES = 80 << 30
DEFAULT_RESERVED_BYTES = 600 << 20


def make_gpus(
    folder: Path,
    count: int = 2,
    total_bytes: int = DEFAULT_TOTAL_BYTES,
    *,
    reserved_bytes: int = DEFAULT_RESERVED_BYTES,
    name: str = "NVIDIA H100 80GB HBM3",
) -> list[str]:
    """Makes the folder that PRACTICE_GPUS names, and returns the GPUs' UUIDs (the same ones for the same folder)."""
    folder.mkdir(parents=True, exist_ok=True)
    identities = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'{folder}/{number}')}" for number in range(count)]
    lines = [f"{identity} {total_bytes} {reserved_bytes} {name}\n" for identity in identities]
    (folder / "gpus").write_text("".join(lines), encoding="utf-8")
    return identities


def installed_gpus() -> list[int]:
    """The indices of the GPUs here; eight where no folder says otherwise."""
    folder = os.environ.get("PRACTICE_GPUS")
    if not folder:
        return list(range(8))
    return list(range(len((Path(folder) / "gpus").read_text(encoding="utf-8").splitlines())))


def visible_gpus() -> list[int]:
    """The indices that CUDA_VISIBLE_DEVICES gives the present process."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return installed_gpus() if value is None else [int(part) for part in value.split(",") if part.strip()]


def hold_memory(memory: dict[int, int]) -> None:
    """Says how many bytes the present process holds on each GPU (by index). An empty mapping frees all."""
    folder = os.environ.get("PRACTICE_GPUS")
    if not folder or not Path(folder).is_dir():
        return
    file = Path(folder) / f"pid.{os.getpid()}"
    lines = [f"{start_ticks('self')}\n", *(f"{index} {size}\n" for index, size in memory.items())]
    fresh = file.with_name(f".{file.name}")
    fresh.write_text("".join(lines), encoding="utf-8")
    fresh.replace(file)


def release() -> None:
    """Removes the present process's file, as a clean end does."""
    folder = os.environ.get("PRACTICE_GPUS")
    if folder:
        (Path(folder) / f"pid.{os.getpid()}").unlink(missing_ok=True)
