"""The records of a published run: ``manifest.json``, which commits a step, and ``latest.json``, which points at one.

Nothing that is read here is trusted: both come from a store that others can write to. Every field has a type, a range
and a limit; what does not fit makes the step "damaged", never a crash and never a path outside the step.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from typing import Any

from supervisor.base.records import dataclass
from supervisor.storage.base import Part, StoreError
from supervisor.storage.hashing import part_ranges
from supervisor.storage.names import RUN_ID, name_problem

FORMAT = 1
MANIFEST = "manifest.json"
LATEST = "latest.json"
MANIFEST_LIMIT = 64 << 20  # bytes
BLOCKS_LIMIT = 64 << 20  # of all block hashes of a step: those of 4 TB
LATEST_LIMIT = 64 << 10
MOST_FILES = 200_000
LARGEST = 1 << 50  # bytes of one file
STEP = re.compile(r"step_([0-9]{1,9})")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_XXH3 = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def step_folder(run_id: str, step: int) -> str:
    """Prefix of a step's objects, '/' at its end. Raises kind "permanent" on a run id that is no plain name."""
    return f"{run_folder(run_id)}step_{step}/"


def run_folder(run_id: str) -> str:
    """Prefix of a run's objects, '/' at its end."""
    if not RUN_ID.fullmatch(run_id):
        raise StoreError("permanent", f"{run_id!r} is no run id: letters, digits, '.', '_' and '-', at most 100")
    return f"{run_id}/"


def now() -> str:
    """Wall time for people, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---------------------------------------------------------------- manifest.json


@dataclass(frozen=True)
class ManifestFile:
    """One file of a step, as the manifest has it: the fields are those of its entry there.

    ``path`` is relative to the step's folder in the store; hashes are of parts, in order.
    """

    path: str
    size: int
    file_id: str
    part_size: int
    part_sha1: tuple[str, ...]
    sha1: str | None = None  # of the whole file, where it is one part
    block_size: int = 0  # 0: an older version wrote the manifest, which knew no blocks
    xxh3: str = ""  # of the whole file, see ``blocks.whole_hash``
    blocks_at: int | None = None  # where the hashes of its blocks begin in ``manifest.blocks``

    def parts(self) -> tuple[Part, ...]:
        """The file's parts with their hashes."""
        ranges = part_ranges(self.size, self.part_size)
        return tuple(Part(offset, size, sha1) for (offset, size), sha1 in zip(ranges, self.part_sha1, strict=True))

    def content(self) -> tuple[object, ...]:
        """What makes two entries the same file, wherever it is stored."""
        return (self.path, self.size, self.part_size, self.part_sha1)


@dataclass(frozen=True)
class BlocksObject:
    """``manifest.blocks``: hashes of small blocks, for the next step to tell what it shares with this one.

    The fields are those of its entry in the manifest.
    """

    file_id: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """The commit record of a step: it is written after every file was confirmed, and deleted before any of them."""

    run_id: str
    step: int
    writer: str
    files: tuple[ManifestFile, ...]
    generation: int = 0  # of the pod that published it, see ``claims``
    lineage: int = 0  # see ``lineage``: what happened to the run later may leave this step
    dialect: str = ""
    revision: str = ""
    config_sha256: str = ""
    step_base: int | None = None  # number of the run's first step, where the trainer says so
    reward: float | None = None  # of the step, where it was known when it was published
    blocks: BlocksObject | None = None
    created: str = field(default_factory=now)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        """JSON as it is stored."""
        return _dump_json(
            {
                "format": FORMAT,
                "run_id": self.run_id,
                "step": self.step,
                "generation": self.generation,
                "lineage": self.lineage,
                "writer": self.writer,
                "created": self.created,
                "dialect": self.dialect,
                "revision": self.revision,
                "config_sha256": self.config_sha256,
                "step_base": self.step_base,
                "reward": self.reward,
                "total_bytes": self.total_bytes,
                "blocks": vars(self.blocks) if self.blocks else None,
                "files": [vars(file) for file in self.files],
            }
        )


def parse_manifest(data: bytes, run_id: str, step: int) -> Manifest:
    """Read the manifest of ``step``. Raises kind "damaged" with what is wrong in it."""
    where = f"{MANIFEST} of step {step} of {run_id}"
    fields = _Fields(_load_json(data, where), where)
    version = fields.integer("format", 1, 1 << 31)
    if version != FORMAT:
        raise StoreError("damaged", f"{where} has format {version}, and this version reads format {FORMAT}: upgrade it")
    if fields.text("run_id") != run_id or fields.integer("step", 0, 10**9) != step:
        raise fields.wrong("it is of another run or step")
    entries = fields.values.get("files")
    if not isinstance(entries, list) or not 0 < len(entries) <= MOST_FILES:
        raise fields.wrong("files is no list of a sensible length")
    files = tuple(parse_file(entry, where) for entry in entries)
    check_paths([file.path for file in files], where)
    step_base = fields.values.get("step_base")
    reward = fields.values.get("reward")
    manifest = Manifest(
        run_id=run_id,
        step=step,
        writer=fields.text("writer", default=""),
        files=files,
        generation=fields.integer("generation", 0, 1 << 53),
        lineage=fields.integer("lineage", 0, 1 << 53) if "lineage" in fields.values else 0,
        dialect=fields.text("dialect", default=""),
        revision=fields.text("revision", default=""),
        config_sha256=fields.text("config_sha256", default=""),
        step_base=step_base if type(step_base) is int else None,
        reward=float(reward) if isinstance(reward, float) and math.isfinite(reward) else None,
        blocks=_parse_blocks(fields),
        created=fields.text("created", default=""),
    )
    if manifest.total_bytes != fields.integer("total_bytes", 0, 1 << 60):
        raise fields.wrong("total_bytes is not the sum of the files")
    return manifest


def parse_file(entry: object, where: str) -> ManifestFile:
    """One entry of ``files``. Raises kind "damaged"."""
    if not isinstance(entry, dict):
        raise StoreError("damaged", f"{where} is damaged: a file is no object")
    fields = _Fields(entry, where)
    path = fields.text("path", longest=1024)
    fields.where = f"{where} (file {path!r})"
    size = fields.integer("size", 0, LARGEST)
    part_size = fields.integer("part_size", 1, LARGEST)
    hashes = entry.get("part_sha1")
    expected = max(1, -(-size // part_size))
    if not isinstance(hashes, list) or len(hashes) != expected:
        raise fields.wrong(f"it needs {expected} part hashes")
    if not all(isinstance(sha1, str) and _SHA1.fullmatch(sha1) for sha1 in hashes):
        raise fields.wrong("a part hash is no SHA-1")
    sha1 = entry.get("sha1")
    if sha1 is not None and not (isinstance(sha1, str) and _SHA1.fullmatch(sha1)):
        raise fields.wrong("sha1 is no SHA-1")
    block_size = fields.integer("block_size", 0, LARGEST) if "block_size" in entry else 0
    xxh3 = fields.text("xxh3", default="")
    if xxh3 and not _XXH3.fullmatch(xxh3):
        raise fields.wrong("xxh3 is no XXH3 of 128 bits")
    blocks_at = None if entry.get("blocks_at") is None else fields.integer("blocks_at", 0, BLOCKS_LIMIT)
    return ManifestFile(path, size, fields.text("file_id"), part_size, tuple(hashes), sha1, block_size, xxh3, blocks_at)


def _parse_blocks(fields: _Fields) -> BlocksObject | None:
    entry = fields.values.get("blocks")
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise fields.wrong("blocks is no object")
    inner = _Fields(entry, f"{fields.where} (blocks)")
    return BlocksObject(inner.text("file_id"), inner.integer("size", 0, BLOCKS_LIMIT))


def check_paths(paths: Sequence[str], where: str) -> None:
    """Refuse names that leave the step's folder, that are there twice, or that are a file and a folder at once."""
    seen: set[str] = set()
    for path in paths:
        problem = name_problem(path)
        if problem:
            raise StoreError("damaged", f"{where} is refused: the name {path[:200]!r} cannot be used, {problem}")
        if path in seen:
            raise StoreError("damaged", f"{where} is refused: it names {path[:200]!r} twice")
        seen.add(path)
    for path in paths:
        parent = path
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            if parent in seen:
                raise StoreError("damaged", f"{where} is refused: {parent!r} is a file and a folder at once")


# ---------------------------------------------------------------- latest.json


@dataclass(frozen=True)
class Latest:
    """The pointer. The original scripts wrote the first four fields only; theirs is ``legacy``."""

    step: int
    run_id: str
    wandb_run_id: str = ""
    timestamp: str = field(default_factory=now)
    generation: int = 0
    writer: str = ""
    manifest_file_id: str = ""
    manifest_sha256: str = ""
    lineage: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Of several versions of the pointer the highest counts, whichever was written last."""
        return (self.generation, self.lineage, self.step)

    @property
    def legacy(self) -> bool:
        """True when the original scripts wrote it: no manifest stands behind it."""
        return not self.manifest_sha256

    def to_bytes(self) -> bytes:
        """JSON as it is stored, the original fields first."""
        return _dump_json(
            {
                "step": f"step_{self.step}",
                "run_id": self.run_id,
                "wandb_run_id": self.wandb_run_id,
                "timestamp": self.timestamp,
                "step_number": self.step,
                "generation": self.generation,
                "lineage": self.lineage,
                "writer": self.writer,
                "manifest_file_id": self.manifest_file_id,
                "manifest_sha256": self.manifest_sha256,
            }
        )


def parse_latest(data: bytes, run_id: str) -> Latest:
    """Read the pointer, ours or the original scripts'. Raises kind "damaged"."""
    where = f"{LATEST} of {run_id}"
    fields = _Fields(_load_json(data, where), where)
    match = STEP.fullmatch(fields.text("step"))
    if match is None:
        raise fields.wrong(f"step is {fields.text('step')!r}, not like 'step_20'")
    step = int(match[1])
    if fields.text("run_id", default=run_id) != run_id:
        raise fields.wrong(f"it is of the run {fields.text('run_id')!r}")
    sha256 = fields.text("manifest_sha256", default="")
    if sha256 and not _SHA256.fullmatch(sha256):
        raise fields.wrong("manifest_sha256 is no SHA-256")
    if sha256 and fields.integer("step_number", 0, 10**9) != step:
        raise fields.wrong("step and step_number differ")
    wandb, timestamp = fields.values.get("wandb_run_id"), fields.values.get("timestamp")
    return Latest(
        step=step,
        run_id=run_id,
        wandb_run_id=wandb if isinstance(wandb, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wandb) else "",
        timestamp=str(timestamp)[:64] if isinstance(timestamp, (str, int, float)) else "",
        generation=fields.integer("generation", 0, 1 << 53) if sha256 else 0,
        writer=fields.text("writer", default="") if sha256 else "",
        manifest_file_id=fields.text("manifest_file_id", default="") if sha256 else "",
        manifest_sha256=sha256,
        lineage=fields.integer("lineage", 0, 1 << 53) if sha256 and "lineage" in fields.values else 0,
    )


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


# ---------------------------------------------------------------- strict reading


class _Fields:
    """Typed access to an untrusted JSON object."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def wrong(self, what: str) -> StoreError:
        return StoreError("damaged", f"{self.where} is damaged: {what}")

    def text(self, name: str, default: str | None = None, longest: int = 512) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str) or len(value) > longest or not _check_encodable(value):
            raise self.wrong(f"{name} is missing or no text of at most {longest} characters")
        return value

    def integer(self, name: str, least: int, most: int) -> int:
        value = self.values.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(f"{name} is missing or no whole number from {least} to {most}")
        return value


def _check_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        return False
    return True


def _load_json(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError("damaged", f"{where} is damaged: it is no JSON ({str(error)[:100]})") from error
    if not isinstance(value, dict):
        raise StoreError("damaged", f"{where} is damaged: it is no JSON object")
    return value


def _dump_json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"
