"""``supervisorctl``: asks and tells running daemons, with the words and exit codes that supervisord's users know."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from supervisor import __version__
from supervisor.cli import incidents, old_logs, render
from supervisor.cli.client import Client, NotThereError, RefusedError, UnclearError, known_run, sockets
from supervisor.cli.terminal import run_cli
from supervisor.errors import EXIT_USAGE, SupervisorError

# Linux Standard Base, init script actions: of `status` 0 running, 3 not running, 4 unknown.
LSB_RUNNING, LSB_NOT_RUNNING, LSB_UNKNOWN = 0, 3, 4
Verb = Callable[[argparse.Namespace], int]
FOLLOW_S = 0.5
LOOK_S = 3.0
WAIT_EVENTS_S = 25
MOST_LINES = 10_000
LINES = 20

EPILOG = """\
exit codes: status gives 0 running, 3 not running, 4 unknown; all else 0 done, 1 refused or failed, 2 wrong usage.
With one run on this machine its name may be left out; `status` without a name lists all runs.
"""


class UsageError(SupervisorError):
    """The command line does not say enough, or names what is not there."""

    exit_code = EXIT_USAGE


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``supervisorctl`` and ``rl-supervisorctl``."""
    return run_cli(lambda: _main(sys.argv[1:] if argv is None else argv), "supervisorctl")


def _main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(list(argv) or ["status"])
    verb: Verb = options.verb
    return verb(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "supervisorctl",
        parents=[_which(None, False)],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Shows and steers the RL runs that rl-supervisor watches on this machine.",
    )
    parser.set_defaults(verb=_status)
    # After the command these options are suppressed, not defaulted: else they would undo what stood before it.
    common = _which(argparse.SUPPRESS, argparse.SUPPRESS)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")

    def verb(name: str, about: str, function: Verb) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=about, description=about, parents=[common])
        sub.set_defaults(verb=function, command=name)
        return sub

    verb("status", "what each run does and what happened to it", _status).add_argument("name", nargs="?")
    for name, about in (
        ("start", "start the job from its last good step"),
        ("stop", "stop the job; it stays stopped, also after a reboot"),
        ("restart", "stop the job and start it from its last good step"),
        ("pause", "suspend acting, not looking: start and stop nothing"),
        ("resume", "act again"),
        ("shutdown", "stop the job and end the daemon"),
    ):
        sub = verb(name, about, _order)
        sub.add_argument("name", nargs="?", help="name of the run, or `all`")
        if name == "restart":
            sub.add_argument("--new-config", action="store_true", help="take the configuration files as they are now")
        if name == "start":
            take_over = "take the run from the pod that holds it now; that one stops publishing"
            sub.add_argument("--take-over", action="store_true", help=take_over)
    for name, about in (
        ("pin", "keep a step in the store whatever the rules of retention say"),
        ("unpin", "let the rules of retention decide about a step again"),
        ("rollback", "stop the job and go on at this step; what is above it is another lineage"),
    ):
        sub = verb(name, about, _pin)
        sub.add_argument("step", type=_step, metavar="STEP")
        sub.add_argument("name", nargs="?")
    for name, about in (
        ("tail", "the newest lines of a log; without a role: which logs there are"),
        ("events", "what the supervisor said"),
    ):
        sub = verb(name, about, _tail if name == "tail" else _events)
        sub.add_argument("-f", "--follow", action="store_true", help="go on as more comes")
        sub.add_argument("-n", "--lines", type=_count, metavar="N", help=f"so many lines ({LINES})")
        if name == "tail":
            sub.add_argument("--attempt", type=_attempt, metavar="N", help="of this attempt, however long ago it was")
            sub.add_argument("--state-dir", type=Path, metavar="DIR", help="the run's state folder; no daemon is asked")
            sub.add_argument("what", nargs="*", metavar="[NAME] [ROLE]", help="launcher, trainer, inference, ...")
        else:
            sub.add_argument("name", nargs="?")
    about = "put the program that is installed now in the daemon's place; the job runs on"
    verb("upgrade", about, _upgrade).add_argument("name", nargs="?")
    verb("checkpoints", "every step here and in the store", _checkpoints).add_argument("name", nargs="?")
    incidents.add_arguments(verb("incidents", "what went wrong, what was done, where its evidence is", incidents.main))
    verb("explain", "why the supervisor thinks what it thinks", _explain).add_argument("name", nargs="?")
    verb("version", "versions of this command and of the daemons", _version).add_argument("name", nargs="?")
    return parser


def _which(nothing: Any, no_json: Any) -> argparse.ArgumentParser:
    """The options that may stand before and after the command. argparse shares actions, so each use needs its own."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("-r", "--run", metavar="NAME", help="name of the run", default=nothing)
    options.add_argument("--socket", type=Path, metavar="PATH", help="its socket", default=nothing)
    options.add_argument("--json", action="store_true", help="print JSON", default=no_json)
    return options


def _count(text: str) -> int:
    if not text.isdigit() or int(text) > MOST_LINES:
        raise argparse.ArgumentTypeError(f"a number up to {MOST_LINES} is wanted, not {text!r}")
    return int(text)


def _step(text: str) -> int:
    return _whole(text, "a step")


def _attempt(text: str) -> int:
    return _whole(text, "an attempt")


def _whole(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{what} is a whole number, not {text!r}")
    return int(text)


# ---------------------------------------------------------------- which run


def _named(options: argparse.Namespace) -> str | None:
    """The name given as a word or with --run; both is a mistake unless they agree."""
    word, flag = getattr(options, "name", None), options.run
    if word and flag and word != flag:
        raise UsageError(f"Two runs are named, {flag} and {word}: name one.")
    return str(word or flag) if word or flag else None


def _client(options: argparse.Namespace, name: str | None) -> Client:
    """The one daemon that is meant."""
    if options.socket:
        return Client(options.socket)
    found = sockets()
    if name:
        return _find(name, found) or _not_here(name, list(found))
    if len(found) == 1:
        return Client(next(iter(found.values())))
    if not found:
        raise NotThereError(_NO_RUN)
    raise UsageError(f"There are {len(found)} runs on this machine, name one: {', '.join(found)}.")


def _find(name: str, found: Mapping[str, Path]) -> Client | None:
    """The daemon whose socket is called ``name``, else the one that says that its run is: [api] socket may differ."""
    if name in found:
        return Client(found[name])
    for path in found.values():
        try:
            if Client(path, LOOK_S).get("/v1/status").get("run") == name:
                return Client(path)
        except (NotThereError, UnclearError, RefusedError):
            continue  # whoever this is does not say that it is the one
    return None


_NO_RUN = (
    "No daemon runs on this machine. Start one with `rl-supervisor run RUN.toml`, or under systemd with "
    "`systemctl start rl-supervisor@NAME`; write a run file with `rl-supervisor init`."
)


def _not_here(name: str, others: list[str]) -> NoReturn:
    if known_run(name):
        raise NotThereError(f"No daemon watches {name} now. {_how_to_start(name)}")
    there = f"; there are {', '.join(others)}" if others else ""
    raise UnclearError(f"There is no run named {name} on this machine{there}. {_how_to_start(name)}")


def _how_to_start(name: str) -> str:
    return f"Start it with `systemctl start rl-supervisor@{name}`, or with `rl-supervisor run RUN.toml`."


# ---------------------------------------------------------------- status


def _status(options: argparse.Namespace) -> int:
    name = _named(options)
    if name == "all":
        name = None
    try:
        if name or options.socket:
            clients = [_client(options, name)]
        else:
            clients = [Client(path) for path in sockets().values()]
    except NotThereError as error:
        return _say_status(options, str(error), name, LSB_NOT_RUNNING)
    except UnclearError as error:
        return _say_status(options, str(error), name, LSB_UNKNOWN)
    if not clients:
        return _say_status(options, _NO_RUN, None, LSB_NOT_RUNNING)
    answers = [_ask_status(client) for client in clients]
    if options.json:
        listed = [status for status, _ in answers]
        print(json.dumps(listed[0] if name or options.socket else listed, indent=2, ensure_ascii=False))
    else:
        _print_status(clients, [status for status, _ in answers])
    return max(code for _, code in answers)


def _say_status(options: argparse.Namespace, sentence: str, name: str | None, code: int) -> int:
    word = "not-running" if code == LSB_NOT_RUNNING else "unknown"
    if options.json:
        print(json.dumps({"run": name, "state": word, "sentence": sentence} if name else []))
    else:
        print(f"{name}  {word.upper().replace('-', ' ')}  {sentence}" if name else sentence)
    return code


def _ask_status(client: Client) -> tuple[dict[str, Any], int]:
    try:
        status = client.get("/v1/status")
    except NotThereError as error:
        sentence = f"{error} {_how_to_start(client.name)}"
        return {"run": client.name, "state": "not-running", "sentence": sentence}, LSB_NOT_RUNNING
    except (UnclearError, RefusedError) as error:
        return {"run": client.name, "state": "unknown", "sentence": str(error)}, LSB_UNKNOWN
    state = status.get("state")
    if state in render.RUNNING:
        return status, LSB_RUNNING
    return status, LSB_NOT_RUNNING if state in render.NOT_RUNNING else LSB_UNKNOWN


def _print_status(clients: list[Client], answers: list[dict[str, Any]]) -> None:
    paint = render.Paint.for_stdout()
    names = [str(status.get("run") or client.name) for client, status in zip(clients, answers, strict=True)]
    width = max(map(len, names))
    for name, status in zip(names, answers, strict=True):
        print(render.headline(status, render.safe(name), paint, width))
    if len(answers) == 1 and "attempt" in answers[0]:
        print("\n".join(render.status_block(answers[0])))


# ---------------------------------------------------------------- orders


def _order(options: argparse.Namespace) -> int:
    name = _named(options)
    args = [f"--{word.replace('_', '-')}" for word in ("new_config", "take_over") if getattr(options, word, False)]
    clients = [Client(path) for path in sockets().values()] if name == "all" else [_client(options, name)]
    if not clients:
        raise NotThereError(_NO_RUN)
    worst = 0
    for client in clients:
        try:
            done, sentence = client.command(options.command, args)
        except NotThereError as error:
            done, sentence = False, f"{error} {_how_to_start(client.name)}"
        except (UnclearError, RefusedError) as error:
            done, sentence = False, str(error)
        if options.json:
            print(json.dumps({"run": client.name, "ok": done, "sentence": sentence}, ensure_ascii=False))
        else:
            print(f"{client.name}: {render.safe(sentence)}", file=sys.stdout if done else sys.stderr)
        worst = max(worst, 0 if done else 1)
    return worst


def _pin(options: argparse.Namespace) -> int:
    client = _client(options, _named(options))
    done, sentence = client.command(options.command, [str(options.step)])
    if options.json:
        print(json.dumps({"run": client.name, "ok": done, "sentence": sentence}, ensure_ascii=False))
    else:
        print(f"{client.name}: {render.safe(sentence)}", file=sys.stdout if done else sys.stderr)
    return 0 if done else 1


def _upgrade(options: argparse.Namespace) -> int:
    from supervisor.cli import upgrading

    return upgrading.upgrade(_client(options, _named(options)), as_json=options.json)


# ---------------------------------------------------------------- logs and events


def _tail(options: argparse.Namespace) -> int:
    if len(options.what) > 2:
        raise UsageError("tail takes a run and a role, no more.")
    name, role = options.run, ""
    if len(options.what) == 2:
        name, role = options.what
    elif options.what:
        # One word is a run when there is one of this name, else a role.
        word = options.what[0]
        chosen = name is not None or options.socket or options.state_dir
        if not chosen and (_find(word, sockets()) or word in old_logs.state_dirs()):
            name = word
        else:
            role = word
    past = options.attempt is not None or options.state_dir is not None
    if past and options.follow:
        raise UsageError("What an attempt said before does not grow: leave -f out, or --attempt and --state-dir.")
    lines = LINES if options.lines is None else options.lines
    if past or not (role or options.follow or options.lines is not None):
        return old_logs.show(options, _state_dir(options, name), role, lines)
    try:
        client = _client(options, name)
        answer = client.get("/v1/log", lines=lines, **({"role": role} if role else {}))
    except (NotThereError, UnclearError):
        if options.follow or options.socket or not role:
            raise
        return old_logs.show(options, old_logs.find(name), role, lines)  # no daemon runs: what it left says enough
    _print_piece(options, answer, str(answer["text"]))
    while options.follow:
        if int(answer["size"]) <= int(answer["offset"]) or not answer["text"]:
            time.sleep(FOLLOW_S)
        answer = _next_piece(options, client, answer)
    return 0


def _next_piece(options: argparse.Namespace, client: Client, answer: dict[str, Any]) -> dict[str, Any]:
    path, place = answer["path"], {"offset": answer["offset"], "inode": answer["inode"]}
    while True:
        try:
            answer = client.get("/v1/log", role=answer["role"], **place)
            break
        except RefusedError:
            time.sleep(FOLLOW_S)  # between two attempts a role may have no log: the ended one's is kept elsewhere
    if answer["path"] != path or answer["anew"]:
        print(f"==> {render.safe(answer['path'])} <==", file=sys.stderr)
    _print_piece(options, answer, str(answer["text"]))
    return answer


def _state_dir(options: argparse.Namespace, name: str | None) -> Path:
    """The state folder that is meant: a daemon's word, else where runs of this machine have theirs."""
    if options.state_dir is not None:
        return Path(options.state_dir)
    try:
        return Path(str(_client(options, name).get("/v1/status")["state_dir"]))
    except (NotThereError, UnclearError):
        if options.socket:
            raise
        return old_logs.find(name)
    except KeyError:
        return old_logs.find(name)  # an older daemon


def _print_piece(options: argparse.Namespace, answer: dict[str, Any], text: str) -> None:
    if options.json:
        print(json.dumps({name: answer[name] for name in ("role", "path", "text")}, ensure_ascii=False), flush=True)
        return
    sys.stdout.write(render.log_text(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _events(options: argparse.Namespace) -> int:
    client = _client(options, _named(options))
    paint = render.Paint.for_stdout()
    lines = LINES if options.lines is None else options.lines
    events = client.get("/v1/events", after=-1, limit=max(lines, 1))["events"]
    newest = max((int(item["id"]) for item in events), default=0)
    _print_events(options, events[-lines:] if lines else [], paint)
    while options.follow:
        began = time.monotonic()
        events = client.get("/v1/events", after=newest, limit=500, wait=WAIT_EVENTS_S)["events"]
        newest = max([newest, *(int(item["id"]) for item in events)])
        _print_events(options, events, paint)
        if not events and time.monotonic() - began < FOLLOW_S:  # too many followers: the daemon did not let us wait
            time.sleep(2 * FOLLOW_S)
    return 0


def _print_events(options: argparse.Namespace, events: list[dict[str, Any]], paint: render.Paint) -> None:
    for item in events:
        print(json.dumps(item, ensure_ascii=False) if options.json else render.event(item, paint))
    sys.stdout.flush()


# ---------------------------------------------------------------- the rest


def _checkpoints(options: argparse.Namespace) -> int:
    return _show(options, "/v1/checkpoints", render.checkpoints)


def _explain(options: argparse.Namespace) -> int:
    return _show(options, "/v1/explain", render.explanation)


def _show(options: argparse.Namespace, page: str, text: Callable[[dict[str, Any]], list[str]]) -> int:
    answer = _client(options, _named(options)).get(page)
    print(json.dumps(answer, indent=2, ensure_ascii=False) if options.json else "\n".join(text(answer)))
    return 0


def _version(options: argparse.Namespace) -> int:
    name = _named(options)
    clients = [_client(options, name)] if name or options.socket else [Client(path) for path in sockets().values()]
    daemons = {}
    for client in clients:
        try:
            daemons[client.name] = str(client.get("/v1/status").get("version"))
        except (NotThereError, UnclearError, RefusedError) as error:
            daemons[client.name] = f"unknown: {error}"
    if options.json:
        print(json.dumps({"supervisorctl": __version__, "daemons": daemons}, ensure_ascii=False))
    else:
        print(f"supervisorctl {__version__}")
        for run, version in daemons.items():
            print(f"{run} {render.safe(version)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
