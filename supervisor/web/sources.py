"""What is known of one run: from its daemon's socket, from the state folder beside it, and from the store.

The store is asked once in a minute, by a child process, and only while somebody looks. What one place does not know
another one may: each that did not answer is named in a sentence.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.api.client import Client, NotThereError
from supervisor.base.errors import StoreError, SupervisorError
from supervisor.base.secrets import mask_secrets
from supervisor.checkpoints.log_packing import SERIES
from supervisor.config.settings import RunFile
from supervisor.effects.transfers import Transfers, request
from supervisor.journal.journal import identity_in
from supervisor.journal.series import FOLDER, parse_series
from supervisor.views import run_report, without_daemon
from supervisor.views.incidents import read_incidents
from supervisor.web.history import Piece

STORE_FRESH_S = 60.0
STALL_S = 60.0
LOOK_FRESH_S = 2.0
LOG_LINES = 400
FIRST = ("trainer", "orchestrator", "job")  # logs that a person opens first


@dataclass(frozen=True)
class Seen:
    """One look at a run. None is what is not known; times are Unix time."""

    run: str
    at: float
    status: dict[str, Any] | None = None  # the daemon's own, as ``views.status`` makes it
    ended: dict[str, Any] | None = None  # ``views.without_daemon``, where no daemon answers and one was here
    report: dict[str, Any] | None = None  # ``views.run_report``
    incidents: Sequence[Mapping[str, Any]] = ()  # newest first
    steps: Sequence[Mapping[str, Any]] | None = None  # of the store
    newest: Mapping[str, Any] | None = None  # the store's pointer
    pieces: Sequence[Piece] = ()
    logs: Sequence[str] = ()  # names that ``read_log`` takes
    notes: Sequence[str] = ()


@dataclass
class _Stored:
    """What the store told, and when it was asked."""

    at: float = -1e12
    report: dict[str, Any] | None = None
    steps: Sequence[Mapping[str, Any]] | None = None
    newest: Mapping[str, Any] | None = None
    logs: Sequence[Mapping[str, Any]] = ()
    series: dict[tuple[str, int], tuple[float, Piece]] = field(default_factory=dict)  # and when it was sent
    note: str = ""


class RunSource:
    """One run, for as long as the page is served. Its methods may be called from several threads."""

    def __init__(self, run_file: RunFile, environ: Mapping[str, str], *, here: bool, price: float | None) -> None:
        """``here``: the run file is of this machine, which may have a daemon and a state folder of the run. ``price``:
        dollars an hour; None: what the run file says.
        """
        self.run_file, self._environ, self._here = run_file, environ, here
        self.price = run_file.report.dollars_per_hour if price is None else price
        self._client = Client(run_file.socket, run=run_file.run.id)
        self._stored = _Stored()
        self._asking, self._looking = threading.Lock(), threading.Lock()
        self._seen: Seen | None = None
        self._seen_at = 0.0
        self._local: dict[Path, tuple[tuple[int, int], Piece]] = {}

    def look(self) -> Seen:
        """Everything there is to be known now. However many look, the daemon is asked once in two seconds."""
        with self._looking:
            if self._seen is None or time.monotonic() - self._seen_at >= LOOK_FRESH_S:
                self._seen, self._seen_at = self._look_again(), time.monotonic()
            return self._seen

    def _look_again(self) -> Seen:
        run, notes = self.run_file.run.id, []
        state_dir = self.run_file.state_dir
        status = ended = None
        incidents: Sequence[Mapping[str, Any]] = ()
        if self._here:
            try:
                status = self._client.get("/v1/status")
                incidents = self._client.get("/v1/incidents").get("incidents", ())
            except NotThereError:
                with contextlib.suppress(OSError, SupervisorError):
                    incidents = read_incidents(state_dir)
                    ended = without_daemon.look(state_dir, run)
            except SupervisorError as error:
                notes.append(str(error))
        stored = self._ask_store()
        notes += [stored.note] if stored.note else []
        own, mine = self._read_local(state_dir)
        others = [piece for (journal, _), (_, piece) in stored.series.items() if journal != own[:8]]
        roles = self._log_roles(status) + [f"attempt {one['attempt']}: {one['name']}" for one in stored.logs]
        return Seen(
            run,
            time.time(),
            status,
            ended,
            stored.report,
            incidents,
            stored.steps,
            stored.newest,
            [*others, *mine],
            roles,
            notes,
        )

    def read_log(self, name: str) -> str:
        """The newest lines of a log that ``look`` named. Raises SupervisorError."""
        attempt, _, role = name.removeprefix("attempt ").partition(": ")
        if not role:
            answer = self._client.get("/v1/log", role=name, lines=LOG_LINES)
            return mask_secrets(str(answer.get("text", "")))
        asked = request(self.run_file, "get-logs", attempt=int(attempt), only=role)
        found = Transfers(self._environ, STALL_S).run(asked)["logs"]
        return mask_secrets("\n".join(found.values()))

    def _log_roles(self, status: Mapping[str, Any] | None) -> list[str]:
        if status is None:
            return []
        with contextlib.suppress(SupervisorError):
            return sorted(self._client.get("/v1/log").get("roles", ()), key=lambda role: (role not in FIRST, role))
        return []

    def _read_local(self, state_dir: Path) -> tuple[str, list[Piece]]:
        """The name of this machine's journal, "" where there is none, and what its attempts left."""
        if not self._here:
            return "", []
        own = identity_in(state_dir) or ""
        found = {}
        with contextlib.suppress(OSError):
            for path in sorted((state_dir / FOLDER).glob("[0-9]*.jsonl")):
                look = path.stat()
                sign = (look.st_mtime_ns, look.st_size)
                known = self._local.get(path)
                if known is None or known[0] != sign:
                    known = sign, Piece(own[:8], int(path.stem), parse_series(path.read_bytes()))
                found[path] = known
        self._local = found
        return own, [piece for _, piece in found.values()]

    def _ask_store(self) -> _Stored:
        if time.monotonic() - self._stored.at >= STORE_FRESH_S and self._asking.acquire(blocking=False):
            try:
                self._stored = self._read_store(self._stored)
            finally:
                self._asking.release()
        return self._stored

    def _read_store(self, before: _Stored) -> _Stored:
        found = _Stored(time.monotonic(), series=before.series)
        try:
            gathered = run_report.gather(self.run_file, self._environ)
            found.report = run_report.report(gathered, price=self.price)
        except SupervisorError as error:
            found.note = str(error)
        transfers = Transfers(self._environ, STALL_S)
        try:
            told = transfers.run(request(self.run_file, "catalogue"))
            found.steps, found.newest = told["steps"], told["latest"]
            found.logs = list(transfers.run(request(self.run_file, "list-logs"))["logs"])
            for one in found.logs:
                key = str(one["journal"])[:8], int(one["attempt"])
                if one["name"] == SERIES and found.series.get(key, (0.0,))[0] < one["uploaded_at"]:
                    asked = request(self.run_file, "get-logs", attempt=one["attempt"], only=SERIES)
                    for name, text in transfers.run(asked)["logs"].items():
                        piece = Piece(name.partition("/")[0], key[1], parse_series(text.encode()))
                        found.series[piece.journal, key[1]] = one["uploaded_at"], piece
        except StoreError as error:
            found.note = f"The store {self.run_file.store_url} could not be asked, so this may be old: {error}"
        found.logs = [one for one in found.logs if one["name"] != SERIES]
        return found
