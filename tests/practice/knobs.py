"""What a practice run is told from outside prime-rl's own configuration: speeds, sizes and faults.

Read from the TOML file that the environment variable PRACTICE_FILE names; without it, the defaults and no faults.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

FAULT_KINDS = frozenset(
    {
        "engine-exit-0",
        "engine-hang",
        "trainer-crash",
        "trainer-killed",
        "orchestrator-wedge",
        "checkpoint-torn",
        "disk-full",
        "memory-fell",
        "imitation",
        "slow-step",
        "loss-nan",
        "config-error",
        "ignores-sigterm",
    }
)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong. It strikes once in a run folder, unless `every_time`."""

    kind: str
    at_step: int = 0
    """The step number, in the era's own counting, at which it strikes (or the first step after it)."""
    every_time: bool = False
    how: str = ""
    """A variant. checkpoint-torn: `shard` (cut short, no .metadata; the default), `metadata` (only .metadata.tmp),
    `short` (.metadata there, a shard cut short). engine-hang: `stop` (the default, SIGSTOP) or `block`.
    ignores-sigterm: the role (trainer, the default; orchestrator, engine, launcher)."""
    factor: float = 10.0
    """slow-step: how many times longer the step takes. (loss-nan: the weights are lost from this step on, and so are
    the checkpoints that are saved of them.)"""
    growth_bytes: int = 1 << 20
    """disk-full: how much more each later step writes into rollouts."""
    at_start: int = 1
    """config-error: at which start of the run folder."""


@dataclass(frozen=True)
class Knobs:
    """Times in seconds, sizes in bytes. `patience` scales the launcher's own waits (5 s joins, 60 s, 1 s polls)."""

    seed: int = 7
    step_s: float = 0.2
    """A step's length: half of it rollouts, half training."""
    start_s: float = 0.05
    """How long the engine loads."""
    stop_s: float = 0.0
    """How long the trainer takes to end after a SIGTERM."""
    patience: float = 0.05
    checkpoint_bytes: int = 200_000
    changing_fraction: float = 0.1
    """Which share of a checkpoint differs from step to step (adapters, their optimizer); the rest is frozen."""
    broadcast_bytes: int = 20_000
    rollout_bytes: int = 4_000
    rollouts: int = 4
    tokens: int = 512
    """Tokens generated for one rollout."""
    engine_memory_bytes: int = 60 << 30
    trainer_memory_bytes: int = 40 << 30
    volume_bytes: int = 0
    """Above 0: the run folder is a volume of this size, and a write past it fails with ENOSPC."""
    liveness_timeout_s: float = 1.0
    """Stands for the 30 s of the real one."""
    engine_exit_delay_s: float = 0.3
    """From a dead engine to the API server's own exit; the real one looks every 5 s."""
    pipeline_log_s: float = 0.5
    """Between two pipeline lines; 10 s in the real one."""
    retry_s: float = 0.2
    ballast_bytes: int = 0
    """What each rank writes besides into every checkpoint, so that it is as large as a real one: a file of its own."""
    volume_mb_s: float = 0.0
    """Above 0: a rank writes its ballast into the run folder at so many MB a second. Elsewhere (ckpt.output_dir) it
    writes as fast as it can."""
    save_s: float = 0.0
    """How long the writing of a checkpoint is drawn out."""
    faults: tuple[Fault, ...] = field(default_factory=tuple)


def read_knobs(path: str | Path | None = None) -> Knobs:
    """Reads the file (default: $PRACTICE_FILE). Raises ValueError for an unknown knob, fault kind or key."""
    name = path if path is not None else os.environ.get("PRACTICE_FILE", "")
    if not name:
        return Knobs()
    data = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    faults = []
    for entry in data.pop("fault", []):
        if entry.get("kind") not in FAULT_KINDS:
            raise ValueError(
                f"{name}: no fault is called {entry.get('kind')!r}. Known: {', '.join(sorted(FAULT_KINDS))}"
            )
        faults.append(Fault(**entry))
    unknown = set(data) - {knob.name for knob in dataclasses.fields(Knobs)}
    if unknown:
        raise ValueError(f"{name}: no knob is called {', '.join(sorted(unknown))}")
    return Knobs(faults=tuple(faults), **data)


class State:
    """What a run folder's practice job remembers beside the run folder: which faults struck, and its processes'
    exchange of batches.

    It lies in the install (`DIR/.practice/HASH`), so that the run folder itself holds only what prime-rl writes.
    """

    def __init__(self, home: Path, run_dir: Path) -> None:
        digest = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]
        self.folder = home / ".practice" / digest
        self.struck = self.folder / "struck"
        self.struck.mkdir(parents=True, exist_ok=True)

    @property
    def attempt(self) -> Path:
        """The exchange folder of the present attempt; the launcher names it in PRACTICE_ATTEMPT."""
        folder = Path(os.environ.get("PRACTICE_ATTEMPT") or self.folder / "attempt")
        if self.folder.exists():
            folder.mkdir(exist_ok=True)
        return folder

    def strikes(self, knobs: Knobs, kind: str, step: int, how: str | None = None) -> Fault | None:
        """The fault of this kind that is due at `step`, marked as struck; None when there is none."""
        for number, fault in enumerate(knobs.faults):
            if fault.kind != kind or step < fault.at_step or (how is not None and fault.how not in ("", how)):
                continue
            if fault.every_time and step == fault.at_step:
                return fault
            if not fault.every_time and self._first_time(f"{number}-{kind}"):
                return fault
        return None

    def growth(self, knobs: Knobs, step: int) -> int:
        """How many bytes more than usual a step writes into rollouts (disk-full): from its step on, until the volume
        was full once."""
        return sum(
            fault.growth_bytes
            for fault in knobs.faults
            if fault.kind == "disk-full"
            and step >= fault.at_step
            and (fault.every_time or not self.is_marked("disk-was-full"))
        )

    def mark(self, name: str) -> None:
        self._first_time(name)

    def is_marked(self, name: str) -> bool:
        return (self.struck / name).exists()

    def record_start(self, arguments: list[str]) -> int:
        """Adds this start to `starts.jsonl` and says how many there were with it.

        The environment goes in by name only, except the W&B and run identities: a test can see what the job was given,
        and no secret is copied.
        """
        shown = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("WANDB_", "PRL_", "NEVER_CLEAN", "SPT_", "CUDA_"))
        }
        shown.pop("WANDB_API_KEY", None)
        entry = {
            "pid": os.getpid(),
            "arguments": arguments,
            "folder": str(Path.cwd()),
            "names": sorted(os.environ),
            "values": shown,
        }
        file = self.folder / "starts.jsonl"
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry) + "\n")
        return len(file.read_text(encoding="utf-8").splitlines())

    def config_is_wrong(self, knobs: Knobs, start: int) -> bool:
        """Whether the fault `config-error` is due at this start."""
        faults = [fault for fault in knobs.faults if fault.kind == "config-error"]
        return any(start == fault.at_start or (fault.every_time and start >= fault.at_start) for fault in faults)

    def _first_time(self, name: str) -> bool:
        try:
            (self.struck / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
