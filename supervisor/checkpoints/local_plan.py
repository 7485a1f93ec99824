"""What a publish knows of its sources, kept on the local disk so that a killed one need not begin again.

Part hashes of a file are good while its size, mtime and inode are the same. A file's id in the store is written down
before the store is asked to make an object of its parts: whoever finds that id in the listing knows its bytes by the
hashes beside it. Losing the plan costs reading, and sending the files again whose hash no listing tells. So a disk that
takes no plan stops no publish: that is what makes local steps superfluous, and frees the disk.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.storage.base import StoreError

FORMAT = 3
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
        if not _is_plain(status):
            raise StoreError("changed", f"{path} is no plain file (a link, a folder or a device): it is not published")
        return Identity(status.st_size, status.st_mtime_ns, status.st_ino)


def _is_plain(status: os.stat_result) -> bool:
    return (status.st_mode & 0o170000) == 0o100000


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
    """The plan file of one step's publish: read leniently (any doubt means: hash again), written by rename.

    ``problem``: why it could not be written the last time, "" when it could. Nothing here raises for that.
    """

    def __init__(self, path: Path, store_url: str) -> None:
        self._path = path
        self._retired = path.with_name(path.name.replace("publish-", "published-", 1))
        self._store_url = store_url
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._saved_at = 0.0
        self.problem = ""
        self._entries: dict[str, _Entry] = self._load()

    def known(self, wanted: Wanted) -> tuple[Mapping[int, Found], str]:
        """Hashes of the file's parts by index, and its id in the store ("" when it never was about to have one).

        Nothing of it when the file on disk is another one by now, or is cut otherwise.
        """
        with self._lock:
            entry = self._entries.get(wanted.name)
            if entry is None or entry.wanted != wanted:
                entry = self._entries[wanted.name] = _Entry(wanted)
            return dict(entry.found), entry.file_id

    def remember(self, wanted: Wanted, index: int, found: Found) -> None:
        """Keep the hashes of a part; written to disk at most once a second, and by ``save``."""
        with self._lock:
            entry = self._entries.get(wanted.name)
            if entry is None or entry.wanted != wanted:
                return  # forgotten: the file changed
            entry.found[index] = found
            due = time.monotonic() - self._saved_at >= SAVE_EVERY_S
        if due and self._writing.acquire(blocking=False):
            try:
                self._save()
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
        if now:
            self.save()

    def forget(self, name: str) -> None:
        """The file changed: what we knew of it is wrong."""
        with self._lock:
            self._entries.pop(name, None)
        self.save()

    def save(self) -> None:
        """Write everything that is known."""
        with self._writing:
            self._save()

    def retire(self) -> None:
        """The step is published: keep what is known of it under another name, and of earlier ones only the newest."""
        self.save()
        with contextlib.suppress(OSError):
            self._path.replace(self._retired)
        others = self._retired.name.rpartition("-step_")[0]
        plans = sorted(self._path.parent.glob(f"{glob.escape(others)}-step_*.json"), key=_age, reverse=True)
        for old in [plan for plan in plans if plan != self._retired][PLANS_KEPT - 1 :]:
            with contextlib.suppress(OSError):
                old.unlink()

    def _save(self) -> None:
        """Only for the holder of ``_writing``: who sends need not wait for the disk."""
        with self._lock:
            document = {
                "format": FORMAT,
                "store": self._store_url,
                "files": [_fields(entry) for entry in self._entries.values()],
            }
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        try:
            _make_folder(self._path.parent)
            with temporary.open("w") as file:
                file.write(json.dumps(document))
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self._path)
            _fsync_folder(self._path.parent)
        except OSError as error:
            self.problem = (
                f"the plan {self._path} could not be written ({error.strerror}): had this publish been killed, the "
                "next would have begun anew"
            )
            with contextlib.suppress(OSError):
                temporary.unlink()  # a full disk has better use for what was written of it
        else:
            self.problem = ""
        self._saved_at = time.monotonic()

    def _load(self) -> dict[str, _Entry]:
        for path in (self._path, self._retired):
            try:
                document = json.loads(path.read_text())
                if document["format"] == FORMAT and document["store"] == self._store_url:
                    return {entry["name"]: _entry(entry) for entry in document["files"]}
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return {}


def _make_folder(folder: Path) -> None:
    """With all folders above it that are missing, and so that it is still there after a power cut."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        _fsync_folder(place.parent)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _age(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _fields(entry: _Entry) -> dict[str, Any]:
    wanted = entry.wanted
    return {
        "name": wanted.name,
        "source": os.fsdecode(wanted.source),
        "size": wanted.identity.size,
        "mtime_ns": wanted.identity.mtime_ns,
        "inode": wanted.identity.inode,
        "part_size": wanted.part_size,
        "block_size": wanted.block_size,
        "parts": [[index, sha1, base64.b64encode(blocks).decode()] for index, (sha1, blocks) in entry.found.items()],
        "file_id": entry.file_id,
    }


def _entry(fields: dict[str, Any]) -> _Entry:
    identity = Identity(int(fields["size"]), int(fields["mtime_ns"]), int(fields["inode"]))
    source, part_size, block_size = Path(str(fields["source"])), int(fields["part_size"]), int(fields["block_size"])
    return _Entry(
        Wanted(str(fields["name"]), source, identity, part_size, block_size),
        {int(index): (str(sha1), base64.b64decode(blocks, validate=True)) for index, sha1, blocks in fields["parts"]},
        str(fields["file_id"]),
    )
