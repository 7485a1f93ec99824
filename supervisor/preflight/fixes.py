"""The certain remedies as a patch to a person's files: made as text, shown as a diff, and written only when asked to.

A finding's edits are taken whole or not at all. Where two findings want to change the same lines the first one wins,
and the other is named; the next check sees what is left of it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.base.errors import SupervisorError
from supervisor.preflight.finding import Edit, Finding
from supervisor.preflight.toml_values import is_toml

BOM = b"\xef\xbb\xbf"
ORIGINAL = ".orig"


class FixError(SupervisorError):
    """A file that is not written, and why."""


@dataclass(frozen=True)
class Patch:
    """What becomes of one file."""

    file: Path
    before: bytes
    after: bytes

    def diff(self) -> str:
        """As ``diff -u`` writes it."""
        # A byte order mark is a part of its first line: `patch` compares with it.
        old, new = (_split_lines(content.decode("utf-8")) for content in (self.before, self.after))
        told: list[str] = []
        for line in difflib.unified_diff(old, new, str(self.file), str(self.file)):
            told.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
        return "".join(told)


@dataclass(frozen=True)
class Fixes:
    """All patches, the findings that they mend, and those left without an edit, each with a clause that says why."""

    patches: Sequence[Patch]
    mended: Sequence[Finding] = ()
    left: Sequence[tuple[Finding, str]] = ()


@dataclass
class _File:
    content: bytes
    lines: list[str]
    edits: list[Edit] = field(default_factory=list)


def fixes(found: Sequence[Finding]) -> Fixes:
    """What the edits of ``found`` would make of their files, as these are now."""
    files: dict[Path, _File] = {}
    mended: list[Finding] = []
    left: list[tuple[Finding, str]] = []
    for one in found:
        if not one.edits:
            continue
        if reason := _take_edits(one, files):
            left.append((one, reason))
        else:
            mended.append(one)
    patches = []
    for path, file in ((path, file) for path, file in files.items() if file.edits):
        mark = BOM if file.content.startswith(BOM) else b""
        patches.append(Patch(path, file.content, mark + _apply_edits(file.lines, file.edits).encode()))
    return Fixes([one for one in patches if one.before != one.after], mended, left)


def _take_edits(one: Finding, files: dict[Path, _File]) -> str:
    """Add the finding's edits to those of their files; or why not."""
    for path in {edit.file for edit in one.edits} - set(files):
        try:
            content = path.read_bytes()
            files[path] = _File(content, _split_lines(content.removeprefix(BOM).decode("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            return f"{path} cannot be read: {error}"
    wanted = [edit for edit in one.edits if edit not in files[edit.file].edits]
    for edit in wanted:
        file = files[edit.file]
        if not 1 <= edit.first <= len(file.lines) + 1 or not edit.first - 1 <= edit.last <= len(file.lines):
            return f"{edit.file} has no lines {edit.first} to {edit.last} any more"
        if any(_edits_overlap(edit, other) for other in file.edits):
            return f"another remedy changes the same lines of {edit.file}"
    for path in {edit.file for edit in wanted}:
        file = files[path]
        edits = [*file.edits, *(edit for edit in wanted if edit.file == path)]
        if path.suffix == ".toml" and is_toml("".join(file.lines)) and not is_toml(_apply_edits(file.lines, edits)):
            return f"{path} would not be TOML any more"
    for edit in wanted:
        files[edit.file].edits.append(edit)
    return ""


def _edits_overlap(one: Edit, other: Edit) -> bool:
    """Do they change the same lines? Two that only insert at one place follow each other."""
    return one.first <= other.last and other.first <= one.last


def _split_lines(text: str) -> list[str]:
    """With their ends. Only "\\n" ends a line of TOML."""
    return [part for part in text.replace("\n", "\n\0").split("\0") if part]


def _apply_edits(before: Sequence[str], edits: Sequence[Edit]) -> str:
    lines = list(before)
    end = "\r\n" if sum(line.endswith("\r\n") for line in lines) * 2 > len(lines) else "\n"
    # From the last line up, so that the numbers stay true; of two insertions at one place the first comes first.
    ordered = reversed(edits)
    for edit in sorted(ordered, key=lambda edit: (-edit.first, edit.last < edit.first)):
        if edit.lines and edit.first > len(lines) and lines and not lines[-1].endswith("\n"):
            lines[-1] += end
        lines[edit.first - 1 : edit.last] = [f"{line}{end}" for line in edit.lines]
    return "".join(lines)


# ---------------------------------------------------------------- writing


def write(patch: Patch) -> Path:
    """Put the patched text into the file, in place: its owner, its mode and all of its names stay. A link is followed.

    Returns where the former text is kept. Raises FixError, and then nothing was changed: for a file that is another's,
    was changed meanwhile, or for which there is no room.
    """
    path = patch.file
    try:
        path = path.resolve(strict=True)
        if not path.is_file() or path.read_bytes() != patch.before:
            raise FixError(f"{path} was changed meanwhile, and is left as it is: check it again.")
        with path.open("r+b"):  # before the copy: what may not be written leaves none behind
            kept = _copy_original(path)
        try:
            _write_over(path, patch.after)
        except OSError:
            _write_over(path, patch.before)  # which has its room on the disk
            kept.unlink()
            raise
    except OSError as error:
        raise FixError(f"{path} is left as it is: {error.strerror or error} ({error.filename or path}).") from error
    return kept


def _write_over(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _copy_original(path: Path) -> Path:
    """A copy of the former text, of the same owner, under a name that is free."""
    number = 1
    while os.path.lexists(kept := path.with_name(f"{path.name}{ORIGINAL}{number if number > 1 else ''}")):
        number += 1
    try:
        shutil.copy2(path, kept)
    except OSError:  # no room: a torn copy is none
        kept.unlink(missing_ok=True)
        raise
    with contextlib.suppress(PermissionError):
        os.chown(kept, path.stat().st_uid, path.stat().st_gid)
    return kept
