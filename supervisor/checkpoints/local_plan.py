"""What a publish knows of its sources, kept on the local disk so that a killed one need not begin again.

Part hashes of a file are good while its size, mtime and inode are the same. A file's id in the store is written down
before the store is asked to make an object of its parts: a publish that finds that id in the listing knows its bytes by
the hashes beside it. Losing the plan costs reading, and sending again each file without a listed hash. So a disk
that takes no plan stops no publish: that is what makes local steps superfluous, and frees the disk.

One JSON object a line, each written once: what came to be known of one file since the last save. So a step of 10,000
large files, each of which has to be on the disk before its last request, writes 10,000 lines and not 10,000 plans.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import json
import os
import stat
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.base.durable import make_folders, sync_folder
from supervisor.storage.base import StoreError

FORMAT = 4
SAVE_EVERY_S = 1.0
PLANS_KEPT = 3
"""Of published steps: publishing one of them again then reads none of its bytes."""

Found = tuple[str, bytes]
"""SHA-1 (hexadecimal) of a part, and the hashes of the blocks that begin in it."""


@dataclass(frozen=True)
class Identity:
    """What tells a file that was rewritten from one that was not."""

    size: int
    mtime_ns: int
    inode: int

    @staticmethod
    def of(path: Path) -> Identity:
        """Look at a file without following a link. Raises kind "changed" when it is gone or no plain file."""
        try:
            status = path.lstat()
        except OSError as error:
            raise StoreError("changed", f"{path} vanished while the step was being published") from error
        if not stat.S_ISREG(status.st_mode):
            raise StoreError("changed", f"{path} is no plain file (a link, a folder or a device): it is not published")
        return Identity(status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True)
class Wanted:
    """A source, its name below the step's folder, and how it is cut: what its hashes are hashes of."""

    name: str
    source: Path
    identity: Identity
    part_size: int
    block_size: int


@dataclass
class _Entry:
    wanted: Wanted
    found: dict[int, Found] = field(default_factory=dict)  # by the index of the part
    file_id: str = ""


class LocalPlan:
    """The plan file of one step's publish: begun by rename, then added to; any doubt in it means: hash again.

    ``problem``: why it could not be written the last time, "" when it could. Nothing here raises for that.
    """

    def __init__(self, path: Path, store_url: str) -> None:
        self._path = path
        self._retired = path.with_name(path.name.replace("publish-", "published-", 1))
        self._store_url = store_url
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._saved_at = 0.0
        self._begun = False  # is the file there as this process writes it?
        self.problem = ""
        self._entries: dict[str, _Entry] = self._load_lines()
        self._unsaved: dict[str, set[int]] = {name: set(entry.found) for name, entry in self._entries.items()}

    def recall_hashes(self, wanted: Wanted) -> tuple[Mapping[int, Found], str]:
        """Hashes of the file's parts by index, and its id in the store ("" when it never was about to have one).

        Nothing of it when the file on disk is another one by now, or is cut otherwise.
        """
        with self._lock:
            entry = self._entries.get(wanted.name)
            if entry is None or entry.wanted != wanted:
                entry = self._entries[wanted.name] = _Entry(wanted)
                self._unsaved[wanted.name] = set()
            return dict(entry.found), entry.file_id

    def remember(self, wanted: Wanted, index: int, found: Found) -> None:
        """Keep the hashes of a part; written to disk at most once a second, and by ``save``."""
        with self._lock:
            entry = self._entries.get(wanted.name)
            if entry is None or entry.wanted != wanted:
                return  # forgotten: the file changed
            entry.found[index] = found
            self._unsaved.setdefault(wanted.name, set()).add(index)
            due = time.monotonic() - self._saved_at >= SAVE_EVERY_S
        if due and self._writing.acquire(blocking=False):
            try:
                self._save_entries()
            finally:
                self._writing.release()

    def confirm(self, wanted: Wanted, file_id: str, *, now: bool = False) -> None:
        """All parts of the file are in the store, under this id; ``now``: it is on the disk when this returns.

        Unless nothing can be written there: then a kill right now costs sending the file again.
        """
        with self._lock:
            entry = self._entries.get(wanted.name)
            if entry is not None and entry.wanted == wanted:
                entry.file_id = file_id
                self._unsaved.setdefault(wanted.name, set())
        if now:
            self.save()

    def forget(self, name: str) -> None:
        """The file changed: what we knew of it is wrong."""
        with self._lock:
            self._entries.pop(name, None)
            self._unsaved[name] = set()
        self.save()

    def save(self) -> None:
        """Write everything that is known and not written yet."""
        with self._writing:
            self._save_entries()

    def retire(self) -> None:
        """The step is published: keep what is known of it under another name, and of earlier ones only the newest."""
        self.save()
        with contextlib.suppress(OSError):
            self._path.replace(self._retired)
        others = self._retired.name.rpartition("-step_")[0]
        plans = sorted(self._path.parent.glob(f"{glob.escape(others)}-step_*.json"), key=_age_of_file, reverse=True)
        for old in [plan for plan in plans if plan != self._retired][PLANS_KEPT - 1 :]:
            with contextlib.suppress(OSError):
                old.unlink()

    def _save_entries(self) -> None:
        """Only for the holder of ``_writing``: who sends need not wait for the disk."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
            lines = [self._line_of_file(name, parts) for name, parts in unsaved.items()]
        try:
            if self._begun:
                _write_lines(self._path, "a", lines)
            else:
                self._begin_file(lines)
        except OSError as error:
            with self._lock:
                for name, parts in unsaved.items():
                    self._unsaved.setdefault(name, set()).update(parts)
            self.problem = (
                f"the plan {self._path} could not be written ({error.strerror}): had this publish been killed, the "
                "next would have begun anew"
            )
        else:
            self.problem = ""
        self._saved_at = time.monotonic()

    def _begin_file(self, lines: list[dict[str, Any]]) -> None:
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        try:
            make_folders(self._path.parent)
            _write_lines(temporary, "w", [{"format": FORMAT, "store": self._store_url}, *lines])
            temporary.rename(self._path)
            sync_folder(self._path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()  # a full disk has better use for what was written of it
            raise
        self._begun = True

    def _line_of_file(self, name: str, parts: set[int]) -> dict[str, Any]:
        entry = self._entries.get(name)
        return _fields_to_write(entry, parts) if entry is not None else {"forgotten": name}

    def _load_lines(self) -> dict[str, _Entry]:
        for path in (self._path, self._retired):
            try:
                head, *lines = [_parse_line(line) for line in path.read_text().split("\n") if line]
                if head == {"format": FORMAT, "store": self._store_url}:
                    return _join_entries(lines)
            except (OSError, ValueError):
                continue
        return {}


def _write_lines(path: Path, mode: str, lines: list[dict[str, Any]]) -> None:
    """Each line after a line's end, so that one that a kill or a full disk cut spoils no other."""
    with path.open(mode) as file:
        file.writelines(f"\n{json.dumps(line)}" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def _parse_line(line: str) -> dict[str, Any]:
    """One line; nothing when it was cut."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _join_entries(lines: Iterable[Mapping[str, Any]]) -> dict[str, _Entry]:
    """What all lines say together; of a file that was rewritten, what was said since."""
    found: dict[str, _Entry] = {}
    for line in lines:
        found.pop(str(line.get("forgotten")), None)
        try:
            entry = _parse_fields(line)
        except (ValueError, KeyError, TypeError):
            continue
        before = found.get(entry.wanted.name)
        if before is not None and before.wanted == entry.wanted:
            entry.found = before.found | entry.found
        found[entry.wanted.name] = entry
    return found


def _age_of_file(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _fields_to_write(entry: _Entry, parts: Iterable[int]) -> dict[str, Any]:
    """What to write of a file: these of its parts, and its id."""
    wanted = entry.wanted
    return {
        "name": wanted.name,
        "source": os.fsdecode(wanted.source),
        "size": wanted.identity.size,
        "mtime_ns": wanted.identity.mtime_ns,
        "inode": wanted.identity.inode,
        "part_size": wanted.part_size,
        "block_size": wanted.block_size,
        "parts": [[index, entry.found[index][0], base64.b64encode(entry.found[index][1]).decode()] for index in parts],
        "file_id": entry.file_id,
    }


def _parse_fields(fields: Mapping[str, Any]) -> _Entry:
    identity = Identity(int(fields["size"]), int(fields["mtime_ns"]), int(fields["inode"]))
    source, part_size, block_size = Path(str(fields["source"])), int(fields["part_size"]), int(fields["block_size"])
    return _Entry(
        Wanted(str(fields["name"]), source, identity, part_size, block_size),
        {int(index): (str(sha1), base64.b64decode(blocks, validate=True)) for index, sha1, blocks in fields["parts"]},
        str(fields["file_id"]),
    )
