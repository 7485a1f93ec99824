"""The same log behind what others put before its lines: it says the same, wherever it was collected."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path

import pytest

from supervisor.diagnosis.causes import diagnose
from supervisor.diagnosis.scan import scan

CASES = Path(__file__).parent / "cases"
PREFIXES = {
    "docker compose": "inference-1  | ",
    "docker compose, a container with a name": "qwen3.5-4b  | ",
    "docker compose, coloured": "\x1b[36mvllm  |\x1b[0m ",
    "docker logs -t": "2026-01-06T17:51:32.123456789Z ",
    "containerd": "2026-01-06T17:51:32.123456789Z stderr F ",
    "kubectl logs --prefix": "[pod/trainer-0/main] ",
    "journalctl": "Jan 06 17:51:32 pod vllm[44555]: ",
    "journalctl -o short-iso": "2026-01-06T17:51:32+0000 pod vllm[44555]: ",
    "ts": "Jan 06 17:51:32 ",
    "a script's date": "2026-01-06 17:51:32 ",
    "a script's date in brackets": "[2026-01-06 17:51:32] ",
    "srun --label": "  3: ",
    "pdsh": "10.0.0.4: ",
    "pdsh, by name": "worker-1: ",
    "mpirun --tag-output": "[1,3]<stderr>:",
    "ray": "(WorkerDict pid=4711, ip=10.0.0.4) ",
    "a program that names its parts": "[generator-0] ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=list(PREFIXES))
@pytest.mark.parametrize("case", ["engine-oom-under-load", "a-program-ends-with-a-refused-request"])
def test_a_log_says_the_same_behind(prefix: str, case: str) -> None:
    files = tomllib.loads((CASES / f"{case}.toml").read_text(encoding="utf-8"))
    content = next(text for name, text in files["files"].items() if "inference" in name or "eval" in name)
    behind = "\n".join(prefix + line for line in content.split("\n"))
    told = diagnose(scan(io.BytesIO(behind.encode()), "x.log", None))[-1]
    assert told.root is not None
    assert told.root.name == files["root"]


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=list(PREFIXES))
def test_a_healthy_log_stays_healthy_behind(prefix: str) -> None:
    content = tomllib.loads((CASES / "healthy-engine-told-to-end.toml").read_text(encoding="utf-8"))
    behind = "\n".join(prefix + line for line in content["files"]["logs/inference.log"].split("\n"))
    assert diagnose(scan(io.BytesIO(behind.encode()), "x.log", None))[-1].root is None


def test_a_table_in_a_log_is_none_of_those() -> None:
    table = ["loss | 0.51", "reward | 0.30", "error | torch.OutOfMemoryError: CUDA out of memory."]
    lines = ["step 1 done"] * 5 + table
    assert diagnose(scan(io.BytesIO("\n".join(lines).encode()), "x.log"))[-1].root is None


def test_the_scheduler_of_a_cluster_is_no_name_of_a_machine() -> None:
    line = b"2026-01-06T17:51:32Z slurmstepd: error: *** JOB 5930 ON gpu11 CANCELLED AT 2026-01-06T17:51:32 ***"
    told = diagnose(scan(io.BytesIO(line), "x.log"))[-1]
    assert told.root is not None
    assert told.root.name == "ended-from-outside"


def test_two_containers_that_fail_at_once_are_told_apart() -> None:
    """Each line of one stands between two of the other: only their names say which belongs to which."""
    frames = ["Traceback (most recent call last):", '  File "/app/{}.py", line 7, in main', "    work()"]
    ends = {
        "reader": "OSError: [Errno 5] Input/output error: '/data/a'",
        "writer": "ZeroDivisionError: division by zero",
    }
    lines = [f"{name}-1  | starting" for name in ends for _ in range(3)]
    lines += [f"{name}-1  | {line.format(name)}" for line in frames for name in ends]
    lines += [f"{name}-1  | {line}" for name, line in ends.items()]
    (log,) = scan(io.BytesIO("\n".join(lines).encode()), "compose.log")
    assert {event.raised.place.path for event in log.events if event.raised and event.raised.place} == {
        "/app/reader.py",
        "/app/writer.py",
    }


def test_what_ended_an_actor_of_ray_while_it_was_created_goes_before_its_end() -> None:
    """Ray writes no "Traceback" above the frames of what a constructor raised."""
    worker = "(Policy pid=42, ip=10.0.0.3) "
    created = "The actor died because of an error raised in its creation task, ray::lm-1-7:Policy.__init__() (pid=42)"
    lines = [
        f"{worker}Exception raised in creation task: {created}",
        f'{worker}  File "/opt/job/policy.py", line 447, in __init__',
        f"{worker}    self.load(path)",
        f"{worker}LayoutError: the checkpoint has another layout",
        "Traceback (most recent call last):",
        '  File "/opt/job/run.py", line 12, in <module>',
        "    ray.get(worker)",
        f"ray.exceptions.ActorDiedError: {created}",
    ]
    told = diagnose(scan(io.BytesIO("\n".join(lines).encode()), "driver.log"))[-1]
    assert told.root is not None
    assert told.root.text == "LayoutError: the checkpoint has another layout"


@pytest.mark.parametrize("behind_s", [4, 31, 590])
def test_a_launcher_whose_clock_is_behind_ends_others_after_what_it_names(behind_s: int) -> None:
    def at(second: int) -> str:
        return f"{18 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"

    launcher = [
        f"{at(1000)}    INFO Starting RL run",
        f"{at(1900 - behind_s)}   ERROR Process orchestrator exited with code 1",
        f"W1125 {at(1920 - behind_s)}.200000 991 torch/distributed/agent/api.py:719] Received 15 death signal",
    ]
    orchestrator = [
        f"{at(1000)}    INFO Starting orchestrator",
        f"{at(1900)}   ERROR Fatal error in orchestrate",
        "Traceback (most recent call last):",
        '  File "/app/src/prime_rl/orchestrator/orchestrator.py", line 261, in orchestrate',
        "    outputs = process()",
        "AssertionError: Token prefix mismatch. Token prefix: [1], token prefix with turn: [2]",
    ]
    logs = scan(io.BytesIO("\n".join(launcher).encode()), "rl.log", "launcher")
    logs += scan(io.BytesIO("\n".join(orchestrator).encode()), "orchestrator.log", "orchestrator")
    told = diagnose(logs)[-1]
    assert told.root is not None
    assert told.root.name == "token-prefix-mismatch"
