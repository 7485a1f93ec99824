"""The process tree of a practice run: titles, command lines, parents and environments, as each era shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.practice.conftest import LONG, Make
from tests.practice.run import Practice, wait_until

PARENTS = {
    "2026-01-06": ["trainer-rank", "torchrun", "uv", "rl"],
    "2026-08-21": ["trainer-rank", "torchrun", "rl"],
}


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def chain_of(practice: Practice, role_of: dict[int, str]) -> list[str]:
    """From the trainer up to the launcher."""
    chain = []
    (pid,) = practice.pids("trainer-rank")
    while pid in role_of:
        chain.append(role_of[pid])
        pid = parent(pid)
    return chain


def running(make: Make, era: str) -> Practice:
    practice = make(era, max_steps=500)
    practice.start()
    wait_until(lambda: practice.trained_steps(), "a step")
    return practice


@pytest.mark.soak
@pytest.mark.parametrize("era", LONG)
def test_names_parents_and_environments_are_the_eras_own(era: str, make: Make) -> None:
    practice = running(make, era)
    if practice.era.titles:  # nothing that makes steps waits for the environment's worker to have its title
        wait_until(
            lambda: any(command_line(pid) == "Verifiers::EnvWorker0" for pid in practice.pids("env-worker")),
            "the environment's worker",
        )
    role_of = practice.alive()
    shown = {role: command_line(pid) for pid, role in role_of.items() if role != "uv"}
    binaries = f"{practice.home}/.venv/bin"

    assert shown["engine-core"] == "VLLM::EngineCore"
    assert shown["torchrun"].startswith(f"{binaries}/python3 {binaries}/torchrun ")
    assert shown["tail"].startswith("tail -F ") or shown["tail"].startswith("/bin/sh -c tail -F ")
    if practice.era.titles:
        assert shown["rl"] == "PRIME-RL::Launcher"
        assert shown["inference"] == "PRIME-RL::Inference"
        assert shown["orchestrator"] == "PRIME-RL::Orchestrator"
        assert shown["trainer-rank"] == "PRIME-RL::Trainer"
        assert shown["env-worker"] == "Verifiers::EnvWorker0"
        assert {shown.get("env-server"), shown.get("env-server-child")} & {
            "PRIME-RL::EnvServer",
            "Verifiers::EnvServer",
        }
    else:
        assert shown["rl"].startswith(f"{binaries}/python3 {binaries}/rl @ ")
        assert shown["inference"].startswith(f"{binaries}/python3 {binaries}/inference @ .pydantic_config/temp_")
        assert "-u -m prime_rl.trainer.rl.train @ .pydantic_config/temp_" in shown["trainer-rank"]
        wrappers = sorted(command_line(pid) for pid in practice.pids("uv"))
        assert [line.split()[:3] for line in wrappers] == [
            ["uv", "run", "env"],
            ["uv", "run", "inference"],
            ["uv", "run", "orchestrator"],
        ]

    (engine,) = practice.pids("engine-core")
    assert role_of[parent(engine)] == "inference"
    assert Path(f"/proc/{engine}/comm").read_text() == "VLLM::EngineCor\n", "the kernel's name has fifteen letters"
    if era in PARENTS:
        assert chain_of(practice, role_of) == PARENTS[era]

    (trainer,), (torchrun,) = practice.pids("trainer-rank"), practice.pids("torchrun")
    assert b"PRACTICE_FILE=" in environment(torchrun)
    # A title is written over the environment; SPT_NOENV would keep it, in the test below.
    assert (environment(trainer) == b"") == practice.era.titles


@pytest.mark.soak
def test_a_titled_process_keeps_its_environment_with_spt_noenv(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPT_NOENV", "1")
    kept = running(make, "v0.6")
    (trainer,) = kept.pids("trainer-rank")
    assert b"PRACTICE_FILE=" in environment(trainer)
