"""What ``supervisorctl`` lets ``rl-supervisor`` read: a run's state folder, and the mistakes in a run file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.base.errors import SupervisorError


def print_answer(what: str, path: Path, query: str) -> int:
    """Print ``{"answer": ...}``, or ``{"error": sentence, "kind": name of the error}``."""
    print(json.dumps(answer(what, path, json.loads(query))))
    return 0


def answer(what: str, path: Path, query: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a value."""
    try:
        return {"answer": READERS[what](path, **query)}
    except SupervisorError as error:
        return {"error": str(error), "kind": type(error).__name__}


def _check_run_file(path: Path) -> None:
    from supervisor.config.settings import load

    load(path)


def _read_status(state_dir: Path, *, run_id: str, log_files: list[str]) -> dict[str, Any]:
    from supervisor.views.without_daemon import look

    return look(state_dir, run_id, tuple(map(Path, log_files)))


def _list_living(_: Path, *, folders: Mapping[str, str]) -> list[str]:
    from supervisor.preflight.look import lives

    found = []
    for run_id, folder in folders.items():
        with contextlib.suppress(OSError):  # another user's
            found += [run_id] if lives(Path(folder)) else []
    return found


def _read_incidents(state_dir: Path, *, number: int | None, only_open: bool) -> list[dict[str, Any]]:
    from supervisor.views import incidents

    return incidents.read_incidents(state_dir, number, only_open=only_open)


def _list_logs(state_dir: Path, *, attempt: int | None) -> list[dict[str, Any]]:
    from supervisor.cli import old_logs

    return old_logs.list_logs(state_dir, attempt)


def _read_log(state_dir: Path, *, attempt: int | None, role: str, lines: int) -> dict[str, Any]:
    from supervisor.cli import old_logs

    return old_logs.read_log(state_dir, attempt, role, lines)


READERS: Mapping[str, Callable[..., Any]] = {
    "run-file": _check_run_file,
    "status": _read_status,
    "living": _list_living,
    "incidents": _read_incidents,
    "logs": _list_logs,
    "log": _read_log,
}
