"""Models that cannot be trained: certain where the version is known, a warning where it is not, silence elsewhere."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.jobs.base import GpuPlan
from supervisor.preflight import model_support, rules
from supervisor.preflight.finding import Finding
from supervisor.preflight.model_support import CHECKS
from supervisor.preflight.models import ModelFacts, facts_of, from_config
from tests.preflight.subjects import gpu, site, subject
from tests.primerl.eras import ERAS

NOWHERE = Path("/nonexistent")
ADAPTER = "[trainer.model.lora]\nrank = 8\n"
TOOLS = "[inference.model]\nenable_auto_tool_choice = true\n"


def found(
    name: str,
    more: str = "",
    *,
    era: str | None = "be0e3d131",
    facts: ModelFacts | None = None,
    versions: Mapping[str, str] | None = None,
    gpus: tuple[str, ...] = (),
    **given: Any,
) -> list[Finding]:
    one = subject(
        f'max_steps = 10\n[model]\nname = "{name}"\n{more}',
        model=facts or facts_of(name, {}, NOWHERE),
        dialect=ERAS[era].dialect if era else None,
        plan=GpuPlan(["0"], ["1"]),
        site=site(versions=versions or {}, gpus=[gpu(index, name=told) for index, told in enumerate(gpus)] or None),
        **{"roots": [Path("/prime-rl")], **given},
    )
    return [finding for check in CHECKS for finding in check(one)]


def told(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(one.id, one.weight) for one in findings]


def local(**config: Any) -> ModelFacts:
    return replace(from_config("x", config, "a test"), local=True)


@pytest.mark.parametrize(
    ("name", "more", "era", "expected"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", ADAPTER, "017b3fe71", ("model-vision-not-trainable", "error")),
        ("Qwen/Qwen3-VL-8B-Instruct", ADAPTER, "be0e3d131", ("model-vision-not-trainable", "warning")),
        ("Qwen/Qwen2.5-VL-7B-Instruct", ADAPTER, "f870f3cbd", ("model-vision-not-trainable", "error")),
        ("mistralai/Ministral-3-8B-Base-2512", ADAPTER, "017b3fe71", ("model-type-unknown", "error")),
        ("Qwen/Qwen3.5-4B", ADAPTER, "1826b1892", ("model-type-unknown", "error")),
        ("openai/gpt-oss-20b", "", "017b3fe71", ("model-weight-reload", "error")),
        ("openai/gpt-oss-20b", ADAPTER, "4b3372824", ("model-weight-reload", "error")),
        ("openai/gpt-oss-20b", ADAPTER, "017b3fe71", ("model-weight-reload", "warning")),
        ("mistralai/mistral-small-3.2-24b-instruct", "", "be0e3d131", ("model-name-elsewhere", "error")),
        ("Qwen3-0.6B", "", "be0e3d131", ("model-name-elsewhere", "error")),
        ("qwen2.5-7b-instruct", "", None, ("model-name-elsewhere", "error")),
        ("z-ai/glm-4.5-air", "", None, ("model-name-elsewhere", "warning")),
        ("Qwen/Qwen3-8B-AWQ", "", "be0e3d131", ("model-quantized", "error")),
        ("someone/unheard-of-GGUF", "", None, ("model-quantized", "error")),
        ("Qwen/Qwen3-8B-FP8", "", "be0e3d131", ("model-quantized", "warning")),
        ("Qwen/Qwen3-Embedding-8B", "", "be0e3d131", ("model-not-generative", "warning")),
        ("BAAI/bge-m3", "", "be0e3d131", ("model-not-generative", "warning")),
        ("Qwen/Qwen3-8B", TOOLS, "be0e3d131", ("model-chat-template", "note")),
        ("arcee-ai/Trinity-Mini", "", "017b3fe71", ("model-newer-than-trainer", "warning")),
        ("Qwen/Qwen3.5-4B", "", "d334ea529", ("model-vision-not-resumable", "warning")),
        ("outputs/run/weights/step_100", "", "be0e3d131", ("model-path-missing", "error")),
        ("/models/mine", "", "be0e3d131", ("model-path-missing", "error")),
        ("~/models/mine", "", None, ("model-path-missing", "error")),
    ],
)
def test_a_model_that_fails(name: str, more: str, era: str | None, expected: tuple[str, str]) -> None:
    findings = found(name, more, era=era)
    assert told(findings) == [expected], [one.sentence for one in findings]
    assert findings[0].where.line == 3
    assert name in findings[0].sentence


@pytest.mark.parametrize(
    ("name", "more", "era"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", ADAPTER, "be0e3d131"),
        ("willcb/Qwen3-8B", ADAPTER, "be0e3d131"),
        ("Qwen/Qwen3-4B-Instruct-2507", "", "ceb60c03f"),
        ("Qwen/Qwen3-8B", ADAPTER, "d334ea529"),
        ("Qwen/Qwen3-VL-4B-Instruct", ADAPTER, "d334ea529"),
        ("Qwen/Qwen3.5-4B", ADAPTER, "d334ea529"),
        ("openai/gpt-oss-20b", ADAPTER, "d334ea529"),
        ("unsloth/gpt-oss-20b-BF16", "", "be0e3d131"),
        ("mistralai/Ministral-8B-Instruct-2410", "", "be0e3d131"),
        ("mistralai/Mistral-Small-24B-Instruct-2501", "", "be0e3d131"),
        ("zai-org/GLM-4.5-Air", "", "be0e3d131"),
        ("someone/qwen3-8b-reward-hacking-sft", "", "be0e3d131"),
        ("someone/embedded-systems-8b", "", "be0e3d131"),
        ("someone/what-nobody-knows", "", "be0e3d131"),
        ("Qwen/Qwen3-8B", ADAPTER, "be0e3d131"),
        ("Qwen/Qwen3-8B", TOOLS, None),
        ("willcb/Qwen3-8B", TOOLS, "be0e3d131"),
        ("gpt2", "", "be0e3d131"),
        ("", "", "be0e3d131"),
    ],
)
def test_a_model_that_is_sound_is_no_cause_for_complaint(name: str, more: str, era: str | None) -> None:
    assert found(name, more, era=era) == []


def test_the_installed_transformers_is_believed_before_any_day() -> None:
    name = "mistralai/Ministral-3-8B-Base-2512"
    assert told(found(name, versions={"transformers": "4.57.6"})) == [("model-type-unknown", "error")]
    assert found(name, versions={"transformers": "5.2.0.dev0"}) == []
    assert told(found(name)) == [("model-type-unknown", "warning")]
    assert told(found("openai/gpt-oss-20b", ADAPTER, era="d334ea529", versions={"transformers": "4.54.0"})) == [
        ("model-type-unknown", "error")
    ]


def test_since_july_2026_only_one_kind_is_trained_with_its_vision_encoder() -> None:
    vlm = '[model.vlm]\nvision_encoder_attr = "model.visual"\nlanguage_model_attr = "model.language_model"\n'
    name = "Qwen/Qwen3-VL-4B-Instruct"
    assert found(name, vlm, era="06c54dde7") == []
    assert told(found(name, vlm, era="289562d2e")) == [("model-vision-not-trainable", "error")]
    assert found("Qwen/Qwen3.5-4B", vlm, era="289562d2e") == []


def test_gpt_oss_wants_a_hopper() -> None:
    name, newest = "openai/gpt-oss-20b", "289562d2e"
    assert told(found(name, ADAPTER, era=newest, gpus=("NVIDIA A100-SXM4-80GB",) * 2)) == [
        ("model-needs-hopper", "error")
    ]
    assert found(name, ADAPTER, era=newest, gpus=("NVIDIA H100 80GB HBM3",) * 2) == []
    assert found(name, ADAPTER, era=newest, gpus=("", "")) == []
    assert found(name, ADAPTER, era=newest) == []


def test_what_the_files_say_goes_before_the_name() -> None:
    text = local(model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    assert found("someone/Qwen3-VL-8B", era="017b3fe71", facts=replace(text, name="someone/Qwen3-VL-8B")) == []
    judge = local(model_type="llama", architectures=["LlamaForSequenceClassification"])
    assert told(found("someone/judge", facts=replace(judge, name="someone/judge"))) == [
        ("model-not-generative", "error")
    ]
    seeing = local(model_type="qwen3_vl")
    assert told(found("/m", era="017b3fe71", facts=replace(seeing, name="/m"))) == [
        ("model-vision-not-trainable", "error")
    ]


def test_a_folder_that_is_there_is_no_missing_path() -> None:
    facts = replace(local(model_type="qwen3"), name="/models/mine")
    assert found("/models/mine", facts=facts) == []


def test_on_another_machine_a_missing_folder_is_a_warning() -> None:
    assert told(found("/models/mine", roots=[])) == [("model-path-missing", "warning")]


def test_a_file_for_evaluations_trains_nothing() -> None:
    one = subject('[model]\nname = "openai/gpt-oss-120b"\n', dialect=ERAS["017b3fe71"].dialect)
    assert [finding for check in CHECKS for finding in check(one)] == []


def test_a_plain_command_has_no_model() -> None:
    assert found("~/x", kind="command") == []


@pytest.mark.parametrize("value", ["7", "[]", "{}", "true", '"\\u0000"', '"a b"'])
def test_odd_names_never_raise(value: str) -> None:
    one = subject(f"[model]\nname = {value}\n", dialect=ERAS["be0e3d131"].dialect)
    for check in CHECKS:
        list(check(one))


def test_each_entry_has_a_rule_and_each_rule_an_entry() -> None:
    named = {entry.rule for entry in model_support.table()}
    assert named <= set(rules())
    path = Path(model_support.__file__).parent / "rules" / "model_support.toml"
    ours = {rule["id"] for rule in tomllib.loads(path.read_text())["rule"]}
    assert ours - named == {"model-path-missing"}
