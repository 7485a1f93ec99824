"""The orchestrator's part of a checkpoint: `progress.pt`, and until 2026-06-01 the buffer beside it."""

from __future__ import annotations

import json
import pickle
import random
import uuid
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.practice.era import Era
from tests.practice.torchfile import Global, New, read_archive, torch_save_bytes
from tests.practice.volume import Volume

BUFFER_FILES = ("easy_examples.jsonl", "hard_examples.jsonl", "rollout_buffer.jsonl")


@dataclass(frozen=True)
class Counters:
    """prime-rl's Progress of the orchestrator."""

    step: int
    total_tokens: int
    total_samples: int
    total_problems: int

    def next(self) -> Counters:
        return replace(self, step=self.step + 1)

    def at(self, step: int) -> Counters:
        return replace(self, step=step)

    def plus(self, tokens: int, samples: int) -> Counters:
        return replace(
            self,
            total_tokens=self.total_tokens + tokens,
            total_samples=self.total_samples + samples,
            total_problems=self.total_problems + samples // 2,
        )


def save_part(era: Era, folder: Path, counters: Counters, volume: Volume) -> None:
    """Writes the part: in place until 2026-07-10, then through a temporary file. The buffer comes after progress.pt."""
    folder.mkdir(parents=True, exist_ok=True)
    module, _, name = era.layout["progress_class"].rpartition(".")
    content: dict[str, object] = {"progress": New(Global(module, name), asdict(counters))}
    if era.first_step == 1:
        content["train_source"] = {
            "rng": random.Random(counters.step).getstate(),
            "envs": {"reverse-text": {"cursor": counters.step}},
        }
        temporary = folder / f"progress.pt.{uuid.uuid4().hex[:8]}.tmp"
        volume.write(temporary, torch_save_bytes(content))
        temporary.replace(folder / "progress.pt")
    else:
        volume.write(folder / "progress.pt", torch_save_bytes(content, root="progress"))
    if era.layout["buffer"] == "jsonl":
        for file in BUFFER_FILES:
            line = json.dumps({"example_id": counters.step, "task": "reverse-text"}) + "\n"
            volume.write(folder / "buffer" / file, line.encode() * 3)
    elif era.layout["buffer"] == "dataset":
        volume.write(folder / "buffer" / "dataset_info.json", b"{}")
        volume.write(folder / "buffer" / "state.json", b"{}")
        volume.write(folder / "buffer" / "data-00000-of-00001.arrow", b"ARROW1\0\0" + str(counters.step).encode())


def load_part(era: Era, folder: Path) -> Counters:
    """Raises FileNotFoundError when it is not there, KeyError when a key is missing, OSError when it can't be read."""
    if not folder.exists():
        raise FileNotFoundError(f"Checkpoint not found at {folder}")
    file = folder / "progress.pt"
    if not file.exists():
        raise FileNotFoundError(f"Orchestrator checkpoint not found at {file}")
    try:
        content = read_archive(file.read_bytes())
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, StopIteration) as error:
        raise OSError(f"PytorchStreamReader failed reading zip archive: {error}") from error
    if era.first_step == 1 and "train_source" not in content:
        raise KeyError("train_source")
    if era.layout["buffer"]:
        for name in BUFFER_FILES if era.layout["buffer"] == "jsonl" else ("dataset_info.json",):
            for line in (folder / "buffer" / name).read_text(encoding="utf-8").splitlines():
                json.loads(line)
    state = vars(content["progress"])
    return Counters(*(int(state[name]) for name in ("step", "total_tokens", "total_samples", "total_problems")))
