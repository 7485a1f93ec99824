"""One GPU for two, and what excludes each other."""

from __future__ import annotations

import pytest

from supervisor.jobs.base import GpuPlan
from supervisor.preflight import sharing
from supervisor.preflight.models import ModelFacts
from supervisor.preflight.schema import Field, Schema
from tests.preflight.eras_by_day import EVERY, IDS, JANUARY, JUNE, MARCH, NEWEST, found, of, weights
from tests.preflight.subjects import gpu, site

ONE = "inference_gpu_ids = [0]\ntrainer_gpu_ids = [0]\n"
SAVED = "[trainer.model.ac]\nfreq = 1\n[inference.model]\nenforce_eager = true\n"
SEVEN = ModelFacts("Qwen/Qwen2.5-7B-Instruct", parameters=7_615_616_512)
SMALL = ModelFacts("Qwen/Qwen3-0.6B", parameters=596_049_920)


def shared(utilization: str) -> str:
    said = f"[inference]\ngpu_memory_utilization = {utilization}\n" if utilization else "[inference]\n"
    return ONE + said.replace("[inference]\n\n", "[inference]\n") + SAVED


@pytest.mark.parametrize(
    ("utilization", "expected"),
    [
        ("0.45", {}),
        ("0.5", {}),  # the measured run that trained
        ("0.51", {"shared-gpu-utilization": "warning"}),
        ("0.84", {"shared-gpu-utilization": "warning"}),
        ("0.85", {"shared-gpu-utilization": "error"}),
        ("", {"shared-gpu-utilization": "error"}),  # 0.9
    ],
)
def test_how_much_of_a_shared_gpu_the_engine_may_claim(utilization: str, expected: dict[str, str]) -> None:
    assert weights(sharing.CHECKS, of(JANUARY, shared(utilization), model=SEVEN)) == expected


def test_a_small_model_may_fit_beside_an_engine_of_nine_tenths() -> None:
    lora = shared("") + "[trainer.model.lora]\nrank = 8\n"
    large, small = site(gpus=[gpu(total_gib=80)]), site(gpus=[gpu(total_gib=24)])
    assert weights(sharing.CHECKS, of(JANUARY, lora, model=SMALL, site=large))["shared-gpu-utilization"] == "warning"
    assert weights(sharing.CHECKS, of(JANUARY, lora, model=SMALL, site=small))["shared-gpu-utilization"] == "error"
    # Full training has gradients and moments beside the weights: 16 bytes a parameter.
    full = weights(sharing.CHECKS, of(JANUARY, shared(""), model=SMALL, site=large))
    assert full["shared-gpu-utilization"] == "error"


def test_a_small_model_on_a_large_gpu_leaves_the_engine_more() -> None:
    four = ModelFacts("Qwen/Qwen3-4B", parameters=4_022_468_096)
    text = shared("0.7") + "[trainer.model.lora]\nrank = 8\n"
    for total, expected in ((141, {}), (80, {"shared-gpu-utilization": "warning"})):
        one = of(JANUARY, text, model=four, site=site(gpus=[gpu(total_gib=total)]))
        assert weights(sharing.CHECKS, one) == expected
    assert weights(sharing.CHECKS, of(JANUARY, text, model=four)) == {"shared-gpu-utilization": "warning"}


def test_a_gpu_whose_memory_is_unknown_has_not_none() -> None:
    text = shared("") + "[trainer.model.lora]\nrank = 8\n"
    for pod in (site(gpus=[gpu(used_gib=0, total_gib=0)]), site()):
        assert weights(sharing.CHECKS, of(JANUARY, text, model=SMALL, site=pod)) == {
            "shared-gpu-utilization": "warning"
        }


def test_one_gpu_named_twice_is_shared_in_versions_that_count_too() -> None:
    """A public image does so: the launcher asks for two devices, and CUDA_VISIBLE_DEVICES says 0,0."""
    plan = GpuPlan(["0"], ["0"])
    told = weights(sharing.CHECKS, of(MARCH, "[inference]\n", plan=plan, model=SEVEN))
    assert told == {
        "shared-gpu-utilization": "error",
        "shared-gpu-checkpointing": "warning",
        "shared-gpu-eager": "note",
    }
    halved = "[inference]\ngpu_memory_utilization = 0.45\n"
    saved = weights(sharing.CHECKS, of("9551e20fa", halved, plan=plan, model=SEVEN))
    assert "shared-gpu-checkpointing" not in saved  # on by default since June 2026


def test_two_gpus_are_not_shared_and_an_engine_elsewhere_takes_nothing() -> None:
    two = shared("0.9").replace("trainer_gpu_ids = [0]", "trainer_gpu_ids = [1]")
    assert weights(sharing.CHECKS, of(JANUARY, two, model=SEVEN)) == {}
    assert weights(sharing.CHECKS, of(JANUARY, ONE, model=SEVEN)) == {}


def test_small_models_need_no_savings() -> None:
    plain = ONE + "[inference]\ngpu_memory_utilization = 0.5\n"
    assert weights(sharing.CHECKS, of(IDS, plain, model=SMALL)) == {}
    assert weights(sharing.CHECKS, of(IDS, plain)) == {}  # nobody knows how large it is
    told = {"shared-gpu-checkpointing": "warning", "shared-gpu-eager": "note"}
    assert weights(sharing.CHECKS, of(IDS, plain, model=SEVEN)) == told


OFFLOAD = "[trainer.model]\nfsdp_cpu_offload = true\n"


@pytest.mark.parametrize(
    ("keys", "exact", "expected"),
    [
        ([], True, "error"),  # before 21 January 2026
        ([], False, "warning"),
        (["reload_weights_on_start"], True, "warning"),
    ],
)
def test_cpu_offload_with_lora_until_it_was_mended(keys: list[str], exact: bool, expected: str) -> None:
    below = {name: Field(frozenset({"bool"})) for name in keys}
    schema = Schema({"orchestrator": Field(frozenset({"table"}), below)}, exact=exact)
    text = OFFLOAD + "[trainer.model.lora]\nrank = 8\n"
    assert weights(sharing.CHECKS, of(JANUARY, text, schema=schema)) == {"cpu-offload-with-lora": expected}
    assert weights(sharing.CHECKS, of(JANUARY, OFFLOAD, schema=schema)) == {}
    assert weights(sharing.CHECKS, of(MARCH, text)) == {}


def test_the_adapter_is_found_where_it_stood_until_december_2025() -> None:
    text = OFFLOAD + "[trainer.model.experimental.lora]\nrank = 8\n"
    [one] = found(sharing.CHECKS, of("1a28ff3d9", text))
    assert (one.id, one.weight, one.where.line) == ("cpu-offload-with-lora", "error", 2)
    assert "trainer.model.experimental.lora" in one.sentence


@pytest.mark.parametrize(("era", "twice"), [(MARCH, False), (JUNE, False), (NEWEST, True), (None, False)])
def test_since_when_the_other_offload_is_on_by_default(era: str | None, twice: bool) -> None:
    assert ("cpu-offload-twice" in weights(sharing.CHECKS, of(era, OFFLOAD))) == twice
    assert weights(sharing.CHECKS, of(era, OFFLOAD + "optim_cpu_offload = false\n")) == {}


VLM = '[model.vlm]\nvision_encoder_attr = "a"\nlanguage_model_attr = "b"\n'
BF16 = '[trainer.model]\noptimization_dtype = "bfloat16"\nreduce_dtype = "bfloat16"\n'


def test_vision_asks_for_more_from_version_to_version() -> None:
    assert set(weights(sharing.CHECKS, of(MARCH, VLM))) == {"vision-needs-bfloat16"}
    assert weights(sharing.CHECKS, of(MARCH, VLM + BF16)) == {}
    assert set(weights(sharing.CHECKS, of(NEWEST, VLM + BF16))) == {"vision-needs-custom"}
    assert weights(sharing.CHECKS, of(NEWEST, VLM + BF16 + 'impl = "custom"\n')) == {}
    ring = VLM + BF16 + 'impl = "custom"\ncp = 2\n'
    assert set(weights(sharing.CHECKS, of(NEWEST, ring))) == {"vision-needs-ulysses"}
    assert weights(sharing.CHECKS, of(NEWEST, ring + 'cp_style = "ulysses"\n')) == {}


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "auto", "fa4"])
def test_context_parallelism_with_flash_attention_is_sound(attention: str) -> None:
    text = f'[trainer.model]\ncp = 2\nattn = "{attention}"\n'
    assert weights(sharing.CHECKS, of(JANUARY, text)) == {}
    assert weights(sharing.CHECKS, of(JANUARY, text.replace(attention, "sdpa"))) == {
        "context-parallel-attention": "error"
    }


NCCL = 'inference_gpu_ids = [0]\ntrainer_gpu_ids = [1]\n[weight_broadcast]\ntype = "nccl"\n[inference]\n'


def test_nccl_wants_two_gpus_no_adapter_and_level_one() -> None:
    assert weights(sharing.CHECKS, of("d83dce699", NCCL)) == {}
    assert "nccl-with-lora" in weights(sharing.CHECKS, of("d83dce699", NCCL + "[trainer.model.lora]\nrank = 8\n"))
    level = "max_async_level = 2\n" + NCCL
    assert weights(sharing.CHECKS, of("d83dce699", level)) == {"nccl-async-level": "error"}
    assert weights(sharing.CHECKS, of(NEWEST, level)) == {}  # no such setting any more, and no such limit
    by_default = "[trainer.model.lora]\nrank = 8\n[inference]\n"
    assert weights(sharing.CHECKS, of(NEWEST, by_default)) == {}  # falls back to files by itself


@pytest.mark.parametrize("era", EVERY)
def test_an_empty_configuration_is_left_alone(era: str | None) -> None:
    assert weights(sharing.CHECKS, of(era)) == {}
