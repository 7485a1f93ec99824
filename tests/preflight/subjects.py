"""Subjects for tests of single checks, built from the text of a configuration."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from supervisor.config.toml_positions import key_positions
from supervisor.preflight.finding import Finding
from supervisor.preflight.site import Gpu, GpuProcess, Site, Volume
from supervisor.preflight.subject import ConfigText, Subject
from supervisor.primerl.configs import Settings

GIB = 1 << 30
CONFIG = Path("config.toml")


def subject(text: str = "", **given: Any) -> Subject:
    """A subject whose one configuration file is ``text``."""
    tree = tomllib.loads(text)
    texts = [ConfigText(CONFIG, "", text, tree, key_positions(text))] if text else []
    return Subject(**{"kind": "rl", "settings": Settings(tree, "config.toml"), "texts": texts, **given})


def site(**given: Any) -> Site:
    """A pod."""
    return Site(**given)


def gpu(index: int = 0, used_gib: float = 0.5, total_gib: float = 80, **given: Any) -> Gpu:
    """A GPU; ``processes`` as tuples of pid, name and GiB."""
    total, used = int(total_gib * GIB), int(used_gib * GIB)
    found = given.pop("processes", ())
    processes = None if found is None else [GpuProcess(pid, name, int(held * GIB)) for pid, name, held in found]
    return Gpu(index, f"GPU-{index}", given.pop("name", "H100"), total, total - used, processes, **given)


def volume(mount: str = "/", kind: str = "ext4", total_gib: float = 500, free_gib: float = 400) -> Volume:
    """A file system."""
    return Volume(mount, kind, int(total_gib * GIB), int(free_gib * GIB))


def ids(found: list[Finding]) -> list[str]:
    """What was found, by id."""
    return [one.id for one in found]
