"""Looks at the machine that a run file is written for: its GPUs, an installed prime-rl, the configurations there."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.sensors.gpu_survey import GpuSurveyed, survey

USUAL_PLACES = ("/workspace/prime-rl", "~/prime-rl", "/root/prime-rl", ".", "./prime-rl")
MOST_FILES = 500
LARGEST = 1 << 20


@dataclass(frozen=True)
class ConfigFound:
    """A configuration that prime-rl could run. ``split``: trainer, orchestrator and inference in files of their own."""

    path: Path
    kind: str  # "rl" or "sft"
    split: bool = False


@dataclass(frozen=True)
class Machine:
    """What was found; ``notes`` say what was not."""

    gpus: Sequence[GpuSurveyed] = ()
    job_dir: Path | None = None
    configs: Sequence[ConfigFound] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def look(job_dir: Path | None) -> Machine:
    """Look around; with ``job_dir`` prime-rl is taken to be there."""
    found = survey()
    notes = [found.problem] if found.problem else []
    places = [job_dir] if job_dir else [Path(place).expanduser() for place in USUAL_PLACES]
    home = next((place.absolute() for place in places if is_prime_rl(place)), None)
    if home is None and job_dir is not None:
        home = job_dir.absolute()
        notes.append(f"{job_dir} does not look like a prime-rl checkout: it has no src/prime_rl.")
    elif home is None:
        notes.append(f"No prime-rl was found in {', '.join(USUAL_PLACES)}: set [job] dir.")
    configs = configs_found([Path.cwd(), *([home, home / "configs"] if home else [])])
    if not configs:
        notes.append("No configuration of prime-rl was found: set [job] config.")
    return Machine(found.gpus, home, configs, notes)


def is_prime_rl(folder: Path) -> bool:
    """A checkout has its package below src/ (prime-rl, all releases since Sept 2025)."""
    return (folder / "src" / "prime_rl").is_dir()


def configs_found(folders: Sequence[Path]) -> list[ConfigFound]:
    """prime-rl's configurations in these folders and two levels below, whole ones before split ones."""
    found: dict[Path, ConfigFound] = {}
    looked = 0
    for folder in dict.fromkeys(folders):
        # Below a folder of configurations examples lie two levels deep; elsewhere that would be a search of the disk.
        for pattern in ("*.toml", "*/*.toml", "*/*/*.toml") if folder.name == "configs" else ("*.toml",):
            for path in sorted(folder.glob(pattern)):
                looked += 1
                config = read_config(path) if looked <= MOST_FILES else None
                if config:
                    found.setdefault(config.path, config)
    return sorted(found.values(), key=lambda config: (config.split, len(config.path.parts), str(config.path)))


def read_config(path: Path) -> ConfigFound | None:
    """Is this a configuration of `rl` or `sft`? Told by the tables and keys that only those have."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        data = tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None
    path = path.absolute()
    if path.name == "trainer.toml" and (path.parent / "orchestrator.toml").is_file():
        return ConfigFound(path, "rl", split=True)
    whole = isinstance(data.get("orchestrator"), dict) and ("trainer" in data or "inference" in data)
    if whole or data.get("inference_gpu_ids") or data.get("trainer_gpu_ids"):
        return ConfigFound(path, "rl")
    if isinstance(data.get("data"), dict) and isinstance(data.get("model"), dict) and "sft" in str(path):
        return ConfigFound(path, "sft")
    return None
