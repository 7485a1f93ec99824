"""Logs of a run straight from its state folder: those of earlier attempts, and without a daemon any."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from supervisor.api.client import NotThereError, UnclearError
from supervisor.journal import attempt_logs
from supervisor.journal.attempt_folders import attempts
from supervisor.journal.attempt_logs import AttemptLog, logs_of


def list_logs(state_dir: Path, attempt: int | None) -> list[dict[str, Any]]:
    """Every log that is kept, or those of one attempt. Raises NotThereError or UnclearError."""
    numbers = _attempt_numbers(state_dir, attempt)
    chosen = numbers if attempt is None else [attempt]
    return [_as_json(log) for number in chosen for log in logs_of(state_dir, number)]


def read_log(state_dir: Path, attempt: int | None, role: str, lines: int) -> dict[str, Any]:
    """The last lines of a role's log, of the newest attempt where none is named. Raises as ``list_logs``."""
    numbers = _attempt_numbers(state_dir, attempt)
    attempt = numbers[-1] if attempt is None else attempt
    there = logs_of(state_dir, attempt)
    log = next((one for one in there if one.role == role), None)
    if log is None:
        roles = ", ".join(sorted({one.role for one in there}))
        known = f"there are {roles}" if roles else "it has none, or they were deleted (`logs.max_mb`)"
        raise NotThereError(f"There is no log of {role!r} of attempt {attempt}; {known}.")
    try:
        text = "".join(f"{line}\n" for line in attempt_logs.last_lines(log.pieces, lines))
    except OSError as error:
        raise UnclearError(f"{log.pieces[-1]} cannot be read: {error.strerror}.") from None
    return {"role": role, "attempt": attempt, "path": str(log.pieces[-1]), "text": text}


def _attempt_numbers(state_dir: Path, attempt: int | None) -> list[int]:
    """The numbers of all that there are; ``attempt`` has to be one of them."""
    folder = state_dir / "attempts"
    if not os.access(folder, os.R_OK | os.X_OK):
        # os.path, since Path raises where a folder above may not be entered.
        closed = os.path.isdir(folder) or _is_closed(state_dir)  # noqa: PTH112
        why = "you may not read it. Try sudo" if closed else "it holds no attempts"
        raise UnclearError(f"{state_dir} says nothing: {why}.")
    numbers = attempts(state_dir)
    if not numbers:
        raise NotThereError(f"Nothing was ever started from {state_dir}: there is no attempt.")
    if attempt is not None and attempt not in numbers:
        raise NotThereError(f"There is no attempt {attempt} in {state_dir}; there are {_spans_in_words(numbers)}.")
    return numbers


def _is_closed(folder: Path) -> bool:
    """Does it, or a folder above it, keep this user out?"""
    try:
        folder.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(folder, os.X_OK)


def _as_json(log: AttemptLog) -> dict[str, Any]:
    return {
        "attempt": log.attempt,
        "role": log.role,
        "state": log.state,
        "size_bytes": log.size_bytes,
        "changed": log.changed_wall,
        "paths": [str(path) for path in log.pieces],
    }


def _spans_in_words(numbers: list[int]) -> str:
    """1 to 4, 6."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans)
