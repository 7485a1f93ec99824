"""Notices that a person changed a configuration file on disk while a snapshot of it runs. Reported, never picked up."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from supervisor.core.facts import ConfigChanged, Fact

Signature = tuple[int, int, int, int]


class ConfigWatch:
    """Posts ``ConfigChanged`` once for each file that no longer has the content of its snapshot, or has it again.

    ``snapshots`` maps each original to the copy that the attempt reads (``StartRequest.configs``). A file that is gone
    at present is no changed file: editors replace files by renaming, and the snapshot is what runs anyway. Content is
    only read when the file's inode, size or times are others than at the last look. ``reported``: files of which the
    core already believes that they differ.
    """

    def __init__(self, snapshots: Mapping[Path, Path], reported: Collection[str] = ()) -> None:
        self._snapshots = dict(snapshots)
        self._hashes: dict[Path, bytes] = {}
        self._seen: dict[Path, tuple[Signature, bool]] = {}
        self._reported = {path for path in snapshots if str(path) in reported}

    def look(self) -> Sequence[Fact]:
        facts = []
        for path in self._snapshots:
            differs = self._differs(path)
            if differs is not None and differs != (path in self._reported):
                self._reported ^= {path}
                facts.append(ConfigChanged(str(path), same=not differs))
        return sorted(facts, key=lambda fact: fact.path)

    def _differs(self, path: Path) -> bool | None:
        try:
            look = path.stat()
            signature = (look.st_ino, look.st_size, look.st_mtime_ns, look.st_ctime_ns)
            if path in self._seen and self._seen[path][0] == signature:
                return self._seen[path][1]
            if path not in self._hashes:
                self._hashes[path] = _hash(self._snapshots[path])
            same = _hash(path) == self._hashes[path]
        except OSError:
            return None  # missing or unreadable at present, see the class's text
        self._seen[path] = signature, not same
        return not same


def _hash(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
