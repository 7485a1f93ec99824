"""What an error's own line names is in the advice: the package to install, the two that differ, the setting."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.frames import Frame, Raised
from supervisor.diagnosis.own_words import in_its_words, missing_from


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
