"""The few numbers of vLLM's /metrics page that say whether the engine moves and whether work waits for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from supervisor.base.records import dataclass
from supervisor.core.facts import EngineCount

# Names as vLLM exports them (vllm/v1/metrics/loggers.py); Prometheus clients differ in adding "_total" to counters.
NAMES = {
    b"vllm:generation_tokens_total": ("generation_tokens", 0),
    b"vllm:generation_tokens": ("generation_tokens", 1),
    b"vllm:iteration_tokens_total_count": ("iterations", 0),
    b"vllm:iteration_tokens_count": ("iterations", 1),
    b"vllm:num_requests_running": ("running", 0),
    b"vllm:num_requests_waiting": ("waiting", 0),
}


# Each of vLLM's numbers has the labels model_name and engine, the index of the data-parallel engine (make_per_engine
# there, create_metric_per_engine in later versions). A quotation mark within a label's value has a backslash before it.
ENGINE = re.compile(rb'[{,]\s*engine="([0-9]{1,6})"')


@dataclass(frozen=True)
class EngineCounters:
    """Summed over all label sets (engines, models); None where the page does not hold the number."""

    generation_tokens: float | None = None
    iterations: float | None = None
    running: float | None = None
    waiting: float | None = None
    engines: tuple[EngineCount, ...] = ()  # by index, where the page tells more than one engine apart


def parse(page: bytes) -> EngineCounters:
    """Read a page in Prometheus' text format. Takes any bytes; what is no number is passed over."""
    sums: dict[tuple[str, int], float] = {}
    engines: dict[int, dict[tuple[str, int], float]] = {}
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
        if not math.isfinite(value):
            continue
        sums[wanted] = sums.get(wanted, 0.0) + value
        if brace >= 0 and (found := ENGINE.search(line, brace)):
            own = engines.setdefault(int(found[1]), {})
            own[wanted] = own.get(wanted, 0.0) + value
    total = _by_name(sums)
    return EngineCounters(
        generation_tokens=total["generation_tokens"],
        iterations=total["iterations"],
        running=total["running"],
        waiting=total["waiting"],
        engines=_each(engines, "generation_tokens" if total["iterations"] is None else "iterations"),
    )


def _by_name(sums: Mapping[tuple[str, int], float]) -> dict[str, float | None]:
    finite = {name: value for name, value in sums.items() if math.isfinite(value)}  # a sum of two may be too much
    return {field: finite.get((field, 0), finite.get((field, 1))) for field, _ in NAMES.values()}


def _each(engines: Mapping[int, Mapping[tuple[str, int], float]], count: str) -> tuple[EngineCount, ...]:
    if len(engines) < 2:
        return ()
    found = {index: _by_name(sums) for index, sums in sorted(engines.items())}
    return tuple(EngineCount(index, own[count], own["running"], own["waiting"]) for index, own in found.items())
