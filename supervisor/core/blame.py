"""Which failures a checkpoint can cause, and which it cannot: only the first kind may speak against a step.

A quarantine holds for all pods, so what belongs to one pod (a kill, its memory, a port, a GPU), to the network, to the
configuration, or to an engine that says nothing of weights, never counts. ``tests/core/test_table_causes.py`` holds
these lists to the signatures that exist: each of them is in one.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from supervisor.core.launcher import names_no_reader
from supervisor.core.proof import CULPRIT_S, Verdict, killed_from_outside
from supervisor.core.recurring import gpu_faults_to_blame
from supervisor.core.state import Error, Failure, State

UNREADABLE = ("checkpoint-damaged", "checkpoint-failed", "checkpoint-missing")
WEIGHTS = (
    *(*UNREADABLE, "checkpoint-other-*", "*-not-finite", "engine-weight-*", "engine-weights-*", "load-refused"),
    *("resume-checkpoint-missing", "dataloader-state-missing", "optimizer-state-unfit", "megatron-checkpoint-differs"),
    *("weights-*", "torch-load-refused", "pickled-class-missing", "sglang-logits-nan", "adapter-files-missing"),
)
# A part of the job ends by itself, and says that it does: the weights may be why.
CRASHED = (
    *("exit-*", "fatal-error", "python-error", "component-failed", "child-failed", "task-stopped", "aborted"),
    *("segfault", "cublas-error", "cudnn-error", "cuda-illegal-access", "collective-mismatch", "packer-stalled"),
    *("batch-empty", "empty-loss-mask", "data-used-up", "weights-not-updated", "lora-not-loaded"),
    *("token-out-of-range", "ray-worker-died", "file-missing", "task-exited", "index-kernel-out-of-bounds"),
    *("negative-tokens-decoded", "shapes-differ", "batch-not-collated", "checkpointing-recomputes-otherwise"),
    *("sglang-scheduler-died", "sglang-stuck", "main-program-failed"),
)
# What comes in healthy hours, too, and says nothing of why a job ended.
NOISE = (
    *("connection-*", "event-loop-busy", "rollouts-aborted", "max-tokens-too-large", "prompt-too-long"),
    *("reward-function-error", "environment-code-failed", "sandbox-failed", "judge-refused", "tool-parser-off"),
    *("batch-dropped", "proxy-in-between", "ray-actor-not-created", "provider-*", "sandbox-*", "request-*"),
    *("judge-content-refused", "judge-model-unknown", "judge-parameter-refused", "judge-region-refused"),
    "judge-too-slow",
    *("http-pool-empty", "client-closed", "tool-server-gone", "tunnel-failed", "answer-*", "prompt-*", "tls-cut"),
    *("numpy-two", "no-systemd", "cpu-stalled", "slurm-step-waits", "object-store-slow", "program-already-ending"),
)
ELSEWHERE = (
    *("gpu-*", "xid-*", "driver-*", "fabric-manager-missing", "machine-fault", "nccl-*", "gloo-*"),
    *("rendezvous-*", "torch-without-cuda", "segfault-cuda-context", "devices-mixed", "host-*", "oom-killer"),
    *("killed", "ended-from-outside", "threads-exhausted", "too-many-files", "bus-error", "shared-memory-full"),
    *("*disk-full", "volume-*", "cache-not-writable", "permission-denied", "port-in-use", "hub-*", "wandb-*"),
    *("name-not-resolved", "*key-missing", "judge-unpaid", "config-*", "run-folder-used", "environment-*"),
    *("module-missing", "packages-*", "program-missing", "library-*", "glibc-*", "toolkit-*", "compile*"),
    *("model-*", "tokenizer-*", "chat-template-missing", "engine-*", "inference-*", "router-gone"),
    *("kv-cache-too-small", "*start-failed", "ray-*", "checkpoint-not-written", "hydra-config-invalid"),
    *("sizes-do-not-divide", "padding-token-missing", "token-prefix-mismatch", "versions-differ", "preempted"),
    *("time-limit-reached", "clock-wrong", "browser-missing", "chat-template-refused", "data-file-broken"),
    *("timer-outside-main-thread", "expandable-segments-refused", "certificate-refused", "socket-path-too-long"),
    *("deepspeed-*", "number-formats-mixed", "padding-on-the-right", "graph-used-twice", "main-not-guarded"),
    *("data-loader-died", "pickle-refused", "flashinfer-gpu-unfit", "loss-scale-at-minimum", "arguments-differ"),
    *("dataset-*", "gradients-unused", "instruction-failed", "columns-removed", "sft-columns-missing", "no-*"),
    *("accelerate-missing", "adapter-*", "attention-unsupported", "flash-attention-missing", "bitsandbytes-*"),
    *("gguf-*", "apptainer-*", "container-*", "docker-*", "image-*", "harness-needs-container", "pod-*"),
    *("probe-killed", "apt-failed", "conda-failed", "pip-*", "git-failed", "command-*", "python-too-old"),
    *("numpy-*", "protobuf-differs", "cloud-*", "address-not-here", "base-url-wrong", "network-unreachable"),
    *("socks-proxy", "ssh-refused", "tls-*", "cuda-*", "deepgemm-missing", "decoder-missing", "llvm-refused"),
    *("triton-*", "nvidia-*", "nv*-failed", "efa-failed", "infiniband-mixed", "inforom-corrupt", "mig-unfit"),
    *("node-failed", "nixl-*", "slurm-*", "mpi-start-refused", "master-unreachable", "rank-late"),
    *("local-rank-argument", "gpus-fewer-*", "fsdp-*", "megatron-dataset-not-built", "process-group-missing"),
    *("remote-code-*", "reward-not-defined", "trl-*", "trainer-*", "generation*", "learning-rate-is-text"),
    *("quantized-*", "rope-config-unfit", "special-token-missing", "tokenizers-too-old", "processor-missing"),
    *("images-without-vlm", "sequence-too-long", "tensors-shared", "litellm-*", "openai-*", "header-illegal"),
    *("hf-transfer-missing", "event-loop-mixed", "module-shadowed", "file-*", "lock-*", "text-not-utf8"),
    *("json-types-unfit", "tracker-refused", "quantile-too-large", "start-method-set-twice", "torch-without-libuv"),
    *("random-state-refused", "reward-result-unfit", "schedule-without-steps"),
    *("script-with-windows-line-ends", "system-library-missing", "watches-exhausted", "argument-renamed"),
)
ROOT_S = 60.0  # before the end: what is said by then may have caused it, whichever line came last
SOON = 5  # steps after the checkpoint: what a bad checkpoint breaks, it breaks by then
TWICE = 2


def is_one_of(cause: str, patterns: Iterable[str]) -> bool:
    """``patterns`` as of a shell."""
    return any(fnmatchcase(cause, pattern) for pattern in patterns)


def is_elsewhere(cause: str) -> bool:
    """Does this cause lie elsewhere than in a checkpoint?"""
    return is_one_of(cause, ELSEWHERE) and not is_one_of(cause, (*WEIGHTS, *CRASHED, *NOISE))


def may_be_the_checkpoint(state: State, verdict: Verdict) -> bool:
    """Can the step that the attempt resumed at have caused ``verdict``?

    A job that ended by itself, or a part of it that is gone and said that it crashed, and nothing near that end that
    lies elsewhere. What hangs, or is gone without a word, says nothing of a checkpoint.
    """
    ended = state.job.ended
    end = ended.t if ended is not None else state.now
    near = [error for error in state.job.errors.values() if end - error.t < ROOT_S]
    said = {error.signature for error in near}
    if verdict.kind == "exited":
        if ended is None or killed_from_outside(ended):
            return False
    elif not any(_says_it_crashed(error, verdict) for error in near):
        return False
    if not verdict.cause.endswith("-gone"):
        said.add(verdict.cause)
    if gpu_faults_to_blame(state):
        return False
    return not any(is_elsewhere(one) for one in said) and not any(map(names_no_reader, near))


def _says_it_crashed(error: Error, verdict: Verdict) -> bool:
    """Does this line say that what is gone ended by itself?"""
    own = error.role != "env" and verdict.cause == f"{error.role}-gone" and is_one_of(error.signature, CRASHED)
    return own or is_one_of(error.signature, WEIGHTS)


def is_unreadable(state: State, verdict: Verdict) -> bool:
    """Does the job itself say that it cannot read the step it was to resume at, before it made any?"""
    if state.progress.step is not None or not may_be_the_checkpoint(state, verdict):
        return False
    end = state.job.ended.t if state.job.ended is not None else state.now
    said = (error.signature for error in state.job.errors.values() if end - error.t < CULPRIT_S)
    return any(one in UNREADABLE for one in said)


def suspects(state: State) -> list[Failure]:
    """The failures since the last new complete step that speak against the present resume step."""
    step = state.attempt.resume_step
    return [one for one in state.recovery.failures if step is not None and one.suspect == step]


def at_one_place(failures: list[Failure]) -> bool:
    """Did two of them come at one place: soon after the step that they speak against, or at the very same step?"""
    places = [_place(one) for one in failures]
    return any(places.count(place) >= TWICE for place in places)


def _place(failure: Failure) -> int:
    """The step at which it came; all that come soon after the checkpoint are one place."""
    begin = failure.suspect or 0
    return begin if failure.step is None else max(failure.step - SOON, begin)
