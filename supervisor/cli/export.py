"""``rl-supervisor export``: a run file in another program's words."""

from __future__ import annotations

import shlex
from pathlib import Path

from supervisor.cli.init import write_new_file
from supervisor.fleet.kubernetes import Cluster, make_job_set
from supervisor.fleet.sky import make_task


def sky(
    run_file: Path,
    *,
    output: Path | None,
    gpu: str,
    image: str | None,
    package: str | None,
    secret: list[str],
    machines: int | None,
) -> int:
    """Write a managed job of SkyPilot into a file: what is printed is masked, and a run file may look like a key."""
    output = output or Path(f"{run_file.stem}.sky.yaml")
    write_new_file(output, make_task(run_file, gpu, image, package, secret, machines))
    print(f"{output} is written. Its first lines say how to start it: head {shlex.quote(str(output))}")
    return 0


def kubernetes(
    run_file: Path,
    *,
    output: Path | None,
    image: str,
    gpus: int | None,
    machines: int | None,
    gpu_resource: str,
    package: str | None,
    claim: str | None,
    secret: list[str],
    secret_name: str | None,
    queue: str | None,
) -> int:
    """Write a JobSet into a file."""
    output = output or Path(f"{run_file.stem}.jobset.yaml")
    cluster = Cluster(image, gpus, machines, gpu_resource, package, claim, secret_name, queue)
    write_new_file(output, make_job_set(run_file, cluster, secret))
    print(f"{output} is written. Its first lines say how to start it: head {shlex.quote(str(output))}")
    return 0
