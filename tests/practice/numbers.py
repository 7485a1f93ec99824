"""A run's numbers: each a function of the seed and the step alone, so that a resumed run shows the same ones."""

from __future__ import annotations

import hashlib
import math


def noise(seed: int, step: int, what: str) -> float:
    """A number in [0, 1)."""
    digest = hashlib.sha256(f"{seed}/{step}/{what}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / (1 << 48)


def reward(seed: int, step: int) -> float:
    return 0.15 + 0.7 * (1 - math.exp(-step / 60)) + 0.04 * (noise(seed, step, "reward") - 0.5)


def trainer_numbers(seed: int, step: int) -> dict[str, float]:
    return {
        "loss": 0.02 * math.exp(-step / 80) + 0.01 * (noise(seed, step, "loss") - 0.5),
        "entropy": 0.3 + 0.4 * math.exp(-step / 100) + 0.02 * noise(seed, step, "entropy"),
        "ratio": 1.0 + 0.01 * (noise(seed, step, "ratio") - 0.5),
        "kl": 0.001 + 0.002 * noise(seed, step, "kl"),
        "norm": 0.05 + 0.1 * noise(seed, step, "norm"),
        "lr": 1e-05,
        "throughput": 9000 + 1500 * noise(seed, step, "throughput"),
        "mfu": 21 + 4 * noise(seed, step, "mfu"),
        "memory": 41.5 + 0.5 * noise(seed, step, "memory"),
    }
