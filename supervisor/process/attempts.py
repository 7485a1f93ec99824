"""The folder of one attempt: the snapshot of its configuration, its captured output, its shim's records.

Promise 11: each attempt runs a snapshot, and a restart uses the snapshot that last made progress.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from errno import EDQUOT, ENOSPC
from pathlib import Path

from supervisor.base.errors import ConfigError, SupervisorError
from supervisor.core.words import size


def attempt_dir(state_dir: Path, attempt: int) -> Path:
    """Folder of attempt ``attempt``."""
    return state_dir / "attempts" / f"{attempt:04d}"


def last_attempt(state_dir: Path) -> int:
    """Highest attempt that has a folder, 0 if none: what to count on from when the journal is gone."""
    names = [path.name for path in (state_dir / "attempts").glob("[0-9]*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def take_snapshot(folder: Path, files: Sequence[Path], earlier: Path | None) -> dict[Path, Path]:
    """Copy the configuration files into ``folder``; from ``earlier``'s snapshot where that has them.

    Returns original path -> copy. Raises ConfigError when a file is missing, SupervisorError when a copy cannot
    be written: a full disk, which has room again some time.
    """
    target = folder / "config"
    before = read_snapshot(earlier) if earlier else {}
    texts: dict[Path, bytes] = {}
    for path in files:
        source = before.get(path, path)
        try:
            texts[path] = source.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"The configuration {source} cannot be read: {error.strerror}. "
                "Put it there, or mend [job] in the run file."
            ) from error
    copies = {path: target / f"{number}-{path.name}" for number, path in enumerate(texts)}
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path, copy in copies.items():
            copy.write_bytes(texts[path])
        index = {str(path): copy.name for path, copy in copies.items()}
        (folder / "config.json").write_text(json.dumps(index, indent=1))
    except OSError as error:
        raise SupervisorError(f"The configuration cannot be copied to {target}: {error.strerror}.") from error
    return copies


def describe_full_disk(error: BaseException, folder: Path) -> str:
    """Which disk is full and how to see what fills it, where ``error`` came of that; "" otherwise. It is that of the
    file that the error names, else of ``folder``, where the attempts lie.
    """
    while not isinstance(error, OSError) and error.__cause__ is not None:
        error = error.__cause__
    if not isinstance(error, OSError) or error.errno not in (ENOSPC, EDQUOT):
        return ""
    path = Path(error.filename) if isinstance(error.filename, str) else folder
    place = folder if path.is_relative_to(folder) else next(one for one in path.parents if one.is_dir())
    disk = os.statvfs(place)
    room = f"{size(disk.f_bavail * disk.f_frsize)} and {disk.f_favail} inodes"
    mount = next(one for one in (place, *place.parents) if one.is_mount())
    return f"The disk of {place} has {room} free. Make room on it, outside that folder: du -xh -d 2 {mount} | sort -h"


def read_snapshot(folder: Path) -> dict[Path, Path]:
    """Original path -> copy of an attempt's snapshot; empty when it has none."""
    try:
        index = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    names = index.items() if isinstance(index, dict) else ()
    found = {Path(path): folder / "config" / name for path, name in names if isinstance(name, str) and "/" not in name}
    return {path: copy for path, copy in found.items() if copy.is_file()}


def digest(files: Mapping[Path, Path]) -> str:
    """SHA-256 over the snapshot's contents, in the order of the original paths."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(str(path.name).encode() + b"\0" + files[path].read_bytes() + b"\0")
    return total.hexdigest()
