"""Which process is which, by title in the later eras and by command line in the earlier ones."""

# ruff: noqa: E501 (golden lines stay whole)

from __future__ import annotations

import pytest

from supervisor.primerl.processes import Kind, classify

VENV = "/root/prime-rl/.venv/bin"


@pytest.mark.parametrize(
    ("title", "comm", "kind"),
    [
        # 06c54dde7 (2026-04-01) and later: titles
        ("PRIME-RL::Launcher", "PRIME-RL::Launc", ("launcher", False)),
        ("PRIME-RL::Inference", "PRIME-RL::Infer", ("inference", True)),
        ("PRIME-RL::Orchestrator", "PRIME-RL::Orche", ("orchestrator", True)),
        ("PRIME-RL::Trainer", "PRIME-RL::Train", ("trainer", True)),
        ("PRIME-RL::SFTTrainer", "PRIME-RL::SFTTr", ("trainer", True)),
        ("PRIME-RL::SFT", "PRIME-RL::SFT", ("launcher", False)),
        ("PRIME-RL::EnvServer", "PRIME-RL::EnvSe", ("env", True)),
        ("Verifiers::EnvWorker3", "Verifiers::EnvW", ("env", False)),
        # only comm to be had
        ("", "PRIME-RL::Infer", ("inference", True)),
        ("", "VLLM::EngineCor", ("inference", True)),
        ("", "python3", None),
        # vLLM's titles, all eras
        ("VLLM::EngineCore", "VLLM::EngineCor", ("inference", True)),
        ("VLLM::EngineCore_DP0", "VLLM::EngineCor", ("inference", True)),
        ("VLLM::Worker_TP1", "VLLM::Worker_TP", ("inference", False)),
        ("VLLM::APIServer_1", "VLLM::APIServer", ("inference", False)),
        # ceb60c03f .. 1692a67d9: command lines of the launchers' Popen calls and of the console scripts
        ("uv run rl @ /root/config.toml --ckpt.interval 5", "uv", ("launcher", False)),
        (f"{VENV}/python3 {VENV}/rl @ /root/config.toml", "rl", ("launcher", False)),
        ("uv run inference @ .pydantic_config/temp_1.toml", "uv", ("inference", False)),
        (f"{VENV}/python3 {VENV}/inference @ .pydantic_config/temp_1.toml", "inference", ("inference", True)),
        ("uv run orchestrator @ .pydantic_config/temp_2.toml", "uv", ("orchestrator", False)),
        (f"{VENV}/python {VENV}/orchestrator @ outputs/configs/orchestrator.toml", "python", ("orchestrator", True)),
        ("uv run torchrun --rdzv-endpoint=localhost:1 -m prime_rl.trainer.rl.train @ x.toml", "uv", ("trainer", False)),
        (
            "uv run env PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun --nproc-per-node=1",
            "uv",
            ("trainer", False),
        ),
        (
            f"{VENV}/python3 {VENV}/torchrun --nproc-per-node=2 -m prime_rl.trainer.rl.train @ x",
            "pt",
            ("trainer", False),
        ),
        (f"{VENV}/python3 -u -m prime_rl.trainer.rl.train @ x.toml", "python3", ("trainer", True)),
        (f"{VENV}/python3.12 -m prime_rl.trainer.sft.train @ x.toml", "python3", ("trainer", True)),
        ("python3 /root/prime-rl/src/prime_rl/trainer/rl/train.py @ x.toml", "python3", ("trainer", True)),
        # of no interest
        ("tail -F outputs/logs/trainer.stdout", "tail", None),
        (f"{VENV}/python3 -c from multiprocessing.resource_tracker import main;main(7)", "python3", None),
        (f"{VENV}/python3 -c from multiprocessing.spawn import spawn_main; spawn_main(1)", "python3", None),
        ("uv run env", "uv", None),
        ("uv sync --all-extras", "uv", None),
        ("bash -c inference @ x", "bash", None),
        ("grep inference @ notes", "grep", None),
        ("", "", None),
        ("   ", "sh", None),
        # d62c7539e and later, before the title is set; and the router
        ("inference @ outputs/configs/inference.toml", "inference", ("inference", True)),
        ("vllm-router --policy x --worker-urls http://localhost:8100", "vllm-router", ("inference", False)),
    ],
)
def test_processes_of_every_era(title: str, comm: str, kind: Kind) -> None:
    assert classify(title, comm) == kind


def test_sft_is_the_trainer_itself_in_the_early_eras() -> None:
    line = f"{VENV}/python3 {VENV}/sft @ sft.toml"
    assert classify(line, "sft", sft_is_trainer=True) == ("trainer", True)
    assert classify(line, "sft") == ("launcher", False)


def test_a_command_line_of_megabytes_is_no_trouble() -> None:
    assert classify("python3 " + "x" * 10_000_000, "python3") is None
