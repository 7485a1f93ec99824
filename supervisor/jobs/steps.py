"""Folders with a step's number in their name: finding them, and what is in them. Nothing here follows a symlink."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from supervisor.checkpoints.completeness import Result, folder_size
from supervisor.jobs.base import StepCheck

NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
CLOCK_SLACK_S = (
    5.0  # a file's time may lie a little ahead of ours (network volumes); more is no reason to wait for ever
)


def numbered_folders(parent: Path) -> dict[int, Path]:
    """Entries of ``parent`` called ``step_N``, by N. Empty when it does not exist; raises OSError otherwise."""
    found: dict[int, Path] = {}
    try:
        with os.scandir(parent) as entries:
            for entry in entries:
                name, _, number = entry.name.partition("_")
                if name == "step" and NUMBER.fullmatch(number):
                    found[int(number)] = parent / entry.name
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return found


def files_below(folder: Path) -> Iterator[Path]:
    """Every regular file below ``folder``, sorted; or ``folder`` itself when it is one."""
    if _file_kind(folder) == stat.S_IFREG:
        yield folder
        return
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.is_symlink():
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(folder / entry.name)
        elif entry.is_file(follow_symlinks=False):
            yield folder / entry.name


def first_symlink(trees: Iterable[Path], top: Path) -> Path | None:
    """A symlink in ``trees``, or between ``top`` and one of them; None when there is none."""
    for tree in trees:
        path = top
        for part in tree.relative_to(top).parts:
            path /= part
            if path.is_symlink():
                return path
        found = _symlink_below(tree)
        if found:
            return found
    return None


def _symlink_below(folder: Path) -> Path | None:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    return folder / entry.name
                if entry.is_dir(follow_symlinks=False):
                    found = _symlink_below(folder / entry.name)
                    if found:
                        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None


def _file_kind(path: Path) -> int:
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except OSError:
        return 0


def judge_step(
    step: int, results: Iterable[Result], trees: Sequence[Path], output_dir: Path, quiet_s: float, *, settled: bool
) -> StepCheck:
    """One answer from the ``results`` about a step's parts; their files lie in ``trees`` below ``output_dir``.

    ``results`` are only asked for once no symlink is found in the trees. ``quiet_s``: seconds without a change before
    a whole step is complete; ``settled``: no process writes any more.
    """
    try:
        link = first_symlink(trees, output_dir)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise  # of NFS: the next look gets another handle
        return StepCheck("incomplete", f"step {step} cannot be looked at: {error.strerror} ({error.filename})")
    if link is not None:
        return StepCheck("incomplete", f"step {step} holds the symlink {link}, and symlinks are never followed")
    size_bytes, changed = folder_size(trees)
    for result in results:
        if not result.ok:
            state: str = "writing" if result.writing and not settled else "incomplete"
            return StepCheck(state, result.reason, size_bytes, changed)  # type: ignore[arg-type]
    age = time.time() - changed
    if not settled and -CLOCK_SLACK_S - quiet_s < age < quiet_s:
        reason = (
            f"step {step} is whole, and its files changed {max(age, 0):.0f} s ago: {quiet_s:.0f} s of quiet are wanted"
        )
        return StepCheck("writing", reason, size_bytes, changed)
    return StepCheck("complete", "", size_bytes, changed)


def safe_name(name: str) -> PurePosixPath:
    """``name`` as a relative path. ValueError on anything that could lead out of a step's folder."""
    path = PurePosixPath(name)
    if not name or "\0" in name or "\\" in name or path.is_absolute() or ".." in path.parts or "." in name.split("/"):
        raise ValueError(f"{name!r} is no name of a file in a step")
    if (path.parts and any(len(part) > 255 for part in path.parts)) or "//" in name or name.endswith("/"):
        raise ValueError(f"{name!r} is no name of a file in a step")
    return path
