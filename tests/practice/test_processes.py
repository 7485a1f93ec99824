"""The process tree of a practice run: titles, command lines, parents and environments, as each era shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.practice.conftest import ERAS, Make
from tests.practice.run import Practice, wait_until


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def running(make: Make, era: str, **options: object) -> Practice:
    practice = make(era, max_steps=500, **options)
    practice.start()
    wait_until(lambda: practice.trained_steps(), "a step")
    return practice


@pytest.mark.parametrize("era", ERAS)
def test_roles_are_named_as_the_era_names_them(era: str, make: Make) -> None:
    practice = running(make, era)
    if practice.era.titles:  # nothing that makes steps waits for the environment's worker to have its title
        wait_until(
            lambda: any(command_line(pid) == "Verifiers::EnvWorker0" for pid in practice.pids("env-worker")),
            "the environment's worker",
        )
    shown = {role: command_line(pid) for pid, role in practice.alive().items() if role != "uv"}
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


@pytest.mark.parametrize("era", ["2026-01-06", "2026-08-21"])
def test_parents_are_the_eras_own(era: str, make: Make) -> None:
    practice = running(make, era)
    role_of = practice.alive()

    chain = []
    (pid,) = practice.pids("trainer-rank")
    while pid in role_of:
        chain.append(role_of[pid])
        pid = parent(pid)

    assert chain == (
        ["trainer-rank", "torchrun", "uv", "rl"] if era == "2026-01-06" else ["trainer-rank", "torchrun", "rl"]
    )
    (engine,) = practice.pids("engine-core")
    assert role_of[parent(engine)] == "inference"


def test_a_titled_process_loses_its_environment_unless_spt_noenv_keeps_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    wiped = running(make, "v0.6")
    (trainer,) = wiped.pids("trainer-rank")
    assert Path(f"/proc/{trainer}/environ").read_bytes().strip(b"\0") == b""
    (torchrun,) = wiped.pids("torchrun")
    assert b"PRACTICE_FILE=" in Path(f"/proc/{torchrun}/environ").read_bytes()
    wiped.end_all()

    monkeypatch.setenv("SPT_NOENV", "1")
    kept = running(make, "v0.6")
    (trainer,) = kept.pids("trainer-rank")
    assert b"PRACTICE_FILE=" in Path(f"/proc/{trainer}/environ").read_bytes()


def test_the_kernels_short_name_is_cut_to_fifteen_letters(make: Make) -> None:
    practice = running(make, "2026-08-21")
    (engine,) = practice.pids("engine-core")

    assert Path(f"/proc/{engine}/comm").read_text() == "VLLM::EngineCor\n"
