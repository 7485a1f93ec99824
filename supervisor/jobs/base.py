"""The protocol of a supervised job: how to start it, where it writes, how it speaks, how it is stopped.

``supervisor.primerl`` implements it for prime-rl, ``supervisor.jobs.plain`` for any other trainer. The daemon, the
sensors and the effects know a job only through this page.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from supervisor.base.records import dataclass
from supervisor.core.facts import Fact, Role

if TYPE_CHECKING:  # pydantic, which a sensor does without
    from supervisor.config.settings import RunFile

PHASES = (
    "download",  # model weights are fetched
    "startup",  # loading, compiling
    "engine-wait",  # the orchestrator waits until the engine is up
    "rollouts",
    "barrier",  # the orchestrator waits for the trainer
    "training",
    "weight-update",
    "checkpoint",
    "eval",
    "draining",
    "stopping",  # the launcher ends its parts
)

Ask = Callable[[Sequence[str], Path, Mapping[str, str], float], tuple[int | None, str]]
"""Runs a program in a folder, with an environment, for so many seconds at most, and leaves nothing of it: its exit code
(None: it was late) and what it said. Raises OSError."""


@dataclass(frozen=True)
class StartRequest:
    """What the daemon wants started.

    ``configs`` maps each configuration file's original path to the snapshot that this attempt must read.
    ``wandb_id`` is chosen once for the whole run and kept across attempts and pods.
    """

    run_id: str
    attempt: int
    step: int | None
    configs: Mapping[Path, Path]
    wandb_id: str
    attempt_dir: Path
    wandb_notes: str = ""  # where the run went back, for its page in W&B
    ask: Ask | None = None  # for a job that its own launcher has to describe
    interval: int | None = None  # steps between two checkpoints; None: as the run file says
    tier: Path | None = None  # where the trainer's part of the steps goes; None: to the run's own folder


ANY_START = StartRequest("check", 0, None, {}, "check", Path("/"))
"""For what is the same in each start: may one be made at all, and where do downloads arrive?"""


@dataclass(frozen=True)
class Change:
    """Something that a start is given beside the person's own configuration.

    ``what``: words of the command line, or NAME=value. ``why``: a clause. ``yours``: what the person's configuration
    says instead, where that is another value.
    """

    what: str
    why: str
    yours: str = ""


@dataclass(frozen=True)
class Component:
    """One process to start under a shim. ``env`` is complete: nothing else of the daemon's environment is passed."""

    name: str
    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    nofile: int = 65536
    ports: Sequence[int] = ()  # TCP ports of this machine on which its processes will listen, as far as that is known
    hosts: Mapping[int, str] = field(default_factory=dict)  # where one of them is bound at one address alone
    place: Place | None = None


@dataclass(frozen=True)
class Place:
    """Where a component runs, in a run over several machines, and what it is there.

    A job counts its machines from 0 and names them ``{name.N}`` and ``{address.N}``, here and in command lines and
    variables: which machine is which is decided at the start (``supervisor.effects.machines``).
    """

    host: str
    role: Role
    index: int = 0
    writes: bool = False  # could a second copy spoil what the run keeps?
    gpus: Sequence[str] | None = None  # as CUDA_VISIBLE_DEVICES names them; None: it sees all of its machine
    port: int | None = None  # where a vLLM engine answers HTTP, on its machine


def visible_gpus(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """What ``CUDA_VISIBLE_DEVICES`` names; None: all of the machine."""
    given = env.get("CUDA_VISIBLE_DEVICES")
    return None if given is None else tuple(word for one in given.split(",") if (word := one.strip()))


@dataclass(frozen=True)
class StopRules:
    """How this job wants to be stopped: signals in order, each with the seconds to wait for the whole tree.

    After the last one everything is killed with SIGKILL.

    ``at_once_s``: after a failure the first signal goes to the components and SIGTERM to all that they started, in the
    same moment, and what lives after so many seconds is killed. None: a failure changes nothing.
    """

    signals: Sequence[tuple[int, float]]
    why: str = ""
    at_once_s: float | None = None


@dataclass(frozen=True)
class LogSource:
    """A log to follow. ``path`` is a glob (see ``literal``) and may lie behind a symlink that is swapped.

    ``kind`` "text" lines go to ``Job.parse_line``; "jsonl" is a metrics file, each line one JSON object.

    ``fate`` at the job's next start: "stays" (each start has files of its own), "overwritten" (nothing is left of it,
    so it may be moved away between two attempts), "shared" (unknown: it may be appended to, so it must stay).
    """

    role: Role
    path: str
    kind: Literal["text", "jsonl"] = "text"
    fate: Literal["stays", "overwritten", "shared"] = "stays"


def literal(folder: Path) -> Path:
    """``folder`` as the start of a glob, also where its own name has brackets: ``runs/grpo[lr=1e-6]``."""
    return Path(glob.escape(str(folder)))


@dataclass(frozen=True)
class Engine:
    """Where the inference engine answers HTTP. ``liveness`` False where the era has no such endpoint."""

    url: str
    liveness: bool
    router_url: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class EngineRole:
    """What this job allows with an inference server that we start beside it (``recovery.inference = "own-role"``)."""

    problems: Sequence[str] = field(default_factory=tuple)  # sentences; while there are any, it cannot be started so
    keep_warm: bool = False  # the rest may restart, to resume at a step, while the engine lives on
    restart_alone: bool = False  # the engine may restart under the rest that lives on
    why: str = ""  # a sentence on what is not allowed, and why


@dataclass(frozen=True)
class WeightUpdate:
    """How an engine that was restarted alone is given the weights that the run is at: HTTP calls, in order.

    ``calls``: method POST, each a path below ``url`` and a JSON body.
    """

    step: int
    url: str
    calls: Sequence[tuple[str, Mapping[str, object]]]


@dataclass(frozen=True)
class StepCheck:
    """Is a step's checkpoint loadable? ``reason`` is a sentence for "writing" and "incomplete"."""

    state: Literal["complete", "writing", "incomplete"]
    reason: str = ""
    size_bytes: int = 0
    changed_wall: float = 0.0


GrowthKind = Literal["download", "rollouts", "checkpoint"]


@dataclass(frozen=True)
class Grows:
    """Folders in which a phase can be seen to go on by bytes, and the step they belong to (0 where there is none)."""

    trees: Sequence[Path]
    step: int = 0


@dataclass(frozen=True)
class StepFile:
    """One file of a step: ``source`` on disk, ``name`` below ``{run_id}/step_N/`` in the store (POSIX, relative).

    Files of the primary folder (``checkpoints/step_N``) keep their path below it, so the store's step is what
    ``b2 sync`` of that folder would give. Files of other trees are named ``.run/<path below the output folder>``.
    """

    source: Path
    name: str


@dataclass(frozen=True)
class TieredPart:
    """The part of the steps that a start can put on a faster file system (``StartRequest.tier``).

    ``home`` is the folder that holds ``step_N`` in the run's own place, ``part`` the path of the part in it. On the
    tier it lies in ``checkpoints/step_N/PART``. ``weights``: what else the trainer would write there, and stays here.
    """

    home: Path
    part: str
    weights: Path


@dataclass(frozen=True)
class GpuPlan:
    """Which GPUs (NVML indices or UUIDs as the person wrote them) hold the engine and which the trainer."""

    inference: Sequence[str] = ()
    trainer: Sequence[str] = ()

    @property
    def is_shared(self) -> bool:
        """True when engine and trainer live on one GPU."""
        return bool(set(self.inference) & set(self.trainer))


def gpus_of_run_file(run: RunFile) -> GpuPlan:
    """What its [gpus] says, empty where that is left to the trainer's configuration."""
    return GpuPlan([str(gpu) for gpu in run.gpus.inference], [str(gpu) for gpu in run.gpus.trainer])


@dataclass(frozen=True)
class JobFacts:
    """What a job knows of itself before it starts; shown by ``check`` and kept in the manifest."""

    name: str  # "prime-rl, as of 2026-06-22 (v0.6)": for people
    revision: str = ""  # git commit of the installed trainer, when it can be read without running it
    first_step: int = 0
    finish_line: bool = True  # False: no line says success, so exit code 0 means finished, unless steps are left
    notes: Sequence[str] = field(default_factory=tuple)  # limits a person must know ("no way to set the W&B id")


def note_choice(chosen: str) -> list[str]:
    """What `recovery.inference = "auto"` came to, among a job's notes; none where it was not asked for."""
    return [f"recovery.inference = {chosen}"] if chosen else []


class Job(Protocol):
    """A supervised job. Methods raise ``ConfigError`` or ``UnknownDialectError`` and never start anything."""

    output_dir: Path
    run: RunFile  # where `auto` was decided, as it was
    chosen: str  # what `auto` came to, and why; "" where it was not asked for

    def facts(self) -> JobFacts:
        """Name, revision and limits of the installed trainer."""

    def config_files(self) -> Sequence[Path]:
        """Files that an attempt's snapshot must hold."""

    def max_steps(self) -> int | None:
        """Last step of the run, from the trainer's configuration; None when it is open."""

    def problems(self) -> Sequence[str]:
        """Sentences on configurations we refuse (Slurm, multi-node, multi-run); empty when it may start."""

    def components(self, request: StartRequest) -> Sequence[Component]:
        """The processes to start, launcher first."""

    def changes(self, request: StartRequest) -> Sequence[Change]:
        """All that a start has and the person's own configuration has not. Never raises for one that is refused."""

    def engine_role(self) -> EngineRole:
        """May the inference server be started by us beside the job, and which half may restart without the other?"""

    def engine_component(self, request: StartRequest) -> Component:
        """The inference server alone; ``components`` then leaves it out. ConfigError while the role has problems."""

    def engine_stop_rules(self) -> StopRules:
        """How the inference server alone is stopped."""

    def weight_update(self) -> WeightUpdate | None:
        """The newest weights that the trainer handed over; None while the run is still at the base model."""

    def stop_rules(self) -> StopRules:
        """Signals and patience of this era."""

    def gpus(self) -> GpuPlan:
        """Which GPU does what."""

    def engine(self) -> Engine | None:
        """The inference server to look at, None when the job has none."""

    def log_sources(self, attempt_dir: Path) -> Sequence[LogSource]:
        """Files to follow; the components' captured output is ``attempt_dir/NAME.log``."""

    def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
        """Facts in one decoded log line of ``role``'s own file (ANSI still in it). Never raises, bounded time."""

    def parse_metrics(self, role: Role, record: Mapping[str, object]) -> Sequence[Fact]:
        """Facts in one record of a metrics file."""

    def classify_process(self, title: str, comm: str) -> tuple[Role, bool] | None:
        """Role of a process by its command line and /proc comm (15 characters), and whether its end is proof.

        None: a helper of no interest. ("inference", True) is an engine process: its end means the engine is dead.
        """

    def growing_trees(self, what: GrowthKind) -> Grows | None:
        """Where ``what`` can be seen to grow at this moment: the newest step's folders, or where downloads arrive.

        None when there is nothing (yet). Raises OSError when that cannot be said.
        """

    def tiered_part(self) -> TieredPart | str:
        """What can lie on a faster file system, or a sentence on why nothing can."""

    def steps(self) -> Sequence[int]:
        """Every step number that has any checkpoint folder locally (both trees), ascending."""

    def check_step(self, step: int, *, settled: bool = False, on_tier: bool = False) -> StepCheck:
        """Is the step complete? Reads only names, sizes and small files; imports no torch, executes no pickle.

        ``settled``: no process writes any more, so a whole step is complete without waiting for quiet time.
        ``on_tier``: a part that is whole on the tier will do; the step counts once that is copied.
        """

    def step_files(self, step: int) -> Sequence[StepFile]:
        """Files that resuming at ``step`` needs, with their names in the store."""

    def step_trees(self, step: int) -> Sequence[Path]:
        """Every folder that belongs to ``step`` (both checkpoint trees, weights, broadcasts): what prune deletes."""

    def stale_trees(self, kept: Sequence[int], below: int) -> Sequence[Path]:
        """Rollouts and broadcasts of steps below ``below`` that no kept step needs."""

    def above_trees(self, step: int | None) -> Sequence[Path]:
        """Folders of steps above ``step`` (all steps when None) that must be moved aside before a start."""

    def place(self, step: int, name: str) -> Path:
        """Where a stored file of ``step`` goes, relative to ``output_dir``. ValueError on a path that leaves it."""
