"""Is all well: does the run train, and does what it trains reach the store? What a dead-man heartbeat stands for.

A watcher that is blind or degraded must not look healthy, so whatever is unknown here counts as not well.
"""

from __future__ import annotations

from itertools import pairwise

from supervisor.base.records import dataclass
from supervisor.core import fencing, leaving
from supervisor.core.deadlines import step_began, step_limits
from supervisor.core.retention import disk_critical, disk_short, next_save_bytes, which_disk
from supervisor.core.state import State
from supervisor.core.words import size, span

PAUSED_S = 600.0  # for so long a person may leave the supervisor paused
MISSED = 3  # so many checkpoints have not come
PACE = 4  # the newest ones, which show how often they come
UNSAVED_S = 1800.0  # before that, a save that takes long or is seen late explains it
STALE_S = 360.0  # the loop's state is never older than its longest tick, five minutes, while it turns


@dataclass(frozen=True)
class Tolerance:
    """How far publishing may fall behind. ``steps``: training steps that a lost pod would cost; None: any number.

    ``saves_every``: the steps between two checkpoints as far as they are set; None: by the run's own pace alone.
    """

    behind_s: float = 7200.0
    steps: int | None = None
    saves_every: int | None = None


def troubles(state: State, now: float, wall: float, tolerance: Tolerance) -> tuple[str, ...]:
    """Why the run is not well, each a clause for people; empty while it is.

    ``now`` is the core's clock, ``wall`` Unix time.
    """
    found = [
        _loop(state, now),
        leaving.word(state),
        _why_not_training(state, now),
        _why_paused(state, now),
        _why_not_holding(state),
        publish_lag(state, wall, tolerance),
        _why_nothing_saved(state, wall, tolerance),
        _disk(state),
    ]
    return tuple(clause for clause in found if clause)


def _loop(state: State, now: float) -> str:
    age = now - state.now
    return f"the supervisor's loop has not turned for {span(age)}" if age > STALE_S else ""


def _why_not_training(state: State, now: float) -> str:
    if state.mode != "running":
        if state.leave.asked:
            return ""  # that this pod goes says it all
        return f"the run does not train ({state.mode}): {state.why.rstrip('.') or 'nothing is known of it yet'}"
    soft, hard = step_limits(state)
    # What a save or an evaluation took explains a late step.
    since = now - step_began(state)
    if since > hard or (since > soft and state.suspicion.sentence):
        about = f": {state.suspicion.sentence.rstrip('.')}" if state.suspicion.sentence else ""
        return f"no step is done since {span(since)}{about}"
    return ""


def _why_paused(state: State, now: float) -> str:
    if not state.orders.paused or now - state.orders.paused_t <= PAUSED_S:
        return ""
    return f"the supervisor has been paused for {span(now - state.orders.paused_t)}"


def _why_not_holding(state: State) -> str:
    return "" if fencing.may_write(state) else fencing.note(state).rstrip(".") or "this pod does not hold the run"


def publish_lag(state: State, wall: float, tolerance: Tolerance) -> str:
    """Why what is trained does not reach the store, a clause; "" while it does."""
    stored = state.good_stored()
    newest = stored[-1] if stored else None
    waiting = [s for s in state.local.steps if s.state == "complete" and (newest is None or s.step > newest)]
    why = state.publishing.reason or state.store.reason
    about = f": {why.rstrip('.')}" if why else ""
    named = "nothing" if newest is None else f"step {newest}"
    if waiting:
        oldest = min(waiting, key=lambda one: one.changed_wall)
        waits = wall - oldest.changed_wall
        if waits > tolerance.behind_s:
            return f"step {oldest.step} has waited {span(waits)} to be published, and {named} is in the store{about}"
    done = state.progress.step
    if tolerance.steps is not None and done is not None:
        behind = done - (newest or 0)
        if behind > tolerance.steps:
            return f"step {done} is done and {named} is in the store: a lost pod would cost {behind} steps{about}"
    return ""


def _why_nothing_saved(state: State, wall: float, tolerance: Tolerance) -> str:
    """Steps go on and none of them is saved: nothing waits to be published then, and a lost pod costs them all."""
    done = state.progress.step
    if done is None or state.mode != "running":
        return ""
    local = {one.step: one.changed_wall for one in state.local.steps if one.state == "complete" and one.step <= done}
    known = sorted({*local, *(one.step for one in state.store.steps if one.committed and one.step <= done)})
    newest = max(known, default=state.attempt.resume_step or 0)
    last = known[-PACE:]
    gaps = [later - earlier for earlier, later in pairwise(last)]
    usual = max([*gaps, tolerance.saves_every or 0])
    if usual <= 0 or done - newest <= MISSED * usual:
        return ""
    if wall - max(state.since_wall, local.get(newest, 0.0)) < UNSAVED_S:
        return ""  # so many steps take no time here, or the run has only just begun
    return (
        f"no checkpoint is complete since step {newest}, and step {done} is done: one every {usual} steps is usual, "
        f"and a lost pod would cost {done - newest} steps"
    )


def _disk(state: State) -> str:
    if disk_critical(state):
        return f"the {which_disk(state)} is full ({size(state.disk.free or 0)} free)"
    if disk_short(state):
        return f"the next checkpoint, of about {size(next_save_bytes(state))}, does not fit on the {which_disk(state)}"
    return ""
