"""What a step leaves on disk beside its checkpoint: rollouts, and the metrics file since 2026-08-15."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

from tests.practice.era import Era
from tests.practice.volume import Volume


def write_rollouts(era: Era, folder: Path, step: int, size_bytes: int, volume: Volume) -> None:
    """The rollouts of one step, in the era's files. Raises OSError(ENOSPC) on a full volume."""
    name = era.layout["rollout_file"]
    if name:
        volume.write(folder / name.format(rank=0), b"\0" * size_bytes)
        if era.titles:
            volume.write(folder / "train_rollouts.jsonl", b'{"reward": 1.0}\n' * 4)
        return
    record = json.dumps({"step": step, "trace": "x" * (size_bytes // 2)}).encode() + b"\n"
    for subset in ("all", "effective"):
        volume.write(folder / "train" / subset / "traces.jsonl", record)


def append_metrics(path: Path | None, step: int, rows: Iterable[dict[str, float]]) -> None:
    """Appends rows to `metrics.jsonl`, a line each. Nothing is written in an era without that file."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", buffering=1) as lines:
        for row in rows:
            lines.write(json.dumps({"step": step, "time": time.time(), **row}) + "\n")
