"""Lines that people posted (names and hosts replaced): what is named, and never silence."""

# ruff: noqa: E501 (lines of logs stay whole)

from __future__ import annotations

import io

import pytest

from supervisor.diagnosis.causes import diagnose
from supervisor.diagnosis.scan import scan

BEGUN = "Traceback (most recent call last):"
PACKAGES = "/opt/conda/lib/python3.12/site-packages"
THREADS: dict[str, tuple[str, list[str]]] = {
    "WM-PO/WMPO#3": (
        "ray-memory-full",
        [
            "(raylet) [2025-12-07 09:57:19,206 E 39 39] (raylet) node_manager.cc:3277: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 8289, IP: 10.0.0.4) over the last time period.",
            BEGUN,
            f'  File "{PACKAGES}/ray/_private/worker.py", line 2755, in get',
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            "\tclass_name: WorkerDict",
        ],
    ),
    "NVIDIA/nccl#1653": (
        "cuda-not-starting",
        [
            "pod7:1689:2800 [0] NCCL INFO init.cc:1929 -> 1",
            "2025-03-21 17:08:31,569 - trainers - ERROR - Error during training: NCCL error in: NCCLUtils.hpp:268, unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Last error:",
            "Cuda failure 999 'unknown error'",
            "wandb:",
            "wandb: You can sync this run to the cloud by running:",
        ],
    ),
    "NVIDIA/Megatron-LM#516": (
        "shared-memory-full",
        [
            "[pod7:5283 :0:5704] Caught signal 7 (Bus error: nonexistent physical address)",
            "==== backtrace (tid:   5704) ====",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "  exitcode  : -7 (pid: 31789)",
            "  traceback : Signal 7 (SIGBUS) received by PID 31789",
        ],
    ),
    "vllm-project/vllm#4077": ("bus-error", ["[1]    817166 bus error  python3 serve.py"]),
    "mosaicml/llm-foundry#258": ("bus-error", ["ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7."]),
    "StarsfieldAI/R1-V#69": (
        "sampling-not-finite",
        [
            f"  0%|{' ' * 240}| 1/4016 [00:24<27:11:00, 24.37s/it]{BEGUN}",
            f'  File "{PACKAGES}/transformers/generation/utils.py", line 3413, in _sample',
            "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        ],
    ),
    "huggingface/trl#3304": (
        "versions-differ",
        [
            BEGUN,
            f'  File "{PACKAGES}/vllm/entrypoints/llm.py", line 212, in __init__',
            "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'worker_extension_cls'",
        ],
    ),
    "huggingface/trl#3622": (
        "connection-refused",
        [
            BEGUN,
            f'  File "{PACKAGES}/requests/adapters.py", line 682, in send',
            "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
            " 12%|#2        | 120/1000 [10:00<1:13:20,  5.00s/it]",
        ],
    ),
    "NVIDIA/nccl#1405": (
        "nccl-network",
        [
            "pod7:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.5<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
            "[rank4]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited or there was a network error",
        ],
    ),
    "vllm-project/vllm#10812": (
        "engine-dead",
        [
            "ERROR 12-01 13:05:02 client.py:282] RuntimeError('Engine process (pid 76) died.')",
            "CRITICAL 12-01 13:05:02 launcher.py:99] MQLLMEngine is already dead, terminating server process",
            "INFO:     Shutting down",
        ],
    ),
    "bigcode-project/Megatron-LM#27": (
        "wandb-service-failed",
        [
            "2023-02-17 22:40:24,367 (worker_7) : Traceback (most recent call last):",
            '2023-02-17 22:40:24,367 (worker_7) :   File "/app/worker.py", line 89, in run',
            "2023-02-17 22:40:24,367 (worker_7) : wandb.errors.UsageError: Error communicating with wandb process",
        ],
    ),
    "verl-project/verl#1165": (
        "hydra-config-invalid",
        [BEGUN, '  File "/app/main_ppo.py", line 64, in main', "omegaconf.errors.ConfigAttributeError: Key 'reward_model' is not in struct"],
    ),
    "verl-project/verl#1785": (
        "sizes-do-not-divide",
        [BEGUN, '  File "/app/fsdp_workers.py", line 64, in f', "AssertionError: rollout world_size: 1 is not divisible by infer_tp: 2"],
    ),
    "bghira/SimpleTuner#1880": (
        "unknown",
        [
            f"2025-10-31 03:11:02,478 - Tuner - INFO - [rank0]: {BEGUN} (RANK 4)",
            f'2025-10-31 03:11:02,478 - Tuner - INFO - [rank0]:   File "{PACKAGES}/torch/distributed/checkpoint/state_dict_loader.py", line 250, in local_step',
            "2025-10-31 03:11:02,478 - Tuner - INFO - [rank0]: AssertionError",
        ],
    ),
    "a notebook": (
        "unknown",
        [
            f"KeyError                                  {BEGUN[:-1]}",
            "Cell In[7], line 3",
            "      1 def f(x):",
            '----> 3     return x["answer"]',
            "",
            "KeyError: 'answer'",
        ],
    ),
    "tencent-ailab/IP-Adapter#209": (
        "hub-unreachable",
        ["OSError: We couldn't connect to 'https://huggingface.co' to load this model, couldn't find it in the cached files"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("root", "lines"), THREADS.values(), ids=list(THREADS))
def test_what_a_thread_is_about_is_named(root: str, lines: list[str]) -> None:
    told = diagnose(scan(io.BytesIO("\n".join([*lines, ""]).encode()), "out.txt"))[-1]
    assert told.root is not None
    assert told.root.name == root


@pytest.mark.parametrize(("root", "lines"), THREADS.values(), ids=list(THREADS))
def test_the_same_lines_are_survived_where_steps_come_after_them(root: str, lines: list[str]) -> None:
    steps = ["{'loss': 2.0, 'epoch': 0.01}", "{'loss': 2.1, 'epoch': 0.02}", "{'loss': 2.2, 'epoch': 0.03}"]
    told = diagnose(scan(io.BytesIO("\n".join([*lines, *steps, *["a line"] * 4]).encode()), "out.txt"))[-1]
    assert told.root is None, root
