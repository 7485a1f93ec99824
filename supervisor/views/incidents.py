"""The incidents of a run for people, out of its journal and the bundles beside it. Nothing is written.

Works beside a living daemon, which asks it for its own answers, and on the folder of one that is gone.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.base.errors import SupervisorError
from supervisor.evidence.keeping import Kept, bundles
from supervisor.evidence.known import bundles_dir
from supervisor.journal.journal import open_read_only

QUIET = ("step", "published", "pruned", "swept", "store-checked", "skipped", "config-changed", "claimed")
"""Events that go on beside any incident and say nothing of it."""
DONE = frozenset(
    {
        "policy", "would", "one-step-back", "stopped-job", "engine", "survivors", "backing-off", "restored", "launched",
        "gave-up", "unfit", "rollback", "stopped", "disk-room",
    }
)  # fmt: skip
"""Events that say what was done about it."""
AFTERWARDS = ("stopped-job", "evidence", "root-cause", "leave-marked")
"""Events that follow what is of note: records of it, and what the store was told."""
_LAUNCHED = re.compile(r"Attempt (\d{1,9}) is launched")
_ENDING = ("stop ", "shutdown ", "restart ", "rollback ")  # commands that end an attempt
MOST_STORY = 300
ROOT = ("name", "role", "text", "remedy")
MOST_NUMBER = 1 << 53
EXPLAIN_BYTES = 1 << 20
AFTER_S = 2.0  # what is said in the moment of the end still belongs to it


@dataclass
class _Found:
    """One row of the journal, in Unix time."""

    id: int
    opened: float
    closed: float | None
    attempt: int
    cause: str
    sentence: str
    step: int | None = None  # with which it was over
    noticed: float | None = None  # when the verdict was given
    story: list[dict[str, Any]] = field(default_factory=list)
    roots: list[dict[str, Any]] = field(default_factory=list)


def last_word(db: sqlite3.Connection) -> tuple[float, str, str] | None:
    """(Unix time, event, sentence) of the last thing of note that the run's daemon wrote into its journal: why it
    ended, as a rule.
    """
    quiet = (*QUIET, *AFTERWARDS)
    marks = ",".join("?" * len(quiet))
    row = db.execute(
        f"SELECT wall, event, sentence FROM events WHERE event NOT IN ({marks}) ORDER BY id DESC LIMIT 1",  # noqa: S608
        quiet,
    ).fetchone()
    return (float(row[0]), str(row[1]), str(row[2])) if row else None


def ending_orders(state_dir: Path) -> dict[int, str]:
    """By attempt: the last order that ends one, as a sentence. {} where nothing can be read."""
    found: dict[int, str] = {}
    attempt = 0
    try:
        with contextlib.closing(open_read_only(state_dir / "journal.db")) as db:
            rows = db.execute("SELECT event, sentence FROM events WHERE event IN ('launched', 'command') ORDER BY id")
            for event, sentence in rows:
                if event == "launched" and (launched := _LAUNCHED.match(str(sentence))):
                    attempt = int(launched[1])
                elif str(sentence).startswith(_ENDING):
                    found[attempt] = str(sentence)
    except (OSError, sqlite3.Error, SupervisorError):
        pass  # the logs are read without it
    return found


def read_incidents(state_dir: Path, number: int | None = None, *, only_open: bool = False) -> list[dict[str, Any]]:
    """Incidents as JSON values, newest first; the one that is named with its whole story. Times in Unix time.

    {id, open, opened, noticed, closed, down_s, attempt, cause, sentence, roots [{attempt, name, role, text, remedy}],
    signals [sentence], done [sentence], recovered_step, bundles [{path, attempt, collected, seconds, size_bytes, parts
    [{name, state, seconds, files, notes}]}], story [{wall, level, event, sentence}]}; ``story`` only of one that is
    named.

    Raises SupervisorError when there is no journal, it cannot be read, or it knows no incident of that number.
    """
    path = state_dir / "journal.db"
    try:
        path.stat()
    except PermissionError:
        raise SupervisorError(f"You may not read the journal {path}. Try sudo.") from None
    except OSError:
        raise SupervisorError(
            f"There is no journal in {state_dir}: no run was watched with this state folder."
        ) from None
    try:
        with contextlib.closing(open_read_only(path)) as db:
            db.execute("BEGIN")
            found, identity, now = _read_journal(db)
    except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:  # the last three where a person edited it
        raise SupervisorError(f"The journal {path} cannot be read: {error}.") from error
    if number is not None:
        known = [str(one.id) for one in found][-20:]
        found = [one for one in found if one.id == number]
        if not found:
            kept = f"it knows {', '.join(known)}" if known else "it knows none"
            raise SupervisorError(f"The journal keeps no incident {number}; {kept}.")
    elif only_open:
        found = [one for one in found if one.closed is None]
    there = [one for one in bundles(bundles_dir(state_dir)) if one.journal in ("", identity)]
    return [_value_of_incident(one, there, now, story=number is not None) for one in reversed(found)]


def _read_journal(db: sqlite3.Connection) -> tuple[list[_Found], str, float]:
    """Incidents oldest first, the journal's identity, and the wall time of the last thing that was seen."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    identity = db.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
    last = db.execute("SELECT t, wall FROM observations ORDER BY id DESC LIMIT 1").fetchone() or (0.0, 0.0)
    if "incidents" not in tables:
        return [], str(identity[0]) if identity else "", float(last[1])
    offset = last[1] - last[0]  # the journal's clock goes on over boots; wall time is only a label
    found = [
        _Found(number, opened + offset, None if closed is None else closed + offset, attempt, cause, sentence)
        for number, opened, closed, attempt, cause, sentence in db.execute(
            "SELECT id, opened, closed, attempt, cause, sentence FROM incidents ORDER BY id"
        )
    ]
    marks = ",".join("?" * len(QUIET))
    rows = db.execute(
        f"SELECT wall, level, event, sentence, fields FROM events WHERE event NOT IN ({marks}) ORDER BY id",  # noqa: S608
        QUIET,
    ).fetchall()
    said = [
        (float(wall), str(level), str(event), str(text), _load_fields(more)) for wall, level, event, text, more in rows
    ]
    by_id = {one.id: one for one in found}
    for wall, _, event, _, more in said:
        one = by_id.get(number) if isinstance(number := more.get("incident"), int) else None
        if one is not None and event == "verdict" and one.noticed is None:
            one.noticed = wall
            one.opened = min(one.opened, wall)  # the clock may have been set meanwhile
        if one is not None and event == "root-cause":
            one.roots.append({name: more.get(name) for name in ("attempt", *ROOT)})
        if one is not None and event == "incident-closed":
            one.closed = wall
            one.step = more["step"] if isinstance(more.get("step"), int) else None
    for one, following in zip(found, [*found[1:], None], strict=False):
        until = one.closed + AFTER_S if one.closed is not None else float("inf")
        if following is not None:
            until = min(until, following.opened)
        one.story = [
            {"wall": wall, "level": level, "event": event, "sentence": text}
            for wall, level, event, text, _ in said
            if one.opened - AFTER_S <= wall <= until
        ][:MOST_STORY]
    return found, str(identity[0]) if identity else "", float(last[1])


def _short_sentence(one: _Found, event: Mapping[str, Any]) -> str:
    """What was done, without the words that the incident's own sentence begins with, and without a long command."""
    sentence = str(event["sentence"])
    if event["event"] == "launched":
        return f"{sentence.partition(': ')[0]}."
    parts = sentence.split(". ")
    while len(parts) > 1 and parts[0] in one.sentence:
        del parts[0]
    return ". ".join(parts)


def _load_fields(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (RecursionError, TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _value_of_incident(one: _Found, there: Sequence[Kept], now: float, *, story: bool) -> dict[str, Any]:
    mine = [bundle for bundle in there if bundle.incident == one.id]
    # What was begun before it was noticed, the attempt that broke among it, was not done about it.
    since = one.opened if one.noticed is None else one.noticed
    done = [_short_sentence(one, event) for event in one.story if event["event"] in DONE and event["wall"] >= since]
    value = {
        "id": one.id,
        "open": one.closed is None,
        "opened": one.opened,
        "noticed": one.noticed,
        "closed": one.closed,
        "down_s": round(max(0.0, (one.closed if one.closed is not None else now) - one.opened), 3),
        "attempt": one.attempt,
        "cause": one.cause,
        "sentence": one.sentence,
        "roots": one.roots,
        "signals": _signals_of_incident(mine),
        "done": list(dict.fromkeys(done)),
        "recovered_step": one.step,
        "bundles": [_bundle_of_incident(bundle) for bundle in mine],
    }
    return {**value, "story": one.story} if story else value


def _bundle_of_incident(one: Kept) -> dict[str, Any]:
    told = {name: _number_or_none(one.manifest.get(name)) for name in ("collected", "seconds", "size_bytes")}
    parts = [_part_of_bundle(part) for part in _list_or_empty(one.manifest.get("parts")) if isinstance(part, dict)]
    return {"path": str(one.folder), "attempt": one.attempt, **told, "parts": parts, "finished": bool(one.manifest)}


def _part_of_bundle(told: Mapping[str, Any]) -> dict[str, Any]:
    """One part of a bundle, of a manifest that a full disk or a person may have changed."""
    texts = {name: str(told.get(name) or "") for name in ("name", "state")}
    files = told.get("files")
    named = list(files) if isinstance(files, dict) else _list_or_empty(files)  # {name: bytes}
    lists = {"files": [str(one) for one in named], "notes": [str(one) for one in _list_or_empty(told.get("notes"))]}
    return {**texts, "seconds": _number_or_none(told.get("seconds")) or 0.0, **lists}


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number_or_none(value: Any) -> float | int | None:
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST_NUMBER
    return value if right else None


def _signals_of_incident(mine: Sequence[Kept]) -> list[str]:
    """What convicted, as the first bundle's explanation has it; [] where there is none."""
    for bundle in mine:
        try:
            with (bundle.folder / "explain.json").open("rb") as file:
                verdict = json.loads(file.read(EXPLAIN_BYTES))["verdict"]
            return [str(signal["sentence"]) for signal in verdict["signals"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return []
