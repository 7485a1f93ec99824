"""Estimates of disk and GPU memory: true to what was measured, sure where they stop a run, else silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs import preflight as page
from supervisor.config.settings import RunFile
from supervisor.jobs.base import GpuPlan
from supervisor.preflight import disk_space, estimate_inputs, gpu_memory
from supervisor.preflight import memory_estimate as memory
from supervisor.preflight.finding import Finding
from supervisor.preflight.memory_estimate import GIB, EngineSetup, Interval, Lora, TrainerSetup
from supervisor.preflight.models import ModelFacts, facts_of
from supervisor.preflight.site import Gpu, Volume
from tests.preflight.subjects import gpu, site, subject, volume
from tests.primerl.eras import ERAS

CHECKS = (*gpu_memory.CHECKS, *disk_space.CHECKS)
ROOT = Path(__file__).parents[2]
ONE, TWO = GpuPlan(["0"], ["0"]), GpuPlan(["0"], ["1"])
H100 = [gpu(index, total_gib=79.65, name="NVIDIA H100 80GB HBM3") for index in range(2)]
A6000 = [gpu(index, total_gib=48, name="NVIDIA RTX A6000") for index in range(2)]

SHARED = """\
inference_gpu_ids = [0]
trainer_gpu_ids = [0]

[model]
name = "Qwen/Qwen2.5-7B-Instruct"

[trainer.model]
seq_len = 2048

[trainer.model.ac]
freq = 1

[trainer.model.lora]
rank = 8

[inference]
gpu_memory_utilization = 0.50

[inference.model]
enforce_eager = true
max_model_len = 4096
"""
APART = """\
inference_gpu_ids = [0]
trainer_gpu_ids = [1]

[model]
name = "Qwen/Qwen3-8B"

[trainer.model]
seq_len = 4096

[trainer.model.lora]
rank = 8

[inference]
gpu_memory_utilization = 0.90

[inference.model]
enforce_eager = true
"""


def known(name: str) -> ModelFacts:
    facts = facts_of(name, {}, Path("/nonexistent"))
    assert facts is not None
    return facts


def found(
    text: str,
    *,
    plan: GpuPlan = TWO,
    gpus: list[Gpu] | None = None,
    era: str | None = "be0e3d131",
    model: str | ModelFacts | None = "",
    volumes: Mapping[str, Volume] | None = None,
    **given: Any,
) -> list[Finding]:
    """What the checks of this module find."""
    name = text.partition('name = "')[2].partition('"')[0]
    facts = known(model or name) if isinstance(model, str) else model
    one = subject(
        text,
        model=facts,
        plan=plan,
        dialect=ERAS[era].dialect if era else None,
        site=site(gpus=H100 if gpus is None else gpus, volumes=volumes or {}),
        **given,
    )
    return [finding for check in CHECKS for finding in check(one)]


def only(findings: list[Finding], name: str) -> Finding:
    assert [one.id for one in findings] == [name], [(one.id, one.sentence) for one in findings]
    return findings[0]


def run_file(**sections: Any) -> RunFile:
    return RunFile.model_validate({"run": {"id": "x"}, "job": {"dir": ".", "config": "rl.toml"}, **sections})


# ---------------------------------------------------------------- against measured figures


@pytest.mark.parametrize("row", list(page.disk()), ids=lambda row: row.what)
def test_disk_is_within_fifteen_percent_of_what_was_measured(row: Any) -> None:
    assert abs(row.error) <= 0.15


@pytest.mark.parametrize("row", [row for row in page.gpu() if row.counts], ids=lambda row: row.what)
def test_gpu_memory_that_people_read_is_inside_the_interval(row: Any) -> None:
    assert row.inside, f"{row.measured} is outside {row.estimate}"


@pytest.mark.parametrize("row", list(page.benchmarks()), ids=lambda row: row.what)
def test_no_peak_of_the_benchmarks_is_outside_the_interval(row: Any) -> None:
    assert row.inside, f"{row.measured} is outside {row.estimate}"


def test_the_high_end_is_mostly_near_the_peak() -> None:
    ratios = sorted(row.estimate.high / row.high for row in page.benchmarks())
    assert ratios[len(ratios) // 2] < 1.15


# ---------------------------------------------------------------- GPU memory


def test_the_run_that_trained_on_one_gpu_is_no_cause_for_alarm() -> None:
    note = only(found(SHARED, plan=ONE), "gpu-memory-estimate")
    assert note.weight == "note"
    assert "weights 28.4" in note.sentence


def test_its_first_attempt_without_checkpointing_may_not_fit_and_checkpointing_would_help() -> None:
    text = SHARED.replace("[trainer.model.ac]\nfreq = 1\n", "").replace("0.50", "0.45")
    finding = only(found(text, plan=ONE), "shared-gpu-memory-tight")
    assert finding.weight == "warning"
    assert finding.where.line == 15
    assert "gpu_memory_utilization = 0.45" in finding.sentence
    assert "[trainer.model.ac] with freq = 1" in finding.remedy


def test_an_engine_with_seven_tenths_leaves_no_room_for_a_trainer() -> None:
    finding = only(found(SHARED.replace("0.50", "0.7"), plan=ONE), "shared-gpu-out-of-memory")
    assert finding.weight == "error"
    assert "set inference.gpu_memory_utilization = 0.50" in finding.remedy


def test_a_share_in_the_extra_table_of_vllm_is_the_engines_share() -> None:
    text = SHARED.replace("gpu_memory_utilization = 0.50\n", "[inference.vllm_extra]\ngpu_memory_utilization = 0.7\n")
    finding = only(found(text, plan=ONE), "shared-gpu-out-of-memory")
    assert "set inference.vllm_extra.gpu_memory_utilization = 0.50" in finding.remedy


def test_gpt_oss_on_a_gpu_with_48_gb_cannot_be_loaded() -> None:
    text = APART.replace("Qwen/Qwen3-8B", "openai/gpt-oss-20b")
    finding = only(found(text, gpus=A6000), "trainer-out-of-memory")
    assert finding.weight == "error"
    assert (finding.where.line, finding.where.key) == (5, "model.name")
    assert "weights 78.3" in finding.sentence


def test_a_frozen_base_in_bfloat16_is_half_as_large() -> None:
    small = [gpu(index, total_gib=24, name="RTX 4090") for index in range(2)]
    text = APART.replace("4096", "2048").replace("0.90", "0.95\nvllm.max_model_len = 2048")
    finding = only(found(text, gpus=small), "trainer-out-of-memory")
    assert 'optimization_dtype = "bfloat16" in [trainer.model]' in finding.remedy
    half = text.replace("seq_len = 2048", 'optimization_dtype = "bfloat16"\nseq_len = 1024\nac.freq = 1', 1)
    only(found(half, gpus=small), "gpu-memory-estimate")


def test_the_run_on_two_h100_fits() -> None:
    only(found(APART), "gpu-memory-estimate")


def test_a_full_sequence_without_checkpointing_may_be_too_much() -> None:
    finding = only(found(APART.replace("4096", "16384")), "trainer-memory-tight")
    assert finding.weight == "warning"
    assert finding.where.line == 8
    assert "[trainer.model.ac]" in finding.remedy


def test_since_june_2026_activations_are_checkpointed_without_a_word() -> None:
    text = APART.replace("inference_gpu_ids = [0]\ntrainer_gpu_ids = [1]\n", "").replace("4096", "16384")
    assert [one.id for one in found(f"{text}[deployment]\n", era="d334ea529")] == ["gpu-memory-estimate"]
    off = text.replace("seq_len", 'ac = "None"\nac_offloading = "None"\nseq_len')
    assert "activations" in only(found(f"{off}[deployment]\n", era="d334ea529"), "trainer-memory-tight").sentence


def test_training_all_parameters_of_a_7b_model_takes_more_than_one_gpu() -> None:
    text = SHARED.replace("[trainer.model.lora]\nrank = 8\n", "").replace(
        "trainer_gpu_ids = [0]", "trainer_gpu_ids = [1]"
    )
    finding = only(found(text), "trainer-out-of-memory")
    assert "optimizer 56.7" in finding.sentence
    assert "[trainer.model.lora]" in finding.remedy


@pytest.mark.parametrize("key", ["fsdp_cpu_offload = true", "full_offload = true"])
def test_what_is_offloaded_is_not_held(key: str) -> None:
    text = SHARED.replace("[trainer.model.lora]\nrank = 8\n", "").replace("seq_len", f"{key}\nseq_len")
    assert "trainer-out-of-memory" not in [one.id for one in found(text)]


def test_an_engine_needs_one_sequence_of_its_longest_context() -> None:
    small = [gpu(index, total_gib=24, name="RTX 4090") for index in range(2)]
    text = APART.replace("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B").replace(
        "seq_len = 4096", "fsdp_cpu_offload = true"
    )
    finding = only(found(text, gpus=small), "engine-out-of-memory")
    assert finding.weight == "error"
    assert "131072 tokens 16.0" in finding.sentence
    assert "max_model_len to 50176" in finding.remedy
    shorter = text.replace("enforce_eager = true", "max_model_len = 8192")
    assert "engine-out-of-memory" not in [one.id for one in found(shorter, gpus=small)]


def test_weights_in_four_bits_are_counted_as_their_files() -> None:
    assert memory.engine_weights(known("openai/gpt-oss-20b"), EngineSetup()) == 13761264768
    assert memory.engine_weights(known("openai/gpt-oss-120b"), EngineSetup(gpus=2)) == 65248815744 / 2


@pytest.mark.parametrize(
    "given",
    [
        {"model": None},
        {"model": ModelFacts("x")},
        {"model": replace(known("Qwen/Qwen3-8B"), parameters=0)},
        {"gpus": []},
        {"plan": GpuPlan()},
        {"plan": GpuPlan(["7"], ["8"])},
        {"kind": "command"},
        {"kind": "vf-rl"},
    ],
)
def test_what_is_not_known_is_no_cause_for_complaint(given: dict[str, Any]) -> None:
    assert {one.weight for one in found(APART.replace("4096", "65536"), **given)} <= {"note"}


def test_several_machines_have_gpus_that_are_not_seen_here() -> None:
    text = APART.replace("Qwen/Qwen3-8B", "zai-org/GLM-4.5-Air")
    assert found(f'{text}\n[deployment]\ntype = "multi_node"\n', era="63331ad8b") == []
    assert found(f'{text}\n[slurm]\njob_name = "x"\n', era="63331ad8b") == []


def test_of_a_configuration_alone_the_command_line_may_have_given_more_gpus() -> None:
    text = APART.replace("inference_gpu_ids = [0]\ntrainer_gpu_ids = [1]\n", "").replace("Qwen3-8B", "Qwen3-32B")
    assert found(text) == []
    assert "trainer-out-of-memory" in [one.id for one in found(text, run_file=run_file())]


ODD = ["true", "[]", "{}", '"x"', "-1", "0", "1e400", "99999999999999999999", "9" * 400, "1.5"]
KEYS = [
    "trainer.model.seq_len", "trainer.model.ac.freq", "trainer.model.lora.rank", "trainer.model.lora.target_modules",
    "trainer.model.optimization_dtype", "trainer.model.cp", "trainer.model.dp_replicate", "trainer.model.ac_offloading",
    "trainer.model.fused_lm_head_token_chunk_size", "trainer.model.fused_lm_head_chunk_size", "trainer.optim.type",
    "inference.gpu_memory_utilization", "inference.vllm.max_model_len", "inference.parallel.tp", "inference.model.name",
    "max_steps", "ckpt.keep_last", "ckpt.interval", "trainer.ckpt.weights", "inference.vllm.kv_cache_dtype",
    "orchestrator.seq_len", "orchestrator.micro_batch_size", "trainer.model.full_offload", "deployment.type",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_odd_values_never_raise(key: str) -> None:
    volumes = {"output": volume(), "hf-cache": volume()}
    for value in ODD:
        text = f'trainer_gpu_ids = [1]\nmodel.name = "Qwen/Qwen3-8B"\ninference.x = 1\n{key} = {value}\n'
        for era in ("be0e3d131", None):
            found(text, era=era, interval=5, max_steps=100, volumes=volumes, run_file=run_file())


def test_endless_numbers_of_steps_are_no_forecast() -> None:
    assert [one.id for one in disk(1000, max_steps=10**400)] == []


def test_of_layers_of_an_unknown_kind_only_what_is_certain_is_said() -> None:
    facts = replace(known("Qwen/Qwen3-8B"), active_parameters=0)
    note = only(found(APART.replace("4096", "65536"), model=facts), "gpu-memory-estimate")
    assert "32.4 GiB at least" in note.sentence
    small = [gpu(index, total_gib=24) for index in range(2)]
    assert "trainer-out-of-memory" in [one.id for one in found(APART, model=facts, gpus=small)]


def test_patterns_for_modules_are_understood() -> None:
    text = APART.replace("rank = 8", 'rank = 8\ntarget_modules = [".*_proj$", "(", 7]')
    setup = estimate_inputs.adapter(subject(text))
    assert setup is not None
    assert set(setup.targets) == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_adapters_of_a_known_run_are_counted() -> None:
    # Qwen3-8B, rank 8: 8 x (2 x 8192 + 2 x 5120 + 3 x 16384) x 36
    lora = Lora(8, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "experts"))
    assert memory.lora_parameters(known("Qwen/Qwen3-8B"), lora) == 21_823_488


def test_what_is_trained_whole_beside_adapters_gets_moments() -> None:
    facts, targets = known("Qwen/Qwen3-8B"), ("q_proj",)
    adapters = memory.trained_parameters(facts, Lora(8, targets))
    both = memory.trained_parameters(facts, Lora(8, targets, ("embed_tokens", "lm_head")))
    assert both - adapters == 2 * 151936 * 4096
    tied = known("Qwen/Qwen3-4B")
    one = memory.trained_parameters(tied, Lora(8, targets, ("lm_head",)))
    assert one - memory.trained_parameters(tied, Lora(8, targets)) == 151936 * 2560


def test_more_gpus_need_less_each_and_longer_sequences_more() -> None:
    facts = known("Qwen/Qwen3-8B")
    one, four = (memory.trainer(facts, TrainerSetup(gpus=count)).total for count in (1, 4))
    assert four.low < one.low / 3
    assert memory.trainer(facts, TrainerSetup(tokens=8192)).total.high > one.high
    assert memory.trainer(facts, TrainerSetup(tokens=8192)).total.low == one.low


def test_an_interval_says_both_ends() -> None:
    assert str(Interval(1.5 * GIB, 2 * GIB)) == "1.5 to 2.0 GiB"


# ---------------------------------------------------------------- disk


def disk(free_gib: float, text: str = APART, **given: Any) -> list[Finding]:
    given = {"interval": 5, "max_steps": 1000, "run_file": run_file(store={"url": "b2://bucket-x"}), **given}
    all_of_it = found(text, volumes={"output": volume("/", total_gib=4000, free_gib=free_gib)}, **given)
    return [one for one in all_of_it if one.id.startswith("disk")]


def test_65_gb_do_not_hold_two_steps_of_47_gb() -> None:
    finding = only(disk(65e9 / GIB), "disk-too-small")
    assert finding.weight == "error"
    assert "65 GB free" in finding.sentence
    assert "a checkpoint takes 49 GB" in finding.sentence


def test_what_is_kept_and_what_is_being_written_must_fit_at_once() -> None:
    finding = only(disk(110), "disk-tight")
    assert finding.weight == "warning"
    assert "keep_local = 2" in finding.sentence
    assert [one.id for one in disk(1000)] == ["disk-forecast"]
    assert disk(20000) == []


def test_without_a_store_nothing_is_deleted() -> None:
    finding = only(disk(1000, run_file=run_file()), "disk-full-before-end")
    assert "200 of them" in finding.sentence
    assert "[store] url" in finding.remedy
    kept = disk(1000, f"{APART}\n[ckpt]\nkeep_last = 3\n", run_file=run_file())
    assert [one.id for one in kept] == ["disk-forecast"]


def test_a_step_on_the_disk_is_believed_before_any_estimate() -> None:
    told = only(disk(60, steps={5: 40_000_000_000}), "disk-tight").sentence
    assert "as step 5 on this disk" in told
    assert "56 GB" in told  # 40 and the copy of the weights


def test_since_august_2026_no_copy_of_the_weights_is_written() -> None:
    plain = "[deployment]\n" + APART.replace("inference_gpu_ids = [0]\ntrainer_gpu_ids = [1]\n", "")
    assert "33 to 49 GB" in only(disk(70, plain, era="e26b50503"), "disk-tight").sentence
    off = f"{plain}\n[ckpt]\nweights = false\n"
    assert "takes 33 GB" in only(disk(70, off, era="e26b50503"), "disk-tight").sentence


def test_the_last_checkpoint_alone_must_fit_where_no_other_is_written() -> None:
    assert disk(60, interval=None) == []
    only(disk(40, interval=None), "disk-too-small")


def test_nothing_is_said_of_disks_where_nothing_is_saved() -> None:
    assert disk(10, run_file=None) == []
    assert [one.id for one in disk(10, f"{APART}\n[ckpt]\ninterval = 5\n", run_file=None)] == ["disk-too-small"]


@pytest.mark.parametrize("there", [{"job_lives": True}, {"gpus": []}])
def test_beside_a_job_that_lives_or_where_no_gpu_is_a_full_disk_is_a_warning(there: dict[str, Any]) -> None:
    one = subject(
        APART,
        model=known("Qwen/Qwen3-8B"),
        interval=5,
        max_steps=1000,
        run_file=run_file(),
        site=site(volumes={"output": volume(free_gib=20)}, **there),
    )
    assert [(finding.id, finding.weight) for check in CHECKS for finding in check(one)] == [
        ("disk-too-small", "warning")
    ]


def test_a_quota_counts_as_the_volume() -> None:
    run = run_file(store={"url": "b2://bucket-x"}, disk={"capacity_gb": 80})
    [one] = disk(4000, run_file=run)
    assert (one.id, "counts for 80 GB ([disk] capacity_gb)" in one.sentence) == ("disk-too-small", True)


def test_a_download_that_does_not_fit() -> None:
    def downloads(**cache: float) -> list[Finding]:
        volumes = {"hf-cache": volume("/cache", **cache)}
        return [one for one in found(APART, volumes=volumes) if one.id == "model-download-space"]

    assert [one.weight for one in downloads(total_gib=100, free_gib=10)] == ["warning"]
    assert [one.weight for one in downloads(total_gib=10, free_gib=10)] == ["error"]
    assert downloads(total_gib=100, free_gib=20) == []


def test_a_model_that_is_here_is_not_fetched() -> None:
    facts = replace(known("Qwen/Qwen3-8B"), local=True)
    volumes = {"hf-cache": volume("/cache", total_gib=10, free_gib=1)}
    assert "model-download-space" not in [one.id for one in found(APART, model=facts, volumes=volumes)]
