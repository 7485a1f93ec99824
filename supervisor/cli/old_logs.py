"""``supervisorctl tail`` straight from the state folder: logs of earlier attempts, and without a daemon any."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import tomllib
from pathlib import Path

from supervisor import attempt_logs, homes
from supervisor.attempt_logs import AttemptLog, logs_of
from supervisor.cli import render
from supervisor.cli.client import NotThereError, UnclearError
from supervisor.cli.where import UsageError

RUN_FILES = Path("/etc/rl-supervisor")
SYSTEM_STATE = Path("/var/lib/rl-supervisor")
NOTHING = "No run has left a log on this machine: name its state folder with --state-dir."


def state_dirs() -> dict[str, Path]:
    """State folders on this machine, by the run's name: those in the usual places, and those that run files name."""
    found: dict[str, Path] = {}
    own = homes.config_home()
    for place in (homes.state_home() / "rl-supervisor", SYSTEM_STATE):
        found.update({folder.parent.name: folder.parent for folder in place.glob("*/attempts")})
    for path in (*sorted(RUN_FILES.glob("*.toml")), *(sorted((own / "rl-supervisor").glob("*.toml")) if own else ())):
        try:
            run = tomllib.loads(path.read_text())["run"]
            folder = Path(str(run["state_dir"])).expanduser()
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):
            continue  # not ours to read, it names none, or one in a home that is not there
        if (folder / "attempts").is_dir():
            found[str(run.get("id"))] = folder
    return found


def find(name: str | None) -> Path:
    """The state folder of a run, or of the only one. Raises NotThereError or UsageError."""
    found = state_dirs()
    if name is not None:
        if name not in found:
            raise NotThereError(
                f"There is no state folder of a run named {name} in the usual places: name it with --state-dir."
            )
        return found[name]
    if not found:
        raise NotThereError(NOTHING)
    if len(found) > 1:
        raise UsageError(f"{len(found)} runs have left logs on this machine, name one: {', '.join(sorted(found))}.")
    return next(iter(found.values()))


def show(options: argparse.Namespace, state_dir: Path, role: str, lines: int) -> int:
    """Print a log's last lines, or without a role what there is."""
    folder = state_dir / "attempts"
    if not os.access(folder, os.R_OK | os.X_OK):
        why = "you may not read it. Try sudo" if folder.is_dir() else "it holds no attempts"
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
        sys.stdout.write(render.log_text(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    return 0


def _list(options: argparse.Namespace, state_dir: Path, numbers: list[int]) -> int:
    found = {number: logs_of(state_dir, number) for number in numbers}
    if options.json:
        print(json.dumps([_as_json(log) for logs in found.values() for log in logs], ensure_ascii=False))
        return 0
    rows = [
        (str(number), render.safe(log.role), _size(log.size_bytes), _when(log), log.state, render.safe(_place(log)))
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


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


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
