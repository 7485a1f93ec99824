"""A run file as a managed job of SkyPilot, for people who want SkyPilot to hold the run in place of our controller.

Facts from skypilot 0.14.1: ``jobs/controller.py`` (a job that fails is started again only for an exit code in
``recover_on_exit_codes``, or as often as ``max_restarts_on_errors`` says), ``task.py`` (a secret without a value is
filled in by ``--secret NAME``), ``skylet/constants.py`` (``jobs.status_check`` is the server's: no task may set it),
``check.py`` and ``backends/backend_utils.py`` (the key files of all clouds on its server's machine are copied to each
pod, unless its configuration has ``remote_identity: NO_UPLOAD`` for that cloud; its schema refuses that for RunPod,
Lambda and Prime Intellect). So SkyPilot is no place of our fleet, whose account keys never go to a pod.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from supervisor.base.errors import EXIT_POD_UNFIT, ConfigError
from supervisor.config import run_file
from supervisor.fleet.fleet_file import BOOT, count_machines, environment_of_export, read_template

GPU = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?::([1-9][0-9]{0,2}))?")
TASK = read_template("sky.yaml")
SEVERAL = """\
# The job's folders have to be on storage that all nodes mount. The token is any long word of yours, the same for all.
"""
ON_EACH_NODE = read_template("sky_on_each_node.sh")
AS_ANY_USER = """\
set -- --foreground
[ -w /opt ] || export RL_SUPERVISOR_VENV=~/.local/share/rl-supervisor
"""


def make_task(  # noqa: PLR0917
    path: Path, gpu: str, image: str | None, package: str | None, secrets: Iterable[str], machines: int | None = None
) -> str:
    """The YAML of a task that runs the run file. ``gpu``: ``H100`` or ``H100:2`` of a machine, as SkyPilot spells it.

    ``secrets``: names of variables that the pod gets beside the store's keys. Raises ConfigError.
    """
    file = run_file.load(path)
    if file.store.url is None or file.store.url.startswith("file:"):
        raise ConfigError(f"{path} keeps its steps on one machine ([store] url): no other pod has them.")
    if image is None and package is None:
        raise ConfigError("The pod needs rl-supervisor: name an image that has it (--image), or what pip installs.")
    count, boot = count_machines(path, file, machines), BOOT.partition("\n")[2]
    if file.nodes is not None:
        port = file.nodes.listen.rpartition(":")[2]
        if port == "0":
            raise ConfigError(f'{path}: the agents find the head by a fixed port. Set [nodes] listen = "0.0.0.0:7433".')
        secrets = [*secrets, "RL_SUPERVISOR_NODE_TOKEN"]
        boot = ON_EACH_NODE.format(port=port, boot=boot.rstrip())
    envs, names = environment_of_export(path, file, package, secrets)
    places = {} if image is None else {"image_id": f"docker:{image}"}
    if file.disk.capacity_gb is not None:
        places["disk_size"] = str(round(file.disk.capacity_gb))
    return TASK.format(
        path=path.name,
        secrets=" ".join(f"--secret {name}" for name in names),
        several="" if file.nodes is None else SEVERAL,
        nodes="" if file.nodes is None else f"num_nodes: {count}\n",
        name=json.dumps(re.sub(r"[._-]+", "-", file.run.id).strip("-")),
        gpus=json.dumps(_count_gpus(path, gpu, len({*file.gpus.inference, *file.gpus.trainer}))),
        places="".join(f"  {name}: {value}\n" for name, value in places.items()),
        unfit=EXIT_POD_UNFIT,
        envs="".join(f"  {name}: {json.dumps(value)}\n" for name, value in envs.items()),
        names="".join(f"  {name}:\n" for name in names),
        script=textwrap.indent(AS_ANY_USER + boot, "  "),
    )


def _count_gpus(path: Path, gpu: str, used: int) -> str:
    """``KIND:COUNT``. Raises ConfigError where the run file and the option do not agree."""
    found = GPU.fullmatch(gpu)
    if not found:
        raise ConfigError(f"--gpu {gpu} is none of KIND and KIND:COUNT, as in H100:2.")
    count = int(found[2] or used)
    if not count:
        raise ConfigError(f"{path} does not say how many GPUs the run uses ([gpus]): --gpu {gpu}:COUNT")
    if used and count != used:
        raise ConfigError(f"{path} uses {used} GPUs ([gpus]), and --gpu {gpu} names {count}.")
    return f"{found[1]}:{count}"
