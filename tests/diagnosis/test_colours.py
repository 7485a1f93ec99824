"""Logs as real launchers write them: with colours, and behind torchrun's prefix. Each says the same as without.

The lines are made from format strings, with values put in: prime-rl's at 11d87ee88 (15 January 2026), 33d266b41
(15 March) and de626e934 (15 August): utils/logger.py, rl.py and entrypoints/rl.py, utils/process.py; loguru's own of
that January, whose ``catch`` wrapped the entry points; vLLM's logging_utils/formatter.py (VLLM_LOGGING_COLOR=1) and
uvicorn's; those of CPython 3.13 for a coloured traceback.
"""

# ruff: noqa: E501, ISC004 (golden lines stay whole)

from __future__ import annotations

import io
import random
import re

import pytest

from supervisor.base.escapes import plain, plain_bytes
from supervisor.core.facts import ErrorSeen, FinishSeen, Role, StepDone
from supervisor.diagnosis import gates
from supervisor.diagnosis.causes import Diagnosis, diagnose
from supervisor.diagnosis.scan import scan
from supervisor.primerl.logs import parse_line

ERAS = ("January", "March", "August")
OF_LEVELS = {"INFO": "\x1b[1m", "SUCCESS": "\x1b[32m\x1b[1m", "WARNING": "\x1b[33m\x1b[1m", "ERROR": "\x1b[31m\x1b[1m"}
RANK = {"January": "[default0]:", "March": "[default0]:", "August": "[trainer0]:"}
STEPS = {
    "January": "Step {n} | Time: 171.20s | Loss: 0.0003 | Entropy: 0.3010 | Mismatch KL: 0.0011 | Grad. Norm: 0.1100",
    "March": "Step {n} | Time: 171.20s | Loss: 0.0003 | Entropy: 0.3010 | Mismatch KL: 0.0011 | Grad. Norm: 0.1100",
    "August": "Step {n} |  2m 51s | Loss 0.0003 | Entropy 0.3010 | Mismatch KL 0.0011 | Grad. Norm 0.1100",
}
REWARDS = {
    "January": "Step {n} | Time: 171.50s | Reward: 0.1310 | Throughput: 850.0 tokens/s | Async Level: 1",
    "March": "Step {n} | Time: 171.50s | Reward: 0.1310 | Seq. Length: 1102.1 tokens/sample | Async Level: 1",
    "August": "Step {n} |  2m 51s | Reward 0.1310 | Trainable 120/128 (93.8%) | Turns 3.1 | Error 0.0%",
}
NAMES = {
    "January": ("logs/rl.log", "logs/orchestrator.stdout", "logs/trainer.stdout", "logs/inference.stdout"),
    "March": ("logs/rl.log", "logs/orchestrator.stdout", "logs/trainer.stdout", "logs/inference.stdout"),
    "August": ("job.log", "logs/orchestrator.log", "logs/trainer.log", "logs/inference.log"),
}
ROLES: tuple[Role, ...] = ("launcher", "orchestrator", "trainer", "inference")
CUDA = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
FRAME = '  File "/app/src/prime_rl/trainer/rl/train.py", line 402, in train'


def said(level: str, message: str, second: int, tag: str = "") -> str:
    """A line of prime-rl's logger, colours forced."""
    colour = OF_LEVELS[level]
    clock = f"{2 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    text = f"[{tag}] {message}" if tag else message
    return f"\x1b[2m{clock}\x1b[0m {colour}{level:>7}\x1b[0m {colour}\x1b[22m{text}\x1b[0m\x1b[0m"


def caught(error: str) -> list[str]:
    """What loguru's ``catch`` writes at the end of a function, coloured, with its own frames."""
    return [
        "\x1b[32m2026-01-15 02:40:00.123\x1b[0m | \x1b[31m\x1b[1mERROR   \x1b[0m | \x1b[36mprime_rl.trainer.rl.train\x1b[0m:"
        "\x1b[36m<module>\x1b[0m:\x1b[36m541\x1b[0m - \x1b[31m\x1b[1mAn error has been caught in function '<module>', "
        "process 'MainProcess' (4242), thread 'MainThread' (140):\x1b[0m",
        "\x1b[33m\x1b[1mTraceback (most recent call last):\x1b[0m",
        "",
        '> File "\x1b[32m/app/src/prime_rl/trainer/rl/\x1b[0m\x1b[32m\x1b[1mtrain.py\x1b[0m", line \x1b[33m402\x1b[0m, in '
        "\x1b[35mtrain\x1b[0m",
        "    \x1b[1mloss\x1b[0m\x1b[35m\x1b[1m.\x1b[0m\x1b[1mbackward\x1b[0m\x1b[1m(\x1b[0m\x1b[1m)\x1b[0m",
        "    \x1b[36m└ \x1b[0m\x1b[36m\x1b[1mtensor(0.1, device='cuda:0')\x1b[0m",
        "",
        f"\x1b[31m\x1b[1m{error.partition(':')[0]}\x1b[0m:\x1b[1m{error.partition(':')[2]}\x1b[0m",
    ]


def of_python(error: str) -> list[str]:
    """A traceback of CPython 3.13, coloured (FORCE_COLOR=1)."""
    kind, _, text = error.partition(":")
    return [
        "Traceback (most recent call last):",
        re.sub(r'("[^"]+"|\d+|train)', "\x1b[35m\\1\x1b[0m", FRAME, count=3),
        "    \x1b[31mloss.backward\x1b[0m\x1b[1;31m()\x1b[0m",
        f"\x1b[1;35m{kind}\x1b[0m: \x1b[35m{text.strip()}\x1b[0m",
    ]


def vllm(level: str, text: str, process: str = "EngineCore_DP0") -> str:
    """A line of vLLM with all its colours: of the process, the level, the time and the file."""
    colour = {"INFO": "\x1b[32m", "ERROR": "\x1b[31m"}[level]
    who = f"\x1b[1;36m({process} pid=4711)\x1b[0;0m "
    return f"{who}{colour}{level}\x1b[0m \x1b[90m01-15 02:40:00\x1b[0m \x1b[90m[core.py:902]\x1b[0m {text}"


def torchrun(era: str) -> list[str]:
    """The end of torchrun itself, whose lines have no prefix."""
    return [
        "E0115 02:40:04.123000 4200 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
        "local_rank: 0 (pid: 4242) of binary: /app/.venv/bin/python3",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ]


def run(era: str, died: Role | None) -> dict[str, list[str]]:
    """All logs of a run of seven steps, in which one part dies of a CUDA error. None: it is living."""
    launcher, orchestrator, trainer, inference = NAMES[era]
    rank = RANK[era]
    env = "logs/envs/train/wordle.log"
    logs = {
        launcher: [said("INFO", "Starting RL run", 0), said("SUCCESS", "Startup complete. Showing trainer logs...", 9)],
        orchestrator: [said("INFO", "Starting orchestrator", 10)],
        trainer: [rank + said("INFO", "Starting RL trainer in World(world_size=2, rank=0)", 10)],
        inference: [
            vllm("INFO", "vLLM API server version 0.14.0", "APIServer"),
            "\x1b[1;36m(APIServer pid=4700)\x1b[0;0m \x1b[32mINFO\x1b[0m:     Application startup complete.",
        ],
        env: [said("INFO", "Starting env server", 8, "wordle")] if era == "August" else [],
    }
    for n in range(7):
        logs[trainer].append(rank + said("SUCCESS", STEPS[era].format(n=n), 300 * n + 300))
        logs[orchestrator].append(said("SUCCESS", REWARDS[era].format(n=n), 300 * n + 290))
        logs[inference].append(vllm("INFO", "Engine 000: Avg generation throughput: 812.1 tokens/s", "APIServer"))
        logs[orchestrator].append(said("WARNING", "Error calling reward function f: list index out of range", 300 * n))
    if died == "trainer":
        raised = caught(CUDA) if era == "January" else of_python(CUDA)
        logs[trainer] += [rank + line for line in raised] + torchrun(era)
        logs[trainer].insert(-2, f"{rank}[rank0]:[W115 02:40:02.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: x")
    elif died == "orchestrator":
        error = "ModuleNotFoundError: No module named 'wordle'"
        logs[orchestrator] += [said("ERROR", "Fatal error in orchestrate", 2390), *of_python(error)]
    elif died == "inference":
        logs[inference] += [vllm("ERROR", line) for line in ("EngineCore encountered a fatal error.", *of_python(CUDA))]
        logs[inference] += [f"\x1b[1;36m(APIServer pid=4700)\x1b[0;0m {line}" for line in of_python(
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)."
        )]  # fmt: skip
    if died is not None:
        logs[launcher].append(said("ERROR", f"Error: {died.capitalize()} failed with exit code 1", 2405))
        logs[launcher].append(said("ERROR", "Terminating all processes...", 2405))
    logs[launcher][2:2] = logs[trainer]  # tail -F
    return {name: lines for name, lines in logs.items() if lines}


def told(logs: dict[str, list[str]], *, colours: bool = True) -> Diagnosis:
    found = []
    roles = {name: role for names in NAMES.values() for name, role in zip(names, ROLES, strict=True)}
    for name, lines in logs.items():
        text = "\n".join(lines) + "\n"
        text = text if colours else re.sub("\x1b\\[[0-9;]*m", "", text)
        found += scan(io.BytesIO(text.encode()), name, roles.get(name, "env"))
    return diagnose(found)[-1]


@pytest.mark.parametrize("colours", [True, False])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("died", "root"),
    [("trainer", "cuda-illegal-access"), ("orchestrator", "module-missing"), ("inference", "cuda-illegal-access")],
)
def test_a_part_that_died_is_named_by_its_own_error_through_all_colours(
    era: str, died: Role, root: str, *, colours: bool
) -> None:
    found = told(run(era, died), colours=colours)
    assert found.root is not None
    assert found.root.name == root
    assert "\x1b" not in found.root.text
    assert found.root.first.file == NAMES[era][ROLES.index(died)]
    assert found.step == 6


@pytest.mark.parametrize("era", ERAS)
def test_a_healthy_run_is_silent_through_all_colours(era: str) -> None:
    found = told(run(era, None))
    assert found.root is None
    assert found.outcome == "unclear"
    assert found.step == 6


@pytest.mark.parametrize("era", ERAS)
def test_each_ordinary_line_of_a_real_launcher_is_passed_over_by_one_expression(era: str) -> None:
    for name, lines in run(era, None).items():
        for line in lines:
            ordinary = gates.ORDINARY.match(plain_bytes(line.encode()))
            assert bool(ordinary) is ("WARNING" not in line), (name, line)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("before", ["", "\x1b[36m", "\x1b[1m\x1b[36m"])
@pytest.mark.parametrize("after", ["", "\x1b[0m", "\x1b[0m "])
def test_the_daemon_reads_the_same_lines_through_a_coloured_prefix(era: str, before: str, after: str) -> None:
    prefix = before + RANK[era] + after
    step = parse_line("trainer", prefix + said("SUCCESS", STEPS[era].format(n=4), 0))
    assert [(type(fact), getattr(fact, "step", None)) for fact in step] == [(StepDone, 4)]
    assert parse_line("trainer", prefix + said("SUCCESS", "RL trainer finished!", 0)) == [
        FinishSeen("trainer", "RL trainer finished!")
    ]
    for line in (of_python(CUDA)[-1], f"\x1b[31m[rank0]\x1b[0m: {of_python(CUDA)[-1]}", caught(CUDA)[-1]):
        (error,) = parse_line("trainer", prefix + line)
        assert isinstance(error, ErrorSeen)
        assert (error.signature, error.text) == ("cuda-illegal-access", CUDA)


def test_a_coloured_line_of_an_engine_says_the_same_to_the_daemon() -> None:
    dead = "EngineCore encountered a fatal error."
    who = "\x1b[1;36m(EngineCore_DP0 pid=4711)\x1b[0;0m "
    for line in (vllm("ERROR", dead), f"{who}\x1b[31mERROR\x1b[0m \x1b[90m01-15 02:40:00\x1b[0m {dead}", who + dead):
        (error,) = parse_line("inference", line)
        assert isinstance(error, ErrorSeen)
        assert error.signature == "engine-dead"


@pytest.mark.parametrize("seed", range(20))
def test_colours_leave_whole_blocks_as_they_leave_each_line(seed: int) -> None:
    chance = random.Random(seed)
    parts = [
        "\x1b[0m",
        "\x1b[1m",
        "\x1b[22m",
        "\x1b[2m",
        "\x1b[1;36m",
        "\x1b[K",
        "\x1b]0;title\x07",
        " ",
        "\n",
        "[0m",
        "a",
    ]
    rare = chance.sample(parts, 4)
    block = "".join(chance.choice(parts if chance.random() < 0.01 else rare) for _ in range(20_000))
    assert plain_bytes(block.encode()) == plain(block).encode().replace(b"\x07", b"")
