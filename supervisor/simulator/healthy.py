"""Healthy worlds: runs in which nothing breaks, as different as real ones are. Any restart in one of them is false.

``world-1``, ``world-2`` ... are scenarios like those of mix.toml. Each twenty of them go through the whole of every
range (a Latin hypercube), so that twenty already hold the long evaluation at each step and the step of seconds. The
ranges are those of prime-rl's runs, not of what the detector copes with:

- the log's level hides most phases ("info", where the end of an evaluation is not told before the orchestrator's next
  step), or all of them (metrics.jsonl alone);
- with steps of asynchrony the trainer ends a step while the orchestrator evaluates;
- /metrics, NVML, connections and the pipeline line may each be missing, and up to 5 % of all looks fail;
- the last rollouts wait for their environment while the engine idles, and in half of the worlds no process shows that;
- what GPUs and processes show is noisy; in half of the worlds ranks that wait for a batch look like a hung collective.

What else is odd (an overloaded engine, slow saves, log gaps, a host that stands still) comes from scenario "healthy".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

BLOCK = 20  # worlds that go through each range once
DAY_S = 86400.0
SAVED_S = 3600.0  # between two checkpoints, at most; and a save takes no more than a fifth of the time
SAVED_PART = 5.0

STEP_S, EVAL_S, SAVE_S, LOAD_S = (5.0, 2400.0), (60.0, 10800.0), (2.0, 900.0), (60.0, 1800.0)
CHECKPOINT_GB = 47.0  # as in ``Physics``
STEPS_ONLY = 0.8
ENV_S, MOST_FLAKY = (1.0, 300.0), 0.05


@dataclass
class _Strata:
    """Numbers from 0 to 1, one a name, of which each block has one in each twentieth."""

    number: int

    def part(self, name: str) -> float:
        block, place = divmod(self.number - 1, BLOCK)
        random = Random(f"healthy/{block}/{name}")
        order = list(range(BLOCK))
        random.shuffle(order)
        return (order[place] + Random(f"healthy/{self.number}/{name}").random()) / BLOCK

    def between(self, name: str, low: float, high: float) -> float:
        """Evenly in the logarithm."""
        return float(low * (high / low) ** self.part(name))

    def chance(self, name: str, of: float) -> bool:
        return self.part(name) < of


def healthy_physics(number: int) -> dict[str, Any]:
    """The fields of ``Physics`` that make up world ``number``, counted from 1."""
    strata = _Strata(number)
    step_s = strata.between("step", *STEP_S)
    save_s = strata.between("save", *SAVE_S)
    lines = strata.part("lines")
    return {
        "step_s": round(step_s, 1),
        "step_sigma": round(strata.between("sigma", 0.05, 0.5), 3),
        "step_tail": round(0.02 * max(0.0, strata.part("tail") - 0.5), 4),
        "straggling": round(0.6 * strata.part("straggling"), 2),
        "env_s": round(strata.between("env", *ENV_S), 1) if strata.chance("has-env", 0.5) else 0.0,
        "eval_s": round(strata.between("eval", *EVAL_S), 1),
        "eval_every": max(1, round(DAY_S ** strata.part("rate") / step_s ** strata.part("rate"))),
        "eval_first": strata.chance("eval-first", 0.5),
        "overlaps": strata.chance("overlaps", 0.5),
        "volume_gb_s": round(CHECKPOINT_GB / save_s, 4),
        "writer_gb_s": CHECKPOINT_GB / STEP_S[0],  # so that the volume alone decides
        "interval": max(1, round(max(SAVED_PART * save_s, SAVED_S * strata.part("interval")) / step_s)),
        "load_s": round(strata.between("load", *LOAD_S), 1),
        "engines": 1 + int(3 * strata.part("engines")),
        "liveness": strata.chance("liveness", 0.7),
        "counters": strata.chance("counters", 0.7),
        "sockets": strata.chance("sockets", 0.7),
        "keepalive": strata.chance("keepalive", 0.3),
        "nvml": strata.chance("nvml", 0.8),
        "proc": strata.chance("proc", 0.8),
        "waits_spin": strata.chance("waits-spin", 0.5),
        "env_shows": strata.chance("env-shows", 0.5),
        "sync_part": round(0.5 * strata.part("sync"), 2),
        "pipeline": lines < STEPS_ONLY and strata.chance("pipeline", 0.7),
        "lines": "debug" if lines < 0.35 else "info" if lines < STEPS_ONLY else "steps",
        "step_begins": strata.chance("step-begins", 0.5),
        "flaky": round(MOST_FLAKY * max(0.0, strata.part("flaky") * 1.25 - 0.25), 4),
    }


def healthy_rates(physics: Mapping[str, Any]) -> dict[str, float]:
    """What is odd in a world beside the rates of "healthy", per 1000 h.

    Silent logs and an engine of unknown health are, together, what a dead pod looks like from
    outside: docs/decisions.md names that limit, and no world goes beyond it.
    """
    return {} if physics["counters"] else {"log-gap": 0.0}
