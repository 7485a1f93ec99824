"""The core's one entrance: ``decide(state, observation) -> (state, actions, next deadline)``.

Pure: no clock, no file, no randomness. A journal of observations replayed through it gives the same decisions.
"""

from __future__ import annotations

from typing import NamedTuple

from supervisor.core.account import account
from supervisor.core.actions import Action, Say
from supervisor.core.evolve import replace, settle
from supervisor.core.facts import Command, DaemonStarted, Fact, Observation
from supervisor.core.fast_path import only_goes_on, only_reacted_to
from supervisor.core.observe import observe
from supervisor.core.policy import advance
from supervisor.core.reactions import react
from supervisor.core.repeats import without_repeats
from supervisor.core.state import State
from supervisor.core.upkeep import keep_records
from supervisor.core.watch import Watch

LONGEST_S = 300.0  # a tick at least so often while an attempt lives
IDLE_TICK_S = 5.0
AGAIN_S = 0.05  # after actions: what they lead to is looked at with the next fact, or at once


class Decision(NamedTuple):
    """The new state, what to do, and the time ``t`` at which a tick is wanted if nothing else happens."""

    state: State
    actions: tuple[Action, ...]
    deadline: float


def decide(state: State, observation: Observation) -> Decision:
    """Fold in one observation and climb the ladders."""
    seen = observe(state, observation)  # a state of its own, so that it may be settled here
    fact = observation.fact
    calm = seen.calm_until > seen.now
    if calm and only_goes_on(state, seen, fact):
        return _calm(state, seen, fact)
    seen, acts = react(state, seen, fact)
    if calm and not acts and only_reacted_to(state, seen, fact):
        return _calm(state, seen, fact)
    watch = Watch(seen.now)
    seen, more = advance(seen, watch)
    _keep_books(state, seen, fact)
    seen, kept = keep_records(seen, watch)
    actions = (*acts, *kept, *more)  # the daemon ends at ``Exit``, which comes last
    acted = seen.mode != state.mode or any(not isinstance(action, Say) for action in actions)
    if isinstance(fact, DaemonStarted):
        settle(seen, said={})  # who looks at the log of this daemon has not heard it
    if not isinstance(fact, Command) and any(isinstance(action, Say) for action in actions):
        said, actions = without_repeats(seen.said, actions, seen.attempt.number, seen.now)
        settle(seen, said=said)
    deadline = _deadline(seen, watch, acted=acted)
    until = deadline if seen.live and not acted and not seen.suspicion.sentence and not seen.leave.asked else 0.0
    settle(seen, calm_until=until)
    return Decision(seen, actions, deadline)


def _calm(before: State, after: State, fact: Fact) -> Decision:
    """Nothing is concluded; only the books are kept."""
    if after.job.phases is not before.job.phases:
        _keep_books(before, after, fact)
    return Decision(after, (), after.calm_until)


def _keep_books(before: State, after: State, fact: Fact) -> None:
    ledger = account(before, after, fact)
    if ledger is not after.books.ledger:
        settle(after, books=replace(after.books, ledger=ledger))


def _deadline(state: State, watch: Watch, *, acted: bool) -> float:
    if acted:
        return state.now + AGAIN_S
    if state.mode == "backing-off":
        return max(state.now + AGAIN_S, min(state.recovery.backoff_until, state.now + IDLE_TICK_S))
    return max(state.now + AGAIN_S, min(watch.next, state.now + (LONGEST_S if state.live else IDLE_TICK_S)))
