"""Where each era of prime-rl puts the parts of a step, and which of them must be whole before a step is resumable.

Facts from PrimeIntellect-ai/prime-rl: trainer/ckpt.py, orchestrator/ckpt.py, orchestrator/buffer.py,
orchestrator/utils.py (get_weight_dir) and trainer/weights.py, at the commits named in ``dialect.BOUNDARIES``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.checkpoints.completeness import Result, check_dcp, check_jsonl, check_markers, check_zip, folder_size
from supervisor.jobs.base import Grows, StepCheck, StepFile
from supervisor.jobs.steps import files_below, judge_step, numbered_folders, safe_name
from supervisor.primerl.dialect import Dialect

OTHER_TREES = ".run"
"""First part of the stored name of a file outside of ``checkpoints/step_N`` (a dot: prime-rl never writes one)."""

BUFFER_FILES = ("easy_examples.jsonl", "hard_examples.jsonl", "rollout_buffer.jsonl")
WEIGHT_FILES = ("*.safetensors", "*.bin")

# What may lie in a run folder before a fresh start (LAUNCHER_ARTIFACTS in utils/pathing.py, e26b50503).
_ALLOWED_AT_START = ("configs", "rl.sbatch", "sft.sbatch")


@dataclass(frozen=True)
class Layout:
    """The folders of one run. ``output_dir`` is what ``--output-dir`` names; paths of steps are relative to it."""

    output_dir: Path
    dialect: Dialect
    orchestrator: bool
    """False for SFT, which has no orchestrator's part."""
    weights_on_disk: bool
    """True when the weights go to the engine through files (filesystem broadcast)."""
    async_level: int
    """Up to 2025-11-18: how many older weights a resume needs besides the step's own."""
    run_name: str
    quiet_s: float
    also: frozenset[str] = frozenset()
    """Of ``weights``, ``broadcasts`` and ``traces``: what is published besides."""
    tier: Path | None = None
    """The run's folder on a faster file system, where saves may be seen to grow."""

    # ---------------------------------------------------------------- folders

    @property
    def run_dir(self) -> Path:
        """Folder that holds ``checkpoints/`` and ``logs/``."""
        return self.output_dir / self.run_name if self.dialect.clean == "run-dir" else self.output_dir

    @property
    def orchestrator_dir(self) -> Path:
        """The orchestrator's folder: where rollouts and broadcasts are."""
        default = self.orchestrator and self.dialect.orchestrator_tree == "run-default"
        return self.run_dir / "run_default" if default else self.run_dir

    def _primary_folder(self, step: int) -> Path:
        return self.run_dir / "checkpoints" / f"step_{step}"

    def _orchestrator_folder(self, step: int) -> Path:
        return self.orchestrator_dir / "checkpoints" / f"step_{step}" / "orchestrator"

    def _trainer_folder(self, step: int) -> Path:
        primary = self._primary_folder(step)
        return primary / "trainer" if self.dialect.trainer_dir == "trainer" else primary

    def _checkpoint_parents(self) -> list[Path]:
        return list(dict.fromkeys([self.run_dir / "checkpoints", self.orchestrator_dir / "checkpoints"]))

    def _weights_parents(self) -> list[Path]:
        """Folders of weights by step: for people (``weights/``) and for the engine (``broadcasts/``)."""
        return [self.run_dir / "weights", self.orchestrator_dir / "broadcasts"]

    def _rollout_parents(self) -> list[Path]:
        return list(dict.fromkeys([self.run_dir / "rollouts", self.orchestrator_dir / "rollouts"]))

    def _needed_weights(self, step: int) -> list[Path]:
        """Folders of weights without which resuming at ``step`` fails at once.

        Up to 8518c157c the trainer computes log-probabilities with the weights of the last ``async_level`` steps, and
        the orchestrator hands one of them to the engine. Then the orchestrator wants ``broadcasts/step_N`` before
        the trainer has written anything, until the trainer sends its weights at start (289562d2e).
        """
        if not self.orchestrator:
            return []
        if not self.dialect.broadcasts:
            first = max(step - self.async_level, 1)  # nothing is written for step 0, the base model
            return [self.run_dir / "weights" / f"step_{number}" for number in range(first, step + 1)]
        if not self.weights_on_disk or self.dialect.startup_broadcast:
            return []
        return [self.orchestrator_dir / "broadcasts" / f"step_{step}"]

    def _folders_besides(self, step: int) -> list[Path]:
        """Folders of a step that no resume needs, and that were asked for."""
        parents = {
            "weights": [self.run_dir / "weights"],
            "broadcasts": [self.orchestrator_dir / "broadcasts"],
            "traces": self._rollout_parents(),
        }
        trees = [parent / f"step_{step}" for word in sorted(self.also) for parent in parents[word]]
        return [tree for tree in trees if not tree.is_symlink() and tree not in self._folders_of_step(step)]

    # ---------------------------------------------------------------- what grows

    def growing_rollouts(self) -> Grows | None:
        """The newest step's rollouts: traces that are appended to one by one (monitors/file.py), or rank files."""
        return _newest_time(self._rollout_parents())

    def growing_checkpoint(self) -> Grows | None:
        """The newest checkpoint in all trees, with the weights for people that are saved with it."""
        parents = self._checkpoint_parents()
        newest = _newest_time([*parents, self.tier / "checkpoints"] if self.tier else parents)
        if newest is None:
            return None
        return Grows([*newest.trees, self.run_dir / "weights" / f"step_{newest.step}"], newest.step)

    # ---------------------------------------------------------------- looking

    def steps(self) -> list[int]:
        """Every step with a checkpoint folder, in either tree."""
        return sorted({step for parent in self._checkpoint_parents() for step in numbered_folders(parent)})

    def check_step(self, step: int, *, settled: bool = False, on_tier: bool = False) -> StepCheck:
        """Is everything there, and whole, that resuming at ``step`` needs?"""
        trees, part = self._folders_of_step(step), self._trainer_folder(step)
        if on_tier and self.tier and check_dcp(there := self.tier / "checkpoints" / f"step_{step}" / "trainer").ok:
            part = there
        results = self._results_of_step(step, part)
        check = judge_step(step, results, trees, self.output_dir, self.quiet_s, settled=settled)
        return replace(check, changed_wall=max(check.changed_wall, folder_size([part])[1])) if on_tier else check

    def _folders_of_step(self, step: int) -> list[Path]:
        """The folders that together are the step, the primary one first."""
        parts = [self._primary_folder(step), *self._needed_weights(step)]
        if self.orchestrator and self.dialect.orchestrator_tree == "run-default":
            parts.append(self._orchestrator_folder(step).parent)
        return parts

    def _results_of_step(self, step: int, part: Path) -> Iterator[Result]:
        yield check_dcp(part)
        if not self.orchestrator:
            return
        folder = self._orchestrator_folder(step)
        yield check_zip(folder / "progress.pt")
        if self.dialect.buffer == "jsonl":
            for name in BUFFER_FILES:
                yield check_jsonl(folder / "buffer" / name)
        elif self.dialect.buffer == "folder":
            # A Hugging Face dataset: state.json is written after its tables.
            yield check_markers(folder / "buffer", ["**/state.json"])
        for weights in self._needed_weights(step):
            yield self._check_weights(weights)

    def _check_weights(self, folder: Path) -> Result:
        if self.dialect.broadcasts and not (folder / "STABLE").is_file():
            return Result(False, f"{folder} has no STABLE, which is written last", writing=True)
        found = [check_markers(folder, [glob]) for glob in WEIGHT_FILES]
        return next(
            (result for result in found if result.ok), Result(False, f"{folder} holds no weights", writing=True)
        )

    # ---------------------------------------------------------------- files and trees

    def step_files(self, step: int) -> list[StepFile]:
        """What is published: the whole primary folder, of the others what resuming needs, and what was asked for.

        Nothing proves that those last ones are whole, so what was written lately is left out: a file that changes while
        it is sent would stop the step.
        """
        primary = self._primary_folder(step)
        besides = self._folders_besides(step)
        files = []
        for tree in (*self._folders_of_step(step), *besides):
            for path in files_below(tree):
                if path.name.endswith(".tmp") or (tree in besides and not self._exists_quietly(path)):
                    continue
                if tree == primary:
                    name = path.relative_to(primary).as_posix()
                else:
                    name = f"{OTHER_TREES}/{path.relative_to(self.run_dir).as_posix()}"
                files.append(StepFile(path, name))
        return files

    def _exists_quietly(self, path: Path) -> bool:
        try:
            return time.time() - path.stat().st_mtime >= self.quiet_s
        except FileNotFoundError:
            return False

    def place(self, step: int, name: str) -> Path:
        """Where the stored file ``name`` goes, relative to ``output_dir``. ValueError when that is not in the step."""
        path = safe_name(name)
        if path.parts[0] != OTHER_TREES:
            target = self._primary_folder(step) / path
        else:
            inner = self.run_dir.joinpath(*path.parts[1:])
            trees = (*self._folders_of_step(step)[1:], *self._folders_besides(step))
            if not any(inner.is_relative_to(tree) and inner != tree for tree in trees):
                raise ValueError(
                    f"{name!r} is no part of a step of {self.dialect.name}: the run was published by another version"
                )
            target = inner
        return target.relative_to(self.output_dir)

    def step_trees(self, step: int) -> list[Path]:
        """Every folder of ``step``: what prune deletes."""
        parents = [*self._checkpoint_parents(), *self._weights_parents(), *self._rollout_parents()]
        trees = [parent / f"step_{step}" for parent in parents]
        # lexists() would take a file system that does not answer for an empty one.
        return [tree for tree in trees if tree.is_symlink() or tree.exists()]

    def stale_trees(self, kept: Sequence[int], below: int) -> list[Path]:
        """Rollouts and broadcasts of steps below ``below``, but for what resuming at a ``kept`` step needs."""
        needed = {tree for step in kept for tree in self._needed_weights(step)}
        parents = [*self._rollout_parents(), self.orchestrator_dir / "broadcasts"]
        if not self.dialect.broadcasts:
            parents.append(self.run_dir / "weights")
        return [
            tree
            for parent in parents
            for step, tree in sorted(numbered_folders(parent).items())
            if step < below and tree not in needed
        ]

    def above_trees(self, step: int | None) -> list[Path]:
        """What must be out of the way before a start at ``step``: folders of later steps; for a fresh start all.

        Steps that count from 0 begin the next step with the number that the checkpoint bears, so rollouts of that
        number are stale too.
        """
        if step is None and self.dialect.clean == "run-dir":
            # The launcher refuses a run folder with anything in it, logs of a failed start included (validate_run_dir).
            used = [path for path in _list_folder(self.run_dir) if path.name not in _ALLOWED_AT_START]
            return [self.run_dir] if used else []
        lowest = -1 if step is None else step
        trees = [
            tree
            for parent in (*self._checkpoint_parents(), *self._weights_parents())
            for number, tree in sorted(numbered_folders(parent).items())
            if number > lowest
        ]
        stale = lowest + 1 if step is None or self.dialect.first_step == 1 else lowest
        for parent in self._rollout_parents():
            trees += [tree for number, tree in sorted(numbered_folders(parent).items()) if number >= stale]
        return trees


def _newest_time(parents: Sequence[Path]) -> Grows | None:
    step = max((number for parent in parents for number in numbered_folders(parent)), default=None)
    return None if step is None else Grows([parent / f"step_{step}" for parent in parents], step)


def _list_folder(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
