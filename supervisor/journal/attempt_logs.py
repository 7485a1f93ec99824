"""The logs of each attempt, whatever became of them, and their last lines. Reads only; needs no daemon."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from supervisor.journal.attempt_folders import (
    KEPT,
    PIECE,
    attempts,
    folder_of,
    is_of,
    list_waiting_folders,
    own_files,
    read_index,
    records,
)

NAMED_ROLES = {"rl": "launcher", "sft": "launcher"}  # captured output by its component, where there is no index
LINE_BYTES = 64 << 10  # of a longer line, which a progress bar may be, the end is shown
PLAIN_BYTES = 64 << 20  # how far back a plain file is read for its last lines
BLOCK_BYTES = 256 << 10
HOLE = bytes(512)  # so a block begins of which the disk was given back

State = Literal["plain", "compressed", "in the job's folder"]


@dataclass(frozen=True)
class AttemptLog:
    """One log of one attempt. ``pieces`` are its files, oldest part first; those that end in ``.gz`` are compressed."""

    attempt: int
    role: str
    name: str
    pieces: tuple[Path, ...]
    state: State
    size_bytes: int  # what it takes on disk
    changed_wall: float  # Unix time of its last line


def logs_of(state_dir: Path, attempt: int) -> list[AttemptLog]:
    """Every log of an attempt that there still is, by role; of one role the newest first."""
    folder = folder_of(state_dir, attempt)
    index = read_index(folder)
    found = [*_captured_output(folder, attempt, index)]
    for place in (folder / KEPT, *list_waiting_folders(folder)):
        for path in _files_of_folder(place):
            role, _, name = path.name.removesuffix(".gz").partition("-")
            if name:
                found.append(_log_of_role(attempt, role, name, (path,)))
    for record in records(index, "left"):
        path = Path(record.get("path", ""))
        if path.is_file():
            found.append(_log_of_role(attempt, record.get("role", ""), path.name, (path,), "in the job's folder"))
    if not any(read_index(folder_of(state_dir, later)) for later in attempts(state_dir) if later > attempt):
        for source, path in own_files(index, folder, ("overwritten", "stays", "shared")):
            if is_of(path, index):
                found.append(_log_of_role(attempt, source.get("role", ""), path.name, (path,), "in the job's folder"))
    found += _engine_logs(state_dir, attempt, index) if not any(one.role == "inference" for one in found) else []
    return sorted(found, key=lambda one: (one.role, -one.changed_wall, one.name))


def _captured_output(folder: Path, attempt: int, index: Mapping[str, Any]) -> Iterator[AttemptLog]:
    roles = {source.get("path", ""): source.get("role", "") for source in records(index, "sources")}
    parts: dict[str, list[Path]] = {}
    for path in _files_of_folder(folder):
        piece = PIECE.fullmatch(path.name)
        name = piece["name"] if piece else path.name.removesuffix(".gz")
        if name.endswith(".log") and (piece or path.name in (name, f"{name}.gz")):
            parts.setdefault(name, []).append(path)
    for name, paths in parts.items():
        stem = name.removesuffix(".log")
        role = roles.get(glob.escape(str(folder / name))) or NAMED_ROLES.get(stem, stem)
        # Numbered pieces first, then what came after them; a plain file beside its compressed one is being compressed.
        plain = [path for path in paths if path.name == name]
        last = plain or [path for path in paths if path.name == f"{name}.gz"]
        pieces = sorted(path for path in paths if PIECE.fullmatch(path.name))
        yield _log_of_role(attempt, role, name, (*pieces, *last), "plain" if plain else "compressed")


def _engine_logs(state_dir: Path, attempt: int, index: Mapping[str, Any]) -> list[AttemptLog]:
    """An inference server that is a role of its own outlives attempts: the logs of those that spoke during this one."""
    later = [read_index(folder_of(state_dir, number)) for number in attempts(state_dir) if number > attempt]
    ended = min((float(one["at"]) for one in later if isinstance(one.get("at"), (int, float))), default=float("inf"))
    began = index.get("at")
    if not isinstance(began, (int, float)):
        return []
    found = []
    for folder in sorted((state_dir / "engines").glob("[0-9]*")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            started = float(json.loads((folder / "inference.shim.json").read_bytes())["started_wall"])
            spoke = [
                one for one in _captured_output(folder, attempt, {}) if one.changed_wall >= began and started < ended
            ]
            found += spoke
    return found


def _files_of_folder(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_file() and not entry.name.startswith("."))
    except OSError:
        return []


def _log_of_role(
    attempt: int, role: str, name: str, pieces: tuple[Path, ...], state: State | None = None
) -> AttemptLog:
    looks = []
    for path in pieces:
        with contextlib.suppress(OSError):
            looks.append(path.stat())
    state = state or ("compressed" if pieces and pieces[-1].name.endswith(".gz") else "plain")
    size = sum(look.st_blocks * 512 for look in looks)
    return AttemptLog(attempt, role, name, pieces, state, size, max((look.st_mtime for look in looks), default=0.0))


# ---------------------------------------------------------------- its lines


def last_lines(pieces: Sequence[Path], count: int) -> list[str]:
    """The last ``count`` lines of a log, without their ends. ``pieces``: its files, oldest part first.

    Raises OSError when nothing of it can be read; a compressed piece that is damaged counts up to the damage.
    """
    found: list[bytes] = []
    problem: OSError | None = None
    for path in reversed(pieces):
        if len(found) >= count:
            break
        try:
            more = _of_gzip(path, count - len(found)) if path.name.endswith(".gz") else _of_plain(path, count)
        except OSError as error:
            problem = error
            continue
        found = [*more, *found]
    if problem is not None and not found:
        raise problem
    return [line.removesuffix(b"\r").decode(errors="replace") for line in found[-count:]] if count > 0 else []


def _of_plain(path: Path, count: int) -> list[bytes]:
    with path.open("rb") as file:
        end = start = file.seek(0, os.SEEK_END)
        blocks: list[bytes] = []
        ends = 0
        while start > 0 and ends <= count and end - start < PLAIN_BYTES:
            size = min(BLOCK_BYTES, start)
            start -= size
            file.seek(start)
            block = file.read(size)
            if block.startswith(HOLE):
                block, start = block.lstrip(b"\0"), 0  # what was before is in a compressed piece
            blocks.append(block)
            ends += block.count(b"\n")
    lines = b"".join(reversed(blocks)).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if start > 0 and len(lines) <= count:
        lines = lines[1:] or lines  # the first is the end of a line
    return [line[-LINE_BYTES:] for line in lines[-count:]]


def _of_gzip(path: Path, count: int) -> list[bytes]:
    """By streaming, so that no log is ever whole in memory; nothing is trusted of how large it says it is."""
    lines: deque[bytes] = deque(maxlen=count)
    rest = b""
    unpacker = zlib.decompressobj(31)
    with path.open("rb") as file:
        while packed := file.read(BLOCK_BYTES):
            while packed:
                try:
                    data = unpacker.decompress(packed, 4 * BLOCK_BYTES)
                except zlib.error:
                    packed = b""
                    break
                packed = unpacker.unconsumed_tail
                *whole, rest = (rest + data).split(b"\n")
                rest = rest[-LINE_BYTES:]
                lines.extend(line[-LINE_BYTES:] for line in whole)
    if rest:
        lines.append(rest)
    return list(lines)
