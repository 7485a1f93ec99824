"""The few numbers of vLLM's /metrics page that say whether the engine moves and whether work waits for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Names as vLLM exports them (vllm/v1/metrics/loggers.py); Prometheus clients differ in adding "_total" to counters.
NAMES = {
    b"vllm:generation_tokens_total": ("generation_tokens", 0),
    b"vllm:generation_tokens": ("generation_tokens", 1),
    b"vllm:iteration_tokens_total_count": ("iterations", 0),
    b"vllm:iteration_tokens_count": ("iterations", 1),
    b"vllm:num_requests_running": ("running", 0),
    b"vllm:num_requests_waiting": ("waiting", 0),
}


@dataclass(frozen=True)
class EngineCounters:
    """Summed over all label sets (engines, models); None where the page does not hold the number."""

    generation_tokens: float | None = None
    iterations: float | None = None
    running: float | None = None
    waiting: float | None = None


def parse(page: bytes) -> EngineCounters:
    """Read a page in Prometheus' text format. Takes any bytes; what is no number is passed over."""
    sums: dict[tuple[str, int], float] = {}
    # A scan for a handful of names: a full parser would cost more than all else that the daemon does.
    for line in page.split(b"\n"):
        if not line.startswith(b"vllm:"):
            continue
        brace = line.find(b"{")
        name = line[:brace] if brace >= 0 else line.partition(b" ")[0]
        wanted = NAMES.get(name)
        if wanted is None:
            continue
        # A label's value may hold anything, brackets and blanks too; the number stands after the last bracket.
        words = line[line.rfind(b"}") + 1 if brace >= 0 else len(name) :].split()
        try:
            value = float(words[0])
        except (ValueError, IndexError):
            continue
        if math.isfinite(value):
            sums[wanted] = sums.get(wanted, 0.0) + value
    return EngineCounters(**{field: sums.get((field, 0), sums.get((field, 1))) for field, _ in NAMES.values()})
