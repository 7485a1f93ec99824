"""A run of prime-rl (`rl` or `sft`) as the supervisor's job: one component that starts the rest itself."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from supervisor.base.errors import ConfigError
from supervisor.config.settings import RunFile
from supervisor.core.facts import Fact, Role
from supervisor.jobs.base import (
    ANY_START,
    Change,
    Component,
    Engine,
    EngineRole,
    GpuPlan,
    Grows,
    GrowthKind,
    JobFacts,
    LogSource,
    StartRequest,
    StepCheck,
    StepFile,
    StopRules,
    TieredPart,
    WeightUpdate,
    literal,
    note_choice,
)
from supervisor.jobs.downloads import arriving_folders
from supervisor.jobs.environment import job_environment, with_own
from supervisor.jobs.wandb_client import wandb_variables
from supervisor.primerl import command, inference, logs, processes
from supervisor.primerl import configs as files
from supervisor.primerl.changes import changes
from supervisor.primerl.dialect import Dialect
from supervisor.primerl.layout import Layout
from supervisor.primerl.revision import revision

NCCL_PORT = 29501
PARTS = ("", "trainer.", "orchestrator.")  # where a setting of the weights' way may stand
DEFAULT_ASYNC_LEVEL = 2  # trainer/rl/config.py up to 8518c157c

# From 2026-04-01 the launcher takes its tree down: it joins its threads 5 s each, then gives each child 60 s.
TREE_PATIENCE_S = 330.0
# After a failure: where its parts are told beside it, a launcher joins threads that have ended, and returns. Ranks and
# orchestrator have no handler for SIGTERM in either era, and an inference server has nothing to save.
AT_ONCE_S = 5.0
# Before, SIGINT ends the launcher and the `uv run` wrappers only; what is left gets SIGTERM from us.
INTERRUPT_PATIENCE_S, ORPHAN_PATIENCE_S = 90.0, 20.0


class PrimeRlJob:
    """prime-rl in one dialect. Implements ``supervisor.jobs.base.Job``."""

    chosen = ""  # what recovery.inference = "auto" came to, and why

    def __init__(
        self,
        run: RunFile,
        environ: Mapping[str, str],
        dialect: Dialect,
        package: Path,
        copies: Mapping[Path, Path] | None = None,
    ) -> None:
        self.run = run
        self.environ = environ
        self.dialect = dialect
        self.package = package  # not always below the folder: [job] python may be another checkout's
        self.sft = run.job.kind == "sft"
        self.folder = run.job.folder
        self.own_engine = inference.is_asked_for(run)
        self.all_sources = files.sources(run.job)
        # What the launcher is given, and with the inference server's own file where that is another command's.
        self.sources = tuple(one for one in self.all_sources if not (self.own_engine and one.table == "inference"))
        self.settings = files.load(self.sources, run.job.args, copies)
        self.everything = files.load(self.all_sources, run.job.args, copies)
        self.output_dir = run.output_dir
        self.layout = Layout(
            output_dir=run.output_dir,
            dialect=dialect,
            orchestrator=not self.sft,
            weights_on_disk=files.broadcast_type(self.settings, dialect) == "filesystem",
            async_level=self._async_level(),
            run_name=run.run.id,
            quiet_s=run.supervision.quiet,
            also=frozenset(run.store.also),
            tier=run.tier_dir if dialect.checkpoint_folder else None,
        )

    def _async_level(self) -> int:
        level = self.settings.number("async_level", "trainer.async_level", "orchestrator.async_level")
        return DEFAULT_ASYNC_LEVEL if level is None else level

    @classmethod
    def choose_restart(
        cls,
        run: RunFile,
        environ: Mapping[str, str],
        dialect: Dialect,
        package: Path,
        *,
        beside: bool | None,
        copies: Mapping[Path, Path] | None,
    ) -> PrimeRlJob:
        """The job with `recovery.inference = "auto"` decided: its ``run`` says `own-role` or `with-job`."""
        own = cls(run.with_inference("own-role"), environ, dialect, package, copies)
        why = "SFT has none." if own.sft else inference.why_whole(dialect, own.everything, own._engine_problems())
        alone = not why if beside is None else beside
        job = own if alone else cls(run.with_inference("with-job"), environ, dialect, package, copies)
        told = inference.STAYS if alone == bool(why) else inference.ALONE if alone else inference.WHOLE
        job.chosen = f"{told} {why}".rstrip()
        return job

    # ---------------------------------------------------------------- what it is

    def facts(self) -> JobFacts:
        """Name and revision of the installed prime-rl, and what a person must know about it."""
        return JobFacts(
            name=self.dialect.name if not self.sft else f"SFT of {self.dialect.name}",
            revision=revision(self.package),
            first_step=self.dialect.first_step,
            notes=tuple(self._notes_of_job()),
        )

    def _notes_of_job(self) -> list[str]:
        notes = []
        wandb = command.uses_wandb(self.settings)
        if not self.sft and wandb and self.dialect.wandb == "none":
            notes.append(
                "This version of prime-rl (18 Mar to 7 Apr 2026) has no way to set the W&B id: each attempt is a "
                "W&B run of its own."
            )
        if not self.sft and wandb and self.dialect.wandb in ("monitor-id", "id"):
            notes.append("This version of prime-rl logs to two W&B runs: their ids end in -trainer and -orchestrator.")
        if not self.sft and not self.everything.has("inference") and not self.run.job.engine_url:
            notes.append(
                "The configuration has no [inference], so prime-rl starts no engine; say where yours answers with "
                "[job] engine_url, or it is not watched."
            )
        if not self.dialect.sigterm:
            notes.append(
                "This version of prime-rl leaves processes behind when it is stopped; the supervisor ends them."
            )
        if not self.sft and not self.dialect.liveness:
            notes.append("The engine has no /liveness in this version: a hang is judged by its counters and a canary.")
        return [*notes, *self._engine_notes()]

    def _engine_notes(self) -> list[str]:
        notes = note_choice(self.chosen)
        if not self.own_engine:
            return notes
        role = self.engine_role()
        notes += [role.why] if role.why else []
        if role.keep_warm and self.dialect.buffer == "none" and self.dialect.titles:
            # The prefix cache is salted with the number of the weights only (dispatcher.py, cache_salt).
            notes.append(
                "An inference server that stays up while the rest resumes may reuse cached prompts of the weights that "
                "were undone, as it does over each update; its enable_prefix_caching = false would prevent it."
            )
        return notes

    def config_files(self) -> Sequence[Path]:
        """The trainer's configuration files."""
        return [source.path for source in self.all_sources]

    def max_steps(self) -> int | None:
        """Last step of the run: the configuration's, unless the run file says it."""
        if self.run.run.max_steps is not None:
            return self.run.run.max_steps
        return self.settings.number("max_steps", "trainer.max_steps", "orchestrator.max_steps")

    def problems(self) -> Sequence[str]:
        """Everything that we refuse to start with."""
        found = [
            *(one.sentence for one in files.refusals(self.everything, self.dialect, spread=self.run.nodes is not None)),
            *command.refused_args(self.run),
            *self._engine_problems(),
            *command.gpu_problems(self.run, self.dialect, sft=self.sft),
        ]
        if self.sft and any(source.table for source in self.sources):
            found.append("SFT takes one configuration: use [job] config, not the three separate files.")
        try:
            self._environment_of_start(ANY_START)
        except ConfigError as error:
            found.append(str(error))
        return found

    def _engine_problems(self) -> list[str]:
        if self.own_engine and self.sft:
            return ['recovery.inference = "own-role": SFT has no inference server. Take it out of the run file.']
        if not self.own_engine:
            return []
        return list(inference.problems(self.run, self.dialect, self.settings, self.everything))

    # ---------------------------------------------------------------- the inference server as a role of its own

    def engine_role(self) -> EngineRole:
        """Which half may restart without the other, in this dialect and with these weights."""
        return inference.role(self.dialect, self.settings, self._engine_problems())

    def engine_component(self, request: StartRequest) -> Component:
        """The `inference` entry point with its own file, on its own GPUs."""
        if problems := self.problems():
            raise ConfigError("\n".join(problems))
        own = self.all_sources[-1].path  # [job] inference_config, or there would be problems
        words = [*inference.words(self.run), "@", str(request.configs.get(own, own))]
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.run.gpus.inference))}
        env = {**self._environment_of_start(request), **gpus}
        ports = self._engine_ports()
        hosts = self._hosts_of_ports(ports, None)
        return Component(inference.COMPONENT, words, self.folder, env, self.run.job.nofile, ports, hosts)

    def engine_stop_rules(self) -> StopRules:
        """SIGTERM, and no long patience."""
        return inference.stop_rules()

    def weight_update(self) -> WeightUpdate | None:
        """The newest broadcast weights, and the orchestrator's own calls to load them."""
        return inference.weight_update(self.layout, self.settings, self.engine())

    # ---------------------------------------------------------------- starting and stopping

    def changes(self, request: StartRequest) -> Sequence[Change]:
        """Words, variables and limits that are the supervisor's, in the order of the command line."""
        found = list(changes(self.run, self.dialect, self.settings, self.environ, request))
        chosen = Change(f'recovery.inference = "{self.run.recovery.inference}"', self.chosen, '"auto"')
        return [*found, *([chosen] if self.chosen else [])]

    def components(self, request: StartRequest) -> Sequence[Component]:
        """The launcher. Raises ConfigError while there are problems."""
        if problems := self.problems():
            raise ConfigError("\n".join(problems))
        if self.sft:
            words = command.sft_words(self.run, self.dialect, max(1, len(self.gpus().trainer)))
        else:
            words = command.launcher_words(self.run, "rl")
        words += command.arguments(self.run, self.dialect, self.settings, self.sources, request)
        name = "sft" if self.sft else "rl"
        env = self._environment_of_start(request)
        engine = [] if self.sft or self.own_engine or not self.settings.has("inference") else self._engine_ports()
        group = self._group_port()
        ports = [*engine, *([group] if group else [])]
        hosts = self._hosts_of_ports(engine, group)
        return [Component(name, words, self.folder, env, self.run.job.nofile, ports, hosts)]

    def _group_port(self) -> int | None:
        """Where the trainer's first rank serves the store of the weights' group (weight_broadcast.port of
        NCCLWeightBroadcastConfig). torchrun's rendezvous is not asked for: the launcher looks for a free port itself
        (get_free_port).
        """
        if self.sft or files.broadcast_type(self.settings, self.dialect) != "nccl":
            return None
        return self.settings.number(*(f"{part}weight_broadcast.port" for part in PARTS)) or NCCL_PORT

    def _hosts_of_ports(self, engine: list[int], group: int | None) -> dict[int, str]:
        """The address of each port that is bound at one alone. vLLM binds all unless it is told a host, and the group's
        store the host that it is told, localhost by default (vllm/distributed/utils.py, StatelessProcessGroup.create).
        """
        host = self.everything.get("inference.server.host")
        found = dict.fromkeys(engine, host) if isinstance(host, str) and host else {}
        if group is not None:
            told = self.settings.get(*(f"{part}weight_broadcast.host" for part in PARTS))
            found[group] = told if isinstance(told, str) and told else "localhost"
        return found

    def _engine_ports(self) -> list[int]:
        """The engine's and, in front of it, the router's."""
        engine = self.engine()
        urls = (engine.url, engine.router_url) if engine and not self.run.job.engine_url else ()
        return [port for url in urls if url and (port := urlsplit(url).port)]

    def _environment_of_start(self, request: StartRequest) -> dict[str, str]:
        job = self.run.job
        offline = command.is_offline(self.settings, with_own(self.environ, job.env))
        fixed = command.environment(self.run, self.dialect, request, sft=self.sft, offline=offline)
        tracked = command.uses_wandb(self.settings)
        wandb = wandb_variables(self.run, self.environ, request.wandb_notes) if tracked else {}
        env = job_environment(self.environ, job.pass_env, {**wandb, **job.env}, fixed)
        return {**env, **command.variables_of_activation(self.run, env)}

    def stop_rules(self) -> StopRules:
        """SIGTERM and long patience where the launcher takes its tree along, else SIGINT first."""
        patience = self.run.job.stop_grace_s
        at_once_s = AT_ONCE_S if patience is None else patience
        if self.dialect.sigterm:
            return StopRules(
                [(signal.SIGTERM, TREE_PATIENCE_S if patience is None else patience)],
                "this launcher ends its whole tree on SIGTERM, child by child",
                at_once_s,
            )
        return StopRules(
            [
                (signal.SIGINT, INTERRUPT_PATIENCE_S if patience is None else patience),
                (signal.SIGTERM, ORPHAN_PATIENCE_S),
            ],
            "this launcher knows no SIGTERM: SIGINT lets it end its children, and what they leave gets SIGTERM",
            at_once_s,
        )

    # ---------------------------------------------------------------- where to look

    def gpus(self) -> GpuPlan:
        """Which GPU does what."""
        env = {**self.environ, **self.run.job.env}
        return command.gpu_plan(self.run, self.dialect, self.settings, env, sft=self.sft)

    def engine(self) -> Engine | None:
        """vLLM's HTTP side: behind the router where there is one. None when the launcher starts no engine."""
        own = self.run.job.engine_url
        settings = self.everything
        model = settings.get("model.name", "inference.model.name", "inference.vllm.model", "orchestrator.model.name")
        name = model if isinstance(model, str) else None
        if own:
            return Engine(own.rstrip("/"), self.dialect.liveness, None, name)
        if self.sft or not settings.has("inference"):
            return None
        port = settings.number("inference.server.port") or inference.DEFAULT_PORT
        host = settings.get("inference.server.host")
        host = host if isinstance(host, str) and host not in ("0.0.0.0", "::", "localhost") else "127.0.0.1"  # noqa: S104
        if not inference.has_router(self.dialect, settings):
            return Engine(f"http://{host}:{port}", self.dialect.liveness, None, name)
        engine_port = inference.port_behind_router(settings, port)
        return Engine(f"http://{host}:{engine_port}", self.dialect.liveness, f"http://{host}:{port}", name)

    def log_sources(self, attempt_dir: Path) -> Sequence[LogSource]:
        """The captured output, the components' files, and metrics.jsonl where this era writes it."""
        attempt_dir, run_dir = literal(attempt_dir), literal(self.layout.run_dir)
        base = run_dir / "logs"
        if self.dialect.logs == "attempts":
            base /= "latest"
        ending = "stdout" if self.dialect.logs == "stdout" else "log"
        # Opened with "w" by the launcher until each start got a folder of its own (create_attempt_log_dir, e26b50503).
        fate: Literal["stays", "overwritten"] = "stays" if self.dialect.logs == "attempts" else "overwritten"
        captured = LogSource("launcher", str(attempt_dir / f"{'sft' if self.sft else 'rl'}.log"))
        if self.sft and not self.dialect.sft_launcher:
            return [LogSource("trainer", captured.path)]
        roles: tuple[Role, ...] = ("trainer",) if self.sft else ("trainer", "orchestrator", "inference")
        if self.own_engine:
            roles = ("trainer", "orchestrator")  # its output is captured where it is started
        sources = [captured, *(LogSource(role, str(base / f"{role}.{ending}"), fate=fate) for role in roles)]
        if self.dialect.titles and not self.sft:
            sources.append(LogSource("env", str(base / "envs" / "*" / "*.log"), fate=fate))
        if self.dialect.metrics_file:
            sources.append(LogSource("trainer", str(run_dir / "metrics.jsonl"), "jsonl"))
        return sources

    def parse_line(self, role: Role, line: str) -> Sequence[Fact]:
        """Facts in one line of ``role``'s file."""
        return logs.parse_line(role, line)

    def parse_metrics(self, role: Role, record: Mapping[str, object]) -> Sequence[Fact]:
        """Facts in one record of metrics.jsonl, which names its own role."""
        return logs.parse_metrics(record)

    def classify_process(self, title: str, comm: str) -> tuple[Role, bool] | None:
        """Role of a process, and whether its end is proof."""
        return processes.classify(title, comm, sft_is_trainer=not self.dialect.sft_launcher)

    # ---------------------------------------------------------------- steps

    def growing_trees(self, what: GrowthKind) -> Grows | None:
        """Downloads, rollouts and checkpoints, by this era's layout."""
        if what == "download":
            return Grows(arriving_folders(self._environment_of_start(ANY_START), self.folder))
        return self.layout.growing_rollouts() if what == "rollouts" else self.layout.growing_checkpoint()

    def tiered_part(self) -> TieredPart | str:
        """The trainer's part, from 11 March 2026 on."""
        if not self.dialect.checkpoint_folder:
            return f"{self.dialect.name} has no ckpt.output_dir, which came on 11 March 2026"
        return TieredPart(self.layout.run_dir / "checkpoints", "trainer", self.layout.run_dir / "weights")

    def steps(self) -> Sequence[int]:
        """Step numbers with a checkpoint folder."""
        return self.layout.steps()

    def check_step(self, step: int, *, settled: bool = False, on_tier: bool = False) -> StepCheck:
        """Is the step resumable?"""
        return self.layout.check_step(step, settled=settled, on_tier=on_tier)

    def step_files(self, step: int) -> Sequence[StepFile]:
        """What resuming at ``step`` needs."""
        return self.layout.step_files(step)

    def step_trees(self, step: int) -> Sequence[Path]:
        """What prune deletes."""
        return self.layout.step_trees(step)

    def stale_trees(self, kept: Sequence[int], below: int) -> Sequence[Path]:
        """Rollouts and broadcasts that nothing needs."""
        return self.layout.stale_trees(kept, below)

    def above_trees(self, step: int | None) -> Sequence[Path]:
        """What is moved aside before a start."""
        return self.layout.above_trees(step)

    def place(self, step: int, name: str) -> Path:
        """Where a stored file goes, relative to ``output_dir``."""
        return self.layout.place(step, name)
