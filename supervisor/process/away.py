"""The record of a component on another machine, where one on this machine has a shim's record: what was last heard.

``NAME.away.json`` in the attempt's folder is written by the head (``supervisor.nodes.head``), before the launch and
with all news. A machine that is silent changes nothing in it: what is unknown is not dead.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path

from supervisor.jobs.base import Place
from supervisor.process import shim_records
from supervisor.process.launch import COMPONENT_NAME, ShimState

ENDING = ".away.json"
HOW = "away"
_FIELDS = {field.name for field in fields(ShimState)} - {"place", "notes"}


def component_names(folder: Path) -> list[str]:
    """The components of this attempt that are on other machines."""
    return sorted(path.name.removesuffix(ENDING) for path in folder.glob(f"*{ENDING}"))


def write_record(folder: Path, component: str, state: ShimState, *, durable: bool = False) -> None:
    """Keep the last that is known. ``durable``: also over a loss of power, which may take a busy disk seconds.

    Raises OSError where the disk does not take it.
    """
    if state.place is None or not COMPONENT_NAME.fullmatch(component):
        raise ValueError(f"{component!r} is no component of another machine")
    path, data = folder / f"{component}{ENDING}", {**to_message(state), "place": asdict(state.place)}
    if durable:
        shim_records.write_atomically(str(path), data)
        return
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data))
    part.replace(path)


def look_at_component(folder: Path, component: str) -> ShimState | None:
    """What was last heard of it; None when it has no such record, or a damaged one."""
    path = folder / f"{component}{ENDING}"
    try:
        found = path.stat()
    except OSError:
        return None
    return _read(path, found.st_ino, found.st_mtime_ns)


@lru_cache(maxsize=2048)
def _read(path: Path, inode: int, changed_ns: int) -> ShimState | None:
    """Each is looked at each second, and a new one is always another file."""
    try:
        data = json.loads(path.read_bytes())
        place = Place(**data["place"])
        state = of_message(data)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return replace(state, place=place, how=HOW)


def may_live(state: ShimState) -> bool:
    """Is it not known to have ended?"""
    return state.state in ("running", "unknown")


def of_message(data: dict[str, object]) -> ShimState:
    """A state that was written or sent as JSON. TypeError or ValueError for what is none."""
    known = {name: value for name, value in data.items() if name in _FIELDS}
    state = ShimState(**known)  # type: ignore[arg-type]
    if state.state not in ("absent", "running", "exited", "lost", "unknown"):
        raise ValueError(f"{state.state!r} is no state of a component")
    return state


def to_message(state: ShimState) -> dict[str, object]:
    """The inverse."""
    return {name: value for name, value in asdict(state).items() if name in _FIELDS}
