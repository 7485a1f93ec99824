"""Publish, prune, keep the store small, and leave when nothing is left to do: at most one effect of a kind."""

from __future__ import annotations

from supervisor.core import actions as a
from supervisor.core import fencing, leaving, pinned_steps
from supervisor.core.account import ledger_until_now
from supervisor.core.evolve import replace
from supervisor.core.moves import EXIT_OK, EXIT_TRY_AGAIN, Actions, say, stop_budget
from supervisor.core.observe_steps import remember_begun
from supervisor.core.retention import (
    disk_over,
    disk_short,
    next_save_bytes,
    next_to_publish,
    pinned_here,
    room_to_go_on,
    safe_locally,
    victims_in_store,
    which_disk,
)
from supervisor.core.state import BEING_LISTED, State
from supervisor.core.under_way import order_effect
from supervisor.core.watch import Watch
from supervisor.core.words import numbers, size

RECORDS_S = 1800.0
LEAVE_S = 60.0  # what a shutdown leaves at least for the last publish, after the job is stopped
ENDED_WITHIN_S = 400.0  # of a plain SIGTERM: what sent it kills after 420 s (the unit, `docker stop -t 420`)
STALE_AGAIN_S = 600.0
PRUNE_PATIENCE_S = 120.0  # how long a deletion that makes no room keeps the job from being stopped
LISTED_WITHIN_S = 60.0
NEEDS_ENGINE = ("starting", "running", "stopping", "surveying", "restoring", "backing-off")
LAST_PUBLISH_S = 3600.0  # how long giving up waits for the last good step to reach the store


def upkeep(state: State, watch: Watch) -> tuple[State, Actions]:
    """Publish, prune, keep the store small: one effect of a kind at a time."""
    acts: Actions = []
    for part in (_engine, _stays, fencing.keep_lineage, pinned_steps.keep_holds):
        state, more = part(state, watch)
        acts += more
    busy = state.busy
    may_publish = watch.over(state.publishing.after, 0.0) and fencing.may_write(state)
    going = state.leave.exit_at is not None  # nothing is tidied up on a pod that is about to go
    if not fencing.may_write(state) and not state.store.reason:
        state, claim = fencing.ask_to_publish(state, next_to_publish(state))
        acts += claim
    if busy.publish is None and may_publish and not state.store.reason:
        step = next_to_publish(state)
        wait = state.mode == "leaving" and _awaits_listing(state)  # for the newest step: there may be time for one
        if step is not None and not state.ending.said and not wait and leaving.time_to_publish(state):
            if skipped := [s for s in state.good_local() if _is_skipped(state, s, step)]:
                acts.append(say("skipped", _why_skipped(state, step, skipped)))
            back = str(state.store.latest) in state.store.quarantined
            publish = a.Publish(step, back, dict(state.progress.rewards).get(step))
            state, ordered = order_effect(remember_begun(state, step), publish)
            acts += ordered
    # Where the job waits for room, it is made until it may go on, not only until the next save fits.
    waits = state.mode == "disk-full" and state.disk.free is not None and state.disk.free <= room_to_go_on(state)
    full = not going and (disk_over(state) or disk_short(state) or waits)
    if state.busy.prune_local is None and full and not state.local.reason and watch.over(state.disk.prune_after, 0.0):
        state, more = _prune_local(state, watch)
        acts += more
    # Beside a publish that has only just begun, too: where steps come faster than the link carries them, one follows
    # another without a pause, and a store in which nothing is ever deleted grows until its cap is reached.
    if busy.prune_store is None and not state.store.reason and busy.publish is None:
        victims = victims_in_store(state)
        if victims and may_publish and not going and watch.over(state.store.prune_after, 0.0):
            state, ordered = order_effect(state, a.PruneStore(victims[0]))
            acts += ordered
    return state, acts


def _engine(state: State, watch: Watch) -> tuple[State, Actions]:
    """An inference server of our own that no job needs any more is stopped."""
    own = state.own
    needed = own.wanted and state.mode in NEEDS_ENGINE
    if not own.alive or own.asked or needed or not watch.over(own.stop_after, 0.0):
        return state, []
    state = replace(state, own=replace(own, asked="stop", wanted=False))
    return state, [a.StopEngine(own.number, state.why, stop_budget(state))]


def _stays(state: State, watch: Watch) -> tuple[State, Actions]:
    """A pod that was to go is still there: its run is asked for anew, and goes on here."""
    stays_at = state.leave.stays_at
    if stays_at is None or state.leave.asked or not watch.over(stays_at, 0.0):
        return state, []
    return fencing.begin(replace(state, leave=replace(state.leave, stays_at=None)))


def keep_records(state: State, watch: Watch) -> tuple[State, Actions]:
    """What the run learned and what it cost goes to the store: after each publish, now and then, and at the end."""
    if state.store.reason or state.mode == "new" or not state.journal or not fencing.may_write(state):
        return state, []
    last = state.ending.code is not None and state.books.records_t < state.since
    if not last and not watch.over(state.books.records_t, RECORDS_S):
        return state, []
    state = replace(state, books=replace(state.books, records_t=state.now))
    return state, [a.KeepRecords(state.books.learned, state.journal, ledger_until_now(state))]


def _is_skipped(state: State, step: int, chosen: int) -> bool:
    stored = {s.step for s in state.store.steps if s.committed}
    return step < chosen and step not in stored and (state.store.published is None or step > state.store.published)


def _why_skipped(state: State, step: int, skipped: list[int]) -> str:
    """A slow link is blamed only where nothing else kept the steps from being sent since the last one that was."""
    steps = numbers(skipped)
    if not state.publishing.held:
        return f"Steps complete faster than the link carries them: {steps} skipped."
    are = "is" if len(skipped) == 1 else "are"
    why = state.publishing.held.rstrip(".")
    return f"Step {step} is sent next, and {steps} {are} skipped, since nothing could be published meanwhile: {why}."


def _prune_local(state: State, watch: Watch) -> tuple[State, Actions]:
    keep = 1 if disk_short(state) else state.settings.keep_local
    victims = safe_locally(state, keep)
    if state.disk.stale_attempt != state.attempt.number or watch.over(state.disk.stale_t, STALE_AGAIN_S):
        # What is left of steps that are gone, and what starts moved out of the way: nothing needs it at any time.
        kept = min((s.step for s in state.local.steps if s.step not in victims), default=0)
        disk = replace(state.disk, stale_attempt=state.attempt.number, stale_t=state.now, prune_t=state.now)
        return order_effect(replace(state, disk=disk), a.PruneStale(kept))
    if victims:
        disk = replace(state.disk, prune_t=state.now)
        return order_effect(replace(state, disk=disk), a.PruneLocal(victims[0]))
    if state.disk.nothing_said:
        return state, []
    free, total = state.disk.free or 0, state.disk.total or 1
    sentence = (
        f"The {which_disk(state)} is {100 * (1 - free / total):.0f} % full ({size(free)} free) and no local step is "
        f"safe to delete yet: {_why_nothing(state, keep)}."
    )
    if disk_short(state):
        needs, reserve = size(next_save_bytes(state)), size(state.settings.stop_below_bytes)
        sentence += f" The next checkpoint, of about {needs}, does not fit beside the {reserve} that stay free."
    return replace(state, disk=replace(state.disk, nothing_said=True)), [say("disk", sentence, "warning")]


def _why_nothing(state: State, keep: int) -> str:
    if not any(s.committed for s in state.store.steps):
        return "nothing is published yet" + (f" ({state.publishing.reason})" if state.publishing.reason else "")
    pinned = f", and so does what is pinned and only here: {numbers(here)}" if (here := pinned_here(state)) else ""
    return ("the newest complete step stays" if keep == 1 else f"the {keep} newest complete steps stay") + pinned


def leave(state: State, watch: Watch) -> tuple[State, Actions]:
    """End the daemon once nothing is left to publish, or the time for it is over."""
    if state.ending.said:
        return state, []
    if leaving.over(state, watch):
        # Perhaps in the midst of a stop. Another daemon ends that, and goes on only on a pod that stays after all.
        code = EXIT_TRY_AGAIN if state.ending.code is None else state.ending.code
        return _exit(state, code, "This pod's time is up.")
    if state.ending.code is None:
        return state, []
    engine = (state.own.alive or state.own.asked != "") and state.settings.mode == "act"
    publishing = (
        (state.busy.publish is not None and not leaving.hopeless(state))
        or _awaits_listing(state)
        # Also with nothing to publish: a claim that arrives after the end would keep the next pod waiting.
        or (fencing.is_claim_unanswered(state) and state.now - state.since < LEAVE_S)
        or (
            state.busy.publish is None
            and next_to_publish(state) is not None
            and leaving.time_to_publish(state)
            and _may_still_publish(state)
        )
    )
    publishing = publishing and state.now < publish_until(state)
    patience_s = LEAVE_S if state.mode == "leaving" else LAST_PUBLISH_S
    engine = engine and (state.leave.exit_at is not None or state.now < state.since + patience_s)
    return (state, []) if publishing or engine else _exit(state, state.ending.code, state.why)


def _may_still_publish(state: State) -> bool:
    """Does the store take the last step, or may it before the time for it is over? A store that is away comes back."""
    holds = fencing.may_write(state) or fencing.may_get_the_run(state)
    return holds and not (state.publishing.permanent or (state.store.reason != "" and state.store.permanent))


def _awaits_listing(state: State) -> bool:
    """Is the disk being listed before the end? One that hangs is not waited for for ever; a tier is emptied before."""
    listed_soon = state.now - state.since < LEAVE_S or (bool(state.tier.waiting) and not state.tier.failed)
    return state.local.reason == BEING_LISTED and listed_soon


def _exit(state: State, code: int, reason: str) -> tuple[State, Actions]:
    """End the daemon. The last sentence of all names what would go with this disk."""
    unpublished = leaving.list_unpublished(state)
    told = [say("unpublished", unpublished, "error")] if unpublished else []
    why = f"{state.why} {unpublished}".rstrip()
    state = replace(state, why=why, ending=replace(state.ending, said=True, code=code))
    last = f"{reason} {unpublished}".rstrip()
    # A daemon that is shut down, or whose pod goes, ends well (0). The run has not: another pod goes on with it.
    goes_on = state.mode == "leaving" and state.attempt.after_stop != "finish" and code == EXIT_OK
    left_with = EXIT_TRY_AGAIN if goes_on else code
    return state, [*told, *fencing.release(state, left_with, last), a.Exit(code, last)]


def publish_until(state: State) -> float:
    """When the last publish is waited for no longer. One that moves no byte fails before, in the store's patience."""
    if state.leave.exit_at is not None:
        return state.leave.exit_at
    if state.mode == "gave-up" and state.attempt.after_stop == "finish":
        return state.since  # of a run that is finished it was waited for before
    if not (state.mode == "leaving" or state.leave.asked) or state.leave.why:  # no kill comes at a known time
        return state.since + LAST_PUBLISH_S
    return max(state.since + LEAVE_S, state.leave.since + ENDED_WITHIN_S)


def can_free(state: State, watch: Watch) -> bool:
    """Is something being deleted here, or about to be, that may make room in time?"""
    if state.busy.prune_local is not None:
        return not watch.over(state.disk.prune_t, PRUNE_PATIENCE_S)
    if state.local.reason:  # then nothing is deleted
        asked = state.local.asked
        return state.local.reason == BEING_LISTED and asked is not None and not watch.over(asked, LISTED_WITHIN_S)
    something = bool(safe_locally(state, keep=1)) or state.disk.stale_attempt != state.attempt.number
    return watch.over(state.disk.prune_after, 0.0) and something
