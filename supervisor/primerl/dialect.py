"""What the ways to speak of prime-rl's history are: one frozen record of features, and the period that they fit.

Every feature was read in PrimeIntellect-ai/prime-rl between ceb60c03f (2025-09-01) and 559b44772 (2026-08-21); the
commits where each changed are in ``BOUNDARIES``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Literal

from supervisor.base.errors import UnknownDialectError
from supervisor.base.records import dataclass
from supervisor.primerl.renames import renames


@dataclass(frozen=True)
class Dialect:
    """How an installed prime-rl is started, where it writes, and how it speaks."""

    sft_launcher: bool
    """True: `sft` starts torchrun by itself; False: `sft` is the trainer, to be started under torchrun."""
    parser: Literal["pydantic-settings", "pydantic-config"]
    resume: Literal["ckpt.resume-step", "resume.step"]
    gpus: Literal["counts", "ids", "deployment"]
    sft_gpus: Literal["", "num-gpus", "num-train-gpus"]
    """Name of SFT's `--deployment.` setting for its GPUs, empty where torchrun's own argument says it."""
    keep_default_one: bool
    """True: without a word the trainer keeps one checkpoint only."""
    clean: Literal["wipes-checkpoints", "wipes-outputs", "output-dir", "run-dir"]
    """The first two clean by default (`--no-clean`); the others refuse to start in a folder that was used."""
    orchestrator_tree: Literal["shared", "run-default"]
    trainer_dir: Literal["flat", "trainer"]
    buffer: Literal["none", "folder", "jsonl"]
    broadcasts: bool
    """True: weights go to the engine through `broadcasts/`; False: through `weights/`."""
    startup_broadcast: bool
    """True: on resume the trainer sends the weights to the engine by itself, nothing of them is needed on disk."""
    nccl_default: bool
    nccl_resume: bool
    """False: a run that broadcasts its weights with NCCL cannot resume."""
    logs: Literal["log", "stdout", "attempts"]
    wandb: Literal["monitor-id", "id", "none", "shared-id", "prl-id"]
    metrics_file: bool
    """True: trainer and orchestrator write `metrics.jsonl` unless told otherwise."""
    router: bool
    """True: a router listens on the configured port and the engine 100 above it."""
    liveness: bool
    titles: bool
    notices_parts: bool
    """True: an orchestrator ends when one of its own tasks did; False: it lives on and does nothing more."""
    sigterm: bool
    """True: SIGTERM to the launcher takes its whole tree along."""
    first_step: Literal[0, 1]
    """Number of the first training step. 0: step_N has N updates done and the next step is N; 1: step N is done."""
    checkpoint_folder: bool = False
    """True: the trainer's part of the steps can be put elsewhere (`ckpt.output_dir`, 9b2fb9afb, 2026-03-11)."""
    renamed: tuple[str, ...] = ()
    """Old names of settings that this version has under their new one (``renames.toml``, those with a sign)."""

    def spell(self, key: str) -> str:
        """A setting as this version calls it; ``key`` is its oldest name."""
        for one in renames():
            key = one.apply(key) if one.old in self.renamed else key
        return key

    @property
    def renders_parts(self) -> bool:
        """Does its launcher take our template for its sbatch script, and leave [slurm] out when told so?

        Read and tried with the launcher of 559b44772; variables of the script had other names before e26b50503.
        """
        return self.resume == "resume.step"

    @property
    def name(self) -> str:
        """For people: the period that the features fit."""
        since, before = self.period()
        ends = f"between {since:%-d %b %Y} and {before:%-d %b %Y}" if before else f"from {since:%-d %b %Y} on"
        return f"prime-rl {ends}"

    def period(self) -> tuple[date, date | None]:
        """First day with these features, and the day from which some feature would be another (None: not yet)."""
        since, before = FIRST_DAY, None
        for boundary in BOUNDARIES:
            if boundary.passed(self):
                since = boundary.day
            elif before is None:
                before = boundary.day
        return since, before

    def check(self) -> None:
        """Raise UnknownDialectError when the features contradict each other: no commit of the history has them so."""
        missed: Boundary | None = None
        for boundary in BOUNDARIES:
            if not boundary.passed(self):
                missed = missed or boundary
            elif missed is not None:
                raise UnknownDialectError(
                    f"The installed prime-rl has {boundary.what} (from {boundary.day} on), but not {missed.what} (from "
                    f"{missed.day} on). No version known to this supervisor is like that, so it is not started: use a "
                    f'commit of prime-rl\'s main branch, or describe your own command with [job] kind = "command".'
                )


@dataclass(frozen=True)
class Boundary:
    """A day on which the way to speak changed for good."""

    day: date
    commit: str
    what: str
    passed: Callable[[Dialect], bool]


FIRST_DAY = date(2025, 9, 1)  # ceb60c03f, the oldest commit that was looked at


def _one_tree_again(dialect: Dialect) -> bool:
    # The run_default tree went when prime-rl gave up running several runs in one trainer (289562d2e).
    return dialect.orchestrator_tree == "shared" and dialect.router


# Only what a wrong guess about would cost a run is here, and in the order of history: a dialect that has a later one
# without an earlier one is contradictory.
BOUNDARIES: tuple[Boundary, ...] = (
    Boundary(date(2025, 9, 20), "454e2cba4", "GPUs chosen by id", lambda d: d.gpus != "counts"),
    Boundary(date(2025, 9, 23), "443c657b8", "the folder step_N/trainer", lambda d: d.trainer_dir == "trainer"),
    Boundary(date(2025, 9, 28), "acfeb861b", "no limit to its checkpoints", lambda d: not d.keep_default_one),
    Boundary(date(2025, 11, 18), "8518c157c", "a broadcasts folder", lambda d: d.broadcasts),
    Boundary(
        date(2025, 12, 15),
        "b8697b0f0",
        "the folder run_default",
        lambda d: d.orchestrator_tree == "run-default" or _one_tree_again(d),
    ),
    Boundary(date(2025, 12, 18), "534c27ab5", "a buffer of JSON lines", lambda d: d.buffer != "folder"),
    Boundary(date(2025, 12, 31), "e3dbf2ad8", "keep_last", lambda d: "ckpt.keep" in d.renamed),
    Boundary(date(2026, 2, 24), "1826b1892", "[deployment]", lambda d: d.gpus == "deployment"),
    Boundary(
        date(2026, 2, 24),
        "82652c739",
        "a launcher that cleans only when told to",
        lambda d: d.clean in ("output-dir", "run-dir"),
    ),
    Boundary(date(2026, 3, 2), "09a6875f1", "the parser pydantic_config", lambda d: d.parser == "pydantic-config"),
    Boundary(date(2026, 4, 1), "06c54dde7", "process titles", lambda d: d.titles),
    Boundary(date(2026, 6, 1), "f6563ff0e", "an orchestrator without a buffer", lambda d: d.buffer == "none"),
    Boundary(date(2026, 7, 3), "16f5c7222", "steps that count from 1", lambda d: d.first_step == 1),
    Boundary(date(2026, 7, 29), "9551e20fa", "a router before the engine", lambda d: d.router),
    Boundary(date(2026, 8, 8), "289562d2e", "one checkpoint tree again", _one_tree_again),
    Boundary(date(2026, 8, 13), "e26b50503", "run folders and --resume", lambda d: d.resume == "resume.step"),
)
