"""Opt-in: do the texts that we read stand in prime-rl's own source? Needs PRIME_RL_GIT, a clone of it.

PRIME_RL_GIT=~/prime-rl pytest -m optin tests/primerl/test_logs_real_history.py
"""

from __future__ import annotations

import os
import subprocess

import pytest

CLONE = os.environ.get("PRIME_RL_GIT", "")
pytestmark = [
    pytest.mark.optin,
    pytest.mark.skipif(not CLONE, reason="PRIME_RL_GIT names no clone of PrimeIntellect-ai/prime-rl"),
]

TRAINER, SFT = "src/prime_rl/trainer/rl/train.py", "src/prime_rl/trainer/sft/train.py"
ORCHESTRATOR = "src/prime_rl/orchestrator/orchestrator.py"


@pytest.mark.parametrize(
    ("commit", "file", "text"),
    [
        # The measures of a step.
        ("ceb60c03f", TRAINER, "| Throughput: {throughput:.0f} tokens/s |"),
        ("be0e3d131", TRAINER, "| Throughput: {throughput:.0f} tokens/s |"),
        ("38494ccb4", TRAINER, "| Throughput {throughput:.0f} tokens/s |"),
        ("559b44772", TRAINER, "| Throughput {throughput:.0f} tokens/s |"),
        ("38494ccb4", ORCHESTRATOR, '"Trainable {n_trainable}/{n_survivors} ({trainable_rate:.1%}) | "'),
        ("559b44772", ORCHESTRATOR, '"Trainable {n_trainable}/{n_effective} ({trainable_rate:.1%}) | "'),
        ("38494ccb4", ORCHESTRATOR, '"Error {error_rate:.1%} | Truncation'),
        ("559b44772", ORCHESTRATOR, '"Error {episodes.metrics.has_error.mean():.1%} | Cancelled'),
        # What has a signature.
        ("559b44772", ORCHESTRATOR, "Step {step}: empty train batch after"),
        ("559b44772", ORCHESTRATOR, "{self.consecutive_empty_batches} consecutive empty train batches"),
        ("559b44772", ORCHESTRATOR, "MAX_CONSECUTIVE_EMPTY_BATCHES = 10"),
        ("559b44772", "src/prime_rl/orchestrator/train_sink.py", "No admitted train payload after"),
        ("559b44772", "src/prime_rl/orchestrator/train_sink.py", "consecutive zero-output batch equivalents"),
        ("559b44772", "src/prime_rl/orchestrator/dispatcher.py", "Episode task failed in group {meta.group_id} ("),
        ("559b44772", "src/prime_rl/orchestrator/dispatcher.py", "Trace failed in group {meta.group_id} ("),
        ("60bc29547", "src/prime_rl/orchestrator/dispatcher.py", "Rollout failed in group {meta.group_id} ("),
        ("be0e3d131", "src/prime_rl/orchestrator/scheduler.py", "Rollout failed: {e}"),
        ("63331ad8b", "src/prime_rl/orchestrator/scheduler.py", "Rollout error in group {group_id} ({task})"),
        ("60bc29547", "src/prime_rl/trainer/rl/packer.py", "Packer heartbeat stale for {stale:.0f}s"),
        ("be0e3d131", "src/prime_rl/trainer/sft/data.py", "There are no tokens in this sample that contribute"),
        ("be0e3d131", SFT, "Loss is nan, not taking into account"),
        ("559b44772", SFT, "Local loss is nan, excluding this micro step"),
    ],
)
def test_the_text_stands_in_the_source_of_that_commit(commit: str, file: str, text: str) -> None:
    found = subprocess.run(
        ["git", "-C", CLONE, "show", f"{commit}:{file}"], capture_output=True, text=True, errors="replace", check=False
    )
    assert found.returncode == 0, found.stderr
    assert text in found.stdout
