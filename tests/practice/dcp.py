"""Checkpoints in the layout of torch.distributed.checkpoint, loadable by the real one, with bytes that follow from the
step alone.

Order of writes, as traced on torch 2.8: all `__R_0.distcp` first, then `.metadata.tmp`, then the rename to `.metadata`.
Re-saving a step cuts its shards in place while the old `.metadata` stays until the end.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.practice.torchfile import (
    Call,
    Global,
    Inert,
    New,
    pickle_bytes,
    read_archive,
    read_pickle,
    tensor_save_bytes,
    torch_save_bytes,
)

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
COLUMNS = 64
CLEAR_EXPONENT_TOP = bytes(byte & 0xBF for byte in range(256))
"""Makes any bytes a sane float32: no exponent reaches infinity or NaN."""


SHORT_ARCHIVE = (
    "CheckpointException ranks:dict_keys([0])\n"
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
)


@dataclass(frozen=True)
class Progress:
    """A trainer's counters, as its checkpoints hold them."""

    step: int
    total_tokens: int
    total_samples: int


@dataclass(frozen=True)
class Plan:
    """How a checkpoint is cut: `ranks` shards hold `size_bytes` of tensors in all, `changing` of them moves."""

    seed: int
    ranks: int
    size_bytes: int
    changing: float
    ballast: int = 0
    """Bytes of a second file of each rank."""


def ballast_name(rank: int) -> str:
    return f"__{rank}_1.distcp"


def shard_name(rank: int) -> str:
    return f"__{rank}_0.distcp"


@functools.lru_cache(maxsize=4)
def _frozen_floats(label: str, size: int) -> bytes:
    return _floats_from(label, size)


def _floats_from(label: str, size: int) -> bytes:
    return hashlib.shake_128(label.encode()).digest(size).translate(CLEAR_EXPONENT_TOP)


def _shard_tensors(plan: Plan, step: int, rank: int) -> dict[str, tuple[bytes, int]]:
    """Name -> (this rank's rows as bytes, how many rows)."""
    row = COLUMNS * 4
    rows = max(2, plan.size_bytes // plan.ranks // row)
    moving = max(1, int(rows * plan.changing))
    still = max(1, rows - moving)
    adapter = max(1, moving // 3)
    names = {"app.model.base.weight": (still, False), "app.model.lora_A.weight": (adapter, True)}
    names |= {f"app.optimizers.state.lora_A.weight.{part}": (adapter, True) for part in ("exp_avg", "exp_avg_sq")}
    found = {}
    for name, (count, changes) in names.items():
        label = f"{plan.seed}/{rank}/{name}"
        data = _floats_from(f"{label}/{step}", count * row) if changes else _frozen_floats(label, count * row)
        found[name] = (data, count)
    return found


def _plain_values(progress: Progress) -> dict[str, object]:
    return {
        "app.optimizers.param_groups.0.lr": 1e-05,
        "app.scheduler.last_epoch": progress.step,
        "app.progress.step": progress.step,
        "app.progress.total_tokens": progress.total_tokens,
        "app.progress.total_samples": progress.total_samples,
    }


def shard(plan: Plan, progress: Progress, rank: int) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A rank's file, and where each item lies in it: name -> (offset, length). Plain values are rank 0's."""
    parts: list[bytes] = []
    places: dict[str, tuple[int, int]] = {}
    offset = 0
    items = {name: torch_save_bytes(value) for name, value in _plain_values(progress).items()} if rank == 0 else {}
    items |= {
        name: tensor_save_bytes(data, rows, COLUMNS)
        for name, (data, rows) in _shard_tensors(plan, progress.step, rank).items()
    }
    for name, data in items.items():
        parts.append(data)
        places[name] = (offset, len(data))
        offset += len(data)
    return b"".join(parts), places


def metadata(plan: Plan, progress: Progress) -> bytes:
    """`.metadata`: the pickle of torch's Metadata for all ranks' shards."""
    size = Global("torch", "Size")
    float32, layout = Global("torch", "float32"), Global("torch.serialization", "_get_layout")
    encoding, storage_info = Global(METADATA, "_MEM_FORMAT_ENCODING"), Global(FILESYSTEM, "_StorageInfo")
    index, chunk = Global(METADATA, "MetadataIndex"), Global(METADATA, "ChunkStorageMetadata")

    def shape(*numbers: int) -> Call:
        return Call(size, (tuple(numbers),))

    shards = [shard(plan, progress, rank)[1] for rank in range(plan.ranks)]
    entries: dict[str, object] = {}
    storage: dict[object, object] = {}
    for name in _plain_values(progress):
        offset, length = shards[0][name]
        entries[name] = New(Global(METADATA, "BytesStorageMetadata"), {})
        key = New(index, {"fqn": name, "offset": None, "index": None})
        storage[key] = New(storage_info, _storage_place(shard_name(0), offset, length))
    for name, (_, rows) in _shard_tensors(plan, progress.step, 0).items():
        properties = New(
            Global(METADATA, "TensorProperties"),
            (float32, Call(layout, ("torch.strided",)), False, Call(encoding, (0,)), False),
        )
        chunks = [
            New(chunk, {"offsets": shape(rank * rows, 0), "sizes": shape(rows, COLUMNS)}) for rank in range(plan.ranks)
        ]
        state = {"properties": properties, "size": shape(rows * plan.ranks, COLUMNS), "chunks": chunks}
        entries[name] = New(Global(METADATA, "TensorStorageMetadata"), state)
        for rank in range(plan.ranks):
            offset, length = shards[rank][name]
            key = New(index, {"fqn": name, "offset": shape(rank * rows, 0), "index": rank})
            storage[key] = New(storage_info, _storage_place(shard_name(rank), offset, length))
    for rank in range(plan.ranks if plan.ballast else 0):
        name = f"app.ballast.{rank}"
        entries[name] = New(Global(METADATA, "BytesStorageMetadata"), {})
        key = New(index, {"fqn": name, "offset": None, "index": None})
        storage[key] = New(storage_info, _storage_place(ballast_name(rank), 0, plan.ballast))
    state = {
        "state_dict_metadata": entries,
        "planner_data": {name: _state_dict_path(name) for name in entries},
        "storage_data": storage,
        "storage_meta": None,
        "version": "1.0.0",
    }
    return pickle_bytes(New(Global(METADATA, "Metadata"), state), protocol=4)


def _state_dict_path(name: str) -> tuple[str | int, ...]:
    """An item's path through the state dict: the dots in a parameter's own name are no steps of the path."""
    for prefix in ("app.model.", "app.optimizers.state."):
        if name.startswith(prefix):
            parameter, _, leaf = name.removeprefix(prefix).rpartition(".")
            tail = [f"{parameter}.{leaf}"] if prefix == "app.model." else [parameter, leaf]
            return (*prefix.rstrip(".").split("."), *tail)
    return tuple(int(part) if part.isdigit() else part for part in name.split("."))


def _storage_place(file: str, offset: int, length: int) -> dict[str, object]:
    return {"relative_path": file, "offset": offset, "length": length, "transform_descriptors": None}


class CheckpointError(Exception):
    """torch's CheckpointException: the checkpoint can't be loaded."""


def read_progress(folder: Path) -> Progress:
    """Loads a checkpoint as far as the practice job needs it, and checks every shard.

    Raises FileNotFoundError when the folder, `.metadata` or a shard is missing, CheckpointError when a shard is too
    short.
    """
    if not folder.exists():
        raise FileNotFoundError(f"Checkpoint not found at {folder}")
    content = read_pickle((folder / ".metadata").read_bytes())
    values: dict[str, object] = {}
    for key, place in content.storage_data.items():
        file = folder / place.relative_path
        if key.fqn.startswith("app.ballast."):
            if file.stat().st_size < place.length:
                raise CheckpointError(f"{SHORT_ARCHIVE} ({file})")
            continue
        data = _read_slice(file, place.offset, place.length)
        if len(data) < place.length:
            raise CheckpointError(f"{SHORT_ARCHIVE} ({file})")
        if key.fqn.startswith("app.progress."):
            values[key.fqn.rpartition(".")[2]] = read_archive(data)
    if any(isinstance(value, Inert) for value in values.values()):
        raise CheckpointError(f"{folder}: app.progress holds something other than numbers")
    return Progress(**{name: int(str(value)) for name, value in values.items()})


def _read_slice(file: Path, offset: int, length: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(length)


def write_file(path: Path, data: bytes, room: int | None = None) -> None:
    """Writes and syncs a file in place. With `room` below its size, what fits is written and OSError(ENOSPC) raised."""
    with path.open("wb") as stream:
        stream.write(data if room is None else data[: max(0, room)])
        stream.flush()
        os.fsync(stream.fileno())
    if room is not None and room < len(data):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
