"""What is known of a fleet: its file, and what its controller remembers in the store. No provider is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from supervisor.base.errors import StoreError
from supervisor.fleet.assemble import Assembly
from supervisor.fleet.book import Orders, Page, StoreBook
from supervisor.fleet.fleet_file import FleetFile
from supervisor.fleet.side_by_side import ask_for_each

FRESH_S = 20.0
"""A controller writes each half a minute."""


@dataclass(frozen=True)
class FleetSeen:
    """One look. Times are Unix time; those of the memory are the store's own clock."""

    file: FleetFile
    runs: Mapping[str, str]  # id of each run of the file -> its name there
    at: float = 0.0
    pages: Mapping[str, Page] = field(default_factory=dict)  # run id -> what is remembered
    orders: Mapping[str, Orders] = field(default_factory=dict)
    written_at: float | None = None  # when a controller wrote last; None: never
    notes: tuple[str, ...] = ()


class FleetSource:
    """A fleet, for as long as its page is served. ``look`` may be called from several threads."""

    def __init__(self, fleet: Assembly) -> None:
        self._fleet = fleet
        self._asking = threading.Lock()
        self._known: dict[str, tuple[str, Page | Orders]] = {}  # record -> its version, and what it says
        ids = {run_file.run.id: name for name, run_file in fleet.files.items()}
        self._seen = FleetSeen(fleet.file, ids)
        self._asked_at = -FRESH_S

    def look(self) -> FleetSeen:
        """What is known now. The store is asked once in a while, by one of those who look; the others get the last."""
        if time.monotonic() - self._asked_at >= FRESH_S and self._asking.acquire(blocking=self._seen.at == 0.0):
            try:
                if time.monotonic() - self._asked_at >= FRESH_S:
                    self._seen = self._look_again()
            finally:
                self._asked_at = time.monotonic()
                self._asking.release()
        return self._seen

    def _look_again(self) -> FleetSeen:
        try:
            book = self._fleet.book()
            records = book.list_records()
            notes = self._read_records(book, {name: file.file_id for name, file in records.items()})
        except StoreError as error:
            told = f"The store {self._fleet.file.fleet.store} could not be asked, so this may be old: {error}."
            return replace(self._seen, at=time.time(), notes=(told,))
        beat = records.get("beat.json")
        return replace(
            self._seen,
            at=time.time(),
            pages={name[6:-5]: one for name, (_, one) in self._known.items() if isinstance(one, Page)},
            orders={name[7:-5]: one for name, (_, one) in self._known.items() if isinstance(one, Orders)},
            written_at=beat.uploaded_at if beat is not None else None,
            notes=tuple(notes),
        )

    def _read_records(self, book: StoreBook, versions: Mapping[str, str]) -> list[str]:
        """Read what changed. Returns sentences on what cannot be read."""
        asks: dict[str, Callable[[], Page | Orders]] = {}
        for name in versions:
            folder, _, run = name.removesuffix(".json").partition("/")
            if folder == "state":
                asks[name] = partial(book.read_page, run)
            elif folder == "orders":
                asks[name] = partial(book.read_orders, run)
        changed = [name for name in asks if self._known.get(name, ("",))[0] != versions[name]]
        notes = []
        for name, answer in ask_for_each(changed, lambda name: asks[name]()).items():
            try:
                self._known[name] = versions[name], answer()
            except StoreError as error:
                if error.kind != "damaged":
                    raise
                notes.append(f"{error}.")
        self._known = {name: one for name, one in self._known.items() if name in versions}
        return notes
