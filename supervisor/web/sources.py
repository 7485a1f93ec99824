"""What is known of one run: from its daemon's socket, from the state folder beside it, and from the store.

The store is asked once in a minute, by child processes, and only while the page is open; no viewer waits
for a slow one. What one place does not know another one may: each that did not answer is named in a sentence.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from supervisor.api.client import Client, NotThereError
from supervisor.base.errors import StoreError, SupervisorError
from supervisor.base.secrets import mask_secrets
from supervisor.checkpoints.log_packing import SERIES
from supervisor.config.settings import RunFile
from supervisor.core.words import span
from supervisor.effects.transfers import Transfers, request
from supervisor.journal.journal import identity_in
from supervisor.journal.series import FOLDER, parse_series
from supervisor.views import run_report, without_daemon
from supervisor.views.incidents import read_incidents
from supervisor.web.history import Piece

STORE_FRESH_S = 60.0
STALL_S = 60.0
FIRST_S = 2.0  # a first look waits so long for the store
PATIENT_S = 600.0  # and what is written down, so long
AGAIN_S = 1.0  # and the first after a long while so long
LOOK_FRESH_S = 2.0
STORED_LOG_FRESH_S = 60.0  # each one asked for is a child process
DAEMON_S = 5.0  # it answers within milliseconds, or hangs
LOG_LINES = 400
MOST_OF_STORED_LOG = 400_000  # characters, as sent about a tenth
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
    silent: str = ""  # why a daemon that is there gave no answer


@dataclass
class _Stored:
    """What the store told, and when it was asked."""

    at: float = -1e12
    report: dict[str, Any] | None = None
    steps: Sequence[Mapping[str, Any]] | None = None
    newest: Mapping[str, Any] | None = None
    logs: Sequence[Mapping[str, Any]] = ()
    series: dict[tuple[str, int], tuple[float, Piece]] = field(default_factory=dict)  # and when it was sent
    note: str = "The store is being asked for the first time."


class RunSource:
    """One run, for as long as the page is served. Its methods may be called from several threads."""

    def __init__(self, run_file: RunFile, environ: Mapping[str, str], *, here: bool, price: float | None) -> None:
        """``here``: the run file is of this machine, which may have a daemon and a state folder of the run. ``price``:
        dollars an hour; None: what the run file says.
        """
        self.run_file, self._environ, self._here = run_file, environ, here
        self.price = run_file.report.dollars_per_hour if price is None else price
        self._client = Client(run_file.socket, DAEMON_S, run=run_file.run.id)
        self._stored = _Stored()
        self._looking, self._reading = threading.Lock(), threading.Lock()
        self._asking: threading.Thread | None = None
        self._seen: Seen | None = None
        self._seen_at = 0.0
        self._local: dict[Path, tuple[tuple[int, int], Piece]] = {}
        self._logs: dict[str, tuple[float, str]] = {}  # until when it is new enough, and its text

    def look(self, store_s: float = FIRST_S) -> Seen:
        """Everything there is to be known now. However many look, the daemon is asked once in two seconds. ``store_s``:
        while the store has never answered, it is waited for so long.
        """
        with self._looking:
            if self._seen is None or time.monotonic() - self._seen_at >= LOOK_FRESH_S:
                self._seen, self._seen_at = self._look_again(store_s), time.monotonic()
            return self._seen

    def _look_again(self, store_s: float) -> Seen:
        run, notes = self.run_file.run.id, []
        self._ask_store()
        state_dir = self.run_file.state_dir
        status = ended = None
        silent = ""
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
                silent = str(error)
        old_s = time.monotonic() - self._stored.at
        if self._asking is not None and self._stored.at < 0:
            # Where a daemon answers there is something to show, and the rest comes with the next look.
            self._asking.join(0.0 if status is not None and store_s <= FIRST_S else store_s)
        elif self._asking is not None and old_s > 2 * STORE_FRESH_S:
            self._asking.join(AGAIN_S)  # nobody has looked for long: money of then is not shown as money of now
        stored = self._stored
        notes += [stored.note] if stored.note else []
        if stored.at > 0 and (old_s := time.monotonic() - stored.at) > 2 * STORE_FRESH_S:
            notes.append(f"The store is being asked; what is shown of it is {span(old_s)} old.")
        own, mine = self._read_local(state_dir)
        others = [piece for (journal, _), (_, piece) in stored.series.items() if journal != own[:8]]
        old = [f"attempt {one['attempt']}: {one['name']}" for one in stored.logs]
        roles = [*self._log_roles(status), *dict.fromkeys(old)]  # two pods may have an attempt of one number
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
            silent,
        )

    def read_log(self, name: str) -> str:
        """The newest lines of a log that ``look`` named, read once for all who follow it. Raises SupervisorError."""
        with self._reading:
            until, text = self._logs.get(name, (0.0, ""))
            if time.monotonic() >= until:
                fresh_s, text = self._read_log_again(name)
                self._logs = {name: one for name, one in self._logs.items() if one[0] > time.monotonic()}
                self._logs[name] = time.monotonic() + fresh_s, text
            return text

    def _read_log_again(self, name: str) -> tuple[float, str]:
        attempt, _, role = name.removeprefix("attempt ").partition(": ")
        if not role:
            answer = self._client.get("/v1/log", role=name, lines=LOG_LINES)
            return LOOK_FRESH_S, mask_secrets(str(answer.get("text", "")))
        asked = request(self.run_file, "get-logs", attempt=int(attempt), only=role)
        found = Transfers(self._environ, STALL_S).run(asked)["logs"]
        texts = {name: text[-MOST_OF_STORED_LOG:] for name, text in found.items()}
        told = [text if len(texts) == 1 else f"--- {name} ---\n{text}" for name, text in sorted(texts.items())]
        return STORED_LOG_FRESH_S, mask_secrets("\n".join(told))

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

    def _ask_store(self) -> None:
        """Begin to, where the last answer is old and no other thread does."""
        if time.monotonic() - self._stored.at >= STORE_FRESH_S and (
            self._asking is None or not self._asking.is_alive()
        ):
            self._asking = threading.Thread(target=self._read_store, name="store", daemon=True)
            self._asking.start()

    def _read_store(self) -> None:
        before = self._stored
        found = replace(before, series=dict(before.series), note="")  # what is not told again may be old, and stays
        try:
            gathered = run_report.gather(self.run_file, self._environ)
            found.report = run_report.report(gathered, price=self.price)
        except SupervisorError as error:
            found.note = str(error)
        transfers = Transfers(self._environ, STALL_S)
        try:
            told = transfers.run(request(self.run_file, "catalogue"))
            if before.newest and not told["latest"] and not told["steps"]:
                raise StoreError("missing", "it shows nothing of this run any more")
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
        found.at = time.monotonic()
        self._stored = found
