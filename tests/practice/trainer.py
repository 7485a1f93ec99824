"""The practice trainer: one process a rank; rank 0 logs, waits for batches, broadcasts and saves, the others save their
shards.

Source of the order of things: src/prime_rl/trainer/rl/train.py at each era's commit. Until v0.6 steps count from 0 and
a checkpoint is written at the top of the loop (step_N = N updates done); since 2026-07-03 they count from 1 and it is
written after step N.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from tests.practice import gpus
from tests.practice.command_line import CommandLine
from tests.practice.dcp import (
    CheckpointError,
    Plan,
    Progress,
    ballast_name,
    metadata,
    read_progress,
    shard,
    shard_name,
    write_file,
)
from tests.practice.era import Era
from tests.practice.knobs import Knobs, State, read_knobs
from tests.practice.logs import Log, caught_line, format_duration
from tests.practice.numbers import trainer_numbers
from tests.practice.outputs import append_metrics
from tests.practice.pathing import highest_step, step_numbers
from tests.practice.processes import die, set_title
from tests.practice.settings import Part, part_settings
from tests.practice.torchfile import model_bin, safetensors
from tests.practice.volume import Volume, write_ballast

POLL_S = 0.01


class Trainer:
    """Rank 0."""

    def __init__(self, era: Era, part: Part, knobs: Knobs, state: State, ranks: int) -> None:
        self.era, self.part, self.knobs, self.state = era, part, knobs, state
        self.ranks = ranks
        file = part.output_dir / "logs" / "trainer" / "rank_0.log" if era.layout["role_files"] else None
        self.log = Log(part.log_level, file, part.json_lines, module="train")
        self.orchestrator_dir = part.output_dir / era.layout["orchestrator_tree"]
        self.broadcasts = self.orchestrator_dir / era.layout["broadcasts"]
        self.plan = Plan(knobs.seed, ranks, knobs.checkpoint_bytes, knobs.changing_fraction, knobs.ballast_bytes)
        self.volume = Volume(part.output_dir, knobs, state)
        self.progress = Progress(era.first_step, 0, 0)
        self.saved_steps = step_numbers(part.checkpoint_dir / "checkpoints")
        self.ruined = False
        self.metrics = part.output_dir / era.layout["metrics_file"] if era.layout["metrics_file"] else None

    def say(self, level: str, key: str, **values: object) -> None:
        self.log.write(level.upper(), self.era.line("trainer", key, **values))

    def train(self) -> None:
        world = f"World(world_size={self.ranks}, rank=0, local_rank=0, local_world_size={self.ranks}, num_nodes=1)"
        self.say("info", "starting", world=world)
        self.say("info", "starting_in", world=world, output_dir=self.part.output_dir)
        self.say("info", "checkpoints", config=f"interval={self.part.interval}")
        self.say("info", "model", config=f"name='{self.part.model}'")
        devices = gpus.visible_gpus()
        gpus.hold_memory({devices[0]: self.knobs.trainer_memory_bytes} if devices else {})
        self._load_checkpoint()
        progress = self.progress
        self.say("info", "from_step", step=progress.step, tokens=progress.total_tokens, samples=progress.total_samples)
        self.say("info", "loop", max_steps=self.part.max_steps or "infinite")
        if self.era.first_step == 0:
            self._loop_from_zero()
        else:
            self._loop_from_one()
        if self.part.checkpoints:
            self.say("info", "final")
            self._save_trainer_part(self.progress.step)
            if self.era.layout["weight_checkpoints"]:
                self.say("info", "final_weights")
                self._weight_checkpoint(self.progress.step)
        self.say("info", "peak", memory=41.9)
        self.say("success", "finished")

    def _loop_from_zero(self) -> None:
        first = True
        while True:
            step = self.progress.step
            last = self.part.max_steps is not None and step >= self.part.max_steps
            if step > 0:
                self._broadcast_weights(step)
            if self.part.interval and not first and not last and step % self.part.interval == 0:
                self._save_step(step)
            if last:
                return
            self._train_step(step)
            self.progress = Progress(step + 1, self.progress.total_tokens, self.progress.total_samples)
            first = False

    def _loop_from_one(self) -> None:
        start = self.progress.step
        self.say("info", "startup_broadcast", step=start - 1)
        self._broadcast_weights(start - 1)
        while True:
            step = self.progress.step
            last = self.part.max_steps is not None and step >= self.part.max_steps
            self._train_step(step, functools.partial(self._after_step, step, last))
            if last:
                return
            self.progress = Progress(step + 1, self.progress.total_tokens, self.progress.total_samples)

    def _after_step(self, step: int, last: bool) -> None:
        if not (last and self.part.broadcast_kind == "markers"):
            self._broadcast_weights(step)
        if self.part.interval and not last and step % self.part.interval == 0:
            self._save_step(step)

    def _train_step(self, step: int, before_the_line: Callable[[], None] | None = None) -> None:
        self.say("info", "step_begins", step=step)
        self.say("info", "waiting")
        batch = self.state.attempt / f"batch-{step}"
        started = time.perf_counter()
        while not batch.exists():
            if not self.state.folder.exists():
                raise FileNotFoundError(f"{self.state.folder} is gone, and the install with it")
            time.sleep(POLL_S)
        if self.state.strikes(self.knobs, "trainer-crash", step):
            raise RuntimeError("CUDA error: an illegal memory access was encountered (practice fault trainer-crash)")
        if self.state.strikes(self.knobs, "trainer-killed", step):
            die()
        slow = self.state.strikes(self.knobs, "slow-step", step)
        time.sleep(self.knobs.step_s / 2 * (slow.factor if slow else 1))
        batch.unlink(missing_ok=True)
        self._rank_rollouts(step)
        counted = self.progress
        tokens = self.knobs.rollouts * self.knobs.tokens
        self.progress = Progress(
            counted.step, counted.total_tokens + tokens, counted.total_samples + self.knobs.rollouts
        )
        if before_the_line is not None:
            before_the_line()
        seconds = time.perf_counter() - started
        numbers = trainer_numbers(self.knobs.seed, step)
        if self.ruined or self.state.strikes(self.knobs, "loss-nan", step):
            self.ruined = True
            numbers["loss"] = math.nan
        self.say("success", "step", step=step, seconds=seconds, duration=format_duration(seconds), **numbers)
        self._log_metrics(step, seconds, numbers)

    def _rank_rollouts(self, step: int) -> None:
        """The packed batch of each rank, which the trainer itself wrote until 2026-08-08."""
        if self.era.layout["orchestrator_tree"]:
            for rank in range(self.ranks):
                file = self.part.output_dir / "rollouts" / f"step_{step}" / f"rank_{rank}.bin"
                self.volume.write(file, b"\0" * (self.knobs.rollout_bytes + self.state.growth(self.knobs, step)))

    def _log_metrics(self, step: int, seconds: float, numbers: dict[str, float]) -> None:
        performance = {"throughput": numbers["throughput"], "mfu": numbers["mfu"], "peak_memory": numbers["memory"]}
        rows = [
            {f"perf/{name}": value for name, value in performance.items()},
            {"optim/lr": numbers["lr"], "optim/grad_norm": numbers["norm"]},
            {
                "loss/mean": numbers["loss"],
                "entropy/all/mean": numbers["entropy"],
                "mismatch_kl/all/mean": numbers["kl"],
            },
            {"time/step": seconds},
        ]
        append_metrics(self.metrics, step, rows)

    # --- weights and checkpoints --------------------------------------------------------------------------------------

    def _broadcast_weights(self, step: int) -> None:
        folder = self.broadcasts / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        kind = self.part.broadcast_kind
        size = self.knobs.broadcast_bytes
        if kind == "torch":
            self.volume.write(folder / "pytorch_model.tmp", model_bin(size, step))
            (folder / "pytorch_model.tmp").replace(folder / "pytorch_model.bin")
            self.volume.write(folder / "config.json", b"{}")
        elif kind == "filesystem":
            self.volume.write(folder / "model.safetensors", safetensors(size, step))
            (folder / "STABLE").touch()
        else:
            (folder / "STABLE").touch()
        if kind != "markers":
            self._clean_broadcasts(step)

    def _clean_broadcasts(self, step: int) -> None:
        lag = self.part.max_async_level
        old = max(step - (lag + 1), 0)
        interval = self.part.interval
        keeps = bool(interval and old % interval == 0)
        if self.part.broadcast_kind == "torch" and interval:
            keeps = (interval - old % interval) % interval <= lag
        if not keeps:
            shutil.rmtree(self.broadcasts / f"step_{old}", ignore_errors=True)

    def _save_step(self, step: int) -> None:
        self.say("info", "saving", step=step)
        if self.ruined:
            self.state.mark(f"ruined-{step}")
        self._save_trainer_part(step)
        if self.era.layout["weight_checkpoints"]:
            self.say("info", "saving_weights", step=step)
            self._weight_checkpoint(step)

    def _weight_checkpoint(self, step: int) -> None:
        folder = self.part.checkpoint_dir / "weights" / f"step_{step}"
        self.volume.write(folder / "model.safetensors", safetensors(self.knobs.broadcast_bytes, step))
        self.volume.write(folder / "config.json", b"{}")
        if self.era.titles:
            (folder / "STABLE").touch()

    def _checkpoint_folder(self, step: int) -> Path:
        return self.part.checkpoint_dir / "checkpoints" / f"step_{step}" / str(self.era.layout["trainer_dir"])

    def _save_trainer_part(self, step: int) -> None:
        folder = self._checkpoint_folder(step)
        folder.mkdir(parents=True, exist_ok=True)
        progress = Progress(step, self.progress.total_tokens, self.progress.total_samples)
        torn = self.state.strikes(self.knobs, "checkpoint-torn", step)
        how = (torn.how or "shard") if torn else ""
        (self.state.attempt / f"save-{step}").write_text(
            json.dumps([str(folder), progress.total_tokens, progress.total_samples])
        )
        data, _ = shard(self.plan, progress, 0)
        if how in ("shard", "short"):
            data = data[: len(data) * 2 // 3]
        half = len(data) // 2
        if self.knobs.save_s:
            self.volume.write(folder / shard_name(0), data[:half])
            time.sleep(self.knobs.save_s)
        self.volume.write(folder / shard_name(0), data)
        if how == "shard":
            die()
        save_ballast(folder, 0, self.part, self.knobs)
        for rank in range(1, self.ranks):
            while not (self.state.attempt / f"saved-{step}-{rank}").exists():
                time.sleep(POLL_S)
        self.volume.write(folder / ".metadata.tmp", metadata(self.plan, progress))
        if how == "metadata":
            die()
        (folder / ".metadata").unlink(missing_ok=True)
        (folder / ".metadata.tmp").rename(folder / ".metadata")
        if how == "short":
            die()
        if step not in self.saved_steps:
            self.saved_steps = sorted([*self.saved_steps, step])
        self._prune_checkpoints()

    def _prune_checkpoints(self) -> None:
        last, every = self.part.keep_last, self.part.keep_interval
        if last is None and every is None:
            return
        kept = set(self.saved_steps[-last:] if last else [])
        kept |= {step for step in self.saved_steps if every and step % every == 0}
        for step in self.saved_steps:
            if step not in kept:
                shutil.rmtree(self.part.checkpoint_dir / "checkpoints" / f"step_{step}", ignore_errors=True)
        self.saved_steps = [step for step in self.saved_steps if step in kept]

    def _load_checkpoint(self) -> None:
        step = self.part.resume_step
        if self.part.resuming and step is None:
            step = highest_step(self.part.checkpoint_dir / "checkpoints")
        if step is None or not self.part.resuming:
            return
        if self.part.broadcast_kind == "torch":
            for older in range(max(step - self.part.max_async_level, 1), step):
                model = self.broadcasts / f"step_{older}" / "pytorch_model.bin"
                if not model.exists():
                    raise FileNotFoundError(f"[Errno 2] No such file or directory: '{model}'")
        source = self.part.resume_from
        self.progress = read_progress(
            source / self.era.layout["trainer_dir"] if source else self._checkpoint_folder(step)
        )
        self.saved_steps = [saved_step for saved_step in self.saved_steps if saved_step <= step]
        if self.era.first_step == 1:
            self.progress = Progress(self.progress.step + 1, self.progress.total_tokens, self.progress.total_samples)
        self.ruined = self.state.is_marked(f"ruined-{step}")
        self.say("info", "resuming", step=step)


def follow(part: Part, knobs: Knobs, state: State, rank: int, ranks: int) -> None:
    """Any rank but 0: holds its GPU's memory, and writes its shard when rank 0 saves."""
    devices = gpus.visible_gpus()
    gpus.hold_memory({devices[rank]: knobs.trainer_memory_bytes} if rank < len(devices) else {})
    plan = Plan(knobs.seed, ranks, knobs.checkpoint_bytes, knobs.changing_fraction, knobs.ballast_bytes)
    while not (state.attempt / "finish").exists() and state.folder.exists():
        for request in state.attempt.glob("save-*"):
            step = int(request.name.removeprefix("save-"))
            done = state.attempt / f"saved-{step}-{rank}"
            text = request.read_text()
            if done.exists() or not text:
                continue
            folder, tokens, samples = json.loads(text)
            write_file(Path(folder) / shard_name(rank), shard(plan, Progress(step, tokens, samples), rank)[0])
            save_ballast(Path(folder), rank, part, knobs)
            done.touch()
        time.sleep(POLL_S)


def save_ballast(folder: Path, rank: int, part: Part, knobs: Knobs) -> None:
    """A rank's second file, at the volume's rate where it lies there."""
    if knobs.ballast_bytes:
        slow = folder.resolve().is_relative_to(part.output_dir.resolve())
        write_ballast(folder / ballast_name(rank), knobs.ballast_bytes, knobs.volume_mb_s if slow else 0.0)


def main(era: Era, home: Path, arguments: list[str]) -> int:
    if era.titles:
        set_title("PRIME-RL::Trainer")
    part = part_settings(era, "trainer", CommandLine(era, "trainer").parse(arguments))
    knobs, state = read_knobs(), State(home, Path(os.environ.get("PRACTICE_RUN_DIR") or part.output_dir))
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    signal.signal(signal.SIGTERM, _slow_end(knobs) if knobs.stop_s else signal.SIG_DFL)
    if rank == 0 and state.strikes(knobs, "ignores-sigterm", era.first_step, "trainer"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank:
        follow(part, knobs, state, rank, ranks)
        gpus.release()
        return 0
    trainer = Trainer(era, part, knobs, state, ranks)
    try:
        trainer.train()
    except (OSError, RuntimeError, CheckpointError) as error:
        message = era.line("trainer", "fatal", function="train") or caught_line("train")
        trainer.log.caught(message, error)
        gpus.release()
        return 1
    (state.attempt / "finish").touch()
    gpus.release()
    return 0


def _slow_end(knobs: Knobs) -> Callable[[int, FrameType | None], None]:
    def end(number: int, frame: FrameType | None) -> None:
        time.sleep(knobs.stop_s)
        sys.exit(1)

    return end
