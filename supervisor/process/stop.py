"""Stopping an attempt: the job's own rules first, then the whole tree, then what it left, then its GPU memory.

Safe to repeat, and safe on an attempt of an earlier life of the daemon: everything is found anew from the records.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Event

from supervisor.base.own_child import NEVER
from supervisor.base.records import dataclass
from supervisor.jobs.base import StopRules
from supervisor.process import own_cgroup, segments, strangers, transient
from supervisor.process.survivors import (
    Belongings,
    Identity,
    Process,
    alive,
    describe_survivor,
    process_table,
    send_signal,
)

LEAST_KILL_S = 15.0  # tearing down a GPU context with hundreds of gigabytes of pinned memory takes seconds
MOST_KILL_S = 60.0
ORPHAN_PATIENCE_S = 20.0  # orphans have no coordinator: what has not ended by then never will
SHIM_PATIENCE_S = 3.0
SURE_LOOKS = 2  # one look may miss a process that was forked, and its parent, which ended, in the same moment
SURE_LOOKS_ALONE = 10  # where no shim lives and no control group holds them: a busy machine looks slowly
FORKING_PATIENCE_S = 1.0  # what is still there after so many SIGKILLs forks faster than we look, or hangs
GPU_SILENCE_S = 5.0  # a driver that says nothing for so long will not say more
FIRST_POLL_S, LAST_POLL_S = 0.02, 0.25
UPLOADERS = ("wandb-core",)
"""Helpers that get no signal of ours beside their parent's: wandb-core sends what it has and ends when its parent does
(wandb, core/pkg/server/server.go: it looks each 0.1 s). Without its parent it gets ``UPLOAD_S``."""
UPLOAD_S = 10.0


@dataclass(frozen=True)
class StopReport:
    """How a stop went.

    ``survivors``: one sentence for each process that is still alive; ``gpu_free``: None when the driver does not say;
    ``killed``: processes that SIGKILL had to end; ``segments``: shared-memory files that were removed;
    ``gpu_holders``: where the memory is not back, one phrase for each process on these GPUs that is not the run's.
    """

    seconds: float
    survivors: tuple[str, ...]
    gpu_free: bool | None
    killed: int
    segments: tuple[str, ...] = ()
    gpu_holders: tuple[str, ...] = ()


def stop_attempt(  # noqa: PLR0917 (everything that a stop hangs on, in the order in which it is used)
    attempt_dir: Path,
    components: Sequence[str],
    run_id: str,
    rules: StopRules,
    budget_s: float,
    gpu_free: Callable[[], bool | None],
    gpu_wait_s: float,
    *,
    hurry: Event = NEVER,
    known: Iterable[Identity] = (),
    also: Iterable[Path] = (),
    gpu_pids: Callable[[], Iterable[int]] = tuple,
    brief: bool = False,
    at_once: bool = False,
) -> StopReport:
    """Stop everything that belongs to the attempt. Blocks; meant for a worker thread.

    ``components``: their names, all with a record when empty. ``budget_s``: seconds for signals and killing; what the
    rules ask for is cut to fit, and at least 15 s are given to the kernel to end what was killed. ``gpu_free``: is
    the memory of the run's GPUs back (None: unknown). ``hurry``: when set, patience ends and the killing starts.
    ``known``: pids with start ticks that a sensor saw in this attempt (finds what cleared its environment and lost
    its shim). ``also``: folders of earlier attempts of the run, of which nothing may be left either. ``gpu_pids``: what
    the driver lists on the run's GPUs; asked only when their memory does not come back, to say who has it. ``brief``:
    the pod has seconds left, so nothing is waited for that only the next start on it would need. ``at_once``: the job
    has failed, and where the rules know a way for that, all of it is told in one moment. Raises nothing of its own.
    """
    begun = time.monotonic()
    tree = Belongings(attempt_dir, components, run_id, known, also)
    ours = segments.held_by(tree.jobs(), 0.0 if brief else segments.D_STATE_PATIENCE_S).files
    # Of earlier attempts only those count that still live: one that ended long ago would make everything seem its own.
    recent = [*tree.own, *(one for one in tree.of_this_boot if alive(one.shim) or alive(one.child))]
    began_wall = min((record.started_wall for record in recent), default=None)
    end_of_patience = begun + max(0.0, budget_s - min(LEAST_KILL_S, budget_s / 3))

    signals = rules.signals
    if at_once := at_once and rules.at_once_s is not None:
        signals = [(rules.signals[0][0], rules.at_once_s)]
    for signum, patience_s in signals:
        if not tree.jobs() or hurry.is_set() or time.monotonic() >= end_of_patience:
            break
        until = min(time.monotonic() + patience_s, end_of_patience)
        _ask_to_end(tree, signum, until, hurry, uploads_until=end_of_patience if at_once else None)
    killed, left = _kill_all(tree, max(begun + budget_s, time.monotonic() + LEAST_KILL_S))
    if not left:
        left = _end_shims(tree)
    for unit in tree.units:
        transient.forget_unit(unit)
    for folder in tree.cgroups:
        own_cgroup.remove_group(folder)

    brief = brief or hurry.is_set()
    removed = segments.remove_stale(began_wall, ours, brief=brief)
    free = _wait_for_gpus(gpu_free, 0.0 if brief else gpu_wait_s, hurry)
    holders: tuple[str, ...] = ()
    if free is False:
        holders = strangers.on_the_gpus(gpu_pids(), (process.identity for process in tree.list_living()))
    return StopReport(
        seconds=time.monotonic() - begun,
        survivors=tuple(map(describe_survivor, left)),
        gpu_free=free,
        killed=killed,
        segments=tuple(removed),
        gpu_holders=holders,
    )


def _ask_to_end(
    tree: Belongings, signum: int, until: float, hurry: Event, *, uploads_until: float | None = None
) -> None:
    """Send one signal and wait until everything is gone or patience ends.

    It goes to the components' own processes alone: a launcher that is asked takes the rest down in its order. Once
    those are gone, each orphan gets it too, since no other process tells it. ``uploads_until``: all of it is told at
    once, and what sends rows on has until then at most. The others get SIGTERM right after the components: a launcher
    then writes down that it was told before it sees a part end, and joins what has ended.
    """
    at_once = uploads_until is not None
    told: set[Identity] = set()
    poll = FIRST_POLL_S
    alone = False
    while (left := tree.jobs()) and time.monotonic() < until:
        asked = [process for process in left if process.identity in tree.mains]
        if at_once:
            asked += [process for process in left if process not in asked and process.name not in UPLOADERS]
        if not asked and not alone:
            alone = True
            longest = until if uploads_until is None else uploads_until
            until = min(longest, time.monotonic() + (UPLOAD_S if at_once else ORPHAN_PATIENCE_S))
        if not at_once:
            asked = asked or left
        for process in asked:
            if process.identity not in told:
                told.add(process.identity)
                is_part = at_once and process.identity not in tree.mains
                send_signal(process.identity, signal.SIGTERM if is_part else signum)
            if process.state == "T":
                send_signal(process.identity, signal.SIGCONT)  # a stopped process gets nothing but SIGKILL
        if hurry.wait(poll):
            return
        poll = min(poll * 1.5, LAST_POLL_S)


def _kill_all(tree: Belongings, until: float) -> tuple[int, list[Process]]:
    """SIGKILL until nothing is left; returns how many got it and who did not end.

    The shims live on, so that whatever is orphaned by this falls to them and stays within reach.
    """
    begun = time.monotonic()
    until = min(until, begun + MOST_KILL_S)
    units = list(tree.units)
    killed: set[Identity] = set()
    poll = FIRST_POLL_S
    quiet = 0
    while True:
        left = tree.jobs()
        for process in left:
            if send_signal(process.identity, signal.SIGKILL):
                killed.add(process.identity)
        # The kernel ends a whole group in one moment, also one that forks faster than we look and so is never seen.
        for folder in tree.cgroups:
            own_cgroup.kill_group(folder)
        quiet = 0 if left or any(map(own_cgroup.is_populated, tree.cgroups)) else quiet + 1
        within_reach = bool(tree.cgroups) or any(map(alive, tree.shims))
        if quiet >= (SURE_LOOKS if within_reach else SURE_LOOKS_ALONE):
            return len(killed), []
        if quiet and not within_reach:
            _kill_unseen(tree)
            poll = FIRST_POLL_S
        if time.monotonic() > begun + FORKING_PATIENCE_S and not all(process.state == "D" for process in left):
            _kill_groups(tree, left)
            poll = FIRST_POLL_S
        if time.monotonic() > until:
            if not units:
                return len(killed), left
            transient.stop_unit(units.pop())  # systemd may still reach what we may not
            continue
        time.sleep(poll)
        poll = min(poll * 1.5, LAST_POLL_S)


def _kill_unseen(tree: Belongings) -> None:
    """SIGKILL to the groups that the jobs' own processes led, though no look shows a member.

    What forks each millisecond may be missed by every look; the kernel finds it by the number of its group.
    """
    mains = {pid for pid, _ in tree.mains}
    for group in mains.intersection(tree.sessions(process_table())):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _kill_groups(tree: Belongings, left: list[Process]) -> None:
    """SIGKILL to whole groups: of the transient units, and of processes.

    The shims of units are in there, and die too: only where nothing else helps. A signal to a process group reaches
    everyone in it in one moment, and who is forking then is not done with it (fork(2) is begun anew after the signal).
    Its number cannot have changed hands between the look and the signal: others had to be given all numbers first.
    """
    pids = [process.pid for process in left] + [pid for pid, _ in filter(alive, tree.shims)]
    for folder in filter(None, map(own_cgroup.folder_of, pids)):
        for unit in (folder, *folder.parents):
            if unit.name in tree.units:
                own_cgroup.kill_group(unit)
    for group in tree.whole_groups():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _end_shims(tree: Belongings) -> list[Process]:
    """Wait for the shims to write what they have to write and go; then make them. Returns who is left of all."""
    for signum in (None, signal.SIGTERM, signal.SIGKILL):
        if signum is not None and any(map(alive, tree.shims)):
            _kill_groups(tree, [])  # who stays still has children, even if no look has ever caught one of them
            for shim in tree.shims:
                send_signal(shim, signum)
        until = time.monotonic() + SHIM_PATIENCE_S
        while any(map(alive, tree.shims)) and time.monotonic() < until:
            time.sleep(FIRST_POLL_S)
    # A process that was being forked while its parent was killed shows up only now.
    return _kill_all(tree, time.monotonic() + LEAST_KILL_S)[1] if tree.jobs() else []


def _wait_for_gpus(gpu_free: Callable[[], bool | None], limit_s: float, hurry: Event) -> bool | None:
    """Until the GPUs' memory is back or the limit; a driver that gives no answer at all is not waited for long."""
    begun = time.monotonic()
    heard = False
    while True:
        free = gpu_free()
        if free:
            return True
        heard = heard or free is not None
        waited = time.monotonic() - begun
        if waited >= limit_s or hurry.is_set() or (not heard and waited >= GPU_SILENCE_S):
            return free
        time.sleep(min(LAST_POLL_S, limit_s))
