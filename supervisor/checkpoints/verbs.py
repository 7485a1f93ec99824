"""What the transfer child can be asked: one dataclass a verb, which the daemon writes and the child reads.

On the wire a request is one JSON object: {"do": VERB, "run_id": str, "store": {...}} and the fields of the verb's
class. Each class says what the answer's "ok" object holds.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Self, dataclass_transform

from supervisor.base.records import dataclass

VERBS: dict[str, type[Verb]] = {}
RESTORING, JOURNAL = ".restoring-", ".journal"
"""Beside a step's place: what is being fetched, and how far that has come (NAME.journal)."""
_COMPLETING = threading.Lock()


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Verb:
    """A request about a run and its store. Each subclass is a frozen dataclass once ``as_dataclass`` was called."""

    name: ClassVar[str]
    urgent: bool = False  # asked for when a pod is about to go, perhaps in seconds: training does not come first then

    def __init_subclass__(cls, do: str = "") -> None:
        if do:
            cls.name = do
            VERBS[do] = cls

    @classmethod
    def as_dataclass(cls) -> type[Self]:
        with _COMPLETING:  # only now: a child carries out one verb, and all of them were a tenth of its start
            for one in reversed(cls.__mro__[:-2]):
                if "__dataclass_fields__" not in vars(one):
                    dataclass(frozen=True, kw_only=True)(one)
        return cls


class Signed(Verb):
    """With ``generation`` the child looks if ``writer`` still holds it, before each manifest, pointer and delete."""

    generation: int | None = None
    writer: str = ""


class Publish(Signed, do="publish"):
    """ok: the fields of ``publish.Published``."""

    step: int
    files: list[dict[str, str]]  # {"source": path, "name": name in the step}
    state_dir: str
    wandb_run_id: str = ""
    allow_back: bool = False
    reread: bool = False
    extra: Mapping[str, str | float | None] | None = None  # dialect, revision, config_sha256, step_base, reward


class Restore(Verb, do="restore"):
    """ok: the fields of ``restore.Restored``."""

    step: int
    output_dir: str
    place: dict[str, str]  # {"primary": the step's folder below output_dir}
    in_part: bool = False  # the step may be here in part: what has the right bytes stays


class Catalogue(Verb, do="catalogue"):
    """ok: steps [``StepInfo``] ascending, latest (``Latest`` and "legacy") | null, latest_problem,
    happened [``Entry``], pinned [step], reading [step], pins_problem, held [step], holds [``Hold``].
    """


class Delete(Signed, do="delete"):
    """ok: freed_bytes."""

    step: int


class PutLogs(Signed, do="put-logs"):
    """ok: sent."""

    journal: str
    attempt: int
    logs: dict[str, str]  # by name base64 of gzip


class ListLogs(Verb, do="list-logs"):
    """ok: logs [{"journal", "attempt", "name", "size_bytes", "uploaded_at"}]."""


class GetLogs(Verb, do="get-logs"):
    """ok: logs {"JOURNAL/NAME": text}, in lines of their own. ``only``: of those with this name."""

    attempt: int
    only: str = ""


class Verify(Verb, do="verify"):
    """ok: the fields of ``scrub.Scrubbed``, and damaged. ``deep``: the percentage of bytes to read again."""

    step: int | None = None
    deep: float = 0.0
    seed: int = 0


class Pin(Signed, do="pin"):
    """ok: pinned [step]."""

    step: int
    pinned: bool


class HoldSteps(Signed, do="hold"):
    """ok: nothing."""

    steps: list[int]
    holds: list[object]  # as the catalogue answers


class LookAtClaim(Verb, do="standing"):
    """ok: the fields of ``claims.Standing``."""


class Claim(Verb, do="claim"):
    """ok: as "standing"."""

    writer: str
    settle_s: float
    label: str = ""  # of this pod, as a fleet named it
    take_over: bool = False
    held: int = 0  # the highest generation that this pod held before
    over: dict[str, Any] | None = None  # what "standing" answered


class Beat(Verb, do="beat"):
    """ok: as "standing". ``state_dir``: where this pod's publishes have their lock."""

    writer: str
    generation: int
    count: int
    state_dir: str | None = None
    urgent: bool = False
    about: dict[str, Any] | None = None  # what it says besides: the pod's label, and ``Sights.beat``


class Leave(Verb, do="leave"):
    """ok: as "standing"."""

    writer: str
    generation: int
    urgent: bool = True


class PutHeartbeat(Signed, do="put-heartbeat"):
    """ok: nothing."""

    heartbeat: dict[str, Any]


class Release(Verb, do="release"):
    """ok: nothing."""

    writer: str
    generation: int
    urgent: bool = True
    code: int | None = None  # how the daemon ends, and why
    reason: str = ""
    about: dict[str, Any] | None = None  # as of a beat


class KeepLineage(Signed, do="lineage"):
    """ok: lineage, pointer (the step that it was moved to) | null."""

    happened: list[object]  # {"kind", "step", "wall", "why"}


class PutRunFiles(Signed, do="put-run-files"):
    """ok: sent."""

    files: dict[str, str]  # by name base64


class GetRunFiles(Verb, do="get-run-files"):
    """ok: files {NAME: base64}, in lines of their own."""


class PutRecord(Verb, do="put-record"):
    """ok: nothing."""

    journal: str
    record: str  # base64


class GetRecords(Verb, do="get-records"):
    """ok: records {JOURNAL: base64}."""


class Sweep(Signed, do="sweep"):
    """ok: cancelled. Unfinished uploads of ``step``; without one, of the whole run but for the steps in ``spare``."""

    step: int | None = None
    spare: list[int] | None = None


class Drain(Verb, do="drain"):
    """ok: the fields of ``drain.Drained``. Of this machine alone: no store is opened."""

    source: str
    target: str
    staging: str  # on the target's file system
    urgent: bool = False


@dataclass(frozen=True, kw_only=True)
class StorePlace:
    """Where the run's store is; its keys are never in a request."""

    url: str
    realm: str | None = None
    region: str | None = None
    streams: int = 16
    part_size: int | None = None
    limit_mbit: float | None = None


@dataclass(frozen=True)
class Request:
    run_id: str
    store: StorePlace
    verb: Verb

    def as_json(self) -> dict[str, Any]:
        """One object; nothing in it is copied."""
        return {"do": self.verb.name, "run_id": self.run_id, "store": vars(self.store), **vars(self.verb)}
