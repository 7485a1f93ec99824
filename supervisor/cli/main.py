"""``rl-supervisor``: everything that is done on the pod itself, from writing a run file to restoring a step."""

from __future__ import annotations

import argparse
import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.base.errors import EXIT_FINISHED, EXIT_POD_UNFIT, EXIT_USAGE, ConfigError
from supervisor.cli import where
from supervisor.cli.terminal import run_cli

Verb = Callable[[argparse.Namespace], int]

OF_THE_STORE = ("restore", "verify", "logs", "report", "web")
"""Commands that need no more than the store and its keys."""

OF_A_RUN = ("run", "onstart", "attach", "upgrade", "publish", "prune", "node")
"""Those that need the run file itself."""

CONTRACT = ("run", "onstart", "attach")
"""Their exit codes are those of `supervisor.base.errors`."""

OWN = ("upgrade-check", "start-check", "read-state", "live")
"""What a daemon asks, and ``supervisorctl``."""

STEP = "a step is a whole number"
LONGEST_NUMBER = 18  # digits: beyond, int() takes its time, and no store has such a step

EPILOG = """\
It does not start: rl-supervisor check RUN.toml. It died: rl-supervisor diagnose LOGS. Its state: supervisorctl status

exit codes of run, onstart and attach: 0 finished and published, 75 try again here, 93 a person is needed,
94 this pod is unfit.
Of everything else: 0 done, 1 failed, 2 wrong usage; of check: 1 errors, 3 only warnings (with --strict); of diagnose: 3
nothing known was found; of wandb: 3 W&B says something else.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``rl-supervisor``."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _build_parser()
    if not words:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    options = (_own_parser() if words[0] in OWN else parser).parse_args(words)
    verb: Verb | str = options.verb
    contract = words[0] in CONTRACT
    command = partial(_call, verb) if isinstance(verb, str) else verb
    return run_cli(lambda: command(options), "rl-supervisor", contract=contract)


def _call(name: str, options: argparse.Namespace) -> int:
    """Import the module of a command only now; its function's parameters are called as the options are."""
    module, _, function_name = name.partition(".")
    function = getattr(import_module(f"supervisor.cli.{module}"), function_name)
    words = {**vars(options), "options": options}
    return int(function(**{one: words[one] for one in inspect.signature(function).parameters if one in words}))


AddVerb = Callable[[str, str, Verb | str], argparse.ArgumentParser]
"""Adds a command by name, description and function (``module.function`` of this package); returns its parser."""


def _build_parser() -> argparse.ArgumentParser:
    """All that a person may type; also for the man page and for completion."""
    parser = argparse.ArgumentParser(
        "rl-supervisor",
        description="Keeps one long-running RL job alive on this pod: notices silent vLLM death, publishes "
        "checkpoints, frees the disk, resumes from the last good step.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rl-supervisor {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def verb(name: str, about: str, function: Verb | str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=about, description=about)
        sub.set_defaults(verb=function)
        if name in OF_THE_STORE:
            where.add_options(sub)
        elif name in OF_A_RUN:
            sub.add_argument("run_file", type=Path, metavar="RUN.toml")
        return sub

    run = verb("run", "watch the run until it is finished", _run_daemon)
    run.add_argument("--fresh", action="store_true", help="start from scratch although checkpoints exist")
    run.add_argument("--step", type=_whole_number(STEP), metavar="N", help="resume at this step, not the last good one")
    run.add_argument("--foreground", action="store_true", help="the default, and the only way: there is no other")
    onstart = verb("onstart", "prepare a fresh pod, restore the newest step, then run", _run_daemon)
    onstart.set_defaults(fresh=False, step=None, onstart=True)
    for sub in (run, onstart):
        take_over = "take the run from the pod that holds it now; that one stops publishing"
        sub.add_argument("--take-over", action="store_true", help=take_over)
        restart = "start the daemon again after a crash, and collect orphans; the default for process 1 of a container"
        sub.add_argument("--restart", action=argparse.BooleanOptionalAction, help=restart)
        overrule = "start although `check` finds this error; may be given several times"
        sub.add_argument("--overrule", action="append", default=[], metavar="ID", help=overrule)
    attach = verb("attach", "watch a job that you started by hand; it is never touched", "attach.attach")
    pid = _whole_number("a process is named by its number, as `ps` shows it")
    attach.add_argument("--pid", type=pid, metavar="PID", help="its process, where it is not found or not clear")
    about = "watch this machine for the daemon on the first one, in a run over several ([nodes])"
    _add_node(verb("node", about, "node.node"))
    about = "put the program that is installed now in the daemon's place; the job runs on"
    verb("upgrade", about, "upgrading.upgrade_run_file")
    about = "find what is wrong with a run before it is started, and say what would be done"
    _add_check(verb("check", about, "check.main"))
    init = verb("init", "write a run file for this machine", "init.init")
    init.add_argument("-o", "--output", type=Path, default=Path("run.toml"), metavar="FILE", help="default run.toml")
    init.add_argument("--job", dest="job_dir", type=Path, metavar="DIR", help="folder of the installed prime-rl")
    launch = "take this launch line, script, or standard input (-) and keep its meaning; nothing of it is executed"
    init.add_argument("--from", dest="launch", metavar="'COMMAND'|FILE.sh|-", help=launch)
    install = verb("install", "put the systemd unit, its folders and a run file in place", "install.install")
    copied = "copy it under its run.id, and an .env beside it"
    install.add_argument("--run", dest="run_file", type=Path, metavar="RUN.toml", help=copied)
    install.add_argument("--now", action="store_true", help="also enable and start it (systemctl enable --now)")
    uninstall = verb("uninstall", "remove what install put there; runs, state and keys stay", "install.uninstall")
    for sub in (install, uninstall):
        sub.add_argument("--dry-run", action="store_true", help="only list what would be done, with a diff")
        sub.add_argument("--prefix", type=Path, metavar="ROOT", help="another root than /; no systemd is spoken to")
    _add_store_commands(verb)
    _add_reading_commands(verb)
    _add_simulate(
        verb("simulate", "try the decisions on a virtual pod, with a virtual clock and a seed", "simulate.run")
    )
    _add_fleet(verbs)
    _add_slurm(verbs)
    _add_export(verbs)
    verb("version", "print the version", _show_version)
    return parser


def _add_node(node: argparse.ArgumentParser) -> None:
    name = "of this machine; default: what Slurm or SkyPilot says, else the host's"
    node.add_argument("--name", metavar="NAME", help=name)
    rank = "its number among the machines, 0 first; default: likewise"
    node.add_argument("--rank", type=_whole_number(), metavar="N", help=rank)
    state = "its own folder, on a disk of this machine; default: nodes/NAME in the run's state folder"
    node.add_argument("--state", type=Path, metavar="DIR", help=state)
    head = "where the daemon listens; default: what it left in the folder of [nodes]"
    node.add_argument("--head", metavar="HOST:PORT", help=head)


def _add_fleet(verbs: Any) -> None:
    """Commands for a machine that is no pod."""
    about = "rent the next pod of a run when one is gone; for a machine that is no pod"
    fleet = verbs.add_parser("fleet", help=about, description=about)
    commands = fleet.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, about in (
        ("init", "write fleet.toml for a run file; or what calls the controller, a workflow or a unit"),
        ("check", "whether each run fits into each of its places, before anything is rented"),
        ("offers", "what could be rented now"),
        ("up", "want a run, and rent a pod for it"),
        ("down", "rent no more pods for a run, and destroy those that hold nothing which is nowhere else"),
        ("run", "look at all runs again and again, and do what is due"),
        ("tick", "one pass over all runs, for a cron; 93 when a person is needed"),
        ("status", "one line a run: where, since when, dollars"),
        ("explain", "what was decided for a run, and why"),
        ("history", "all pods that were rented, and how each ended"),
        ("destroy", "let a pod go with all that is on it"),
    ):
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(verb="fleet_init.init" if name == "init" else f"fleet.{name}")
        if name in ("up", "down", "explain"):
            sub.add_argument("run", metavar="RUN", help="its name in fleet.toml")
        elif name == "init":
            sub.add_argument("run_file", type=Path, nargs="?", metavar="RUN.toml", help="write --file for this run")
            sub.add_argument("--github", action="store_true", help="write a workflow that calls `fleet tick`")
            sub.add_argument("--systemd", action="store_true", help="write a unit for `fleet run`, beside --file")
        elif name in ("check", "offers"):
            sub.add_argument("run", nargs="?", metavar="RUN", help="its name in fleet.toml; default: all")
        elif name == "destroy":
            sub.add_argument("pod", metavar="PROVIDER/ID", help="as `fleet history` shows it")
        if name in ("up", "down", "tick", "destroy"):
            sub.add_argument("--dry-run", action="store_true", help="say what would be done")
        elif name == "run":
            sub.add_argument("--observe", action="store_true", help="say what would be done, and do nothing")
        sub.add_argument("--file", type=Path, default=Path("fleet.toml"), metavar="FILE", help="default: fleet.toml")


def _add_slurm(verbs: Any) -> None:
    """Commands of a login machine, and those of the job's script (``supervisor.slurm.script``)."""
    about = "carry a run on a Slurm cluster: submit a job that requeues itself until the run is finished"
    commands = verbs.add_parser("slurm", help=about, description=about).add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    for name, about in (
        ("submit", "submit the run's job, unless there is one"),
        ("script", "print the job's script, for your own sbatch"),
        ("step", "start the daemon on the machine; the script calls it"),
        ("tell", "tell the daemon of this machine to publish and leave; the script calls it"),
        ("ended", "requeue, hold or end the job by the daemon's exit code; the script calls it"),
    ):
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(verb="slurm.end_job" if name == "ended" else f"slurm.{name}")
        sub.add_argument("run_file", type=Path, metavar="RUN.toml")
        if name == "ended":
            sub.add_argument("--code", type=_whole_number(), required=True, metavar="N", help="the daemon's exit code")
            sub.add_argument("--told", action="store_true", help="Slurm had sent SIGTERM to the script before")


def _add_export(verbs: Any) -> None:
    """A run file in another program's words."""
    about = "write what another program needs to hold the run"
    commands = verbs.add_parser("export", help=about, description=about).add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    sky, kubernetes = (
        commands.add_parser(name, help=about, description=about)
        for name, about in (
            ("sky", "write a managed job of SkyPilot; docs/fleet.md says when to use it"),
            ("kubernetes", "write a JobSet for Kubernetes; docs/clusters.md says what it needs"),
        )
    )
    gpu = "as SkyPilot spells it; COUNT is needed where the run file has no [gpus]"
    sky.add_argument("--gpu", required=True, metavar="KIND[:COUNT]", help=gpu)
    number = _whole_number("a number of GPUs is wanted")
    kubernetes.add_argument(
        "--gpus", type=number, metavar="COUNT", help="of a machine, where the run file has no [gpus]"
    )
    resource = "what the cluster calls a GPU (nvidia.com/gpu)"
    kubernetes.add_argument("--gpu-resource", default="nvidia.com/gpu", metavar="NAME", help=resource)
    kubernetes.add_argument("--claim", metavar="NAME:/PATH", help="mount this PersistentVolumeClaim there")
    kubernetes.add_argument("--secret-name", metavar="NAME", help="the Secret that holds the keys; default: RUN-keys")
    kubernetes.add_argument("--queue", metavar="NAME", help="the local queue of Kueue that admits it")
    for name, sub in (("sky", sky), ("kubernetes", kubernetes)):
        sub.set_defaults(verb=f"export.{name}")
        sub.add_argument("run_file", type=Path, metavar="RUN.toml")
        machines = "of a run with [nodes], spares included; default: as many as its components need"
        number = _whole_number("a number of machines is wanted")
        sub.add_argument("--machines", type=number, metavar="COUNT", help=machines)
        image = "Docker image of the pod, with rl-supervisor in it"
        sub.add_argument("--image", metavar="IMAGE", required=name == "kubernetes", help=image)
        sub.add_argument("--package", metavar="WHAT", help="or what pip installs on the pod: a git URL, a wheel's URL")
        ending = "sky" if name == "sky" else "jobset"
        default = f"default: RUN.{ending}.yaml in this folder"
        sub.add_argument("-o", "--output", type=Path, metavar="FILE", help=default)
        about = "a variable that the pod gets beside the store's keys; may be given several times"
        sub.add_argument("--secret", action="append", default=[], metavar="NAME", help=about)


def _add_store_commands(verb: AddVerb) -> None:
    """Those that a person runs on the store by hand."""
    for name, about in (
        ("restore", "fetch a step from the store, every byte verified"),
        ("publish", "send a complete step to the store"),
        ("prune", "delete local steps that are published and that nothing needs"),
    ):
        sub = verb(name, about, "steps.by_hand")
        sub.set_defaults(by_hand=name)
        sub.add_argument("--dry-run", action="store_true", help="only say what would be done")
        if name != "prune":
            words = "N|latest|best" if name == "restore" else "N|latest"
            kind = _whole_number(STEP, latest=None, **({"best": "best"} if name == "restore" else {}))
            about = "default: latest" + ("; best: of the highest reward" if name == "restore" else "")
            sub.add_argument("--step", type=kind, metavar=words, help=about)
        if name == "restore":
            to = "make DIR/step_N; default: the run's output folder, ready to resume"
            sub.add_argument("--to", type=Path, metavar="DIR", help=to)
        sub.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    verify = verb("verify", "compare the store with its manifests; never deletes", "steps.verify")
    verify.add_argument("--step", type=_whole_number(STEP, all=None), metavar="N|all", help="default: all")
    verify.add_argument(
        "--deep", type=_parse_percent, default=0.0, metavar="PERCENT", help="read so much of it again (0)"
    )
    verify.add_argument(
        "--seed", type=_whole_number(), default=None, metavar="N", help="choice of parts for --deep; default: any"
    )
    verify.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    logs = verb("logs", "logs of each attempt in the store, also those of pods that are gone", "store_logs.logs")
    logs.add_argument(
        "--attempt", type=_whole_number(), metavar="N", help="print those of attempt N; default: list all"
    )
    logs.add_argument("--to", type=Path, metavar="DIR", help="with --attempt: write them there, traces included")
    logs.add_argument("--json", dest="as_json", action="store_true", help="print JSON")


def _add_reading_commands(verb: AddVerb) -> None:
    """Those that only read what a run left."""
    about = "say what went wrong and what helps, the root cause first, from logs, a folder of them, or stdin"
    diagnose = verb("diagnose", about, "diagnose.diagnose")
    what = (
        "logs, folders of logs, the evidence of an incident (STATE/incidents/...), RUN.toml, or - for stdin; "
        "default: the run of this machine"
    )
    diagnose.add_argument("paths", nargs="*", metavar="LOGS|BUNDLE|-", help=what)
    diagnose.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    replay = verb("replay", "run recorded observations through the core and print its decisions", "replay.replay_file")
    replay.add_argument("file", type=Path, metavar="FILE", help="a trace (.jsonl, .jsonl.gz) or a journal.db")
    replay.add_argument("--config", type=Path, metavar="RUN.toml", help="under the settings of this run file")
    replay.add_argument(
        "--incident", type=_whole_number(), metavar="N", help="of a journal, only what lies around incident N"
    )
    replay.add_argument("--json", dest="as_json", action="store_true", help="print a line of JSON for each decision")
    replay.add_argument("--all", dest="every", action="store_true", help="print each observation, too")
    trace = verb("trace", "write the observations of a journal to a file for replay", "replay.export")
    trace.add_argument("file", type=Path, metavar="RUN.toml|journal.db", help="the run, or its journal")
    trace.add_argument("--incident", type=_whole_number(), metavar="N", help="only what lies around incident N")
    trace.add_argument("-o", "--output", type=Path, metavar="FILE", help="FILE.jsonl or FILE.jsonl.gz; default stdout")
    report = verb("report", "where the time went, each incident, what was saved, how often to save", "report.report")
    report.add_argument(
        "--price", type=_parse_amount, metavar="D", help="dollars an hour; default [report] dollars_per_hour"
    )
    report.add_argument(
        "--person-every",
        dest="person_every_h",
        type=_parse_amount,
        default=8.0,
        metavar="HOURS",
        help="how often a person would look else (8)",
    )
    about = "a post-mortem of incident N: time line, evidence, decision, cost, what would have prevented it"
    report.add_argument("--incident", type=_whole_number(), metavar="N", help=about)
    shapes = report.add_mutually_exclusive_group()
    shapes.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    shapes.add_argument("--md", action="store_true", help="print Markdown, for issues and chats")
    html = "write the page of `web` into one file, which opens without a network; needs rl-supervisor[web]"
    shapes.add_argument("--html", type=Path, metavar="FILE", help=html)
    png = "draw that page into a picture, with the chromium of this machine"
    shapes.add_argument("--png", type=Path, metavar="FILE", help=png)
    full = "with the names and addresses of machines, which --md, --html and --png leave out"
    report.add_argument("--full", action="store_true", help=full)
    notify = verb("notify", "messages to people", "notify.notify")
    notify.add_argument("run_file", type=Path, metavar="RUN.toml")
    notify.add_argument("--test", action="store_true", required=True, help="send one to each target; 1 if one fails")
    about = "what W&B shows of the run, and where that differs; or send what it logged offline"
    wandb = verb("wandb", about, "wandb_page.wandb")
    what = "the run file; with sync before it, send the run's offline folders"
    wandb.add_argument("words", nargs="+", metavar="[sync] RUN.toml", help=what)
    wandb.add_argument("--dry-run", action="store_true", help="with sync: only say what W&B will make of them")
    web = verb("web", "a page of the run for browsers: charts, incidents, checkpoints, logs", "web.web")
    listen = "address and port (127.0.0.1:8400); elsewhere than on this machine the page asks for a token"
    web.add_argument("--listen", default="127.0.0.1:8400", metavar="HOST:PORT", help=listen)


def _add_simulate(simulate: argparse.ArgumentParser) -> None:
    """The options of `simulate`."""
    simulate.add_argument("--hours", type=float, default=1000.0, help="virtual hours (default 1000)")
    simulate.add_argument("--seed", type=int, default=1, help="same seed, same output (default 1)")
    simulate.add_argument("--policy", default="core", metavar="NAME", help="core (default), or another to compare with")
    simulate.add_argument("--scenario", default="default", metavar="NAME", help="default, no-spot or healthy")
    simulate.add_argument("--faults", type=Path, metavar="FILE", help="exactly these faults (TOML or JSON), no others")
    simulate.add_argument("--list-faults", action="store_true", help="print all kinds of faults, then end")
    simulate.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="change a number of the scenario"
    )
    simulate.add_argument("--price", type=_parse_amount, metavar="D", help="dollars an hour: count money, too")
    simulate.add_argument("--story", action="store_true", help="also print what the policy said, with times")
    simulate.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    simulate.add_argument("--trace", type=Path, metavar="FILE", help="write the observations, for replay")
    simulate.add_argument("--compare", action="store_true", help="all policies, same seeds and faults, one table")
    simulate.add_argument(
        "--sensitivity", action="store_true", help="the core and the oracle over fault rates, link, checkpoints"
    )
    simulate.add_argument("--seeds", type=int, default=1, metavar="N", help="of both: how many, from --seed on (1)")
    about = "the fleet's controller and other policies in a modelled market of spot pods, one table"
    worlds = simulate.add_subparsers(title="other worlds", metavar="WORLD")
    market = worlds.add_parser("market", help=about, description=about)
    market.set_defaults(verb="simulate_market.compare")
    market.add_argument("--days", type=_parse_amount, default=30.0, metavar="N", help="of each market (30)")
    number = _whole_number("a number of markets is wanted")
    market.add_argument("--seeds", dest="markets", type=number, default=4, metavar="N", help="so many markets (4)")
    market.add_argument(
        "--trace",
        dest="traces",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="when zones were up, instead of modelled runs: JSON as in skypilot-org/spot-traces, or CSV",
    )
    market.add_argument("--json", dest="as_json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    about = "a run over many machines, requeue and prime-rl's own script in a modelled cluster, one table"
    cluster = worlds.add_parser("cluster", help=about, description=about)
    cluster.set_defaults(verb="simulate_cluster.compare")
    number, sizes = _whole_number("a number is wanted"), [1, 8, 64, 512]
    cluster.add_argument("--machines", type=number, nargs="+", default=sizes, metavar="N", help="sizes (1 8 64 512)")
    cluster.add_argument("--seeds", type=number, default=4, metavar="N", help="so many clusters of each size (4)")
    cluster.add_argument("--days", type=_parse_amount, default=30.0, metavar="N", help="of each cluster (30)")
    cluster.add_argument("--json", dest="as_json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def _own_parser() -> argparse.ArgumentParser:
    """Of what programs of ours ask: a person who mistypes a command is not shown these."""
    parser = argparse.ArgumentParser("rl-supervisor")
    verbs = parser.add_subparsers(required=True)
    for name, function in zip(OWN, (_upgrade_check, _start_check, "read_state.print_answer", "live.show"), strict=True):
        verbs.add_parser(name).set_defaults(verb=function)
    # The daemon may be of another version (supervisor.daemon.upgrade).
    trial = verbs.choices["upgrade-check"]
    trial.add_argument("run_file", type=Path)
    trial.add_argument("folder", type=Path)
    trial.add_argument("started", choices=("run", "onstart"))
    # Before it starts a job (supervisor.daemon.start_check).
    verbs.choices["start-check"].add_argument("run_file", type=Path)
    verbs.choices["start-check"].add_argument("overrule", nargs="*")
    # Of a run without a daemon (supervisor.cli.state_folder).
    for word, kind in (("what", str), ("path", Path), ("query", str)):
        verbs.choices["read-state"].add_argument(word, type=kind)
    # `supervisorctl top` and `status --watch` go on as this (supervisor.cli.ctl).
    verbs.choices["live"].add_argument("what", choices=("top", "status"))
    verbs.choices["live"].add_argument("query")
    return parser


def _add_check(check: argparse.ArgumentParser) -> None:
    what = "the run file; or the trainer's own configuration, or its three files"
    check.add_argument("files", type=Path, nargs="*", metavar="FILE.toml", help=what)
    check.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    check.add_argument("--brief", action="store_true", help="one line for each finding, and nothing else")
    online = "also what takes longer: the store and its key, the environments' import, the trainer's own dry run"
    check.add_argument("--online", action="store_true", help=online)
    measure = (
        "with --online: send 16 MB to the store, write 256 MiB to the volume and the tier, and delete them, to tell"
    )
    measure += " how long a step takes to publish and to save"
    check.add_argument("--measure", "--measure-upload", dest="measure", action="store_true", help=measure)
    check.add_argument("--explain", metavar="ID", help="say what a finding means, and end")
    overrule = "this error does not count; may be given several times ([check] overrule in the run file)"
    check.add_argument("--overrule", action="append", default=[], metavar="ID", help=overrule)
    check.add_argument("--strict", action="store_true", help="end with 3 where there are warnings and no errors")
    job = "folder of the installed prime-rl, where no run file names it"
    check.add_argument("--job", dest="job_dir", type=Path, metavar="DIR", help=job)
    day = "as with the prime-rl of this day (2026-01-06), where none is installed"
    check.add_argument("--as-of", type=_parse_day, metavar="DAY", help=day)
    check.add_argument("--fix", action="store_true", help="print a patch with what can be mended for certain")
    check.add_argument("--write", action="store_true", help="with --fix: apply it, keep FILE.orig, and check again")


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a day is wanted, such as 2026-01-06, not {text!r}") from None


def _whole_number(wanted: str = "a whole number is wanted", **words: Any) -> Callable[[str], Any]:
    """A type of argparse. ``words`` have a meaning of their own; ``wanted`` begins the complaint."""

    def parse(text: str) -> Any:
        if text in words:
            return words[text]
        if not text.isascii() or not text.isdigit() or len(text) > LONGEST_NUMBER:
            raise argparse.ArgumentTypeError(f"{wanted}, not {text!r}")
        return int(text)

    return parse


def _parse_amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"a number is wanted, not {text!r}")
    return value


def _parse_percent(text: str) -> float:
    value = _parse_amount(text.removesuffix("%"))
    if value > 100:
        raise argparse.ArgumentTypeError(f"a share from 0 to 100 is wanted, not {text!r}")
    return value


# ---------------------------------------------------------------- the daemon


def _run_daemon(options: argparse.Namespace) -> int:
    _known_ids(options)
    onstart = "onstart" in options
    _become_nanny(options, "onstart" if onstart else "run")
    _hold_signals()
    from supervisor.daemon import loop

    asked = loop.Options(options.fresh, options.step, options.take_over, onstart=onstart, overrule=options.overrule)
    code = loop.main(options.run_file, asked)
    if code in (EXIT_FINISHED, EXIT_POD_UNFIT):
        from supervisor.cli import end_billing

        end_billing.end_own_billing(options.run_file, os.environ)
    return code


def _known_ids(options: argparse.Namespace) -> None:
    """Raises UsageError for an id to overrule that no finding has."""
    if options.overrule:
        from supervisor.cli import findings

        for name in options.overrule:
            findings.find_rule(name)


def _hold_signals() -> None:
    """Let signals wait until the daemon listens: a SIGTERM before would end it and leave the job alive.

    Below a nanny that is the nanny's work, and the lock that may be waited for there wants to hear them.
    """
    from supervisor.process.known_names import NANNY

    if NANNY not in os.environ:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


def _become_nanny(options: argparse.Namespace, verb: str) -> None:
    """Become the daemon's nanny where that is wanted; the daemon is then its child, started without --restart."""
    if options.restart is False or (options.restart is None and os.getpid() != 1):
        return
    if os.getpid() != 1 and os.environ.get("NOTIFY_SOCKET"):
        raise ConfigError("systemd starts this daemon again by itself: leave --restart out of the unit.")
    from supervisor.process import nanny

    once = ["--fresh"] if options.fresh else []
    once += ["--step", str(options.step)] if options.step is not None else []
    once += ["--take-over"] if options.take_over else []
    # How this very program was started: the interpreter's words, then those that are parsed here.
    program = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]]
    overrule = [f"--overrule={name}" for name in options.overrule]
    nanny.turn_into([*program, verb, str(options.run_file), "--no-restart", *overrule], once)


# ---------------------------------------------------------------- what programs of ours ask


def _upgrade_check(options: argparse.Namespace) -> int:
    from supervisor.daemon.upgrade_trial import try_upgrade

    onstart = options.started == "onstart"
    try_upgrade(options.run_file, options.folder, onstart=onstart, environ=os.environ)
    return 0


def _start_check(options: argparse.Namespace) -> int:
    import math

    from supervisor.cli import check
    from supervisor.daemon.start_check import LIMIT_S

    signal.alarm(math.ceil(LIMIT_S) + 1)  # a daemon that was killed meanwhile cannot end this
    return check.before_start(options.run_file, sys.stdin.read(), options.overrule)


def _show_version(options: argparse.Namespace) -> int:
    print(f"rl-supervisor {__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
