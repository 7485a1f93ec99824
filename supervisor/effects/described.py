"""What of the run's own files goes to the store beside its steps: no secret does.

A text in which something was masked is of no use to the next pod. So ``run.json`` names such files, and
``supervisor.next_pod`` takes the pod's own instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.config import RunFile
from supervisor.secrets import MASK, SECRET_NAME, masked

RUN = "run.json"
MASKED = "masked"
"""Table of ``run.json``: its ``files`` are those in which a secret was masked."""


def describe(run_file: RunFile, configs: Mapping[Path, Path]) -> tuple[dict[str, str], list[Path]]:
    """Texts by their name in the store, and the trainer's configuration files (path -> copy) that hold a secret."""
    texts: dict[str, str] = {}
    hiding: dict[str, Path] = {}
    for number, (path, copy) in enumerate(configs.items()):
        name, text = f"config-{number}-{path.name}", copy.read_text(errors="replace")
        texts[name] = masked(text)
        if texts[name] != text:
            hiding[name] = path
    settings: dict[str, Any] = _masked(run_file.model_dump(mode="json"))
    texts[RUN] = json.dumps(settings | {MASKED: {"files": sorted(hiding)}}, indent=1)
    return texts, list(hiding.values())


def _masked(value: Any, name: str = "") -> Any:
    """Value by value, since the names of tables tell, too; in JSON's text an escaped quote would end a secret early."""
    if isinstance(value, dict):
        return {key: _masked(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, name) for inner in value]
    if not isinstance(value, str):
        return value
    return MASK if value and SECRET_NAME.search(name) else masked(value)
