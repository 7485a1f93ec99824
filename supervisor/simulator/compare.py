"""All policies in the same world: the same seeds, the same fault times, one table.

Common random numbers: whatever a policy does, faults strike at the same times, a step takes as long, and what begins at
a moment (a load, a replacement) takes as long (``chance``). So who is ahead stays ahead. The oracle is
the reference: `python -m bench.asked` ends with 1 where a policy beats it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from supervisor.simulator.baselines import ALL, NAMED
from supervisor.simulator.ledger import Account, Score, quantile, score
from supervisor.simulator.run import simulate
from supervisor.simulator.scenario import Scenario

CORE, ORACLE = "core", "oracle"
J = TypeVar("J")
T = TypeVar("T")
PERCENT = 100.0


def compare(
    scenario: Scenario, hours: float, seeds: Sequence[int], names: Iterable[str] = ALL, workers: int | None = None
) -> list[Score]:
    """Every named policy through the same ``hours`` of each seed, in ``workers`` processes (default: one a core)."""
    wanted = list(names)
    jobs = [(scenario, hours, seed, name) for name in wanted for seed in seeds]
    accounts = run_all(jobs, workers)
    return [score(name, accounts[i * len(seeds) : (i + 1) * len(seeds)]) for i, name in enumerate(wanted)]


Job = tuple[Scenario, float, int, str]
"""Scenario, hours, seed, name of the policy."""


def run_all(jobs: Sequence[Job], workers: int | None = None) -> list[Account]:
    """The books of each job, in their order."""
    return run_side_by_side(_run_job, jobs, workers)


def run_side_by_side(run: Callable[[J], T], jobs: Sequence[J], workers: int | None = None) -> list[T]:
    """What ``run`` makes of each job, in their order, in ``workers`` processes (default: one a core)."""
    workers = min(len(jobs), workers or os.cpu_count() or 1)
    if workers <= 1:
        return [run(job) for job in jobs]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(run, jobs))


def _run_job(job: Job) -> Account:
    scenario, hours, seed, name = job
    return simulate(scenario, hours, seed, NAMED[name]).account


# ---------------------------------------------------------------- the two derived figures


@dataclass(frozen=True)
class Distance:
    """How near to the bound: ``points`` below the oracle, and the share of the best other policy's gap that is closed.

    ``points`` in percentage points of ETTR, saves and waiting for a pod apart as asked of ``ettr_apart``, and of all
    time as ``points_of_all``. ``closed`` is None where the best other policy is as good as the oracle.
    """

    points: float
    points_of_all: float
    best_other: str
    closed: float | None


def distance(scores: Sequence[Score]) -> Distance | None:
    """The core's distance to the oracle; None unless both and another policy were run."""
    by_name = {s.policy: s for s in scores}
    others = [s for s in scores if s.policy not in (CORE, ORACLE)]
    if CORE not in by_name or ORACLE not in by_name or not others:
        return None
    core, oracle = by_name[CORE], by_name[ORACLE]
    best = max(others, key=lambda s: s.ettr)
    gap = oracle.ettr - best.ettr
    return Distance(
        PERCENT * (oracle.ettr_apart - core.ettr_apart),
        PERCENT * (oracle.ettr - core.ettr),
        best.policy,
        None if gap <= 0 else 1 - (oracle.ettr - core.ettr) / gap,
    )


# ---------------------------------------------------------------- for people


def table(scores: Sequence[Score], per_hour: float | None = None) -> str:
    """One line a policy, best first, and the derived figures below."""
    head = [
        "policy",
        "ETTR",
        "apart*",
        "detected",
        "median",
        "95th",
        "false restarts",
        "steps lost",
        *([] if per_hour is None else ["dollars lost"]),
    ]
    rows = [
        [
            s.policy,
            f"{PERCENT * s.ettr:.2f} %",
            f"{PERCENT * s.ettr_apart:.2f} %",
            f"{len(s.all_detections_s)}/{sum(s.needing.values())}",
            span(quantile(s.all_detections_s, 0.5)),
            span(quantile(s.all_detections_s, 0.95)),
            str(s.false_restarts),
            str(s.steps_lost),
            *([] if per_hour is None else [f"${s.dollars_lost(per_hour):,.0f}"]),
        ]
        for s in sorted(scores, key=lambda s: -s.ettr)
    ]
    lines = columns([head, *rows])
    lines += ["", "* without waiting for a pod and saving checkpoints, which no policy changes", *sentences(scores)]
    return "\n".join(lines)


def sentences(scores: Sequence[Score]) -> list[str]:
    """The derived figures, as sentences."""
    how_far = distance(scores)
    if how_far is None:
        return []
    below = f"{how_far.points:.2f} percentage points below the oracle"
    told = [f"The core is {below} ({how_far.points_of_all:.2f} with pods and saves counted)."]
    if how_far.closed is not None:
        told.append(f"It closes {PERCENT * how_far.closed:.0f} % of the gap of the best other, {how_far.best_other}.")
    return told


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table: the first row is its head, the first column is to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def span(seconds: float | None) -> str:
    """A short span for a table."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
