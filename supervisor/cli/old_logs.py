"""``supervisorctl tail`` straight from the state folder: logs of earlier attempts, and without a daemon any."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from supervisor.cli import render
from supervisor.cli.client import NotThereError, UnclearError
from supervisor.core.words import size
from supervisor.journal import attempt_logs
from supervisor.journal.attempt_logs import AttemptLog, logs_of


def show(options: argparse.Namespace, state_dir: Path, role: str, lines: int) -> int:
    """Print a log's last lines, or without a role what there is."""
    folder = state_dir / "attempts"
    if not os.access(folder, os.R_OK | os.X_OK):
        # os.path, since Path raises where a folder above may not be entered.
        closed = os.path.isdir(folder) or _is_closed(state_dir)  # noqa: PTH112
        why = "you may not read it. Try sudo" if closed else "it holds no attempts"
        raise UnclearError(f"{state_dir} says nothing: {why}.")
    numbers = attempt_logs.attempts(state_dir)
    if not numbers:
        raise NotThereError(f"Nothing was ever started from {state_dir}: there is no attempt.")
    if options.attempt is not None and options.attempt not in numbers:
        raise NotThereError(f"There is no attempt {options.attempt} in {state_dir}; there are {_spans(numbers)}.")
    if not role:
        return _list(options, state_dir, numbers if options.attempt is None else [options.attempt])
    attempt = numbers[-1] if options.attempt is None else options.attempt
    there = logs_of(state_dir, attempt)
    log = next((one for one in there if one.role == role), None)
    if log is None:
        roles = ", ".join(sorted({one.role for one in there}))
        known = f"there are {roles}" if roles else "it has none, or they were deleted (`logs.max_mb`)"
        raise NotThereError(f"There is no log of {role!r} of attempt {attempt}; {known}.")
    try:
        text = "".join(f"{line}\n" for line in attempt_logs.last_lines(log, lines))
    except OSError as error:
        raise UnclearError(f"{log.pieces[-1]} cannot be read: {error.strerror}.") from None
    if options.json:
        said = {"role": role, "attempt": attempt, "path": str(log.pieces[-1]), "text": text}
        print(json.dumps(said, ensure_ascii=False))
    else:
        sys.stdout.write(render.log_for_stdout(text))
        sys.stdout.flush()
    return 0


def _is_closed(folder: Path) -> bool:
    """Does it, or a folder above it, keep this user out?"""
    try:
        folder.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(folder, os.X_OK)


def _list(options: argparse.Namespace, state_dir: Path, numbers: list[int]) -> int:
    found = {number: logs_of(state_dir, number) for number in numbers}
    if options.json:
        print(json.dumps([_as_json(log) for logs in found.values() for log in logs], ensure_ascii=False))
        return 0
    rows = [
        (str(number), render.safe(log.role), size(log.size_bytes), _when(log), log.state, render.safe(_place(log)))
        for number, logs in found.items()
        for log in logs
    ]
    if not rows:
        print("There is no log yet.")
        return 0
    print("\n".join(render.table([("attempt", "role", "size", "last line", "kept", "where"), *rows])))
    return 0


def _as_json(log: AttemptLog) -> dict[str, object]:
    return {
        "attempt": log.attempt,
        "role": log.role,
        "state": log.state,
        "size_bytes": log.size_bytes,
        "changed": log.changed_wall,
        "paths": [str(path) for path in log.pieces],
    }


def _place(log: AttemptLog) -> str:
    more = f" and {len(log.pieces) - 1} earlier pieces" if len(log.pieces) > 1 else ""
    return f"{log.pieces[-1]}{more}"


def _when(log: AttemptLog) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(log.changed_wall))


def _spans(numbers: list[int]) -> str:
    """1 to 4, 6."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans)
