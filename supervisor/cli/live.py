"""What ``supervisorctl top`` and ``supervisorctl status --watch`` become: programs that ask daemons again and again.

Each daemon is asked one question at a time, with a deadline, and the next one some seconds after its answer: however a
daemon hangs or however slow the terminal's line is, no more than one connection of this program is open.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from supervisor.api.client import Client, NotThereError, RefusedError, UnclearError
from supervisor.base.errors import SupervisorError, UsageError
from supervisor.cli import render, which
from supervisor.cli.read_state import READERS
from supervisor.cli.which import Here

EVERY_S = 2.0
DEADLINE_S = 3.0
LASTS = re.compile(r"\b\d[\d.]* (?:s|min|h)\b(?: \d+ (?:s|min)\b)?")


def show(what: str, query: str) -> int:
    """``query``: {name, socket, as_json} as ``supervisorctl`` was asked. Raises SupervisorError."""
    asked = json.loads(query)
    socket = Path(asked["socket"]) if asked["socket"] else None
    if what == "status":
        return watch_status(asked["name"], socket, as_json=asked["as_json"])
    from supervisor.cli.top import Top

    if asked["as_json"] or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal. For a file, a pipe or JSON there is: supervisorctl status --watch")
    return Top(asked["name"], socket).show()


def find_runs(name: str | None, socket: Path | None) -> list[Here]:
    """The run that is named; else all that are watched or live, or where none is watched all that left something."""
    if socket is not None or name not in (None, "all"):
        return [which.find_run(name, socket)]
    return which.list_runs_here(lambda what, path, **query: READERS[what](path, **query))


def ask_daemon(run: Here, page: str, **query: object) -> dict[str, Any]:
    """One question. Raises NotThereError, UnclearError or RefusedError."""
    if run.socket is None:
        run.client  # noqa: B018 (raises, with what to type)
        raise NotThereError(f"No daemon watches {run.id}.")
    return Client(run.socket, DEADLINE_S, run=run.id, advice=run.how_to_start()).get(page, **query)


def ask_status(run: Here) -> dict[str, Any]:
    """Its status, or why there is none in the form of one."""
    try:
        return ask_daemon(run, "/v1/status")
    except NotThereError as error:
        return {"run": run.id or str(run.socket), "state": "not-running", "sentence": str(error)}
    except (UnclearError, RefusedError) as error:
        return {"run": run.id or str(run.socket), "state": "unknown", "sentence": str(error)}


def watch_status(name: str | None, socket: Path | None, *, as_json: bool) -> int:
    """A line for each change of a run, until Ctrl-C. Raises UsageError or ConfigError where no such run is known."""
    paint = render.Paint.for_stdout()
    told: dict[str, str] = {}
    known = {run.id: run for run in find_runs(name, socket)}
    try:
        while True:
            for run in known.values():
                _tell_change(ask_status(run), told, paint, as_json=as_json)
            if not known:
                _tell_change(
                    {"run": "", "state": "not-running", "sentence": which.no_run()}, told, paint, as_json=as_json
                )
            time.sleep(EVERY_S)
            known |= {run.id: run for run in _find_again(name, socket, list(known.values()))}
    except KeyboardInterrupt:
        return 0


def _find_again(name: str | None, socket: Path | None, before: Sequence[Here]) -> Sequence[Here]:
    """A run may get a daemon, or another socket, while it is watched."""
    try:
        return find_runs(name, socket)
    except SupervisorError:
        return before


def _tell_change(status: dict[str, Any], told: dict[str, str], paint: render.Paint, *, as_json: bool) -> None:
    name = render.safe(status.get("run") or "")
    plain = render.headline(status, name)
    change = LASTS.sub("", plain)  # that time goes by is no change
    if told.get(name) == change:
        return
    told[name] = change
    at = datetime.now().astimezone()
    if as_json:
        print(json.dumps({"at": at.timestamp(), **status}, ensure_ascii=False), flush=True)
    else:
        print(f"{at:%Y-%m-%d %H:%M:%S}  {render.headline(status, name, paint)}", flush=True)
