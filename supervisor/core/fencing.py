"""Two pods, one run, one writer: what this pod may do while it does not hold the run, and which steps are left.

The store settles which pod holds the run (``supervisor.checkpoints.claims``). Nothing is started or published until
this pod has claimed it. A pod that loses it goes on with the job that it has, and keeps that job's checkpoints on its
disk; it publishes and deletes nothing in the store any more, and starts nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.choose import Choice, choose
from supervisor.core.evolve import replace
from supervisor.core.moves import EXIT_UNFIT, Actions, end, list_anew, say, with_all
from supervisor.core.records import LONGEST_WHY, Happened
from supervisor.core.state import NOT_SINCE, Fence, State
from supervisor.core.under_way import order_effect
from supervisor.core.watch import Watch
from supervisor.core.words import span

LINEAGE_AGAIN_S = 20.0
TAKE_OVER = "supervisorctl start --take-over"


def may_write(state: State) -> bool:
    """May this pod publish, and delete in the store?"""
    return not state.settings.fencing or (state.fence.generation is not None and not state.fence.lost)


def is_claim_unanswered(state: State) -> bool:
    """Is the store still being asked whether this pod holds the run?"""
    fence = state.fence
    return state.settings.fencing and fence.asked and fence.generation is None and not fence.by and not fence.reason


def may_get_the_run(state: State) -> bool:
    """May the run be this pod's soon? A store that is away is asked again and again.

    Its own claim from before a boot is watched for a few beats, and then over.
    """
    fence = state.fence
    asked = state.settings.fencing and fence.asked and fence.generation is None
    return (asked and not fence.by and not fence.permanent) or fence.own_stands_s is not None


def held_back(state: State) -> Choice | None:
    """Why nothing is started here although it may be known where to resume; None when nothing is in the way."""
    fence = state.fence
    if state.leave.stays_at is not None and state.settings.mode != "observe":
        return Choice("wait", None, "This pod was about to go. Should it stay, the run goes on here in a minute or so.")
    if may_write(state) or state.settings.mode == "observe":
        return None  # observing starts and restores nothing anyway
    if fence.lost:
        return Choice("wait", None, sentence_of_lost_run(state))
    if fence.by:
        return Choice("wait", None, fence.reason)
    if not fence.reason:
        return Choice("wait", None, "Asking the store whether another pod holds this run.")
    choice = choose(state)
    if choice.do in ("wait", "give-up") or state.orders.override:
        return choice  # the store cannot be listed either, which says more; or a person said where to begin
    if fence.once is not None and choice.do == "start" and choice.step is not None:
        # This journal held the run before, and its newest step is here. Nothing is written before it is claimed again.
        return Choice("start", choice.step, f"{choice.sentence} The store cannot say who holds the run: {fence.reason}")
    if fence.permanent:
        sentence = f"This pod cannot claim the run: {fence.reason} Nothing is started; mend the store's settings."
        return Choice("give-up", None, sentence)
    return Choice("wait", None, f"The store cannot say yet whether another pod holds this run: {fence.reason}")


def sentence_of_lost_run(state: State) -> str:
    """The sentence of a pod that was fenced."""
    fence = state.fence
    return (
        f"Pod {fence.by} has taken this run over (generation {fence.by_generation}): nothing is published, deleted or "
        f"started here any more. Take it back with: {TAKE_OVER}"
    )


def note(state: State) -> str:
    """What a person has to know of the run's holder whatever else is told; "" when this pod holds it."""
    if may_write(state) or not state.fence.asked:
        return ""
    return sentence_of_lost_run(state) if state.fence.lost else state.fence.reason


# ---------------------------------------------------------------- asking


def ask(state: State, *, take_over: bool) -> tuple[State, Actions]:
    """Ask for the run, before anything is started or published."""
    if not state.settings.fencing:
        return state, []
    return replace(state, fence=_fence_while_asked(state)), [a.Claim(take_over, state.fence.once or 0)]


def _fence_while_asked(state: State) -> Fence:
    return Fence(asked=True, once=state.fence.once, unswept=state.fence.unswept)


def begin(state: State) -> tuple[State, Actions]:
    """A daemon begins. One that only observes starts nothing, so it asks once it has a step to publish.

    Nor is the run asked for on a pod that was to go by now, and has given it back: the next pod would wait minutes for
    a holder that is dead.
    """
    if state.leave.stays_at is not None or (state.settings.mode == "observe" and not state.settings.take_over):
        return state, []
    return ask(state, take_over=state.settings.take_over)


def ask_again(state: State, *, take_over: bool) -> tuple[State, Actions]:
    """A person wants the run to go on here: a pod that was fenced, or waits, asks for it anew."""
    asked = state.fence.lost or (take_over and not may_write(state))
    return ask(state, take_over=take_over) if asked else (state, [])


def ask_to_publish(state: State, step: int | None) -> tuple[State, Actions]:
    """Observing, and a person's job has written ``step``, which is not in the store: ask for the run to publish it.

    It is given only when no pod holds it, or its holder's heartbeat has stood still for long enough.
    """
    if step is None or state.settings.mode != "observe" or state.fence.asked:
        return state, []
    return ask(state, take_over=False)


def release(state: State, code: int | None = None, reason: str = "") -> Actions:
    """The daemon ends, and nothing of the run goes on here. (Beside an observer a person's job goes on.)"""
    if not state.settings.fencing or not may_write(state) or state.settings.mode == "observe":
        return []
    return [a.Release(state.fence.generation or 0, state.leave.exit_at is not None, code, reason)]


# ---------------------------------------------------------------- facts


def _observe_claim(state: State, fact: f.Claimed) -> State:
    alone = not fact.watched and fact.generation == (state.fence.once or 0) + 1
    # Ours of before is not swept: the next publish goes on with what was half-sent.
    unswept = state.fence.unswept or not alone
    fence = Fence(asked=True, generation=fact.generation, once=fact.generation, unswept=unswept)
    state = replace(state, fence=fence)
    # Another pod may have published since the store was listed, and what it published is what counts.
    if alone:
        return state
    store, pins = replace(state.store, reason=NOT_SINCE, t=-1.0), replace(state.pins, holds_read=False)
    return replace(state, store=store, pins=pins)


def _observe_other_claim(state: State, fact: f.ClaimHeld) -> State:
    if fact.copied:
        sentence = (
            f"Pod {fact.by} claimed this run with this very state folder (generation {fact.generation}), and nothing "
            f"proves that it was this machine: its disk may be a copy. Its heartbeat moved {span(fact.age_s)} ago. "
            f"Nothing is started here until it has stood still for {span(fact.patience_s)}; at once with: {TAKE_OVER}"
        )
        before = state.fence.own_stands_s
        moved = before is not None and fact.age_s < before  # a living original beats: this disk is the copy
        return _held_by(state, fact, sentence, None if moved else fact.age_s)
    sentence = (
        f"Pod {fact.by} holds this run (generation {fact.generation}, its heartbeat moved {span(fact.age_s)} ago): "
        f"nothing is started here. It goes on here when that pod ends, or when its heartbeat stands still for "
        f"{span(fact.patience_s)}; at once with: {TAKE_OVER}"
    )
    return _held_by(state, fact, sentence)


def _held_by(state: State, fact: f.ClaimHeld, reason: str, own_stands_s: float | None = None) -> State:
    fence = replace(_fence_while_asked(state), by=fact.by, by_generation=fact.generation, reason=reason)
    fence = replace(fence, own_stands_s=own_stands_s)
    return replace(state, fence=fence, publishing=replace(state.publishing, held=f"pod {fact.by} held the run."))


def _observe_failed_claim(state: State, fact: f.ClaimFailed) -> State:
    fence = replace(_fence_while_asked(state), reason=fact.reason, permanent=fact.permanent)
    return replace(state, fence=fence, publishing=replace(state.publishing, held=fact.reason))


def _observe_takeover(state: State, fact: f.Fenced) -> State:
    fence = replace(state.fence, lost=True, by=fact.by, by_generation=fact.generation)
    return replace(state, fence=fence, publishing=replace(state.publishing, held=f"pod {fact.by} held the run."))


def _observe_written_lineage(state: State, fact: f.LineageKept) -> State:
    kept, left = state.lineage.unwritten[: fact.count], state.lineage.unwritten[fact.count :]
    latest = fact.pointer if fact.pointer is not None else state.store.latest
    return replace(
        state,
        lineage=replace(state.lineage, known=(*state.lineage.known, *kept), unwritten=left, after=0.0),
        store=replace(state.store, latest=latest),
    )


def _observe_unwritten_lineage(state: State, fact: f.LineageFailed) -> State:
    return replace(state, lineage=replace(state.lineage, after=state.now + LINEAGE_AGAIN_S))


HANDLERS: dict[type, Callable[[State, Any], State]] = {
    f.Claimed: _observe_claim,
    f.ClaimHeld: _observe_other_claim,
    f.ClaimFailed: _observe_failed_claim,
    f.Fenced: _observe_takeover,
    f.Swept: lambda state, fact: replace(state, fence=replace(state.fence, unswept=False)),
    f.LineageKept: _observe_written_lineage,
    f.LineageFailed: _observe_unwritten_lineage,
}


def react(before: State, state: State, fact: f.Fact) -> tuple[State, Actions]:
    """What is said of it, and whether the checkpoints have to be looked at anew, or the pod given up."""
    match fact:
        case f.Claimed():
            acts: Actions = [say("claimed", f"This pod holds the run now (generation {fact.generation}).")]
            if state.fence.unswept:
                acts.append(a.Sweep())
            if state.leave.asked:
                acts.append(a.MarkLeaving(fact.generation))  # it was told to end while it asked
            if state.mode != "surveying":
                return state, acts
            state, acts = list_anew(state, acts)
            if not fact.unfit:
                return state, acts
            return with_all(acts, end(state, "unfit", EXIT_UNFIT, f"This pod is unfit: {fact.unfit}"))
        case f.Swept() if fact.cancelled:
            sentence = f"Cancelled {fact.cancelled} unfinished uploads that pods before this one left in the store."
            return state, [say("swept", sentence)]
        case f.ClaimHeld() if (before.fence.by, before.fence.by_generation) != (fact.by, fact.generation):
            going_on = "The job that runs here goes on, and nothing of it is published. " if state.live else ""
            return state, [say("claim-held", going_on + state.fence.reason, "warning")]
        case f.ClaimFailed() if before.fence.reason != fact.reason:
            return state, [say("claim-failed", f"The run could not be claimed: {fact.reason}", "warning")]
        case f.Fenced() if not before.fence.lost:
            going_on = "The job goes on, and its checkpoints stay on this disk. " if state.live else ""
            return state, [say("fenced", going_on + sentence_of_lost_run(state), "error")]
        case f.LineageKept():
            back = f" latest.json went back to step {fact.pointer}." if fact.pointer is not None else ""
            return state, [say("lineage", f"The store knows which steps are left.{back}")]
        case f.LineageFailed():
            sentence = "The store does not know yet which steps are left, and nothing is published before"
            return state, [say("lineage", f"{sentence}: {fact.reason}", "warning")]
    return state, []


# ---------------------------------------------------------------- which steps are left


def went_back(state: State, step: int | None) -> State:
    """The run goes to ``step`` (None: a fresh start) on purpose; to be written down in the store."""
    why = state.orders.asked_why[:LONGEST_WHY]
    happened: tuple[Happened, ...] = (Happened("rollback", -1 if step is None else step, state.wall, why),)
    stored_left = any(s.step == step and s.left for s in state.store.steps)
    if step is not None and (stored_left or str(step) in state.set_aside()):
        happened = (*happened, Happened("take", step, state.wall_after(step)))
    return replace(state, lineage=replace(state.lineage, unwritten=(*state.lineage.unwritten, *happened)))


def keep_lineage(state: State, watch: Watch) -> tuple[State, Actions]:
    """Write down what is not in the store yet. The effect puts it before any publish that follows."""
    if not state.lineage.unwritten or state.busy.lineage is not None or not may_write(state):
        return state, []
    if state.settings.mode == "observe":
        return state, []  # which steps the run leaves is decided where it is acted upon
    if state.store.reason or not watch.over(state.lineage.after, 0.0):
        return state, []
    return order_effect(state, a.KeepLineage(state.lineage.unwritten))


def left_here(lineage: Iterable[Happened], local: Iterable[f.LocalStep]) -> Mapping[str, float]:
    """Local steps that were written before the run went back behind them, perhaps on another pod: step -> since when.

    The times are two pods' wall clocks: they only have to agree better than a run takes to reach a step anew.
    """
    happened = tuple(lineage)
    found: dict[str, float] = {}
    if not happened:
        return found
    for one in local:
        since: float | None = None
        for entry in happened:
            if one.changed_wall > entry.wall:
                continue
            if entry.kind == "take" and entry.step == one.step:
                since = None
            elif (entry.kind == "rollback" and one.step > entry.step) or (
                entry.kind == "quarantine" and one.step == entry.step
            ):
                since = entry.wall
        if since is not None:
            found[str(one.step)] = since
    return found
