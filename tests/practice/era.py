"""An era of prime-rl: how one commit speaks, as golden data in `eras/NAME.toml`, each file naming the commit it was
read from.

This reading is the practice job's own. It shares nothing with the supervisor's, so that a misreading there is not
repeated here.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ERAS_FOLDER = Path(__file__).parent / "eras"


@dataclass(frozen=True)
class Era:
    """One commit's outside. The tables are plain data; any file in `eras/` shows their keys and where each was read."""

    name: str
    commit: str
    date: str
    vllm: str
    command_line: dict[str, Any]
    start: dict[str, Any]
    processes: dict[str, Any]
    layout: dict[str, Any]
    engine: dict[str, Any]
    steps: dict[str, Any]
    lines: dict[str, dict[str, Any]]
    install: tuple[dict[str, Any], ...]
    example: dict[str, str]
    keys: dict[str, frozenset[str]] = field(repr=False)
    """Table name -> the keys in it; a key that ends in `*` takes anything below it."""

    @property
    def first_step(self) -> int:
        return int(self.steps["first"])

    @property
    def titles(self) -> bool:
        return bool(self.processes["titles"])

    def line(self, role: str, key: str, **values: object) -> str:
        """The text of a log line, or "" where this era does not write such a line."""
        template = self.lines.get(role, {}).get(key, "")
        return str(template).format(**values) if template else ""


def era_names() -> list[str]:
    return sorted(path.stem for path in ERAS_FOLDER.glob("*.toml"))


def load_era(name: str) -> Era:
    """Raises ValueError for an unknown name."""
    path = ERAS_FOLDER / f"{name}.toml"
    if not path.is_file():
        raise ValueError(f"No era is called {name!r}. Known: {', '.join(era_names())}")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    keys = tomllib.loads((ERAS_FOLDER / "keys" / path.name).read_text(encoding="utf-8"))["tables"]
    return Era(
        name=data["name"],
        commit=data["commit"],
        date=data["date"],
        vllm=data["vllm"],
        command_line=data["command_line"],
        start=data["start"],
        processes=data["processes"],
        layout=data["layout"],
        engine=data["engine"],
        steps=data["steps"],
        lines=data["lines"],
        install=tuple(data["install"]),
        example=data["example"],
        keys={table: frozenset(names.split()) for table, names in keys.items()},
    )
