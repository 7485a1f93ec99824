"""prime-rl's `inference` entry point as a role of its own beside an `rl` without [inference]: what allows it.

Read in PrimeIntellect-ai/prime-rl at be0e3d131 (2026-01-06), 38494ccb4 (v0.6) and 559b44772 (2026-08-21):

- `rl` without [inference] starts no server, warns, and leaves out all that it would have set up between the parts: the
  server's model, LoRA settings and data parallelism, the orchestrator's admin_base_url past a router. Weights then go
  through files by default, since NCCL needs a process group that dies with either half.
- The orchestrator waits for /health at its start, and on a resume it hands the step's weights over, whatever the server
  holds: so the server may stay warm. On a fresh start v0.6 hands over nothing, and others reset to the weights that the
  server was started with: so a fresh start needs a fresh server.
- Weights that fall due while it is away end the task that hands them over: in January at the first refusal, from June
  on after 65 s. Nothing notices; since 03cdc5157 (2026-08-21) the orchestrator ends then. A server that is back in time
  gets each update. Tried with the orchestrator's own modules (tests/primerl/test_real_engine_returns.py).
- A server that comes back under a living orchestrator has the base model until the next update (with LoRA: it answers
  404 for the adapter, and no batch would ever be full). It gets the newest weights from us, by the calls that the
  orchestrator itself makes (utils/client.py, update_weights and load_lora_adapter), before /resume.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from supervisor.config.settings import RunFile
from supervisor.jobs.base import Engine, EngineRole, StopRules, WeightUpdate
from supervisor.jobs.steps import numbered_folders
from supervisor.primerl import command
from supervisor.primerl.configs import Settings, broadcast_type
from supervisor.primerl.dialect import Dialect
from supervisor.primerl.layout import Layout

COMPONENT = "inference"
DEFAULT_PORT = 8000  # configs/inference.py ServerConfig, and ClientConfig.base_url, in every era
DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
VLLM_TABLE = " (in its table [vllm] from 8 Aug 2026 on)"  # d1046b876
VLLM_DATA = " ([vllm] data_parallel_size from 8 Aug 2026 on)"
STOP_PATIENCE_S = 30.0  # it has nothing to save; what it answers now is thrown away

_LORA_NAMES = ("orchestrator.model.lora.name", "orchestrator.student.model.lora.name", "orchestrator.lora_name")
_CLIENTS = ("orchestrator.model.client", "orchestrator.student.client", "orchestrator.client")
_MODELS = ("model.name", "orchestrator.model.name", "orchestrator.student.model.name", "trainer.model.name")


WHOLE = '"auto" restarts the inference server with the job.'
ALONE = '"auto" makes the inference server a role of its own: the orchestrator of this prime-rl goes on with a new one.'
STAYS = '"auto" leaves the inference server as it was started, until the next start.'


def is_asked_for(run: RunFile) -> bool:
    """Does the run file ask for it?"""
    return run.recovery.inference == "own-role"


def problems(run: RunFile, dialect: Dialect, settings: Settings, both: Settings) -> Iterator[str]:
    """Why the inference server cannot be a role of its own. ``settings``: what `rl` is given; ``both``: the server's
    file too, as its table [inference].
    """
    where = settings.where
    if not dialect.broadcasts or not (dialect.gpus == "ids" or dialect.titles):
        yield (
            f'recovery.inference = "own-role" cannot be used with {dialect.name}: its launcher starts either the whole '
            "job or gives the trainer the wrong GPUs. Use a prime-rl from 1 Apr 2026 on, or one between 18 Nov 2025 "
            'and 24 Feb 2026, or take "own-role" out.'
        )
    if run.job.engine_url:
        yield (
            '[job] engine_url names a server of another program, and recovery.inference = "own-role" starts one: '
            "take one of the two out."
        )
    if run.job.inference_config is None:
        yield (
            'recovery.inference = "own-role" starts the inference server from a file of its own: move the table '
            f"[inference] of {where} into one, its keys without `inference.`, and name it in [job] inference_config."
        )
        return
    if run.job.launcher and PurePosixPath(run.job.launcher[-1]).name != "rl":
        yield (
            f"[job] launcher ends in {run.job.launcher[-1]!r}, so the supervisor does not know how to start the "
            "inference server alone. Let it end in `rl`, or take it out."
        )
    if settings.has("inference"):
        yield (
            f"{where} still has [inference], so `rl` would start a second inference server beside ours. Take that "
            f"table out: {run.job.inference_config} holds its settings now."
        )
    if both.has("inference.slurm"):
        yield f"{run.job.inference_config} has [slurm]: this supervisor runs one pod only. Take it out."
    yield from _weights_words(run, dialect, settings, both)
    yield from _gpus_of_engine(run, both)
    yield from _same_model(run, settings, both)
    yield from _addresses_words(run, dialect, settings, both)


def _weights_words(run: RunFile, dialect: Dialect, settings: Settings, both: Settings) -> Iterator[str]:
    file = run.job.inference_config
    kinds = {broadcast_type(settings, dialect), str(both.get("inference.weight_broadcast.type") or "filesystem")}
    if kinds != {"filesystem"}:
        yield (
            f'recovery.inference = "own-role" needs weights that go through files, and {" and ".join(sorted(kinds))} '
            "is configured: one half of such a process group cannot restart without the other. Set "
            f'weight_broadcast.type = "filesystem" in {settings.where}, and in {file} if it names one.'
        )
    enabled = (both.get(path) is True for path in ("inference.enable_lora", "inference.vllm.enable_lora"))
    if settings.has("trainer.model.lora") and not any(enabled):
        yield (
            "The run trains LoRA adapters, and `rl` no longer tells the inference server: set enable_lora = true and "
            f"max_lora_rank in {file}{VLLM_TABLE}."
        )


def _gpus_of_engine(run: RunFile, both: Settings) -> Iterator[str]:
    inference, trainer = run.gpus.inference, run.gpus.trainer
    if not inference or not trainer:
        yield (
            'recovery.inference = "own-role" needs [gpus] inference and trainer in the run file: name the GPUs of each.'
        )
        return
    if shared := set(map(str, inference)) & set(map(str, trainer)):
        yield (
            f"[gpus] gives GPU {', '.join(sorted(shared))} to both halves, and with recovery.inference = "
            '"own-role" one half must find its GPUs free while the other runs. Give them different GPUs.'
        )
    tensor = both.number("inference.parallel.tp", "inference.vllm.tensor_parallel_size") or 1
    data = both.number("inference.parallel.dp", "inference.vllm.data_parallel_size") or 1
    if tensor * data != len(inference):
        yield (
            f"[gpus] gives the inference server {len(inference)} GPUs, and {run.job.inference_config} uses "
            f"{tensor * data}: `rl` no longer sets that up. Set [parallel] dp so that it is all of them{VLLM_DATA}."
        )


def _same_model(run: RunFile, settings: Settings, both: Settings) -> Iterator[str]:
    model = settings.get(*_MODELS)
    served = both.get("inference.vllm.model", "inference.model.name") or DEFAULT_MODEL
    if isinstance(model, str) and served != model:
        yield (
            f"{run.job.inference_config} serves {served}, and the run trains {model}: `rl` no longer tells the "
            "inference server. Name the same model in both."
        )


def _addresses_words(run: RunFile, dialect: Dialect, settings: Settings, both: Settings) -> Iterator[str]:
    file, port = run.job.inference_config, both.number("inference.server.port") or DEFAULT_PORT
    client = next((path for path in _CLIENTS if settings.has(path)), _CLIENTS[0])
    try:
        asked = _parse_ports(settings.get(f"{client}.base_url")) or [DEFAULT_PORT]
        updated = _parse_ports(settings.get(f"{client}.admin_base_url")) if has_router(dialect, both) else []
    except ValueError as error:
        yield f"[{client}] in {settings.where} has an address that cannot be read: {error}. Mend it."
        return
    if asked != [port]:
        yield (
            f"The orchestrator asks port {', '.join(map(str, asked))}, and {file} makes the inference server listen on "
            f'{port}. Set {client}.base_url in {settings.where} to "http://localhost:{port}/v1".'
        )
    if has_router(dialect, both):
        engine = port_behind_router(both, port)
        if updated != [engine]:
            yield (
                "The orchestrator would send its weight updates to the router, since `rl` without [inference] does not "
                f'know the engine\'s own address. Set {client}.admin_base_url = ["http://localhost:{engine}/v1"] in '
                f"{settings.where}."
            )


def has_router(dialect: Dialect, both: Settings) -> bool:
    """Does a router listen before the engine? Not where the person switched it off (``router = "None"``)."""
    table = both.get("inference")
    return dialect.router and not (isinstance(table, Mapping) and table.get("router") == "None")


def port_behind_router(both: Settings, port: int) -> int:
    """The engine's own; ``port`` is the router's (backend_port in configs/inference.py, 9551e20fa)."""
    return both.number("inference.backend_port") or port + 100


def _parse_ports(value: object) -> list[int]:
    urls = value if isinstance(value, list) else [value]
    return [urlsplit(url).port or 80 for url in urls if isinstance(url, str)]


# ---------------------------------------------------------------- what is allowed


def role(dialect: Dialect, settings: Settings, found: list[str]) -> EngineRole:
    """Which half may restart without the other. ``found``: the problems."""
    if found:
        return EngineRole(problems=tuple(found))
    why = _why_not_alone(dialect, settings)
    return EngineRole(keep_warm=True, restart_alone=not why, why=why)


def _why_not_alone(dialect: Dialect, settings: Settings) -> str:
    if not dialect.titles or dialect.buffer != "none":
        # Until f6563ff0e the orchestrator fills its batches with rollouts that failed (be0e3d131: trajectories.py masks
        # them), and an update that fails ends it (/pause and retries: ecd080928, 9ea9fb193).
        return (
            f"With {dialect.name} the inference server is not restarted alone: while it is away, rollouts that failed "
            "would fill the batches. Both halves are restarted instead."
        )
    if not dialect.notices_parts:
        return (
            f"With {dialect.name} the inference server is not restarted alone: weights that fall due while it is away "
            "are tried for 65 s, and then its orchestrator lives on without ever handing over any. Both halves are "
            "restarted instead."
        )
    if settings.has("trainer.model.lora") and lora_name(settings) is None:
        return (
            "The inference server is not restarted alone: it would not know the run's LoRA adapter, and its name is "
            f"not in {settings.where}. Both halves are restarted instead; {_LORA_NAMES[0]} would name it."
        )
    return ""


def why_whole(dialect: Dialect, both: Settings, found: list[str]) -> str:
    """Why `auto` does not take `own-role`, "" where that was tried and can be started. ``found``: the problems."""
    if why := _why_not_alone(dialect, both):
        return why
    if both.has("trainer.model.lora"):
        return "The run trains a LoRA adapter, and a server that comes back was tried with whole weights only."
    if (kind := broadcast_type(both, dialect)) != "filesystem":
        return f'Weights go through {kind}, which it cannot join anew: weight_broadcast.type = "filesystem" allows it.'
    return next(iter(found), "")


def lora_name(settings: Settings) -> str | None:
    """The adapter's name in requests, where the configuration says it."""
    name = settings.get(*_LORA_NAMES)
    return name if isinstance(name, str) else None


# ---------------------------------------------------------------- starting, stopping, weights


def words(run: RunFile) -> list[str]:
    """The words before ``@``."""
    launcher = run.job.launcher
    if launcher:
        return [*launcher[:-1], str(PurePosixPath(launcher[-1]).with_name(COMPONENT))]
    return command.launcher_words(run, COMPONENT)


def stop_rules() -> StopRules:
    """SIGTERM to the server, which ends its engines and its router (entrypoints/inference.py)."""
    return StopRules([(signal.SIGTERM, STOP_PATIENCE_S)], "an inference server has nothing to save")


def weight_update(layout: Layout, settings: Settings, engine: Engine | None) -> WeightUpdate | None:
    """The newest weights that the trainer finished writing; None when there are none."""
    if engine is None:
        return None
    folders = numbered_folders(layout.orchestrator_dir / "broadcasts")
    stable = {step: folder for step, folder in folders.items() if (folder / "STABLE").is_file()}
    if not stable:
        return None
    step = max(stable)
    folder = stable[step].as_posix()
    if settings.has("trainer.model.lora"):
        adapter = {"lora_name": lora_name(settings) or "", "lora_path": folder}
        return WeightUpdate(step, engine.url, [("/load_lora_adapter", adapter)])
    calls: list[tuple[str, Mapping[str, object]]] = [
        ("/pause", {}),
        ("/update_weights", {"weight_dir": folder}),
        ("/resume", {}),
    ]
    return WeightUpdate(step, engine.url, calls)
