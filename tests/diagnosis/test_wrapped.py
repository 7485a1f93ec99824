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
