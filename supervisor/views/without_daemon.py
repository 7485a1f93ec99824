"""A run that no daemon watches: since when and why, what it said last, and what lives of its job. Reads only."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.base.errors import SupervisorError
from supervisor.core.facts import Role, StepDone
from supervisor.core.launcher import who
from supervisor.core.moves import EXIT_PERSON, EXIT_UNFIT
from supervisor.core.state import State
from supervisor.evidence.ends import tail_of
from supervisor.journal import attempt_logs
from supervisor.journal.attempt_folders import attempts
from supervisor.journal.journal import open_read_only
from supervisor.primerl.logs import parse_line
from supervisor.process import attached, run_lock
from supervisor.process.attempts import attempt_dir
from supervisor.process.survivors import Belongings, alive
from supervisor.views import incidents
from supervisor.views.run_report import newest_state

TAIL_BYTES = 128 << 10
ROLES: tuple[Role, ...] = ("launcher", "trainer", "orchestrator", "job")  # lines of these tell steps
LOG_SLACK_S = 2.0  # a log's line is written a moment after the journal's row of it


def look(state_dir: Path, run_id: str, log_files: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What is known of it, as JSON values; ``log_files``: the daemon's own, where more than its journal may stand.

    {since, ended (exit code, None where it said no farewell), why (it ended), finished, last_words {wall, sentence},
    daemon_pid (it lives and does not answer), parent_pid (it will start the daemon again), job {attempt, pids {pid:
    name}, step, silent_since, gone [which of its main parts]}, incident, worthless (why training is worth nothing),
    held (a person stopped the run, and a new daemon keeps it so), progress (its last step), published, last_attempt,
    ended_otherwise (than by the incident's root cause, which is an earlier attempt's), run_file (that it was started
    with)}. Times in Unix time; None for what is not known, or not there.
    """
    holder, parent = run_lock.read_holder(state_dir / "lock")
    found: dict[str, Any] = {
        "since": None,
        "ended": None,
        "finished": False,
        "last_words": None,
        "daemon_pid": holder[0] if holder is not None and alive(holder) else None,
        "parent_pid": parent[0] if parent is not None and alive(parent) else None,
        "job": living_job(state_dir, run_id),
        "incident": None,
        "worthless": None,
        "why": None,
        "held": _did_a_person_stop(state_dir),
        "progress": None,
        "published": None,
        "last_attempt": 0,
        "ended_otherwise": False,
        "run_file": None,
    }
    with contextlib.suppress(OSError, sqlite3.Error, SupervisorError):
        found |= _read_journal(state_dir, found["job"])
    if found["last_words"] is not None:
        _newest_line(found, (state_dir / "daemon.jsonl", *log_files))
    with contextlib.suppress(SupervisorError):
        found["incident"] = next(iter(incidents.read_incidents(state_dir)), None)
        roots = found["incident"]["roots"] if found["incident"] else []
        found["ended_otherwise"] &= any(one["attempt"] < found["last_attempt"] for one in roots[-1:])
    return found


def _read_journal(state_dir: Path, job: dict[str, Any] | None) -> dict[str, Any]:
    marks = ",".join("?" * len(incidents.AFTERWARDS))
    with contextlib.closing(open_read_only(state_dir / "journal.db")) as db:
        seen = db.execute("SELECT wall FROM observations ORDER BY id DESC LIMIT 1").fetchone()
        began = db.execute(
            "SELECT id FROM observations WHERE source = 'daemon' AND fact LIKE '{\"@\":\"DaemonStarted\"%' "
            "ORDER BY id DESC LIMIT 1"
        ).fetchone()
        ended = db.execute(
            'SELECT wall, action FROM actions WHERE observation >= ? AND action LIKE \'{"@":"Exit"%\' '
            "ORDER BY id DESC LIMIT 1",
            (began[0] if began else 0,),
        ).fetchone()
        said = db.execute(
            f"SELECT wall, event, sentence FROM events WHERE event NOT IN ({marks}) ORDER BY id DESC LIMIT 1",  # noqa: S608
            incidents.AFTERWARDS,
        ).fetchone()
        step = db.execute("SELECT sentence FROM events WHERE event = 'step' ORDER BY id DESC LIMIT 1").fetchone()
        worth = db.execute(
            "SELECT level, sentence FROM events WHERE event = 'worth' ORDER BY id DESC LIMIT 1"
        ).fetchone()
        launched = db.execute(
            "SELECT sentence FROM events WHERE event = 'launched' ORDER BY id DESC LIMIT 1"
        ).fetchone()
        # What it said of its end is not what its log ends with: records and claims come after that.
        why = None
        with contextlib.suppress(sqlite3.Error):  # of a journal that is damaged in its older part alone
            why = incidents.last_word(db)
        state = None
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # of another version
            state = newest_state(db)
    found: dict[str, Any] = {"since": float(seen[0]) if seen else None}
    if said:
        found["last_words"] = {"wall": float(said[0]), "sentence": str(said[2])}
    found["progress"] = step and step[0]
    if state is not None:
        found["published"] = state.store.published
    if job is not None and state is not None and job["attempt"] == state.attempt.number:
        parts = [one for one in state.job.processes_here() if one.key or one.role == "launcher"]
        gone = [who(one.role) for one in parts if not alive((one.pid, one.start_ticks))]
        job["gone"] = list(dict.fromkeys(gone))
    if worth and worth[0] != "info":
        found["worthless"] = str(worth[1])
    if ended:
        action = json.loads(ended[1])
        found |= {"since": float(ended[0]), "ended": action.get("code"), "why": str(action.get("reason") or "")}
    if state is not None:
        found["run_file"] = _run_file_of(state)
        found["last_attempt"] = state.attempt.number
        began = launched is not None and str(launched[0]).startswith(f"Attempt {state.attempt.number} is launched")
        several = len({one.signature for one in state.recovery.failures}) > 1
        found["ended_otherwise"] = found.get("ended") in (EXIT_PERSON, EXIT_UNFIT) and (several or not began)
    found["finished"] = why is not None and why[1] == "finished"
    if why is not None and (ended or found["finished"]):
        found["last_words"] = {"wall": why[0], "sentence": why[2]}
    return found


def find_run_file(state_dir: Path) -> Path | None:
    """The run file that its newest daemon was started with, if that still exists; None also without a journal."""
    told = None
    with (
        contextlib.suppress(OSError, sqlite3.Error, AttributeError, KeyError, TypeError, ValueError),
        contextlib.closing(open_read_only(state_dir / "journal.db")) as db,
    ):
        told = _run_file_of(newest_state(db))
    return Path(told) if told else None


def _run_file_of(state: State) -> str | None:
    told = shlex.split(state.settings.run_file)
    return next((path for path in told if os.path.isabs(path) and os.path.isfile(path)), None)  # noqa: PTH113, PTH117 (never raise)


def _did_a_person_stop(state_dir: Path) -> bool:
    """Did a person stop the run? The daemon's own record of orders says it (``daemon.witness``)."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        told = json.loads((state_dir / "witness.json").read_bytes()[:TAIL_BYTES])
        return told["orders"]["wanted"] is False
    return False


def _newest_line(found: dict[str, Any], files: tuple[Path, ...]) -> None:
    """Take the last line of a log that says more than the journal: the journal's disk was full, or its parent spoke."""
    if found["ended"] is not None:
        return
    for path in files:
        with contextlib.suppress(OSError):
            wall = path.stat().st_mtime
            if wall <= found["last_words"]["wall"] + LOG_SLACK_S:
                continue
            lines = tail_of(path, TAIL_BYTES).decode(errors="replace").splitlines()
            sentence = next((text for line in reversed(lines) if (text := _sentence_of_line(line))), "")
            if sentence:
                found["last_words"] = {"wall": wall, "sentence": sentence}


def _sentence_of_line(line: str) -> str:
    with contextlib.suppress(ValueError, RecursionError):
        told = json.loads(line)
        if isinstance(told, dict):
            return str(told.get("sentence") or "")
    return line.strip()


# ---------------------------------------------------------------- the job


def living_job(state_dir: Path, run_id: str) -> dict[str, Any] | None:
    """What lives of the newest attempt; None where nothing does."""
    numbers = attempts(state_dir)
    if not numbers:
        return None
    folder = attempt_dir(state_dir, numbers[-1])
    belongings = Belongings(folder, (), run_id)
    living = [one.pid for one in belongings.list_living() if one.identity not in belongings.shims]
    if (by_hand := attached.find_living(folder)) is not None:
        living.append(by_hand.process[0])
    if not living:
        return None
    logs = [log for log in attempt_logs.logs_of(state_dir, numbers[-1]) if not log.pieces[-1].name.endswith(".gz")]
    steps = [step for role in ROLES for log in logs if log.role == role for step in _newest_step(role, log.pieces[-1])]
    newest = max((log.changed_wall for log in logs), default=None)
    return {
        "attempt": numbers[-1],
        "pids": {pid: _name_of_process(pid) for pid in living},
        "step": max(steps, default=None),
        "silent_since": newest,
        "gone": [],
    }


def _name_of_process(pid: int) -> str:
    """The program of a process, or the title that it gave itself."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    return words[0].rpartition("/")[2].strip()[:40] or "unknown"


def _newest_step(role: Role, path: Path) -> Iterator[int]:
    """The newest step in a log's end."""
    for line in reversed(tail_of(path, TAIL_BYTES).decode(errors="replace").splitlines()):
        for fact in parse_line(role, line):
            if isinstance(fact, StepDone):
                yield fact.step
                return
