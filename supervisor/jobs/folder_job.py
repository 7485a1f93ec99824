"""What jobs with one folder a step have in common: a plain command, and the small trainer of verifiers."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.base.errors import ConfigError
from supervisor.config.settings import RunFile
from supervisor.core.facts import Fact, Role
from supervisor.jobs.base import (
    ANY_START,
    Component,
    EngineRole,
    Grows,
    GrowthKind,
    StartRequest,
    StepCheck,
    StepFile,
    StopRules,
    WeightUpdate,
)
from supervisor.jobs.downloads import arriving_folders
from supervisor.jobs.folders import StepFolders

PATIENCE_S = 60.0
REFUSED = (
    'recovery.inference = "own-role" is for [job] kind = "rl" only: this job has no inference server that the '
    "supervisor could start beside it. Take it out of the run file."
)


class FolderJob:
    """The half of ``supervisor.jobs.base.Job`` that asks the folders of steps, or answers that there is nothing.

    Its inference server, if it has one, is started and stopped with it.
    """

    run: RunFile
    chosen = ""
    folder: Path
    folders: StepFolders

    def job_variables(self, request: StartRequest) -> dict[str, str]:
        """The environment of the job, which of its GPUs it may see left aside."""
        raise NotImplementedError

    def stop_rules(self) -> StopRules:
        """SIGTERM, then the end."""
        patience = PATIENCE_S if self.run.job.stop_grace_s is None else self.run.job.stop_grace_s
        return StopRules([(signal.SIGTERM, patience)], "SIGTERM asks a command to end")

    def parse_metrics(self, role: Role, record: Mapping[str, object]) -> Sequence[Fact]:
        """There is no metrics file that we know."""
        return []

    def growing_trees(self, what: GrowthKind) -> Grows | None:
        """Downloads and checkpoints; of rollouts these jobs say nothing."""
        if what == "download":
            return Grows(arriving_folders(self.job_variables(ANY_START), self.folder))
        return self.folders.growing_trees() if what == "checkpoint" else None

    def tiered_part(self) -> str:
        """None: the command is one's own, and so is where it saves."""
        return "only prime-rl's rl and sft can be told to save elsewhere"

    def steps(self) -> Sequence[int]:
        """Every step with a folder."""
        return self.folders.steps()

    def check_step(self, step: int, *, settled: bool = False, on_tier: bool = False) -> StepCheck:
        """Are all marker files there?"""
        return self.folders.check_step(step, settled=settled)

    def step_files(self, step: int) -> Sequence[StepFile]:
        """Everything in the step's folders."""
        return self.folders.step_files(step)

    def step_trees(self, step: int) -> Sequence[Path]:
        """What prune deletes."""
        return self.folders.step_trees(step)

    def stale_trees(self, kept: Sequence[int], below: int) -> Sequence[Path]:
        """Nothing: what else is written is not ours."""
        return []

    def above_trees(self, step: int | None) -> Sequence[Path]:
        """Folders of later steps."""
        return self.folders.above_trees(step)

    def place(self, step: int, name: str) -> Path:
        """Where a stored file goes, relative to ``output_dir``."""
        return self.folders.place(step, name)

    # ---------------------------------------------------------------- an engine of its own: there is none

    def engine_role(self) -> EngineRole:
        """Refused."""
        return EngineRole(problems=(REFUSED,))

    def engine_component(self, request: StartRequest) -> Component:
        """Never there."""
        raise ConfigError(REFUSED)

    def engine_stop_rules(self) -> StopRules:
        """Never there."""
        raise ConfigError(REFUSED)

    def weight_update(self) -> WeightUpdate | None:
        """None is known."""
        return None
