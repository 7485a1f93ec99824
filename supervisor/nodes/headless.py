"""What an agent does in a job of Slurm whose head is lost with its machine: it has the job requeued.

The script of a run over several machines asks Slurm to keep the job when a machine is lost (``--no-kill``), also when
that is the first one, with the script and the daemon on it. Nobody would end the job then before its wall time. Slurm
takes a lost machine out of the job's list (job_mgr.c, kill_running_job_by_node_name).
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.base.hosts import expand_hosts
from supervisor.sensors.slurm import SlurmError, ask, find_jobs


def requeue_headless(environ: Mapping[str, str]) -> str:
    """What was done, as a sentence; "" where this is no such job, or its first machine is there.

    Each agent may ask: Slurm refuses the second time.
    """
    job, began_with = environ.get("SLURM_JOB_ID", ""), expand_hosts(environ.get("SLURM_JOB_NODELIST", ""))
    if not job or not began_with:
        return ""
    first = began_with[0]
    try:
        jobs = find_jobs([f"--jobs={job}"], environ)
        if not any(one.state == "RUNNING" and first not in expand_hosts(one.nodes) for one in jobs):
            return ""
        ask(["scontrol", "requeue", job], environ)
    except SlurmError as error:
        return f"Slurm cannot be asked for another head: {error}."
    return f"The machine of the head ({first}) is no longer in job {job}: it is requeued."
