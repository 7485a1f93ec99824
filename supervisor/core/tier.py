"""What is known of the faster file system on which the trainer saves, and when the run stops using it.

A step that lies only there is no step for the rest of the core: it counts once it is whole on the run's own volume.
"""

from __future__ import annotations

from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.state import BEING_LISTED, State, Tier

OUT_OF_MEMORY = "the kernel ended a process because memory was full while checkpoints lay in memory"


def observe_tier(state: State, fact: f.TierLook) -> State:
    """Take over what an effect tells; that the run stops using the tier stays known.

    A step that waited and waits no more may be on the volume now: before a start the steps are listed anew.
    """
    tier = Tier(fact.folder, fact.waiting, fact.in_memory, fact.failed, fact.over or state.tier.over)
    if state.mode == "surveying" and set(state.tier.waiting) - set(fact.waiting) and not state.local.reason:
        state = replace(state, local=replace(state.local, reason=BEING_LISTED))
    return replace(state, tier=tier)


def end_out_of_memory(state: State) -> State:
    """End the use of a tier in memory: the kernel has just ended a process because memory was full."""
    if not state.tier.in_memory or state.tier.over:
        return state
    return replace(state, tier=replace(state.tier, over=OUT_OF_MEMORY))


def learn_peak(state: State, fact: f.HostLook) -> int | None:
    """The most memory that the run has needed, in bytes, as far as it is known.

    Nothing is learned while a tier lies in memory (it would count as the job's need), nor before an attempt's first
    step (a job that loads has not used yet what it needs).
    """
    known, total, left = state.host.peak_bytes, fact.memory_total_bytes, fact.memory_available_bytes
    if total is None or left is None or state.tier.in_memory or state.progress.step is None:
        return known
    return max(known or 0, total - left)


def only_there(state: State) -> str:
    """Which steps a lost host would take along although they are whole, a sentence; "" without any."""
    if not state.tier.waiting:
        return ""
    one = len(state.tier.waiting) == 1
    which = f"{'Step' if one else 'Steps'} {', '.join(map(str, state.tier.waiting))} {'is' if one else 'are'}"
    why = f": {state.tier.failed.rstrip('.')}" if state.tier.failed else ""
    return f"{which} whole only on the tier, {state.tier.folder}{why}."
