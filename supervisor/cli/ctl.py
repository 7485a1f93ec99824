"""``supervisorctl``: asks and tells running daemons, with the words and exit codes that supervisord's users know."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.api.client import NotThereError, RefusedError, UnclearError
from supervisor.base.errors import ConfigError, UsageError
from supervisor.cli import familiar, incidents, render, said, state_folder, upgrading, which
from supervisor.cli.terminal import reply, run_cli
from supervisor.cli.which import Here

# Linux Standard Base, init script actions: of `status` 0 running, 3 not running, 4 unknown.
LSB_RUNNING, LSB_NOT_RUNNING, LSB_UNKNOWN = 0, 3, 4
Verb = Callable[[argparse.Namespace], int]

EPILOG = """\
exit codes: status gives 0 running, 3 not running, 4 unknown; all else 0 done, 1 refused or failed, 2 wrong usage.
A run is named by its run.id or by its RUN.toml. With one run on this machine the name may be left out; `status` without
a name lists all runs.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``supervisorctl`` and ``rl-supervisorctl``."""
    return run_cli(lambda: _run_command(sys.argv[1:] if argv is None else argv), "supervisorctl")


def _run_command(argv: Sequence[str]) -> int:
    if argv and (instead := familiar.INSTEAD.get(argv[0].partition("=")[0])):
        raise UsageError(instead)
    options = _build_parser().parse_args(list(argv) or ["status"])
    verb: Verb = _show_live if getattr(options, "watch", False) else options.verb
    return verb(options)


def _build_parser(program: str = "supervisorctl") -> argparse.ArgumentParser:
    """All that a person may type; also for the man page and for completion."""
    parser = argparse.ArgumentParser(
        program,
        parents=[_options_everywhere(None, False)],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Shows and steers the RL runs that rl-supervisor watches on this machine.",
    )
    parser.set_defaults(verb=_show_status)
    # After the command these options are suppressed, not defaulted: else they would undo what stood before it.
    common = _options_everywhere(argparse.SUPPRESS, argparse.SUPPRESS)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")

    def verb(name: str, about: str, function: Verb) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=about, description=about, parents=[common])
        sub.set_defaults(verb=function, command=name)
        return sub

    def of_run(sub: argparse.ArgumentParser, about: str = "name of the run, or its RUN.toml") -> None:
        sub.add_argument("name", nargs="?", metavar="NAME", help=about)

    status = verb("status", "what each run does and what happened to it", _show_status)
    status.add_argument("--watch", action="store_true", help="go on: a line whenever something changes, until Ctrl-C")
    of_run(status)
    for name, about in (
        ("start", "start the job from its last good step"),
        ("stop", "stop the job; it stays stopped, also after a reboot"),
        ("restart", "stop the job and start it from its last good step"),
        ("pause", "only look and publish: start and stop nothing until `resume`"),
        ("resume", "act again, after `pause`"),
        ("shutdown", "stop the job and end the daemon; the next start goes on"),
    ):
        sub = verb(name, about, _send_order)
        of_run(sub, "name of the run, its RUN.toml, or `all`")
        if name == "restart":
            sub.add_argument("--new-config", action="store_true", help="take the configuration files as they are now")
        if name == "start":
            take_over = "take the run from the pod that holds it now; that one stops publishing"
            sub.add_argument("--take-over", action="store_true", help=take_over)
    for name, about in (
        ("pin", "keep a step in the store whatever the rules of retention say"),
        ("unpin", "let the rules of retention decide about a step again"),
        ("rollback", "stop the job and go on at this step; what is above it is left, and deleted nowhere"),
    ):
        sub = verb(name, about, _send_order)
        step = said.read_number("a step is a whole number")
        sub.add_argument("step", type=step, metavar="STEP", help="number of the step; `checkpoints` lists them")
        of_run(sub)
    said.add_tail(verb("tail", "the newest lines of a log; without a role: which logs there are", said.tail))
    events = verb(
        "events",
        "what the supervisor said and did, newest last",
        lambda options: said.events(options, _meant_run(options).client),
    )
    said.add_lines(events)
    of_run(events)
    about = "put the program that is installed now in the daemon's place; the job runs on"
    of_run(verb("upgrade", about, lambda options: upgrading.upgrade(_meant_run(options), as_json=options.json)))
    every = partial(_show_page, "/v1/checkpoints", render.checkpoints)
    of_run(verb("checkpoints", "every step, here and in the store", every))
    incidents.add_arguments(verb("incidents", "what went wrong, what was done, where its evidence is", incidents.main))
    explain = partial(_show_page, "/v1/explain", render.explanation)
    of_run(verb("explain", "why the supervisor thinks what it thinks", explain))
    of_run(verb("top", "a live screen of a run: its last steps, disk, transfer, incidents, logs", _show_live))
    of_run(verb("pid", "pid of the daemon; with a NAME, or `all`, of the job", _show_pid), "name of the run, or `all`")
    verb("avail", "the runs of this machine, also those without a daemon", familiar.avail)
    of_run(verb("reread", "which configuration files differ from what runs; none is taken", _show_changes))
    of_run(verb("update", "the same; ends with 1 where one differs", _show_changes))
    helps = verb("help", "what a command does", lambda options: _run_command([options.about or "--help", "--help"]))
    helps.add_argument("about", nargs="?", metavar="COMMAND")
    of_run(verb("version", "versions of this command and of the daemons", _show_version))
    return parser


def _options_everywhere(nothing: Any, no_json: Any) -> argparse.ArgumentParser:
    """The options that may stand before and after the command. argparse shares actions, so each use needs its own."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("-r", "--run", metavar="NAME", help="name of the run, or its RUN.toml", default=nothing)
    where = "its daemon's socket, where that is not found by the name"
    options.add_argument("--socket", type=Path, metavar="PATH", help=where, default=nothing)
    options.add_argument("--json", action="store_true", help="print JSON", default=no_json)
    return options


# ---------------------------------------------------------------- which run


def _meant_run(options: argparse.Namespace) -> Here:
    """The run that is named as a word or with --run; both is a mistake unless they agree."""
    return which.find_run(_named_runs(options), options.socket)


def _named_runs(options: argparse.Namespace) -> str | None:
    word, flag = getattr(options, "name", None), options.run
    if word and flag and word != flag:
        raise UsageError(f"Two runs are named, {flag} and {word}: name one.")
    return str(word or flag) if word or flag else None


# ---------------------------------------------------------------- status


def _show_status(options: argparse.Namespace) -> int:
    one = options.socket is not None or _named_runs(options) not in (None, "all")
    try:
        runs = [_meant_run(options)] if one else which.list_runs_here()
    except (NotThereError, UsageError, ConfigError) as error:
        return _say_status(options, str(error), _named_runs(options))
    if not runs:
        return _say_status(options, which.no_run(), None)
    answers = [_ask_status(run) for run in runs]
    if options.json:
        listed = [status for status, _ in answers]
        print(json.dumps(listed[0] if one else listed, indent=2, ensure_ascii=False))
    else:
        _print_status([status for status, _ in answers])
    return max(code for _, code in answers)


def _show_live(options: argparse.Namespace) -> int:
    """Become a program that knows more than this one may, and stays."""
    asked = {"name": _named_runs(options), "socket": options.socket and str(options.socket), "as_json": options.json}
    words = ["-P", "-m", "supervisor.cli.main", "live", options.command, json.dumps(asked)]
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606


def _say_status(options: argparse.Namespace, sentence: str, name: str | None) -> int:
    """That there is no run at all (LSB: not running), or none of that name (LSB: unknown)."""
    if options.json:
        print(json.dumps({"run": name, "state": "unknown", "sentence": sentence} if name else []))
    else:
        print(f"{render.safe(name)}  UNKNOWN  {render.safe(sentence)}" if name else sentence)
    return LSB_UNKNOWN if name else LSB_NOT_RUNNING


def _ask_status(run: Here) -> tuple[dict[str, Any], int]:
    name = run.id or str(run.socket)
    try:
        status = run.client.get("/v1/status")
    except NotThereError as error:
        if not run.id:  # a socket alone names no run, whose job may live
            sentence = f"No daemon answers at {run.socket}. Ask by the run: supervisorctl status RUN.toml"
            return {"run": name, "state": "unknown", "sentence": sentence}, LSB_UNKNOWN
        return _without_daemon(run, str(error)), LSB_NOT_RUNNING
    except (UnclearError, RefusedError) as error:
        return {"run": name, "state": "unknown", "sentence": str(error)}, LSB_UNKNOWN
    state = status.get("state")
    if state in render.RUNNING:
        return status, LSB_RUNNING
    return status, LSB_NOT_RUNNING if state in (*render.NOT_RUNNING, render.HELD) else LSB_UNKNOWN


def _without_daemon(run: Here, sentence: str) -> dict[str, Any]:
    """The status of a run that no daemon watches: why, what lives of its job, and what to type."""
    status: dict[str, Any] = {"run": run.id or str(run.socket), "state": "not-running", "sentence": sentence}
    if run.state_dir is None or not (run.state_dir / "journal.db").exists():
        return status
    logs = [str(path) for path in run.log_files()]
    try:
        found = state_folder.read("status", run.state_dir, run_id=run.id, log_files=logs)
    except UnclearError as error:
        return {**status, "sentence": f"{sentence} {error}"}
    run = replace(run, file=Path(found["run_file"])) if run.file is None and found["run_file"] else run
    word = "unwatched" if found["job"] else "not-running"
    commands = {"start": run.start_command(), "log": run.log_command()}
    status |= {**found, "state": word, "commands": commands}
    return {**status, "sentence": render.headline_without_daemon(status, commands)}


def _print_status(answers: list[dict[str, Any]]) -> None:
    paint = render.Paint.for_stdout()
    names = [render.safe(status.get("run") or "") for status in answers]
    width = max(map(len, names))
    for name, status in zip(names, answers, strict=True):
        print("\n".join(render.fold(render.headline(status, name, paint, width), "  ")))
    if len(answers) == 1 and "attempt" in answers[0]:
        print("\n".join(render.status_block(answers[0])))
    elif len(answers) == 1 and "commands" in answers[0] and (block := render.unwatched_block(answers[0])):
        print("\n".join(block))


# ---------------------------------------------------------------- orders


def _send_order(options: argparse.Namespace) -> int:
    args = [f"--{word.replace('_', '-')}" for word in ("new_config", "take_over") if getattr(options, word, False)]
    args += [str(options.step)] if "step" in options else []
    every = _named_runs(options) == "all" and "step" not in options and _runs_to_show(options)  # raises without any
    runs = which.list_runs_here() if every else [_meant_run(options)]
    return max(_print_answer(options, run, args) for run in runs)


def _print_answer(options: argparse.Namespace, run: Here, args: list[str]) -> int:
    try:
        done, sentence = run.client.command(options.command, args)
    except (NotThereError, UnclearError, RefusedError) as error:
        done, sentence = False, str(error)
    return reply(run.id, done, sentence, as_json=options.json)


# ---------------------------------------------------------------- the rest


def _show_page(page: str, text: Callable[[dict[str, Any]], list[str]], options: argparse.Namespace) -> int:
    answer = _meant_run(options).client.get(page)
    print(json.dumps(answer, indent=2, ensure_ascii=False) if options.json else "\n".join(text(answer)))
    return 0


def _runs_to_show(options: argparse.Namespace) -> list[Here]:
    """Those that are named; all that have a daemon where none is. Raises NotThereError where there is none."""
    one = options.socket is not None or _named_runs(options) not in (None, "all")
    runs = [_meant_run(options)] if one else which.list_runs_with_daemon()
    if not runs:
        raise NotThereError(which.no_run())
    return runs


def _show_pid(options: argparse.Namespace) -> int:
    return familiar.pid(_runs_to_show(options), of_job=_named_runs(options) is not None, as_json=options.json)


def _show_changes(options: argparse.Namespace) -> int:
    differs = familiar.changes(_runs_to_show(options), as_json=options.json)
    return 1 if differs and options.command == "update" else 0


def _show_version(options: argparse.Namespace) -> int:
    runs = [_meant_run(options)] if _named_runs(options) or options.socket else which.list_runs_with_daemon()
    daemons = {}
    for run in runs:
        try:
            daemons[run.id] = str(run.client.get("/v1/status").get("version"))
        except (NotThereError, UnclearError, RefusedError) as error:
            daemons[run.id] = f"unknown: {error}"
    if options.json:
        print(json.dumps({"supervisorctl": __version__, "daemons": daemons}, ensure_ascii=False))
    else:
        print(f"supervisorctl {__version__}")
        for name, version in daemons.items():
            print(f"{name} {render.safe(version)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
