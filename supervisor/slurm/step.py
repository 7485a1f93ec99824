"""What ``srun`` starts on the machine: it reads the keys, says who this pod is, and becomes the daemon's nanny.

And how the script, on the same machine, tells that daemon to leave.
"""

from __future__ import annotations

import signal
from collections.abc import MutableMapping
from pathlib import Path

from supervisor.base import env_file, trust
from supervisor.base.errors import ConfigError
from supervisor.effects.claiming import LABEL
from supervisor.process.run_lock import read_holder
from supervisor.process.survivors import alive, send_signal
from supervisor.sensors.leaving import SLURM_JOB

FLEETS = "rls-"
"""What the label begins with that a fleet gave its job (``fleet.places.base.label_of``)."""


def prepare(run_file: Path, environ: MutableMapping[str, str]) -> None:
    """Change ``environ`` for the daemon. Raises ConfigError."""
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        raise ConfigError("This is no job of Slurm (SLURM_JOB_ID): start one with `rl-supervisor slurm submit`.")
    environ[SLURM_JOB] = job
    # In the claim and in each beat: which start of which job holds the run. A fleet knows its job by its own label,
    # however often Slurm starts it.
    if not environ.get(LABEL, "").startswith(FLEETS):
        environ[LABEL] = f"slurm-{job}-{environ.get('SLURM_RESTART_COUNT', '0')}"
    read_keys(run_file, environ)


def tell(state_dir: Path) -> bool:
    """Send SIGTERM to the nanny, or to a daemon that has lost its own. False where neither is there (yet)."""
    holder, nanny = read_holder(state_dir / "lock")
    for one in (nanny, holder):
        if one is not None and alive(one):
            send_signal(one, signal.SIGTERM)
            return True
    return False


def read_keys(run_file: Path, environ: MutableMapping[str, str]) -> None:
    """RUN.env beside RUN.toml, as the systemd unit reads it; it must be as private as the run file."""
    found = env_file.beside(run_file)
    if environ.get(trust.VARIABLE) != "1" and (problem := trust.problem_of(found.path)):
        raise ConfigError(f"{found.path} is not obeyed, since others could change it: {problem}")
    if found.notes:
        raise ConfigError(" ".join(found.notes))
    environ.update(found.values)
