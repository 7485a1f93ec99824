"""What of the run's own files goes to the store beside its steps: no secret does.

A text in which something was masked is of no use to the next pod. So ``run.json`` names such files, and
``supervisor.daemon.fetch_run_files`` takes the pod's own instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from supervisor.base.secrets import mask_secrets, mask_value
from supervisor.config.settings import RunFile

RUN = "run.json"
MASKED = "masked"
"""Table of ``run.json``: its ``files`` are those in which a secret was masked."""


def describe(run_file: RunFile, configs: Mapping[Path, Path]) -> tuple[dict[str, str], list[Path]]:
    """Texts by their name in the store, and the trainer's configuration files (path -> copy) that hold a secret."""
    texts: dict[str, str] = {}
    hiding: dict[str, Path] = {}
    for number, (path, copy) in enumerate(configs.items()):
        name, text = f"config-{number}-{path.name}", copy.read_text(errors="replace")
        texts[name] = mask_secrets(text)
        if texts[name] != text:
            hiding[name] = path
    settings = run_file.model_dump(mode="json")
    shown = {name: mask_value(value, name) for name, value in settings.items()}
    texts[RUN] = json.dumps(shown | {MASKED: {"files": sorted(hiding)}}, indent=1)
    return texts, list(hiding.values())
