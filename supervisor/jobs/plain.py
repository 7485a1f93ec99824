"""Any trainer that is a command: two command lines, a folder pattern, marker files and two regular expressions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor import signatures
from supervisor.base.errors import ConfigError
from supervisor.base.escapes import plain
from supervisor.config.settings import Plain, RunFile
from supervisor.core.facts import Fact, FinishSeen, Role, StepDone
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

LONGEST = 4096  # characters of a line that the person's expressions are tried on: their cost is not ours to bound
SHOWN = 300


def fill_holes(word: str, values: Mapping[str, str]) -> str:
    """With the value of each hole (``{step}``) in its place."""
    for hole, value in values.items():
        word = word.replace(hole, value)
    return word


class PlainJob(FolderJob):
    """A plain command. Implements ``supervisor.jobs.base.Job``; it is one component, called ``job``."""

    def __init__(self, run: RunFile, environ: Mapping[str, str]) -> None:
        if run.job.plain is None:
            raise ConfigError('kind = "command" needs a [job.plain] table with `start` and `resume`.')
        self.run = run
        self.plain: Plain = run.job.plain
        self.environ = environ
        self.folder = run.job.folder
        self.output_dir = run.output_dir
        self.step_line = _compile_expression(self.plain.step_line, "step_line")
        self.finish_line = _compile_expression(self.plain.finish_line, "finish_line")
        if self.step_line is not None and "step" not in self.step_line.groupindex:
            raise ConfigError("[job.plain] step_line must have a group called step, such as (?P<step>\\d+).")
        self.folders = StepFolders(
            output_dir=run.output_dir,
            main=StepPath.parse(self.plain.checkpoint, "[job.plain] checkpoint"),
            also=tuple(StepPath.parse(path, "[job.plain] also") for path in self.plain.also),
            markers=tuple((glob,) for glob in self.plain.markers),
            quiet_s=run.supervision.quiet,
        )

    # ---------------------------------------------------------------- what it is

    def facts(self) -> JobFacts:
        """The command's first words."""
        notes = note_choice(self.chosen)
        if self.step_line is None:
            notes.append("[job.plain] step_line is not set: steps are not seen, so a job that hangs is noticed late.")
        return JobFacts(
            name=" ".join(self.plain.start[:3]) or "a command",
            first_step=self.plain.first_step,
            finish_line=self.finish_line is not None,
            notes=tuple(notes),
        )

    def config_files(self) -> Sequence[Path]:
        """Files that [job] config names; words of the command that name one get each attempt's copy."""
        return [(self.folder / path.expanduser()).absolute() for path in self.run.job.config]

    def max_steps(self) -> int | None:
        """The run file's, for the command's own configuration is not ours to read."""
        return self.run.run.max_steps

    def problems(self) -> Sequence[str]:
        """What the two command lines lack."""
        found = [REFUSED] if self.run.recovery.inference == "own-role" else []
        if not self.plain.start:
            found.append("[job.plain] start is empty: give the command line of a fresh start.")
        if not any("{step}" in word or "{checkpoint}" in word for word in self.plain.resume):
            found.append(
                "[job.plain] resume names neither {step} nor {checkpoint}, so it could resume from another step than "
                "the verified one: put one of them in."
            )
        if not self.plain.markers:
            found.append("[job.plain] markers is empty, so half a checkpoint would count as whole: name a file of it.")
        try:
            self.job_variables(ANY_START)
        except ConfigError as error:
            found.append(str(error))
        return found

    # ---------------------------------------------------------------- starting and stopping

    def components(self, request: StartRequest) -> Sequence[Component]:
        """The command. Raises ConfigError while there are problems."""
        if problems := self.problems():
            raise ConfigError("\n".join(problems))
        words = self.plain.start if request.step is None else self.plain.resume
        values = self._values_of_holes(request)
        argv = [self._fill_word(word, values, request.configs) for word in (*words, *self.run.job.args)]
        return [Component("job", argv, self.folder, self.job_variables(request), self.run.job.nofile)]

    def _values_of_holes(self, request: StartRequest) -> dict[str, str]:
        values = {
            "{run_id}": request.run_id,
            "{output_dir}": str(self.output_dir),
            "{wandb_id}": request.wandb_id,
        }
        if request.step is not None:
            values |= {"{step}": str(request.step), "{checkpoint}": str(self.folders.folder(request.step))}
        return values

    def _fill_word(self, word: str, values: Mapping[str, str], copies: Mapping[Path, Path]) -> str:
        word = fill_holes(word, values)
        for original, written in zip(self.config_files(), self.run.job.config, strict=True):
            if word in (str(original), str(written)) and original in copies:
                return str(copies[original])
        return word

    def changes(self, request: StartRequest) -> Sequence[Change]:
        """Variables: the command lines are the person's own."""
        fixed = {**self._fixed_variables(request), **self._wandb_variables(request)}
        return [*set_variables(fixed, {**self.environ, **self.run.job.env}), open_files(self.run.job.nofile)]

    def _fixed_variables(self, request: StartRequest) -> dict[str, str]:
        gpus = list(dict.fromkeys(str(gpu) for gpu in (*self.run.gpus.inference, *self.run.gpus.trainer)))
        fixed = {
            "RL_SUPERVISOR_RUN": request.run_id,
            "RL_SUPERVISOR_ATTEMPT": str(request.attempt),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "SPT_NOENV": "1",
        }
        if gpus:
            fixed["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return fixed

    def _wandb_variables(self, request: StartRequest) -> dict[str, str]:
        """Unless [job] env says otherwise."""
        wandb = {"WANDB_RUN_ID": request.wandb_id, "WANDB_RESUME": "allow"}
        wandb = {name: value for name, value in wandb.items() if name not in self.run.job.env}
        return {**wandb, **wandb_variables(self.run, self.environ, request.wandb_notes)}

    def job_variables(self, request: StartRequest) -> dict[str, str]:
        """What the command gets."""
        job = self.run.job
        own = {**self._wandb_variables(request), **job.env}
        return job_environment(self.environ, job.pass_env, own, self._fixed_variables(request))

    # ---------------------------------------------------------------- where to look

    def gpus(self) -> GpuPlan:
        """The run file's word; a plain command has no configuration that we could read."""
        return gpus_of_run_file(self.run)

    def engine(self) -> Engine | None:
        """The engine that the run file names, if any."""
        url = self.plain.engine_url or self.run.job.engine_url
        return Engine(url.rstrip("/"), liveness=False) if url else None

    def log_sources(self, attempt_dir: Path) -> Sequence[LogSource]:
        """The captured output, and the files that the person named."""
        home = literal(self.output_dir)
        files = [LogSource("job", str(home / pattern), fate="shared") for pattern in self.plain.log]
        return [LogSource("job", str(literal(attempt_dir) / "job.log")), *files]

    def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
        """The person's two expressions, then errors that every Python trainer can have."""
        text = plain(line[:LONGEST]).rpartition("\r")[2].strip()
        if not text:
            return []
        if self.step_line is not None and (found := self.step_line.search(text)):
            facts = self._step_facts(found)
            if facts:
                return facts
        if self.finish_line is not None and self.finish_line.search(text):
            return [FinishSeen("job", text[:SHOWN])]
        error = signatures.any_job().error("job", text)
        return [error] if error else []

    @staticmethod
    def _step_facts(found: re.Match[str]) -> list[Fact]:
        groups = found.groupdict()
        step = groups.get("step") or ""
        if not re.fullmatch(r"[0-9]{1,12}", step):
            return []
        values = {name: _parse_number(groups.get(name)) for name in ("reward", "loss", "throughput")}
        seconds = _parse_number(groups.get("duration"))
        return [
            StepDone(
                "job",
                int(step),
                seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0 else None,
                values["reward"],
                values["loss"],
                throughput=values["throughput"],
            )
        ]

    def classify_process(self, title: str, comm: str) -> tuple[Role, bool] | None:
        """Only an engine says by its title what it is, and it counts only where the person named its address."""
        is_engine = "VLLM::EngineCor" in (title[:15], comm)
        return ("inference", True) if is_engine and self.engine() is not None else None


def _compile_expression(text: str | None, setting: str) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"[job.plain] {setting} is no regular expression: {error}. Mend it.") from None


def _parse_number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    # Not a number is news about a loss; it is the one NaN that there is, so that equal lines give equal facts.
    return math.nan if value is not None and math.isnan(value) else value
