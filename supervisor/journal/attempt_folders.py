"""What is kept of each attempt's logs, and where: read by what writes it, and by what shows it.

In the state folder, for attempt 7:

- ``attempts/0007/logs.json``: which files its lines go to, written before its launch (``effects/kept_logs.py``);
- ``attempts/0007/rl.log``: captured output. The older part of a long one is ``rl.log.0001-OFFSET.gz`` and so on; the
  whole of an ended attempt's ``rl.log.gz`` (``effects/log_upkeep.py``);
- ``attempts/0007/kept/ROLE-NAME``, later ``ROLE-NAME.gz``: what the job wrote into files of its own.
"""

from __future__ import annotations

import contextlib
import glob
import json
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

INDEX = "logs.json"
KEPT = "kept"
PIECE = re.compile(r"(?P<name>.+\.log)\.(?P<number>\d{4})-(?P<end>\d+)\.gz")
CLOCK_SLACK_S = 2.0  # a network volume stamps files with its server's clock


def attempts(state_dir: Path) -> list[int]:
    """Numbers of the attempts that have a folder, ascending."""
    names = [path.name for path in (state_dir / "attempts").glob("[0-9]*")]
    return sorted(int(name) for name in names if name.isdigit())


def folder_of(state_dir: Path, attempt: int) -> Path:
    """Folder of an attempt."""
    return state_dir / "attempts" / f"{attempt:04d}"


def read_index(folder: Path) -> dict[str, Any]:
    """``logs.json`` of an attempt's folder: ``at`` (Unix time of the launch), ``sources``, ``before`` (where files that
    the job may append to ended then), ``left`` (files that the job keeps itself), ``waiting`` (the files of these
    folders are on their way here). Empty when there is none, or it is damaged.
    """
    try:
        found = json.loads((folder / INDEX).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def records(index: Mapping[str, Any], name: str) -> list[dict[str, str]]:
    """The list of tables ``name`` of an index, its values as text; what is no table is left out."""
    found = index.get(name)
    tables = found if isinstance(found, list) else []
    return [{str(k): str(v) for k, v in one.items()} for one in tables if isinstance(one, dict)]


def own_files(index: Mapping[str, Any], folder: Path, fates: tuple[str, ...]) -> Iterator[tuple[dict[str, str], Path]]:
    """Text files that the job wrote itself, outside the attempt's folder, as they are now: (source, path)."""
    start = Path(glob.escape(str(folder)))
    for source in records(index, "sources"):
        path = source.get("path", "")
        if source.get("kind") != "text" or source.get("fate") not in fates or Path(path).parent == start:
            continue
        for name in sorted(glob.glob(path)):  # noqa: PTH207 - the pattern is absolute, which Path.glob refuses
            yield source, Path(name)


def is_of(path: Path, index: Mapping[str, Any]) -> bool:
    """Was the file written to since the attempt was launched? What is older is another one's."""
    with contextlib.suppress(OSError, TypeError, ValueError, OverflowError):
        look = path.stat()
        return stat.S_ISREG(look.st_mode) and look.st_mtime >= float(index.get("at", 0)) - CLOCK_SLACK_S
    return False


def list_waiting_folders(folder: Path) -> list[Path]:
    """Folders beside the job's logs in which files of this attempt wait to be fetched; nothing that is named otherwise,
    for they are emptied."""
    places = [Path(place) for place in words(read_index(folder), "waiting")]
    return [place for place in places if place.is_absolute() and place.name == f".attempt-{folder.name}-logs"]


def words(index: Mapping[str, Any], name: str) -> list[str]:
    """The list of words ``name`` of an index."""
    found = index.get(name)
    return [word for word in found if isinstance(word, str)] if isinstance(found, list) else []
