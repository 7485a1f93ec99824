"""What a controller remembers, in the store under the fleet's own folder, where no pod's key reaches.

``{fleet}/writers/`` says which controller tends the fleet, by the same claims as a pod's (``checkpoints.claims``): two
at once are harmless. ``{fleet}/state/{run}.json`` is a run's state with what was said of it, and
``{fleet}/orders/{run}.json`` what a person wants, which any machine may write. ``{fleet}/messages.json`` is what waits
to be sent to people, and what was. Ages are differences of upload times by the store's own clock: a controller that
runs as a cron has no clock that lasts from one tick to the next.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from supervisor.base.errors import StoreError, TryAgainError
from supervisor.checkpoints import claims
from supervisor.checkpoints.manifest import run_folder
from supervisor.checkpoints.records import delete_old, get_listed, versions_of
from supervisor.checkpoints.writers import FencedError, host_of, settle_time, writer_name
from supervisor.core.words import span
from supervisor.fleet.model import State, Verdict
from supervisor.storage.base import Store, StoredFile

PATIENCE_S = 600.0
"""A controller that has not written for so long is gone, and another one goes on."""
LATELY_S = 30.0
"""A sentence is dated by a look at the clock that is no older: in one tick those of a hundred runs may change."""
LIMIT_BYTES = 4 << 20
MOST_TOLD = 100


@dataclass(frozen=True)
class Orders:
    """What a person wants of a run. ``agreed``: pods (PROVIDER/ID) that may go with all that is on them."""

    wanted: bool = True
    agreed: tuple[str, ...] = ()
    up_at: float = 0.0  # when ``fleet up`` was typed last, by the store's clock


@dataclass(frozen=True)
class Said:
    """A sentence, and since when it holds."""

    at: float
    sentence: str


@dataclass(frozen=True)
class Page:
    """What is kept of one run."""

    state: State = field(default_factory=State)
    said: tuple[Said, ...] = ()
    verdict: Verdict = ""


Record = TypeVar("Record")
_PAGE = TypeAdapter(Page)
_ORDERS = TypeAdapter(Orders)


class StoreBook:
    """The memory of one fleet. ``begin`` before anything is written, ``end`` when nothing more is.

    States of several runs may be read and written at once, from several threads.
    """

    def __init__(self, store: Store, fleet: str, supposed: Mapping[str, Orders] | None = None) -> None:
        """``supposed``: what a person would want of some runs, in place of what the store says (``--dry-run``)."""
        self._store, self._supposed = store, supposed or {}
        self._fleet = fleet
        self._folder = run_folder(fleet)
        self._writer = writer_name(socket.gethostname(), secrets.token_hex(8), secrets.token_hex(4))
        self._generation: int | None = None
        self._count = 0
        self._clock = (-LATELY_S, 0.0)  # when the store's clock was read last, by the monotonic one, and what it said
        self._clock_lock = Lock()

    # ------------------------------------------------------------ who tends the fleet

    def begin(self) -> None:
        """Become the controller of the fleet. Raises TryAgainError when another one is, and StoreError."""
        if self._generation is not None:
            return
        standing = claims.look(self._store, self._fleet)
        over = None
        if not standing.free:
            silent_s = self.read_clock() - self._last_word()
            if silent_s < PATIENCE_S:
                raise TryAgainError(
                    f"The controller on {host_of(standing.writer)} tends this fleet: it wrote {span(silent_s)} ago. "
                    f"Another one may go on after {span(PATIENCE_S)} of silence."
                )
            over = standing
        # Half of what a pod waits: between this and its first word a controller reads all states once more, and it
        # looks at the claim before each word, and writes that before it acts.
        found = claims.claim(self._store, self._fleet, self._writer, settle_time(PATIENCE_S) / 2, over=over)
        if found.writer != self._writer:
            raise TryAgainError(f"The controller on {host_of(found.writer)} began to tend this fleet a moment ago.")
        self._generation = found.generation

    def end(self) -> None:
        """Let another controller go on at once. A store that is away is no error: the silence will tell."""
        generation, self._generation = self._generation, None
        if generation is not None:
            try:
                claims.release(self._store, self._fleet, generation, self._writer)
            except StoreError:
                return

    def _check(self) -> None:
        if self._generation is None:
            raise StoreError("fenced", f"This controller does not tend the fleet in {self._store.url}.")
        try:
            claims.check(self._store, self._fleet, self._generation, self._writer)
        except FencedError:
            self._generation = None  # another controller began; ``begin`` may get the fleet back when that one ends
            raise

    def _last_word(self) -> float:
        """When the controller wrote last, by the store's clock. One that never did has just begun."""
        files = versions_of(self._store, f"{self._folder}beat.json")
        claimed = self._store.list_versions(f"{self._folder}{claims.WRITERS}")
        return max((file.uploaded_at for file in [*files, *claimed]), default=0.0)

    # ------------------------------------------------------------ the controller's memory

    def read_clock(self) -> float:
        """Seconds by the store's clock: the upload time of a small object that is written for it."""
        name = f"{self._folder}{'clock' if self._generation is None else 'beat'}.json"
        before = versions_of(self._store, name)
        self._count += 1
        put = self._store.put_bytes(name, json.dumps({"writer": self._writer, "count": self._count}).encode())
        delete_old(self._store, before)
        at = put.uploaded_at or max(file.uploaded_at for file in versions_of(self._store, name))
        self._clock = (time.monotonic(), at)
        return at

    def _read_clock_lately(self) -> float:
        with self._clock_lock:
            read_at, at = self._clock
            return at if time.monotonic() - read_at < LATELY_S else self.read_clock()

    def list_runs(self) -> list[str]:
        """Ids of all runs of which something is remembered, also of those that fleet.toml names no more."""
        folder = f"{self._folder}state/"
        return sorted({file.name.removeprefix(folder).removesuffix(".json") for file in self._store.list(folder)})

    def list_records(self) -> dict[str, StoredFile]:
        """All that is remembered now, by its name in the fleet's folder: ``state/RUN.json``, ``beat.json``, ..."""
        return {file.name.removeprefix(self._folder): file for file in self._store.list(self._folder)}

    def read_state(self, run_id: str) -> State:
        """The state, with what a person wants now."""
        orders = self.read_orders(run_id)
        return replace(self.read_page(run_id).state, **asdict(orders))

    def write_state(self, run_id: str, state: State, sentence: str, *, verdict: Verdict = "") -> None:
        """Keep it. Raises StoreError of kind "fenced" when another controller tends the fleet."""
        page = self.read_page(run_id)
        if Page(state, page.said, verdict) == page and page.said and page.said[-1].sentence == sentence:
            return
        self._check()
        said = page.said
        if not said or said[-1].sentence != sentence:
            said = (*said, Said(self._read_clock_lately(), sentence))[-MOST_TOLD:]
        self._put(f"state/{run_id}.json", _PAGE.dump_json(Page(state, said, verdict)))

    def read_page(self, run_id: str) -> Page:
        """The state and what was said, for ``fleet explain`` and ``fleet history``, too."""
        data = self._get(f"state/{run_id}.json")
        return Page() if data is None else self._parse(f"state/{run_id}.json", _PAGE, data)

    # ------------------------------------------------------------ what was told to people

    def read_messages(self) -> object:
        """The JSON that ``write_messages`` kept; None where there is none. Raises StoreError."""
        try:
            return json.loads(self._get("messages.json") or b"null")
        except (ValueError, RecursionError):
            return None

    def write_messages(self, kept: str) -> None:
        """Keep it. Raises StoreError of kind "fenced" when another controller tends the fleet."""
        self._check()
        self._put("messages.json", kept.encode())

    # ------------------------------------------------------------ what people want

    def read_orders(self, run_id: str) -> Orders:
        """What was wanted last; a run of the file is wanted."""
        if run_id in self._supposed:
            return self._supposed[run_id]
        data = self._get(f"orders/{run_id}.json")
        return Orders() if data is None else self._parse(f"orders/{run_id}.json", _ORDERS, data)

    def write_orders(self, run_id: str, orders: Orders) -> None:
        """Any machine with the fleet's key may do so at any time; the controller reads them with each look."""
        self._put(f"orders/{run_id}.json", _ORDERS.dump_json(orders))

    # ------------------------------------------------------------ objects

    def _get(self, name: str) -> bytes | None:
        try:
            return get_listed(self._store, self._folder + name, LIMIT_BYTES)
        except StoreError as error:
            if error.kind != "missing":
                raise
            return None

    def _put(self, name: str, data: bytes) -> None:
        before = versions_of(self._store, self._folder + name)
        self._store.put_bytes(self._folder + name, data)
        delete_old(self._store, before)

    def _parse(self, name: str, adapter: TypeAdapter[Record], data: bytes) -> Record:
        try:
            return adapter.validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise StoreError(
                "damaged",
                f"{self._store.url}/{self._folder}{name} is no record of this controller ({first['msg']}). It decides "
                f"what is rented, so nothing is guessed: restore an older version of it, or delete it after a look at "
                f"your provider's page",
            ) from None
