"""The bundles that are there: which may go, and what of them goes to the store."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shutil
import zlib
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from supervisor.base.records import dataclass
from supervisor.checkpoints.log_packing import LOG_LIMIT, UNPACKED_LIMIT, pack
from supervisor.evidence.known import MANIFEST, TRACE

OF_A_BUNDLE, TRACE_ENDING = "incident-", "-trace.jsonl"  # names in the store
MANIFEST_BYTES = 4 << 20
MOST_SENT = 5  # bundles of one attempt that leave the pod
SENT_FILE_BYTES = 256 << 10  # of one file in what is sent
NEWEST_OF_OPEN = 3
_NAME = re.compile(r"([0-9]{1,9})-attempt-([0-9]{1,9})(?:-([0-9]{1,2}))?")
_FIRST = ("reason.txt", "processes.txt", "stacks.txt", "explain.json", "engine.txt", "gpu.json", "kernel.txt")
_LAST = (MANIFEST, "gpu-samples.csv", "engine-metrics-before.txt", "commands.txt")


@dataclass(frozen=True)
class Kept:
    """One bundle on the disk. ``manifest`` is empty where it was not finished, or is damaged."""

    folder: Path
    incident: int
    attempt: int
    number: int
    manifest: dict[str, Any]
    size_bytes: int
    changed: float  # Unix time

    @property
    def journal(self) -> str:
        """Identity of the journal that counted the incident, "" where it is not told."""
        return str(self.manifest.get("journal") or "")


def bundles(parent: Path) -> list[Kept]:
    """All, oldest first; what is no bundle of ours is left out."""
    found = []
    with contextlib.suppress(OSError):
        for folder in parent.iterdir():
            match = _NAME.fullmatch(folder.name)
            if match is None or folder.is_symlink() or not folder.is_dir():
                continue
            with contextlib.suppress(OSError):
                size = sum(file.lstat().st_size for file in folder.iterdir())
                changed = folder.stat().st_mtime
                number = int(match[3] or 1)
                found.append(Kept(folder, int(match[1]), int(match[2]), number, _read_manifest(folder), size, changed))
    return sorted(found, key=lambda one: (one.attempt, one.changed, one.number))


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        with (folder / MANIFEST).open("rb") as file:
            value = json.loads(file.read(MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def forget_bundles(parent: Path, keep: int, max_bytes: int, open_incident: int | None, journal: str = "") -> list[Path]:
    """Delete the oldest until ``keep`` bundles of ``max_bytes`` together are left; returns what was deleted.

    Those of the open incident never go, but for one thing: of an incident that goes on through many attempts the first
    bundle and the newest three stay whatever the limits say, and what is between them goes when all others are gone.
    """
    there = bundles(parent)
    mine = [one for one in there if one.incident == open_incident and one.journal in ("", journal)]
    spared = {one.folder for one in (*mine[:1], *mine[-NEWEST_OF_OPEN:])}
    candidates = [one for one in there if one not in mine] + [one for one in mine if one.folder not in spared]
    count, total = len(there), sum(one.size_bytes for one in there)
    deleted = []
    for one in candidates:
        if count <= keep and total <= max_bytes:
            break
        shutil.rmtree(one.folder, ignore_errors=True)
        if not one.folder.exists():
            count, total = count - 1, total - one.size_bytes
            deleted.append(one.folder)
    return deleted


# ---------------------------------------------------------------- for the store


def to_send(parent: Path, attempt: int, sent: Container[str] = ()) -> dict[str, str]:
    """By name: each of the attempt's newest bundles as one text, and its trace, within what a log in the store may be.

    ``sent``: names that are there already; a finished bundle never changes.
    """
    mine = [one for one in bundles(parent) if one.attempt == attempt and one.manifest][-MOST_SENT:]
    texts = {}
    for one in mine:
        name = f"{OF_A_BUNDLE}{one.incident}" + (f"-{one.number}" if one.number > 1 else "")
        if f"{name}.txt" in sent:
            continue
        texts[f"{name}.txt"] = _digest_of_bundle(one.folder)
        with contextlib.suppress(OSError, EOFError, zlib.error, UnicodeDecodeError):
            with gzip.open(one.folder / TRACE, "rb") as file:
                data = file.read(UNPACKED_LIMIT + 1)
            # Half a trace cannot be read.
            if len(data) <= UNPACKED_LIMIT and len(pack(text := data.decode())) <= LOG_LIMIT:
                texts[f"{name}{TRACE_ENDING}"] = text
    return texts


def _digest_of_bundle(folder: Path) -> str:
    """All texts of a bundle one after the other, those that matter most first; what does not fit is named."""
    texts, left_out = [], []
    size = packed = 0
    for path in _in_order([path for path in folder.iterdir() if path.is_file() and path.name != TRACE]):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        cut = data[-SENT_FILE_BYTES:] if path.suffix == ".log" else data[:SENT_FILE_BYTES]
        text = f"==> {path.name} <==\n{cut.decode(errors='replace')}\n"
        small = len(pack(text))
        if size + len(text.encode()) > UNPACKED_LIMIT - 65536 or packed + small > LOG_LIMIT - 65536:
            left_out.append(path.name)
            continue
        size, packed = size + len(text.encode()), packed + small
        texts.append(text)
    if left_out:
        texts.append(f"Left out, since a log in the store has its limits: {', '.join(left_out)}.\n")
    return "".join(texts)


def _in_order(paths: Sequence[Path]) -> list[Path]:
    def rank(path: Path) -> tuple[int, str]:
        if path.name in _FIRST:
            return _FIRST.index(path.name), ""
        return (100 + _LAST.index(path.name) if path.name in _LAST else 50), path.name

    return sorted(paths, key=rank)
