"""What all effects share: the run as it is now, its job, where facts go, and what the daemon sees of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.effects.machines import Disks, Machines
from supervisor.evidence.known import Known
from supervisor.jobs.base import Job
from supervisor.process.survivors import Identity


class Post(Protocol):
    """Hands a fact to the core; from any thread."""

    def __call__(self, fact: f.Fact, source: str = "", /) -> None: ...


class RunContext:
    """One run on this pod. ``run_file`` changes when the store completes it, ``job`` when it is opened anew."""

    def __init__(
        self, run_file: RunFile, environ: Mapping[str, str], post: Post, open_job: Callable[[], Job], observed: str = ""
    ) -> None:
        """``environ`` is the daemon's own and holds the store's keys; ``open_job`` raises SupervisorError.

        ``observed`` says why the run is only looked at, "" where it is acted upon.
        """
        self.run_file = run_file
        self.environ = dict(environ)
        self.post = post
        self.observed = observed
        self.job: Job | None = None
        """None until the trainer is installed (``[setup]`` on a fresh pod), and where its files could not be read."""
        self.machines: Machines | None = None
        """Where the run has several ([nodes]); None: everything is on this one."""
        self.choose_again: Callable[[], None] = lambda: None
        """Before a start: reads the configuration that it will run, and decides `recovery.inference = "auto"` by it."""
        self.journal = ""
        """The identity of this daemon's journal, "" until the daemon has begun."""
        self._open_job = open_job
        self._opening = threading.Lock()

    @property
    def disks(self) -> Disks | None:
        """Where its machines have disks of their own."""
        return None if self.machines is None else self.machines.disks

    @property
    def state_dir(self) -> Path:
        """The run's folder of our own."""
        return self.run_file.state_dir

    def need_job(self, *, anew: bool = False) -> Job:
        """The job, opened when it was not yet or is to be read ``anew``. Raises SupervisorError."""
        with self._opening:
            if self.job is None or anew:
                self.job = self._open_job()
            return self.job


class Sights(Protocol):
    """What the daemon sees of the run, for the effects to ask at any moment and from any thread."""

    def gpu_free(self) -> bool | None:
        """Is the memory of the job's GPUs back? None when that cannot be known."""

    def engine_gpu_free(self) -> bool | None:
        """The same of the inference server's GPUs, where it is a role of its own."""

    def gpu_pids(self) -> list[int]:
        """The processes that the driver lists on the run's GPUs."""

    def job_processes(self) -> list[Identity]:
        """The job's processes that were seen, for those that left the shim's tree."""

    def engine_processes(self) -> list[Identity]:
        """The same of the inference server, where it is a role of its own."""

    def log_files(self) -> dict[str, Path]:
        """The newest log of each role."""

    def scene(self) -> Known:
        """What is known at a verdict, for the evidence; asked for by the loop."""

    def beat(self) -> dict[str, Any]:
        """What the claim's heartbeat says of the run: step, complete, published, unpublished. Unknown is None."""

    def peak_memory(self) -> int | None:
        """Bytes of memory that the run has used at most, as far as that is known."""

    def wandb_id(self) -> str:
        """One W&B run id for the whole run."""

    def wandb_notes(self) -> str:
        """Where the run went back, for its page in W&B."""
