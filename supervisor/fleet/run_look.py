"""What a run's own store says of it: who holds it, its last beat or last words, and the newest published step."""

from __future__ import annotations

import json
import re
from typing import Any

from supervisor.base.errors import StoreError
from supervisor.base.secrets import printable
from supervisor.checkpoints import claims
from supervisor.checkpoints.manifest import MANIFEST, run_folder, step_folder
from supervisor.checkpoints.records import get_listed, newest_manifest, read_latest, versions_of
from supervisor.fleet.controller import RunLook
from supervisor.fleet.model import Claim
from supervisor.storage.base import Store, StoredFile

MOST_STEPS = 64
_SHARD = re.compile(r"(?:^|/)__(\d{1,5})_\d{1,5}\.distcp")
LONGEST_TEXT = 300


def look_at_run(store: Store, run_id: str) -> RunLook:
    """The claim with its newest beat, and the newest published step. Raises StoreError.

    Beats are written by pods on hosts that are not trusted: a field that is malformed is as one that is absent.
    """
    latest = read_latest(store, run_id)
    published = None if latest is None else latest.step
    standing, files = claims.look_with_files(store, run_id)
    if standing.generation == 0:
        return RunLook(Claim(), published)
    stem = f"{run_folder(run_id)}{claims.WRITERS}gen_{standing.generation:05d}"
    at = 0.0
    told: dict[str, Any] = {}
    for kind in ("", ".beat", ".end"):
        found = _read_newest(store, [file for file in files if file.name == f"{stem}{kind}.json"])
        if found is not None:
            at, told = max(at, found[0]), told | found[1]
    return RunLook(
        Claim(
            generation=standing.generation,
            mark=standing.mark,
            beat_at=at,
            released=standing.released,
            code=_read_count(told.get("code")) if standing.released else None,
            reason=_read_text(told.get("reason")) if standing.released else "",
            label=_read_text(told.get("label")),
            step=_read_count(told.get("step")),
            unpublished=_read_steps(told.get("unpublished")),
        ),
        published,
    )


def read_ranks(store: Store, run_id: str) -> int | None:
    """Trainer processes that wrote the newest published step, by its shards; None where it has none. Raises StoreError.

    A torch distributed checkpoint has ``__R_I.distcp`` for process R.
    """
    latest = read_latest(store, run_id)
    if latest is None or latest.legacy:
        return None
    name = f"{step_folder(run_id, latest.step)}{MANIFEST}"
    manifest = newest_manifest(store, run_id, latest.step, versions_of(store, name))[1]
    ranks = [int(found[1]) for file in manifest.files if (found := _SHARD.search(file.path))]
    return max(ranks) + 1 if ranks else None


def _read_newest(store: Store, versions: list[StoredFile]) -> tuple[float, dict[str, Any]] | None:
    """When it was uploaded, by the store's clock, and what it says; None where there is none."""
    if not versions:
        return None
    try:
        value = json.loads(get_listed(store, versions[0].name, claims.CLAIM_LIMIT, versions[0].file_id))
    except StoreError as error:
        if error.kind not in ("missing", "damaged"):
            raise
        value = None
    except (ValueError, RecursionError):
        value = None
    return versions[0].uploaded_at, value if isinstance(value, dict) else {}


def _read_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12 else None


def _read_steps(value: object) -> tuple[int, ...] | None:
    """Steps; None where one of them is none: unknown is not empty."""
    if not isinstance(value, list) or len(value) > MOST_STEPS:
        return None
    steps = [step for one in value if (step := _read_count(one)) is not None]
    return tuple(steps) if len(steps) == len(value) else None


def _read_text(value: object) -> str:
    return printable(value)[:LONGEST_TEXT] if isinstance(value, str) else ""
