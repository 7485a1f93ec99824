"""A journal that was lost, or lacks its newest entries: with which state the run goes on, and how that is told."""

from __future__ import annotations

from supervisor.base.records import dataclass
from supervisor.core.evolve import replace
from supervisor.core.moves import Actions, enter, say
from supervisor.core.observe import fresh_attempt
from supervisor.core.state import NO_SETTINGS, NOT_LISTED, Incident, State
from supervisor.core.under_way import forget_effects

CAUSE = "journal-lost"
KEPT_INCIDENTS = 20


@dataclass(frozen=True)
class OldOrders:
    """What persons ordered, and whether the run had ended. ``max_steps``: with which it was finished."""

    wanted: bool = True
    paused: bool = False
    finished: bool = False
    max_steps: int | None = None


def go_on(state: State, orders: OldOrders | None, attempt: int, *, living: bool) -> State:
    """The state to begin with. ``attempt``: the newest that has a folder; ``living``: does anything of it run?

    Nothing is believed of an attempt that the journal does not know; a living job of it is adopted as it is found.
    ``orders`` None: they are unknown, and the journal's own stand.
    """
    if attempt > state.attempt.number:
        state = fresh_attempt(
            replace(
                forget_effects(state),
                attempt=replace(state.attempt, number=attempt, pid=None),
                incidents=replace(state.incidents, open=None),
            )
        )
        # The disk is listed before anything is chosen: a start would end the living job as one that is in the way.
        state = replace(
            enter(state, "surveying", "The journal was lost."), local=replace(state.local, reason=NOT_LISTED)
        )
    if orders is None:
        return state
    state = replace(state, orders=replace(state.orders, wanted=orders.wanted, paused=orders.paused))
    if orders.finished and not living:
        settings = replace(NO_SETTINGS, max_steps=orders.max_steps)
        return replace(enter(state, "finished", "This run is finished."), settings=settings)
    if not orders.wanted and living:
        return replace(
            enter(state, "stopping", "Stopped by a person."),
            attempt=replace(state.attempt, after_stop="stop", stop_reason="Stopped."),
        )
    if not orders.wanted and state.live:
        return enter(state, "stopped", "Stopped by a person.")
    if orders.wanted and state.mode == "stopping" and state.attempt.after_stop == "stop":
        return replace(state, attempt=replace(state.attempt, after_stop="restart"))
    return state


def record_loss(state: State, sentence: str) -> tuple[State, Actions]:
    """The loss as an incident, which is over as soon as it is told: log, status and incidents name it."""
    if not sentence:
        return state, []
    number = state.incidents.count + 1
    incident = Incident(number, CAUSE, sentence, state.now, state.wall, state.attempt.number, step=None)
    incident = replace(incident, decided=state.now, closed=state.now, closed_wall=state.wall)
    closed = (*state.incidents.closed, incident)[-KEPT_INCIDENTS:]
    state = replace(state, incidents=replace(state.incidents, closed=closed, count=number))
    return state, [say(CAUSE, sentence, "error", incident=number)]
