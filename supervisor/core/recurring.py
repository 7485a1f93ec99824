"""What comes again and again although steps are made in between: crashes of one kind, and a GPU that fails each time.

The budget of restarts begins anew with each new complete step. These counts do not: only a person ends them.
"""

from __future__ import annotations

from supervisor.core.evolve import replace
from supervisor.core.machines import list_ooms
from supervisor.core.observe_job import HARMLESS_XIDS, LINK_XIDS
from supervisor.core.proof import CULPRIT_S
from supervisor.core.state import Crash, GpuTrouble, State
from supervisor.core.words import span

MOST = 50
DAY_S = 86400.0
LATE_S = 60.0
FIRST_TOLD = 3
HANGS = ("hang", "overdue", "stuck", "wedged", "silent")  # ends of causes
GPU_WITHIN_S = 6 * 3600.0
GPU_TIMES, LINK_TIMES = 3, 2  # a link is often well after one restart; if not, another restart does not help
FEW_GPUS = 2  # more of them at once: the program did it, or what they share


def gpu_faults_to_blame(state: State) -> list[GpuTrouble]:
    """The GPU faults of this attempt, shortly before its end, that may be why it failed, newest last."""
    end = state.job.ended.t if state.job.ended is not None else state.now
    since = max(end - CULPRIT_S, state.attempt.started)  # one that was told late counts for the attempt before, once
    return [one for one in state.gpus.trouble if one.t > since and one.xid not in HARMLESS_XIDS]


def note(state: State, cause: str) -> State:
    """Remember a failure."""
    crash = _with_gpus(Crash(state.now, cause, state.progress.step, state.attempt.resume_step), state)
    kept = [one for one in state.recovery.crashes if state.now - one.t < DAY_S]
    return replace(state, recovery=replace(state.recovery, crashes=(*kept, crash)[-MOST:]))


def _with_gpus(crash: Crash, state: State) -> Crash:
    # Of a GPU that has no name nothing is counted.
    faults = {one.uuid: one for one in gpu_faults_to_blame(state) if one.uuid}
    gpus = tuple(faults) if len(faults) <= FEW_GPUS else ()
    return replace(crash, gpus=gpus, link=any(one.xid in LINK_XIDS for one in faults.values()))


def told_late(before: State, state: State) -> State:
    """What the machine says just after a failure explains it as well: two sensors' facts have no order."""
    oom = list_ooms(state) != list_ooms(before)
    news = state.gpus.trouble is not before.gpus.trouble or oom
    if not news or state.live or not state.recovery.crashes or state.now - state.recovery.crashes[-1].t > LATE_S:
        return state
    *crashes, last = state.recovery.crashes
    state = replace(state, recovery=replace(state.recovery, crashes=(*crashes, _with_gpus(last, state))))
    if not state.recovery.failures or not (gpu_faults_to_blame(state) or oom):
        return state
    *failures, failure = state.recovery.failures
    return replace(state, recovery=replace(state.recovery, failures=(*failures, replace(failure, suspect=None))))


def failing_gpu(state: State) -> str:
    """What the GPU did that has failed too often by now, a clause; "" when there is none."""
    if not state.recovery.crashes:
        return ""
    for uuid in state.recovery.crashes[-1].gpus:
        times = [one for one in state.recovery.crashes if uuid in one.gpus and state.now - one.t < GPU_WITHIN_S]
        limit = LINK_TIMES if sum(one.link for one in times) >= LINK_TIMES else GPU_TIMES
        if len(times) >= limit:
            name = next((one.gpu for one in reversed(state.gpus.trouble) if one.uuid == uuid), "A GPU")
            lasted = span(state.now - times[0].t)
            return f"{name} ({uuid}) reported a fault before {len(times)} failures in {lasted}"
    return ""


def series(state: State) -> list[Crash]:
    """The failures of the newest one's kind, within a day, oldest first."""
    newest = state.recovery.crashes[-1:]
    return [one for one in state.recovery.crashes if one.cause == newest[0].cause] if newest else []


def sentence(state: State) -> str:
    """How often this kind has come by now, and what its failures have in common; "" while it is not worth a word."""
    found = series(state)
    if len(found) < FIRST_TOLD:
        return ""
    what = "hangs" if found[-1].cause.endswith(HANGS) else "crashes"
    words = [f"{len(found)} {what} of one kind ({found[-1].cause}) in {span(state.now - found[0].t)}"]
    steps = [one.step - (one.resume_step or 0) for one in found if one.step is not None]
    if not steps:
        words.append("each before its first step")
    elif len(steps) == len(found):
        low, high = min(steps), max(steps)
        words.append(f"each {low if low == high else f'{low} to {high}'} steps after it resumed")
    last = {one.resume_step if one.step is None else one.step for one in found}
    if steps and len(last) == 1 and None not in last:
        words.append(f"each after step {last.pop()}")  # the data or the code, rather than the machine
    common = set(found[0].gpus).intersection(*(one.gpus for one in found))
    if common:
        words.append(f"each with a fault of GPU {', '.join(sorted(common))}")
    if further := _resumed_further(found):
        words.append(f"{further} of them after a new checkpoint")
    return f"{', '.join(words)}."


def _resumed_further(found: list[Crash]) -> int:
    """How many resumed at a higher step than all before: a step back, or the same one again, is no progress."""
    count, highest = 0, found[0].resume_step or 0
    for one in found[1:]:
        if one.resume_step is not None and one.resume_step > highest:
            count, highest = count + 1, one.resume_step
    return count


def worth_saying(state: State) -> bool:
    """Is this count one at which a person hears of the series anew: 3, 6, 12, 24 ...?"""
    count = len(series(state))
    return count >= FIRST_TOLD and count % FIRST_TOLD == 0 and (count // FIRST_TOLD).bit_count() == 1
