"""The command line of an attempt in each era's spelling: always an explicit step, never a keep policy, never a clean.

Sources are the launchers and configuration classes of PrimeIntellect-ai/prime-rl from ceb60c03f (2025-09-01) to
559b44772 (2026-08-21); where each spelling begins stands in ``dialect.BOUNDARIES``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.config.settings import RunFile
from supervisor.jobs.base import GpuPlan, StartRequest, gpus_of_run_file
from supervisor.jobs.environment import ONE_WANDB_RUN
from supervisor.primerl import configs
from supervisor.primerl.configs import Settings, Source
from supervisor.primerl.dialect import Dialect
from supervisor.primerl.renames import oldest_name

MOST_GPUS = 1024
"""More than any one machine has."""
KEEP_ALL = "1000000"
"""A keep policy that never deletes, for where some policy must be overruled."""

FIXED_ENVIRONMENT = {
    "NEVER_CLEAN": "1",
    "NEVER_CLEAN_OUTPUT_DIR": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "SPT_NOENV": "1",  # setproctitle would wipe /proc/PID/environ, where our marker is
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True)
class Added:
    """Words of the command line that are the supervisor's, the setting that they are about, and why."""

    words: tuple[str, ...]
    key: str
    why: str


# Flags that the supervisor sets, or that would break its promises: their last part, and why.
_REFUSED_ENDS = {
    "resume-step": "the supervisor names the step to resume from",
    "keep": "only the supervisor deletes checkpoints ([disk] and [store] of the run file say which)",
    "keep-last": "only the supervisor deletes checkpoints ([disk] and [store] of the run file say which)",
    "keep-interval": "only the supervisor deletes checkpoints ([store] keep_every of the run file says which)",
    "output-dir": "set [job] output_dir of the run file instead",
    "weights-only": "such checkpoints cannot be resumed from",
    "max-concurrent-runs": "several runs in one trainer are not supported",
    "interval": "set [job] checkpoint_interval of the run file instead",
}
_REFUSED = {
    "resume": "the supervisor names the step to resume from",
    "clean": "it would delete checkpoints",
    "clean-output-dir": "it would delete checkpoints",
    "no-clean": "the supervisor says it where it is needed",
    "no-clean-output-dir": "the supervisor says it where it is needed",
    "ckpt": "checkpoints are always on, every [job] checkpoint_interval steps",
    "no-ckpt": "checkpoints are always on, every [job] checkpoint_interval steps",
    "run.name": "it is [run] id of the run file",
    "run.dir": "it is [run] id of the run file",
    "dry-run": "nothing would be trained",
    "dump-config": "nothing would be trained",
    "help": "nothing would be trained",
    "slurm": "[slurm] of the run file says what the cluster is asked for",
}
_WANDB = [f"{part}{name}wandb" for part in ("", "trainer.", "orchestrator.") for name in ("", "monitor.", "monitors.")]


def _say(dialect: Dialect, name: str, value: str, why: str) -> Added:
    """A setting, named as the oldest version did, in the spelling of this one."""
    key = dialect.spell(name)
    return Added((f"--{key.replace('_', '-')}", value), key, why)


def refused_args(run: RunFile) -> Iterator[str]:
    """A sentence for each word of [job] args that is the supervisor's own business."""
    args = run.job.args
    for word in args:
        if word == "@" or word.startswith("@"):
            yield f"[job] args holds {word!r}: name files in [job] config instead, so that each attempt has its copy."
    for name, _ in configs.flags(args):
        plain = name.replace("_", "-").lower()
        why = _refusal_of(plain) or _refusal_of(oldest_name(name.lower().replace("-", "_")).replace("_", "-"))
        if run.run.max_steps is not None and plain.rpartition(".")[2] == "max-steps":
            why = "[run] max_steps of the run file says it"
        if (run.gpus.inference or run.gpus.trainer) and _chooses_gpus(plain):
            why = "[gpus] of the run file says it"
        if why:
            yield f"[job] args holds --{name}: {why}. Take it out."


def _refusal_of(name: str) -> str:
    *parents, last = name.split(".")
    if name in _REFUSED:
        return _REFUSED[name]
    if parents and parents[0] in ("resume", "slurm"):
        return _REFUSED[parents[0]]
    if last == "interval" and parents[-1:] != ["ckpt"]:
        return ""  # eval.interval and the like
    if last == "keep" and parents[-1:] != ["ckpt"]:
        return ""
    if last in {"ckpt", "no-ckpt"}:
        return _REFUSED["ckpt"]
    if parents[-1:] == ["wandb"] and last == "id":
        return "set [wandb] id of the run file instead"
    return _REFUSED_ENDS.get(last, "")


def _chooses_gpus(name: str) -> bool:
    return name.removeprefix("deployment.") in (
        *("inference-gpu-ids", "trainer-gpu-ids", "trainer-gpus", "inference-gpus"),
        *("num-train-gpus", "num-infer-gpus", "num-gpus"),
    )


def launcher_words(run: RunFile, entry: str) -> list[str]:
    """The words before ``@``: what the person said, else the checkout's own virtual environment, else uv."""
    job = run.job
    if job.launcher:
        return list(job.launcher)
    own = _environment_folder(run) / "bin" / entry
    return [str(own)] if own.exists() else ["uv", "run", entry]


def interpreter(run: RunFile) -> Path:
    """The job's interpreter: [job] python, else that of the checkout's virtual environment (it need not exist)."""
    if run.job.python is not None:
        return run.job.folder / run.job.python.expanduser()
    return run.job.folder / ".venv" / "bin" / "python"


def _environment_folder(run: RunFile) -> Path:
    return interpreter(run).parent.parent


def variables_of_activation(run: RunFile, env: Mapping[str, str]) -> dict[str, str]:
    """What `source .venv/bin/activate` changes: old launchers call `torchrun` and `uv run` by name."""
    folder = _environment_folder(run)
    if not (folder / "bin").is_dir():
        return {}
    path = env.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"VIRTUAL_ENV": str(folder), "PATH": f"{folder / 'bin'}:{path}"}


def arguments(
    run: RunFile, dialect: Dialect, settings: Settings, files: Sequence[Source], request: StartRequest
) -> list[str]:
    """Everything after the launcher's own words."""
    added = (word for one in list_added(run, dialect, settings, request) for word in one.words)
    return [*_files_of_start(files, request.configs), *run.job.args, *added]


def list_added(run: RunFile, dialect: Dialect, settings: Settings, request: StartRequest) -> Iterator[Added]:
    """What is said beside the person's own configuration and [job] args, in this order."""
    return (_sft_added if run.job.kind == "sft" else _rl_added)(run, dialect, settings, request)


# ---------------------------------------------------------------- rl


def _rl_added(run: RunFile, dialect: Dialect, settings: Settings, request: StartRequest) -> Iterator[Added]:
    yield from _checkpoint_words(run, request, dialect, settings, ("ckpt", "trainer.ckpt", "orchestrator.ckpt"))
    yield from _max_steps(run, dialect, settings)
    yield from _resume_words(dialect, request.step)
    yield from _folder_words(run, dialect, request.tier)
    if dialect.clean in ("wipes-checkpoints", "wipes-outputs"):
        yield Added(("--no-clean",), "clean", "this version deletes outputs of the run at each start by itself")
    yield from _gpu_words(run, dialect)
    yield from _cluster_words(run, settings)
    yield from _wandb_words(dialect, settings, request.wandb_id)


def _files_of_start(files: Sequence[Source], copies: Mapping[Path, Path]) -> Iterator[str]:
    # The blank after "@" matters: the parsers compare the word with "@" (prime-rl docs, "Mind the space").
    for source in files:
        yield from ([f"--{source.table}"] if source.table else [])
        yield "@"
        yield str(copies.get(source.path, source.path))


def _checkpoint_words(
    run: RunFile, request: StartRequest, dialect: Dialect, settings: Settings, tables: Sequence[str]
) -> Iterator[Added]:
    """The interval, also where a file sets another for one part; and keep policies overruled where there is one."""
    main = tables[0]
    interval = str(request.interval or run.job.first_interval)
    for table in tables:
        if table == main or settings.has(dialect.spell(f"{table}.interval")):
            yield _say(dialect, f"{table}.interval", interval, "[job] checkpoint_interval says it")
    for table in tables:
        names = ("keep", "keep_last", "keep_interval")
        limited = [name for name in names if settings.get(f"{table}.{name}") is not None]
        if limited or (table == main and dialect.keep_default_one):
            why = "only the supervisor deletes checkpoints, and only published ones"
            said = _say(dialect, f"{table}.keep", KEEP_ALL, why)
            yield replace(said, key=f"{table}.{limited[0]}") if limited else said


def _max_steps(run: RunFile, dialect: Dialect, settings: Settings) -> Iterator[Added]:
    """The run file's last step, where it names one, also over what a file says for one part."""
    if run.run.max_steps is None:
        return
    for path in ("max_steps", "trainer.max_steps", "orchestrator.max_steps"):
        if path == "max_steps" or settings.has(dialect.spell(path)):
            yield _say(dialect, path, str(run.run.max_steps), "[run] max_steps of the run file says it")


def _resume_words(dialect: Dialect, step: int | None) -> Iterator[Added]:
    if step is not None:
        yield _say(
            dialect, dialect.resume.replace("-", "_"), str(step), "the step to go on from, each file of it verified"
        )


def _folder_words(run: RunFile, dialect: Dialect, tier: Path | None) -> Iterator[Added]:
    yield _say(dialect, "output_dir", str(run.output_dir), "[job] output_dir says it")
    if tier is not None:
        yield _say(dialect, "ckpt.output_dir", str(tier), "[checkpoints] tier of the run file says it")
    if dialect.clean == "run-dir":
        # Without a name every start would be a new, empty run (prime-rl e26b50503).
        why = "without its name each start would be a new, empty run"
        yield _say(dialect, "run.name", run.run.id, why)
        yield _say(dialect, "run.dir", run.run.id, why)


def _cluster_words(run: RunFile, settings: Settings) -> Iterator[Added]:
    if settings.has("slurm") and run.nodes is None:
        why = "the launcher would submit a job of its own, and this is the machine to train on"
        yield Added(("--slurm", "None"), "slurm", why)


def _gpu_words(run: RunFile, dialect: Dialect) -> Iterator[Added]:
    inference, trainer = launchers_gpus(run)
    why = "[gpus] of the run file says it"
    if dialect.gpus == "ids":
        if inference:
            yield _say(dialect, "inference_gpu_ids", ",".join(map(str, inference)), why)
        if trainer:
            yield _say(dialect, "trainer_gpu_ids", ",".join(map(str, trainer)), why)
    elif inference or trainer:
        names = ("trainer_gpus", "inference_gpus")
        if dialect.gpus == "deployment":
            names = ("deployment.num_train_gpus", "deployment.num_infer_gpus")
        for name, gpus in zip(names, (trainer, inference), strict=True):
            if gpus:
                yield _say(dialect, name, str(len(gpus)), why)


def _wandb_words(dialect: Dialect, settings: Settings, run_id: str) -> Iterator[Added]:
    """Id flags of the eras with two W&B runs; naming one would switch W&B on, so only where the person did."""
    if dialect.wandb not in ("monitor-id", "id") or not uses_wandb(settings):
        return
    key = "monitor.wandb.id" if dialect.wandb == "monitor-id" else "wandb.id"
    for part in ("trainer", "orchestrator"):
        yield _say(dialect, f"{part}.{key}", f"{run_id}-{part}", ONE_WANDB_RUN)


def uses_wandb(settings: Settings) -> bool:
    """Did the person switch W&B on?"""
    return any(settings.has(table) for table in _WANDB)


def is_offline(settings: Settings, own: Mapping[str, str]) -> bool:
    """Does it log to this disk alone? ``own``: the variables that the job gets."""
    told = own.get("WANDB_MODE") in ("offline", "dryrun") and uses_wandb(settings)
    return told or any(settings.get(f"{table}.offline") is True for table in _WANDB)


# ---------------------------------------------------------------- sft


def _sft_added(run: RunFile, dialect: Dialect, settings: Settings, request: StartRequest) -> Iterator[Added]:
    # The trainer of before 2026-02-24 knows no clean and no GPUs.
    yield from _checkpoint_words(run, request, dialect, settings, ("ckpt",))
    yield from _max_steps(run, dialect, settings)
    yield from _resume_words(dialect, request.step)
    yield from _folder_words(run, dialect, request.tier)
    yield from _cluster_words(run, settings)
    if run.gpus.trainer and dialect.sft_gpus:
        key = f"deployment.{dialect.sft_gpus.replace('-', '_')}"
        yield _say(dialect, key, str(len(run.gpus.trainer)), "[gpus] of the run file says it")
    if dialect.wandb in ("monitor-id", "id") and uses_wandb(settings):
        key = "monitor.wandb.id" if dialect.wandb == "monitor-id" else "wandb.id"
        yield _say(dialect, key, request.wandb_id, ONE_WANDB_RUN)


def sft_words(run: RunFile, dialect: Dialect, gpus: int) -> list[str]:
    """The words before ``@`` for `sft`: under torchrun where `sft` is the trainer itself."""
    if run.job.launcher or dialect.sft_launcher:
        return launcher_words(run, "sft")
    return [*launcher_words(run, "torchrun"), f"--nproc-per-node={gpus}", "-m", "prime_rl.trainer.sft.train"]


# ---------------------------------------------------------------- environment


def environment(
    run: RunFile, dialect: Dialect, request: StartRequest, *, sft: bool = False, offline: bool = False
) -> dict[str, str]:
    """Variables that the supervisor must have its way with. ``offline``: of W&B."""
    fixed = {
        **FIXED_ENVIRONMENT,
        "RL_SUPERVISOR_RUN": request.run_id,
        "RL_SUPERVISOR_ATTEMPT": str(request.attempt),
    }
    if dialect.wandb == "prl-id":
        fixed["PRL_RUN_ID"] = request.wandb_id
    elif dialect.wandb in ("shared-id", "none"):
        fixed["WANDB_SHARED_RUN_ID"] = request.wandb_id
    if (sft or offline) and dialect.wandb not in ("monitor-id", "id"):
        # SFT has one process that logs: W&B's own variables say which run it is. Offline prime-rl passes no id at all
        # (monitors/wandb/monitor.py at 559b44772): else each process of each attempt would make one up.
        fixed |= {"WANDB_RUN_ID": request.wandb_id, "WANDB_RESUME": "allow"}
    visible = visible_gpus(run, dialect, sft=sft)
    if visible:
        fixed["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
    return fixed


def visible_gpus(run: RunFile, dialect: Dialect, *, sft: bool = False) -> list[str]:
    """The GPUs as the launcher must see them: these launchers count, inference first. Empty: leave it alone."""
    if sft:
        return [str(gpu) for gpu in run.gpus.trainer]
    if dialect.gpus == "ids" or not (run.gpus.inference and run.gpus.trainer):
        return []
    inference, trainer = launchers_gpus(run)
    return [str(gpu) for gpu in (*inference, *trainer)]


def launchers_gpus(run: RunFile) -> tuple[list[int | str], list[int | str]]:
    """The inference and trainer GPUs that the launcher is given; none for an inference server that we start."""
    own = run.recovery.inference == "own-role"
    return [] if own else list(run.gpus.inference), list(run.gpus.trainer)


def gpu_plan(
    run: RunFile, dialect: Dialect, settings: Settings, env: Mapping[str, str], *, sft: bool = False
) -> GpuPlan:
    """Which GPU does what: the run file's word, else what the trainer's configuration (or the era's default) says."""
    if run.gpus.inference or run.gpus.trainer:
        return gpus_of_run_file(run)
    seen = [name.strip() for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if sft:
        count = settings.number("deployment.num_train_gpus", "deployment.num_gpus") or (len(seen) or 1)
        return GpuPlan((), _take_gpus(seen, 0, count))
    engine = settings.has("inference")
    if dialect.gpus == "ids":
        inference = _list_in_words(settings.get("inference_gpu_ids"), ["0"]) if engine else []
        return GpuPlan(inference, _list_in_words(settings.get("trainer_gpu_ids"), ["1"]))
    if dialect.gpus == "counts":
        names = ("inference_gpus", "trainer_gpus")
        seen.sort(key=lambda name: (len(name), name))  # that launcher sorts them (get_cuda_visible_devices)
    else:
        names = ("deployment.num_infer_gpus", "deployment.num_train_gpus")
    first = settings.number(names[0])
    # The launcher of the counts leaves room for the engine even when it starts none (ceb60c03f).
    inference_count = (1 if first is None else first) if engine or dialect.gpus == "counts" else 0
    second = settings.number(names[1])
    trainer = _take_gpus(seen, inference_count, 1 if second is None else second)
    return GpuPlan(_take_gpus(seen, 0, inference_count) if engine else (), trainer)


def _take_gpus(seen: Sequence[str], start: int, count: int) -> list[str]:
    end = min(start + count, MOST_GPUS)  # of a trillion GPUs, by a slip of a finger, not even the list fits into memory
    return list(seen[start:end]) if seen else [str(number) for number in range(start, end)]


def _list_in_words(value: object, default: list[str]) -> list[str]:
    if isinstance(value, int):
        return [str(value)]
    if isinstance(value, str):
        return [part.strip() for part in value.strip("[]").split(",") if part.strip()]
    return [str(item) for item in value] if isinstance(value, list) else default


def gpu_problems(run: RunFile, dialect: Dialect, *, sft: bool = False) -> Iterator[str]:
    """What this era's launcher cannot do with the run file's [gpus]."""
    inference, trainer = run.gpus.inference, run.gpus.trainer
    named = [gpu for gpu in (*inference, *trainer) if isinstance(gpu, str)]
    if named:
        yield f"[gpus] names {named[0]}, and prime-rl takes numbers only: `nvidia-smi -L` shows both."
    if sft:
        if inference:
            yield "[gpus] inference is set, and SFT has no engine: take it out."
        return
    if dialect.gpus == "ids":
        return
    if bool(inference) != bool(trainer):
        yield f"[gpus] needs both `inference` and `trainer` with {dialect.name}, or neither."
    if set(inference) & set(trainer):
        yield (
            f"[gpus] has the same GPU in `inference` and `trainer`, and {dialect.name} cannot share one: give them "
            "different GPUs, or use a prime-rl between 20 Sep 2025 and 24 Feb 2026."
        )
    if (
        dialect.gpus == "counts"
        and inference
        and trainer
        and not named
        and max(map(int, inference)) > min(map(int, trainer))
    ):
        yield f"[gpus]: {dialect.name} gives the lower numbers to the engine. Swap `inference` and `trainer`."
