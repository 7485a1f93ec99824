"""What a pod is, as far as pre-flight asks. Plain data: ``look`` fills it in, tests write it down.

None (or an empty mapping) means that it is not known, and no check may complain of what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a GPU. ``pid`` 0 where a container hides it."""

    pid: int
    name: str
    used_bytes: int


@dataclass(frozen=True)
class Gpu:
    """One GPU, by NVML's number. ``processes`` None: they cannot be seen from here. Bytes of 0: not known."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    processes: Sequence[GpuProcess] | None = ()
    capability: tuple[int, int] | None = None
    """CUDA's compute capability: (9, 0) is Hopper."""


@dataclass(frozen=True)
class Volume:
    """The file system of a folder. ``kind`` as in /proc/mounts ("overlay", "ext4", "nfs4", ...)."""

    mount: str
    kind: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Refused:
    """A request that an engine refused in an earlier attempt: tokens of its prompt, of the answer that it ``asked``
    for, and of the context; and the log that says so."""

    prompt: int
    asked: int
    context: int
    log: str


@dataclass(frozen=True)
class Site:
    """One look at a pod."""

    gpus: Sequence[Gpu] | None = None
    """In NVML's order; empty: there is none; None: it is not known."""
    driver: str = ""
    """Version of the NVIDIA driver ("550.54.15")."""
    driver_cuda: str = ""
    """Newest CUDA version that the driver runs ("12.4")."""
    torch_cuda: str = ""
    """CUDA version that the job's torch was built for ("12.8"), "" where there is none."""
    torch: str = ""
    """Version of the job's torch ("2.8.0+cu128"), "" where it was not found."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What else is installed in the job's environment: distribution ("vllm", "huggingface_hub") to version."""
    memory_bytes: int | None = None
    """RAM that this container may have."""
    nofile: tuple[int, int] | None = None
    """Soft and hard limit of open files."""
    nproc: tuple[int, int] | None = None
    """Soft and hard limit of processes of this user; a cgroup's pids.max where that is lower."""
    shm: Volume | None = None
    ports: Mapping[int, str] = field(default_factory=dict)
    """TCP ports with a listener, and which, as far as that is known (asked only for those that are needed)."""
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    """By what lies there: "output", "state", "hf-cache", "tmp"."""
    persistent: Sequence[Volume] = ()
    """In a container: volumes that were given to it from outside, and so outlive it."""
    hf_cache: Path | None = None
    hf_models: Mapping[str, Path] = field(default_factory=dict)
    """Models that are in the cache: name to the folder of the snapshot."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """What the job would be given."""
    netrc_wandb: bool = False
    """Is there a login for W&B here, in a netrc file or in W&B's own settings?"""
    hf_login: bool | None = None
    """Is there a login to Hugging Face here, so that a file holds a token? None: not looked for."""
    provider: str = ""
    """Such as "vast", "runpod", "prime", ...; "" where nothing tells."""
    container: bool = False
    refused: Sequence[Refused] = ()
    silent: Sequence[str] = ()
    """Folders and files of which nothing could be seen in time: a network volume that is gone, for one."""
    job_lives: bool = False
    """An attempt of this very run is alive: its ports, GPUs and folders are its own business."""

    @property
    def elsewhere(self) -> bool:
        """Is there no GPU for certain? Then the run is prepared here, and its pod has other memory and disks."""
        return self.gpus is not None and not self.gpus
