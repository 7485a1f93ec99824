"""This pod is about to go: what is still done in the time that is left, in the order of its worth.

First the store is told, so that the next pod need not wait long (``MarkLeaving``). What is nearly published is
finished, then what is complete is published where that fits. The job is stopped at once, since no trainer saves on
demand in so little time, unless a save is under way that can be finished *and* published. At the end the run is given
back.
"""

from __future__ import annotations

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core import fencing
from supervisor.core.deadlines import save_of_trainer
from supervisor.core.evolve import replace
from supervisor.core.moves import EXIT_OK, Actions, enter, say, stop, with_all
from supervisor.core.proof import judge_exit
from supervisor.core.retention import next_to_publish, pinned_here
from supervisor.core.save_under_way import SAVE
from supervisor.core.state import BEING_LISTED, NOT_LISTED, UNANSWERED, Leave, Next, State
from supervisor.core.tier import only_there
from supervisor.core.watch import Watch
from supervisor.core.words import numbers, span

COMMIT_S = 2.0  # manifest, listing and pointer, after the last byte of a step
LEAST_STOP_S = 3.0  # a job that is killed, and a look at what it left
HOPELESS = 3.0  # an estimate may be wrong by this factor before a publish under way is given up
WORTH_SAVING_S = 10.0  # for less it is not given up
LEAST_RESERVE_S, MOST_RESERVE_S = 1.0, 5.0


def reserve(within_s: float) -> float:
    """Seconds kept for giving the run back and ending: a fifth of the time, one at least and five at most."""
    return min(MOST_RESERVE_S, max(LEAST_RESERVE_S, within_s / 5))


# ---------------------------------------------------------------- it begins


def soon(state: State, fact: f.LeaveSoon) -> tuple[State, Actions]:
    """The pod goes. A second word counts only where it leaves less time than the first."""
    known, until = state.leave, None if fact.within_s is None else state.now + max(0.0, fact.within_s)
    if known.asked and (until is None or (known.until is not None and known.until <= until)):
        return state, []
    exit_at = None if until is None or fact.within_s is None else until - reserve(max(0.0, fact.within_s))
    leave = replace(known, asked=True, why=fact.why, since=state.now, until=until, exit_at=exit_at, told="")
    if not known.asked:
        leave = replace(leave, save=_being_saved(state))
    state = replace(state, leave=leave)
    told: Actions = [say("leaving", f"{_when(state)} {_the_job(state)}", "warning")]
    if not known.asked:
        told = [*_mark(state), *told]
    if state.is_being_stopped and exit_at is not None:
        told.append(a.Hurry())
    return with_all(told, end_of_the_run_here(state, f"This pod is about to go ({fact.why})."))


def leave_without_notice(state: State) -> tuple[State, Actions]:
    """The daemon is to end, and how soon is unknown: its host may be going down too."""
    if state.leave.asked:
        return state, []
    return replace(state, leave=Leave(asked=True, since=state.now)), _mark(state)


def _mark(state: State) -> Actions:
    return [a.MarkLeaving(one.generation) for one in fencing.release(state) if isinstance(one, a.Release)]


def end_of_the_run_here(state: State, reason: str) -> tuple[State, Actions]:
    """Stop the job, or wait for its save; without a job the daemon leaves once all is published."""
    if state.live and _save_fits(state, Watch(state.now)):
        return state, []  # ``live`` stops it
    # The next daemon has to know that training is over.
    over = state.mode in ("publishing", "finishing") or (
        state.mode == "stopping" and state.attempt.after_stop == "finish"
    )
    after: Next = "finish" if over else "shutdown"
    if state.holds_a_job:
        return stop(state, after, reason)
    if state.mode == "leaving":
        return state, []
    return once_published(replace(state, attempt=replace(state.attempt, after_stop=after)), reason)


def once_published(state: State, reason: str) -> tuple[State, Actions]:
    """No job runs here any more: the daemon ends once what is complete here is published, or cannot be.

    The disk is listed first, for a job that has ended may have completed one more step. What the store could not answer
    before is asked once more: that answer may be minutes old, and the next try minutes away.
    """
    away = NOT_LISTED if state.store.reason not in ("", *UNANSWERED) else state.store.reason
    if state.ending.code is None:  # else it gave up, or is unfit, and a person or another pod has to know
        state = replace(enter(state, "leaving", reason), ending=replace(state.ending, code=EXIT_OK))
    state = replace(
        state,
        fence=replace(state.fence, reason=state.fence.reason if state.fence.by else "", permanent=False),
        local=replace(state.local, reason=BEING_LISTED),
        store=replace(state.store, reason=away, permanent=False),
        publishing=replace(state.publishing, failures=0, permanent=False, after=state.now),
    )
    return state, [a.Survey()]


# ---------------------------------------------------------------- the job


def live(state: State, watch: Watch) -> tuple[State, Actions]:
    """A job that still runs on a pod that is about to go: until its save is done, or nothing comes of it."""
    if state.job.ended is None and _save_fits(state, watch):
        return state, []
    end = judge_exit(state, watch)
    if end is not None and end.kind == "finished":
        return stop(state, "finish", end.sentence)
    return stop(state, "shutdown", f"This pod is about to go ({state.leave.why}).")


def _save_fits(state: State, watch: Watch) -> bool:
    """Is a checkpoint being written that can be complete, and published, before the pod is gone?"""
    exit_at, phase = state.leave.exit_at, save_of_trainer(state)
    if exit_at is None or state.leave.save is None or _being_saved(state) != state.leave.save:
        return False  # also when the next save has begun: one is waited for, not one after another
    # Where nothing was ever published, or saved, its time is unknown; without it the step is lost anyway.
    stop_at = exit_at - LEAST_STOP_S - (state.publishing.took_s if state.publishing.took_s is not None else COMMIT_S)
    usual = state.books.learned.phases.get(SAVE)
    if phase is not None and usual is not None and phase.t + usual.median_s > stop_at:
        return False
    return not watch.over(stop_at, 0.0)


def _being_saved(state: State) -> int | None:
    """The step that is being saved, as the trainer or its files tell."""
    phase, newest = save_of_trainer(state), max(state.local.steps, key=lambda one: one.step, default=None)
    if phase is not None and phase.step is not None:
        return phase.step
    return newest.step if newest is not None and newest.state == "writing" else None


# ---------------------------------------------------------------- what is published


def time_to_publish(state: State) -> bool:
    """May a publish be begun? Not one that takes longer, by the last one, than this pod has."""
    exit_at, took = state.leave.exit_at, state.publishing.took_s
    return exit_at is None or (state.now + (COMMIT_S if took is None else took) <= exit_at)


def hopeless(state: State) -> bool:
    """Can the publish under way by no means be done in time? Then the next pod waits for nothing."""
    needs, exit_at = _needs(state), state.leave.exit_at
    left = 0.0 if exit_at is None else exit_at - state.now
    return needs is not None and left > WORTH_SAVING_S and needs > HOPELESS * left


def _needs(state: State) -> float | None:
    """Seconds that the publish under way still takes; None while that is unknown."""
    moves = state.leave.moves
    if moves is None or moves.step != state.busy.publish:
        return None
    if moves.phase == "checking":
        return COMMIT_S
    if moves.phase != "sending" or moves.rate <= 0:
        return None
    return max(0, moves.total_bytes - moves.moved_bytes) / moves.rate + COMMIT_S


def report_publish_progress(state: State) -> tuple[State, Actions]:
    """Say, whenever the answer is another one, whether the publish under way can be done in time."""
    needs, exit_at, moves = _needs(state), state.leave.exit_at, state.leave.moves
    if needs is None or exit_at is None or moves is None:
        return state, []
    left = max(0.0, exit_at - state.now)
    answer = "hopeless" if hopeless(state) else "in time" if needs <= left else "late"
    if answer == state.leave.told:
        return state, []
    ends = {
        "in time": "it can be done.",
        "late": "it is tried, and what arrived stays for this pod's disk, should that come back.",
        "hopeless": "it is given up, and what arrived stays for this pod's disk, should that come back.",
    }
    done = 100 * moves.moved_bytes // moves.total_bytes if moves.total_bytes else 100
    sentence = f"Step {moves.step} is sent to {done} %: about {span(needs)} more, and {span(left)} are left: "
    return replace(state, leave=replace(state.leave, told=answer)), [say("leaving", sentence + ends[answer])]


# ---------------------------------------------------------------- the end, and words


def list_unpublished(state: State, tries_s: float | None = None) -> str:
    """What a lost disk, or a lost tier, would take along; "" without anything. See ``_only_here``."""
    there = only_there(state) if max(state.tier.waiting, default=-1) > max(state.good_stored(), default=-1) else ""
    if there and tries_s is None:
        there += " A lost host loses it; the next start of the daemon copies it to the run's own volume first."
    return " ".join(filter(None, (there, _only_here(state, tries_s))))


def _only_here(state: State, tries_s: float | None) -> str:
    """What is complete on this disk and, as far as is known, not in the store; "" without any.

    It is the daemon's last sentence. ``tries_s``: before that, how long the daemon goes on trying.
    """
    stored = max(state.good_stored(), default=-1)
    # The daemon sends no pinned step again that the store has deleted: it is told of at the end.
    here = {*(pinned_here(state) if tries_s is None else ()), *(s for s in state.good_local()[-1:] if s > stored)}
    by_hand, fence = f"rl-supervisor publish {state.settings.run_file}", state.fence
    if not here:
        if state.local.reason in ("", NOT_LISTED):
            return ""
        reason = "it was not listed in time" if state.local.reason == BEING_LISTED else state.local.reason
        return (
            f"Which steps are complete on this disk is not known: {reason.rstrip('.')}. The newest one may not be in "
            f"the store, so look before you end this pod: {by_hand} --dry-run"
        )
    only = f"Step {numbers(here)} is complete and only on this disk"
    if fence.by and fence.own_stands_s is None:
        return f"{only}, since pod {fence.by} holds the run (generation {fence.by_generation})."
    claim = f"the claim of pod {fence.by} (generation {fence.by_generation})"
    why = f"nothing proves yet that {claim} was made on this machine" if fence.by else why_unpublished(state)
    newest = "The store has none, as far as is known." if stored < 0 else f"The store's newest is step {stored}."
    if tries_s is not None:
        why = why.rstrip(".") or "it is on its way to the store"
        return f"{only}: {why}. {newest} Do not end this pod: the daemon goes on trying for {span(tries_s)}."
    if not why:
        asking = fencing.is_claim_unanswered(state) or state.store.reason
        why = "the store has not answered in time" if asking else "there was no time to publish it"
        why = why if max(here) > stored else "a person pinned it, and the store has newer ones"
    publish = f"Publish the step with: {' and '.join(f'{by_hand} --step {step}' for step in sorted(here))}"
    return f"{only}: {why.rstrip('.')}. {newest} Do not end this pod. {publish}"


def why_unpublished(state: State) -> str:
    """What the last try said, or the store; "" where neither has said anything yet."""
    away = "" if state.store.reason in UNANSWERED else state.store.reason
    return state.publishing.reason or away or state.fence.reason


def over(state: State, watch: Watch) -> bool:
    """Has the daemon to go now, whatever is still under way?"""
    return state.leave.exit_at is not None and watch.over(state.leave.exit_at, 0.0)


def note(state: State) -> str:
    """For ``status``; "" while this pod stays."""
    return _when(state) if state.leave.asked and state.leave.why else ""


def word(state: State) -> str:
    """A clause. A daemon that is told to end knows nothing of its pod; "" while it goes on."""
    if not state.leave.asked:
        return ""
    return "this pod is about to go" if state.leave.why else "the daemon is about to end"


def _when(state: State) -> str:
    leave = state.leave
    if leave.until is None:
        return f"This pod is about to go, without a time for it ({leave.why})."
    return f"This pod goes in {span(max(0.0, leave.until - state.now))} ({leave.why})."


def _the_job(state: State) -> str:
    step = next_to_publish(state) if fencing.may_write(state) else None
    waits = f"Step {step} is still to be published." if step is not None else ""
    if not state.live:
        return waits or "Nothing runs here."
    if _save_fits(state, Watch(state.now)):
        return "The job goes on until the checkpoint that it writes is complete: there is time to publish that."
    if state.busy.publish is not None:
        waits = f"Step {state.busy.publish} is on its way to the store."
    return f"The job is stopped at once: no step that it could still train would be kept. {waits}".rstrip()
