"""Words that supervisord's users type: what they mean here, or in one line what to type instead."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from supervisor.api.client import NotThereError
from supervisor.cli import render, which
from supervisor.cli.which import Here

INSTEAD = {
    "signal": "No signal is sent to the job from here: its end would count as a failure. To stop it: supervisorctl "
    "stop NAME. A signal that does not end it: kill -s SIGNAL $(supervisorctl pid NAME)",
    "add": "A run is added with: rl-supervisor install --run RUN.toml --now, or without systemd: rl-supervisor run "
    "RUN.toml",
    "remove": "A run is ended with: supervisorctl shutdown NAME. Under systemd, so that it stays away: systemctl "
    "disable rl-supervisor@NAME",
    "reload": "The daemon takes a newer program with: supervisorctl upgrade NAME. It restarts the job with a changed "
    "configuration with: supervisorctl restart NAME --new-config",
    "maintail": "What the daemon says: supervisorctl events -f",
    "fg": "A job has no terminal. What it says: supervisorctl tail -f NAME ROLE",
    "clear": "Logs are compressed and bounded without a command: [logs] max_mb of the run file",
    "open": "Another daemon is named by its socket: supervisorctl --socket PATH COMMAND",
    "-s": "Another daemon is named by its socket: supervisorctl --socket PATH COMMAND",
    "--serverurl": "Another daemon is named by its socket: supervisorctl --socket PATH COMMAND",
    "-c": "No file names all daemons. A run is named by its own: supervisorctl -r RUN.toml COMMAND",
    "--configuration": "No file names all daemons. A run is named by its own: supervisorctl -r RUN.toml COMMAND",
    "quit": "There is no shell to leave. Each call is one command: supervisorctl status",
    "exit": "There is no shell to leave. Each call is one command: supervisorctl status",
}
"""What supervisorctl of supervisord knows (Supervisor/supervisor, supervisorctl.py, 4.3) and this one does not do."""


def pid(runs: Sequence[Here], *, of_job: bool, as_json: bool) -> int:
    """The daemon's, or the job's: one a line, 0 where none runs. Raises what ``Client.get`` raises."""
    found = []
    for run in runs:
        status = run.client.get("/v1/status")
        found.append({"run": run.id, "daemon_pid": status.get("daemon_pid"), "pid": status.get("pid")})
    if as_json:
        print(json.dumps(found))
    else:
        for one in found:
            print((one["pid"] if of_job else one["daemon_pid"]) or 0)
    return 1 if of_job and len(found) == 1 and not found[0]["pid"] else 0


def avail(options: argparse.Namespace) -> int:
    """Every run of this machine: is a daemon there, and where its files are."""
    runs = [run for _, run in sorted(which.look().runs.items())]
    if not runs:
        raise NotThereError(which.no_run())
    found = [{"run": run.id, "in_use": run.has_daemon, "files": str(run.file or run.state_dir or "")} for run in runs]
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
        return 0
    for one in found:
        print(render.safe(f"{one['run']:<32} {'in use' if one['in_use'] else 'avail':<9} {one['files']}"))
    return 0


def changes(runs: Sequence[Here], *, as_json: bool) -> bool:
    """Say which configuration files differ from what runs. Nothing is taken: that would stop the training."""
    found = {run.id: list(run.client.get("/v1/status").get("config_changed") or ()) for run in runs}
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        for name, paths in found.items():
            told = (
                f"changed: {', '.join(paths)}; the job runs on without the change. Stop it and start it with the "
                f"change: supervisorctl restart {name} --new-config"
                if paths
                else "no configuration file has changed"
            )
            print(render.safe(f"{name}: {told}"))
    return any(found.values())
