"""What is known of a model without loading it: its shape, and how many parameters that makes.

Shapes come from a config.json on this machine, else from the table ``models.toml``. A number that is not known is 0,
and a model with layers that the formula does not cover (state-space layers, latent attention) has no parameter count
unless its weight files give it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

_LARGEST = 4 << 20
"""Bytes of a config.json or an index of weight files that are read; such files have kilobytes to a few megabytes."""

# Model types with this decoder layer: attention with separate q, k, v and o, and a gated MLP or experts.
_COVERED = {
    "afmoe", "gemma", "gemma2", "gemma3_text", "glm4_moe", "gpt_oss", "granite", "llama", "ministral", "ministral3",
    "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
}  # fmt: skip
_QK_NORM = {"qwen3", "qwen3_moe", "gemma3_text"}
_FOUR_NORMS = {"gemma2", "gemma3_text", "afmoe"}
_TIED_UNLESS_SAID = {"gemma", "gemma2", "gemma3", "gemma3_text", "smollm3"}
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}

# Words in a name after which it is no longer the shape that the name begins with.
_OTHER_SHAPE = re.compile(
    r"(?:^|[-_.])(?:\d+(?:\.\d+)?b|\d{2,}m|draft|eagle\d*|medusa|dflash\d*|pruned|minitron|vl|omni|moe|lora|adapter|"
    r"embedding|reranker|reap|untied|nano|small|mini|tiny)(?:$|[-_.])"
)
_QUANTIZED_NAME = re.compile(
    r"(?:^|[-_.])(gguf|awq|gptq|fp8|nvfp4|mxfp4|exl2|exl3|mlx|bnb|int4|int8|4bit|8bit|w4a16|w8a8)(?:$|[-_.])"
)


@dataclass(frozen=True)
class ModelFacts:
    """A model's shape. 0 where a number is not known. ``origin``: where it was read, a clause for people."""

    name: str
    model_type: str = ""
    architectures: tuple[str, ...] = ()
    parameters: int = 0
    active_parameters: int = 0
    hidden: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    intermediate: int = 0
    """Width of the MLP of a layer without experts."""
    experts: int = 0
    vocabulary: int = 0
    positions: int = 0
    tied: bool = False
    dtype: str = ""
    gated: bool | None = None
    origin: str = ""
    expert_intermediate: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    """Layers without experts at the beginning of a model with experts."""
    sliding_window: int = 0
    """Tokens that some layers keep at most; 0: each layer keeps all."""
    quantization: str = ""
    """Method of quantized weights ("mxfp4", "fp8", "awq", ...)."""
    weight_bytes: int = 0
    """Bytes of its weight files, where they lie on this machine or the table says."""
    local: bool = False
    """Read from a folder of this machine, not from the table."""
    whole: bool = False
    """Are all its weight files in that folder? A download that was broken off lacks some."""

    @property
    def plain(self) -> bool:
        """Are its layers of a kind that the formulas know, so that caches and activations can be reckoned?"""
        return self.active_parameters > 0


def facts_of(name: str, snapshots: Mapping[str, Path], folder: Path) -> ModelFacts | None:
    """Facts of the model ``name``: of a folder (below ``folder``), a snapshot in the cache, or the table; or None."""
    if not name or "\0" in name:
        return None
    near = folder / Path(name).expanduser() if not name.startswith("~") else Path(name).expanduser()
    for place, origin in (
        (near, f"its config.json in {near}"),
        (snapshots.get(name), "its config.json in the HF cache"),
    ):
        data = _read_json(place / "config.json") if place is not None else None
        if place is not None and data is not None:
            facts = from_config(name, data, origin)
            size, parameters = _read_weights(place, facts)
            facts = replace(facts, weight_bytes=size, local=True, whole=_has_all_weights(place), gated=False)
            return replace(facts, parameters=facts.parameters or parameters)
    return _from_table(name)


def from_config(name: str, data: Mapping[str, Any], origin: str) -> ModelFacts:
    """Facts of a config.json. Of one with vision the language part is counted."""
    nested = data.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, Mapping) else data
    read = partial(_read_number, text)
    outer = str(data.get("model_type") or "")
    hidden, heads = read("hidden_size"), read("num_attention_heads")
    experts = read("num_experts", "num_local_experts", "n_routed_experts")
    architectures = data.get("architectures")
    quantized = data.get("quantization_config")
    model_type = str(text.get("model_type") or outer)
    facts = ModelFacts(
        name=name,
        model_type=outer,
        architectures=tuple(str(one) for one in architectures) if isinstance(architectures, list) else (),
        hidden=hidden,
        layers=read("num_hidden_layers"),
        heads=heads,
        kv_heads=read("num_key_value_heads") or heads,
        head_dim=read("head_dim") or (hidden // heads if heads else 0),
        intermediate=read("intermediate_size"),
        experts=experts,
        expert_intermediate=read("moe_intermediate_size") or (read("intermediate_size") if experts else 0),
        experts_per_token=read("num_experts_per_tok", "experts_per_token"),
        shared_experts=read("n_shared_experts", "num_shared_experts"),
        dense_layers=read("first_k_dense_replace", "num_dense_layers") if experts else 0,
        vocabulary=read("vocab_size"),
        positions=read("max_position_embeddings"),
        tied=_has_tied_embeddings(data, text, model_type),
        dtype=str(text.get("torch_dtype") or text.get("dtype") or data.get("torch_dtype") or data.get("dtype") or ""),
        sliding_window=read("sliding_window") if text.get("use_sliding_window", True) else 0,
        quantization=_read_quantization(name, quantized),
        origin=origin,
    )
    total, active = _count_parameters(facts, model_type, text)
    return replace(facts, parameters=total, active_parameters=active)


def _read_number(table: Mapping[str, Any], *keys: str) -> int:
    """A whole number of a table that others wrote, under the first of ``keys`` that has one; 0 where none has."""
    for key in keys:
        value = table.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40:
            return value
    return 0


def _has_tied_embeddings(data: Mapping[str, Any], text: Mapping[str, Any], model_type: str) -> bool:
    for table in (text, data):
        if isinstance(said := table.get("tie_word_embeddings"), bool):
            return said
    return model_type in _TIED_UNLESS_SAID


def _read_quantization(name: str, said: object) -> str:
    if isinstance(said, Mapping):
        return str(said.get("quant_method") or "unknown")
    found = _QUANTIZED_NAME.search(name.lower().rpartition("/")[2])
    return found[1] if found else ""


# ---------------------------------------------------------------- counting parameters


def attention_parameters(facts: ModelFacts) -> int:
    """Weights of the q, k, v and o projections of one layer, without biases."""
    return facts.hidden * facts.head_dim * (2 * facts.heads + 2 * facts.kv_heads)


def embedding_parameters(facts: ModelFacts) -> int:
    """Weights of the embedding (and as many of the output layer where it is one of its own)."""
    return facts.vocabulary * facts.hidden


def _count_parameters(facts: ModelFacts, model_type: str, text: Mapping[str, Any]) -> tuple[int, int]:
    """All parameters, and those that one token passes through; 0 where the formula does not cover the layers."""
    needed = (facts.hidden, facts.layers, facts.heads, facts.kv_heads, facts.head_dim, facts.vocabulary)
    mlp = facts.expert_intermediate if facts.experts else facts.intermediate
    if model_type not in _COVERED or not all(needed) or not mlp:
        return 0, 0
    h, queries, keys = facts.hidden, facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    attention = attention_parameters(facts)
    if model_type == "qwen2" or (text.get("attention_bias") is True):
        attention += queries + 2 * keys
    if model_type == "gpt_oss":
        attention += h + facts.heads  # bias of o, and the sinks
    elif text.get("attention_bias") is True and model_type in ("llama", "granite"):
        attention += h
    if model_type in _QK_NORM or text.get("use_qk_norm") is True:
        attention += 2 * facts.head_dim
    elif model_type == "olmo2":
        attention += queries + keys
    if model_type == "afmoe":
        attention += h * queries + 2 * facts.head_dim  # its attention gate, and norms of q and k
    norms = h * (4 if model_type in _FOUR_NORMS else 2)
    dense = 3 * h * facts.intermediate
    expert = 3 * h * facts.expert_intermediate
    router = facts.experts * h
    if model_type == "gpt_oss":
        expert += 2 * facts.expert_intermediate + h
        router += facts.experts
    if model_type in ("glm4_moe", "afmoe"):
        router += facts.experts  # the correction of its scores
    shared = facts.shared_experts * expert
    ends = embedding_parameters(facts) * (1 if facts.tied else 2) + h
    sparse = facts.layers - facts.dense_layers if facts.experts else 0
    plain = facts.layers - sparse
    always = ends + facts.layers * (attention + norms) + plain * dense + sparse * (router + shared)
    total = always + sparse * facts.experts * expert
    active = always + sparse * min(facts.experts_per_token, facts.experts) * expert
    return total, active if facts.experts else total


def _read_weights(folder: Path, facts: ModelFacts) -> tuple[int, int]:
    """Bytes of the weight files in ``folder``, and how many parameters those are; 0 where that cannot be said."""
    index = _read_json(folder / "model.safetensors.index.json")
    size = 0
    if index is not None and isinstance(metadata := index.get("metadata"), Mapping):
        size = _read_number(metadata, "total_size")
    if not size:
        try:
            size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        except OSError:  # a dead link of a download that was broken off
            size = 0
    width = 0 if facts.quantization else _DTYPE_BYTES.get(facts.dtype.removeprefix("torch."), 0)
    return size, size // width if width else 0


def _has_all_weights(folder: Path) -> bool:
    """Are all files there that an index of weights names, or any weights where none has an index?"""
    maps = [(_read_json(path) or {}).get("weight_map") for path in folder.glob("*.index.json")]
    named = [set(map(str, one.values())) for one in maps if isinstance(one, Mapping)]
    named = named or [{path.name} for path in folder.glob("*") if path.suffix in _WEIGHTS]
    return any(all(os.path.isfile(folder / name) for name in files) for files in named)  # noqa: PTH113 - never raises


def _read_json(path: Path) -> Mapping[str, Any] | None:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        data = json.loads(content) if len(content) <= _LARGEST else None
    except (OSError, ValueError, RecursionError):  # not there, or not what its name says: then nothing is known
        return None
    return data if isinstance(data, Mapping) else None


# ---------------------------------------------------------------- the table


@cache
def table() -> tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...]:
    """Entries of models.toml: the names of a shape, and the shape with the keys of a config.json."""
    data = tomllib.loads((Path(__file__).parent / "models.toml").read_text(encoding="utf-8"))
    return tuple((tuple(entry["names"]), entry) for entry in data["model"])


def with_owner(name: str) -> str:
    """The whole name on the Hub of a known model that was named without its owner; "" where none is known."""
    return next((one for names, _ in table() for one in names if one.lower().endswith(f"/{name.lower()}")), "")


def _from_table(name: str) -> ModelFacts | None:
    wanted = name.lower()
    for names, entry in table():
        for known in names:
            if known.lower() == wanted:
                return _entry_of_table(name, entry, f"the table of known models ({known})", exact=True)
    own = wanted.rpartition("/")[2]
    best: tuple[str, Mapping[str, Any]] | None = None
    for names, entry in table():
        for known in names:
            base = known.lower().rpartition("/")[2]
            rest = own.removeprefix(base) if own.startswith(base) else None
            if rest is None or (rest and (rest[0] not in "-_." or _OTHER_SHAPE.search(rest))):
                continue
            if best is None or len(base) > len(best[0].rpartition("/")[2]):
                best = known, entry
    return (
        _entry_of_table(name, best[1], f"the table of known models (as {best[0]}, by its name)", exact=False)
        if best
        else None
    )


def _entry_of_table(name: str, entry: Mapping[str, Any], origin: str, *, exact: bool) -> ModelFacts:
    facts = from_config(name, entry, origin)
    quantization = str(entry.get("quantization") or "") if exact or "bf16" not in name.lower() else ""
    gated = entry.get("gated") if exact else None
    return replace(
        facts,
        positions=facts.positions if exact else 0,  # a fork may have been stretched
        quantization=facts.quantization or quantization,
        gated=gated if isinstance(gated, bool) else None,
        weight_bytes=_read_number(entry, "weight_bytes") if exact else 0,
    )
