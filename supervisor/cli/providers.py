"""What it means for a run file where a pod is rented: how much notice it gives, where its variables are, what lasts.

Each row names its source. Nothing is asked over the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Provider:
    """One provider. ``grace_s``: seconds between SIGTERM and the kill, None where it is unknown; ``said``: comments."""

    name: str
    grace_s: int | None
    said: Sequence[str]
    finish: str = ""
    """A command that ends the billing, as a suggestion."""
    notice: bool = True
    """False: it takes a pod without a word."""


PROVIDERS = {
    # docs.vast.ai: instances are containers that an outbid pauses at once; CONTAINER_ID and CONTAINER_API_KEY are set.
    "vast": Provider(
        "Vast.ai",
        None,
        (
            "An interruptible instance that is outbid ends without notice: what is not published then is lost.",
            "A stopped instance keeps its disk and bills for it; a destroyed one loses it.",
            "Variables of the template are in process 1 and in /etc/environment: an ssh session may lack them.",
        ),
        "vastai stop instance --api-key $CONTAINER_API_KEY $CONTAINER_ID",
        notice=False,
    ),
    # docs.runpod.io, sdks/graphql/manage-pods: the container disk goes when a pod is stopped, the volume when it is
    # terminated; docs/create-pod: `runpodctl stop pod $RUNPOD_POD_ID`.
    "runpod": Provider(
        "RunPod",
        5,
        (
            "A spot pod gets SIGTERM, and about 5 s later SIGKILL, and only its process 1 hears of it.",
            "A stop empties the container's own disk; the volume (usually /workspace) stays until the pod is gone.",
            "Variables of the template are in process 1 and in /etc/rp_environment: an ssh session may lack them.",
        ),
        "runpodctl stop pod $RUNPOD_POD_ID",
    ),
    # The page of the package `prime`: `prime pods create`, `prime pods terminate`; the machines are others'.
    "prime": Provider(
        "Prime Intellect",
        None,
        (
            "Its pods stand in other providers' data centres, and each gives notice in its own way, or none.",
            "A pod that is terminated loses its disk.",
        ),
        "prime pods terminate $PRIME_POD_ID --yes",
        notice=False,
    ),
    # docs.lambda.ai: on-demand instances are machines of one's own, without a stop: they run or are terminated.
    "lambda": Provider(
        "Lambda",
        None,
        (
            "Instances are not taken away, and are billed until they are terminated; their own disk goes with them.",
            "A file system of Lambda's that is mounted stays.",
        ),
    ),
    "modal": Provider("Modal", None, ("A function's container ends when the function returns, and at its time-out.",)),
    # kubernetes.io, concepts/workloads/pods/pod-lifecycle: terminationGracePeriodSeconds is 30 unless it is set.
    "kubernetes": Provider(
        "Kubernetes",
        30,
        ("A pod gets SIGTERM, and SIGKILL after terminationGracePeriodSeconds: 30, unless it is told otherwise.",),
    ),
    "slurm": Provider(
        "Slurm",
        None,
        ("The allocation ends at its time limit. This supervisor runs one pod only, and submits nothing.",),
    ),
    # docs.docker.com, `docker stop`: SIGKILL follows SIGTERM after 10 s unless -t or --stop-timeout says otherwise.
    "container": Provider(
        "a container of no provider that is known here",
        None,
        (
            "Plain `docker stop` kills after 10 s; `docker stop -t 420`, or --stop-timeout 420, leaves the time.",
            "What is written into the container itself goes with it.",
        ),
    ),
}
BARE = Provider("a machine of no provider that is known here, and no container", None, ())


def of(name: str, *, container: bool) -> Provider:
    """By the word of ``Site.provider``."""
    return PROVIDERS.get(name) or (PROVIDERS["container"] if container else BARE)
