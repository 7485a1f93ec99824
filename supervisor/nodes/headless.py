"""What an agent does in a job of Slurm whose head is lost with its machine: it has the job requeued.

The script of a run over several machines asks Slurm to keep the job when a machine is lost (``--no-kill``), also when
that is the first one, with the script and the daemon on it. Nobody would end the job then before its wall time. Slurm
takes a lost machine out of the job's list (job_mgr.c, kill_running_job_by_node_name).
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.base.hosts import expand_hosts
from supervisor.sensors.slurm import ask


def requeue_headless(environ: Mapping[str, str]) -> str:
    """A sentence when it was asked for; "" where this is no such job, or its first machine is there.

    Raises SlurmError. Each agent may ask: Slurm refuses the second time.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        return ""
    told = ask(["squeue", "--noheader", f"--jobs={job}", "--format=%T|%B|%N"], environ).strip()
    state, _, rest = told.partition("|")
    first, _, nodes = rest.partition("|")
    if state != "RUNNING" or first in expand_hosts(nodes):
        return ""
    ask(["scontrol", "requeue", job], environ)
    return f"The machine of the head ({first}) is no longer in job {job}: it is requeued."
