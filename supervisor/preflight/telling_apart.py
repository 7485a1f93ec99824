"""Tells what a TOML file is by its keys: a run file of ours, or which configuration of prime-rl.

People name the file they have at hand: ``rl-supervisor check rl.toml`` must not complain that it has no [job].
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from supervisor.config.settings import RunFile

Part = Literal["", "trainer", "orchestrator", "inference", "sft", "vf-rl", "hosted", "other"]
"""What a configuration fills: "" is the whole of `rl`, "sft" of `sft`, "vf-rl" of verifiers' small trainer, "hosted" of
`prime rl run` (or `prime train`); "other" is for no training.
"""

# Sections that prime-rl has as well, by name ([run] name, [wandb], [heartbeat] of the trainer).
_SHARED = {"run", "wandb", "heartbeat"}
_OURS = set(RunFile.model_fields) - _SHARED | {"recover"}

_WHOLE = {
    *("trainer", "orchestrator", "inference", "inference_gpu_ids", "trainer_gpu_ids", "inference_gpus", "trainer_gpus"),
}
_COMMON = {*("model", "ckpt", "max_steps", "seq_len", "output_dir", "weight_broadcast", "deployment", "slurm", "data")}


def _keys_of_text(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What only one part's own file has at its top, over all of prime-rl's history (configs/ of ceb60c03f to 559b44772).
_SIGNS: Mapping[Part, frozenset[str]] = {
    "orchestrator": _keys_of_text(
        "batch_size token_batch_size rollouts_per_example group_size sampling env environment eval buffer client "
        "student teacher train oversampling_factor max_inflight_rollouts advantage filters collect_inference_metrics "
        "mask_truncated_completions zero_truncated_completions mask_env_responses num_train_workers"
    ),
    "inference": _keys_of_text(
        "server parallel vllm gpu_memory_utilization enable_lora max_lora_rank max_loras max_cpu_loras "
        "api_server_count enable_prefix_caching reasoning_parser router backend_port "
        "model.max_model_len model.enforce_eager model.tool_call_parser model.enable_auto_tool_choice"
    ),
    "trainer": _keys_of_text(
        "optim scheduler loss max_concurrent_runs dist_timeout_seconds memory_profiler_path gc weights "
        "model.seq_len model.impl model.ac model.lora model.fsdp_cpu_offload model.optim_cpu_offload model.compile "
        "model.reshard_after_forward model.attn model.dp_replicate data.fake"
    ),
    # Of the commands `eval` and `synthesize` alone (eval/config.py, synthesize/config.py at be0e3d131).
    "other": _keys_of_text("num_examples use_tqdm per_rollout eval_base weights_dir resume_path reasoning_field"),
    "sft": _keys_of_text(
        "loss_mask loss_impl val data.name data.type data.batch_size data.seq_len data.splits data.subsets "
        "data.pack_function data.micro_batch_size data.loss_mask"
    ),
}
# Top-level keys of what `prime rl run` takes (commands/rl.py of PrimeIntellect-ai/prime, 30 Dec 2025 to 19 Aug 2026).
_HOSTED = _keys_of_text("max_steps batch_size rollouts_per_example rollouts learning_rate lora_alpha sampling")
_EVALUATION = _keys_of_text("env model sampling client log wandb output_dir max_concurrent")
_NAMES: tuple[tuple[str, Part], ...] = (
    ("orch", "orchestrator"),
    ("infer", "inference"),
    ("sft", "sft"),
    ("train", "trainer"),
)


def is_run_file(data: Mapping[str, Any] | None, text: str) -> bool:
    """Is it one of ours? If that cannot be told, yes: its own mistakes are then told."""
    if data is None:
        return any(line.strip().startswith(("[job]", "[job.", "[run]")) for line in text.splitlines())
    run = data.get("run")
    ours = len(_OURS & set(data)) + (isinstance(run, Mapping) and "id" in run)
    theirs = len((_WHOLE | _COMMON) & set(data)) + len(_score_kinds(data))
    return ours > theirs or not theirs  # one table of another program is a mistake in either


def part_of(path: Path, data: Mapping[str, Any] | None) -> Part:
    """Which configuration of prime-rl it is."""
    if data is None:
        return _by_name(path)
    whole = _WHOLE & set(data)
    # SFT may have an engine for its evaluations (15d6c8197); a whole run has no data or optimizer at its top.
    named = isinstance(data.get("model"), str)  # prime-rl's trainers have a table there
    if whole and not (len(whole) == 1 and {"data", "optim"} & set(data)):
        return "vf-rl" if named and "env" in data else ""
    if is_hosted(data):
        return "hosted"
    scores = _score_kinds(data)
    if scores.get("other") or (named and "eval" in data) or _is_of_eval(data):
        return "other"
    # A trainer of RL has no data set of its own; an SFT run has, and what else it sets is the trainer's.
    # Both it and the orchestrator may have [eval] (15d6c8197).
    orchestrator = scores.get("orchestrator", 0) - ("eval" in data)
    if scores.get("sft") and orchestrator <= 0 and not scores.get("inference"):
        return "sft"
    best = max(scores.values(), default=0)
    found = [part for part, score in scores.items() if score == best and part != "sft"]
    if len(found) == 1:
        return found[0]
    return _by_name(path)


def is_hosted(data: Mapping[str, Any]) -> bool:
    """Is it for Prime's hosted training? There the model is a text, and its settings and environments stand beside it.

    An evaluation names a model in the same way, and says nothing of training.
    """
    trains = not _WHOLE & set(data) and bool(_HOSTED & set(data)) and "num_examples" not in data
    return trains and isinstance(data.get("model"), str) and bool({"env", "environments"} & set(data))


def _is_of_eval(data: Mapping[str, Any]) -> bool:
    """Is it of `eval`, with environments that say how often? Those of the orchestrator do so below [eval] alone."""
    envs = data.get("env")
    tables = [one for one in envs if isinstance(one, Mapping)] if isinstance(envs, list) else []
    return set(data) <= _EVALUATION and any({"rollouts_per_example", "num_examples"} & set(one) for one in tables)


def _by_name(path: Path) -> Part:
    name = path.stem.lower()
    return next((part for word, part in _NAMES if word in name), "")


def _score_kinds(data: Mapping[str, Any]) -> dict[Part, int]:
    keys = set()
    for name, value in data.items():
        plain = name.replace("-", "_")
        keys.add(plain)
        if isinstance(value, Mapping):
            keys |= {f"{plain}.{str(key).replace('-', '_')}" for key in value}
    found = {part: len(signs & keys) for part, signs in _SIGNS.items()}
    return {part: count for part, count in found.items() if count}
