"""Gives the script of a run to Slurm, unless a job of the run is there already."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.base.errors import SupervisorError, TryAgainError
from supervisor.sensors.slurm import TIMEOUT_S, SlurmError, SlurmJob, find_jobs

OVER = frozenset(
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"]
)
"""States after which a job does not come back by itself (squeue(1), JOB STATE CODES)."""


def jobs_of(run_id: str, user: str, environ: Mapping[str, str]) -> list[SlurmJob]:
    """The jobs of this run that run or wait. Raises TryAgainError where Slurm does not say."""
    try:
        found = find_jobs([f"--name={run_id}", f"--user={user}"], environ)
    except SlurmError as error:
        raise TryAgainError(f"Which jobs of run {run_id} there are is not known: {error}.") from None
    return [job for job in found if job.state not in OVER]


def submit(script: str, folder: Path, environ: Mapping[str, str], options: Sequence[str] = ()) -> str:
    """The number of the new job. Raises SupervisorError with Slurm's own words; TryAgainError where it may exist."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", *options],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S * 3,  # a busy controller; a job that it took after that is found by its name
            check=False,
            cwd=folder,
            env=dict(environ),
        )
    except subprocess.TimeoutExpired:
        raise TryAgainError(
            "sbatch did not answer within a minute. Look with `squeue --me` before you submit again."
        ) from None
    except OSError as error:
        raise SupervisorError(
            f"sbatch cannot be run ({error.strerror}): submit from a login machine of the cluster, or print the script "
            "with `rl-supervisor slurm script` and submit it there."
        ) from None
    number = re.match(r"\d+", done.stdout)
    if done.returncode != 0 or number is None:
        why = " ".join(done.stderr.split())[:400] or f"exit code {done.returncode}"
        raise SupervisorError(f"Slurm did not take the job: {why}. See what it was asked: rl-supervisor slurm script")
    return number[0]
