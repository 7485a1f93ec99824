"""The run file: what a person writes, validated. Every setting has a default or is plainly required.

Secrets are never in it: they come from the environment or from systemd credentials (``supervisor.base.secrets``).
``load`` turns every mistake into one sentence with the line, the key and the nearest known key.
"""

# ruff: noqa: RUF012 - pydantic gives each instance its own copy of a default
# ``type: ignore[misc]``: mypy does not see that Section freezes its tables, as the core freezes what it declares.

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from supervisor.base.secret_shapes import SECRET_NAME
from supervisor.config import run_place
from supervisor.config.nodes import Nodes
from supervisor.config.reporting import Evidence, Heartbeat, Leaving, Logging, Logs, Notify
from supervisor.config.run_place import RUN_ID
from supervisor.config.section import HostPort, Section
from supervisor.config.slurm import Slurm
from supervisor.core.settings import (
    FIRST_INTERVAL,
    DeadlineSettings,
    DiskSettings,
    Positive,
    RecoverySettings,
    Seconds,
    StoreSettings,
)
from supervisor.storage.backends import BACKENDS, backend_of, url_problem

GpuName = Annotated[int, Field(ge=0)] | Annotated[str, StringConstraints(pattern=r"^(GPU|MIG)-[0-9a-fA-F-]+$")]


class Run(Section):
    """What is trained, and where this supervisor keeps its own files."""

    id: Annotated[str, StringConstraints(pattern=RUN_ID)]
    """Name of the run, the same on every pod: the folder in the store, the socket, W&B's run name. Required."""
    max_steps: Positive | None = None
    """Last step of the run. Default: what the trainer's own configuration says."""
    state_dir: Path | None = None
    """Journal, attempt folders and snapshots. Default /var/lib/rl-supervisor/ID as root, else under XDG_STATE_HOME."""


class Plain(Section):
    """`[job.plain]`: any trainer that is a command. Only for `kind = "command"`."""

    start: list[str]
    """Command line of a fresh start. `{run_id}`, `{output_dir}` and `{wandb_id}` are filled in."""
    resume: list[str]
    """Command line that resumes; `{step}` is the step to resume from, `{checkpoint}` its folder. Required."""
    checkpoint: str = "checkpoints/step_{step}"
    """Folder of a step below `output_dir`; must hold `{step}`."""
    also: list[str] = []
    """Further folders or files of a step that resume needs, each with `{step}`."""
    markers: list[str] = ["optimizer.pt"]
    """Files (globs) below the step's folder that must all be there and not empty for it to be complete."""
    step_line: str | None = None
    """Regular expression of the step line: group `step`; optional: `duration`, `reward`, `loss`, `throughput`."""
    finish_line: str | None = None
    """Regular expression of the line that says that training is done; exit 0 is needed as well. Without it, exit 0
    means finished, unless steps are left of `max_steps`."""
    log: list[str] = []
    """Log files to follow below `output_dir`, besides the captured output."""
    first_step: Literal[0, 1] = 0
    """Number of the first step."""
    engine_url: str | None = None
    """Base URL of an inference engine of this job, if it has one that speaks vLLM's HTTP."""


class Job(Section):
    """The trainer and how it is started."""

    kind: Literal["rl", "sft", "vf-rl", "command"] = "rl"
    """`rl` and `sft`: prime-rl; `vf-rl`: the small trainer of verifiers; `command`: anything, see `[job.plain]`."""
    dir: Path | None = None
    """Folder in which the job runs; for `rl` and `sft` the prime-rl checkout. Required for them."""
    python: Path | None = None
    """Interpreter of the job's environment. Default: DIR/.venv/bin/python."""
    launcher: list[str] | None = None
    """Words that start the launcher. Default: DIR/.venv/bin/rl when it exists, else `uv run rl` (or `sft`, `vf-rl`)."""
    config: list[Path] = []
    """The file or files after `rl @`. Relative paths are below `dir`."""
    trainer_config: Path | None = None
    """Instead of `config`: the file after `--trainer @`."""
    orchestrator_config: Path | None = None
    """The file after `--orchestrator @`."""
    inference_config: Path | None = None
    """The file after `--inference @`; with `recovery.inference = "own-role"` the file after `inference @`."""
    output_dir: Path = Path("outputs")
    """Where the job writes, relative to `dir`. One run, one folder."""
    checkpoint_interval: Positive | Literal["auto"] = FIRST_INTERVAL
    """A checkpoint every so many steps (prime-rl's own default is none at all). `"auto"`: at each start as many as cost
    least by what this run measured: how long a save and a step take, and how often something fails."""
    checkpoint_interval_between: tuple[Positive, Positive] = (1, 100)
    """The least and the most steps of `"auto"`."""
    args: list[str] = []
    """Further words for the launcher's command line. Resume, clean and keep flags are refused here."""
    env: dict[str, str] = {}
    """Environment variables for the job. A value may hold its own name, `PATH = "/x:$PATH"`: the daemon's goes in.
    Secrets are refused here; see `pass_env`."""
    pass_env: list[str] = ["WANDB_*", "HF_*", "HUGGING_FACE_HUB_TOKEN", "PRIME_API_KEY", "OPENAI_API_KEY"]
    """Names (globs) of the daemon's own environment variables that the job may see. The store's keys never pass."""
    nofile: Annotated[int, Field(ge=1024)] = 65536
    """Open files the job may have; the hard limit is raised where the daemon may."""
    stop_grace_s: Seconds | None = None
    """Patience after the first stop signal. Default: what this era of the trainer needs, and 5 s after a failure, where
    all parts of prime-rl are told in one moment."""
    engine_url: str | None = None
    """Where the engine answers. Default: by era and port of the configuration."""
    plain: Plain | None = None
    """The command of `kind = "command"`."""

    @field_validator("config", mode="before")
    @classmethod
    def one_or_many(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("env")
    @classmethod
    def no_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if SECRET_NAME.search(name):
                raise ValueError(
                    f"{name} looks like a secret, and secrets do not belong in the run file: set it in the daemon's "
                    f"environment (or as a systemd credential) and name it in pass_env"
                )
        return value

    @model_validator(mode="after")
    def complete(self) -> Job:
        split = [self.trainer_config, self.orchestrator_config, self.inference_config]
        least, most = self.checkpoint_interval_between
        if least > most:
            raise ValueError(f"checkpoint_interval_between = [{least}, {most}]: put the least number of steps first")
        if self.kind == "command":
            if self.plain is None:
                raise ValueError('kind = "command" needs a [job.plain] table with `start` and `resume`')
        else:
            if self.dir is None:
                raise ValueError(f'kind = "{self.kind}" needs `dir`, the folder of the installed trainer')
            if self.plain is not None:
                raise ValueError('[job.plain] is only for kind = "command"')
            if not self.config and not any(split):
                raise ValueError("needs `config`, or `trainer_config`, `orchestrator_config` and `inference_config`")
            if self.config and any(split[:2]):
                raise ValueError("has both `config` and the three separate files: keep one of the two")
            halves = bool(self.trainer_config and self.orchestrator_config)
            if any(split) and self.kind == "rl" and not (halves or self.config):
                raise ValueError("needs `trainer_config` and `orchestrator_config` together")
        return self

    @property
    def folder(self) -> Path:
        """``dir`` of this machine, absolute."""
        return (self.dir or Path.cwd()).expanduser().absolute()

    @property
    def saves_every(self) -> int | None:
        """Steps between two checkpoints as far as they are set; a plain command saves when it likes."""
        return None if self.kind == "command" or self.checkpoint_interval == "auto" else self.checkpoint_interval

    @property
    def first_interval(self) -> int:
        """The same before the first start."""
        return FIRST_INTERVAL if self.checkpoint_interval == "auto" else self.checkpoint_interval


class Gpus(Section):
    """The run's GPUs. Numbers are NVML's (PCI bus order), not CUDA_VISIBLE_DEVICES'; `command` takes UUIDs too."""

    inference: list[GpuName] = []
    """GPUs of the engine. Default: what the trainer's configuration says."""
    trainer: list[GpuName] = []
    """GPUs of the trainer. The same GPU in both lists means one shared GPU."""


class Wandb(Section):
    """One W&B run across attempts and pods."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    """Run id. Default: chosen once, kept in the journal and in latest.json."""


class Store(Section, StoreSettings):  # type: ignore[misc]
    """Where completed steps are published."""

    url: str | None = None
    """`b2://bucket/prefix`, `s3://bucket/prefix` or `file:///folder`. Default: a folder on this machine, which a lost
    pod takes with it."""
    realm: str | None = None
    """B2 realm or the URL of another B2 server. Default: production."""
    endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[^/\s]+/?$")] | None = None
    """URL of the S3 service, for `s3://` (Cloudflare R2, MinIO, B2's S3 side, ...). Default: Amazon's own."""
    region: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$")] | None = None
    """Region of the bucket, for `s3://`. Default: AWS_REGION, else what the endpoint's name says, else `us-east-1`."""
    also: list[Literal["weights", "broadcasts", "traces"]] = []
    """What of a prime-rl step is published though no resume needs it: weights for people, those for the engine, and
    rollouts. A plain command lists its folders in `[job.plain]`."""
    streams: Annotated[int, Field(ge=1, le=64)] = 16
    """Parts in flight at a time."""
    part_size: Annotated[int, Field(ge=200)] | None = None
    """Bytes of a part. Default: what the server recommends."""
    limit_mbit: Annotated[float, Field(ge=1)] | None = None
    """Most megabits a second that a transfer may take, over all its streams, for `b2://`. Default: no limit."""
    take_over_after: Annotated[float, Field(ge=1)] = 600
    """For so long the heartbeat of the pod that holds the run must stand still before this one takes it over."""
    stall_s: Annotated[float, Field(gt=0)] = 180
    """A transfer that moves no byte for so long is killed and resumed."""

    @field_validator("url")
    @classmethod
    def check_url(cls, value: str | None) -> str | None:
        if value is not None and (problem := url_problem(value)):
            raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def check_fits_url(self) -> Store:
        for name in ("endpoint", "region", "limit_mbit"):
            if getattr(self, name) and not self._takes(name):
                known = " and ".join(f"{one.scheme}://" for one in BACKENDS if name in one.takes)
                raise ValueError(f"has `{name}`, which works only with {known} stores")
        return self

    def _takes(self, setting: str) -> bool:
        backend = backend_of(self.url or "")
        return backend is not None and setting in backend.takes

    @property
    def service(self) -> str | None:
        """Where the store's server is, when it is not the usual one: B2's realm or S3's endpoint."""
        return self.endpoint if self._takes("endpoint") else self.realm


class Checkpoints(Section):
    """Where the trainer writes its checkpoints."""

    tier: str = "off"
    """A folder on a faster file system (a tmpfs, a local NVMe beside a network volume). The trainer saves there and
    goes on sooner. Each whole step is then copied to `output_dir`, and counts as saved once it is whole there. Three
    steps must fit. `"auto"`: /dev/shm, where a probe at the launch finds it 1.5 times as fast and they fit beside
    the job. Needs prime-rl from 11 March 2026 on."""

    @field_validator("tier")
    @classmethod
    def check_tier(cls, value: str) -> str:
        if value in ("off", "auto") or Path(value).is_absolute():
            return value
        raise ValueError(f'"{value}" is none of "off", "auto" and an absolute path')


class Disk(Section, DiskSettings):  # type: ignore[misc]
    """When local checkpoints go."""

    stop_below_mb: Annotated[int, Field(ge=0)] = 2048
    """With nothing left to delete and less than this free, the job is stopped cleanly, not left to crash."""
    capacity_gb: Annotated[float, Field(gt=0)] | None = None
    """Count this much as the volume's size (a quota; shared volumes report the whole cluster's space)."""


class Deadlines(Section, DeadlineSettings):  # type: ignore[misc]
    """How long silence may last. Seconds."""


class Recovery(Section, RecoverySettings):  # type: ignore[misc]
    """What is tried before a person is called."""


class Setup(Section):
    """Commands of this pod's own run file, run by `onstart` beside the restore. Never taken from the store."""

    commands: list[str] = []
    """Shell commands, in order, run in the home folder: install prime-rl and the environment package."""
    beside: list[str] = []
    """Shell commands that run beside those and beside the restore: fetch the model
    (`uvx --from huggingface_hub hf download ORG/MODEL`). What fails here is told and stops no start."""
    timeout: Annotated[float, Field(gt=0)] = 3600
    """Seconds for all of `commands`, and for each of `beside`."""


class Check(Section):
    """What `rl-supervisor check` finds, which `run` and `onstart` look for as well before a job's first start."""

    overrule: list[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,63}$")]] = []
    """Ids of errors that do not stop a start (docs/preflight.md lists them). Warnings never do."""
    at_start: bool = True
    """False: only a person's own `rl-supervisor check` looks, and every start goes on unchecked."""


class Hooks(Section):
    """Commands at certain moments."""

    finish: str | None = None
    """Shell command after the last step is published: end the pod's billing here."""
    timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds a hook may take."""
    end_billing: bool = False
    """After exit code 0 or 94 a pod of Vast.ai or RunPod destroys itself, unless a step is only on its disk."""


class Api(Section):
    """How people and Prometheus reach the daemon."""

    socket: Path | None = None
    """Unix socket. Default /run/rl-supervisor/ID.sock as root, else under XDG_RUNTIME_DIR or the state folder."""
    mode: Annotated[str, StringConstraints(pattern=r"^0?[0-7]{3}$")] = "600"
    """Permissions of the socket. They bind the server as well: its owner and root may always, the socket's group or
    all others only with the bits for reading or writing."""
    group: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,31}$")] | None = None
    """Group (its name or number) of the socket; its members are let in. Default: none."""
    tcp: HostPort | None = None
    """`host:port` for /metrics, /healthz and /readyz only; commands stay on the socket. Default: nothing listens."""


class Web(Section):
    """The page of the run for browsers; it needs `rl-supervisor[web]`."""

    listen: HostPort | None = None
    """`host:port` of a page beside the daemon, as `rl-supervisor web` serves it. Elsewhere than on loopback it asks for
    a token: the link is in STATE/page.log. Default: none."""


class Report(Section):
    """What `rl-supervisor report` counts with."""

    dollars_per_hour: Annotated[float, Field(ge=0)] | None = None
    """What the pod costs an hour. Default: the report counts hours only."""


class Supervision(Section):
    """How the daemon itself works."""

    sample: Annotated[float, Field(ge=0.05, le=60)] = 1
    """Seconds between looks at processes and GPUs."""
    engine_sample: Annotated[float, Field(ge=0.05, le=300)] = 5
    """Seconds between looks at the engine."""
    scan: Annotated[float, Field(ge=0.1, le=3600)] = 15
    """Seconds between looks at the disk and the checkpoint folders."""
    quiet: Seconds = 20
    """A step's files must be unchanged for so long before it counts as complete."""
    shim: Literal["auto", "systemd", "fork"] = "auto"
    """How the job outlives the daemon: a transient systemd service, or a double-forked subreaper."""
    gpu_free: Seconds = 50
    """How long to wait for the GPUs' memory after a stop (NVRx waits 50 s)."""


class RunFile(Section):
    """The whole run file."""

    run: Run
    job: Job
    gpus: Gpus = Gpus()
    wandb: Wandb = Wandb()
    store: Store = Store()
    checkpoints: Checkpoints = Checkpoints()
    disk: Disk = Disk()
    deadlines: Deadlines = Deadlines()
    recovery: Recovery = Recovery()
    setup: Setup = Setup()
    check: Check = Check()
    hooks: Hooks = Hooks()
    api: Api = Api()
    web: Web = Web()
    notify: Notify = Notify()
    logging: Logging = Logging()
    logs: Logs = Logs()
    report: Report = Report()
    leaving: Leaving = Leaving()
    slurm: Slurm = Slurm()
    heartbeat: Heartbeat = Heartbeat()
    evidence: Evidence = Evidence()
    supervision: Supervision = Supervision()
    nodes: Nodes | None = None

    def with_inference(self, how: Literal["with-job", "own-role", "auto"]) -> RunFile:
        """The same with `recovery.inference` set to ``how``."""
        return self.model_copy(update={"recovery": self.recovery.model_copy(update={"inference": how})})

    @model_validator(mode="after")
    def several_machines(self) -> RunFile:
        if self.nodes is None:
            return self
        if self.checkpoints.tier != "off":
            raise ValueError("[checkpoints] tier does not go with [nodes]: each machine would need one of its own")
        if self.job.kind == "vf-rl" or self.recovery.inference == "own-role":
            raise ValueError('[nodes] goes neither with kind = "vf-rl" nor with recovery.inference = "own-role"')
        if bool(self.nodes.components) is not (self.job.kind == "command"):
            raise ValueError(
                '[nodes] wants components with [job] kind = "command", and none otherwise: prime-rl says itself what '
                "it is made of"
            )
        if self.nodes.disks == "local" and self.store.url is None:
            raise ValueError('[nodes] disks = "local" wants a [store] url: each machine is given steps from the store')
        return self

    @model_validator(mode="after")
    def check_tier_is_beside_output(self) -> RunFile:
        if self.tier_dir is not None and self.tier_dir.resolve().is_relative_to(self.output_dir.resolve()):
            raise ValueError("[checkpoints] tier lies inside of output_dir: name a folder on a faster file system")
        return self

    @property
    def state_dir(self) -> Path:
        """Folder of the journal, attempts and snapshots (absolute)."""
        if self.run.state_dir:
            return run_place.absolute(self.run.state_dir)
        return run_place.default_state_dir(self.run.id)

    @property
    def log_file(self) -> Path | None:
        """Where the daemon's JSON lines go besides stderr (absolute), None under systemd: its journal keeps them."""
        if self.logging.file:
            return self.logging.file.expanduser().absolute()
        return None if Path("/run/systemd/system").is_dir() else self.state_dir / "daemon.jsonl"  # sd_booted(3)

    @property
    def socket(self) -> Path:
        """Where the API listens (absolute)."""
        if self.api.socket:
            return run_place.absolute(self.api.socket)
        return run_place.default_socket(self.run.id)

    @property
    def store_url(self) -> str:
        """The store, the embedded default included."""
        return self.store.url or (self.state_dir / "store").as_uri()

    @property
    def output_dir(self) -> Path:
        """Where the job writes (absolute)."""
        return self.job.folder / self.job.output_dir.expanduser()

    @property
    def tier_dir(self) -> Path | None:
        """This run's own folder on the faster file system, None without one. No other run's has the same name."""
        tier = self.checkpoints.tier
        if tier == "off":
            return None
        place = hashlib.sha256(str(self.output_dir.resolve()).encode()).hexdigest()[:8]
        return Path("/dev/shm" if tier == "auto" else tier) / f"rl-supervisor-{self.run.id}-{place}"  # noqa: S108


def load(path: Path) -> RunFile:
    """Read and validate a run file.

    Raises ConfigError; its text names every mistake at once, one sentence a line, each with file, line and key.
    """
    from supervisor.config import run_file  # not needed by processes that only use the models

    return run_file.load(path)
