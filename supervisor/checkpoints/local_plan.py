"""What a publish knows of its sources, kept on the local disk so that a killed one need not begin again.

Part hashes of a file are good while its size, mtime and inode are the same. Losing the plan costs reading time only.
"""

from __future__ import annotations

import base64
import glob
import json
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.storage.base import Part, StoreError

FORMAT = 2
SAVE_EVERY_S = 1.0
PLANS_KEPT = 3
"""Of published steps: publishing one of them again then reads none of its bytes."""


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
class Hashed:
    """A source with the hashes of its parts and blocks; ``file_id`` once the store confirmed all of it."""

    name: str
    source: Path
    identity: Identity
    part_size: int
    parts: tuple[Part, ...]
    block_size: int
    blocks: bytes = b""
    file_id: str = ""


class LocalPlan:
    """The plan file of one step's publish: read leniently (any doubt means: hash again), written by rename."""

    def __init__(self, path: Path, store_url: str) -> None:
        self._path = path
        self._retired = path.with_name(path.name.replace("publish-", "published-", 1))
        self._store_url = store_url
        self._lock = threading.Lock()
        self._saved_at = 0.0
        self._entries: dict[str, Hashed] = self._load()

    def known(self, wanted: Hashed) -> Hashed | None:
        """The entry of a file when it still describes what is on disk, cut as ``wanted``."""
        entry = self._entries.get(wanted.name)
        if entry and replace(entry, parts=(), blocks=b"", file_id="") == wanted:
            return entry
        return None

    def remember(self, entry: Hashed) -> None:
        """Keep an entry; written to disk at most once a second, and by ``save``."""
        with self._lock:
            self._entries[entry.name] = entry
            if time.monotonic() - self._saved_at >= SAVE_EVERY_S:
                self._save()

    def confirm(self, entry: Hashed, file_id: str) -> Hashed:
        """The store confirmed the whole file as ``file_id``."""
        confirmed = replace(entry, file_id=file_id)
        self.remember(confirmed)
        return confirmed

    def forget(self, name: str) -> None:
        """The file changed: what we knew of it is wrong."""
        with self._lock:
            self._entries.pop(name, None)
            self._save()

    def save(self) -> None:
        """Write everything that is known."""
        with self._lock:
            self._save()

    def retire(self) -> None:
        """The step is published: keep what is known of it under another name, and of earlier ones only the newest."""
        self.save()
        self._path.replace(self._retired)
        others = self._retired.name.rpartition("-step_")[0]
        plans = sorted(self._path.parent.glob(f"{glob.escape(others)}-step_*.json"), key=_age, reverse=True)
        for old in [plan for plan in plans if plan != self._retired][PLANS_KEPT - 1 :]:
            old.unlink(missing_ok=True)

    def _save(self) -> None:
        document = {
            "format": FORMAT,
            "store": self._store_url,
            "files": [
                {
                    "name": entry.name,
                    "source": os.fsdecode(entry.source),
                    "size": entry.identity.size,
                    "mtime_ns": entry.identity.mtime_ns,
                    "inode": entry.identity.inode,
                    "part_size": entry.part_size,
                    "parts": [[part.offset, part.size, part.sha1] for part in entry.parts],
                    "block_size": entry.block_size,
                    "blocks": base64.b64encode(entry.blocks).decode(),
                    "file_id": entry.file_id,
                }
                for entry in self._entries.values()
            ],
        }
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        try:
            with temporary.open("w") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self._path)
        except OSError as error:
            raise StoreError(
                "permanent",
                f"the plan {self._path} cannot be written ({error.strerror}): free space there, or allow it",
            ) from error
        self._saved_at = time.monotonic()

    def _load(self) -> dict[str, Hashed]:
        for path in (self._path, self._retired):
            try:
                document = json.loads(path.read_text())
                if document["format"] == FORMAT and document["store"] == self._store_url:
                    return {entry["name"]: _hashed(entry) for entry in document["files"]}
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return {}


def _age(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _hashed(fields: dict[str, Any]) -> Hashed:
    return Hashed(
        name=str(fields["name"]),
        source=Path(str(fields["source"])),
        identity=Identity(int(fields["size"]), int(fields["mtime_ns"]), int(fields["inode"])),
        part_size=int(fields["part_size"]),
        parts=tuple(Part(int(offset), int(size), str(sha1)) for offset, size, sha1 in fields["parts"]),
        block_size=int(fields["block_size"]),
        blocks=base64.b64decode(fields["blocks"], validate=True),
        file_id=str(fields["file_id"]),
    )
