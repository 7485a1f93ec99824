"""What waits after a failure, and which facts show that its cause is gone: then it waits no longer.

A back-off guesses how long a cause lasts. A request that the store answers, or room on the disk, shows that it is over.
"""

from __future__ import annotations

from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.retention import disk_short
from supervisor.core.state import State


def is_back(before: State, state: State, fact: f.Fact) -> bool:
    """Does ``fact``, which led from ``before`` to ``state``, show that the store, or room on the disk, is there again?

    A listing shows it only where the one before failed: a store that is full, or a key that may not write, lists well.
    """
    match fact:
        case f.StoreBack() | f.Published() | f.LineageKept() | f.Swept() | f.Claimed():
            return True
        case f.PinKept():
            return not fact.reason
        case f.Pruned():
            return fact.where == "store"
        case f.StoreSteps():
            return not fact.reason and before.store.reason != ""
        case f.DiskLook():
            return disk_short(before) and not disk_short(state)
    return False


def wake(state: State) -> State:
    """End the waits that have to do with the store, the network or room. One after crashes of the job stays."""
    now, publishing, recovery = state.now, state.publishing, state.recovery
    state = replace(state, lineage=replace(state.lineage, after=min(state.lineage.after, now)))
    if publishing.reason:
        state = replace(state, publishing=replace(publishing, after=min(publishing.after, now)))
    if state.mode == "surveying" and state.store.reason:
        state = replace(state, local=replace(state.local, asked=None))
    if recovery.backoff_outside:
        state = replace(state, recovery=replace(recovery, backoff_until=min(recovery.backoff_until, now)))
    return state
