"""A run's settings, resolved from the nested configuration as each era's RLConfig resolves them."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.practice.command_line import get, merge
from tests.practice.era import Era


class SettingsError(ValueError):
    """A configuration that the real validators refuse: the launcher ends with exit 1."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The settings of one child (trainer or orchestrator), read back from the sub-configuration that the launcher
    wrote for it. Paths are as given (relative to the working folder)."""

    output_dir: Path
    max_steps: int | None
    model: str
    checkpoints: bool
    interval: int | None
    keep_last: int | None
    keep_interval: int | None
    checkpoint_dir: Path
    """The folder that holds the trainer's checkpoints/: run_dir unless ckpt.output_dir is set."""
    resuming: bool
    resume_step: int | None
    """None with `resuming` means the latest; -1 is spelled as None here."""
    resume_from: Path | None
    base_url: str
    batch_size: int
    log_level: str
    json_lines: bool
    broadcast_kind: str
    max_async_level: int


@dataclass(frozen=True, kw_only=True)
class Settings(Part):
    """What the launcher needs to know."""

    run_dir: Path
    """The folder that holds checkpoints/: output_dir, or output_dir / run name since 2026-08-13."""
    orchestrator_dir: Path
    port: int
    """The client-facing port: the engine's own, or the router's where there is one."""
    engine_port: int
    has_inference: bool
    inference_gpus: tuple[int, ...]
    trainer_gpus: tuple[int, ...]
    clean: bool
    dry_run: bool


def resolve(era: Era, config: dict[str, Any]) -> Settings:
    """Raises SettingsError where the real configuration classes raise."""
    if get(config, "slurm") is not None:
        raise SettingsError("slurm: sbatch is not installed here")
    for table in ("trainer", "orchestrator"):
        if table not in config and era.command_line["parser"] == "pydantic-settings":
            raise SettingsError(f"{table}\n  Field required [type=missing]")
    output_dir = Path(get(config, "output_dir", "outputs"))
    run_dir = output_dir
    if era.layout["run_dirs"]:
        run_dir = output_dir / str(
            get(config, "run.dir") or get(config, "run.name") or f"reverse-text--practice--{secrets.token_hex(4)}"
        )
    port = int(get(config, "inference.server.port", 8000))
    offset = int(era.engine["port_offset"]) if era.engine["router"] else 0
    _check_client(era, config, port)
    trainer_step = get(config, "trainer.ckpt.resume_step")
    step = get(config, era.command_line["resume_key"], trainer_step)
    if trainer_step is not None and step != trainer_step:
        raise SettingsError(f"trainer.ckpt.resume_step ({trainer_step}) does not match ckpt.resume_step ({step})")
    kind = get(config, "weight_broadcast.type")
    if kind is None:
        kind = era.layout["broadcast_kind"]
        if kind == "markers" and (get(config, "trainer.model.lora") is not None or config.get("inference") is None):
            kind = "filesystem"  # auto_setup_weight_broadcast
    shared = _part_values(era, config, output_dir, step=step, kind=kind, checkpoint_dir=run_dir)
    shared["batch_size"] = int(get(config, "orchestrator.batch_size", 8))
    return Settings(
        **shared,
        run_dir=run_dir,
        orchestrator_dir=run_dir / era.layout["orchestrator_tree"],
        port=port,
        engine_port=port + offset,
        has_inference=config.get("inference") is not None,
        inference_gpus=_gpus_of_role(era, config, "inference"),
        trainer_gpus=_gpus_of_role(era, config, "trainer"),
        clean=bool(get(config, era.start.get("clean_key", "clean"), "clean_key" not in era.start)),
        dry_run=bool(get(config, "dry_run", False)),
    )


def part_settings(era: Era, role: str, config: dict[str, Any]) -> Part:
    """`config` is a child's own configuration (its keys without the role's prefix)."""
    output_dir = Path(get(config, "output_dir", "outputs"))
    kind = get(config, "weight_broadcast.type", era.layout["broadcast_kind"])
    step = get(config, era.command_line["resume_key"])
    values = _part_values(era, config, output_dir, step=step, kind=kind, checkpoint_dir=output_dir)
    if role != "trainer":
        values["checkpoint_dir"] = output_dir
    return Part(**values)


def _part_values(
    era: Era, config: dict[str, Any], output_dir: Path, *, step: int | None, kind: str, checkpoint_dir: Path
) -> dict[str, Any]:
    """The fields of `Part`, from the launcher's configuration or from a child's own."""
    resuming, source = step is not None, None
    if era.layout["run_dirs"]:
        resuming = config.get("resume") is not None
        source = get(config, "resume.dir")
        if source is not None:
            step = int(Path(source).name.removeprefix("step_"))
    client = str(era.engine["client_key"]).removeprefix("orchestrator.")
    url = get(config, f"{client}.base_url", "http://localhost:8000/v1")
    checkpoints = config.get("ckpt") is not None or get(config, "trainer.ckpt") is not None
    return {
        "output_dir": output_dir,
        "max_steps": get(config, "max_steps", get(config, "trainer.max_steps")),
        "model": get(config, "model.name", get(config, "trainer.model.name", "Qwen/Qwen3-0.6B")),
        "checkpoints": checkpoints,
        "interval": _checkpoint_interval(era, config) if checkpoints else None,
        "keep_last": get(config, f"ckpt.{era.command_line['keep_last_key']}"),
        "keep_interval": get(config, "ckpt.keep_interval"),
        "checkpoint_dir": Path(get(config, "ckpt.output_dir") or checkpoint_dir),
        "resuming": resuming,
        "resume_step": None if step in (None, -1) else int(step),
        "resume_from": None if source is None else Path(source),
        "base_url": url[0] if isinstance(url, list) else url,
        "batch_size": int(get(config, "batch_size", 8)),
        "log_level": str(get(config, "log.level", "info")),
        "json_lines": bool(get(config, "log.json_logging", False)),
        "broadcast_kind": "markers" if kind in ("nccl", "nixl", "markers") else kind,
        "max_async_level": int(get(config, "max_async_level", era.steps["max_async_level"])),
    }


def subconfigs(era: Era, config: dict[str, Any], run: Settings) -> dict[str, dict[str, Any]]:
    """The sub-configurations of inference, orchestrator and trainer, with the shared settings copied into each."""
    shared: dict[str, Any] = {"max_steps": run.max_steps, "log": {"level": run.log_level}}
    if era.command_line["parser"] == "pydantic-config":
        shared["log"]["json_logging"] = run.json_lines
    if run.checkpoints:
        shared["ckpt"] = {"interval": run.interval, era.command_line["keep_last_key"]: run.keep_last}
        if era.command_line["keep_last_key"] == "keep_last":
            shared["ckpt"]["keep_interval"] = run.keep_interval
    if run.resuming:
        step = -1 if run.resume_step is None and not era.layout["run_dirs"] else run.resume_step
        table, key = era.command_line["resume_key"].split(".")
        shared.setdefault(table, {})[key] = step
        if run.resume_from is not None:
            shared["resume"] = {"dir": str(run.resume_from)}
    if "weight_broadcast" in era.keys.get("trainer", frozenset()) and run.broadcast_kind in ("filesystem", "markers"):
        shared["weight_broadcast"] = {"type": "nccl" if run.broadcast_kind == "markers" else "filesystem"}
    trainer: dict[str, Any] = {"output_dir": str(run.run_dir), "model": {"name": run.model}}
    if run.checkpoint_dir != run.run_dir:
        trainer["ckpt"] = {"output_dir": str(run.checkpoint_dir)}
    orchestrator: dict[str, Any] = {"output_dir": str(run.orchestrator_dir)}
    inference: dict[str, Any] = {"server": {"port": run.port}}
    if "vllm" not in era.keys["inference"] and "vllm*" not in era.keys["inference"]:
        inference["model"] = {"name": run.model}
    else:
        inference["vllm"] = {"model": run.model}
    for part, table in (("trainer", trainer), ("orchestrator", orchestrator), ("inference", inference)):
        resolved = json.loads(json.dumps(config.get(part) or {}))
        if part != "inference":
            merge(resolved, json.loads(json.dumps(shared)))
        merge(resolved, table)
        table.clear()
        table.update(resolved)
    return {"inference": inference, "orchestrator": orchestrator, "trainer": trainer}


def _checkpoint_interval(era: Era, config: dict[str, Any]) -> int | None:
    interval = get(config, "ckpt.interval", get(config, "trainer.ckpt.interval", era.command_line["default_interval"]))
    if interval and interval < 1:
        raise SettingsError(f"ckpt.interval\n  Input should be greater than or equal to 1 (got {interval})")
    return int(interval) if interval else None


def _gpus_of_role(era: Era, config: dict[str, Any], role: str) -> tuple[int, ...]:
    if era.command_line["gpus"] == "ids":
        return tuple(get(config, f"{role}_gpu_ids", [0] if role == "inference" else [1]))
    engines = int(get(config, "deployment.num_infer_gpus", 1)) if config.get("inference") is not None else 0
    trainers = int(get(config, "deployment.num_train_gpus", 1))
    return tuple(range(engines)) if role == "inference" else tuple(range(engines, engines + trainers))


def _check_client(era: Era, config: dict[str, Any], port: int) -> None:
    """The client must point at the server (ValueError in rl_local since 2026-02-06; earlier eras wait for ever)."""
    key = str(era.engine["client_key"])
    url = get(config, f"{key}.base_url", "http://localhost:8000/v1")
    url = url[0] if isinstance(url, list) else url
    client_port = int(url.rsplit(":", 1)[1].split("/")[0])
    if era.engine["checks_client_port"] and config.get("inference") is not None and client_port != port:
        raise SettingsError(
            f"{key}.base_url port ({client_port}) does not match inference.server.port ({port}). "
            f"Update the base_url to use port {port} to match the inference server."
        )
