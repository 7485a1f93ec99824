"""The flight recorder: what the core consumed, in order, what it said and asked for, and snapshots of its state.

SQLite in WAL mode on a local disk. A daemon that starts rebuilds the core from the last snapshot and the tail. A full
disk must not silence it: a ballast file is released first; after that events live in memory and the failure is told.

Older rows are compressed a piece at a time (``journal.archive``), so that the last day and the last incidents can be
replayed: what is read from this file gives the same decisions again.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.base.errors import TryAgainError
from supervisor.base.records import dataclass
from supervisor.core.actions import Action, Say
from supervisor.core.codec import decode, encode
from supervisor.core.decide import decide
from supervisor.core.evolve import replace
from supervisor.core.facts import Fact, Observation, Tick
from supervisor.core.state import State
from supervisor.journal import archive

SNAPSHOT_EVERY = 500
KEEP_EVENTS = 100_000
BALLAST_BYTES = 4 << 20
LATE_PAGES = 8000  # of 4 KiB: the write-ahead log gets that long only without calls of ``checkpoint``
FORMAT = 1
_IDENTITY = re.compile(r"[0-9a-f]{8,64}")  # claims and records in the store go by it
# What a state or a fact of other types than the core's leads to, sooner or later.
_NO_STATE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
# Of SQLite's primary codes those that say that the file is no journal (any more). All others (full disk, no descriptor,
# an I/O error, locked) may pass, and the file is good.
_NO_JOURNAL = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_NOTADB)
WAL_BYTES = 4 << 20
"""A write-ahead log of this size is moved into the database, beside the loop. Not oftener: the writer that begins the
log anew after it has to wait for the disk itself."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS observations (
    id INTEGER PRIMARY KEY AUTOINCREMENT, t REAL NOT NULL, wall REAL NOT NULL, source TEXT NOT NULL,
    fact TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, observation INTEGER, wall REAL NOT NULL, level TEXT NOT NULL,
    event TEXT NOT NULL, sentence TEXT NOT NULL, fields TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS actions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, observation INTEGER, wall REAL NOT NULL, action TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (observation INTEGER PRIMARY KEY, state TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Event:
    """One sentence that was said. ``wall`` is Unix time."""

    id: int
    wall: float
    level: str
    event: str
    sentence: str
    fields: dict[str, Any]


def open_read_only(path: Path) -> sqlite3.Connection:
    """A journal for reading, also while its daemon writes. Raises sqlite3.Error.

    On a disk that cannot be written it has no files beside it, and is not being changed: SQLite must be told so.
    """
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        db.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    return db


def identity_in(folder: Path) -> str | None:
    """The identity of the journal in a folder, None where there is none; without writing, also beside a daemon."""
    path = folder / "journal.db"
    try:
        if not path.exists():
            return None
        with contextlib.closing(open_read_only(path)) as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
    except (sqlite3.Error, OSError):
        return None
    return str(row[0]) if row else None


class Journal:
    """The journal of one run. Written by the daemon's loop only; ``events`` may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        """Open or create the journal in ``folder``. A damaged one is set aside, never deleted.

        Raises TryAgainError where it can only not be opened at this moment.
        """
        self.path = folder / "journal.db"
        self._ballast = folder / "journal.ballast"
        self._lock = threading.Lock()
        self._database = threading.RLock()  # the loop writes; effects read and put small values
        self._beside = threading.Lock()  # of the second connection, which only makes checkpoints
        self._second: sqlite3.Connection | None = None
        self._closed = False
        self._since_snapshot = 0
        self._recent: deque[Event] = deque(maxlen=2000)
        self._last_event = 0
        self._state: State | None = None  # what the rows lead to
        self._tick: Observation | None = None  # the last one that changed nothing, not written yet
        self._lost = False  # turns were lost: the rows no longer lead to the present state
        self.failure = self._unkept = ""
        self.set_aside: Path | None = None
        self.born = False  # there was none before this one
        self.row = 0  # number of the newest observation
        self.unread = 0  # observations of this very version that cannot be read
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._open_it()
        except sqlite3.DatabaseError as error:
            if not _no_journal(error):
                raise self._not_now(error) from None
            self._begin_anew()
        self._make_ballast()

    def _open_it(self) -> None:
        if not self.path.exists() or self.path.stat().st_size == 0:
            self.born = True
            self._set_aside(("-wal", "-shm"))  # SQLite deletes a log without its database
        try:
            self._db = self._open_database()
        except sqlite3.DatabaseError as error:
            if _no_journal(error):
                raise
            self._ballast.unlink(missing_ok=True)  # the disk may be full
            self._db = self._open_database()
        self._load_recent()

    def _begin_anew(self) -> None:
        """Set the file aside: nothing in it can be believed. What counts on is found in the folders of the attempts."""
        self.set_aside = self._set_aside(("", "-wal", "-shm"))
        self._recent.clear()
        try:
            self._open_it()
        except sqlite3.DatabaseError as error:
            raise self._not_now(error) from None

    def _set_aside(self, suffixes: Sequence[str]) -> Path:
        """Keep these files under another name, as evidence."""
        target = self.path.with_name(f"journal.db.damaged-{int(time.time())}")
        for suffix in suffixes:
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).replace(f"{target}{suffix}")
        return target

    def _not_now(self, error: sqlite3.DatabaseError) -> TryAgainError:
        return TryAgainError(
            f"The journal {self.path} cannot be opened: {error}. It is left as it is; is there room on its disk, and "
            "is its volume there?"
        )

    def _open_database(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None, timeout=5)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("PRAGMA cache_size=-512")
        database.execute(f"PRAGMA journal_size_limit={WAL_BYTES // 4}")  # else its size tells its longest day
        database.execute(f"PRAGMA wal_autocheckpoint={LATE_PAGES}")
        database.executescript(_SCHEMA + archive.SCHEMA)
        if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            database.close()
            raise sqlite3.DatabaseError("quick_check failed")
        return database

    def _load_recent(self) -> None:
        rows = self._db.execute("SELECT * FROM events ORDER BY id DESC LIMIT ?", (self._recent.maxlen,)).fetchall()
        for number, _, wall, level, event, sentence, text in reversed(rows):
            fields = _load_json(text)
            if isinstance(wall, float) and isinstance(fields, dict):  # a person may have edited the file
                self._recent.append(Event(number, wall, str(level), str(event), str(sentence), fields))
        self._last_event = rows[0][0] if rows else 0
        self.row = self._last_row()

    def _last_row(self) -> int:
        found = self._db.execute("SELECT MAX(id) FROM observations").fetchone()[0]
        if not isinstance(found, int):
            found = (self._db.execute("SELECT MAX(last) FROM chunks").fetchone() or (None,))[0]
        return found if isinstance(found, int) else 0

    def _make_ballast(self) -> None:
        with contextlib.suppress(OSError):
            if not self._ballast.exists() or self._ballast.stat().st_size < BALLAST_BYTES:
                self._ballast.write_bytes(b"\0" * BALLAST_BYTES)

    # ------------------------------------------------------------ state

    def rebuild(self) -> tuple[State, int]:
        """The core's state from the last readable snapshot and the observations after it, and how many those were.

        An observation that the core cannot take is passed over: this version may have a mistake that the one before
        had not, and the rest is worth more. A journal that leads to no state that the core can go on from is set aside,
        as a damaged one is. Call it before any other value of the journal is used. Raises TryAgainError like opening.
        """
        try:
            state, count = self._replay_from_snapshot()
        except sqlite3.DatabaseError as error:
            if not _no_journal(error):
                raise self._not_now(error) from None
            state, count = None, 0
        except _NO_STATE:  # of the compressed rows
            state, count = None, 0
        if state is None:
            self._db.close()
            self._begin_anew()
            state, count = State(), 0
        self._state = state
        if self.get("version") != __version__:
            self.unread = 0  # what another version wrote need not be understood
            # This version may have concluded other things from the same rows.
            self._lost = self._lost or count > 0 or state != State()
            self.put("version", __version__)
        return state, count

    def _replay_from_snapshot(self) -> tuple[State | None, int]:
        """From the newest snapshot from which it can be done; None where no way leads anywhere."""
        for number, text in chain(self._snapshots_with_numbers(), [(0, dump(State()))]):
            try:
                state = decode(_load_json(text))
            except (KeyError, TypeError, ValueError):
                continue  # of another version: an older snapshot, or all observations, will do
            if not isinstance(state, State) or _next_state(state, Observation(state.now, state.wall, Tick())) is None:
                continue
            count = passed = self.unread = 0
            for observation in self.observations(number):
                count += 1
                if (after := _next_state(state, observation)) is None:
                    passed += 1
                else:
                    state = after
            if _next_state(state, Observation(state.now, state.wall, Tick())) is not None:
                self._lost = passed + self.unread > 0
                self.unread += passed
                return state, count
        return None, 0

    def _snapshots_with_numbers(self) -> Iterator[tuple[int, str]]:
        """Snapshots and the number of the observation that each follows, newest first."""
        yield from self._db.execute("SELECT observation, state FROM snapshots ORDER BY observation DESC")
        for piece in reversed(self._chunks_before()):
            if piece.state:
                yield piece.first - 1, piece.state

    def _chunks_before(self) -> list[archive.Piece]:
        """What lies before the rows without a gap, at most ``KEEP_OBSERVATIONS``."""
        found: list[archive.Piece] = []
        last = self._db.execute("SELECT COALESCE(MAX(id), 0) FROM observations").fetchone()[0]
        for piece in archive.pieces(self._db):
            if found and piece.first != found[-1].last + 1:
                found.clear()
            if piece.last > last - archive.KEEP_OBSERVATIONS:
                found.append(piece)
        return found

    def observations(self, after: int = 0) -> Iterator[Observation]:
        """What the core consumed, in order; facts of another version that cannot be read are left out."""
        oldest = self._db.execute("SELECT MIN(id) FROM observations").fetchone()[0]
        if oldest is not None and after >= oldest - 1:
            query = "SELECT t, wall, source, fact FROM observations WHERE id > ? ORDER BY id"
            for t, wall, source, text in self._db.execute(query, (after,)):
                if (found := _observation(t, wall, source, _load_json(text))) is not None:
                    yield found
                else:
                    self.unread += 1
            return
        for piece in self._chunks_before():
            if piece.first <= after:
                continue  # states, which name a place to begin, lie between pieces
            for line in piece.lines.splitlines():
                value = _load_json(line)
                if isinstance(value, dict) and "fact" in value:
                    found = _observation(value.get("t"), value.get("wall"), value.get("source"), value["fact"])
                    if found is not None:
                        yield found

    def record(self, observation: Observation, before: State, after: State, actions: Sequence[Action]) -> list[Event]:
        """Write one turn of the loop; returns the events in it with their numbers."""
        idle = isinstance(observation.fact, Tick) and not actions
        if idle and replace(after, now=before.now, wall=before.wall, calm_until=before.calm_until) == before:
            self._state, self._tick = after, observation
            return []
        said = [action for action in actions if isinstance(action, Say)]
        events = []
        for action in said:
            self._last_event += 1
            events.append(
                Event(
                    self._last_event, observation.wall, action.level, action.event, action.sentence, dict(action.fields)
                )
            )
        self._since_snapshot += 1
        self._lost = not self._try_to_write(lambda: self._write_turn(observation, before, after, actions, events))
        self._state, self._tick = after, None
        if self._since_snapshot >= SNAPSHOT_EVERY:
            self.snapshot(after)
        if events:
            with self._lock:
                self._recent.extend(events)
        return events

    def _write_turn(
        self,
        observation: Observation,
        before: State,
        after: State,
        actions: Sequence[Action],
        events: Sequence[Event],
    ) -> None:
        db = self._db
        with self._open_transaction():
            if self._lost:
                self._put_snapshot(before, rebased=True)  # only a whole state mends the record
            number = 0
            # Of ticks that did nothing the last one is kept: how long nothing happened may matter to what comes next.
            for seen in (observation,) if self._tick is None else (self._tick, observation):
                cursor = db.execute(
                    "INSERT INTO observations (t, wall, source, fact) VALUES (?, ?, ?, ?)",
                    (seen.t, seen.wall, seen.source, dump(seen.fact)),
                )
                number = cursor.lastrowid or 0
            for event in events:
                db.execute(
                    "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (event.id, number, event.wall, event.level, event.event, event.sentence, json.dumps(event.fields)),
                )
            numbers = iter(events)
            for action in actions:
                text = f'{{"said":{next(numbers).id}}}' if isinstance(action, Say) else dump(action)
                db.execute(
                    "INSERT INTO actions (observation, wall, action) VALUES (?, ?, ?)",
                    (number, observation.wall, text),
                )
            if (
                before.incidents.open is not after.incidents.open
                or before.incidents.closed is not after.incidents.closed
            ):
                self._put_incidents(before, after)
        self.row = number

    @contextlib.contextmanager
    def _open_transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def _put_incidents(self, before: State, after: State) -> None:
        known = {one.id for one in before.incidents.closed} | (
            {before.incidents.open.id} if before.incidents.open else set()
        )
        for one in after.incidents.closed:
            if one.id not in known:  # over as soon as it was told
                self._db.execute(
                    "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?)",
                    (one.id, one.opened, one.closed, one.attempt, one.cause, one.sentence),
                )
        old, new = before.incidents.open, after.incidents.open
        if old is not None and (new is None or new.id != old.id):
            self._db.execute("UPDATE incidents SET closed = ? WHERE id = ?", (after.now, old.id))
        if new is not None:
            self._db.execute(
                "INSERT OR REPLACE INTO incidents VALUES (?, ?, NULL, ?, ?, ?)",
                (new.id, new.opened, new.attempt, new.cause, new.sentence),
            )

    def snapshot(self, state: State) -> None:
        """Keep the state, and compress or forget what is older than the snapshots and limits need."""
        self._since_snapshot = 0
        rebased = self._lost or state is not self._state
        self._lost = not self._try_to_write(lambda: self._write_snapshot(state, rebased=rebased)) and rebased
        self._state = state
        # Not being able to compress is no failure to write: the rows stay, and the next snapshot tries again.
        with self._database, contextlib.suppress(sqlite3.Error, OSError):
            if archive.compact(self._db):
                archive.forget(self._db, state.now)

    def _write_snapshot(self, state: State, *, rebased: bool) -> None:
        db = self._db
        with self._open_transaction():
            last = self._put_snapshot(state, rebased=rebased)
            # Bounds for a journal that cannot compress for long.
            db.execute("DELETE FROM observations WHERE id <= ?", (last - archive.KEEP_OBSERVATIONS,))
            db.execute("DELETE FROM actions WHERE observation <= ?", (last - archive.KEEP_OBSERVATIONS,))
            db.execute("DELETE FROM snapshots WHERE observation <= ?", (last - archive.KEEP_OBSERVATIONS,))
            db.execute("DELETE FROM events WHERE id <= ?", (self._last_event - KEEP_EVENTS,))

    def _put_snapshot(self, state: State, *, rebased: bool) -> int:
        """``rebased``: the rows before do not lead to this state, so a replay has to take it as it is."""
        last: int = self._db.execute(
            "SELECT COALESCE((SELECT MAX(id) FROM observations), "
            "(SELECT last FROM chunks ORDER BY first DESC LIMIT 1), 0)"
        ).fetchone()[0]
        self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (last, dump(state)))
        if rebased:
            self._db.execute("INSERT OR IGNORE INTO rebased VALUES (?)", (last,))
        return last

    def _try_to_write(self, write: Any) -> bool:
        """Do ``write``; on a full disk release the ballast and try again; never raise into the loop. Was it done?"""
        for _ in range(2):
            try:
                with self._database:
                    write()
            except (sqlite3.Error, OSError) as error:
                self.failure = f"The journal {self.path} cannot be written: {error}. Make room on its disk."
                with contextlib.suppress(OSError):  # a disk that turned read-only keeps it
                    self._ballast.unlink(missing_ok=True)
            else:
                if self.failure:
                    self.failure = ""
                    self._make_ballast()
                    if self._unkept:
                        self.put("identity", self._unkept)
                return True
        return False

    # ------------------------------------------------------------ meta, events

    def get(self, key: str) -> str | None:
        """A small value kept beside the observations (boot id, clock epoch, W&B id)."""
        with self._database:
            return (self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone() or (None,))[0]

    def get_json(self, key: str) -> dict[str, Any]:
        """A small JSON object that was ``put``; empty where there is none, or it is none any more."""
        value = _load_json(self.get(key))
        return value if isinstance(value, dict) else {}

    def identity(self) -> str:
        """A name of this journal that no other has: hexadecimal, made once."""
        known = self.get("identity")
        if known is None or not _IDENTITY.fullmatch(known):
            known = self._unkept = self._unkept or secrets.token_hex(8)
            self.put("identity", known)
        return known

    def put(self, key: str, value: str) -> None:
        """Keep a small value."""
        self._try_to_write(lambda: self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value)))

    def last_time(self) -> tuple[float, float] | None:
        """``(t, wall)`` of the last observation, None in a new journal."""
        row = self._db.execute("SELECT t, wall FROM observations ORDER BY id DESC LIMIT 1").fetchone()
        return (row[0], row[1]) if row and all(isinstance(one, float) and math.isfinite(one) for one in row) else None

    def events(self, after: int, limit: int) -> list[Event]:
        """Events with a number above ``after``, oldest first; a negative ``after`` asks for the newest.

        At most ``limit``, and only of the last two thousand, which live in memory. From any thread.
        """
        with self._lock:
            known = list(self._recent)
        return known[-limit:] if after < 0 else [event for event in known if event.id > after][:limit]

    def checkpoint(self) -> None:
        """Move what the write-ahead log holds into the database, and wait for the disk; never in the loop's thread.

        A disk that is busy with gigabytes of the job's can take seconds for that. Writers go on meanwhile.
        """
        with self._beside, contextlib.suppress(sqlite3.Error, OSError):
            if self.path.with_name(f"{self.path.name}-wal").stat().st_size <= WAL_BYTES:
                return
            if self._second is None and not self._closed:
                where = f"{self.path.absolute().as_uri()}?mode=rw"
                self._second = sqlite3.connect(
                    where, uri=True, check_same_thread=False, isolation_level=None, timeout=1
                )
            if self._second is not None:
                self._second.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        """Close the database."""
        self._closed = True
        if self._beside.acquire(timeout=1):  # else a checkpoint waits for the disk, and ends with the process
            try:
                if self._second is not None:
                    self._second.close()
                    self._second = None
            finally:
                self._beside.release()
        self._db.close()


def dump(value: Any) -> str:
    """The one JSON text of a core value, by which decisions are compared byte for byte."""
    return json.dumps(encode(value), separators=(",", ":"))


def _load_json(text: Any) -> Any:
    """The value of a text that we wrote; None when it is none any more (a person may edit the file)."""
    try:
        return json.loads(text)
    except (RecursionError, TypeError, ValueError):
        return None


def _observation(t: Any, wall: Any, source: Any, fact: Any) -> Observation | None:
    try:
        found = decode(fact)
    except (KeyError, TypeError, ValueError):
        return None
    times = isinstance(t, float | int) and isinstance(wall, float | int) and math.isfinite(t) and math.isfinite(wall)
    return Observation(t, wall, found, str(source)) if times and isinstance(found, Fact) else None


def _next_state(state: State, observation: Observation) -> State | None:
    try:
        return decide(state, observation).state
    except _NO_STATE:
        return None


def _no_journal(error: sqlite3.DatabaseError) -> bool:
    """Is the file itself at fault? What Python's module finds by itself has no code, and is the file's fault, too."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF in _NO_JOURNAL
