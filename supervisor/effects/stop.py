"""Stopping an attempt: the job's own rules first, then the whole tree, then what it left, then its GPU memory.

Safe to repeat, and safe on an attempt of an earlier life of the daemon: everything is found anew from the records.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from supervisor.effects import segments, transient
from supervisor.effects.survivors import Belongings, Identity, Process, alive, describe, send
from supervisor.jobs.base import StopRules

LEAST_KILL_S = 15.0  # tearing down a GPU context with hundreds of gigabytes of pinned memory takes seconds
MOST_KILL_S = 60.0
ORPHAN_PATIENCE_S = 20.0  # nobody coordinates orphans: what has not ended by then never will
SHIM_PATIENCE_S = 3.0
GPU_SILENCE_S = 5.0  # a driver that says nothing for so long will not say more
FIRST_POLL_S, LAST_POLL_S = 0.02, 0.25


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a stop went.

    ``survivors``: one sentence for each process that is still alive; ``gpu_free``: None when the driver does not say;
    ``killed``: processes that SIGKILL had to end; ``segments``: shared-memory files that were removed.
    """

    seconds: float
    survivors: tuple[str, ...]
    gpu_free: bool | None
    killed: int
    segments: tuple[str, ...] = ()


def stop_attempt(  # noqa: PLR0917 (everything that a stop hangs on, in the order in which it is used)
    attempt_dir: Path,
    components: Sequence[str],
    run_id: str,
    rules: StopRules,
    budget_s: float,
    gpu_free: Callable[[], bool | None],
    gpu_wait_s: float,
    *,
    hurry: Event | None = None,
    known: Iterable[Identity] = (),
) -> StopReport:
    """Stop everything that belongs to the attempt. Blocks; meant for a worker thread.

    ``components``: their names, all with a record when empty. ``budget_s``: seconds for signals and killing; what the
    rules ask for is cut to fit, and at least 15 s are given to the kernel to end what was killed. ``gpu_free``: is
    the memory of the run's GPUs back (None: unknown). ``hurry``: when set, patience ends and the killing starts.
    ``known``: pids with start ticks that a sensor saw in this attempt (finds what cleared its environment and lost
    its shim). Raises nothing of its own.
    """
    begun = time.monotonic()
    tree = Belongings(attempt_dir, components, run_id, known)
    ours = segments.held_by(tree.jobs()).files
    end_of_patience = begun + max(0.0, budget_s - min(LEAST_KILL_S, budget_s / 3))

    for signum, patience_s in rules.signals:
        if not tree.jobs() or (hurry is not None and hurry.is_set()) or time.monotonic() >= end_of_patience:
            break
        _ask(tree, signum, min(time.monotonic() + patience_s, end_of_patience), hurry)
    killed, left = _kill(tree, max(begun + budget_s, time.monotonic() + LEAST_KILL_S))
    if not left:
        left = _end_shims(tree)
    for unit in tree.units:
        transient.forget(unit)

    began_wall = min((record.started_wall for record in tree.records), default=None)
    removed = segments.remove_stale(began_wall, ours)
    free = _wait_for_gpus(gpu_free, gpu_wait_s)
    return StopReport(
        seconds=time.monotonic() - begun,
        survivors=tuple(map(describe, left)),
        gpu_free=free,
        killed=killed,
        segments=tuple(removed),
    )


def _ask(tree: Belongings, signum: int, until: float, hurry: Event | None) -> None:
    """Send one signal and wait until everything is gone or patience ends.

    It goes to the components' own processes alone: a launcher that is asked takes the rest down in its order. Once
    those are gone, each orphan gets it too, since nobody else will tell it.
    """
    told: set[Identity] = set()
    poll = FIRST_POLL_S
    orphaned = False
    while (left := tree.jobs()) and time.monotonic() < until:
        mains = [process for process in left if process.identity in tree.mains]
        if not mains and not orphaned:
            orphaned = True
            until = min(until, time.monotonic() + ORPHAN_PATIENCE_S)
        for process in mains or left:
            if process.identity not in told:
                told.add(process.identity)
                send(process.identity, signum)
            if process.state == "T":
                send(process.identity, signal.SIGCONT)  # a stopped process gets nothing but SIGKILL
        if hurry is not None and hurry.wait(poll):
            return
        if hurry is None:
            time.sleep(poll)
        poll = min(poll * 1.5, LAST_POLL_S)


def _kill(tree: Belongings, until: float) -> tuple[int, list[Process]]:
    """SIGKILL until nothing is left; returns how many got it and who did not end.

    The shims live on, so that whatever is orphaned by this falls to them and stays within reach.
    """
    until = min(until, time.monotonic() + MOST_KILL_S)
    units = list(tree.units)
    killed: set[Identity] = set()
    poll = FIRST_POLL_S
    while left := tree.jobs():
        for process in left:
            if send(process.identity, signal.SIGKILL):
                killed.add(process.identity)
        if time.monotonic() > until:
            if not units:
                return len(killed), left
            transient.stop(units.pop())  # the kernel kills a cgroup at once, also one that forks faster than we look
            continue
        time.sleep(poll)
        poll = min(poll * 1.5, LAST_POLL_S)
    return len(killed), []


def _end_shims(tree: Belongings) -> list[Process]:
    """Wait for the shims to write what they have to write and go; then make them. Returns who is left of all."""
    for signum in (None, signal.SIGTERM, signal.SIGKILL):
        for shim in tree.shims:
            if signum is not None:
                send(shim, signum)
        until = time.monotonic() + SHIM_PATIENCE_S
        while any(map(alive, tree.shims)) and time.monotonic() < until:
            time.sleep(FIRST_POLL_S)
    # A process that was being forked while its parent was killed shows up only now.
    return _kill(tree, time.monotonic() + LEAST_KILL_S)[1] if tree.jobs() else []


def _wait_for_gpus(gpu_free: Callable[[], bool | None], limit_s: float) -> bool | None:
    """Until the GPUs' memory is back or the limit; a driver that gives no answer at all is not waited for long."""
    begun = time.monotonic()
    heard = False
    while True:
        free = gpu_free()
        if free:
            return True
        heard = heard or free is not None
        waited = time.monotonic() - begun
        if waited >= limit_s or (not heard and waited >= GPU_SILENCE_S):
            return free
        time.sleep(min(LAST_POLL_S, limit_s))
