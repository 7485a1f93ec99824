"""What costs money and does not go on, or hardly: said again while it lasts, with its age and what a person can do.

After ten minutes, after an hour, then every three hours: a line that comes once is read by no one, and one that comes
each minute neither. Nothing else follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from supervisor.core import fencing
from supervisor.core.evolve import replace
from supervisor.core.goodput import Ledger
from supervisor.core.moves import Actions, say
from supervisor.core.pictures import MOVING_CORES, name_picture
from supervisor.core.state import BEING_LISTED, Reminder, State
from supervisor.core.watch import Watch
from supervisor.core.words import numbers, size, span

FIRST_S, SECOND_S, THEN_EVERY_S = 600.0, 3600.0, 3 * 3600.0
WAITING = ("surveying", "restoring", "backing-off")
STILL_START = "start-shows-nothing-new"
STILL_START_S = FIRST_S  # and FIRST_S more until it is said
DOWNLOADING = "downloading"  # many a healthy start does that for ten minutes: said from the hour on
PODS = 2  # so many in a row that published nothing are worth a word


def remind(state: State, watch: Watch) -> tuple[State, Actions]:
    """Say it if it is time."""
    what = _what(state, watch)
    known = state.reminder
    if what != (known.what if known else ""):
        known = Reminder(what, state.now, times=1 if what == DOWNLOADING else 0) if what else None
        state = replace(state, reminder=known)
    if known is None or not watch.over(known.since, _moment(known.times)):
        return state, []
    age = state.now - known.since
    while age >= _moment(known.times):
        known = replace(known, times=known.times + 1)
    watch.over(known.since, _moment(known.times))
    told = {"two-pods": _two_pods, DOWNLOADING: _remind_of_download, STILL_START: _remind_of_still_start}
    sentence = told.get(what, _remind_of_idle_pod)(state, age)
    return replace(state, reminder=known), [say(what, sentence, "error")]


def _moment(times: int) -> float:
    """Seconds after its beginning at which it is said for the next time, having been said ``times`` times."""
    return FIRST_S if times == 0 else SECOND_S + THEN_EVERY_S * (times - 1)


def _what(state: State, watch: Watch) -> str:
    if state.orders.paused or state.leave.asked:
        return ""
    if state.live:
        fence = state.fence
        if fence.lost or fence.by:
            return "two-pods"
        # A new daemon asks who holds the run; until it is told, what was so is so.
        if state.reminder and state.reminder.what == "two-pods" and fence.asked and fence.generation is None:
            return "two-pods"
        if state.mode != "starting":
            return ""
        if _downloads(state):
            return DOWNLOADING
        # Only of a run that has never made a step: of later starts it is known how long they take.
        is_first = state.progress.highest is None
        return STILL_START if is_first and watch.over(_shown_last(state), STILL_START_S) else ""
    return "waiting" if state.mode in WAITING else ""


def _downloads(state: State) -> bool:
    growth = state.job.growth.get("download")
    return growth is not None and growth.grown_s > 0 and state.now - growth.t < FIRST_S


def _shown_last(state: State) -> float:
    """When the start last showed something new: a phase, files that grow, tokens, rollouts."""
    job = state.job
    shown = [state.attempt.started, state.engine.worked_t]
    shown += [phase.t for phase in job.phases.values()] + [growth.t for growth in job.growth.values()]
    return max(shown + ([job.work.moved_t] if job.work is not None else []))


def _remind_of_still_start(state: State, age: float) -> str:
    lasts = span(state.now - _shown_last(state))
    return (
        f"The first start has shown nothing new for {lasts}, and this pod is paid meanwhile. {_describe_wait(state)} "
        "Look at the job's logs: supervisorctl tail. End it, if it is stuck, with: supervisorctl stop."
    )


def _describe_wait(state: State) -> str:
    """What the start waits for, as far as anything shows it."""
    job, look = state.job, state.engine.look
    waits = [one.last.waits for one in job.efforts.values() if one.last.waits]
    if waits:
        return f"A process waits for a disk or a driver: {waits[0]}."
    download = job.growth.get("download")
    if download is not None and download.grown_s > 0:
        return f"It seems to wait for a download, which stands at {size(download.size_bytes)}."
    if name_picture(state) in ("spins", "mixed"):
        return "The trainer's ranks wait for each other: one of them may not have come up, or cannot be reached."
    trainer = job.efforts.get("trainer")
    if trainer is not None and trainer.last.cores >= MOVING_CORES:
        return f"The trainer uses {trainer.last.cores:.0f} cores and no GPU: it may compile, or prepare its data."
    if state.settings.has_engine and look is not None and not state.engine.ever_ok:
        return f"The inference server has not opened its port: {look.endpoint} says {look.health}."
    if not any(one.role == "trainer" for one in job.processes.values()):
        return "No trainer process was seen yet."
    return "Nothing shows what it waits for."


def _remind_of_download(state: State, age: float) -> str:
    fetched = size(state.job.growth["download"].size_bytes)
    return (
        f"The start has made no step for {span(age)}: a download still grows ({fetched} by now), and this pod is paid "
        "meanwhile. If that is too slow, look at the network, or take another pod."
    )


def _two_pods(state: State, age: float) -> str:
    holder = f"pod {state.fence.by} holds it" if state.fence.by else "another pod holds it"
    return (
        f"Two pods are paid for one run: {holder} since {span(age)} or more, and the job that runs here goes on "
        f"unpublished. End it with: supervisorctl stop. Or take the run back with: {fencing.TAKE_OVER}"
    )


def _remind_of_idle_pod(state: State, age: float) -> str:
    words = [f"No job has run here for {span(age)}, and this pod is paid meanwhile. {state.why.rstrip('.')}."]
    if state.fence.lost or state.fence.by:
        words.append("If that is right, end this pod.")
    elif state.store.reason and state.local.reason in ("", BEING_LISTED):
        words.append("It goes on by itself when the store answers; look at network, key and bucket with:")
        words.append("rl-supervisor check --online RUN.toml.")
        if here := state.good_local():
            words.append(f"Complete on this disk: {numbers(here)}; start there with:")
            words.append("rl-supervisor run RUN.toml --step N.")
        else:
            words.append("No step of the run is on this disk: if the store stays away, end this pod and take another.")
    return " ".join(words)


# ---------------------------------------------------------------- pods


def pods_without_progress(ledgers: Mapping[str, Ledger]) -> str:
    """A sentence where the newest pods before this one published nothing, one after another; else ""."""
    newest = sorted(ledgers.values(), key=lambda one: one.began_wall or 0.0, reverse=True)
    fruitless = list(takewhile(lambda ledger: not ledger.uploads, newest))
    if len(fruitless) < PODS:
        return ""
    spent = span(sum(ledger.total_s for ledger in fruitless))
    return (
        f"The {len(fruitless)} pods before this one published no step, in {spent} together: they may live too short "
        "for a checkpoint. Look at: rl-supervisor report RUN.toml. Save more often, or take pods that stay longer."
    )
