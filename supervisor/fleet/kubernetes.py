"""A run file as a JobSet for Kubernetes, for clusters where a queue (Kueue) and their own controllers hold the run.

Facts from kubernetes-sigs/jobset 08dfbdfd (config/components/crd: ``jobset.x-k8s.io/v1alpha2``) and Kubernetes 1.31,
where ``podFailurePolicy`` is stable: an *Ignore*d end is replaced and not counted; *FailJob* fails the Job with the
reason ``PodFailurePolicy``, at which the JobSet's rule fails it, too. A pod that is evicted, preempted or drained has
the condition ``DisruptionTarget``. A pod that ends with 0 completes the Job even where it was told to end (SIGTERM), so
the container's command makes 75 of that.

A run over several machines has two Jobs: the daemon in a pod without GPUs, and an Indexed Job with an agent a pod. A
pod of the head has the name ``SET-head-0-0.SET`` in the cluster's DNS (JobSet's ``enableDNSHostnames``). An agent is
called by its pod, which has another name each time: one that replaces a lost machine must not be taken for it, since
the lost one may still write.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.base.errors import EXIT_PERSON_NEEDED, EXIT_POD_UNFIT, EXIT_TRY_AGAIN, ConfigError
from supervisor.config import run_file
from supervisor.config.nodes import Nodes
from supervisor.config.settings import RunFile
from supervisor.effects.claiming import LABEL
from supervisor.fleet.fleet_file import BOOT, count_machines, environment_of_export, read_template

GRACE_S = 420
"""From SIGTERM to SIGKILL: as TimeoutStopSec= of the unit, the time of a stop and a last publish."""
MOST_NAME = 40
"""Of a JobSet: Kubernetes adds the job's name and numbers, and has room for 63 letters."""
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
SHELL = f"""\
# Process 1 of the pod. $1: how rl-supervisor is found or installed, and started with the words that follow.
told=''
trap 'told=1; kill -TERM "$child" 2>/dev/null' TERM
bash -c "$1" boot "${{@:2}}" &
child=$!
[ -n "$told" ] && kill -TERM "$child"
while [ -d "/proc/$child" ]; do sleep 1 & wait $!; done
wait "$child"
code=$?
# Told to end, it has not finished the run, and 0 would complete the Job.
case $told-$code in 1-{EXIT_PERSON_NEEDED} | 1-{EXIT_POD_UNFIT}) ;; 1-*) code={EXIT_TRY_AGAIN} ;; esac
exit "$code"
"""
JOB_SET = read_template("job_set.yaml")
SEVERAL = """\
  network: {enableDNSHostnames: true}
  startupPolicy: {startupPolicyOrder: InOrder}
  successPolicy: {operator: All, targetReplicatedJobs: [head]}
"""
MACHINES = read_template("job_set_machines.yaml")
POD = read_template("job_set_pod.yaml")
RESOURCES = """\
                  resources:
                    limits:
                      {resource}: {gpus}
"""


@dataclass(frozen=True)
class Cluster:
    """What only the cluster's people know. ``claim``: ``NAME:/PATH`` of a PersistentVolumeClaim; ``queue``: Kueue's."""

    image: str
    gpus: int | None = None  # of each machine
    machines: int | None = None
    resource: str = "nvidia.com/gpu"
    package: str | None = None
    claim: str | None = None
    secret: str | None = None
    queue: str | None = None


def make_job_set(path: Path, cluster: Cluster, secrets: Iterable[str]) -> str:
    """The YAML. ``secrets``: names of variables that the pod gets beside the store's keys. Raises ConfigError."""
    file = run_file.load(path)
    claim, folder = _split_claim(cluster.claim)
    _check_store(path, file, folder)
    name = _name_job_set(file.run.id)
    secret = cluster.secret or f"{name}-keys"
    for what, value in (("--secret-name", secret), ("--queue", cluster.queue), ("--claim", claim)):
        if value is not None and not NAME.fullmatch(value):
            raise ConfigError(f"{what} {value} is no name in Kubernetes: small letters, digits and dashes.")
    values, names = environment_of_export(path, file, cluster.package, secrets)
    several = file.nodes is not None
    if file.nodes is not None:
        _check_nodes(path, file.nodes, folder, f"{name}-head-0-0.{name}")

    def make_pod(role: str, word: str, *, with_gpus: bool) -> str:
        limits = {"resource": json.dumps(cluster.resource), "gpus": _count_gpus(path, file, cluster.gpus)}
        return POD.format(
            name=role,
            grace=GRACE_S,
            image=json.dumps(cluster.image),
            script=textwrap.indent(SHELL, " " * 22),
            boot=textwrap.indent(BOOT, " " * 22),
            word=word,
            envs=_environment(values, names, secret),
            resources=RESOURCES.format(**limits) if with_gpus else "",
            mounts="" if claim is None else f"                    - {{name: data, mountPath: {json.dumps(folder)}}}\n",
            volumes=""
            if claim is None
            else f'                - name: data\n                  persistentVolumeClaim: {{claimName: "{claim}"}}\n',
        )

    machines = count_machines(path, file, cluster.machines)
    return JOB_SET.format(
        path=path.name,
        secret=secret,
        literals="".join(f" --from-literal={one}=..." for one in names),
        name=name,
        labels="" if cluster.queue is None else f'  labels:\n    kueue.x-k8s.io/queue-name: "{cluster.queue}"\n',
        several=SEVERAL if several else "",
        person=EXIT_PERSON_NEEDED,
        again=EXIT_TRY_AGAIN,
        unfit=EXIT_POD_UNFIT,
        head=make_pod("head", "--foreground", with_gpus=not several),
        machines=MACHINES.format(machines=machines, pod=make_pod("machine", "--node", with_gpus=True))
        if several
        else "",
    )


def _name_job_set(run_id: str) -> str:
    """As its controller wants it; and of two runs never the same, whatever is left out of their names."""
    name = re.sub(r"[^a-z0-9]+", "-", run_id.lower())[:MOST_NAME].strip("-") or "run"
    name = name if name[0].isalpha() else f"run-{name}"
    if name == run_id:
        return name
    mark = hashlib.sha256(run_id.encode()).hexdigest()[:6]
    return f"{name[: MOST_NAME - 7].strip('-')}-{mark}"


def _environment(values: Mapping[str, str], names: Iterable[str], secret: str) -> str:
    plain = [f"- {{name: {name}, value: {json.dumps(value)}}}" for name, value in values.items()]
    kept = [f"- {{name: {name}, valueFrom: {{secretKeyRef: {{name: {secret}, key: {name}}}}}}}" for name in names]
    label = f"- {{name: {LABEL}, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}"  # who holds the run
    return "".join(f"                    {line}\n" for line in (*plain, label, *kept))


def _split_claim(claim: str | None) -> tuple[str | None, str]:
    if claim is None:
        return None, ""
    name, colon, folder = claim.partition(":")
    if not colon or not folder.startswith("/") or folder == "/":
        raise ConfigError(f"--claim {claim} is no NAME:/PATH, as in training:/data.")
    return name, folder.rstrip("/")


def _check_store(path: Path, file: RunFile, folder: str) -> None:
    url = file.store.url
    on_claim = folder and url is not None and url.startswith(f"file://{folder}/")
    if url is None or (url.startswith("file:") and not on_claim):
        raise ConfigError(
            f"{path} keeps its steps where no other pod has them ([store] url). Name a bucket, or a folder below the "
            "path of a claim that all pods may mount (--claim NAME:/PATH)."
        )


def _count_gpus(path: Path, file: RunFile, asked: int | None) -> int:
    used = len({*file.gpus.inference, *file.gpus.trainer})
    if not (asked or used):
        raise ConfigError(f"{path} does not say how many GPUs the run uses ([gpus]): --gpus COUNT")
    if asked and used and asked != used:
        raise ConfigError(f"{path} uses {used} GPUs ([gpus]), and --gpus names {asked}.")
    return asked or used


def _check_nodes(path: Path, nodes: Nodes, folder: str, address: str) -> None:
    """Do the agents find the head, and is what they share on the claim?"""
    if not folder or not nodes.folder.is_relative_to(folder):
        raise ConfigError(
            f"{path} has its [nodes] folder at {nodes.folder}, which the pods do not share: name a claim that all of "
            "them mount (ReadWriteMany) with --claim NAME:/PATH, and a folder below /PATH."
        )
    port = nodes.listen.rpartition(":")[2]
    if nodes.address != address or port == "0":
        raise ConfigError(
            f"{path}: in this cluster the agents find the head by its name in the DNS and a fixed port. Set [nodes] "
            f'address = "{address}" and listen = "0.0.0.0:7433".'
        )
