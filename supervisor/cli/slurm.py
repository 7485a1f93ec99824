"""``rl-supervisor slurm``: a run on a Slurm cluster, from the login machine and from the job's own script."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from supervisor.base.errors import ConfigError, UsageError
from supervisor.config.run_file import load
from supervisor.slurm import step as first_step
from supervisor.slurm.ended import JobEnd
from supervisor.slurm.script import log_of, make_script, own_program, problems_of_start
from supervisor.slurm.submit import jobs_of
from supervisor.slurm.submit import submit as give_to_slurm


def script(run_file: Path) -> int:
    """Print it as it is: it holds no secret."""
    sys.stdout.write(make_script(run_file, load(run_file), os.environ, own_program(sys.executable)))
    return 0


def submit(run_file: Path) -> int:
    """One job for each run: a second one would wait for the first, with its GPUs."""
    file = load(run_file)
    text = make_script(run_file, file, os.environ, own_program(sys.executable))
    if problems := problems_of_start(file, os.environ):
        raise ConfigError(" ".join(problems))  # now, and not after hours in the queue
    for job in jobs_of(file.run.id, getpass.getuser(), os.environ):
        where = f" on {job.nodes}" if job.nodes else f" ({job.reason})" if job.reason else ""
        raise UsageError(
            f"Run {file.run.id} has job {job.id} already, {job.state.lower()}{where}. End it first with `scancel "
            f"{job.id}`; one that is held goes on with `scontrol release {job.id}`."
        )
    number = give_to_slurm(text, run_file.absolute().parent, os.environ)
    print(f"Submitted job {number}. It waits or runs: squeue --jobs={number}")
    print(f"What it says: tail -F {log_of(run_file, number)}")
    return 0


def step(run_file: Path) -> int:
    """Become the daemon's nanny; returns never."""
    first_step.prepare(run_file, os.environ)
    from supervisor.process import nanny

    nanny.turn_into([*own_program(sys.executable), "onstart", str(run_file), "--no-restart"], [])
    raise AssertionError  # execv


def tell(run_file: Path) -> int:
    """Tell the daemon of this machine that it has to leave; 1 where there is none yet."""
    return 0 if first_step.tell(load(run_file).state_dir) else 1


def end_job(run_file: Path, code: int, told: bool) -> int:
    """What follows from the daemon's end."""
    log = log_of(run_file, os.environ.get("SLURM_JOB_ID", "%j"))
    return JobEnd(load(run_file), log, os.environ, _say).decide(code, told=told)


def _say(text: str) -> None:
    print(f"rl-supervisor slurm: {text}", flush=True)
