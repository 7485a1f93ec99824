"""What the offer of a machine said of it: a fleet's controller hands it on, and the pod holds it against its host."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Promised:
    """What the offer said. None, or "": nothing. ``least``: the link that a person asked for."""

    gpu: str = ""  # as the provider spells it
    gpus: int | None = None
    disk_gb: float | None = None
    down_mbit: float | None = None
    up_mbit: float | None = None
    least_down_mbit: float | None = None
    least_up_mbit: float | None = None

    def as_json(self) -> str:
        """It, for the pod's environment; "" where nothing was promised."""
        told = {name: value for name, value in asdict(self).items() if value}
        return json.dumps(told) if told else ""


def read_promised(text: str) -> Promised:
    """What ``as_json`` wrote. A field that is none is as one that is absent."""
    try:
        told = json.loads(text) if text else {}
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    numbers = {
        field.name: told[field.name]
        for field in fields(Promised)
        if isinstance(told.get(field.name), int | float) and told[field.name] > 0
    }
    return Promised(**{**numbers, "gpu": str(told.get("gpu") or "")})
