"""A person's own faults: a TOML or JSON file of what strikes when, instead of the random mix.

::

    [[fault]]
    at = "1h30m"        # or seconds as a number
    kind = "engine-hang"
    says = true         # parameters of the kind; a pair [low, high] is drawn from evenly
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from supervisor.base.errors import ConfigError
from supervisor.simulator.faults import KINDS, with_defaults
from supervisor.simulator.world import Planned

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(h|min|m|s|d)")
_UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}
OWN = ("at", "kind")


def load_faults(path: Path) -> list[Planned]:
    """The faults of a file, by time. Raises ConfigError with the place and what is known instead."""
    return parse_faults(_read_file(path), str(path))


def parse_faults(content: Any, source: str) -> list[Planned]:
    """Faults from a list of tables, or from a table with one called ``fault``."""
    entries = content.get("fault", content.get("faults")) if isinstance(content, dict) else content
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{source} holds no faults: write [[fault]] tables (TOML), or a list of objects (JSON).")
    faults = []
    for number, entry in enumerate(entries, 1):
        try:
            faults.append(_parse_fault(entry))
        except ConfigError as error:
            raise ConfigError(f"{source}, fault {number}: {error}") from error
    return sorted(faults, key=lambda fault: fault.at)


def _parse_fault(entry: dict[str, Any]) -> Planned:
    missing = [name for name in OWN if name not in entry]
    if missing:
        raise ConfigError(f'{" and ".join(missing)} missing; a fault is at = "1h30m" and kind = "engine-hang".')
    parameters = {name: value for name, value in entry.items() if name not in OWN}
    return Planned(seconds(entry["at"]), str(entry["kind"]), with_defaults(str(entry["kind"]), parameters))


def seconds(value: object) -> float:
    """Seconds of a number, or of a text like "90s", "15min", "1h30m", "2d". Raises ConfigError."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    if isinstance(value, str):
        parts = _PART.findall(value)
        if parts and not _PART.sub("", value).strip():
            return sum(float(number) * _UNITS[unit] for number, unit in parts)
    raise ConfigError(f'at takes seconds as a number or a text like "1h30m", not {value!r}.')


def _read_file(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The faults in {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The faults in {path} cannot be read: it is not text in UTF-8.") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass  # then it is TOML, or nothing
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is neither JSON nor TOML: {error}") from error


def describe_kinds() -> list[str]:
    """All kinds with their parameters, for people."""
    lines = []
    for kind in KINDS.values():
        lines.append(f"{kind.name}: {kind.about} (needs: {kind.needs})")
        for name, parameter in kind.parameters.items():
            default = json.dumps(parameter.default)
            lines.append(f"    {name} = {default:8}  {parameter.about}")
    return lines
