"""The launchers' own lines of January, March and August 2026, in order and with colours, through parser and core.

Sources: rl.py at d70a00f6e, entrypoints/rl.py at fc6fd48fa and c7a6573de, utils/process.py (monitor_process makes a
name's first letter large and all others small), utils/logger.py.
"""

from __future__ import annotations

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.primerl.logs import parse_line
from tests.core.world import World
from tests.primerl.lines import coloured

BEGIN = {
    "2026-01-09": [
        ("INFO", "Starting RL run"),
        ("INFO", "Cleaning checkpoint, logs, weights, broadcast and rollout directories"),
        ("INFO", "Starting inference process on GPU(s) 0"),
        ("INFO", "Starting orchestrator process"),
        ("INFO", "Starting trainer process on GPU(s) 1"),
        ("SUCCESS", "Startup complete. Showing trainer logs..."),
    ],
    "2026-03-20": [
        ("INFO", "Wrote subconfigs to outputs/configs"),
        ("INFO", "Using local->physical GPU mapping: {0: 0, 1: 1}"),
        ("INFO", "Starting RL run"),
        ("INFO", "Starting inference on GPU(s) 0"),
        ("INFO", "Starting orchestrator process"),
        ("INFO", "Starting trainer on GPU(s) 1"),
        ("SUCCESS", "Startup complete. Showing trainer logs..."),
    ],
    "2026-08-18": [
        ("INFO", "Wrote subconfigs to outputs/wordle--qwen3--0a1b2c3d/configs"),
        ("INFO", "Using local->physical GPU mapping: {0: 0, 1: 1}"),
        ("INFO", "Starting RL run"),
        ("INFO", "Starting inference on GPU(s) 0"),
        ("INFO", "Starting train env server wordle at tcp://127.0.0.1:5000"),
        ("INFO", "Starting eval env server aime-2024 at tcp://127.0.0.1:5001"),
        ("INFO", "Starting orchestrator process"),
        ("INFO", "Starting trainer on GPU(s) 1"),
        ("SUCCESS", "Startup complete. Showing orchestrator logs..."),
    ],
}
ENDS = [
    ("2026-01-09", "Error: Trainer failed with exit code 1", "The trainer died: "),
    ("2026-01-09", "Error: Orchestrator failed with exit code 1", "The orchestrator died: "),
    ("2026-01-09", "Error: Inference failed with exit code -9", "vLLM died: "),
    ("2026-01-09", "Error: Teacher_inference failed with exit code 1", "vLLM died: "),
    ("2026-03-20", "Error: Trainer failed with exit code -6", "The trainer died: "),
    ("2026-03-20", "Error: Orchestrator failed with exit code 137", "The orchestrator died: "),
    ("2026-03-20", "Error: Inference failed with exit code 1", "vLLM died: "),
    ("2026-08-18", "Error: Train env server wordle failed with exit code -9", "An environment server died: "),
    ("2026-08-18", "Error: Eval env server aime-2024.v1 failed with exit code 1", "An environment server died: "),
    ("2026-08-18", "Error: Train env server owner/inference@0.1.2 failed with exit code 1", "An environment server"),
    # What an environment is called is free: the launcher only makes its letters small.
    ("2026-08-18", "Error: Train env server aime [hard] failed with exit code -9", "An environment server died: "),
    ("2026-08-18", "Error: Eval env server math(2), it's #1 failed with exit code 1", "An environment server died: "),
    ("2026-08-18", "Error: Trainer failed with exit code 1", "The trainer died: "),
    ("2026-08-18", "Error: Orchestrator failed with exit code 1", "The orchestrator died: "),
    ("2026-08-18", "Error: Inference failed with exit code 1", "vLLM died: "),
]


def launcher(world: World, level: str, message: str) -> list[f.Fact]:
    facts = parse_line("launcher", coloured(level, message))
    for fact in facts:
        world.see(fact)
    return facts


@pytest.mark.parametrize(("day", "failed", "begins"), ENDS)
def test_the_part_that_the_launcher_names_is_what_died(day: str, failed: str, begins: str) -> None:
    world = World()
    world.running_at(12)
    for level, message in BEGIN[day]:
        launcher(world, level, message)
    world.after(30)
    assert world.state.mode == "running" and not world.said("verdict")
    assert [type(one) for one in launcher(world, "ERROR", failed)] == [f.ErrorSeen]
    assert launcher(world, "ERROR", "Terminating all processes...") == [
        f.PhaseSeen("launcher", "stopping", None, "Terminating all processes...")
    ]
    world.after(20)  # it waits five seconds for each monitor thread that lives
    world.engine_process_dies()
    world.after(5)
    assert world.said("verdict")[0].startswith(begins) and failed in world.said("verdict")[0]
    assert "silently" not in world.said("verdict")[0]
    assert len(world.asked(a.Stop)) == 1


@pytest.mark.parametrize("day", BEGIN)
@pytest.mark.parametrize(
    ("level", "line"),
    [
        ("WARNING", "Received interrupt signal, terminating all processes..."),
        ("WARNING", "Received SIGTERM, terminating all processes..."),
        ("ERROR", "Error occurred: [Errno 28] No space left on device"),
    ],
)
def test_a_launcher_that_ends_the_job_by_itself_is_read(day: str, level: str, line: str) -> None:
    world = World()
    world.running_at(12)
    for level_of, message in BEGIN[day]:
        launcher(world, level_of, message)
    assert f.PhaseSeen("launcher", "stopping", None, line) in launcher(world, level, line)
    world.after(20)
    world.engine_process_dies()
    world.after(5)
    assert world.said("verdict")[0].startswith(f"The launcher ends the job: {line.rstrip('.')}")


@pytest.mark.parametrize("role", ["trainer", "orchestrator", "inference", "env"])
@pytest.mark.parametrize("line", ["Terminating all processes...", "Error: Trainer failed with exit code 1"])
def test_only_the_launchers_own_file_says_so(role: f.Role, line: str) -> None:
    assert parse_line(role, coloured("ERROR", line)) == []


def test_the_end_of_training_is_no_stop() -> None:
    for line in ("Training finished!", "RL training finished!"):
        assert [type(one) for one in parse_line("launcher", coloured("SUCCESS", line))] == [f.FinishSeen]
