"""The small trainer of verifiers (`vf-rl`) as two components: the engine and the trainer.

`vf-rl` itself opens a tmux session and returns at once, so nothing could be said about what it started. Its two
commands are started here instead, with the GPUs that it would choose: the engine's first, the trainer's after them
(verifiers_rl/scripts/rl.py at a497ee524^). The trainer is Hugging Face's: `checkpoint-N` folders with optimizer.pt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.base.errors import ConfigError
from supervisor.base.escapes import plain
from supervisor.config.settings import RunFile
from supervisor.core.facts import ErrorSeen, Fact, FinishSeen, PhaseSeen, Role, StepDone
from supervisor.jobs.base import (
    ANY_START,
    Change,
    Component,
    Engine,
    GpuPlan,
    JobFacts,
    LogSource,
    StartRequest,
    gpus_of_run_file,
    literal,
    note_choice,
)
from supervisor.jobs.environment import job_environment, open_files, set_variables
from supervisor.jobs.folder_job import REFUSED, FolderJob
from supervisor.jobs.folders import StepFolders, StepPath
from supervisor.jobs.wandb_client import wandb_variables
from supervisor.primerl import command, logs, processes
from supervisor.primerl import configs as files

WRAPPER = Path(__file__).with_name("vf_train.py")
DEFAULT_PORT = 8000  # vllm_server_port in verifiers_rl/rl/trainer/config.py
DEFAULT_STEPS = 500  # max_steps there

# transformers' Trainer writes weights, then optimizer.pt (or DeepSpeed's global_stepN), the random state, and
# trainer_state.json last (Trainer._save_checkpoint).
MARKERS = (("trainer_state.json",), ("optimizer.pt", "global_step*/*"))

# Its progress bar, the only line with a step number: " 12%|#2   | 12/100 [01:10<08:30, 5.8s/it]".
_PROGRESS = re.compile(r"\s{0,4}\d{1,3}%\|[^|]{0,200}\| (\d{1,9})/(\d{1,9}) \[")
_METRICS = re.compile(r"\{'(?:loss|reward|grad_norm)'.{0,4000}\}$")
_REWARD = re.compile(r"'reward': '?(-?[\d.]+(?:e[+-]?\d+)?)'?[,}]")
_FINISHED = re.compile(r"\{'train_runtime': ")


class VerifiersJob(FolderJob):
    """vf-vllm and vf-train. Implements ``supervisor.jobs.base.Job``."""

    def __init__(self, run: RunFile, environ: Mapping[str, str], copies: Mapping[Path, Path] | None = None) -> None:
        self.run = run
        self.environ = environ
        self.folder = run.job.folder
        self.sources = files.sources(run.job)
        self.settings = files.load(self.sources, (), copies)
        self.output_dir = run.output_dir
        self.folders = StepFolders(
            output_dir=run.output_dir,
            main=StepPath.parse("checkpoint-{step}", "checkpoint"),
            also=(),
            markers=MARKERS,
            quiet_s=run.supervision.quiet,
        )

    # ---------------------------------------------------------------- what it is

    def facts(self) -> JobFacts:
        """What it is, and what it cannot do."""
        return JobFacts(
            "the small trainer of verifiers (vf-rl)",
            "",
            first_step=1,
            notes=(
                "vf-rl opens a tmux session and returns; its two commands are started without it.",
                (
                    "vf-train has no way to resume; the supervisor's own start of it gives Hugging Face's Trainer the "
                    "checkpoint. Rollouts that were under way are made again."
                ),
                "The environment package must be installed already (vf-rl would run `prime env install`): [setup].",
                *note_choice(self.chosen),
            ),
        )

    def config_files(self) -> Sequence[Path]:
        """The one TOML file."""
        return [source.path for source in self.sources]

    def max_steps(self) -> int | None:
        """From the run file, else [trainer.args] max_steps, else the trainer's default."""
        if self.run.run.max_steps is not None:
            return self.run.run.max_steps
        return self.settings.number("trainer.args.max_steps") or DEFAULT_STEPS

    def problems(self) -> Sequence[str]:
        """What vf-rl itself would refuse, and what would break a promise."""
        where, get = self.settings.where, self.settings.get
        found = [REFUSED] if self.run.recovery.inference == "own-role" else []
        if len(self.sources) != 1 or self.sources[0].table:
            found.append("vf-rl takes exactly one configuration file: name it in [job] config.")
        if not isinstance(get("model"), str):
            found.append(
                f'{where} has no `model` at its top: give the name of a model, such as "Qwen/Qwen2.5-1.5B-Instruct".'
            )
        if get("env.id") is None:
            found.append(f"{where} has no [env] id: name the environment.")
        for part in ("inference", "trainer"):
            if not self.settings.number(f"{part}.gpus"):
                found.append(f"{where} has no [{part}] gpus: say how many GPUs it gets.")
        if self.run.job.args:
            found.append("[job] args: vf-rl takes no further words. Put settings into its configuration.")
        for key in (
            "output_dir",
            "save_total_limit",
            "save_steps",
            "save_strategy",
            "resume_from_checkpoint",
            "save_only_model",
        ):
            if get(f"trainer.args.{key}") is not None:
                found.append(f"{where} sets [trainer.args] {key}, which the supervisor decides. Take it out.")
        if any(isinstance(gpu, str) for gpu in (*self.run.gpus.inference, *self.run.gpus.trainer)) is False and (
            bool(self.run.gpus.inference) != bool(self.run.gpus.trainer)
        ):
            found.append("[gpus] needs both `inference` and `trainer` here, or neither.")
        try:
            self.job_variables(ANY_START)
        except ConfigError as error:
            found.append(str(error))
        return found

    # ---------------------------------------------------------------- starting and stopping

    def components(self, request: StartRequest) -> Sequence[Component]:
        """The engine and the trainer, each with its GPUs. Raises ConfigError while there are problems."""
        if problems := self.problems():
            raise ConfigError("\n".join(problems))
        config = self.sources[0].path
        plan = self.gpus()
        values = {name: value for name, (value, _) in self._list_own_settings(request).items()}
        checkpoint = "" if request.step is None else str(self.folders.folder(request.step))
        trainer = [
            *self._python(),
            str(WRAPPER),
            json.dumps(values),
            checkpoint,
            "@",
            str(request.configs.get(config, config)),
        ]
        return [
            Component(
                "inference",
                self._engine_words(),
                self.folder,
                self.job_variables(request, plan.inference),
                self.run.job.nofile,
                [] if self.run.job.engine_url else [self._port()],
            ),
            Component("trainer", trainer, self.folder, self.job_variables(request, plan.trainer), self.run.job.nofile),
        ]

    def _list_own_settings(self, request: StartRequest) -> dict[str, tuple[Any, str]]:
        """Settings of [trainer.args] that are the supervisor's, with their reasons."""
        saved = "[job] checkpoint_interval says it"
        decided: dict[str, tuple[Any, str]] = {
            "output_dir": (str(self.output_dir), "[job] output_dir says it"),
            "save_strategy": ("steps", saved),
            "save_steps": (request.interval or self.run.job.first_interval, saved),
            "save_total_limit": (None, "only the supervisor deletes checkpoints, and only published ones"),
        }
        if self.run.run.max_steps is not None:
            decided["max_steps"] = (self.run.run.max_steps, "[run] max_steps of the run file says it")
        return decided

    def changes(self, request: StartRequest) -> Sequence[Change]:
        """Settings of the trainer, its checkpoint, and variables of both processes."""
        found = []
        for name, (value, why) in self._list_own_settings(request).items():
            own = self.settings.get(f"trainer.args.{name}")
            yours = f"trainer.args.{name} = {json.dumps(own)}" if own is not None and own != value else ""
            found.append(Change(f"trainer.args.{name} = {json.dumps(value)}", why, yours))
        if request.step is not None:
            why = "the step to go on from, each file of it verified"
            found.append(Change(f"resume_from_checkpoint = {self.folders.folder(request.step)}", why))
        own_env = {**self.environ, **self.run.job.env}
        given = self._fixed_variables(request) | wandb_variables(self.run, self.environ, request.wandb_notes)
        return [*found, *set_variables(given, own_env), open_files(self.run.job.nofile)]

    def _python(self) -> list[str]:
        own = command.interpreter(self.run)
        return [str(own)] if own.exists() else ["uv", "run", "python"]

    def _engine_words(self) -> list[str]:
        words = [*command.launcher_words(self.run, "vf-vllm"), "--model", str(self.settings.get("model"))]
        args = self.settings.get("inference.args")
        args = args if isinstance(args, Mapping) else {}
        for key, value in args.items():
            flag = f"--{str(key).replace('_', '-')}"
            words += [flag] if value is True else [] if value is False else [flag, str(value)]
        gpus = self.settings.number("inference.gpus") or 1
        if gpus > 1:
            parallel = args.get("tensor_parallel_size")
            words += ["--data-parallel-size", str(gpus // parallel if isinstance(parallel, int) and parallel else gpus)]
        return words

    def job_variables(self, request: StartRequest, gpus: Sequence[str] = ()) -> dict[str, str]:
        """What one of the two processes gets."""
        job = self.run.job
        fixed = self._fixed_variables(request)
        if gpus:
            fixed["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        own = {**wandb_variables(self.run, self.environ, request.wandb_notes), **job.env}
        env = job_environment(self.environ, job.pass_env, own, fixed)
        return {**env, **command.variables_of_activation(self.run, env)}

    @staticmethod
    def _fixed_variables(request: StartRequest) -> dict[str, str]:
        return {
            **command.FIXED_ENVIRONMENT,
            "RL_SUPERVISOR_RUN": request.run_id,
            "RL_SUPERVISOR_ATTEMPT": str(request.attempt),
            "WANDB_RUN_ID": request.wandb_id,
            "WANDB_RESUME": "allow",
        }

    # ---------------------------------------------------------------- where to look

    def gpus(self) -> GpuPlan:
        """The run file's word, else the engine's GPUs first and the trainer's after them."""
        if self.run.gpus.inference or self.run.gpus.trainer:
            return gpus_of_run_file(self.run)
        first = self.settings.number("inference.gpus") or 0
        second = self.settings.number("trainer.gpus") or 0
        numbers = [str(number) for number in range(first + second)]
        return GpuPlan(numbers[:first], numbers[first:])

    def engine(self) -> Engine | None:
        """vf-vllm: vLLM's own server, on the port that both sides of the configuration agree on."""
        model = self.settings.get("model")
        name = model if isinstance(model, str) else None
        if self.run.job.engine_url:
            return Engine(self.run.job.engine_url.rstrip("/"), liveness=False, model=name)
        return Engine(f"http://127.0.0.1:{self._port()}", liveness=False, model=name)

    def _port(self) -> int:
        return self.settings.number("inference.args.port", "trainer.args.vllm_server_port") or DEFAULT_PORT

    def log_sources(self, attempt_dir: Path) -> Sequence[LogSource]:
        """The captured output of both."""
        return [
            LogSource("trainer", str(literal(attempt_dir) / "trainer.log")),
            LogSource("inference", str(literal(attempt_dir) / "inference.log")),
        ]

    def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
        """The trainer's progress bar and metrics; errors as in prime-rl's logs."""
        if role == "trainer":
            text = plain(line[-logs.LONGEST :]).rpartition("\r")[2].rstrip()
            progress = _PROGRESS.match(text)
            if progress:
                # Other bars (loading shards, filtering the data) have other totals than the run's steps.
                if int(progress[2]) != self.max_steps() or int(progress[1]) == 0:
                    return []
                return [StepDone("trainer", int(progress[1]))]
            if _FINISHED.match(text):
                return [FinishSeen("trainer", text[: logs.SHOWN])]
            if _METRICS.match(text):
                reward = _REWARD.search(text)
                return [PhaseSeen("trainer", "training", None, f"reward {reward[1]}")] if reward else []
            if "Starting weight sync to vLLM" in text:
                return [PhaseSeen("trainer", "weight-update", None, text[: logs.SHOWN])]
        return [fact for fact in logs.parse_line(role, line) if isinstance(fact, ErrorSeen)]

    def classify_process(self, title: str, comm: str) -> tuple[Role, bool] | None:
        """vf-vllm, its engine core, and the trainer."""
        return processes.classify(title, comm)
