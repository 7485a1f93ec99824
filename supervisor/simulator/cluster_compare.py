"""Ours and what people use instead in the same modelled cluster, a bound above all of them, and one table."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from supervisor.simulator.clockwork import NEVER
from supervisor.simulator.cluster import HOUR_S, Cluster, Fault, Track, count_spares, draw_cluster
from supervisor.simulator.cluster_head import NCCL_S, QUEUE_S, SLURMD_TIMEOUT_S, START_S, STOP_S, OurRun
from supervisor.simulator.compare import columns, run_side_by_side

OURS, NO_SPARES, REQUEUE, SCRIPT, ORACLE = "ours", "ours, no spares", "requeue", "prime-rl's script", "oracle"
GRACE_S = 3600.0
"""prime-rl's script waits so long after an exit code other than 0 (slurm.cleanup_grace_period at 559b44772)."""
LOOK_S = 8 * HOUR_S
"""A person looks three times a day (assumed). Nothing else ends a job of which an engine ended with 0."""
GPUS = 8
SOURCE = (
    "Modelled, not measured. How often machines fail: Llama 3, RSC-1, RSC-2, InfiniteHBD; what of them: Llama 3. The\n"
    "queue takes 10 min. Racks, spares, silent deaths, a person's looks: assumed (simulator/cluster*.py)."
)

Ends = Callable[[Cluster, Fault, float], float]
"""When the job that a fault strikes at a time is over, so that Slurm may start it again."""


@dataclass(frozen=True)
class ClusterScore:
    """All policies in one cluster: the part of all time that went into steps that stayed, by policy."""

    seed: int
    machines: int
    faults: int  # that strike what the job needs, those that come back apart
    ettr: Mapping[str, float]
    allocations: int  # that ours took, with spares
    called: int  # so often ours ended with 93, with spares

    def as_json(self) -> dict[str, Any]:
        """All figures as plain values."""
        found = {**vars(self), "spares": count_spares(self.machines)}
        return {**found, "ettr": {name: round(value, 6) for name, value in self.ettr.items()}}


def ends_at_once(cluster: Cluster, fault: Fault, t: float) -> float:
    """A script that ends the job with any of its processes. A lost machine is Slurm's to see, and a hang NCCL's."""
    if fault.takes_machine:
        return t + SLURMD_TIMEOUT_S
    return t + STOP_S + (NCCL_S if fault.kind == "hang" else 0.0)


def ends_as_prime_rls(cluster: Cluster, fault: Fault, t: float) -> float:
    """prime-rl's own script (559b44772): exit code 1 is an hour of grace, and on 0 all machines idle.

    It has been given more than it has: what ended is requeued, and resumes at its newest step.
    """
    if fault.takes_machine:
        return t + SLURMD_TIMEOUT_S
    if fault.kind != "hang" and fault.silent and cluster.is_engine(fault.place):
        return LOOK_S * (t // LOOK_S + 1)
    return t + GRACE_S + (NCCL_S if fault.kind == "hang" else 0.0)


def train_through(cluster: Cluster, ends: Ends | None) -> int:
    """The last step that counts of a policy that gives its allocation back after each fault. Others are in the queue.

    Without ``ends`` it is the bound: it knows each fault at once and which machine will fail again, has always another
    one, and stops and starts in no time. What it loses is what no restart saves: the steps since the last save, and the
    load. It is above each policy, whatever strikes: its launches never come later, and from a later launch, or an
    earlier saved step, no job gets further.
    """
    track, launched, step = Track(cluster), 0.0 if ends is None else START_S, 0
    left = [(fault.t, n, fault) for n, fault in enumerate(cluster.faults) if cluster.is_struck_by(fault)]
    over = -NEVER  # when the job that was struck last ends
    while left:
        t, n, fault = heapq.heappop(left)
        if t >= cluster.end_s:
            break
        if t < over and fault.takes_machine:  # a job that idles ends with a machine that Slurm misses
            over = min(over, t + SLURMD_TIMEOUT_S)
            launched = over + QUEUE_S + START_S
        if t < launched:
            continue
        step = track.find_steps(step, t - launched)[1]
        if ends is None:
            launched = t
            continue
        over = ends(cluster, fault, t)
        launched = over + QUEUE_S + START_S
        if fault.again:
            later = Fault(t + fault.again[0], fault.kind, fault.place, fault.silent, fault.again[1:])
            heapq.heappush(left, (later.t, n, later))
    return track.find_steps(step, cluster.end_s - launched)[0]


def run_cluster(cluster: Cluster) -> ClusterScore:
    """Every policy."""
    spares = count_spares(cluster.machines)
    ours = OurRun(cluster, spares)
    last = ours.run()
    steps = {
        OURS: last,
        NO_SPARES: OurRun(cluster, 0).run() if spares else last,
        REQUEUE: train_through(cluster, ends_at_once),
        SCRIPT: train_through(cluster, ends_as_prime_rls),
        ORACLE: train_through(cluster, None),
    }
    ettr = {name: sum(cluster.steps[:step]) / cluster.end_s for name, step in steps.items()}
    struck = sum(cluster.is_struck_by(fault) for fault in cluster.faults)
    return ClusterScore(cluster.seed, cluster.machines, struck, ettr, ours.allocations, ours.gave_up)


def compare_clusters(sizes: Sequence[int], seeds: int, days: float) -> list[ClusterScore]:
    """Each seed of each size, in as many processes as there are cores."""
    jobs = [(seed, machines, days) for machines in sizes for seed in range(1, seeds + 1)]
    return run_side_by_side(_run_job, jobs)


def _run_job(job: tuple[int, int, float]) -> ClusterScore:
    return run_cluster(draw_cluster(*job))


def table(scores: Sequence[ClusterScore], days: float) -> str:
    """One line a size, means over its seeds, and what the figures are."""
    head = ["machines", "GPUs", "faults a day", OURS, "spares", "spares paid", NO_SPARES, REQUEUE, SCRIPT, ORACLE]
    rows = [[*head, "allocations*", "calls*"]]
    for machines in dict.fromkeys(one.machines for one in scores):
        mine = [one for one in scores if one.machines == machines]
        ettr = {name: mean(one.ettr[name] for one in mine) for name in mine[0].ettr}
        spares = count_spares(machines)
        paid = ettr[OURS] * machines / (machines + spares)
        shown = [f"{100 * ettr[name]:.2f} %" for name in (NO_SPARES, REQUEUE, SCRIPT, ORACLE)]
        faults, months = mean(one.faults for one in mine) / days, days / 30
        rows.append([str(machines), str(GPUS * machines), f"{faults:.3f}", f"{100 * ettr[OURS]:.2f} %"])
        rows[-1] += [str(spares), f"{100 * paid:.2f} %", *shown]
        rows[-1] += [f"{mean(getattr(one, name) for one in mine) / months:.1f}" for name in ("allocations", "called")]
    told = "* of ours in 30 days: allocations, the first one counted, and ends with 93, at which a person is called"
    return "\n".join([*columns(rows), "", told, SOURCE])
