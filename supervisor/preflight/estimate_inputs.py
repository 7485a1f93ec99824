"""What a configuration says of memory: all eras' spellings, and each era's default where nothing is said.

A default that cannot be told (the version is not known, or changed within the period that fits) is None, and the
estimate then reckons with both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from supervisor.preflight.memory_estimate import EngineSetup, Lora, TrainerSetup
from supervisor.preflight.models import ModelFacts
from supervisor.preflight.reading import TENSOR, degree, first, has, is_number, lora, number, of_trainer, switched_on
from supervisor.preflight.subject import Subject

# c5afcaa2e: activation checkpointing, offloading of its inputs and of the optimizer's state became the default.
_ALL_SAVING = date(2026, 6, 26)
_FUSED = ((date(2026, 8, 19), 8192), (date(2026, 6, 27), 1024))  # 2acb19ecc, bf3d381cf
_NO_FUSED_YET = date(2026, 1, 23)  # e3146ba9f: for three months since then it was on by itself, then off again
_FUSED_OFF_AGAIN = date(2026, 3, 9)  # 93cd1fa37
_MICRO_BATCHES = date(2025, 10, 27)  # 9a0070b1b: since then a micro batch is one row of seq_len tokens

_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "experts")
_DEFAULT_RANK = 16
_MOMENTS = {"adamw": 2, "sgd": 1, "muon": 1, "sign_sgd": 0}
_WIDTHS = {"float32": 4, "bfloat16": 2}

SANE = 1 << 40
"""Counts above this are mistakes, and would be too much for arithmetic."""

_GPUS = ("inference_gpu_ids", "trainer_gpu_ids", "inference_gpus", "trainer_gpus", "deployment")

DEFAULT_UTILIZATION = 0.9  # vLLM's, and inference.gpu_memory_utilization from 454e2cba4 to 559b44772
UTILIZATION = tuple(
    f"inference.{table}gpu_memory_utilization" for table in ("vllm.", "vllm_extra.", "")
)  # d1046b876, 2026-08-08: in [inference.vllm]
CONTEXT = (
    *("inference.vllm.max_model_len", "inference.vllm_extra.max_model_len", "inference.model.max_model_len"),
    "max_model_len",  # of all parts, until 2025; what later versions do with it is no reason for an error here
)
EAGER = tuple(f"inference.{table}enforce_eager" for table in ("vllm.", "vllm_extra.", "model.", ""))
# Settings of vLLM with which its memory is another matter.
_UNUSUAL = ("cpu_offload_gb", "pipeline_parallel_size", "kv_cache_memory_bytes", "num_gpu_blocks_override",
            "swap_space", "speculative_config", "enable_expert_parallel", "hf_overrides", "quantization")  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Setups for the low and the high end; they differ where a default cannot be told."""

    low: TrainerSetup
    high: TrainerSetup
    seq_len_path: str
    """Where the sequence length is set, for the place of a finding."""


def trainer_memory(subject: Subject) -> Memory | None:
    """The trainer's setup; None where something that it hangs on is odd or not known."""
    gpus = len(set(subject.plan.trainer))
    width = _read_width(subject)
    moments = moments_kept(subject)
    if not gpus or width is None or moments is None or subject.settings.has(of_trainer(subject, "model.debug")):
        return None
    replicas = degree(subject, of_trainer(subject, "model.dp_replicate"))
    cp = degree(subject, of_trainer(subject, "model.cp"))
    tokens, path = _read_tokens(subject)
    adapter = _read_lora(subject)
    if tokens > SANE or (adapter is not None and adapter.rank > SANE):
        return None
    checkpointing, every = _read_checkpointing(subject)
    offload = read_switch(subject, of_trainer(subject, "model.ac_offloading"), has(subject, _ALL_SAVING))
    if offload is True:
        checkpointing = True  # prime-rl switches the one on with the other
    fused = _fused_head(subject, tokens)
    full = read_switch(subject, of_trainer(subject, "model.full_offload"), False) is True
    # With full offload the optimizer's own default is off in every configuration that prime-rl accepts.
    optim = (
        False
        if full
        else read_switch(subject, of_trainer(subject, "model.optim_cpu_offload"), has(subject, _ALL_SAVING))
    )
    low = TrainerSetup(
        gpus=max(gpus // replicas, 1),
        tokens=max(tokens // cp, 1),
        width=width,
        moments=moments,
        lora=adapter,
        checkpointing=checkpointing is not False,
        every=every,
        offload_inputs=offload is not False,
        fused_head=fused if fused is not None else 1024,
        logit_bytes=16.0 if subject.kind == "rl" else 18.0,
        fsdp_cpu_offload=subject.settings.is_on(of_trainer(subject, "model.fsdp_cpu_offload")) is True,
        optim_cpu_offload=optim is not False,
        full_offload=full,
    )
    high = replace(
        low,
        checkpointing=checkpointing is True,
        offload_inputs=offload is True,
        fused_head=fused or 0,
        optim_cpu_offload=optim is True,
    )
    return Memory(low, high, path)


def one_machine(subject: Subject) -> bool:
    """Is it a run of one pod? What runs over several machines has more GPUs than are seen."""
    if subject.kind not in ("rl", "sft") or subject.is_submitted:
        return False
    if subject.settings.get("deployment.type") in ("multi_node", "disaggregated"):
        return False
    return is_training(subject)


def is_training(subject: Subject) -> bool:
    """Is it a training at all? A lone file for evaluations or for an engine may look like one of `rl`."""
    parts = ("trainer", "orchestrator", "data", "optim", "max_steps")
    return subject.run_file is not None or any(subject.settings.has(part) for part in parts)


def gpus_said(subject: Subject) -> bool:
    """Is it known which GPUs the run gets? Of a configuration alone, the command line may have said it."""
    return subject.run_file is not None or any(subject.settings.has(key) for key in _GPUS)


def trains(subject: Subject, facts: ModelFacts) -> bool:
    """Are the facts those of the model that is trained?"""
    own = subject.settings.get(of_trainer(subject, "model.name"))
    return own is None or own == facts.name


def trained_width(subject: Subject) -> int | None:
    """Bytes of a weight in a checkpoint, None where the dtype is odd. Masters of full offload are float32."""
    full = read_switch(subject, of_trainer(subject, "model.full_offload"), False) is True
    return 4 if full else _read_width(subject)


def moments_kept(subject: Subject) -> int | None:
    """Numbers that the optimizer keeps for each trained parameter."""
    return _MOMENTS.get(str(subject.settings.get(of_trainer(subject, "optim.type")) or "adamw"))


def adapter(subject: Subject) -> Lora | None:
    """The adapters that are trained, None where the whole model is."""
    found = _read_lora(subject)
    return found if found is None or found.rank <= SANE else None


def default_lora() -> Lora:
    """Adapters as prime-rl makes them where nothing else is said."""
    return Lora(_DEFAULT_RANK, _TARGETS)


def engine_setup(subject: Subject) -> EngineSetup | None:
    """The engine's setup; None where there is none, or where its memory is not reckoned as usual."""
    if not subject.plan.inference or _own_model(subject):
        return None
    for table in ("inference.vllm", "inference.vllm_extra", "inference"):
        if any(subject.settings.get(f"{table}.{key}") for key in _UNUSUAL):
            return None
    share = first(subject, *UTILIZATION)
    utilization = DEFAULT_UTILIZATION if share is None else share.value
    if not is_number(utilization) or not 0 < utilization <= 1:
        return None
    context = first(subject, *CONTEXT)
    length = number(subject, *CONTEXT)
    copies = degree(subject, *TENSOR)
    if copies > SANE or (context is not None and (length is None or not 0 < length.value <= SANE)):
        return None  # "auto" or -1: vLLM takes what fits
    model = subject.model
    width = first(subject, "inference.vllm.dtype", "inference.model.dtype")
    kv = first(subject, "inference.vllm.kv_cache_dtype", "inference.vllm_extra.kv_cache_dtype")
    return EngineSetup(
        gpus=copies,
        utilization=float(utilization),
        max_model_len=length.value if length else (model.positions if model else 0),
        eager=bool(switched_on(subject, *EAGER)),
        weight_width=4.0 if width is not None and width.value == "float32" else 2.0,
        kv_width=1 if kv is not None and "fp8" in str(kv.value) else 2,
    )


# ---------------------------------------------------------------- single settings


def _own_model(subject: Subject) -> bool:
    """Does the engine serve another model than the one that the facts are of?"""
    own = first(subject, "inference.vllm.model", "inference.model.name")
    return own is not None and subject.model is not None and own.value != subject.model.name


def look_up_setting(subject: Subject, path: str) -> tuple[bool, Any]:
    """Is it said, and what? The text "None" is a word, too: it switches a default off."""
    node: Any = subject.settings.tree
    for part in path.split("."):
        if not isinstance(node, Mapping):
            return False, None
        if part not in node and part.replace("_", "-") not in node:
            return False, None
        node = node.get(part, node.get(part.replace("_", "-")))
    return True, None if node == "None" else node


def read_switch(subject: Subject, path: str, default: bool | None) -> bool | None:
    """A table or a truth value that switches something on."""
    there, value = look_up_setting(subject, path)
    if not there:
        return default
    return value is not None and value is not False


def _read_checkpointing(subject: Subject) -> tuple[bool | None, int]:
    path = of_trainer(subject, "model.ac")
    on = read_switch(subject, path, has(subject, _ALL_SAVING))
    if on and subject.settings.get(f"{path}.mode") == "selective":
        return None, 1
    return on, degree(subject, f"{path}.freq")


def _read_width(subject: Subject) -> int | None:
    return _WIDTHS.get(str(subject.settings.get(of_trainer(subject, "model.optimization_dtype")) or "float32"))


def _read_lora(subject: Subject) -> Lora | None:
    path = lora(subject)
    if not path:
        return None
    rank = number(subject, f"{path}.rank")
    modules = subject.settings.get(f"{path}.target_modules")
    targets = _TARGETS if not isinstance(modules, list) else _known_names(modules, _TARGETS)
    saved = subject.settings.get(f"{path}.modules_to_save")
    whole = _known_names(saved, ("embed_tokens", "lm_head")) if isinstance(saved, list) else ()
    return Lora(rank.value if rank and rank.value > 0 else _DEFAULT_RANK, targets, whole)


def _known_names(modules: list[Any], known: tuple[str, ...]) -> tuple[str, ...]:
    """Of the modules' names or patterns, the ones that are known."""
    patterns = [one for one in modules if isinstance(one, str)]
    found = []
    for name in known:
        for pattern in patterns:
            try:
                if re.search(pattern, name):
                    found.append(name)
                    break
            except (re.error, OverflowError):  # no pattern: prime-rl itself will say so
                continue
    return tuple(found)


def _read_tokens(subject: Subject) -> tuple[int, str]:
    """Tokens of a micro batch, and where the length is set ("": nowhere)."""
    if subject.kind == "sft":
        length = number(subject, "data.seq_len")
        rows = degree(subject, "data.micro_batch_size")
        return (length.value if length and length.value > 0 else 128) * rows, length.path if length else ""
    paths = ("trainer.model.seq_len", "seq_len", "orchestrator.seq_len")
    lengths = [one for path in paths if (one := number(subject, path)) and one.value > 0]
    longest = max(lengths, key=lambda one: one.value, default=None)
    rows = 1 if has(subject, _MICRO_BATCHES) else degree(subject, "orchestrator.micro_batch_size")
    return (longest.value if longest else 2048) * rows, longest.path if longest else ""


def _fused_head(subject: Subject, tokens: int) -> int | None:
    """Tokens of a chunk of the output layer; 0: it is not fused; None: it cannot be told."""
    newer = of_trainer(subject, "model.fused_lm_head_token_chunk_size")
    older = of_trainer(subject, "model.fused_lm_head_chunk_size")
    for path, chunk in ((newer, None), (older, tokens)):
        there, value = look_up_setting(subject, path)
        if not there:
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return chunk or value  # the older one cuts the vocabulary, so all tokens are in each chunk
        return tokens if value == "auto" else 0
    if subject.kind == "sft" and has(subject, date(2026, 7, 16)) is not True:  # e0d60e4d8
        return 0
    for day, tokens_of_a_chunk in _FUSED:
        if (since := has(subject, day)) is not False:
            return tokens_of_a_chunk if since else None
    if has(subject, _NO_FUSED_YET) is False or has(subject, _FUSED_OFF_AGAIN):
        return 0
    return None
