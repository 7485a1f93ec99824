"""The journal's older part: compressed chunks, each with the state at its start, so that a replay can begin there.

A chunk holds up to a thousand observations as lines of a trace file (``journal.trace``) with what was decided on
each. Rows become a chunk in one transaction, a small piece at a time: a kill in the middle leaves the rows.

Kept are the last day and the last ``KEEP_OBSERVATIONS``, within ``KEEP_BYTES``, and what lies around the last
``KEEP_INCIDENTS`` incidents, within ``INCIDENT_BYTES``; the oldest goes first.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator

from supervisor.base.records import dataclass

KEEP_S = 86_400.0
KEEP_OBSERVATIONS = 200_000
KEEP_BYTES = 32 << 20
KEEP_INCIDENTS = 20
INCIDENT_BYTES = 32 << 20
BEFORE_INCIDENT_S = 600.0
AFTER_INCIDENT_S = 60.0
PIECE = 1000  # observations that become one chunk
LIVE_SNAPSHOTS = 5  # so many stay as they are, should the newest be of another version

SCHEMA = """
CREATE TABLE IF NOT EXISTS chunks (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, from_t REAL NOT NULL, to_t REAL NOT NULL,
    bytes INTEGER NOT NULL, state BLOB, lines BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rebased (observation INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS incidents (
    id INTEGER PRIMARY KEY, opened REAL NOT NULL, closed REAL, attempt INTEGER NOT NULL, cause TEXT NOT NULL,
    sentence TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_observation ON events (observation);
"""


@dataclass(frozen=True)
class Piece:
    """Consecutive observations as lines of a trace. ``state``: JSON of the state before them, "" where not known.

    ``joined``: they follow the piece before without a gap, and ``state`` is what a replay of that one arrives at.
    """

    first: int
    last: int
    from_t: float
    to_t: float
    state: str
    lines: str
    joined: bool


def compact(db: sqlite3.Connection) -> bool:
    """Turn the oldest rows into one chunk; False when there are not enough of them. Call it outside a transaction."""
    bound = db.execute(
        "SELECT observation FROM snapshots ORDER BY observation DESC LIMIT 1 OFFSET ?", (LIVE_SNAPSHOTS - 1,)
    ).fetchone()
    first = db.execute("SELECT MIN(id) FROM observations").fetchone()[0]
    if bound is None or first is None or first > bound[0]:
        return False
    db.execute("BEGIN IMMEDIATE")
    try:
        end = _end_of_chunk(db, first, min(bound[0], first + PIECE - 1))
        state = db.execute("SELECT state FROM snapshots WHERE observation = ?", (first - 1,)).fetchone()
        rows = db.execute(
            "SELECT MAX(id), MIN(t), MAX(t) FROM observations WHERE id BETWEEN ? AND ?", (first, end)
        ).fetchone()
        packed = zlib.compress("".join(_rows_as_trace(db, first, end)).encode(), 6)
        packed_state = zlib.compress(state[0].encode(), 6) if state else None
        size = len(packed) + len(packed_state or b"")
        db.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)", (first, *rows, size, packed_state, packed))
        db.execute("DELETE FROM observations WHERE id <= ?", (end,))
        db.execute("DELETE FROM actions WHERE observation <= ?", (end,))
        db.execute("DELETE FROM snapshots WHERE observation < ?", (end,))
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return True


def _end_of_chunk(db: sqlite3.Connection, first: int, limit: int) -> int:
    """Where the chunk that begins with ``first`` ends: at a snapshot, so that the next one begins with a state."""
    rebased = db.execute(
        "SELECT MIN(observation) FROM rebased WHERE observation BETWEEN ? AND ?", (first, limit)
    ).fetchone()[0]
    if rebased is not None:
        return int(rebased)
    snapshot = db.execute(
        "SELECT MAX(observation) FROM snapshots WHERE observation BETWEEN ? AND ?", (first, limit)
    ).fetchone()[0]
    return int(snapshot) if snapshot is not None else limit


def forget(db: sqlite3.Connection, now: float) -> None:
    """Delete the chunks that the limits do not keep. ``now`` in seconds of the journal's clock."""
    spans = incident_spans(db)
    newest = db.execute("SELECT COALESCE(MAX(last), 0) FROM chunks").fetchone()[0]
    ordinary = special = 0
    for first, last, from_t, to_t, size in db.execute(
        "SELECT first, last, from_t, to_t, bytes FROM chunks ORDER BY first DESC"
    ).fetchall():
        if any(from_t <= until and to_t >= since for since, until in spans):
            special += size
            keep = special <= INCIDENT_BYTES
        else:
            ordinary += size
            keep = ordinary <= KEEP_BYTES and (to_t >= now - KEEP_S or last > newest - KEEP_OBSERVATIONS)
        if not keep:
            db.execute("DELETE FROM chunks WHERE first = ?", (first,))
    db.execute("DELETE FROM incidents WHERE id <= (SELECT MAX(id) FROM incidents) - 1000")
    db.execute("DELETE FROM rebased WHERE observation < (SELECT COALESCE(MIN(first), 0) FROM chunks) - 1")


def incident_spans(db: sqlite3.Connection, number: int | None = None) -> list[tuple[float, float]]:
    """From ten minutes before an incident to a minute after it, of the last twenty or of one."""
    rows = db.execute("SELECT id, opened, closed FROM incidents ORDER BY id DESC LIMIT ?", (KEEP_INCIDENTS,)).fetchall()
    return [
        (opened - BEFORE_INCIDENT_S, closed + AFTER_INCIDENT_S if closed is not None else float("inf"))
        for known, opened, closed in rows
        if number in (None, known)
    ]


# ---------------------------------------------------------------- reading


def pieces(db: sqlite3.Connection) -> Iterator[Piece]:
    """All that the journal still knows, in order: its chunks, then the rows between its snapshots.

    Works on a journal of an older version as well, which has no chunks.
    """
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    rebased = {number for (number,) in db.execute("SELECT observation FROM rebased")} if "rebased" in tables else set()
    before = None
    if "chunks" in tables:
        for first, last, from_t, to_t, state, lines in db.execute(
            "SELECT first, last, from_t, to_t, state, lines FROM chunks ORDER BY first"
        ):
            text = zlib.decompress(state).decode() if state else ""
            joined = before == first - 1 and before not in rebased
            yield Piece(first, last, from_t, to_t, text, zlib.decompress(lines).decode(), joined)
            before = last
    first, last = db.execute("SELECT MIN(id), MAX(id) FROM observations").fetchone()
    if first is None:
        return
    snapshots = dict(
        db.execute("SELECT observation, state FROM snapshots WHERE observation >= ? ORDER BY observation", (first - 1,))
    )
    starts = sorted({first, *(number + 1 for number in snapshots if number < last)})
    for start, following in zip(starts, [*starts[1:], last + 1], strict=True):
        end = following - 1
        from_t, to_t = db.execute(
            "SELECT MIN(t), MAX(t) FROM observations WHERE id BETWEEN ? AND ?", (start, end)
        ).fetchone()
        joined = before == start - 1 and before not in rebased
        yield Piece(
            start, end, from_t, to_t, snapshots.get(start - 1, ""), "".join(_rows_as_trace(db, start, end)), joined
        )
        before = end


def _rows_as_trace(db: sqlite3.Connection, first: int, last: int) -> Iterator[str]:
    """The rows ``first`` to ``last`` as lines of a trace."""
    said: dict[int, str] = {}
    by_observation: dict[int, list[str]] = {}
    for number, observation, level, event, sentence, fields in db.execute(
        "SELECT id, observation, level, event, sentence, fields FROM events WHERE observation BETWEEN ? AND ?",
        (first, last),
    ):
        pairs = [list(pair) for pair in json.loads(fields).items()]
        say = {"@": "Say", "level": level, "event": event, "sentence": sentence, "fields": pairs}
        text = json.dumps(say, separators=(",", ":"))
        said[number] = text
        by_observation.setdefault(observation, []).append(text)
    decisions: dict[int, list[str]] = {}
    for observation, text in db.execute(
        "SELECT observation, action FROM actions WHERE observation BETWEEN ? AND ? ORDER BY id", (first, last)
    ):
        decisions.setdefault(observation, []).append(text)
    for number, t, wall, source, fact in db.execute(
        "SELECT id, t, wall, source, fact FROM observations WHERE id BETWEEN ? AND ? ORDER BY id", (first, last)
    ):
        yield f'{{"t":{t!r},"wall":{wall!r},"source":{json.dumps(source)},"fact":{fact}}}\n'
        decided = _in_order(decisions.get(number, []), said, by_observation.get(number, []))
        if decided:
            yield f'{{"decision":[{",".join(decided)}]}}\n'


def _in_order(actions: list[str], said: dict[int, str], sentences: list[str]) -> list[str]:
    """Sentences are kept once, among the events, and named by number among the actions (not so in old journals)."""
    named = [json.loads(text).get("said") if text.startswith('{"said"') else None for text in actions]
    if sentences and not any(number is not None for number in named):
        return [*sentences, *actions]
    return [
        text if number is None else said.get(number, '{"@":"Say","level":"","event":"","sentence":""}')
        for text, number in zip(actions, named, strict=True)
    ]
