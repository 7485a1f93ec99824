"""Fold what is known of disk, checkpoints and store, and what publishing, pruning and restoring came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from supervisor.core import facts as f
from supervisor.core import fencing
from supervisor.core import time_kinds as k
from supervisor.core.deadlines import with_span
from supervisor.core.evolve import replace, settle
from supervisor.core.save_under_way import SAVE
from supervisor.core.state import BEING_LISTED, State
from supervisor.core.tier import observe_tier
from supervisor.core.training_health import inherit_holds
from supervisor.core.watch import NEVER

CHOOSE_ANEW_S = 5.0
PRUNE_AGAIN_S = 60.0
HOLDS_LATER_S = 600.0  # where writing them down cannot succeed soon
STANDS_STILL_S = 15.0  # between two tries while the job stands still until a step is published
MOST_VERIFIED = 8
MOST_BEGUN = 64


# ---------------------------------------------------------------- disk, checkpoints, store


def _disk_look(state: State, fact: f.DiskLook) -> State:
    free = fact.free_bytes if fact.free_bytes is None or fact.free_bytes >= 0 else None  # less than nothing: unknown
    disk = replace(state.disk, total=fact.total_bytes, free=free, reason=fact.reason, t=state.now)
    settle(state, disk=replace(disk, host=fact.host, part=fact.part))
    return state


def _save_over(state: State, fact: f.LocalSteps) -> State:
    """The files tell when a save ended; older logs, at level "info", say nothing until the next step."""
    phase = state.job.phases.get("trainer")
    if phase is None or phase.phase != "checkpoint":
        return _save_unsaid(state, fact)
    saved = next((s for s in fact.steps if s.step == phase.step and s.state == "complete"), None)
    took = 0.0 if saved is None else state.now - (state.wall - saved.changed_wall) - phase.t
    if saved is None or took < 0:  # older than the save: another lineage's step, that is still to be written anew
        return state
    books = state.books.with_time(SAVE, took) if phase.timed else state.books
    others = {role: p for role, p in state.job.phases.items() if role != "trainer"}
    explained = state.job.explained if phase.over else with_span(state.job.explained, phase.t, phase.t + took)
    return replace(state, books=books, job=replace(state.job, phases=others, explained=explained))


def _save_unsaid(state: State, fact: f.LocalSteps) -> State:
    """A save that no line tells of: from the first sight of its files to the newest of them, so rather too short."""
    if state.books.ledger.seconds.get(k.SAVE):
        return state  # the lines of this run tell
    step, since = state.local.writing
    saved = next((s for s in fact.steps if s.step == step and s.state == "complete"), None)
    if saved is not None:
        state = replace(state, books=state.books.with_time(SAVE, saved.changed_wall - since))
    new = max((s.step for s in fact.steps if s.state == "writing" and state.live), default=-1)
    if saved is None and new <= step:
        return state
    return replace(state, local=replace(state.local, writing=(new, state.wall)))


def _local_steps(state: State, fact: f.LocalSteps) -> State:
    observed_pod_leaves = state.mode == "leaving" and state.settings.mode == "observe"
    if not fact.settled and (state.local.reason == BEING_LISTED or observed_pod_leaves):
        # A scan that was under way may hold the newest step for one that is still being written. And a job that trains
        # on completes one step after the other: the end waits for those that were there when it was asked for.
        return state
    if fact.reason:
        return replace(state, local=replace(state.local, reason=fact.reason))
    state = _save_over(state, fact)
    # A step that was quarantined, or left, and was written anew since is another checkpoint: another lineage's.
    bad = {**state.local.left, **state.store.quarantined}
    written = {str(s.step) for s in fact.steps if s.changed_wall > bad.get(str(s.step), float("inf"))}
    quarantined = {step: since for step, since in state.store.quarantined.items() if step not in written}
    left = {step: since for step, since in state.local.left.items() if step not in written}
    outdated = tuple(sorted({*state.local.outdated, *map(int, written)}))
    stored = tuple(s for s in state.store.steps if s.step not in outdated)
    steps = fact.steps if fact.settled or state.live else _still_whole(state.local.steps, fact.steps)
    state = replace(
        state,
        local=replace(state.local, steps=steps, reason="", left=left),
        store=replace(state.store, quarantined=quarantined, steps=stored),
    )
    state = _find_left(state)
    state = _explain_by_save(replace(state, local=replace(state.local, outdated=outdated)))
    best = max(state.good_local(), default=None)
    if best is None or (state.recovery.best_complete is not None and best <= state.recovery.best_complete):
        return state
    state = replace(state, recovery=replace(state.recovery, best_complete=best))
    # Also when it is found only after the attempt's end: a job that dies right after each save makes progress, too.
    if state.progress.step is None or best <= (state.attempt.resume_step or 0):
        return state
    # A new complete step is the only proof that the run goes on: its budget comes back. But the step that was left and
    # made anew is not left again: what crashes after both is the data's or the code's.
    recovery = state.recovery
    again = recovery.stepped_back and recovery.left_step is not None and best <= recovery.left_step
    return replace(state, recovery=replace(recovery, barren=0, failures=(), stepped_back=again, waits=0))


def _explain_by_save(state: State) -> State:
    """A save of a later step than any line has told of: the trainer worked until then, and the lines cannot be read."""
    progress = state.progress
    if progress.step is None or not state.live:
        return state
    made = [s.changed_wall for s in state.local.steps if s.state == "complete" and s.step > progress.step]
    saved = state.now - max(0.0, state.wall - max(made, default=0.0))
    if saved <= progress.t:
        return state
    return replace(state, job=replace(state.job, explained=with_span(state.job.explained, progress.t, saved)))


def _still_whole(known: Sequence[f.LocalStep], seen: Sequence[f.LocalStep]) -> tuple[f.LocalStep, ...]:
    """No job writes here. A scan that waits for quiet time takes no step back that a survey found whole."""
    whole = {(one.step, one.size_bytes, one.changed_wall) for one in known if one.state == "complete"}
    return tuple(
        replace(one, state="complete", reason="")
        if one.state == "writing" and (one.step, one.size_bytes, one.changed_wall) in whole
        else one
        for one in seen
    )


def _store_steps(state: State, fact: f.StoreSteps) -> State:
    if fact.reason:
        return replace(
            state,
            store=replace(state.store, reason=fact.reason, permanent=fact.permanent),
            publishing=replace(state.publishing, held=fact.reason),
        )
    anew = _published_anew(state.store.steps, fact.steps)
    # Of a quarantined step that another pod made anew, only the copy on this disk is left still.
    good = anew - {str(s.step) for s in fact.steps if s.left}
    quarantined = {step: since for step, since in state.store.quarantined.items() if step not in good}
    left = {**state.local.left, **{s: t for s, t in state.store.quarantined.items() if s in good}}
    if state.store.rolled_back is not None:
        step, wall = state.store.rolled_back
        quarantined = {**{str(s.step): wall for s in fact.steps if s.step > step}, **quarantined}
    since = state.store.unlisted_since
    lacked = fact.latest is not None and not any(s.committed and s.step == fact.latest for s in fact.steps)
    bare = {s.step for s in fact.steps if not s.committed and not s.manifest}
    ours = (s.step for s in state.store.steps if s.committed and not s.legacy and s.step in bare)
    state = remember_begun(state, *ours)
    if not state.pins.holds_read and not fact.pins_reason:
        worth = inherit_holds(state.worth, fact.holds, state.now)
        state = replace(state, worth=worth, pins=replace(state.pins, holds_read=True))
    state = replace(
        state,
        local=replace(state.local, left=left),
        store=replace(
            state.store,
            steps=tuple(s for s in fact.steps if s.step not in state.local.outdated),
            damaged={step: why for step, why in state.store.damaged.items() if step not in anew},
            verified=tuple(step for step in state.store.verified if str(step) not in anew),
            latest=fact.latest,
            unlisted_since=None if not lacked else state.now if since is None else since,
            reading=fact.reading,
            reason="",
            permanent=False,
            t=state.now,
            quarantined=quarantined,
            rolled_back=None,
        ),
        pins=replace(
            state.pins,
            steps=state.pins.steps if fact.pins_reason else fact.pinned,
            reason=fact.pins_reason,
            held=state.pins.held if fact.pins_reason else fact.held,
            holds=state.pins.holds if fact.pins_reason else fact.holds,
        ),
        lineage=replace(state.lineage, known=fact.happened),
    )
    state = _find_left(state)
    return replace(state, store=replace(state.store, published=max(state.good_stored(), default=None)))


def _find_left(state: State) -> State:
    """Which steps on this disk the run has left; what the store has of them is judged by the store's own word.

    What was found once stays: a listing may be older than what this pod wrote down.
    """
    left = {**state.local.left, **fencing.left_here(state.lineage.known, state.local.steps)}
    if any((s.step, s.manifest) == state.local.restored and s.committed and not s.left for s in state.store.steps):
        left.pop(str(state.local.restored[0]), None)
    return replace(state, local=replace(state.local, left=left))


def remember_begun(state: State, *steps: int) -> State:
    """Remember stored steps as ours: begun to be sent, or to be deleted."""
    new = tuple(step for step in steps if step not in state.store.begun)
    return replace(state, store=replace(state.store, begun=(*state.store.begun, *new)[-MOST_BEGUN:])) if new else state


def _published_anew(before: tuple[f.StoredStep, ...], now: tuple[f.StoredStep, ...]) -> set[str]:
    """Steps with another manifest than at the last look: perhaps another pod's, and another checkpoint anyway.

    What this pod published itself has no manifest's id here until the next listing; then nothing is known to differ.
    """
    known = {s.step: s.manifest for s in before if s.manifest}
    return {str(s.step) for s in now if s.manifest and known.get(s.step, s.manifest) != s.manifest}


def _observe_publish(state: State, fact: f.Published) -> State:
    others = tuple(s for s in state.store.steps if s.step != fact.step)
    stored = tuple(sorted((*others, f.StoredStep(fact.step, True, fact.size_bytes)), key=lambda s: s.step))
    # latest.json goes back to no lower step, but from one that is quarantined.
    above = max((s.step for s in others if s.step == state.store.latest and not s.left), default=-1)
    latest = max(fact.step, above) if str(above) not in state.store.quarantined else fact.step
    return replace(
        state,
        store=replace(
            state.store,
            steps=stored,
            latest=latest,
            published=latest,
            damaged={step: why for step, why in state.store.damaged.items() if step != str(fact.step)},
        ),
        books=replace(state.books, records_t=-NEVER),  # what a next pod begins with goes along
        local=replace(state.local, outdated=tuple(step for step in state.local.outdated if step != fact.step)),
        publishing=replace(
            state.publishing,
            failures=0,
            permanent=False,
            reason="",
            held="",
            took_s=fact.seconds if fact.sent_bytes else state.publishing.took_s,
            after=state.now,
        ),
        disk=replace(state.disk, nothing_said=False),
    )


def _publish_failed(state: State, fact: f.PublishFailed) -> State:
    if fact.left:  # until it is written anew it is not asked for again
        quarantined = {**state.store.quarantined, str(fact.step): state.wall_after(fact.step)}
        state = replace(state, store=replace(state.store, quarantined=quarantined))
    failures = 0 if fact.step_changed else state.publishing.failures + 1
    wait = 600.0 if fact.permanent else min(600.0, state.settings.publish_retry_s * 2 ** min(failures - 1, 6))
    if state.mode == "disk-full":
        wait = min(wait, STANDS_STILL_S)
    return replace(
        state,
        publishing=replace(
            state.publishing,
            failures=failures,
            permanent=fact.permanent,
            reason="" if fact.step_changed else fact.reason,
            held=state.publishing.held if fact.step_changed else fact.reason,
            # A step that changed is not listed anew at once, and until then the same one would be chosen again.
            after=state.now + (CHOOSE_ANEW_S if fact.step_changed else wait),
        ),
    )


def _observe_pruning(state: State, fact: f.Pruned) -> State:
    if fact.where == "store":
        left = tuple(s for s in state.store.steps if s.step != fact.step)
        return replace(state, store=replace(state.store, steps=left))
    remaining = tuple(s for s in state.local.steps if s.step != fact.step)
    free = state.disk.free + round(state.disk.part * fact.freed_bytes) if state.disk.free is not None else None
    return replace(state, local=replace(state.local, steps=remaining), disk=replace(state.disk, free=free))


def _prune_failed(state: State, fact: f.PruneFailed) -> State:
    if fact.where == "store":
        return replace(state, store=replace(state.store, prune_after=state.now + PRUNE_AGAIN_S))
    # Forget it until the next scan lists it again, or the same failing step would be asked for at once.
    remaining = tuple(s for s in state.local.steps if s.step != fact.step)
    return replace(state, local=replace(state.local, steps=remaining))


def _pin_kept(state: State, fact: f.PinKept) -> State:
    if state.pins.wishes.get(str(fact.step)) != fact.pinned or (fact.reason and not fact.permanent):
        return state  # the person changed their mind meanwhile, or it is asked for anew with the next look at the store
    wishes = {step: pinned for step, pinned in state.pins.wishes.items() if step != str(fact.step)}
    pins = {*state.pins.steps}
    if not fact.reason:
        pins = pins | {fact.step} if fact.pinned else pins - {fact.step}
    return replace(state, pins=replace(state.pins, wishes=wishes, steps=tuple(sorted(pins))))


def _holds_kept(state: State, fact: f.HoldsKept) -> State:
    state = replace(state, pins=replace(state.pins, holds_reason=fact.reason))
    if fact.reason:
        wait = HOLDS_LATER_S if fact.permanent else fencing.LINEAGE_AGAIN_S
        return replace(state, pins=replace(state.pins, holds_after=state.now + wait))
    return replace(state, pins=replace(state.pins, held=fact.steps, holds=fact.holds))


def _store_checked(state: State, fact: f.StoreChecked) -> State:
    # What was said of a listing alone, which may have been seconds old, a later listing may take back. What was said
    # of bytes only bytes take back.
    good = {str(step) for step in fact.good if fact.deep or step in state.store.doubted}
    damaged = {step: why for step, why in state.store.damaged.items() if step not in good} | fact.damaged
    doubted = () if fact.deep else {int(step) for step in fact.damaged if step not in state.store.damaged}
    doubted = tuple(sorted({*doubted, *(step for step in state.store.doubted if str(step) in damaged)}))
    verified = _newest_verified(state, fact.good) if fact.deep else state.store.verified
    verified = tuple(step for step in verified if str(step) not in fact.damaged)
    return replace(state, store=replace(state.store, damaged=damaged, doubted=doubted, verified=verified))


def _newest_verified(state: State, steps: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({*state.store.verified, *steps}))[-MOST_VERIFIED:]


def _observe_restore(state: State, fact: f.Restored) -> State:
    step = f.LocalStep(fact.step, "complete", "", fact.size_bytes, changed_wall=state.wall)
    here = tuple(sorted((*(s for s in state.local.steps if s.step != fact.step), step), key=lambda s: s.step))
    left = {name: t for name, t in state.local.left.items() if name != str(fact.step)}
    verified = _newest_verified(state, (fact.step,)) if fact.verified else state.store.verified
    manifest = next((s.manifest for s in state.store.steps if s.step == fact.step), "")
    local = replace(state.local, steps=here, left=left, restored=(fact.step, manifest))
    return replace(state, local=local, store=replace(state.store, verified=verified))


def _restore_failed(state: State, fact: f.RestoreFailed) -> State:
    damaged = {**state.store.damaged, str(fact.step): fact.reason} if fact.damaged else state.store.damaged
    return replace(state, store=replace(state.store, damaged=damaged))


HANDLERS: dict[type, Callable[[State, Any], State]] = {
    **fencing.HANDLERS,
    f.DiskLook: _disk_look,
    f.LocalSteps: _local_steps,
    f.TierLook: observe_tier,
    f.StoreSteps: _store_steps,
    f.Published: _observe_publish,
    f.PublishFailed: _publish_failed,
    f.Pruned: _observe_pruning,
    f.PruneFailed: _prune_failed,
    f.PinKept: _pin_kept,
    f.HoldsKept: _holds_kept,
    f.StoreChecked: _store_checked,
    f.Restored: _observe_restore,
    f.RestoreFailed: _restore_failed,
}
