"""Evidence of a real incident: the engine hangs, and what a person needs is kept before anything of it is killed."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.evidence.stacks import programs
from supervisor.journal.trace import load

from .rig import Pod

KEY = "4f7d1c3b9a4f7d1c3b9a4f7d1c3b9a4f7d1c3b9a"  # W&B's shape
PLAIN = "a plain sentence that is a secret"  # no shape at all


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Pod]:
    pod = Pod(
        tmp_path,
        "v0.6",
        faults=[{"kind": "engine-hang", "at_step": 9}],
        max_steps=15,
        step_s=0.3,
        environ={"WANDB_API_KEY": KEY, "HF_VENDOR_SECRET": PLAIN, "B2_APPLICATION_KEY": "K005" + "q" * 27},
    )
    yield pod
    pod.close()


@pytest.mark.soak
def test_a_hung_engine_leaves_a_bundle_from_before_the_kill_that_people_find_again(hung: Pod, tmp_path: Path) -> None:
    hung.start()
    hung.wait_for(lambda: hung.sentences("incident-closed"), "the incident is over")
    beside = hung.ctl("incidents")
    assert beside.returncode == 0, beside
    assert "#1  " in beside.stdout
    hung.ctl("shutdown")
    hung.wait_exit()

    order = [str(record.get("event")) for record in hung.said()]
    assert order.index("verdict") < order.index("evidence") < order.index("stopped-job")
    bundle = hung.state_dir / "incidents" / "0001-attempt-0001"
    told: dict[str, Any] = json.loads((bundle / "bundle.json").read_text())
    late = {one["name"]: one["notes"] for one in told["parts"] if one["state"] == "late"}
    assert late.keys() <= {"stacks"}, late
    assert told["seconds"] < 10

    tree = (bundle / "processes.txt").read_text()
    assert any(" inference " in line and line.split()[2] == "T" for line in tree.splitlines()), (
        f"hung, not dead: {tree}"
    )
    assert any(" trainer " in line for line in tree.splitlines()), tree
    assert "vllm:" in (bundle / "engine-metrics-before.txt").read_text()
    assert "used_bytes" in (bundle / "gpu.json").read_text() or "memory_bytes" in (bundle / "gpu.json").read_text()
    assert "inference" in (bundle / "gpu-samples.csv").read_text()
    assert "Step 3" in (bundle / "trainer.log").read_text()
    explained = json.loads((bundle / "explain.json").read_text())
    assert explained["verdict"]["signals"], "what convicted"
    assert load(bundle / "trace.jsonl.gz").lines, "rl-supervisor replay reads it"
    if programs("", [], Path(sys.executable).parent) and "may not look" not in str(late):
        assert "Thread " in (bundle / "stacks.txt").read_text()

    there = [
        path for path in (*bundle.iterdir(), *Path(hung.store.removeprefix("file://")).rglob("*")) if path.is_file()
    ]
    assert any("incident-1.txt.gz" in path.name for path in there), "it went to the store"
    for path in there:
        data = path.read_bytes()
        data += gzip.decompress(data) if path.suffix == ".gz" else b""
        for secret in (KEY, PLAIN, "K005qqqq"):
            assert secret.encode() not in data, path

    gone = hung.by_hand("logs", "--attempt", "1")
    assert "vLLM hangs" in gone.stdout, gone
    assert '"@":"GpuLook"' not in gone.stdout, "a trace is not for a terminal"
    shown = hung.ctl("incidents", "1", str(hung.run_file))
    assert shown.returncode == 0, shown
    assert shown.stdout.startswith("Incident 1 of attempt 1: over after ")
    assert str(bundle) in shown.stdout.replace("\n", "")
    assert "What convicted:" in shown.stdout
