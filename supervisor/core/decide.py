"""The core's one entrance: ``decide(state, observation) -> (state, actions, next deadline)``.

Pure: no clock, no file, no randomness. A journal of observations replayed through it gives the same decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.actions import Action
from supervisor.core.facts import Observation
from supervisor.core.observe import observe
from supervisor.core.policy import advance
from supervisor.core.reactions import react
from supervisor.core.state import State

LIVE_TICK_S = 1.0
IDLE_TICK_S = 5.0


@dataclass(frozen=True)
class Decision:
    """The new state, what to do, and the time ``t`` at which a tick is wanted if nothing else happens."""

    state: State
    actions: tuple[Action, ...]
    deadline: float


def decide(state: State, observation: Observation) -> Decision:
    """Fold in one observation and climb the ladders."""
    seen = observe(state, observation)
    seen, acts = react(state, seen, observation.fact)
    seen, more = advance(seen)
    return Decision(seen, (*acts, *more), _deadline(seen))


def _deadline(state: State) -> float:
    if state.live:
        return state.now + LIVE_TICK_S
    if state.mode == "backing-off":
        return max(state.now + 0.02, min(state.backoff_until, state.now + IDLE_TICK_S))
    return state.now + IDLE_TICK_S
