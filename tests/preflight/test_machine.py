"""What of a pod stops a run, and what of it does not: each check over pods that are written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.settings import RunFile
from supervisor.jobs.base import GpuPlan
from supervisor.preflight import machine
from supervisor.preflight.finding import Finding
from supervisor.preflight.models import ModelFacts
from supervisor.preflight.site import Site
from supervisor.preflight.subject import Subject
from supervisor.primerl.dialect import Dialect
from tests.preflight.subjects import GIB, gpu, ids, site, subject, volume
from tests.primerl.eras import ERAS, write_checkout

TWO = GpuPlan(["0"], ["1"])


def look(over: Subject) -> list[Finding]:
    return [one for check in machine.CHECKS for one in check(over)]


def pod(text: str = "", plan: GpuPlan = TWO, **given: Any) -> Subject:
    return subject(text, plan=plan, site=site(**given))


def the_only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    assert found[0].rule.id == found[0].id  # every id has its rule
    return found[0]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Dialect:
    from supervisor.primerl.probe import probe

    folder = tmp_path_factory.mktemp("prime-rl")
    write_checkout(folder, ERAS["63331ad8b"])
    return probe([folder / "src/prime_rl"])


def test_a_pod_of_which_nothing_is_known_gives_no_finding() -> None:
    assert look(subject("inference_gpu_ids = [7]", plan=GpuPlan(["7"], ["8"]))) == []


def test_a_sound_pod_gives_no_finding() -> None:
    sound = pod(
        gpus=[gpu(0), gpu(1)],
        driver="570.86.15",
        driver_cuda="12.8",
        torch="2.8.0+cu128",
        torch_cuda="12.8",
        memory_bytes=1000 * GIB,
        nofile=(65536, 1 << 20),
        nproc=(100_000, 100_000),
        shm=volume("/dev/shm", "tmpfs", 64, 64),
        volumes={"output": volume("/workspace", "ext4"), "state": volume(), "hf-cache": volume()},
    )
    assert look(sound) == []


# ---------------------------------------------------------------- GPUs


def test_a_laptop_without_a_gpu_is_a_warning_and_no_error() -> None:
    assert the_only(look(pod(gpus=[]))).weight == "warning"


def test_a_gpu_that_is_not_there_is_named_with_its_line(deployment: Dialect) -> None:
    text = "max_steps = 5\ninference_gpu_ids = [0]\ntrainer_gpu_ids = [1]\n"
    over = replace(pod(text, gpus=[gpu(0)]), dialect=deployment)
    found = the_only(look(over))
    assert (found.id, found.where.line, found.weight) == ("gpu-missing", 3, "error")
    assert found.sentence == "The run wants GPU 1, and this pod has 1 GPU (0)."


def test_without_a_known_dialect_the_numbers_are_a_guess_and_a_missing_one_no_error() -> None:
    assert the_only(look(pod(gpus=[gpu(0)]))).weight == "warning"


def test_a_gpu_by_its_uuid_is_known() -> None:
    assert look(pod(plan=GpuPlan(["GPU-1"], ["GPU-0"]), gpus=[gpu(0), gpu(1)])) == []
    whole = replace(gpu(0), uuid="GPU-8a1b2c3d-0000-1111-2222-333344445555")
    assert look(pod(plan=GpuPlan([], ["GPU-8a1b2c3d"]), gpus=[whole])) == []  # CUDA takes the beginning, too


def test_fewer_visible_gpus_than_the_deployment_asks_for(deployment: Dialect) -> None:
    text = "[deployment]\nnum_train_gpus = 2\nnum_infer_gpus = 2\n[inference]\n"
    over = replace(pod(text, environ={"CUDA_VISIBLE_DEVICES": "0,1,2"}), dialect=deployment)
    found = the_only(look(over))
    assert (found.id, found.where.line) == ("gpus-not-visible", 2)
    assert "4 GPUs" in found.sentence
    assert "shows 3" in found.sentence
    assert look(replace(over, site=Site(environ={"CUDA_VISIBLE_DEVICES": "0,1,2,3"}))) == []


def test_a_strangers_engine_on_our_inference_gpu_is_an_error_that_names_it() -> None:
    stranger = [(4711, "pid 4711 of user anna (vllm serve)", 60)]
    found = the_only(look(pod(gpus=[gpu(0, 60, processes=stranger), gpu(1)])))
    assert (found.id, found.weight) == ("gpu-busy", "error")
    assert "60 GiB of GPU 0's 80 GiB are taken by pid 4711 of user anna (vllm serve)" in found.sentence
    assert "72 GiB of it free (0.9 of the whole)" in found.sentence


def test_what_a_small_utilization_leaves_room_for_is_only_a_warning() -> None:
    text = "[inference]\ngpu_memory_utilization = 0.45\n"
    stranger = [(4711, "jupyter", 5)]
    found = the_only(look(pod(text, gpus=[gpu(0, 5, processes=stranger), gpu(1)])))
    assert found.weight == "warning"
    assert "pid 4711 (jupyter)" in found.sentence


def test_a_stranger_on_a_gpu_that_the_run_does_not_use_is_none_of_its_business() -> None:
    assert look(pod(gpus=[gpu(0), gpu(1), gpu(2, 70, processes=[(9, "x", 70)])])) == []


def test_hidden_tenants_are_no_certain_failure() -> None:
    found = the_only(look(pod(gpus=[gpu(0, 60, processes=None), gpu(1)])))
    assert found.weight == "warning"
    assert "that this container does not see" in found.sentence


def test_our_own_living_run_is_no_stranger() -> None:
    busy = [gpu(0, 70, processes=[(1, "VLLM::EngineCore", 70)]), gpu(1, 70, processes=[(2, "trainer", 70)])]
    assert look(pod(gpus=busy, ports={8000: "pid 1"}, job_lives=True)) == []


def test_a_blackwell_gpu_needs_a_build_for_cuda_12_8() -> None:
    new = [gpu(0, capability=(12, 0), name="NVIDIA GeForce RTX 5090"), gpu(1)]
    found = the_only(look(pod(gpus=new, torch="2.6.0+cu124", torch_cuda="12.4", driver_cuda="12.8")))
    assert found.id == "gpu-too-new"
    assert "RTX 5090" in found.sentence
    assert look(pod(gpus=new, torch="2.8.0+cu128", torch_cuda="12.8", driver_cuda="12.8")) == []


def test_a_turing_gpu_is_warned_of() -> None:
    assert ids(look(pod(gpus=[gpu(0, capability=(7, 5)), gpu(1, capability=(7, 5))]))) == ["gpu-too-old"]


# ---------------------------------------------------------------- driver, libraries, variables


@pytest.mark.parametrize(
    ("torch_cuda", "driver_cuda", "expected"),
    [
        ("12.8", "12.4", ["driver-older-than-torch"]),
        ("13.0", "12.8", ["driver-too-old"]),
        ("12.8", "13.0", []),
        ("12.8", "12.8", []),
        ("12.8", "", []),
        ("", "12.4", []),
        ("odd", "12.4", []),
    ],
)
def test_driver_and_torch_of_one_cuda_generation_go_together(
    torch_cuda: str, driver_cuda: str, expected: list[str]
) -> None:
    over = pod(
        gpus=[gpu(0), gpu(1)], torch="" if not torch_cuda else "2.9.0", torch_cuda=torch_cuda, driver_cuda=driver_cuda
    )
    assert ids(look(over)) == expected


def test_a_torch_for_cpus_beside_gpus_is_an_error_and_one_for_rocm_is_not() -> None:
    assert ids(look(pod(gpus=[gpu(0), gpu(1)], torch="2.8.0+cpu"))) == ["torch-without-cuda"]
    assert look(pod(gpus=[gpu(0), gpu(1)], torch="2.8.0+rocm6.3")) == []


MODEL = '[model]\nname = "Qwen/Qwen3-8B"\n'


def test_offline_and_not_in_the_cache_can_only_fail() -> None:
    given: dict[str, Any] = {"environ": {"HF_HUB_OFFLINE": "1"}, "hf_cache": Path("/cache/hub")}
    found = the_only(look(pod(MODEL, **given)))
    assert (found.id, found.where.line) == ("offline-without-model", 2)
    assert look(pod(MODEL, **given, hf_models={"Qwen/Qwen3-8B": Path("/x")})) == []
    assert look(pod('[model]\nname = "/models/mine"\n', **given)) == []
    assert look(pod(MODEL, environ={"HF_HUB_OFFLINE": "0"}, hf_cache=Path("/cache/hub"))) == []


def test_a_folder_of_the_job_needs_no_download_and_half_a_download_does() -> None:
    given: dict[str, Any] = {"hf_cache": Path("/cache/hub"), "environ": {"HF_HUB_OFFLINE": "1"}}
    own = replace(pod('[model]\nname = "sft/final"\n', **given), model=ModelFacts("sft/final", local=True))
    assert look(own) == []
    half = pod(MODEL, **given, hf_models={"Qwen/Qwen3-8B": Path("/x")})
    for whole in (False, True):
        facts = ModelFacts("Qwen/Qwen3-8B", local=True, weight_bytes=1, whole=whole)
        assert ids(look(replace(half, model=facts))) == ([] if whole else ["offline-without-model"])


def test_a_pod_image_that_asks_for_hf_transfer_without_installing_it() -> None:
    environ = {"HF_HUB_ENABLE_HF_TRANSFER": "1"}
    old = {"huggingface_hub": "0.36.0"}
    assert the_only(look(pod(MODEL, environ=environ, versions=old))).weight == "error"
    cached = {"Qwen/Qwen3-8B": Path("/x")}
    assert the_only(look(pod(MODEL, environ=environ, versions=old, hf_models=cached))).weight == "warning"
    assert look(pod(MODEL, environ=environ, versions={**old, "hf_transfer": "0.1.9"})) == []
    assert look(pod(MODEL, environ=environ, versions={"huggingface_hub": "1.2.0"})) == []
    assert look(pod(MODEL, environ=environ)) == []


def test_a_variable_that_old_notes_recommend_and_nothing_reads() -> None:
    environ = {"VLLM_USE_V1": "0"}
    assert the_only(look(pod(environ=environ, versions={"vllm": "0.12.0"}))).weight == "note"
    assert look(pod(environ=environ, versions={"vllm": "0.10.2"})) == []


def test_a_port_of_kubernetes_is_none_for_vllm() -> None:
    environ = {"VLLM_PORT": "tcp://10.0.0.1:80"}
    assert ids(look(pod("[inference]\n", environ=environ))) == ["vllm-port-uri"]
    assert look(pod(environ=environ)) == []  # no engine is started here
    assert look(pod("[inference]\n", environ={"VLLM_PORT": "29800"})) == []


# ---------------------------------------------------------------- ports and limits


def test_a_taken_port_is_named_with_its_holder_and_its_key() -> None:
    text = "[inference.server]\nport = 8000\n"
    found = the_only(look(pod(text, ports={8100: "pid 7 of user bob (nginx)"})))
    assert (found.id, found.where.line) == ("port-in-use", 2)
    assert "Port 8100" in found.sentence
    assert "pid 7 of user bob (nginx)" in found.sentence


def test_a_hard_limit_of_32000_files_is_warned_of_and_a_low_setting_is_found_in_the_run_file() -> None:
    assert ids(look(pod(nofile=(32000, 32000)))) == ["open-files-low"]
    run = RunFile.model_validate({"run": {"id": "x"}, "job": {"dir": "/x", "config": "c.toml", "nofile": 4096}})
    over = replace(pod(nofile=(4096, 1 << 20)), run_file=run, run_path=Path("run.toml"))
    found = the_only(look(over))
    assert (found.where.file, found.where.key) == ("run.toml", "job.nofile")


def test_podmans_default_of_processes_is_a_note_and_a_tenth_of_it_a_warning() -> None:
    assert the_only(look(pod(nproc=(2048, 2048)))).weight == "note"
    assert the_only(look(pod(nproc=(200, 200)))).weight == "warning"


def test_dockers_64_megabytes_of_shared_memory_matter_with_several_gpus_for_one_model() -> None:
    shm = volume("/dev/shm", "tmpfs", 1 / 16, 1 / 16)
    assert look(pod(shm=shm)) == []
    found = the_only(look(pod(plan=GpuPlan(["0", "1"], ["2"]), shm=shm)))
    assert "64 MiB" in found.sentence
    assert "the engine has 2 GPUs" in found.sentence


def test_an_optimizer_that_does_not_fit_into_memory() -> None:
    text = "[trainer.model]\nfsdp_cpu_offload = true\n"
    model = ModelFacts("Qwen/Qwen3-32B", parameters=32_800_000_000)
    over = replace(pod(text, memory_bytes=128 * GIB), model=model)
    found = the_only(look(over))
    assert (found.id, found.weight, found.where.line) == ("offload-over-memory", "warning", 2)
    given = replace(over, site=site(memory_bytes=128 * GIB, gpus=[gpu(0), gpu(1)]))
    assert the_only(look(given)).weight == "error"
    laptop = replace(over, site=site(memory_bytes=16 * GIB, gpus=[]))
    assert the_only(look(laptop)).id == "no-gpu"  # the pod has other memory
    several = subject(f'{text}[deployment]\ntype = "multi_node"\n', model=model, site=given.site)
    assert "offload-over-memory" not in ids(look(several))  # each has its part
    assert look(replace(over, site=site(memory_bytes=1000 * GIB))) == []
    lora = text + "[trainer.model.lora]\nrank = 8\n"
    assert look(replace(pod(lora, memory_bytes=128 * GIB), model=model)) == []


# ---------------------------------------------------------------- volumes


def test_checkpoints_in_memory() -> None:
    assert ids(look(pod(volumes={"output": volume("/tmp", "tmpfs")}))) == ["output-in-memory"]


def test_a_containers_own_layer_matters_only_where_there_is_a_volume() -> None:
    layer = {"output": volume("/", "overlay"), "hf-cache": volume("/", "overlay")}
    run = RunFile.model_validate({"run": {"id": "x"}, "job": {"dir": "/x", "config": "c.toml"}})
    over = replace(pod(volumes=layer, container=True), run_file=run, run_path=Path("run.toml"))
    assert look(over) == []
    given = replace(over, site=replace(over.site, persistent=[volume("/workspace", "nfs4", 2000, 1500)]))
    found = look(given)
    assert [(one.id, one.weight) for one in found] == [
        ("output-in-container", "warning"),
        ("hf-cache-in-container", "note"),
    ]
    assert "HF_HOME=/workspace/huggingface" in found[1].remedy
    stored = RunFile.model_validate({**run.model_dump(exclude_unset=True), "store": {"url": "b2://bucket-name/x"}})
    assert [one.weight for one in look(replace(given, run_file=stored))] == ["note", "note"]


ODD = """
model = [1, 2]
inference_gpu_ids = "all"
trainer_gpu_ids = { a = 1 }
deployment = 3
inference = "yes"
[trainer]
model = 7
"""


def test_odd_values_never_raise(deployment: Dialect) -> None:
    over = replace(
        pod(
            ODD, plan=GpuPlan(["x"], ["y"]), gpus=[gpu(0, 70, processes=[(1, "", 70)])], environ={"HF_HUB_OFFLINE": "1"}
        ),
        dialect=deployment,
        model=ModelFacts("x", parameters=1),
    )
    look(over)
