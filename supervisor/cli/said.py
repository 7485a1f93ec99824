"""``supervisorctl tail`` and ``events``: what the job's processes and the supervisor said, also while they go on."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor.api.client import Client, NotThereError, RefusedError, UnclearError
from supervisor.base.errors import UsageError
from supervisor.cli import render, state_folder, which
from supervisor.core.words import size

FOLLOW_S = 0.5
AWAY_S = 600.0  # an upgrade, or a restart by hand: a script that follows a run ends after its daemon
WAIT_EVENTS_S = 25
MOST_LINES = 10_000
LINES = 20


def add_tail(parser: argparse.ArgumentParser) -> None:
    """``[-f] [-n N] [--attempt N] [--state-dir DIR] [NAME] [ROLE]``."""
    add_lines(parser)
    attempt = read_number("an attempt is a whole number")
    parser.add_argument("--attempt", type=attempt, metavar="N", help="of this attempt, however long ago it was")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="the run's state folder; no daemon is asked")
    what = "the run's name or its RUN.toml; launcher, trainer, orchestrator, inference, ..."
    parser.add_argument("what", nargs="*", metavar="[NAME] [ROLE]", help=what)


def add_lines(parser: argparse.ArgumentParser) -> None:
    """``[-f] [-n N]``."""
    parser.add_argument("-f", "--follow", action="store_true", help="go on as more comes, until Ctrl-C")
    count = read_number(f"a number up to {MOST_LINES} is wanted", MOST_LINES)
    parser.add_argument("-n", "--lines", type=count, metavar="N", help=f"so many lines (default {LINES})")


def read_number(wanted: str, most: int = 10**9 - 1) -> Callable[[str], int]:
    """What reads an argument that is a whole number; ``wanted`` says so, for a sentence."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) > most:
            raise argparse.ArgumentTypeError(f"{wanted}, not {text!r}")
        return int(text)

    return read


# ---------------------------------------------------------------- logs


def tail(options: argparse.Namespace) -> int:
    """Print a log's end, or without a role which logs there are. Raises SupervisorError."""
    name, role = _name_and_role(options)
    past = options.attempt is not None or options.state_dir is not None
    if past and options.follow:
        raise UsageError("What an attempt said before does not grow: leave -f out, or --attempt and --state-dir.")
    run = which.find_run(name, options.socket, options.state_dir, role)
    lines = LINES if options.lines is None else options.lines
    if past or not (role or options.follow or options.lines is not None):
        return _tail_left(options, options.state_dir or run.folder(), role, lines)
    try:
        client = run.client
        answer = client.get("/v1/log", lines=lines, **({"role": role} if role else {}))
    except (NotThereError, UnclearError):
        if options.follow or options.socket or run.state_dir is None:
            raise
        return _tail_left(options, run.state_dir, role, lines)  # no daemon runs: what it left says enough
    _print_piece(options, answer, str(answer["text"]))
    while options.follow:
        if int(answer["size"]) <= int(answer["offset"]) or not answer["text"]:
            time.sleep(FOLLOW_S)
        answer = _next_piece(options, client, answer)
    return 0


def _tail_left(options: argparse.Namespace, state_dir: Path, role: str, lines: int) -> int:
    """Straight from the state folder: logs of earlier attempts, and without a daemon any."""
    if role:
        found = state_folder.read("log", state_dir, attempt=options.attempt, role=role, lines=lines)
        if options.json:
            print(json.dumps(found, ensure_ascii=False))
        else:
            sys.stdout.write(render.log_for_stdout(found["text"]))
            sys.stdout.flush()
        return 0
    logs = state_folder.read("logs", state_dir, attempt=options.attempt)
    if options.json:
        print(json.dumps(logs, ensure_ascii=False))
    elif not logs:
        print("There is no log yet.")
    else:
        head = ("attempt", "role", "size", "last line", "kept", "where")
        print("\n".join(render.table([head, *map(_describe_log, logs)])))
    return 0


def _describe_log(log: dict[str, Any]) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(log["changed"]))
    *earlier, newest = log["paths"]
    more = f" and {len(earlier)} earlier pieces" if earlier else ""
    about = str(log["attempt"]), render.safe(log["role"]), size(log["size_bytes"])
    return *about, when, log["state"], render.safe(f"{newest}{more}")


def _name_and_role(options: argparse.Namespace) -> tuple[str | None, str]:
    if len(options.what) > 2:
        raise UsageError("tail takes a run and a role, no more.")
    if len(options.what) == 2:
        name, role = options.what
        if options.run and options.run != name:
            raise UsageError(f"Two runs are named, {options.run} and {name}: name one.")
        return name, role
    word = options.what[0] if options.what else ""
    # One word is a run when there is one of this name, else a role.
    chosen = options.run or options.socket or options.state_dir
    if word and not chosen and which.is_run_name(word):
        return word, ""
    return options.run, word


def _next_piece(options: argparse.Namespace, client: Client, answer: dict[str, Any]) -> dict[str, Any]:
    path, place = answer["path"], {name: answer[name] for name in ("role", "offset", "inode")}
    answer = _ask_patiently(client, "/v1/log", **place)
    if answer["path"] != path or answer["anew"]:
        print(f"==> {render.safe(answer['path'])} <==", file=sys.stderr)
    _print_piece(options, answer, str(answer["text"]))
    return answer


def _ask_patiently(client: Client, page: str, **query: object) -> dict[str, Any]:
    """The daemon's answer, though it is away for minutes; that a person waits for it is said once."""
    until = None
    while True:
        try:
            return client.get(page, **query)
        except RefusedError:
            pass  # between two attempts a role may have no log: the ended one's is kept elsewhere
        except (NotThereError, UnclearError):  # an upgrade, or it was killed: its journal goes on with the same numbers
            if until is None:
                until, more = time.monotonic() + AWAY_S, f"`supervisorctl status {client.named}` says more"
                print(f"No daemon answers at present. Waiting for one; {more}.", file=sys.stderr, flush=True)
            if time.monotonic() > until:
                raise
        time.sleep(FOLLOW_S)


def _print_piece(options: argparse.Namespace, answer: dict[str, Any], text: str) -> None:
    if options.json:
        print(json.dumps({name: answer[name] for name in ("role", "path", "text")}, ensure_ascii=False), flush=True)
        return
    sys.stdout.write(render.log_for_stdout(text))
    sys.stdout.flush()


# ---------------------------------------------------------------- events


def events(options: argparse.Namespace, client: Client) -> int:
    """Print the newest events, and with ``--follow`` those that come. Raises SupervisorError."""
    paint = render.Paint.for_stdout()
    lines = LINES if options.lines is None else options.lines
    found = client.get("/v1/events", after=-1, limit=max(lines, 1))["events"]
    newest = max((int(item["id"]) for item in found), default=0)
    _print_events(options, found[-lines:] if lines else [], paint)
    while options.follow:
        began = time.monotonic()
        found = _ask_patiently(client, "/v1/events", after=newest, limit=500, wait=WAIT_EVENTS_S)["events"]
        newest = max([newest, *(int(item["id"]) for item in found)])
        _print_events(options, found, paint)
        if not found and time.monotonic() - began < FOLLOW_S:  # too many followers: the daemon did not let us wait
            time.sleep(2 * FOLLOW_S)
    return 0


def _print_events(options: argparse.Namespace, found: list[dict[str, Any]], paint: render.Paint) -> None:
    for item in found:
        if options.json:
            print(json.dumps(item, ensure_ascii=False))
        else:
            print("\n".join(render.fold(render.event(item, paint), " " * 21)))
    sys.stdout.flush()
