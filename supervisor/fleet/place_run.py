"""A run file as the pods of one place get it: with its own words for the trainer and its split of the GPUs."""

from __future__ import annotations

from pathlib import Path

from supervisor.config import run_file
from supervisor.config.settings import RunFile
from supervisor.config.toml_text import key_text, value_text
from supervisor.fleet.fleet_file import PlaceTable


def adapt_run_file(path: Path, file: RunFile, place: PlaceTable) -> tuple[RunFile, bytes]:
    """The run file at ``path``, which is ``file``, for a place; and its text. Raises ConfigError."""
    raw = path.read_bytes()
    if not (place.args or place.inference or place.trainer):
        return file, raw
    data = run_file.parse_toml(raw.decode())
    job = data["job"]
    data["job"] = {**job, "args": [*job.get("args", []), *place.args]}
    if place.inference or place.trainer:
        data["gpus"] = {"inference": place.inference, "trainer": place.trainer}
    text = "".join(f"{key_text(name)} = {value_text(value)}\n" for name, value in data.items())
    return run_file.parse_model(path, text, RunFile), text.encode()
