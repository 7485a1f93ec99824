"""What is known of a model: from its own config.json, from the cache, or from the table, and never wrongly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from supervisor.preflight import models
from supervisor.preflight.models import ModelFacts, facts_of, from_config

NOWHERE = Path("/nonexistent")
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def known(name: str) -> ModelFacts:
    facts = facts_of(name, {}, NOWHERE)
    assert facts is not None, name
    return facts


def model_folder(folder: Path, config: Mapping[str, Any] = QWEN3_8B, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content))
    return folder


def test_the_shapes_of_the_table_make_the_published_parameter_counts() -> None:
    for name, entry in ((name, entry) for names, entry in models.table() for name in names):
        assert entry["published"], f"{name}: an entry whose count nobody published cannot be checked"
        assert known(name).parameters == pytest.approx(entry["published"], rel=1e-4), name


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-8B", 8.19),
        ("Qwen/Qwen2.5-7B-Instruct", 7.62),
        ("openai/gpt-oss-20b", 20.9),
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03),
        ("Qwen/Qwen3-30B-A3B", 30.5),
        ("zai-org/GLM-4.5-Air", 106.9),
    ],
)
def test_models_have_the_size_that_everybody_quotes(name: str, billions: float) -> None:
    assert known(name).parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_experts_that_sleep_are_not_counted_as_active() -> None:
    assert known("Qwen/Qwen3-30B-A3B").active_parameters / 1e9 == pytest.approx(3.3, rel=0.02)
    small = known("openai/gpt-oss-20b")  # its card says 3.6 B, without the embedding that is only looked up
    assert (small.active_parameters - small.vocabulary * small.hidden) / 1e9 == pytest.approx(3.6, rel=0.02)
    assert known("Qwen/Qwen3-8B").active_parameters == known("Qwen/Qwen3-8B").parameters


def test_no_name_stands_twice_in_the_table() -> None:
    names = [name.lower() for names, _ in models.table() for name in names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("fork", "original"),
    [
        ("willcb/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B"),
        ("PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT", "Qwen/Qwen3-0.6B"),
        ("willcb/Qwen3-1.7B-Wordle", "Qwen/Qwen3-1.7B"),
        ("willcb/DeepSeek-R1-Distill-Qwen-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        ("NousResearch/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("unsloth/gpt-oss-20b-BF16", "openai/gpt-oss-20b"),
    ],
)
def test_a_fork_has_the_shape_of_the_model_whose_name_it_carries(fork: str, original: str) -> None:
    assert known(fork).parameters == known(original).parameters


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-VL-8B-Instruct",
        "Qwen/Qwen3-Embedding-8B",
        "someone/Qwen3-8B-Draft-0.5B",
        "nvidia/Qwen3-8B-DFlash-b16",
        "yuhuili/Qwen3-8B-eagle3",
        "someone/Qwen3-80B",
        "someone/my-own-model",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "",
        "\0",
        "/",
        "..",
    ],
)
def test_a_name_that_only_looks_alike_is_not_known(name: str) -> None:
    assert facts_of(name, {}, NOWHERE) is None


def test_a_fork_says_nothing_of_its_context_nor_of_who_may_have_it() -> None:
    fork = known("someone/Meta-Llama-3.1-8B-long")
    assert fork.positions == 0
    assert fork.gated is None
    assert known("meta-llama/Llama-3.1-8B").gated is True


def test_quantized_weights_are_seen_by_the_name() -> None:
    assert known("Qwen/Qwen3-8B-AWQ").quantization == "awq"
    assert known("bartowski/Qwen3-8B-GGUF").quantization == "gguf"
    assert known("openai/gpt-oss-20b").quantization == "mxfp4"
    assert known("unsloth/gpt-oss-20b").quantization == "mxfp4"
    assert known("unsloth/gpt-oss-20b-BF16").quantization == ""


def test_a_local_folder_is_read_and_goes_before_the_table(tmp_path: Path) -> None:
    model_folder(tmp_path / "models" / "mine", {**QWEN3_8B, "num_hidden_layers": 18})
    facts = facts_of("models/mine", {}, tmp_path)
    assert facts is not None
    assert (facts.layers, facts.local, facts.gated) == (18, True, False)
    assert facts.parameters < 5e9


def test_a_snapshot_in_the_cache_is_read(tmp_path: Path) -> None:
    snapshot = model_folder(tmp_path / "snapshots" / "abc")
    facts = facts_of("someone/secret-8b", {"someone/secret-8b": snapshot}, tmp_path)
    assert facts is not None
    assert facts.parameters == 8190735360
    assert "cache" in facts.origin


def test_the_weight_files_give_the_count_where_the_layers_are_of_an_unknown_kind(tmp_path: Path) -> None:
    config = {**QWEN3_8B, "model_type": "nemotron_h"}
    folder = model_folder(
        tmp_path / "m", config, model__safetensors__index__json={"metadata": {"total_size": 17_000_000_000}}
    )
    facts = facts_of(str(folder), {}, NOWHERE)
    assert facts is not None
    assert facts.parameters == 8_500_000_000
    assert facts.weight_bytes == 17_000_000_000


def test_a_download_that_was_broken_off_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 9}, "weight_map": shards})
    )

    def is_whole() -> bool:
        facts = facts_of("own/half", {"own/half": tmp_path}, tmp_path / "elsewhere")
        return facts is not None and facts.whole

    assert not is_whole()
    (tmp_path / "model-1.safetensors").write_text("x")
    (tmp_path / "model-2.safetensors").symlink_to(tmp_path / "blobs/not-there")
    assert not is_whole()
    (tmp_path / "model-2.safetensors").unlink()
    (tmp_path / "model-2.safetensors").write_text("x")
    assert is_whole()
    (tmp_path / "model.safetensors.index.json").unlink()
    assert is_whole()
    for shard in shards.values():
        (tmp_path / shard).unlink()
    assert not is_whole()
    (tmp_path / "pytorch_model.bin").write_text("x")
    assert is_whole()


def test_layers_of_an_unknown_kind_without_weights_have_no_count(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", {**QWEN3_8B, "model_type": "deepseek_v3"})
    facts = facts_of(str(folder), {}, NOWHERE)
    assert facts is not None
    assert facts.parameters == 0
    assert facts.layers == 36


def test_of_a_model_that_sees_the_language_part_is_read() -> None:
    config = {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": {**QWEN3_8B, "model_type": "qwen3_vl_text"},
        "vision_config": {"depth": 27},
    }
    facts = from_config("x", config, "a test")
    assert (facts.model_type, facts.hidden, facts.parameters) == ("qwen3_vl", 4096, 0)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"model_type": 7, "hidden_size": "4096", "num_hidden_layers": -1, "vocab_size": True},
        {**QWEN3_8B, "num_attention_heads": 0, "head_dim": None},
        {**QWEN3_8B, "text_config": [], "architectures": "Qwen3", "quantization_config": []},
        {**QWEN3_8B, "hidden_size": 10**30},
        {**QWEN3_8B, "num_experts": 128},
    ],
)
def test_an_odd_config_gives_less_and_never_raises(odd: dict[str, Any], tmp_path: Path) -> None:
    facts = facts_of(str(model_folder(tmp_path / "m", odd)), {}, NOWHERE)
    assert facts is not None
    assert facts.parameters >= 0


@pytest.mark.parametrize("text", ["", "[]", "not json", '{"a": ' * 5000])
def test_what_is_no_config_is_no_model(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert facts_of(str(tmp_path), {}, NOWHERE) is None
