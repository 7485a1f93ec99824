"""A journal as lines of a trace, for a replay elsewhere. ``journal.trace`` reads them."""

from __future__ import annotations

import contextlib
import gzip
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.base.errors import SupervisorError
from supervisor.base.secrets import mask_value
from supervisor.journal import archive
from supervisor.journal.journal import open_read_only

FORMAT = "rl-supervisor-trace"
VERSION = 1


class TraceError(SupervisorError):
    """A trace that cannot be read: which line, what is wrong with it, what would be right."""


def journal_lines(path: Path, incident: int | None = None) -> list[str]:
    """The journal ``path`` as lines of a trace, read at once and without writing, also while its daemon runs.

    Of one incident: from the newest state that is at least ten minutes older than it. Raises TraceError.
    """
    try:
        db = open_read_only(path)
        try:
            db.execute("BEGIN")
            spans = _span_of_incident(db, path, incident)
            found = [
                piece
                for piece in archive.pieces(db)
                if any(piece.to_t >= since and piece.from_t <= until for since, until in spans)
            ]
        finally:
            db.close()
    except sqlite3.Error as error:
        raise TraceError(f"{path} cannot be read as a journal: {error}.") from error
    return list(_trace_lines(found, path))


def _trace_lines(found: list[archive.Piece], path: Path) -> Iterator[str]:
    # Without a state, only the very first observation of a journal is a place to begin.
    while found and not found[0].state and found[0].first != 1:
        found = found[1:]
    if not found:
        raise TraceError(f"{path} holds nothing that can be replayed yet.")
    header: dict[str, Any] = {"format": FORMAT, "version": VERSION, "by": __version__, "decisions": True}
    if found[0].state:
        header["state"] = json.loads(found[0].state)
    yield json.dumps(header, separators=(",", ":")) + "\n"
    before = found[0].first - 1
    for piece in found:
        gap = piece.first != before + 1
        if piece is not found[0] and piece.state and (gap or not piece.joined):
            yield f'{{"state":{piece.state}}}\n'
        if not piece.state and gap:
            continue
        yield from piece.lines.splitlines(keepends=True)
        before = piece.last


def _span_of_incident(db: sqlite3.Connection, path: Path, incident: int | None) -> list[tuple[float, float]]:
    if incident is None:
        return [(float("-inf"), float("inf"))]
    with contextlib.suppress(sqlite3.OperationalError):  # a journal of a version that kept no list of incidents
        if found := archive.incident_spans(db, incident):
            return found
        known = [str(number) for (number,) in db.execute("SELECT id FROM incidents ORDER BY id")]
        kept = f"it knows {', '.join(known[-archive.KEEP_INCIDENTS :])}." if known else "it knows none."
        raise TraceError(f"{path} keeps no incident {incident}; {kept}")
    raise TraceError(f"{path} was written by a version that kept no list of incidents; replay all of it.")


def for_others(line: str) -> str:
    """A line of a trace as it may leave this machine: journals of older versions hold what the job printed as it was.

    As a value and not as text: what is masked must still be JSON.
    """
    return json.dumps(mask_value(json.loads(line)), separators=(",", ":")) + "\n"


def export(path: Path, incident: int | None, target: Path | None) -> str:
    """Write the journal's trace to ``target`` (gzip where its name says so); the text itself without one."""
    text = "".join(map(for_others, journal_lines(path, incident)))
    if target is None:
        return text
    try:
        if target.suffix == ".gz":
            target.write_bytes(gzip.compress(text.encode(), mtime=0))
        else:
            target.write_text(text)
    except OSError as error:
        raise TraceError(f"{target} cannot be written: {error.strerror}.") from error
    return f"{text.count(chr(10)) - 1} lines are in {target}; see them with: rl-supervisor replay {target}"
