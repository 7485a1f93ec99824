"""What an error's own line names is in the advice: the package to install, the two that differ, the setting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.diagnosis.frames import Frame, Raised
from supervisor.diagnosis.own_words import in_its_words, missing_from, name_settings


def raised_in(package: str, text: str) -> Raised:
    name, _, message = text.partition(": ")
    frame = Frame(f"/app/.venv/lib/python3.12/site-packages/{package}/core.py", 7, "run") if package else None
    return Raised(name, message, 1, 9, frame, None)


@pytest.mark.parametrize(
    ("package", "text", "part"),
    [
        ("", "ModuleNotFoundError: No module named 'cv2'", "uv pip install 'opencv-python-headless'"),
        ("trl", "ModuleNotFoundError: No module named 'vllm.lora.models'", "trl wants the module vllm.lora.models"),
        ("", "ImportError: x is missing. Run `pip install liger-kernel`.", "pip install liger-kernel (where"),
        (
            "transformers",
            "ImportError: huggingface-hub>=0.30.0,<1.0 is required for a normal functioning of this module, but x",
            "pip install 'huggingface-hub>=0.30.0,<1.0'",
        ),
        (
            "flashinfer",
            "RuntimeError: flashinfer-cubin version (0.5.2) does not match flashinfer version (0.5.3).",
            "pip install 'flashinfer-cubin==0.5.3'",
        ),
        ("peft", "ImportError: cannot import name 'HybridCache' from 'transformers'", "pip install -U peft"),
        ("trl", "ImportError: cannot import name 'GRPOConfig' from 'trl'", "files of two versions"),
        ("torchao", "AttributeError: module 'torch' has no attribute 'int1'", "torchao wants int1 of torch"),
        ("", "TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'x'", "pip install -U trl"),
        (
            "vllm",
            "RuntimeError: no room. Try lowering `max_num_seqs`. See the stack trace.",
            "Try lowering `max_num_seqs",
        ),
        (
            "trl",
            "ValueError: Unknown loss type: x. Should be one of ['sigmoid', 'hinge']",
            "Should be one of ['sigmoid', 'hinge']",
        ),
        ("torch", "AttributeError: 'GRPOConfig' object has no attribute 'x'", "x of GRPOConfig (trl)"),
        ("", "x.py: error: argument command: invalid choice: 'vllm-serve' (choose from 'dpo')", "has no vllm-serve"),
        (
            "sgl_kernel",
            "ImportError: /opt/lib/python3.12/site-packages/sgl_kernel/a.so: undefined symbol: _ZN3c10",
            "sgl-kernel was built for another torch",
        ),
    ],
)
def test_it_says_what_the_line_names(package: str, text: str, part: str) -> None:
    assert part in in_its_words(text, raised_in(package, text))


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: it failed. Please open an issue.",
        "RuntimeError: see the root cause. Please check the stack trace above.",
        "KeyError: 'answer'",
        "NCCL error. For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    ],
)
def test_it_says_nothing_where_the_line_has_no_advice(text: str) -> None:
    assert in_its_words(text, None) == ""


def test_advice_in_the_lines_below_counts() -> None:
    below = ["Value error, it contains custom code", "Please pass the argument `trust_remote_code=True` to allow it."]
    assert "trust_remote_code=True" in in_its_words("ValidationError: 1 validation error for ModelConfig", None, below)


def test_what_the_remedy_says_already_is_not_said_twice() -> None:
    assert not missing_from("Lower max_num_seqs, or gpu_memory_utilization.", "Try max_num_seqs lower.")
    assert missing_from("Install it there.", "uv pip install 'mergekit'.")


@pytest.mark.parametrize(
    ("trainer", "part"), [("verl", "param_offload"), ("trl", "num_generations"), ("prime_rl", "optim_cpu_offload")]
)
def test_what_decides_over_memory_is_said_as_that_trainer_calls_it(trainer: str, part: str) -> None:
    full = Raised("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", 1, 9, None, None)
    assert part in in_its_words(full.text, replace(full, trainer=trainer))


def test_settings_are_named_as_they_stand_and_files_and_modules_are_not() -> None:
    named = name_settings("Value error, inference.vllm.enable_eplb needs train_batch_size >= 4 (a/train_it_all.py)")
    assert named.endswith("leave it out: inference.vllm.enable_eplb, train_batch_size.")
    below = "trainer.optim.foo\nExtra inputs are not permitted [type=extra_forbidden, input_value=1, input_type=int]"
    assert name_settings(below).endswith(": trainer.optim.foo.")
    assert name_settings("torch.cuda.OutOfMemoryError in train_my_model.py at x.example.com") == ""


def test_a_module_without_the_attribute_is_no_fault_of_torch() -> None:
    text = "AttributeError: 'Qwen3Model' object has no attribute 'lm_head'"
    frame = Frame("/app/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py", 1931, "__getattr__")
    raised = Raised("AttributeError", text.partition(": ")[2], 1, 9, frame, None, trainer="verl")
    assert "verl expects lm_head of Qwen3Model" in in_its_words(text, raised)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("trainer_gpu_ids", "trainer_gpu_ids is deployment.num_train_gpus since 2026-02-24."),
        ("trainer.model.experimental.lora.rank", "is trainer.model.lora.rank since"),
        ("--async-level", "async_level went with prime-rl of 2026-05-25. How stale"),
        ("deployment.num_train_gpus", "before, it was trainer_gpu_ids"),
    ],
)
def test_a_setting_that_prime_rl_renamed_is_told_by_its_name_of_now(key: str, said: str) -> None:
    text = "ValidationError: 1 validation error for RLConfig"
    assert said in in_its_words(text, None, [key, "Extra inputs are not permitted"], of_settings=True)
    assert said not in in_its_words(text, None, [key])


def test_the_service_that_answered_is_named_and_what_its_code_means() -> None:
    asked = "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://u:p@google.serper.dev/search"
    assert in_its_words(asked, None) == "google.serper.dev answered 403: this account may not do that."
    failed = "httpx.HTTPStatusError: Server error '503 Service Unavailable' for url 'https://api.example.com/v1'"
    assert in_its_words(failed, None).startswith("api.example.com answered 503: it failed, or was not up")
