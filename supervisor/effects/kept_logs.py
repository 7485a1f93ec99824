"""What the job wrote into log files of its own is kept with its attempt, before the next start writes over it.

Up to August 2026 prime-rl opens its logs anew at each launch, which truncates them. A hard link would be truncated
with them, and a copy would hold the restart up by as long as it takes; so a file that will be written over is *moved*
into the attempt's folder. Where that is on another file system it is moved aside in its own folder, at once, and
fetched in the background. Nothing is written then: the attempt has been stopped. A reader still holds the same file.

A file that the job may append to cannot be taken away: of it, what this attempt added is copied, up to a limit. Files
that no later start touches stay where they are, and their paths are written down, for ``logs/latest`` leads elsewhere
afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.jobs.base import LogSource
from supervisor.journal.attempt_folders import (
    INDEX,
    KEPT,
    attempts,
    folder_of,
    is_of,
    own_files,
    read_index,
    records,
    words,
)
from supervisor.process import shim_records

COPY_BYTES = 16 << 20  # of one file that stays where it is; a start must not wait for more
COPIES_S = 5.0  # for all of them
MARK_BYTES = 32


def begin(folder: Path, sources: Sequence[LogSource]) -> None:
    """Write down, before the launch, where the attempt's lines will go. Where that fails they are found by the names of
    their files alone: no start fails for it.
    """
    index: dict[str, Any] = {
        "at": time.time(),
        "sources": [{"role": s.role, "path": s.path, "kind": s.kind, "fate": s.fate} for s in sources],
    }
    index["before"] = [_end_of_file(path) for _, path in own_files(index, folder, ("shared",))]
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        shim_records.write_atomically(str(folder / INDEX), index)


def keep_earlier(state_dir: Path, attempt: int, doomed: Sequence[Path] = ()) -> list[str]:
    """Keep what the attempts before ``attempt`` left in files that its start will write over, or that lie below
    ``doomed``, which is about to be moved away. Returns sentences on what could not be kept; raises nothing, for a log
    is never worth a start.
    """
    problems: list[str] = []
    earlier = [number for number in attempts(state_dir) if number < attempt]
    newest = next((number for number in reversed(earlier) if read_index(folder_of(state_dir, number))), None)
    if newest is not None:
        indexes = [read_index(folder_of(state_dir, number)) for number in earlier]
        told = {record["path"] for index in indexes for record in records(index, "left") if "path" in record}
        _keep_logs(folder_of(state_dir, newest), told, problems)
    for number in earlier:
        _rescue_logs(folder_of(state_dir, number), doomed, problems)
    return problems


def _keep_logs(folder: Path, told: set[str], problems: list[str]) -> None:
    index = read_index(folder)
    for source, path in own_files(index, folder, ("overwritten",)):
        if is_of(path, index):
            _move_log(folder, source.get("role", ""), path, path.parent, problems)
    before = {record.get("path", ""): record for record in records(index, "before")}
    copied = words(index, "copied")
    deadline = time.monotonic() + COPIES_S
    for source, path in own_files(index, folder, ("shared",)):
        if not is_of(path, index) or str(path) in copied:
            continue
        if time.monotonic() > deadline:
            problems.append(f"{path} is not kept: copying the others took longer than {COPIES_S:.0f} s.")
            continue
        try:
            name = f"{source.get('role', '')}-{path.name}"
            _copy_log(path, before.get(str(path), {}), _free_name(folder / KEPT, name))
            copied.append(str(path))
        except OSError as error:
            problems.append(f"{path} could not be copied to {folder / KEPT}: {error.strerror}.")
    left = records(index, "left")
    for source, path in own_files(index, folder, ("stays",)):
        real = os.path.realpath(path)
        if real not in told and is_of(path, index):
            left.append({"role": source.get("role", ""), "path": real})
            told.add(real)
    _update_copies(folder, problems, left=left, copied=copied)


def _rescue_logs(folder: Path, doomed: Sequence[Path], problems: list[str]) -> None:
    """Take what the job kept itself out of folders that are about to be moved away, and perhaps deleted."""
    index = read_index(folder)
    left, stay = records(index, "left"), []
    for record in left:
        path = Path(record.get("path", ""))
        tree = next((tree for tree in doomed if path.is_relative_to(os.path.realpath(tree))), None)
        if (
            tree is None
            or not path.is_file()
            or not _move_log(folder, record.get("role", ""), path, tree.parent, problems)
        ):
            stay.append(record)
    if stay != left:
        _update_copies(folder, problems, left=stay)


def _move_log(folder: Path, role: str, path: Path, aside: Path, problems: list[str]) -> bool:
    """Into the attempt's folder, or where that is another file system into a folder below ``aside``."""
    name = f"{role}-{path.name}"
    try:
        look = path.lstat()
        if not stat.S_ISREG(look.st_mode) or look.st_size == 0:
            return False  # a link or a pipe that a person put there is not ours to take
        try:
            path.rename(_free_name(folder / KEPT, name))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            waiting = aside / f".attempt-{folder.name}-logs"  # as list_waiting_folders wants it
            told = words(read_index(folder), "waiting")
            _update_copies(folder, problems, waiting=[*dict.fromkeys([*told, str(waiting)])])
            path.rename(_free_name(waiting, name))
    except OSError as error:
        problems.append(f"{path} could not be kept with attempt {int(folder.name)}: {error.strerror}.")
        return False
    return True


def _free_name(place: Path, name: str) -> Path:
    """A name that is still free: nothing that was kept is ever written over."""
    place.mkdir(parents=True, exist_ok=True, mode=0o750)
    for number in range(1, 1000):
        stem, dot, ending = name.rpartition(".")
        found = place / (name if number == 1 else f"{stem}.{number}{dot}{ending}")
        if not found.exists() and not found.with_name(f"{found.name}.gz").exists():
            return found
    raise OSError(errno.EEXIST, "there are too many files of this name", str(place / name))


def _update_copies(folder: Path, problems: list[str], **changes: object) -> None:
    index = read_index(folder)
    if all(index.get(name, []) == value for name, value in changes.items()):
        return
    try:
        shim_records.write_atomically(str(folder / INDEX), {**index, **changes})
    except OSError as error:
        problems.append(f"{folder / INDEX} could not be written: {error.strerror}.")


# ---------------------------------------------------------------- files that the job appends to


def _end_of_file(path: Path) -> dict[str, object]:
    """Where a file ends now, and the bytes before: whether it is still the same one after it was written to."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MARK_BYTES))
        return {"path": str(path), "size": size, "mark": file.read(MARK_BYTES).hex()}
    return {"path": str(path)}


def _copy_log(path: Path, before: dict[str, str], target: Path) -> None:
    """What the attempt added to a file, at most its last ``COPY_BYTES``, from the beginning of a line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = _same_until(file.fileno(), before)
        if size - start > COPY_BYTES:
            file.seek(size - COPY_BYTES)
            file.readline(1 << 20)
            start = file.tell()
        if start >= size:
            return
        temporary = target.with_name(f".{target.name}.tmp")
        with temporary.open("wb") as copy:
            while start < size and (sent := os.sendfile(copy.fileno(), file.fileno(), start, size - start)):
                start += sent
        temporary.rename(target)


def _same_until(fd: int, before: dict[str, str]) -> int:
    """Where the attempt's own part begins: where the file ended at its launch, unless it was written anew since."""
    with contextlib.suppress(KeyError, ValueError, OSError):
        size, mark = int(before["size"]), bytes.fromhex(before["mark"])
        if os.pread(fd, len(mark), size - len(mark)) == mark:
            return size
    return 0
