"""`rl-supervisor node`: become the nanny of this machine's agent, in a run over several machines."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from supervisor.base.errors import ConfigError
from supervisor.config.settings import load
from supervisor.nodes.allocation import find_seat
from supervisor.nodes.head import NAME
from supervisor.process import nanny
from supervisor.slurm.step import read_keys

FIRST_WAIT, LONGEST_WAIT = "1", "5"
"""Seconds before an agent that died is started again: while it is away its machine is unknown, and it costs little."""

LONGEST_WATCH_S = 120.0  # of a nanny (``process/nanny.py``)


def node(run_file: Path, name: str | None, rank: int | None, state: Path | None, head: str | None) -> int:
    """Never returns, but by an error."""
    run = load(run_file)
    if run.nodes is None:
        raise ConfigError(f"{run_file} has no [nodes], so its run is of one machine: start it with rl-supervisor run.")
    seat = find_seat(os.environ)
    name, rank = name or seat.name, seat.rank if rank is None else rank
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a machine: letters, digits, dot, - and _ only. Give --name.")
    # Beside the state of a daemon that may be on this machine, and of its own: the home folder may be shared.
    folder = (state or run.state_dir / "nodes" / name).expanduser().absolute()
    words = ["--run", run.run.id, "--name", name, "--rank", str(rank), "--state", str(folder)]
    words += ["--folder", str(run.nodes.folder.expanduser().absolute()), "--lease", str(run.nodes.lease)]
    head = head or os.environ.get("RL_SUPERVISOR_HEAD")
    words += ["--head", head] if head else []
    if run.nodes.disks == "local":
        words += ["--disk", str(run.output_dir)]
        words += ["--disk-capacity", str(int(run.disk.capacity_gb * 1e9))] if run.disk.capacity_gb else []
        read_keys(run_file, os.environ)  # the agent talks to the store itself, and no key comes from the head
    os.environ.setdefault("RL_SUPERVISOR_BACKOFF", FIRST_WAIT)
    os.environ.setdefault("RL_SUPERVISOR_LONGEST_BACKOFF", LONGEST_WAIT)
    # An agent that hangs ends nothing when its lease is over: another one must be there by then.
    os.environ.setdefault("RL_SUPERVISOR_WATCHDOG", str(min(LONGEST_WATCH_S, run.nodes.lease / 4)))
    command = [sys.executable, "-m", "supervisor.nodes.agent", *words]
    try:
        nanny.turn_into(command, [])
    except OSError as error:
        raise ConfigError(f"The agent's nanny cannot be started: {error}.") from error
    return 1
