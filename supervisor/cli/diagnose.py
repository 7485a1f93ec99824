"""``rl-supervisor diagnose``: what went wrong, read from logs, a bundle of evidence, or standard input."""

from __future__ import annotations

import io
import itertools
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from supervisor.base.errors import SupervisorError, UsageError
from supervisor.base.secrets import mask_value
from supervisor.cli import render
from supervisor.cli.reading import Progress
from supervisor.cli.terminal import say
from supervisor.diagnosis import telling
from supervisor.diagnosis.causes import diagnose as judge
from supervisor.diagnosis.places import Source, Sources, open_unpacked, sources
from supervisor.diagnosis.scan import scan
from supervisor.diagnosis.seen import Log

NAMED, UNREADABLE, NOTHING_KNOWN = 0, 1, 3


def diagnose(paths: Sequence[str], *, as_json: bool) -> int:
    """Say it. 0: something is named; 3: nothing known was found, or the run is well; 1: nothing could be read."""
    places = _places_to_read(paths)
    left_out = [place.left_out for place in places if place.left_out]
    logs: list[Log] = []
    progress = Progress(itertools.chain.from_iterable(places))
    stdin = io.BytesIO() if sys.stdin is None else sys.stdin.buffer  # None: it was closed before the start
    for source in itertools.chain.from_iterable(places):
        try:
            with open_unpacked(source, stdin) as stream:
                logs += scan(
                    stream, source.name, source.role, attempt=source.attempt, kernel=source.kernel, progress=progress
                )
        except OSError as error:
            print(f"{source.name} cannot be read: {error.strerror or error}.", file=sys.stderr)
    progress.end()
    if not logs:
        print(" ".join(["There was nothing to read: no log, or only empty ones.", *left_out]), file=sys.stderr)
        return UNREADABLE
    seen = {attempt: one for place in places for attempt, one in place.seen.items()}
    found = judge(logs, seen, {attempt: one for place in places for attempt, one in place.orders.items()})
    if as_json:
        say(json.dumps(mask_value(telling.as_json(found, logs, left_out)), ensure_ascii=False, indent=1))
    else:
        say("\n".join(render.safe(line) for line in telling.text(found, logs, left_out, render.columns()).splitlines()))
    return NAMED if found[-1].has_named_cause else NOTHING_KNOWN


def _places_to_read(paths: Sequence[str]) -> list[Sources]:
    if not paths:
        return [_of_this_machine()]  # standard input may be the rest of a script, so it has to be named
    found: list[Sources] = []
    for name in paths:
        try:
            found.append(Sources([Source("stdin")]) if name == "-" else _logs_of_place(name))
        except UnreadableError as error:
            if len(paths) == 1:
                raise
            print(render.safe(str(error)), file=sys.stderr)  # one log that went away hides none of the others
    return found


def _logs_of_place(name: str) -> Sources:
    """The logs of a file, a folder or a run file. Raises UnreadableError where there are none."""
    of_a_run = name.endswith(".toml")
    path = _state_dir(Path(name)) if of_a_run else Path(name)
    try:
        here = sources(path)
    except OSError as error:
        if of_a_run and isinstance(error, FileNotFoundError):
            raise _never_started(name) from None
        raise UnreadableError(f"{path} cannot be read: {error.strerror}.") from None
    if not here and of_a_run:
        raise _never_started(name)
    if not here:
        raise UnreadableError(
            f"{path} holds no logs (no file that ends in .log, .stdout, .stderr, .out or .err). "
            f"{here.left_out or 'Name the file.'}"
        )
    return here


class UnreadableError(SupervisorError):
    """What was named cannot be read."""

    exit_code = UNREADABLE


def _never_started(run_file: str) -> UnreadableError:
    return UnreadableError(
        f"The job of {run_file} has no logs here: it was never started. What is in its way: "
        f"rl-supervisor check {shlex.quote(run_file)}"
    )


def _of_this_machine() -> Sources:
    from supervisor.api.client import NotThereError
    from supervisor.cli import which  # late: only here

    try:
        run = which.find_run(None)
    except NotThereError:
        raise UnreadableError(
            f"No run is known on this machine.{which.look().try_sudo()} Name its logs, a file or a folder: "
            "rl-supervisor diagnose outputs/logs (- is standard input: rl-supervisor diagnose -)"
        ) from None
    found = sources(run.state_dir) if run.state_dir is not None else Sources()
    if not found:
        raise UsageError(f"Nothing is logged here for {run.id} yet. Name its logs: rl-supervisor diagnose outputs/logs")
    return found


def _state_dir(run_file: Path) -> Path:
    from supervisor.cli import which

    run = which.of_file(run_file)
    if run.state_dir is None:
        raise UsageError(f"The run of {run_file} has no folder here: nothing of it was ever started by this user.")
    return run.state_dir
